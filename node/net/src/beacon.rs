//! The times at which a node announces its addresses by gossip: rarely, and soon after a change.

use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

/// Pause between announcements; the repetition makes up for lost ones.
const EVERY: Duration = Duration::from_secs(60);
/// Shortest pause after an announcement.
const GAP: Duration = Duration::from_secs(2);
/// A peer that comes so soon after an announcement may have come because of it.
const ANSWERED: Duration = Duration::from_secs(10);
/// Pause before another try when no peer was there to hear it.
const RETRY: Duration = Duration::from_secs(5);

/// The timer of announcements.
pub(super) struct Beacon {
    last: Option<Instant>,
    due: Instant,
    began: Instant,
    /// The wall clock then, in milliseconds since the Unix epoch.
    began_ms: u64,
}

impl Beacon {
    pub fn new(now: Instant) -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let began_ms = u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX);
        Self { last: None, due: now + RETRY, began: now, began_ms }
    }

    /// The time that an announcement bears, in milliseconds. The wall clock is read once. If it were read each time and
    /// then set back while the node runs, peers would take all announcements for old ones until it catches up.
    pub fn stamp_ms(&self, now: Instant) -> u64 {
        let since = u64::try_from((now - self.began).as_millis()).unwrap_or(u64::MAX);
        self.began_ms.saturating_add(since)
    }

    /// Something that other peers want to know has changed, or a new peer is there.
    pub fn news(&mut self, now: Instant) {
        let earliest = self.last.map_or(now, |last| last + GAP);
        self.due = self.due.min(earliest.max(now));
    }

    /// A new peer is here, in a large flock. That is news, unless an announcement has brought it about: the peer's own
    /// (`was_told`), or one of this node. Otherwise each announcement would bring about others, and these yet others.
    pub fn met(&mut self, was_told: bool, now: Instant) {
        let answers = self.last.is_some_and(|last| now.saturating_duration_since(last) < ANSWERED);
        if !was_told && !answers {
            self.news(now);
        }
    }

    pub fn is_due(&self, now: Instant) -> bool {
        self.due <= now
    }

    pub fn wake_at(&self) -> Instant {
        self.due
    }

    /// The announcement was made, or (`heard` is false) nobody was there.
    pub fn told(&mut self, heard: bool, now: Instant) {
        if heard {
            self.last = Some(now);
        }
        self.due = now + if heard { EVERY } else { RETRY };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_rise_with_the_time_that_passes() {
        let start = Instant::now();
        let beacon = Beacon::new(start);
        let first = beacon.stamp_ms(start);
        assert!(first > 1_600_000_000_000, "{first} is a time of the wall clock");
        assert_eq!(beacon.stamp_ms(start + Duration::from_millis(2500)), first + 2500);
    }

    #[test]
    fn an_announcement_brings_about_no_third() {
        let start = Instant::now();
        let mut beacon = Beacon::new(start);
        beacon.met(false, start);
        assert!(beacon.is_due(start), "a peer that no announcement has led here");
        beacon.told(true, start);
        // Peers that have heard it come, and this node goes to peers that it has heard of.
        for ms in [10, 500, 5_000] {
            beacon.met(false, start + Duration::from_millis(ms));
        }
        beacon.met(true, start + 2 * ANSWERED);
        assert_eq!(beacon.wake_at(), start + EVERY);
        beacon.met(false, start + 2 * ANSWERED);
        assert!(beacon.is_due(start + 2 * ANSWERED));
    }

    #[test]
    fn news_is_told_soon_but_not_too_often() {
        let start = Instant::now();
        let mut beacon = Beacon::new(start);
        assert!(!beacon.is_due(start));
        beacon.news(start);
        assert!(beacon.is_due(start));
        beacon.told(false, start);
        assert_eq!(beacon.wake_at(), start + RETRY);
        beacon.told(true, start);
        assert_eq!(beacon.wake_at(), start + EVERY);
        beacon.news(start);
        beacon.news(start + Duration::from_secs(1));
        assert_eq!(beacon.wake_at(), start + GAP);
    }
}
