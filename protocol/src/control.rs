//! The sync controller: how many inner steps the next round has, and in which codec its updates travel
//! (`docs/protocol/2-records.md` §2.11).
//!
//! More steps a round spread the round's fixed cost over more tokens, and make each token worth less, since members
//! drift apart for longer. A coarser codec takes the lines for a shorter time. The controller takes what gives the most
//! *goodput*: tokens a second, times the worth of a token. It is a pure function of a record and the contributions after
//! it, in integers and `f64` with `+ - * / sqrt` alone, so that every node computes the same bits; a voter that computes
//! others does not vote for them.
//!
//! Each figure is the lower median of what the voters among the contributors state; the cost of a round is the median of
//! three such, of the last three rounds. A minority of those that state a figure cannot move it beyond what the others
//! state (of two, one can), and a single round with another cost moves nothing. Newcomers that have not earned a vote do
//! not count. The number doubles or halves at most in a round, and only for a gain of [`GAIN_MIN`]. The codec moves by
//! one rung of [`RunSpec::rungs`] at most, and then stays until three rounds with it have been measured.

use crate::NodeId;
use crate::lease::median;
use crate::mutation::{Mutation, mutated};
use crate::record::{Measured, NextRound, OVERHEADS, Record, Role};
use crate::run::{Codec, RunSpec};
use crate::update;

/// The drift of a round of H steps with M members, in tokens: `DRIFT * sqrt(H * (M - 1))` more of them lead to the same
/// loss. Fitted to the 1m model with Muon (`docs/learning.md`, the law of rounds).
pub const DRIFT: f64 = 0.0264;
/// The least predicted goodput of another number of steps, as a multiple of the present one's. Around the best number
/// neighbours differ by less, so noise does not make it go up and down.
pub const GAIN_MIN: f64 = 1.03;

/// The least predicted goodput of a finer codec, as a multiple of the present one's. No codec of the ladder was shown to
/// cost anything in learning (`docs/learning.md`), but a coarser one takes more memory, and encoding takes longer.
pub const FINER_MIN: f64 = 0.99;

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
    /// The part of it in which the median line was full, in microseconds; 0 if its rate is unknown.
    pub wire_us: u32,
    /// Contributors of a round.
    pub members: u32,
}

impl Figures {
    /// The figures after a round of so many contributors in which a contribution had so many `bytes`, and whose voters
    /// measured this; `overheads` has the newest. None while they are not known, and with a single contributor: without
    /// averaging there is nothing to choose.
    pub fn of(measured: &[Measured], overheads: &[u32; OVERHEADS], contributors: usize, bytes: usize) -> Option<Self> {
        let members = u32::try_from(contributors).ok().filter(|members| *members > 1)?;
        let step_us = median(measured.iter().map(|m| m.step_us))?;
        let all_known = overheads.iter().all(|overhead| *overhead > 0);
        let overhead_us = median(*overheads).filter(|_| all_known)?;
        let wire_us = uplink(measured).map_or(0, |kbps| {
            let others = f64::from(members - 1) / f64::from(members);
            // A member sends the parts of its contribution, and then the sums of its parts: of each all but one.
            let bits = 2.0 * 8.0 * bytes as f64 * others;
            (bits * 1000.0 / f64::from(kbps)) as u32
        });
        Some(Self { step_us, overhead_us, wire_us: wire_us.min(overhead_us), members })
    }

    /// The figures that are expected where a contribution has so many times the bytes.
    pub fn with_bytes(&self, times: f64) -> Self {
        let wire = f64::from(self.wire_us) * times;
        let overhead = f64::from(self.overhead_us - self.wire_us.min(self.overhead_us)) + wire;
        // A round without any cost would have no figures.
        Self { wire_us: wire as u32, overhead_us: (overhead as u32).max(1), ..*self }
    }

