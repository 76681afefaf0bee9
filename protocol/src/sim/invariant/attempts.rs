//! S10: a result is of one attempt: the update that its own ring gave, by its own members.

use super::{Invariant, Observed, require};
use crate::NodeId;
use crate::sim::disk::Write;
use crate::sim::world::World;
use std::collections::BTreeSet;

pub(super) struct Attempts;

impl Invariant for Attempts {
    fn name(&self) -> &'static str {
        "S10 attempt isolation"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        let Observed::Stored { node, write: Write::Vote { candidate: Some(held), .. } } = event else { return Ok(()) };
        let candidate = &held.candidate;
        let Some(group) = world.reductions.0.get(&candidate.key) else { return Ok(()) };
        let update = group.result.as_ref().map(|(_, digest)| *digest);
        require(update == Some(candidate.record.update), || {
            format!("node {node} has a result of {:?} with another update than its ring gave", candidate.key)
        })?;
        let ring: BTreeSet<NodeId> = group.contributions.iter().map(|c| c.member).collect();
        let named: BTreeSet<NodeId> = candidate.record.contributors.iter().map(|c| c.member).collect();
        require(ring == named, || format!("node {node}: {:?} was made by {ring:?}, not {named:?}", candidate.key))
    }
}
