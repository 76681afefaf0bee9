//! S16: a lie or a stale message ends in a counted refusal and in nothing else.

use super::{Invariant, Observed, require};
use crate::NodeId;
use crate::engine::io::{Input, Notice, Output, Refusal};
use crate::message::{Message, Ready};
use crate::sim::network::kind;
use crate::sim::world::World;
use std::collections::BTreeMap;

/// The READY of this round that each process has heard from each peer.
#[derive(Default)]
pub(super) struct Refusals {
    heard: BTreeMap<(usize, u64, NodeId), Ready>,
    /// The READY that is being answered.
    just: Option<(NodeId, Ready)>,
}

impl Invariant for Refusals {
    fn name(&self) -> &'static str {
        "S16 stale rejection"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        let (node, from, outputs) = match event {
            Observed::Junk { node, from, outputs } => (node, from, outputs),
            Observed::Input { node, input: Input::Message { bytes, .. } } => {
                self.hear(*node, bytes, world);
                return Ok(());
            }
            Observed::Outputs { node, outputs } => return self.answered(*node, outputs, world),
            _ => return Ok(()),
        };
        if world.nodes[*node].process.as_ref().is_none_or(|process| process.finished) {
            return Ok(());
        }
        let refused = outputs.iter().any(|output| matches!(output, Output::Refuse { .. }));
        let counted = |output: &Output| matches!(output, Output::Notice(Notice::Refused { .. }));
        let some = refused || outputs.iter().any(counted);
        require(some, || format!("node {node} takes a lie of node {from}: {outputs:?}"))?;
        // A node that refuses a peer loses it, which may change what the round needs. A peer that has been silent is
        // here again once it says anything, and the head that it named before may be looked at.
        let harmless = |output: &Output| match output {
            Output::Notice(Notice::Refused { refusal: Refusal::Stale, .. }) | Output::Send { .. } => true,
            Output::Prove { peer, .. } => refused || *peer == world.nodes[*from].id,
            Output::Notice(_) => true,
            _ => refused,
        };
        let harm = outputs.iter().find(|output| !harmless(output));
        require(harm.is_none(), || format!("a stale message of node {from} makes node {node} do {harm:?}"))
    }
}

impl Refusals {
    fn hear(&mut self, node: usize, bytes: &[u8], world: &World) {
        self.just = None;
        if kind(bytes) != "ready" || world.nodes[node].process.as_ref().is_none_or(|process| process.finished) {
            return;
        }
        // Another node may have passed it on.
        if let Some((signer, Message::Ready(ready))) = world.open(bytes).map(|opened| (opened.sender, opened.message)) {
            self.just = Some((signer, ready));
        }
    }

    fn answered(&mut self, node: usize, outputs: &[Output], world: &World) -> Result<(), String> {
        let start = world.nodes[node].starts;
        let mut counted = false;
        for output in outputs {
            counted |= matches!(output, Output::Refuse { .. } | Output::Notice(Notice::Refused { .. }));
            // A refused READY is not kept.
            if let Output::Refuse { peer, .. } = output {
                self.heard.remove(&(node, start, *peer));
            }
        }
        let Some((from, ready)) = self.just.take().filter(|_| !counted) else { return Ok(()) };
        let place = |r: &Ready| (r.lineage, r.round, r.base, r.boot);
        let before = self.heard.insert((node, start, from), ready.clone());
        let contradicts = before.is_some_and(|before| place(&before) == place(&ready) && before != ready);
        require(!contradicts, || format!("node {node} takes a second READY of {from:?}"))
    }
}