    /// The most goodput that any number of steps gives which is reached from `now` by doubling or halving, up to `most`.
    pub fn peak(&self, now: u32, most: u32) -> f64 {
        let now = now.clamp(1, most.max(1));
        let up = std::iter::successors(Some(now), |steps| steps.checked_mul(2).filter(|steps| *steps <= most));
        let down = std::iter::successors(Some(now), |steps| Some(steps / 2).filter(|steps| *steps > 0));
        up.chain(down).map(|steps| self.goodput(steps)).fold(0.0, f64::max)
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

/// The measurements of the voters among contributors. A line whose rate a member does not state, since its transfers were
/// too short to tell, has the rate of its seat.
pub fn of_voters<'a>(parent: &Record, stated: impl Iterator<Item = (&'a NodeId, &'a Measured)>) -> Vec<Measured> {
    let known = |(id, measured): (&NodeId, &Measured)| {
        let seat = parent.member(id).filter(|seat| seat.role == Role::Voter)?;
        let upload_kbps = if measured.upload_kbps == 0 { seat.upload_kbps } else { measured.upload_kbps };
        Some(Measured { upload_kbps, ..*measured })
    };
    stated.filter_map(known).collect()
}

/// The median uplink in kbit/s, where an unknown one counts as the fastest; None if the median one is unknown.
fn uplink(measured: &[Measured]) -> Option<u32> {
    let mut lines: Vec<u32> =
        measured.iter().map(|m| if m.upload_kbps == 0 { u32::MAX } else { m.upload_kbps }).collect();
    lines.sort_unstable();
    let middle = if mutated!(Mutation::SlanderCounts) { 0 } else { lines.len().checked_sub(1)? / 2 };
    lines.get(middle).copied().filter(|kbps| *kbps < u32::MAX)
}

/// The room that a run leaves for a choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// The most inner steps of a round.
    pub steps: u32,
    /// The codecs that a round may have, by ascending coarseness.
    pub rungs: Vec<Codec>,
    /// Parameters of the model.
    pub elements: usize,
}

impl Room {
    /// The room of a run; None if the run file fixes the steps, and with them the codec.
    pub fn of(spec: &RunSpec) -> Option<Self> {
        let elements = usize::try_from(spec.parameters()).unwrap_or(usize::MAX);
        (spec.sync.gap_max > 0).then(|| Self { steps: spec.sync.gap_max, rungs: spec.rungs(), elements })
    }

    /// The bytes of a contribution in a codec.
    pub fn bytes(&self, codec: Codec) -> usize {
        update::encoded_max(codec, self.elements)
    }

    /// The figures that are expected in another codec than that of the round.
    pub fn with(&self, figures: &Figures, (from, to): (Codec, Codec)) -> Figures {
        figures.with_bytes(self.bytes(to) as f64 / self.bytes(from).max(1) as f64)
    }
}

/// The settings of a round that the controller gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    pub inner_steps: u32,
    pub codec: Codec,
    /// The costs that the round's record keeps.
    pub overheads: [u32; OVERHEADS],
}

impl Choice {
    /// The choice for the first round of a run.
    pub fn first(spec: &RunSpec) -> Self {
        Self { inner_steps: spec.inner.steps, codec: spec.sync.codec, overheads: [0; OVERHEADS] }
    }

    /// The choice for the round after a COMMIT of so many contributions, whose voters measured this. `before` is the
    /// round that they end.
    pub fn after(spec: &RunSpec, before: &NextRound, measured: &[Measured], contributors: usize) -> Self {
        let NextRound { inner_steps, codec, overheads, .. } = *before;
        let overheads = self::overheads(&overheads, measured);
        match Room::of(spec) {
            None => Self { overheads, ..Self::first(spec) },
            Some(room) => Self { inner_steps, codec, overheads }.moved(&room, measured, contributors),
        }
    }

    /// The choice after this one, which has the newest costs.
    pub fn moved(self, room: &Room, measured: &[Measured], contributors: usize) -> Self {
        let Self { inner_steps, codec: before, overheads } = self;
        let Some(figures) = Figures::of(measured, &overheads, contributors, room.bytes(before)) else { return self };
        let codec = self.codec_in(room, &figures);
        let inner_steps = room.with(&figures, (before, codec)).steps_after(inner_steps, room.steps);
        // The costs of rounds with another codec say nothing about those to come. The first of the next three is still
        // one of them, since a READY tells of the round before; the median of three leaves it out.
        let known = codec == before || mutated!(Mutation::KeepCosts);
        Self { inner_steps, codec, overheads: if known { overheads } else { [0; OVERHEADS] } }
    }

    /// The codec after this choice with these figures: a coarser one for a gain of [`GAIN_MIN`], or a finer one where the
    /// goodput is at least [`FINER_MIN`] of the present one's.
    fn codec_in(&self, room: &Room, figures: &Figures) -> Codec {
        let at = room.rungs.iter().position(|codec| *codec == self.codec);
        // Lines that nobody could measure say nothing.
        let Some(at) = at.filter(|_| figures.wire_us > 0) else { return self.codec };
        let rung = |at: Option<usize>| at.and_then(|at| room.rungs.get(at)).copied();
        let peak = |codec: &Codec| room.with(figures, (self.codec, *codec)).peak(self.inner_steps, room.steps);
        let (coarser, finer, present) = (rung(at.checked_add(1)), rung(at.checked_sub(1)), peak(&self.codec));
        let coarser = coarser.filter(|codec| peak(codec) > present * GAIN_MIN);
        let finer = finer.filter(|codec| peak(codec) >= present * FINER_MIN);
        coarser.or(finer).unwrap_or(self.codec)
    }
}

#[cfg(test)]
#[path = "control_test.rs"]
mod tests;
