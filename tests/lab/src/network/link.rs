//! The link of a directed pair of machines, and the rate of a wire.

use serde::Deserialize;
use std::time::Duration;

/// Queue of a link without a setting of its own.
const QUEUE: Duration = Duration::from_millis(100);

/// The treatment of packets from one machine to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    pub delay: Duration,
    /// Packets arrive up to this much earlier or later than `delay`, in their order.
    pub jitter: Duration,
    /// Shares of packets, 0 to 1: lost, out of order, delivered twice, with a bit flipped.
    pub loss: f64,
    pub reorder: f64,
    pub duplicate: f64,
    pub corrupt: f64,
    /// Bits a second; 0 = the pair has no limit of its own.
    pub rate: u64,
    /// Packets that would wait longer for the rate are lost.
    pub queue: Duration,
    /// Larger packets are dropped silently, as behind a broken firewall; 0 = none are.
    pub mtu: usize,
    /// No packet passes.
    pub cut: bool,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: 0.0,
            reorder: 0.0,
            duplicate: 0.0,
            corrupt: 0.0,
            rate: 0,
            queue: QUEUE,
            mtu: 0,
            cut: false,
        }
    }
}

/// Settings of a link, as scenarios and the control socket give them. A missing setting keeps its value.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct LinkChange {
    pub delay_ms: Option<f64>,
    pub jitter_ms: Option<f64>,
    pub loss: Option<f64>,
    pub reorder: Option<f64>,
    pub duplicate: Option<f64>,
    pub corrupt: Option<f64>,
    pub mbit: Option<f64>,
    pub queue_ms: Option<f64>,
    pub mtu: Option<usize>,
    pub cut: Option<bool>,
}

/// Longest delay and queue: an hour, so that no sum of times overflows.
const MS_MAX: f64 = 3_600_000.0;
/// Largest rate, in Mbit/s.
const MBIT_MAX: f64 = 1e6;

impl LinkChange {
    /// The error in the settings, if there is one.
    pub fn fault(&self) -> Option<String> {
        let times = [("delay_ms", self.delay_ms), ("jitter_ms", self.jitter_ms), ("queue_ms", self.queue_ms)];
        let shares =
            [("loss", self.loss), ("reorder", self.reorder), ("duplicate", self.duplicate), ("corrupt", self.corrupt)];
        let out = |(name, value): (&str, Option<f64>), max: f64| {
            let value = value.filter(|v| !(0.0..=max).contains(v))?;
            Some(format!("{name} is {value}, allowed is 0 to {max}"))
        };
        let found = times.into_iter().find_map(|t| out(t, MS_MAX));
        let found = found.or_else(|| shares.into_iter().find_map(|s| out(s, 1.0)));
        found.or_else(|| out(("mbit", self.mbit), MBIT_MAX))
    }

    /// The link with these changes.
    pub fn on(&self, link: Link) -> Link {
        let time = |ms: Option<f64>, was: Duration| ms.map_or(was, |ms| Duration::from_secs_f64(ms / 1000.0));
        Link {
            delay: time(self.delay_ms, link.delay),
            jitter: time(self.jitter_ms, link.jitter),
            loss: self.loss.unwrap_or(link.loss),
            reorder: self.reorder.unwrap_or(link.reorder),
            duplicate: self.duplicate.unwrap_or(link.duplicate),
            corrupt: self.corrupt.unwrap_or(link.corrupt),
            rate: self.mbit.map_or(link.rate, |mbit| (mbit * 1e6) as u64),
            queue: time(self.queue_ms, link.queue),
            mtu: self.mtu.unwrap_or(link.mtu),
            cut: self.cut.unwrap_or(link.cut),
        }
    }

    /// The changes of both; `other` has precedence.
    pub fn and(&self, other: &Self) -> Self {
        Self {
            delay_ms: other.delay_ms.or(self.delay_ms),
            jitter_ms: other.jitter_ms.or(self.jitter_ms),
            loss: other.loss.or(self.loss),
            reorder: other.reorder.or(self.reorder),
            duplicate: other.duplicate.or(self.duplicate),
            corrupt: other.corrupt.or(self.corrupt),
            mbit: other.mbit.or(self.mbit),
            queue_ms: other.queue_ms.or(self.queue_ms),
            mtu: other.mtu.or(self.mtu),
            cut: other.cut.or(self.cut),
        }
    }
}

