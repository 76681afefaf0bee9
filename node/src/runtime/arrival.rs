//! A newcomer's transfer of the state, as a person follows it.

use crate::watch::event::Event;
use crate::watch::figures::{about, bytes as human_bytes};
use std::time::{Duration, Instant};

/// The time between two lines about one transfer.
const SHOWN_EVERY: Duration = Duration::from_secs(5);

/// A catch-up under way.
pub struct Arrival {
    began: Instant,
    shown: Instant,
    /// Bytes of the whole state, if all of it is fetched.
    of: Option<u64>,
    /// The time that the flock's rounds wait for newcomers at once.
    patience: Duration,
    told_slow: bool,
    /// Bytes that are here.
    here: u64,
}

impl Arrival {
    pub fn new(now: Instant, of: Option<u64>, patience: Duration) -> Self {
        Self { began: now, shown: now, of, patience, told_slow: false, here: 0 }
    }

    /// Notes that so many bytes are here; returns the events that are due.
    pub fn moved(&mut self, bytes: u64, now: Instant) -> Vec<Event> {
        self.here = bytes;
        if now.saturating_duration_since(self.shown) < SHOWN_EVERY {
            return Vec::new();
        }
        self.shown = now;
        let (seconds, pace, left_s) = self.pace(now);
        let mut events = vec![Event::Fetching { bytes, of: self.whole(), seconds, left_s }];
        let patience_s = self.patience.as_secs_f64();
        if let Some(of) = self.of.filter(|of| !self.told_slow && *of as f64 > pace * patience_s) {
            self.told_slow = true;
            let mbit = |bytes_a_second: f64| bytes_a_second * 8.0 / 1e6;
            let needed_mbit = (patience_s > 0.0).then(|| mbit(of as f64 / patience_s));
            events.push(Event::SlowLine { bytes: of, mbit: mbit(pace), needed_mbit, patience_s });
        }
        events
    }

    /// Bytes of the whole state, unless more has come: the weights with which the run began follow it to a node that
    /// needs them.
    fn whole(&self) -> Option<u64> {
        self.of.filter(|of| self.here <= *of)
    }

    /// Seconds since the begin, bytes a second, and seconds until all is here, if its length is known.
    fn pace(&self, now: Instant) -> (f64, f64, Option<f64>) {
        let seconds = now.saturating_duration_since(self.began).as_secs_f64();
        let pace = self.here as f64 / seconds.max(1e-3);
        let left_s = self.whole().filter(|_| self.here > 0).map(|of| of.saturating_sub(self.here) as f64 / pace);
        (seconds, pace, left_s)
    }

    /// How far it is, in words.
    pub fn text(&self, now: Instant) -> String {
        let here = human_bytes(self.here);
        match (self.whole(), self.pace(now)) {
            (Some(of), (_, _, Some(left))) => format!("{here} of {}, {} left", human_bytes(of), about(left)),
            (Some(of), _) => format!("{here} of {}", human_bytes(of)),
            (None, _) => format!("{here} so far"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_slow_transfer_is_shown_every_few_seconds_and_warned_of_once() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut arrival = Arrival::new(start, Some(240 * MIB), 120 * second);
        let mut events = Vec::new();
        for n in 1..=20 {
            events.extend(arrival.moved(u64::from(n) * MIB, start + n * second));
        }
        let shown = |event: &&Event| matches!(event, Event::Fetching { of: Some(_), left_s: Some(_), .. });
        assert_eq!(events.iter().filter(shown).count(), 4);
        let slow: Vec<&Event> = events.iter().filter(|event| !shown(event)).collect();
        let [Event::SlowLine { mbit, needed_mbit: Some(needed), .. }] = slow[..] else { panic!("{slow:?}") };
        assert!((8.3..8.5).contains(mbit) && (16.7..16.9).contains(needed), "{mbit} {needed}");
    }

    #[test]
    fn a_transfer_is_told_in_words() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut arrival = Arrival::new(start, Some(240 * MIB), 120 * second);
        assert_eq!(arrival.text(start), "0 B of 240.0 MiB");
        arrival.moved(120 * MIB, start + 60 * second);
        assert_eq!(arrival.text(start + 60 * second), "120.0 MiB of 240.0 MiB, about 60 s left");
        arrival.moved(250 * MIB, start + 120 * second);
        assert_eq!(arrival.text(start + 120 * second), "250.0 MiB so far", "never more than all of it");
        let mut unknown = Arrival::new(start, None, 120 * second);
        unknown.moved(MIB, start + second);
        assert_eq!(unknown.text(start + second), "1.0 MiB so far");
    }

    #[test]
    fn a_fast_transfer_and_one_of_unknown_length_are_not_warned_of() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        for (of, pace) in [(Some(240 * MIB), 12), (None, 1)] {
            let mut arrival = Arrival::new(start, of, 120 * second);
            let events: Vec<Event> =
                (1..=20).flat_map(|n| arrival.moved(u64::from(n) * pace * MIB, start + n * second)).collect();
            assert!(
                events.iter().all(|event| matches!(event, Event::Fetching { .. })) && events.len() == 4,
                "{events:?}"
            );
        }
    }
}
