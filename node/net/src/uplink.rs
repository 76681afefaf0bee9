//! The rate of the node's uplink, measured while it is used. The filter is that of Cardwell et al., "BBR:
//! Congestion-Based Congestion Control", ACM Queue 2016.
//!
//! The rate at which the transport takes bytes is the link's rate only if a sender had more to send all the time. So a
//! window begins when a sender is held back, since the buffers are full then, and ends when a sender is held back
//! again: in between as many bytes have left as came in. A window in which no sender was held back for a good part
//! measures the node's demand and not the link; it counts only if it is faster than the known rate. Bytes that fill a
//! stream's own buffers do not leave then, and do not count. The fastest of several windows counts, since every
//! disturbance only slows a window down. All streams of the node count together: they share the uplink.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The least length of a window: several of the system's scheduling pauses.
const WINDOW: Duration = Duration::from_millis(100);
/// The least bytes of a window: the bytes that buffers and flow control take at once must be a small part of it.
const WINDOW_BYTES: u64 = 1 << 20;
/// A link is busy if at most one such part of the window had no sender held back.
const IDLE_PARTS: u32 = 4;
/// A stream that has not been held back for so long may have room in its buffers again.
const FULL: Duration = Duration::from_millis(50);
/// Rounds whose fastest window counts. Older rounds do not: the link may have become slower.
const ROUNDS: usize = 8;

/// The measurement of one network; cheap to clone.
#[derive(Clone, Default)]
pub struct Uplink(Arc<Mutex<Gauge>>);

impl Uplink {
    /// The numbers are plain data, and valid even after a panic.
    fn gauge(&self) -> MutexGuard<'_, Gauge> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a stream.
    pub fn stream(&self) -> Stream {
        Stream { uplink: self.clone(), state: Buffers::default() }
    }

    /// Ends a round, and returns the uplink's rate in kbit/s by the last rounds; 0 while it has never held back
    /// anything.
    pub fn end_round(&self) -> u32 {
        self.gauge().end_round()
    }
}

/// One stream over the uplink.
pub struct Stream {
    uplink: Uplink,
    state: Buffers,
}

/// The state of a stream's buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Buffers {
    #[default]
    Filling,
    /// The transport takes nothing at present of the bytes to write.
    Full,
    /// The buffers were full until then.
    FullUntil(Instant),
}

impl Stream {
    /// The transport took so many bytes.
    pub fn took(&mut self, bytes: usize) {
        self.uplink.gauge().took(&mut self.state, bytes as u64, Instant::now());
    }

    /// The transport takes nothing at present.
    pub fn holds_back(&mut self) {
        if self.state != Buffers::Full {
            self.uplink.gauge().holds_back(Instant::now());
            self.state = Buffers::Full;
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.state == Buffers::Full {
            self.uplink.gauge().goes_on(Instant::now());
        }
    }
}

#[derive(Default)]
struct Gauge {
    /// Bytes taken so far by streams whose buffers were full.
    sent: u64,
    /// Senders that are held back, and since when there are none.
    held_back: usize,
    free_since: Option<Instant>,
    window: Option<Window>,
    /// The fastest window of this round, and of those before, in kbit/s.
    peak: u32,
    rounds: VecDeque<u32>,
}

struct Window {
    began: Instant,
    /// Bytes taken before the window.
    sent: u64,
    /// Time in which no sender was held back.
    idle: Duration,
}

impl Gauge {
    fn took(&mut self, stream: &mut Buffers, bytes: u64, now: Instant) {
        match *stream {
            Buffers::Full => {
                self.goes_on(now);
                *stream = Buffers::FullUntil(now);
            }
            Buffers::FullUntil(until) if now.saturating_duration_since(until) <= FULL => {}
            _ => {
                *stream = Buffers::Filling;
                return;
            }
        }
        self.sent += bytes;
    }

    fn goes_on(&mut self, now: Instant) {
        self.held_back = self.held_back.saturating_sub(1);
        if self.held_back == 0 {
            self.free_since = Some(now);
        }
    }

    fn holds_back(&mut self, now: Instant) {
        self.held_back += 1;
        let free = self.free_since.take().map(|since| now.saturating_duration_since(since)).unwrap_or_default();
        // After a longer rest the buffers are not as full as they were, so a new window begins.
        if let Some(window) = self.window.as_mut().filter(|_| free <= FULL) {
            window.idle += free;
            let (time, bytes) = (now.saturating_duration_since(window.began), self.sent - window.sent);
            if time < WINDOW || bytes < WINDOW_BYTES {
                return;
            }
            let busy = window.idle * IDLE_PARTS <= time;
            self.note((bytes as f64 * 8.0 / 1000.0 / time.as_secs_f64()).min(f64::from(u32::MAX)) as u32, busy);
        }
        self.window = Some(Window { began: now, sent: self.sent, idle: Duration::ZERO });
    }

