//! S25: a voter that names a result in a vote has it on its disk, unless its vote follows from the estimates of others.
//! A voter that decides a result can count on a quorum that had it on its disks. So a decided update is lost only with
//! a quorum's disks.

use super::contributors::is_quorum;
use super::{Invariant, Observed, require};
use crate::message::{Message, ValueKind};
use crate::record::RecordKind;
use crate::sim::disk::Write;
use crate::sim::network::kind;
use crate::sim::process::Node;
use crate::sim::world::World;
use crate::{Digest, NodeId, update};
use std::collections::{BTreeMap, BTreeSet};

/// The nodes that have ever had each result on disk, with the update that it names.
#[derive(Default)]
pub(super) struct Estimates {
    held: BTreeMap<Digest, BTreeSet<NodeId>>,
    decided: BTreeSet<Digest>,
}

impl Invariant for Estimates {
    fn name(&self) -> &'static str {
        "S25 estimates on disk"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        match event {
            Observed::Sent { node, bytes, .. } if matches!(kind(bytes), "estimate" | "vote") => {
                self.said(*node, bytes, world)
            }
            Observed::Stored { node, write: Write::Vote { candidate: Some(held), .. } } => {
                let record = &held.candidate.record;
                require(update::digest(&held.update) == record.update, || {
                    format!("node {node} writes a result of seq {} with another update", record.seq)
                })?;
                self.held.entry(record.digest()).or_default().insert(world.nodes[*node].id);
                Ok(())
            }
            Observed::Stored { node, write: Write::Commit { link, .. } } if link.record.kind == RecordKind::Commit => {
                let Some(parent) = world.nodes[*node].disk.head().filter(|_| self.decided.insert(link.digest)) else {
                    return Ok(());
                };
                let held = self.held.remove(&link.digest).unwrap_or_default();
                require(is_quorum(&parent.record, &held), || {
                    format!("seq {} is decided, and only {held:?} have had it on their disks", link.record.seq)
                })
            }
            _ => Ok(()),
        }
    }
}

impl Estimates {
    /// Checks a statement of a vote that has left a node.
    fn said(&self, node: usize, bytes: &[u8], world: &World) -> Result<(), String> {
        let Some(opened) = world.open(bytes) else { return Ok(()) };
        let (value, seq, needs) = match opened.message {
            Message::Estimate(said) => (said.value, said.question.seq, true),
            Message::Vote(said) => (said.value, said.question.seq, !said.voted),
            _ => return Ok(()),
        };
        let Node { id, disk, .. } = &world.nodes[node];
        // The statement waited for its write while the node caught up beyond its question.
        let over = disk.head().is_some_and(|head| head.record.seq >= seq);
        if !needs || over || value.kind != ValueKind::Commit {
            return Ok(());
        }
        let held = disk.candidates.iter().any(|held| held.candidate.record.digest() == value.digest);
        // A node repeats a statement even if a catch-up to the record before has dropped the result since.
        let had = self.held.get(&value.digest).is_some_and(|nodes| nodes.contains(id));
        require(held || had, || format!("node {node} names {:?}, which has never been on its disk", value.digest))
    }
}
