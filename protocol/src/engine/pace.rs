//! The pace of one peer's progress.

use crate::message::Phase;
use std::collections::{BTreeMap, VecDeque};

/// The number of intervals kept of each phase.
const INTERVALS_MAX: usize = 9;

/// Measured time between two signs of progress of one peer, by phase.
#[derive(Debug, Default)]
pub(super) struct Pace {
    intervals: BTreeMap<u8, VecDeque<u64>>,
}

impl Pace {
    pub fn note(&mut self, phase: Phase, micros: u64) {
        let intervals = self.intervals.entry(phase.number()).or_default();
        if intervals.len() == INTERVALS_MAX {
            intervals.pop_front();
        }
        intervals.push_back(micros);
    }

    pub fn median(&self, phase: Phase) -> Option<u64> {
        let mut sorted: Vec<u64> = self.intervals.get(&phase.number())?.iter().copied().collect();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_is_a_median_of_the_last_intervals() {
        let mut pace = Pace::default();
        assert_eq!(pace.median(Phase::Training), None);
        for micros in [5, 900, 7] {
            pace.note(Phase::Training, micros);
        }
        assert_eq!(pace.median(Phase::Training), Some(7));
        assert_eq!(pace.median(Phase::Reducing), None);
        for _ in 0..2 * INTERVALS_MAX {
            pace.note(Phase::Training, 20);
        }
        assert_eq!(pace.median(Phase::Training), Some(20));
        assert_eq!(pace.intervals[&Phase::Training.number()].len(), INTERVALS_MAX);
    }
}
