//! Leases of the run's positions: each member of a round gets a contiguous range of its own
//! (`docs/protocol/2-records.md` §2.4).
//!
//! All of it is integer arithmetic in a fixed order, so that every member writes the same leases into the record it
//! builds.

use crate::limits::{FREE_SPANS_MAX, SAMPLES_MAX};
use crate::mutation::{Mutation, mutated};
use crate::record::Span;

/// A member is never leased less than this part of a round's steps. Below it, its contribution would be noise, and a
/// single slow measurement would starve it.
const SLOWEST_PART: u32 = 8;
/// A member is never leased more than so many times a round's steps. Its own word about its speed weighs no more in the
/// average than this.
pub const FASTEST_PART: u32 = 4;

/// The positions that are left to lease: spans that came back unused, and all from the cursor on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// First position that was never leased.
    cursor: u64,
    /// Ascending, apart, below the cursor; longer than [`FREE_SPANS_MAX`] while a record is being built.
    free: Vec<Span>,
}

impl Pool {
    /// The pool that a record of valid shape describes.
    pub fn new(cursor: u64, free: &[Span]) -> Self {
        Self { cursor, free: free.to_vec() }
    }

    /// Takes positions back that were leased and not used. They must not be in the pool already.
    pub fn give_back(&mut self, span: Span) {
        if span.count == 0 {
            return;
        }
        let at = self.free.partition_point(|free| free.start < span.start);
        self.free.insert(at, span);
        self.join(at);
        if at > 0 {
            self.join(at - 1);
        }
    }

    /// Makes the span at `at` one with the next if they touch.
    fn join(&mut self, at: usize) {
        let (Some(this), Some(next)) = (self.free.get(at), self.free.get(at + 1)) else { return };
        if this.end() != Some(next.start) || mutated!(Mutation::NeverJoin) {
            return;
        }
        let joined = Span { start: this.start, count: this.count.saturating_add(next.count) };
        self.free.splice(at..at + 2, [joined]);
    }

    /// Leases `steps` inner steps of `unit` positions each. Takes the smallest free span that fits the whole (the lower
    /// of equals); else the largest that holds at least half of it, in whole steps; else fresh positions.
    ///
    /// Best fit keeps long spans long. Half a lease now is better than a span that waits for ever: a returned span is
    /// often from a round that was cut short.
    ///
    /// Returns None when positions run out at 2^64, or when nothing is asked for.
    pub fn take(&mut self, steps: u32, unit: u64) -> Option<Span> {
        let wish = u64::from(steps).checked_mul(unit).filter(|wish| *wish > 0)?;
        let whole = self.free.iter().enumerate().filter(|(_, free)| free.count >= wish);
        if let Some((at, _)) =
            whole.min_by_key(|(_, free)| (if mutated!(Mutation::FirstFit) { 0 } else { free.count }, free.start))
        {
            return self.cut(at, wish);
        }
        let part = |free: &Span| free.count / unit * unit;
        let half =
            self.free.iter().enumerate().filter(|(_, free)| {
                part(free) >= if mutated!(Mutation::SliverOfALease) { 1 } else { wish.div_ceil(2) }
            });
        if let Some((at, free)) = half.min_by_key(|(_, free)| (std::cmp::Reverse(free.count), free.start)) {
            let count = part(free);
            return self.cut(at, count);
        }
        let lease = Span { start: self.cursor, count: wish };
        if !mutated!(Mutation::LeaseTwice) {
            self.cursor = lease.end()?;
        }
        Some(lease)
    }

    /// The first `count` positions of a free span.
    fn cut(&mut self, at: usize, count: u64) -> Option<Span> {
        let free = self.free.get_mut(at)?;
        let lease = Span { start: free.start, count };
        *free = Span { start: lease.end()?, count: free.count.checked_sub(count)? };
        if free.count == 0 {
            self.free.remove(at);
        }
        Some(lease)
    }

    /// The cursor and the free spans as a record lists them. Beyond [`FREE_SPANS_MAX`] the shortest are given up, the
    /// lower one of equals: their samples are not read in this epoch.
    pub fn into_parts(mut self) -> (u64, Vec<Span>) {
        while self.free.len() > FREE_SPANS_MAX {
            let shortest = self.free.iter().enumerate().min_by_key(|(_, span)| {
                (if mutated!(Mutation::DropLongest) { u64::MAX - span.count } else { span.count }, span.start)
            });
            let Some((at, _)) = shortest else { break };
            self.free.remove(at);
        }
        (self.cursor, self.free)
    }
}

/// The middle one of measured times, the shorter of two middle ones; None if no member measured (0 = not measured).
pub fn median(measured: impl IntoIterator<Item = u32>) -> Option<u32> {
    let mut times: Vec<u32> = measured.into_iter().filter(|time| *time > 0).collect();
    times.sort_unstable();
    times.get(if mutated!(Mutation::SlowerMedian) { times.len() / 2 } else { times.len().checked_sub(1)? / 2 }).copied()
}

