//! S3: nodes with one head have one state, to the bit, and it is the state that the record names.

use super::{Invariant, Observed, require};
use crate::Digest;
use crate::sim::world::World;
use std::collections::BTreeMap;

/// Comparing all nodes is expensive: it happens once in so many steps.
const STEPS: u64 = 64;

#[derive(Default)]
pub(super) struct Parity {
    steps: u64,
    roots: BTreeMap<Digest, Digest>,
}

impl Parity {
    fn holds(&mut self, node: usize, record: Digest, named: Digest, root: Digest) -> Result<(), String> {
        require(named == root, || format!("node {node} holds {root:?}, its head {record:?} names {named:?}"))?;
        let known = *self.roots.entry(record).or_insert(root);
        require(known == root, || format!("node {node} holds {root:?} at {record:?}, others {known:?}"))
    }
}

impl Invariant for Parity {
    fn name(&self) -> &'static str {
        "S3 parity"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        match event {
            Observed::Committing { node, link, state, .. } => {
                let damaged = world.nodes[*node].process.as_ref().is_some_and(|process| process.damaged);
                if damaged && link.record.changes_state() {
                    // The process must have computed another root, and then it cannot have committed.
                    return self.holds(*node, link.digest, link.record.state_root, state.root);
                }
                if damaged { Ok(()) } else { self.holds(*node, link.digest, link.record.state_root, state.root) }
            }
            Observed::Replaced { node } => {
                let disk = &world.nodes[*node].disk;
                let Some((head, state)) = disk.head().zip(disk.state.as_ref()) else { return Ok(()) };
                self.holds(*node, head.digest, head.record.state_root, state.root)
            }
            Observed::Step { .. } => {
                self.steps += 1;
                if !self.steps.is_multiple_of(STEPS) {
                    return Ok(());
                }
                for (node, process) in
                    world.nodes.iter().enumerate().filter_map(|(i, n)| Some((i, n.process.as_ref()?)))
                {
                    if let Some(head) = process.head.as_ref().filter(|_| !process.damaged) {
                        self.holds(node, head.digest, head.record.state_root, process.state.root)?;
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
