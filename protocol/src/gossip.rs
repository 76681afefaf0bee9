//! Gossip: between two records, members meet in pairs and mix what they have learned so far.
//!
//! The update is NoLoCo's (Kolehmainen et al., arXiv 2506.10911, section 3). With `theta` a member's parameters, `phi`
//! its slow weights, `Delta = theta - phi`, and n = 2 members, or 1 if the partner has not come:
//!
//! ```text
//! delta <- alpha delta + (beta / n) sum Delta - gamma (phi - (1 / n) sum phi)
//! phi   <- phi + delta;   theta <- phi
//! ```
//!
//! The paper writes minus before beta; with its `Delta = theta - phi` that would go back where the steps came from, so
//! the sign here is plus. All values are kept as differences from the canonical state that the round began with, which
//! is equal everywhere: a member's *drift* is `phi - canonical`, its *change* is `Delta`. Both are zero when a round
//! begins, and so is `delta`.
//!
//! No member depends on another's exchanges: the round still ends in a record that averages all contributions. This is
//! mixing, not consensus.

use crate::mutation::{Mutation, mutated};
use crate::run::Codec;
use crate::{Digest, NodeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The bounds of alpha and gamma. NoLoCo's theorem would allow more (any alpha below 1, gamma up to 2 + alpha for two),
/// but with random pairs among five and more members the drift then grows from one exchange to the next. Within these
/// bounds it shrinks by a fiftieth at least (computed for 2 to 32 members), by a seventh with the paper's settings.
pub const ALPHA_MAX: f64 = 0.6;
pub const GAMMA_MAX: f64 = 1.25;

/// The settings of gossip in a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GossipSpec {
    /// Inner steps between two exchanges, for a member that makes all steps of a round; fewer than a round has.
    pub steps: u32,
    /// The share of the last slow step that is carried on.
    pub alpha: f64,
    /// The weight of what both have learned since the last exchange.
    pub beta: f64,
    /// The strength with which slow weights are drawn together.
    pub gamma: f64,
}

impl GossipSpec {
    /// The paper's settings, and gamma 1: the slow weights of both are equal after an exchange but for their momentum.
    pub fn every(steps: u32) -> Self {
        Self { steps, alpha: 0.5, beta: 0.7, gamma: 1.0 }
    }

    /// The number of exchanges in a round with so many inner steps. The reduction follows the last steps, so no
    /// exchange does.
    pub fn exchanges(&self, inner_steps: u32) -> u32 {
        inner_steps.saturating_sub(1) / self.steps.max(1)
    }

    /// The number of its own steps after which a member with a lease of `steps` makes exchange `exchange`, from 1.
    /// Leases follow speed, so fast and slow members have done the same share of theirs at about the same time.
    pub fn due(&self, exchange: u32, inner_steps: u32, steps: u32) -> u32 {
        let at = u64::from(exchange) * u64::from(self.steps) * u64::from(steps) / u64::from(inner_steps.max(1));
        u32::try_from(at).unwrap_or(u32::MAX).max(1)
    }
}

/// The codec of what pairs exchange. Values that top-k or int4 leave out would be lost, since no member keeps them.
pub fn codec(run: Codec) -> Codec {
    match run {
        Codec::Bf16 => Codec::Bf16,
        Codec::Int8 | Codec::Int4 | Codec::TopK { .. } => Codec::Int8,
    }
}

/// The number of draws of an exchange's order, so that no member meets the one that it met in the exchange before.
const DRAWS_MAX: u32 = 16;

/// The pairs of the exchanges of one round, one after the other. Every node that knows the record computes the same. In
/// a flock of several rows each row has its own.
///
/// For each exchange, members stand in the order of `H("starling pairs v1"; lineage, base, exchange u32, draw u32,
/// id)`. The neighbours 2i and 2i + 1 meet, and an odd last one is alone. With three members and more, if a pair of the
/// exchange before would meet again, the next draw counts (from 0), up to the sixteenth. Orders have to be independent
/// of each other: in a tournament, in which each member meets each other in turn, the momentum of the update falls into
/// step with the turns, and from five members on they drift apart without end.
#[derive(Clone, Debug)]
pub struct Meetings {
    lineage: Digest,
    base: Digest,
    exchange: u32,
    /// Members, ascending, each with the one that it meets in the current exchange.
    met: BTreeMap<NodeId, Option<NodeId>>,
}

