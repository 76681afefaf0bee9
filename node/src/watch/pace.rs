//! The pace of the flock, and the time until the run's end by it.

use std::collections::VecDeque;
use std::time::Instant;

/// Rounds whose times count.
const ROUNDS_MAX: usize = 31;
/// Rounds before the end is estimated.
const ROUNDS_MIN: usize = 3;
/// A round that took longer than so many usual ones counts as so many: a wait of two minutes says little about the
/// rounds to come.
const LONGEST: f64 = 4.0;
/// The part of its way to a new figure that the usual time of a round takes with each commit.
const STEP: f64 = 0.25;

/// One commit as it was seen.
#[derive(Clone, Copy, Debug)]
struct Seen {
    at: Instant,
    round: u64,
    tokens: u64,
}

/// One round, or the mean of several that were seen at once.
#[derive(Clone, Copy, Debug)]
struct Round {
    seconds: f64,
    tokens: f64,
}

/// The last rounds of the flock.
#[derive(Debug, Default)]
pub struct Pace {
    last: Option<Seen>,
    rounds: VecDeque<Round>,
    /// Seconds of a round, smoothed.
    usual: Option<f64>,
}

impl Pace {
    /// Notes a commit. The time before the first one is that of a start, and counts for nothing.
    pub fn committed(&mut self, round: u64, tokens: u64, at: Instant) {
        let Some(last) = self.last.replace(Seen { at, round, tokens }) else { return };
        if round <= last.round || tokens < last.tokens {
            // Another lineage's rounds begin.
            *self = Self { last: self.last, ..Self::default() };
            return;
        }
        let count = (round - last.round) as f64;
        let seconds = at.saturating_duration_since(last.at).as_secs_f64() / count;
        if self.rounds.len() == ROUNDS_MAX {
            self.rounds.pop_front();
        }
        self.rounds.push_back(Round { seconds, tokens: (tokens - last.tokens) as f64 / count });
        let now = self.typical_seconds();
        self.usual = Some(match self.usual {
            Some(usual) if self.rounds.len() > ROUNDS_MIN => usual + (now - usual) * STEP,
            _ => now,
        });
    }

