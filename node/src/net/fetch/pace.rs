//! How fast an answer is taken.

use crate::net::standing::Rank;
use std::time::Duration;
use tokio::time::Instant;

/// Members and joiners are watched for so many times as long.
const PATIENCE_WITH_KNOWN: u32 = 4;

/// When somebody is slow.
#[derive(Clone, Copy, Debug)]
pub struct Slowness {
    /// Bytes a second that an answer is to be taken with while others wait: less than what a line must carry for its node to
    /// keep up with rounds of the smallest model.
    pub bytes_per_second: usize,
    /// How long it is watched before that is said of a stranger. Others have longer.
    pub watched: Duration,
}

impl Default for Slowness {
    fn default() -> Self {
        Self { bytes_per_second: 128 << 10, watched: Duration::from_secs(2) }
    }
}

/// Watches one answer being taken.
pub struct Pace {
    slowness: Slowness,
    since: Instant,
    bytes: usize,
}

impl Pace {
    pub fn new(slowness: Slowness, rank: Rank, now: Instant) -> Self {
        let patience = if rank == Rank::Stranger { 1 } else { PATIENCE_WITH_KNOWN };
        let watched = slowness.watched * patience;
        Self { slowness: Slowness { watched, ..slowness }, since: now, bytes: 0 }
    }

    /// A piece was taken.
    pub fn took(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// When to look again.
    pub fn look_at(&self) -> Instant {
        self.since + self.slowness.watched
    }

    /// Whether too little was taken since the last time that this was asked.
    pub fn is_slow(&mut self, now: Instant) -> bool {
        let watched = now.saturating_duration_since(self.since);
        if watched < self.slowness.watched {
            return false;
        }
        let due = watched.as_secs_f64() * self.slowness.bytes_per_second as f64;
        let slow = (self.bytes as f64) < due;
        (self.since, self.bytes) = (now, 0);
        slow
    }
}
