//! S1: all nodes that commit at one place of a lineage commit the same record.

use super::{Invariant, Observed, require};
use crate::Digest;
use crate::sim::disk::Write;
use crate::sim::world::World;
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct Agreement(BTreeMap<(Digest, u64), (Digest, usize)>);

impl Invariant for Agreement {
    fn name(&self) -> &'static str {
        "S1 agreement"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        let (node, link) = match event {
            // A decision that a node has not written binds nobody: its votes are not written either.
            Observed::Stored { node, write: Write::Commit { link, .. } } => (*node, link),
            Observed::Replaced { node } => match world.nodes[*node].disk.head() {
                Some(link) => (*node, link),
                None => return Ok(()),
            },
            _ => return Ok(()),
        };
        let (lineage, seq) = (link.record.lineage, link.record.seq);
        let (known, first) = *self.0.entry((lineage, seq)).or_insert((link.digest, node));
        require(known == link.digest, || {
            let kind = link.record.kind;
            format!(
                "at seq {seq} of {lineage:?} node {first} has {known:?}, node {node} has the {kind} {:?}",
                link.digest
            )
        })
    }
}
