//! The cost of checkpoints, from the events of a node that writes one every few rounds. The rounds that a checkpoint
//! may slow down are compared with those right before and after them, in one process, so that other work on the machine
//! is in both.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeMap;

/// Rounds from one checkpoint to the next. Two may be slower for it: the one beside which it is written, and the next,
/// while the system still has to do with what was written. The third is as the rounds of a node without checkpoints.
pub const EVERY: u64 = 3;

/// The rounds around one checkpoint, in seconds from commit to commit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cycle {
    /// The round with whose commit the writing begins.
    pub before: f64,
    pub slowed: [f64; 2],
    /// The round after these, which ends as the next checkpoint begins.
    pub after: f64,
    /// From that commit to the checkpoint on disk.
    pub write: f64,
}

/// A commit: the time since the one before, and the time at which it was seen, in seconds.
#[derive(Clone, Copy)]
struct Commit {
    seconds: f64,
    seen: f64,
}

impl Cycle {
    /// The cycles of all checkpoints whose rounds are among these events.
    ///
    /// # Errors
    /// A checkpoint took longer than the rounds that are counted as slowed down, or none was written.
    pub fn all(events: &[Value]) -> Result<Vec<Self>> {
        let named = |name: &'static str| events.iter().filter(move |event| event["event"] == name);
        let commit = |event: &Value| {
            let (seconds, seen) = (event["seconds"].as_f64()?, event["seen"].as_f64()?);
            Some((event["round"].as_u64()?, Commit { seconds, seen }))
        };
        let commits: BTreeMap<u64, Commit> = named("committed").filter_map(commit).collect();
        let mut cycles = Vec::new();
        for written in named("checkpoint") {
            let round = written["round"].as_u64().context("the round of a checkpoint")?;
            let seen = written["seen"].as_f64().context("the time of a checkpoint")?;
            let at = |later: u64| commits.get(&(round + later)).copied();
            let (Some(own), Some(first), Some(second), Some(third)) = (at(0), at(1), at(2), at(EVERY)) else {
                continue;
            };
            let write = seen - own.seen;
            ensure!(
                seen <= second.seen,
                "the checkpoint of round {round} took {write:.1} s, longer than the two rounds after it: give more \
                 --steps"
            );
            let slowed = [first.seconds, second.seconds];
            cycles.push(Self { before: own.seconds, slowed, after: third.seconds, write });
        }
        ensure!(!cycles.is_empty(), "no checkpoint was written, or the rounds around it are missing: see the log");
        Ok(cycles)
    }

    /// A round without a checkpoint.
    fn usual(&self) -> f64 {
        (self.before + self.after) / 2.0
    }

    /// The time that the checkpoint has added to the rounds after it, in rounds. A machine that steadily becomes slower
    /// or faster adds nothing.
    fn cost(&self) -> f64 {
        self.slowed.iter().sum::<f64>() / self.usual() - 2.0
    }
}

/// Figures over all cycles: medians, and for the cost the quartiles, too.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    pub cycles: usize,
    /// A round without a checkpoint.
    pub round_seconds: f64,
    pub write_seconds: f64,
    /// The time that a checkpoint adds, in rounds: a quarter of the cycles had less than the first of these, half of
    /// them less than the second, and a quarter more than the third.
    pub cost: [f64; 3],
}

impl Figures {
    /// # Errors
    /// There is no cycle.
    pub fn of(cycles: &[Cycle]) -> Result<Self> {
        let of = |share: f64, pick: fn(&Cycle) -> f64| {
            let mut values: Vec<f64> = cycles.iter().map(pick).collect();
            values.sort_unstable_by(f64::total_cmp);
            let last = values.len().saturating_sub(1) as f64;
            values.get((last * share).round() as usize).copied().context("there is no cycle")
        };
        Ok(Self {
            cycles: cycles.len(),
            round_seconds: of(0.5, Cycle::usual)?,
            write_seconds: of(0.5, |cycle| cycle.write)?,
            cost: [of(0.25, Cycle::cost)?, of(0.5, Cycle::cost)?, of(0.75, Cycle::cost)?],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Commits with these times, and a checkpoint of each third that takes `write` seconds.
    fn events(rounds: &[f64], write: f64) -> Vec<Value> {
        let (mut events, mut now) = (Vec::new(), 100.0);
        for (round, seconds) in (1u64..).zip(rounds) {
            now += seconds;
            events.push(json!({"event": "committed", "round": round, "seconds": seconds, "seen": now}));
            if round.is_multiple_of(EVERY) {
                events.push(json!({"event": "checkpoint", "round": round, "path": "a", "seen": now + write}));
            }
        }
        events
    }

    #[test]
    fn the_rounds_after_a_checkpoint_are_compared_with_those_around_them() {
        // The first two rounds warm up, and the last checkpoint has no rounds after it.
        let rounds = [9.0, 5.0, 2.0, 2.1, 2.0, 2.0, 2.2, 2.0, 2.0];
        let cycles = Cycle::all(&events(&rounds, 0.5)).expect("two cycles");
        assert_eq!(cycles.len(), 2);
        assert_eq!((cycles[0].before, cycles[0].slowed, cycles[0].after), (2.0, [2.1, 2.0], 2.0));
        let figures = Figures::of(&cycles).expect("figures");
        assert_eq!((figures.cycles, figures.round_seconds), (2, 2.0));
        assert!((figures.write_seconds - 0.5).abs() < 1e-6, "{figures:?}");
        let [low, _, high] = figures.cost;
        assert!((low - 0.05).abs() < 1e-6 && (high - 0.1).abs() < 1e-6, "{figures:?}");
    }

    #[test]
    fn a_machine_that_becomes_slower_adds_nothing() {
        let rounds: Vec<f64> = (0..12).map(|n| 2.0 + 0.1 * f64::from(n)).collect();
        let figures = Figures::of(&Cycle::all(&events(&rounds, 0.5)).expect("cycles")).expect("figures");
        assert!(figures.cost.iter().all(|cost| cost.abs() < 1e-9), "{figures:?}");
    }

    #[test]
    fn checkpoints_that_are_too_slow_or_missing_give_no_figures() {
        let said = |events: &[Value]| Cycle::all(events).expect_err("no figures").to_string();
        assert!(said(&events(&[2.0; 9], 4.5)).contains("give more --steps"));
        assert!(said(&events(&[2.0; 4], 0.5)).contains("no checkpoint was written"));
        assert!(Figures::of(&[]).is_err());
    }
}
