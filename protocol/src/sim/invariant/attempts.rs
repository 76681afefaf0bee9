//! S10: a result belongs to one attempt: it is the update that the attempt's own ring gave, by its own members. No
//! attempt fails because of another.

use super::{Invariant, Observed, require};
use crate::NodeId;
use crate::engine::io::{AttemptKey, Input, Notice, Output};
use crate::sim::disk::Write;
use crate::sim::world::World;
use std::collections::BTreeSet;

/// The failure that was found: its attempt, and a description.
#[derive(Default)]
pub(super) struct Attempts(Option<(AttemptKey, String)>);

impl Invariant for Attempts {
    fn name(&self) -> &'static str {
        "S10 attempt isolation"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        match event {
            Observed::Input { input: Input::ReduceFailed { key, reason, .. }, .. } => {
                self.0 = Some((*key, reason.clone()));
                Ok(())
            }
            Observed::Input { .. } => {
                self.0 = None;
                Ok(())
            }
            Observed::Outputs { node, outputs } => self.failed(*node, outputs),
            Observed::Stored { node, write: Write::Vote { candidate: Some(held), .. } } => {
                result(*node, &held.candidate, world)
            }
            _ => Ok(()),
        }
    }
}

impl Attempts {
    fn failed(&self, node: usize, outputs: &[Output]) -> Result<(), String> {
        let Some((key, told)) = &self.0 else { return Ok(()) };
        let by_it =
            |output: &&Output| matches!(output, Output::Notice(Notice::AttemptFailed { reason, .. }) if reason == told);
        let other = |output: &&Output| matches!(output, Output::Abandon { key: left } if left != key);
        let wrong = outputs.iter().find(by_it).and(outputs.iter().find(other));
        require(wrong.is_none(), || format!("node {node}: a failure of {key:?} leads to {wrong:?}"))
    }
}

fn result(node: usize, candidate: &crate::engine::Candidate, world: &World) -> Result<(), String> {
    let Some(group) = world.reductions.groups.get(&candidate.key) else { return Ok(()) };
    let made = group.results.values().any(|(_, update)| *update == candidate.record.update);
    require(made, || {
        format!("node {node} has a result of {:?} with another update than its ring gave", candidate.key)
    })?;
    let ring: BTreeSet<NodeId> = group.contributions.iter().map(|c| c.member).collect();
    let named: BTreeSet<NodeId> = candidate.record.contributors.iter().map(|c| c.member).collect();
    require(ring == named, || format!("node {node}: {:?} was made by {ring:?}, not {named:?}", candidate.key))
}
