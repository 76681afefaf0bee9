//! S26: a stranger moves, stores and delays nothing. Its message ends in a refusal, or in an answer to itself. No node
//! leaves its round for it, takes a state that no honest node has had, keeps anything of it, or passes it on.

use super::{Invariant, Observed, require};
use crate::Digest;
use crate::engine::io::{Notice, Output, Refusal};
use crate::message::Message;
use crate::sim::disk::Write;
use crate::sim::network::kind;
use crate::sim::world::World;
use std::collections::BTreeSet;

/// Every record that an honest node has had on its disk.
#[derive(Default)]
pub(super) struct Strangers(BTreeSet<Digest>);

impl Invariant for Strangers {
    fn name(&self) -> &'static str {
        "S26 strangers"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        if world.strangers.is_empty() {
            return Ok(());
        }
        match event {
            Observed::Stored { write: Write::Found { link, .. } | Write::Commit { link, .. }, .. } => {
                self.0.insert(link.digest);
                let strange = link.record.members().find(|id| world.strangers.place(id).is_some());
                require(strange.is_none(), || {
                    format!("the stranger {strange:?} is a member at seq {}", link.record.seq)
                })
            }
            Observed::Replaced { node } => {
                let chain = &world.nodes[*node].disk.chain;
                let forged = chain.iter().find(|link| !self.0.contains(&link.digest));
                require(forged.is_none(), || format!("node {node} takes {:?}, which nobody has decided", forged))
            }
            Observed::Outputs { node, outputs } => {
                outputs.iter().try_for_each(|output| self.said(*node, output, world))
            }
            Observed::Strange { node, from, message, outputs } => {
                let harm = outputs.iter().find(|output| !harmless(output, from));
                require(harm.is_none(), || format!("the stranger's {} makes node {node} do {harm:?}", name(message)))
            }
            _ => Ok(()),
        }
    }
}

impl Strangers {
    fn said(&self, node: usize, output: &Output, world: &World) -> Result<(), String> {
        match output {
            Output::CatchUp { target, .. } => {
                let stands = world.nodes[node].head().is_some();
                require(!stands || self.0.contains(target), || {
                    format!("node {node} leaves its place for {target:?}, which nobody has decided")
                })
            }
            Output::Evidence { against, .. } => {
                require(world.strangers.place(against).is_none() && world.keys.index(against).is_some(), || {
                    format!("node {node} keeps evidence against {against:?}, who is nobody")
                })
            }
            Output::Send { bytes, .. } if kind(bytes) == "ready" => {
                let Some(Message::Ready(ready)) = world.open(bytes).map(|opened| opened.message) else { return Ok(()) };
                let strange = ready.statements.iter().find(|said| world.strangers.place(&said.id).is_some());
                require(strange.is_none(), || format!("node {node} vouches for a stranger: {strange:?}"))
            }
            _ => Ok(()),
        }
    }
}

/// Whether an output may follow from a stranger's message: a refusal, or an answer to the stranger alone.
fn harmless(output: &Output, from: &crate::NodeId) -> bool {
    match output {
        Output::Send { to, .. } => to == from,
        // The stranger is asked for proof, beside any work under way.
        Output::Prove { peer, .. } => peer == from,
        Output::Refuse { peer, .. } => peer == from,
        Output::Notice(notice) => match notice {
            Notice::Refused { peer, refusal } => peer == from || *refusal == Refusal::Stale,
            Notice::Waiting { .. } | Notice::PhaseChanged { .. } | Notice::Seeking { .. } => true,
            _ => false,
        },
        _ => false,
    }
}

fn name(message: &Message) -> String {
    let text = format!("{message:?}");
    text.split(['(', '{', ' ']).next().unwrap_or_default().to_owned()
}
