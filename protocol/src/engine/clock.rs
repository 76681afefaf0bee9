//! Time in which this node itself was awake.
//!
//! Every deadline of the engine is about *other* nodes: whether they are heard, whether they make progress. A process
//! that was stopped for a minute (suspended machine, debugger, starved CPU) has heard no node for a minute and must not
//! conclude that all of them died. Between two inputs the engine therefore ages by a bounded step at most, however far
//! the driver's clock has moved.

use super::io::Time;

/// A point on the engine's own clock, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Moment(u64);

impl Moment {
    /// Microseconds from `earlier` to this moment; zero if `earlier` is the later one.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The moment as a number, which grows with the time.
    pub fn micros(self) -> u64 {
        self.0
    }

    /// Whether this moment has come by `now`.
    pub fn passed(self, now: Self) -> bool {
        now >= self
    }

    pub fn plus(self, micros: u64) -> Self {
        Self(self.0.saturating_add(micros))
    }
}

/// Turns the driver's time into the engine's.
#[derive(Debug, Default)]
pub(super) struct Clock {
    last: Option<Time>,
    moment: Moment,
}

impl Clock {
    /// Advances to the driver's time `now`, by at most `step_max` microseconds. A clock that goes back counts as one
    /// that stands still.
    pub fn advance(&mut self, now: Time, step_max: u64) -> Moment {
        let passed = self.last.map_or(0, |last| now.0.saturating_sub(last.0));
        self.moment = self.moment.plus(passed.min(step_max));
        self.last = Some(now.max(self.last.unwrap_or(now)));
        self.moment
    }

    /// The driver's time at the moment `at`, if the process does not stop in between.
    pub fn driver_time(&self, at: Moment) -> Option<Time> {
        self.last.map(|last| Time(last.0.saturating_add(at.since(self.moment))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_stop_ages_the_engine_by_one_step() {
        let mut clock = Clock::default();
        let start = clock.advance(Time(5_000), 1_000);
        assert_eq!(clock.advance(Time(5_400), 1_000).since(start), 400);
        assert_eq!(clock.advance(Time(900_000), 1_000).since(start), 1_400);
        assert_eq!(clock.advance(Time(800_000), 1_000).since(start), 1_400, "a clock that goes back stands still");
        assert_eq!(clock.advance(Time(900_100), 1_000).since(start), 1_500);
        let at = start.plus(2_000);
        assert_eq!(clock.driver_time(at), Some(Time(900_600)));
    }
}
