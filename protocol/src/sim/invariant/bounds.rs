//! S11: a step moves no parameter further than its contributions can, and every value is finite.

use super::{Invariant, Observed, require};
use crate::Digest;
use crate::engine::io::{Contribution, Output};
use crate::record::{Contributor, Record, RecordKind};
use crate::run::{RunSpec, SyncMode};
use crate::sim::process::Offer;
use crate::sim::trainer::{self, State};
use crate::sim::world::World;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The furthest that the contributions of any one commit so far could have moved the mean, or those of any attempt: a
/// later one may keep its sums.
#[derive(Default)]
pub(super) struct Bounds {
    longest: f32,
}

impl Invariant for Bounds {
    fn name(&self) -> &'static str {
        "S11 bounded influence"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        match event {
            Observed::Mixed { node, base, offer, merge, mixed } => {
                let commit = commit_of(world, base).ok_or("a difference is merged before any commit")?;
                let share = share(offer, merge.tokens, &mixed.vector);
                // Subtracting the node's own part leaves a rounding error.
                let error =
                    1e-6 * f64::from(trainer::norm(&offer.vector)) * (1.0 + offer.tokens as f64 / merge.tokens as f64);
                let most = 3.01 * f64::from(median_norm(commit)) + error;
                require(share <= most, || format!("node {node} merges a difference of norm {share}, {most} allowed"))?;
                let most = commit.contributors.iter().map(|c| c.tokens).sum();
                require(merge.tokens <= most, || {
                    format!("node {node} weighs a difference with {} tokens, {most} allowed", merge.tokens)
                })?;
            }
            Observed::Committing { node, link, state, .. } => {
                let finite = state.vectors.vectors().flatten().all(|x| x.is_finite());
                require(finite, || format!("node {node} commits what is not finite"))?;
                let norms = link.record.contributors.iter().map(|c| f32::from_bits(c.measured.norm_bits));
                require(norms.clone().all(f32::is_finite), || "a contributor's norm is not a number".to_owned())?;
                let lengths = |c: &Contributor| (f32::from_bits(c.measured.norm_bits), c.steps);
                let lengths: Vec<(f32, u32)> = link.record.contributors.iter().map(lengths).collect();
                self.longest = self.longest.max(reach(&lengths) as f32);
                if let Some(process) = world.nodes[*node].process.as_ref() {
                    self.moved(*node, &process.state, state, &world.spec)?;
                }
            }
            Observed::Outputs { outputs, .. } => {
                for output in *outputs {
                    if let Output::Reduce { members, .. } = output {
                        let lengths = |c: &Contribution| (c.stated.norm, c.stated.steps);
                        let lengths: Vec<(f32, u32)> = members.iter().map(lengths).collect();
                        self.longest = self.longest.max(reach(&lengths) as f32);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl Bounds {
    /// A mean is no longer than the longest part, a momentum of 0.9 sums up to ten of them, and a block of int8 may
    /// round by a little. AdamW moves each parameter by about its rate at most, with any gradient, and by its decay.
    fn moved(&mut self, node: usize, before: &State, after: &Rc<State>, spec: &RunSpec) -> Result<(), String> {
        let (before, after) = (&before.vectors.theta, &after.vectors.theta);
        let difference: Vec<f32> = before.iter().zip(after).map(|(a, b)| a - b).collect();
        let moved = trainer::norm(&difference);
        let decay = spec.inner.weight_decay as f32 * trainer::norm(before);
        let most = match spec.sync.mode {
            SyncMode::Rounds => 1.1 * (self.longest + 10.0 * self.longest),
            SyncMode::EveryStep => spec.inner.lr as f32 * (1.5 * (trainer::ELEMENTS as f32).sqrt() + decay),
        };
        require(moved <= most, || format!("node {node}: one step moves by {moved}, contributions allow {most}"))
    }
}

/// The greatest length of the mean of some contributions, whatever they weigh: that of the longest, each counted no
/// longer than three times the median length of the others', brought up to its number of steps.
fn reach(contributions: &[(f32, u32)]) -> f64 {
    let median = |steps: u32| {
        let brought_up =
            |(norm, others): &(f32, u32)| f64::from(*norm) * (f64::from(steps) / f64::from(*others)).max(1.0);
        let mut lengths: Vec<f64> = contributions.iter().map(brought_up).filter(|length| *length > 0.0).collect();
        lengths.sort_by(f64::total_cmp);
        lengths.get(lengths.len() / 2).copied().unwrap_or(0.0)
    };
    let mut medians: BTreeMap<u32, f64> = BTreeMap::new();
    let most =
        |(own, steps): &(f32, u32)| f64::from(*own).min(3.0 * *medians.entry(*steps).or_insert_with(|| median(*steps)));
    contributions.iter().map(most).fold(0.0, f64::max)
}

/// The newest commit of a state, if a commit made it.
fn commit_of<'a>(world: &'a World, base: &Digest) -> Option<&'a Record> {
    let links = world.nodes.iter().flat_map(|node| node.disk.chain.iter());
    let link = links.into_iter().find(|link| link.digest == *base)?;
    Some(link.record.as_ref()).filter(|record| record.kind == RecordKind::Commit)
}

fn median_norm(commit: &Record) -> f32 {
    let mut norms: Vec<f32> = commit.contributors.iter().map(|c| f32::from_bits(c.measured.norm_bits)).collect();
    norms.retain(|norm| *norm > 0.0);
    norms.sort_by(f32::total_cmp);
    norms.get(norms.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

/// Norm of the difference's part of a mixture, found by subtracting the contribution.
fn share(offer: &Offer, merged_tokens: u64, mixed: &[f32]) -> f64 {
    let (own, other) = (offer.tokens as f64, merged_tokens as f64);
    let part = |(mixed, mine): (&f32, &f32)| ((own + other) * f64::from(*mixed) - own * f64::from(*mine)) / other;
    mixed.iter().zip(offer.vector.iter()).map(part).map(|x| x * x).sum::<f64>().sqrt()
}
