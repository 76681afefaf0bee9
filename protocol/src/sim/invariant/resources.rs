//! S19: an engine's memory, and its outputs in one step, are bounded, whatever the others do.

use super::{Invariant, Observed, require};
use crate::engine::PEERS_MAX;
use crate::engine::io::Output;
use crate::limits::{CONTROL_BYTES_MAX, EVIDENCE_MAX, VOTERS_MAX};
use crate::sim::world::World;

/// Outputs of one input for each node that exists: a repetition of all earlier messages, and some more.
const OUTPUTS_PER_NODE: usize = 24;
const OUTPUTS_MIN: usize = 64;
/// Records behind the head, results and fetches of one round.
const FEW: usize = 16;
/// Messages that wait for one disk.
const WAITING_PER_NODE: usize = 64;

pub(super) struct Resources;

impl Invariant for Resources {
    fn name(&self) -> &'static str {
        "S19 resources"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        match event {
            Observed::Outputs { node, outputs } => {
                let most = OUTPUTS_MIN + OUTPUTS_PER_NODE * world.nodes.len();
                require(outputs.len() <= most, || format!("node {node}: {} outputs of one input", outputs.len()))?;
                let long =
                    |output: &&Output| matches!(output, Output::Send { bytes, .. } if bytes.len() > CONTROL_BYTES_MAX);
                require(outputs.iter().find(long).is_none(), || format!("node {node} sends more than a message holds"))
            }
            Observed::Step { node } => {
                let Some(process) = world.nodes[*node].process.as_ref() else { return Ok(()) };
                let held = process.engine.held();
                let peers = held.peers <= PEERS_MAX.min(world.nodes.len() + world.strangers.len());
                let few = held.history <= FEW && held.results <= FEW && held.fetches <= FEW;
                let few = few && held.evidence <= EVIDENCE_MAX;
                require(peers && few && held.votes <= 2 * VOTERS_MAX, || format!("node {node} holds {held:?}"))?;
                let waiting = process.waiting.len();
                require(waiting <= WAITING_PER_NODE * world.nodes.len(), || {
                    format!("node {node}: {waiting} sends wait")
                })
            }
            _ => Ok(()),
        }
    }
}
