//! The sync controller: how many inner steps the next round has (`docs/protocol/2-records.md` §2.11).
//!
//! More steps a round spread the round's fixed cost over more tokens, and make each token worth less, since members
//! drift apart for longer. The controller takes the number with the most *goodput*: tokens a second, times the worth of
//! a token. It is a pure function of a record and the contributions after it, in integers and `f64` with `+ - * /
//! sqrt` alone, so that every node computes the same bits; a voter that computes others does not vote for them.
//!
//! Each figure is the lower median of what the voters among the contributors state; the cost of a round is the median of
//! three such, of the last three rounds. A minority of those that state a figure cannot move it beyond what the others
//! state (of two, one can), and a single round with another cost moves nothing. Newcomers that have not earned a vote do
//! not count. The number doubles or halves at most in a round, and only for a gain of [`GAIN_MIN`].

use crate::lease::median;
use crate::mutation::{Mutation, mutated};
use crate::record::{Measured, NextRound, OVERHEADS};
use crate::run::RunSpec;

/// The drift of a round of H steps with M members, in tokens: `DRIFT * sqrt(H * (M - 1))` more of them lead to the same
/// loss. Fitted to the 1m model with Muon (`docs/learning.md`, the law of rounds).
pub const DRIFT: f64 = 0.0264;
/// The least predicted goodput of another number of steps, as a multiple of the present one's. Around the best number
/// neighbours differ by less, so noise does not make it go up and down.
pub const GAIN_MIN: f64 = 1.03;

/// The largest momentum of the outer step with which the number of steps may change: more of it would have to be counted
/// in steps, not in rounds.
pub const MOMENTUM_MAX: f64 = 0.3;

/// The figures that the controller goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Microseconds of an inner step of the median member; above 0.
    pub step_us: u32,
    /// Microseconds of a round in which no member could train, above its inner steps.
    pub overhead_us: u32,
    /// Contributors of a round.
    pub members: u32,
}

impl Figures {
    /// The figures after a round of so many contributors, whose voters measured this; `overheads` has the newest. None
    /// while they are not known, and with a single contributor: without averaging there is nothing to choose.
    pub fn of(measured: &[Measured], overheads: &[u32; OVERHEADS], contributors: usize) -> Option<Self> {
        let members = u32::try_from(contributors).ok().filter(|members| *members > 1)?;
        let step_us = median(measured.iter().map(|m| m.step_us))?;
        let all_known = overheads.iter().all(|overhead| *overhead > 0);
        let overhead_us = median(*overheads).filter(|_| all_known)?;
        Some(Self { step_us, overhead_us, members })
    }

    /// Tokens a second times the worth of one, for rounds of `steps` steps: a share of what the members would reach
    /// without any cost of averaging, above 0 and at most 1.
    pub fn goodput(&self, steps: u32) -> f64 {
        self.training(steps) * self.worth(steps)
    }

    /// The share of a round of `steps` steps in which members train.
    pub fn training(&self, steps: u32) -> f64 {
        let trained = f64::from(steps) * f64::from(self.step_us);
        trained / (trained + f64::from(self.overhead_us))
    }

    /// The worth of a token in rounds of `steps` steps, against one machine's.
    pub fn worth(&self, steps: u32) -> f64 {
        let others = f64::from(self.members.saturating_sub(1));
        1.0 / (1.0 + DRIFT * (f64::from(steps) * others).sqrt())
    }

    /// The inner steps of the round after one of `now` steps: half as many, as many, or twice as many, at most `most`.
    pub fn steps_after(&self, now: u32, most: u32) -> u32 {
        let (now, most) = (now.max(1), most.max(1));
        let gain = if mutated!(Mutation::RestlessSteps) { 1.0 } else { GAIN_MIN };
        let least = self.goodput(now) * gain;
        let better = |steps: &u32| (1..=most).contains(steps) && self.goodput(*steps) > least;
        // Goodput has one peak, so at most one of the two is better.
        [now.saturating_mul(2), now / 2].into_iter().find(better).unwrap_or(now).min(most)
    }
}

/// The fixed costs after a round with these measurements, the newest first. A round that nobody measured adds none.
pub fn overheads(before: &[u32; OVERHEADS], measured: &[Measured]) -> [u32; OVERHEADS] {
    let stated = measured.iter().map(|m| m.overhead_us);
    let newest = if mutated!(Mutation::BoastsCount) { stated.max().filter(|us| *us > 0) } else { median(stated) };
    let [first, second, _] = *before;
    newest.map_or(*before, |newest| [newest, first, second])
}

/// The inner steps of the round after a COMMIT of so many contributions, whose voters measured this, and the fixed costs
/// that its record keeps. `before` is the round that they end.
pub fn next(spec: &RunSpec, before: &NextRound, measured: &[Measured], contributors: usize) -> (u32, [u32; OVERHEADS]) {
    let overheads = overheads(&before.overheads, measured);
    let steps = match (spec.sync.gap_max, Figures::of(measured, &overheads, contributors)) {
        (0, _) => spec.inner.steps,
        (_, None) => before.inner_steps,
        (most, Some(figures)) => figures.steps_after(before.inner_steps, most),
    };
    (steps, overheads)
}

#[cfg(test)]
#[path = "control_test.rs"]
mod tests;