/// A wire of some rate with a queue before it. Times are nanoseconds since some start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wire {
    /// The time at which the last accepted packet has left.
    free_at: u64,
}

impl Wire {
    /// The time at which all accepted packets have left.
    pub fn free_at(&self) -> u64 {
        self.free_at
    }

    /// Changes the rate. Packets that wait for a faster rate leave sooner; with a slower rate, packets that wait keep
    /// theirs.
    pub fn change(&mut self, now: u64, before: u64, after: u64) {
        let waits = self.free_at.saturating_sub(now);
        let faster = after == 0 || (before > 0 && after > before);
        if faster {
            let scaled = if after == 0 { 0 } else { u128::from(waits) * u128::from(before) / u128::from(after) };
            self.free_at = now + scaled as u64;
        }
    }

    /// The time at which a packet of `bytes` that arrives at `now` has passed, at `rate` bits a second (0 = at once);
    /// `None` if the queue is full.
    pub fn pass(&mut self, now: u64, bytes: usize, rate: u64, queue: Duration) -> Option<u64> {
        if rate == 0 {
            return Some(now);
        }
        let start = self.free_at.max(now);
        if start - now > queue.as_nanos() as u64 {
            return None;
        }
        self.free_at = start + (bytes as u64 * 8).saturating_mul(1_000_000_000) / rate;
        Some(self.free_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wire_passes_its_rate_and_loses_what_does_not_fit_its_queue() {
        let mut wire = Wire::default();
        let queue = Duration::from_millis(10);
        // 1250 bytes take 1 ms at 10 Mbit/s; the twelfth packet is the first that would wait more than 10 ms.
        let left: Vec<_> = (0..13).map(|_| wire.pass(0, 1250, 10_000_000, queue)).collect();
        let expected: Vec<_> = (1..=13).map(|n| (n <= 11).then_some(n * 1_000_000)).collect();
        assert_eq!(left, expected);
        assert_eq!(wire.pass(50_000_000, 1250, 10_000_000, queue), Some(51_000_000), "an idle wire saves nothing up");
        assert_eq!(wire.pass(51_000_000, 9000, 0, queue), Some(51_000_000));
    }

    #[test]
    fn a_faster_wire_is_not_held_up_by_what_waited_for_the_slower_one() {
        let queue = Duration::from_secs(2);
        let mut wire = Wire::default();
        for _ in 0..100 {
            assert!(wire.pass(0, 1250, 1_000_000, queue).is_some());
        }
        // A second's worth at 1 Mbit/s is a hundredth of one at 100.
        wire.change(0, 1_000_000, 100_000_000);
        assert_eq!(wire.pass(0, 1250, 100_000_000, Duration::from_millis(100)), Some(10_100_000));
        wire.change(0, 100_000_000, 1_000_000);
        assert_eq!(wire.pass(0, 1250, 1_000_000, queue), Some(20_100_000));
        wire.change(5_000_000, 1_000_000, 0);
        assert_eq!(wire.pass(5_000_000, 1250, 8_000_000_000, queue), Some(5_001_250), "nothing waits without a limit");
    }

    #[test]
    fn changes_leave_the_rest_alone_and_are_checked() {
        let before = Link { loss: 0.5, delay: Duration::from_millis(3), ..Link::default() };
        let change = LinkChange { mbit: Some(2.5), delay_ms: Some(0.5), ..LinkChange::default() };
        let after = change.on(before);
        assert_eq!((after.rate, after.delay, after.loss), (2_500_000, Duration::from_micros(500), 0.5));
        let both = change.and(&LinkChange { mbit: Some(1.0), cut: Some(true), ..LinkChange::default() });
        assert_eq!((both.mbit, both.delay_ms, both.cut), (Some(1.0), Some(0.5), Some(true)));
        assert_eq!(change.fault(), None);
        for wrong in [-1.0, 1.1, f64::NAN] {
            let change = LinkChange { loss: Some(wrong), ..LinkChange::default() };
            assert!(change.fault().is_some_and(|f| f.contains("loss")), "{wrong}");
        }
    }
}