    /// The flock's tokens a second over the last rounds.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let sum = |part: fn(&Round) -> f64| self.rounds.iter().map(part).sum::<f64>();
        (!self.rounds.is_empty()).then(|| sum(|round| round.tokens) / sum(|round| round.seconds).max(1e-3))
    }

    /// The share of the two budgets that is spent, of the one that is spent first; None without a budget. So many rounds
    /// are committed, some of them before this process.
    pub fn share(&self, (rounds, tokens): (u64, u64), committed: u64) -> Option<f64> {
        let (round, spent) = self.last.map_or((0, 0), |last| (last.round, last.tokens));
        let of = |done: u64, all: u64| (all > 0).then(|| done as f64 / all as f64);
        of(round.max(committed), rounds).into_iter().chain(of(spent, tokens)).reduce(f64::max)
    }

    /// Seconds until the first of the two budgets is spent; 0 is no budget. None before it is known.
    pub fn left(&self, (rounds, tokens): (u64, u64), now: Instant) -> Option<f64> {
        let (last, usual) = (self.last?, self.usual?);
        if self.rounds.len() < ROUNDS_MIN {
            return None;
        }
        let by_rounds = (rounds > 0).then(|| rounds.saturating_sub(last.round) as f64);
        let a_round = self.median(|round| round.tokens).max(1.0);
        let by_tokens = (tokens > 0).then(|| (tokens.saturating_sub(last.tokens) as f64 / a_round).ceil());
        let left = by_rounds.into_iter().chain(by_tokens).reduce(f64::min)?;
        // A round that takes longer than usual does not bring the end nearer.
        let since = now.saturating_duration_since(last.at).as_secs_f64().min(usual);
        Some((left * usual - since).max(0.0))
    }

    /// The mean of the last rounds' seconds, in which none counts for more than [`LONGEST`] medians.
    fn typical_seconds(&self) -> f64 {
        let most = self.median(|round| round.seconds) * LONGEST;
        let sum: f64 = self.rounds.iter().map(|round| round.seconds.min(most)).sum();
        sum / self.rounds.len().max(1) as f64
    }

    fn median(&self, part: fn(&Round) -> f64) -> f64 {
        let mut values: Vec<f64> = self.rounds.iter().map(part).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Seconds of rounds that differ, of one on average.
    const NOISE: [f64; 7] = [0.7, 1.3, 1.0, 0.8, 1.2, 0.9, 1.1];

    struct Flown {
        pace: Pace,
        now: Instant,
        round: u64,
    }

    impl Flown {
        fn new() -> Self {
            let mut pace = Pace::default();
            let now = Instant::now();
            pace.committed(1, 100, now);
            Self { pace, now, round: 1 }
        }

        /// A round of so many seconds; returns the time until round `budget`.
        fn round(&mut self, seconds: f64, budget: u64) -> Option<f64> {
            self.now += Duration::from_secs_f64(seconds);
            self.round += 1;
            self.pace.committed(self.round, self.round * 100, self.now);
            self.pace.left((budget, 0), self.now)
        }
    }

    #[test]
    fn no_end_is_shown_before_it_is_known() {
        let mut flown = Flown::new();
        assert_eq!(flown.pace.left((10, 0), flown.now), None);
        assert_eq!((flown.round(2.0, 10), flown.round(2.0, 10)), (None, None));
        let left = flown.round(2.0, 10).expect("it is known");
        assert!((left - 12.0).abs() < 1e-6, "{left}");
        assert_eq!(flown.pace.left((0, 0), flown.now), None, "a run without a budget has no end");
        assert_eq!((flown.pace.share((0, 0), 4), flown.pace.share((8, 0), 4)), (None, Some(0.5)));
        assert_eq!((flown.pace.share((8, 500), 4), Pace::default().share((0, 500), 0)), (Some(0.8), Some(0.0)));
        let by_tokens = flown.pace.left((10, 600), flown.now).expect("it is known");
        assert!((by_tokens - 4.0).abs() < 1e-6, "the first budget counts: {by_tokens}");
        let later = flown.pace.left((10, 0), flown.now + Duration::from_secs(1)).expect("it is known");
        assert!((later - 11.0).abs() < 1e-6, "{later}");
        let much_later = flown.pace.left((10, 0), flown.now + Duration::from_secs(60)).expect("it is known");
        assert!((much_later - 10.0).abs() < 1e-6, "a long round brings the end no nearer: {much_later}");
    }

    #[test]
    fn noise_and_single_long_rounds_do_not_move_the_end_by_much() {
        let (mut flown, budget) = (Flown::new(), 3000);
        let mut before: Option<f64> = None;
        for n in 0..400 {
            // One round in fifty waits for a newcomer.
            let seconds = if n % 50 == 49 { 30.0 } else { NOISE[n % NOISE.len()] };
            let left = flown.round(seconds, budget);
            if let (Some(before), Some(left), true) = (before, left, n > ROUNDS_MAX) {
                assert!((left / before - 1.0).abs() < 0.05, "round {n}: from {before} to {left}");
            }
            before = left;
        }
        let (left, true_left) = (before.expect("it is known"), (budget - flown.round) as f64);
        assert!((0.8..1.4).contains(&(left / true_left)), "{left} of {true_left}");
    }

    #[test]
    fn a_lasting_change_is_followed() {
        let mut flown = Flown::new();
        for _ in 0..100 {
            flown.round(1.0, 1000);
        }
        let mut left = None;
        for _ in 0..60 {
            left = flown.round(3.0, 1000);
        }
        let left = left.expect("it is known");
        let right = 3.0 * (1000 - flown.round) as f64;
        assert!((left / right - 1.0).abs() < 0.02, "{left}, not {right}");
    }

    #[test]
    fn another_lineage_and_skipped_rounds_do_not_confuse_it() {
        let mut flown = Flown::new();
        for _ in 0..10 {
            flown.round(1.0, 100);
        }
        // The node has caught up with five rounds at once.
        flown.now += Duration::from_secs(5);
        flown.pace.committed(16, 1600, flown.now);
        let rate = flown.pace.tokens_per_second().expect("it is known");
        assert!((rate - 100.0).abs() < 1e-6, "{rate}");
        flown.pace.committed(3, 300, flown.now);
        assert_eq!((flown.pace.tokens_per_second(), flown.pace.left((100, 0), flown.now)), (None, None));
    }
}