impl Meetings {
    /// The meetings of the round that begins at the state of the record `base`, before its first exchange.
    pub fn new(lineage: Digest, base: Digest, members: impl IntoIterator<Item = NodeId>) -> Self {
        let met = members.into_iter().map(|id| (id, None)).collect();
        Self { lineage, base, exchange: 0, met }
    }

    /// Goes on to the next exchange and returns the member that `me` meets in it; None if `me` is left over, or is no
    /// member.
    pub fn next(&mut self, me: &NodeId) -> Option<NodeId> {
        self.exchange = self.exchange.saturating_add(1);
        let mut pairs = self.draw(0);
        for draw in 1..DRAWS_MAX {
            let again = |(a, b): &(NodeId, NodeId)| self.met.get(a) == Some(&Some(*b));
            // Two members can only meet each other.
            if self.met.len() < 3 || !pairs.iter().any(again) || mutated!(Mutation::MeetAgain) {
                break;
            }
            pairs = self.draw(draw);
        }
        self.met.values_mut().for_each(|with| *with = None);
        for (a, b) in pairs {
            self.met.insert(a, Some(b));
            self.met.insert(b, Some(a));
        }
        self.met.get(me).copied().flatten()
    }

    fn draw(&self, draw: u32) -> Vec<(NodeId, NodeId)> {
        let (exchange, draw) = (self.exchange.to_le_bytes(), draw.to_le_bytes());
        let place = |id: &NodeId| {
            (Digest::of("starling pairs v1", &[&self.lineage.0, &self.base.0, &exchange, &draw, &id.0]), *id)
        };
        let mut order: Vec<_> = self.met.keys().map(place).collect();
        order.sort_unstable();
        order.chunks_exact(2).map(|two| (two[0].1, two[1].1)).collect()
    }
}

/// The statement of one of two members. Both decode it from its written form, also the sender, so that both compute
/// with the same numbers.
#[derive(Clone, Copy, Debug)]
pub struct Said<'a> {
    pub change: &'a [f32],
    pub drift: &'a [f32],
}

/// The update's constants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    alpha: f32,
    beta: f32,
    gamma: f32,
}

impl From<&GossipSpec> for Rule {
    fn from(spec: &GossipSpec) -> Self {
        Self { alpha: spec.alpha as f32, beta: spec.beta as f32, gamma: spec.gamma as f32 }
    }
}

impl Rule {
    /// Computes an exchange of two: each element's new drift and momentum. Each operation is rounded by itself. Sums of
    /// two do not depend on their order, so both members have the same means.
    ///
    /// Slices have one length; of unequal ones the shortest counts. Returns false if the drift is not finite any more.
    pub fn meet(&self, drift: &mut [f32], momentum: &mut [f32], mine: Said, theirs: Said) -> bool {
        let said = mine.change.iter().zip(mine.drift).zip(theirs.change.iter().zip(theirs.drift));
        let mut finite = true;
        for ((drift, momentum), ((my_change, my_drift), (change, other))) in drift.iter_mut().zip(momentum).zip(said) {
            let learned = (my_change + change) * 0.5;
            let middle = (my_drift + other) * 0.5;
            *momentum = self.alpha * *momentum + self.beta * learned - self.gamma * (my_drift - middle);
            *drift += *momentum;
            finite &= drift.is_finite();
        }
        finite
    }

    /// Computes the exchange of a member whose partner has not come. Returns false if the drift is not finite any more.
    pub fn alone(&self, drift: &mut [f32], momentum: &mut [f32], change: &[f32]) -> bool {
        let mut finite = true;
        for ((drift, momentum), change) in drift.iter_mut().zip(momentum).zip(change) {
            *momentum = self.alpha * *momentum + self.beta * change;
            *drift += *momentum;
            finite &= drift.is_finite();
        }
        finite
    }
}

#[cfg(test)]
#[path = "gossip_test.rs"]
mod tests;