/// The most units that a member is leased in rounds of `inner_steps` steps of `unit` positions: those of a fast one, or
/// of one whose word about its speed does not count yet.
pub fn units_max(inner_steps: u32, unit: u64, is_trusted: bool) -> u32 {
    let part = if is_trusted && !mutated!(Mutation::NoFastLeases) { FASTEST_PART } else { 1 };
    let fits = u32::try_from(SAMPLES_MAX / unit.max(1)).unwrap_or(u32::MAX);
    inner_steps.saturating_mul(part).min(fits).max(inner_steps)
}

/// Units (the positions of one step) to lease to a member that takes `step_us` for one, so that it is done when the
/// median member is. Members as fast as the median, and those of unknown speed, get `inner_steps`; others in proportion
/// to their speed, at most `most`.
pub fn units_for(inner_steps: u32, most: u32, median_us: Option<u32>, step_us: u32) -> u32 {
    let Some(median) = median_us.filter(|_| step_us > 0) else { return inner_steps };
    let least = (inner_steps / SLOWEST_PART).max(1);
    // Rounded to the nearest: rounded down, a member slower than the median by a hair would make a step less, and wait
    // for it.
    // No overflow: a product of two u32 leaves room for one more.
    let units = (u64::from(inner_steps) * u64::from(median)
        + if mutated!(Mutation::RoundStepsDown) { 0 } else { u64::from(step_us / 2) })
        / u64::from(step_us);
    u32::try_from(units).unwrap_or(u32::MAX).clamp(least, most.max(least))
}

/// Steps in which a lease of so many units is trained in a round of `inner_steps`. A lease that was kept from a round of
/// more steps has as many of them as make none larger than a fast member's.
pub fn steps(units: u64, inner_steps: u32) -> u32 {
    let most = u64::from(inner_steps.max(1)).max(units.div_ceil(FASTEST_PART.into()));
    u32::try_from(units.clamp(1, most)).unwrap_or(u32::MAX)
}

