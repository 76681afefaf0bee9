//! S15: a commit moves a node's state by its own outer step once, wherever its process died before.

use super::{Invariant, Observed, require};
use crate::outer::Rule;
use crate::sim::world::World;

pub(super) struct Steps;

impl Invariant for Steps {
    fn name(&self) -> &'static str {
        "S15 exactly-once apply"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        let Observed::Committing { node, key: Some(key), link, state, .. } = event else { return Ok(()) };
        let machine = &world.nodes[*node];
        let twice = machine.disk.chain.iter().any(|held| held.digest == link.digest);
        require(!twice, || format!("node {node} applies seq {} again", link.record.seq))?;
        let Some(process) =
            machine.process.as_ref().filter(|process| !process.damaged && !world.tainted.contains(&link.digest))
        else {
            return Ok(());
        };
        let Some(bytes) = process.update(&machine.disk, key, &link.record.update) else { return Ok(()) };
        let Some(parent) = process.head.as_ref() else { return Ok(()) };
        let rule = Rule::of(&world.spec, &parent.record, link.record.contributors.len());
        let once = process.state.step(&world.spec.sync, (link.record.round, parent.record.next.codec), &bytes, &rule);
        require(once.is_some_and(|once| once.root == state.root), || {
            format!("node {node}: seq {} is not one step from its state before", link.record.seq)
        })
    }
}
