//! S14: a node that goes on in a lineage, after any crash, goes on from the newest record that was decided in it.

use super::{Invariant, Observed, require};
use crate::Digest;
use crate::sim::disk::Write;
use crate::sim::world::World;
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct Recovery(BTreeMap<(Digest, u64), Digest>);

impl Invariant for Recovery {
    fn name(&self) -> &'static str {
        "S14 recovery choice"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        match event {
            Observed::Stored { node, write: Write::Commit { link, .. } } => {
                let record = &link.record;
                let before = record.seq.checked_sub(1).and_then(|seq| self.0.get(&(record.lineage, seq)));
                let decided = before.copied().unwrap_or(record.parent);
                self.0.insert((record.lineage, record.seq), link.digest);
                require(decided == record.parent, || {
                    format!(
                        "node {node} goes on at seq {} from {:?}, decided was {decided:?}",
                        record.seq, record.parent
                    )
                })
            }
            Observed::Started { node } => {
                let machine = &world.nodes[*node];
                let view = machine.process.as_ref().map(|process| process.engine.view());
                let head = machine.head().map(|head| head.digest);
                require(head == machine.disk.head().map(|head| head.digest), || {
                    format!("node {node} does not start on what its disk holds: {view:?}")
                })
            }
            _ => Ok(()),
        }
    }
}
