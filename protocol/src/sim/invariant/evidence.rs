//! S22: evidence is true, and against liars only. Crashes, restarts, forks, lost messages and contributions that are
//! offered again never look like a contradiction, so no other node is ever revoked.

use super::{Invariant, Observed, require};
use crate::NodeId;
use crate::engine::io::Output;
use crate::evidence;
use crate::sim::disk::Write;
use crate::sim::world::World;

pub(super) struct Evidence;

impl Invariant for Evidence {
    fn name(&self) -> &'static str {
        "S22 evidence"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        let lies = |id: &NodeId| world.keys.index(id).is_some_and(|node| world.nodes[node].liar.is_some());
        match event {
            Observed::Outputs { node, outputs } => {
                for output in *outputs {
                    let Output::Evidence { against, what, evidence, .. } = output else { continue };
                    let proven = evidence::examine(world.verifier.as_ref(), &world.run, evidence);
                    require(proven == Ok((*against, *what)), || format!("node {node} holds {what} of {against:?}"))?;
                    require(lies(against), || {
                        format!("node {node} holds evidence against honest {against:?}: {what}")
                    })?;
                }
                Ok(())
            }
            Observed::Stored { node, write: Write::Commit { link, .. } } => {
                // The run's creator may revoke any node.
                let by_evidence = link.record.revoked.iter().filter(|subject| !world.gate.revoked.contains(*subject));
                let honest = by_evidence.map(|id| NodeId(id.0)).find(|id| !lies(id));
                require(honest.is_none(), || format!("node {node} writes that honest {honest:?} is revoked"))
            }
            _ => Ok(()),
        }
    }
}