/// Positions of a lease before the step `step` (from 0) of `steps`. A lease of more units than steps has some steps of
/// more units, as even as they can be: a fast member takes larger steps, not more of them.
pub fn positions_before(lease: &Span, unit: u64, steps: u32, step: u32) -> u64 {
    let units = u128::from(lease.count / unit.max(1));
    let before = units * u128::from(step.min(steps)) / u128::from(steps.max(1));
    // At most the lease's count.
    before as u64 * unit
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn span(start: u64, count: u64) -> Span {
        Span { start, count }
    }

    #[test]
    fn a_lease_that_was_kept_from_a_longer_round_has_steps_of_four_units_at_most() {
        assert_eq!([steps(10, 32), steps(32, 32), steps(128, 32), steps(0, 32)], [10, 32, 32, 1]);
        assert_eq!([steps(64, 32), steps(129, 32), steps(256, 32)], [32, 33, 64]);
    }

    #[test]
    fn fresh_leases_follow_the_cursor_to_the_end_of_positions() {
        let mut pool = Pool::new(100, &[]);
        assert_eq!(pool.take(3, 8), Some(span(100, 24)));
        assert_eq!(pool.take(1, 8), Some(span(124, 8)));
        assert_eq!(pool.take(0, 8), None);
        assert_eq!(pool.take(8, 0), None);
        assert_eq!(pool.into_parts(), (132, vec![]));
        let mut last = Pool::new(u64::MAX - 8, &[]);
        assert_eq!(last.take(1, 9), None);
        assert_eq!(last.take(u32::MAX, u64::MAX), None);
        assert_eq!(last.take(1, 8), Some(span(u64::MAX - 8, 8)));
    }

    #[test]
    fn the_smallest_span_that_fits_is_cut_then_half_a_lease_then_fresh_positions() {
        let mut pool = Pool::new(1_000, &[span(0, 100), span(200, 48), span(300, 40), span(400, 40), span(500, 30)]);
        assert_eq!(pool.take(5, 8), Some(span(300, 40)), "exact, the lower of two");
        assert_eq!(pool.take(5, 8), Some(span(400, 40)));
        assert_eq!(pool.take(5, 8), Some(span(200, 40)), "smallest that fits; 8 of it stay");
        assert_eq!(pool.take(20, 8), Some(span(0, 96)), "160 asked, whole steps of the largest");
        assert_eq!(pool.take(6, 8), Some(span(500, 24)), "exactly half is enough");
        assert_eq!(pool.take(3, 8), Some(span(1_000, 24)), "8, 6 and 4 are less than half");
        assert_eq!(pool.into_parts(), (1_024, vec![span(96, 4), span(240, 8), span(524, 6)]));
    }

    #[test]
    fn half_a_lease_counts_in_whole_steps() {
        let mut pool = Pool::new(1_000, &[span(0, 31)]);
        assert_eq!(pool.take(4, 16), Some(span(1_000, 64)), "31 of 64 hold one step of 16, not two");
    }

    #[test]
    fn a_span_that_comes_back_is_joined_with_its_neighbours() {
        let mut pool = Pool::new(1_000, &[span(0, 10), span(20, 10), span(40, 10)]);
        pool.give_back(span(10, 10));
        pool.give_back(span(500, 0));
        pool.give_back(span(50, 5));
        pool.give_back(span(39, 1));
        assert_eq!(pool.into_parts(), (1_000, vec![span(0, 30), span(39, 16)]));
    }

    #[test]
    fn beyond_the_limit_the_shortest_are_given_up() {
        let spans: Vec<Span> = (0..FREE_SPANS_MAX as u64 + 2).map(|i| span(100 * i, 5 + i % 2)).collect();
        let (_, kept) = Pool::new(1 << 20, &spans).into_parts();
        assert_eq!(kept.len(), FREE_SPANS_MAX);
        assert!(!kept.contains(&spans[0]) && !kept.contains(&spans[2]), "of the short ones the lower");
        assert!(kept.contains(&spans[1]) && kept.contains(&spans[4]));
    }

    #[test]
    fn slower_members_are_leased_fewer_steps() {
        assert_eq!(median([0, 400, 100, 0]), Some(100), "of two the faster");
        assert_eq!(median([3, 1, 2]), Some(2));
        assert_eq!(median([0, 0]), None);
        let units = |us| units_for(30, 30, Some(100), us);
        assert_eq!([0, 1, 100, 101, 103, 200, 400, u32::MAX].map(units), [30, 30, 30, 30, 29, 15, 8, 3]);
        let fast = |us| units_for(30, 120, Some(100), us);
        assert_eq!([0, 1, 24, 50, 80, 97, 100, 200].map(fast), [30, 120, 120, 60, 38, 31, 30, 15]);
        assert_eq!(units_for(30, 120, None, 7), 30);
        assert_eq!(units_for(1, 4, Some(1), 1_000), 1);
        assert_eq!(units_for(u32::MAX, u32::MAX, Some(u32::MAX), 1), u32::MAX);
        assert_eq!((units_max(30, 8, true), units_max(30, 8, false)), (120, 30));
        assert_eq!(units_max(1 << 20, 1 << 21, true), 1 << 21, "no lease is beyond SAMPLES_MAX");
        assert_eq!(units_max(1 << 20, 1 << 22, true), 1 << 20);
    }

    #[test]
    fn a_leases_units_are_spread_over_its_steps() {
        let places = |count, steps| {
            let before = |step| positions_before(&span(1_000, count), 8, steps, step);
            (0..=steps).map(before).collect::<Vec<_>>()
        };
        assert_eq!(places(24, 3), [0, 8, 16, 24]);
        assert_eq!(places(40, 3), [0, 8, 24, 40], "five units in three steps");
        assert_eq!(places(96, 3), [0, 32, 64, 96]);
        assert_eq!(places(20, 2), [0, 8, 16], "a part of a unit is not read");
        assert_eq!(positions_before(&span(0, 7), 8, 1, 1), 0);
        assert_eq!(positions_before(&span(0, u64::MAX), 1, u32::MAX, u32::MAX), u64::MAX);
        assert_eq!(positions_before(&span(0, 16), 8, 0, 3), 0);
    }

    proptest! {
        #[test]
        fn positions_are_leased_once_and_none_is_lost(
            ops in prop::collection::vec((1u32..12, any::<prop::sample::Index>(), 0u64..90), 1..150),
        ) {
            const UNIT: u64 = 8;
            let mut pool = Pool::new(0, &[]);
            let (mut leased, mut used): (Vec<Span>, u64) = (Vec::new(), 0);
            for (steps, which, unused) in ops {
                let lease = pool.take(steps, UNIT).unwrap();
                prop_assert!(lease.count.is_multiple_of(UNIT) && lease.count > 0);
                prop_assert!(2 * lease.count >= u64::from(steps) * UNIT && lease.count <= u64::from(steps) * UNIT);
                leased.push(lease);
                if unused > 20 {
                    let back = leased.swap_remove(which.index(leased.len()));
                    let unused = unused.min(back.count);
                    pool.give_back(span(back.start + back.count - unused, unused));
                    used += back.count - unused;
                }
                let free = &pool.free;
                prop_assert!(free.windows(2).all(|pair| pair[0].end().unwrap() < pair[1].start), "{free:?}");
                let held = leased.iter().chain(free).flat_map(|span| span.start..span.start + span.count);
                let distinct: BTreeSet<u64> = held.clone().collect();
                prop_assert_eq!(distinct.len(), held.count(), "leased twice");
                prop_assert_eq!(distinct.len() as u64 + used, pool.cursor);
            }
        }
    }
}
