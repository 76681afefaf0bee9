//! The rate of dials: a bucket of time that fills as time passes.

use starling_protocol::engine::io::Time;

/// Dials under way.
pub const DIALS_MAX: usize = 16;
/// Dials a second in the long run; bursts of [`DIALS_MAX`] are let through.
const DIALS_PER_SECOND: u64 = 8;
const DIAL_COST: u64 = 1_000_000 / DIALS_PER_SECOND;
const MOST: u64 = DIALS_MAX as u64 * DIAL_COST;

/// Time not yet spent on dials, in microseconds: each dial costs `1 s / DIALS_PER_SECOND`.
pub(super) struct Credit {
    left: u64,
    counted: Time,
}

impl Credit {
    pub fn full(now: Time) -> Self {
        Self { left: MOST, counted: now }
    }

    pub fn collect(&mut self, now: Time) {
        let earned = now.0.saturating_sub(self.counted.0);
        self.left = self.left.saturating_add(earned).min(MOST);
        self.counted = now;
    }

    /// Whether there is enough for a dial that must leave `left` dials for other peers.
    pub fn has_one(&self, left: usize) -> bool {
        self.left >= cost(left)
    }

    /// Pays for one dial.
    pub fn spend(&mut self) {
        self.left = self.left.saturating_sub(DIAL_COST);
    }

    /// The time at which there is enough for such a dial.
    pub fn at(&self, left: usize) -> Time {
        Time(self.counted.0.saturating_add(cost(left).saturating_sub(self.left)))
    }
}

/// The cost of one dial and of those that it must leave.
fn cost(left: usize) -> u64 {
    (left as u64 + 1) * DIAL_COST
}
