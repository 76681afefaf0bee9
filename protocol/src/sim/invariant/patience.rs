//! S29: a node keeps its READY back for newcomers no longer than the run's patience, and its share of the time
//! (`docs/protocol/5-membership.md` §5.7), whoever pretends to fetch. A process that starts has all of its patience.

use super::{Invariant, Observed, require};
use crate::sim::world::World;
use crate::sim::{MS, SECOND};
use std::collections::BTreeMap;

/// A node may be woken so much late.
const SLACK: u64 = SECOND;

/// A process that may wait.
struct Waiting {
    /// The node's clock at the start.
    began: u64,
    /// The last look at it: the time, and whether it waited.
    at: u64,
    holds: bool,
    waited: u64,
}

/// All processes, by node.
#[derive(Default)]
pub(super) struct Patience(BTreeMap<usize, Waiting>);

impl Invariant for Patience {
    fn name(&self) -> &'static str {
        "S29 patience"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        match event {
            Observed::Started { node } => {
                let began = world.now + world.nodes[*node].offset;
                self.0.insert(*node, Waiting { began, at: world.now, holds: false, waited: 0 });
                Ok(())
            }
            Observed::Outputs { node, .. } => self.look(*node, world),
            _ => Ok(()),
        }
    }
}

impl Patience {
    fn look(&mut self, node: usize, world: &World) -> Result<(), String> {
        let (machine, join) = (&world.nodes[node], &world.spec.join);
        let (Some(waiting), Some(process)) = (self.0.get_mut(&node), machine.process.as_ref()) else { return Ok(()) };
        // A process that was stopped meanwhile could not go on.
        if waiting.holds && machine.paused_until <= waiting.at {
            waiting.waited += world.now - waiting.at;
        }
        (waiting.at, waiting.holds) = (world.now, process.engine.keeps_ready_back());
        // A clock that jumps fills the patience again.
        let lived = (world.now + machine.offset).saturating_sub(waiting.began);
        let other = lived.saturating_sub(waiting.waited);
        let allowed = u64::from(join.patience_ms) * MS + other / 100 * u64::from(join.share);
        require(waiting.waited <= allowed + SLACK, || {
            format!("node {node} has waited {} us for newcomers of {lived}, {allowed} allowed", waiting.waited)
        })
    }
}
