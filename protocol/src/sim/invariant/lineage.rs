//! S4: every record on a disk follows the one before it, and a head never goes back, except to another lineage.

use super::{Invariant, Observed, require};
use crate::sim::disk::Write;
use crate::sim::world::World;

pub(super) struct Lineage;

impl Invariant for Lineage {
    fn name(&self) -> &'static str {
        "S4 lineage"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        match event {
            Observed::Stored { node, write: Write::Commit { link, .. } } => {
                let head = world.nodes[*node].disk.head().ok_or("a commit on an empty disk")?;
                require(link.record.parent == head.digest, || {
                    format!(
                        "node {node} writes seq {} after {:?}, which is not its parent",
                        link.record.seq, head.digest
                    )
                })?;
                follows(*node, &link.record, &head.record)
            }
            Observed::Replaced { node } => {
                let chain = &world.nodes[*node].disk.chain;
                let genesis = chain.first().is_some_and(|first| first.record.seq == 0);
                require(genesis, || format!("node {node} has a chain without its beginning"))?;
                for pair in chain.windows(2) {
                    follows(*node, &pair[1].record, &pair[0].record)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn follows(node: usize, record: &crate::record::Record, parent: &crate::record::Record) -> Result<(), String> {
    let shape = record.validate_shape().and_then(|()| record.validate_after(parent));
    shape.map_err(|why| format!("node {node}, seq {}: {why}", record.seq))
}