    /// Notes a window that has ended. It counts if the link was busy, or if it is faster than the best known one.
    fn note(&mut self, kbps: u32, busy: bool) {
        let best = self.rounds.iter().copied().max().unwrap_or(0).max(self.peak);
        if busy || (best > 0 && kbps > best) {
            self.peak = self.peak.max(kbps);
        }
    }

    fn end_round(&mut self) -> u32 {
        self.rounds.push_back(std::mem::take(&mut self.peak));
        if self.rounds.len() > ROUNDS {
            self.rounds.pop_front();
        }
        self.rounds.iter().copied().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Sends `frames` of 20 KB over a link that takes `per_ms` bytes a millisecond; the sender pauses before each
    /// frame.
    fn send(gauge: &mut Gauge, now: &mut Instant, frames: u32, per_ms: u64, thinks: Duration) {
        for _ in 0..frames {
            *now += thinks;
            gauge.holds_back(*now);
            *now += MS * u32::try_from(20_000 / per_ms).unwrap();
            gauge.took(&mut Buffers::Full, 20_000, *now);
        }
    }

    #[test]
    fn a_busy_link_tells_its_rate_and_the_fastest_window_counts() {
        let (mut gauge, mut now) = (Gauge::default(), Instant::now());
        assert_eq!(gauge.end_round(), 0, "never held back");
        send(&mut gauge, &mut now, 200, 10_000, Duration::ZERO);
        send(&mut gauge, &mut now, 200, 1_000, Duration::ZERO);
        let known = gauge.end_round();
        assert!((72_000..=80_000).contains(&known), "10 KB a millisecond are 80 Mbit/s: {known}");
        // The link has become slower. The lower rate counts once the fast rounds are too long ago.
        for round in 0..ROUNDS {
            send(&mut gauge, &mut now, 200, 1_000, Duration::ZERO);
            let said = gauge.end_round();
            let expected = if round + 1 < ROUNDS { known } else { 8_000 };
            assert_eq!(said, expected, "round {round}");
        }
    }

    #[test]
    fn the_traffic_of_a_node_is_not_taken_for_the_rate_of_its_link() {
        let (mut gauge, mut now) = (Gauge::default(), Instant::now());
        send(&mut gauge, &mut now, 400, 10_000, 4 * MS);
        assert_eq!(gauge.end_round(), 0, "it was not held back most of the time");
        now += 2 * FULL;
        send(&mut gauge, &mut now, 200, 1_000, Duration::ZERO);
        assert_eq!(gauge.end_round(), 8_000);
        // The link's rate is at least the sender's.
        now += 2 * FULL;
        send(&mut gauge, &mut now, 400, 10_000, 4 * MS);
        let known = gauge.end_round();
        assert!((25_000..28_000).contains(&known), "20 KB in 6 ms: {known}");
    }

    #[test]
    fn streams_count_together_and_one_that_ends_holds_nobody_back() {
        let (mut gauge, mut now) = (Gauge::default(), Instant::now());
        for _ in 0..200 {
            gauge.holds_back(now);
            gauge.holds_back(now);
            now += 2 * MS;
            gauge.took(&mut Buffers::Full, 10_000, now);
            gauge.took(&mut Buffers::Full, 10_000, now);
        }
        assert_eq!(gauge.held_back, 0);
        let known = gauge.end_round();
        assert!((76_000..=80_000).contains(&known), "{known}");
        gauge.holds_back(now);
        gauge.goes_on(now);
        assert_eq!((gauge.held_back, gauge.free_since), (0, Some(now)));
    }

    /// A slow link under large buffers: each stream in turn takes half a megabyte at once.
    #[test]
    fn bytes_that_fill_buffers_do_not_count_as_sent() {
        let (mut gauge, mut now) = (Gauge::default(), Instant::now());
        for _ in 0..10 {
            let mut stream = Buffers::default();
            gauge.took(&mut stream, 512 << 10, now);
            for _ in 0..50 {
                gauge.holds_back(now);
                stream = Buffers::Full;
                now += 10 * MS;
                gauge.took(&mut stream, 30_000, now);
            }
            // The buffer is drained, and filled once more.
            now += 2 * FULL;
            gauge.took(&mut stream, 512 << 10, now);
            assert_eq!(stream, Buffers::Filling);
        }
        let known = gauge.end_round();
        assert!((20_000..=24_000).contains(&known), "3 KB a millisecond are 24 Mbit/s: {known}");
    }
}
