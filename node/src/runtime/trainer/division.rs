//! The lease of a round, divided among its steps.

use starling_protocol::lease;
use starling_protocol::permutation::SampleOrder;
use starling_protocol::record::Span;
use std::ops::Range;

// Trainers take every step that a lease can have.
const _: () = assert!(lease::FASTEST_PART as usize <= starling_kernels::BATCHES_MAX);

/// A lease as the steps of a round divide it.
pub struct Division {
    lease: Span,
    /// Positions of a step of a member at the median's speed.
    unit: u64,
    pub steps: u32,
}

impl Division {
    /// The division of a lease among at most so many steps, of at least a unit each.
    pub fn of(lease: Span, most: u32, unit: u64) -> Self {
        let unit = unit.max(1);
        // Not more than `most`, which is a u32.
        let steps = u64::from(most).min(lease.count / unit) as u32;
        Self { lease, unit, steps }
    }

    /// The positions of these steps, from 0. They are never another member's.
    pub fn positions(&self, steps: Range<u32>) -> Span {
        let before = |step| lease::positions_before(&self.lease, self.unit, self.steps, step);
        let (start, end) = (before(steps.start), before(steps.end));
        Span { start: self.lease.start.saturating_add(start), count: end.saturating_sub(start) }
    }
}

/// The samples by their positions; without an order, a sample has the number of its position.
pub struct Order(pub Option<SampleOrder>);

impl Order {
    pub fn sample(&mut self, position: u64) -> u64 {
        self.0.as_mut().map_or(position, |order| order.sample(position))
    }

    /// Puts the samples at these positions into `numbers`, whose earlier content goes.
    pub fn samples(&mut self, positions: Span, numbers: &mut Vec<u64>) {
        numbers.clear();
        numbers.extend((0..positions.count).map(|n| self.sample(positions.start.saturating_add(n))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fast_members_steps_are_larger_and_not_more() {
        let lease = |count| Span { start: 100, count };
        let steps = |division: &Division| -> Vec<u64> {
            (0..division.steps).map(|step| division.positions(step..step + 1).count).collect()
        };
        assert_eq!(steps(&Division::of(lease(24), 4, 8)), [8, 8, 8], "a slow member");
        assert_eq!(steps(&Division::of(lease(32), 4, 8)), [8; 4]);
        assert_eq!(steps(&Division::of(lease(56), 4, 8)), [8, 16, 16, 16], "seven units in four steps");
        assert_eq!(Division::of(lease(56), 4, 8).positions(1..3), Span { start: 108, count: 32 });
        assert_eq!(Division::of(lease(7), 4, 8).steps, 0, "less than a step");
    }
}
