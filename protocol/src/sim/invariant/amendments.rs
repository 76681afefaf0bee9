//! S30: a round's terms follow from the amendments on its chain. Each was handed in by somebody with a right to it,
//! counts once, in the order of its number, and is in force on every node that has its record as head, and on no other.

use super::{Invariant, Observed, require};
use crate::Digest;
use crate::amendment::Settings;
use crate::record::{Record, RecordKind};
use crate::sim::disk::{Link, Write};
use crate::sim::world::World;
use std::collections::BTreeMap;

/// The settings after each record that was committed somewhere.
#[derive(Default)]
pub(super) struct Amendments(BTreeMap<Digest, Settings>);

impl Invariant for Amendments {
    fn name(&self) -> &'static str {
        "S30 amended terms"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        match event {
            Observed::Stored { node, write: Write::Found { link, .. } | Write::Commit { link, .. } } => {
                self.committed(*node, link, world)
            }
            Observed::Step { node } => in_force(*node, world),
            _ => Ok(()),
        }
    }
}

impl Amendments {
    fn committed(&mut self, node: usize, link: &Link, world: &World) -> Result<(), String> {
        let record = &*link.record;
        // A flock that begins awake has a first record that nobody has founded.
        let unknown = record.kind == RecordKind::Genesis || !self.0.contains_key(&record.parent);
        let before = self.0.get(&record.parent).copied().unwrap_or_default();
        let after = if unknown { record.next.settings } else { expected(record, before, world)? };
        require(record.next.settings == after, || {
            format!("node {node}: the settings after seq {} do not follow from its amendment", record.seq)
        })?;
        self.0.insert(link.digest, after);
        Ok(())
    }
}

/// The settings after a record, told from its amendment alone.
fn expected(record: &Record, before: Settings, world: &World) -> Result<Settings, String> {
    let Some(amendment) = &record.amended else { return Ok(before) };
    let (seq, name) = (record.seq, amendment.name(&world.run));
    require(world.gate.amendments.contains(&name), || format!("seq {seq}: nobody has handed in its amendment"))?;
    let signed = amendment.is_authorised(world.verifier.as_ref(), &world.spec, &world.run);
    require(signed, || format!("seq {seq}: nobody with a right to it has made its amendment"))?;
    let next = (amendment.number, amendment.before) == (before.amendments + 1, before.newest);
    require(next, || format!("seq {seq}: amendment {} comes after {}", amendment.number, before.amendments))?;
    let due = amendment.from <= record.round + 1;
    require(due, || format!("seq {seq}: its amendment is for round {}", amendment.from))?;
    let (amendments, newest, changes) = (amendment.number, name, before.changes.then(&amendment.changes));
    Ok(Settings { amendments, newest, changes })
}

/// Whether the node trains, averages and waits by the terms of its head.
fn in_force(node: usize, world: &World) -> Result<(), String> {
    let Some(engine) = world.nodes[node].process.as_ref().map(|process| &process.engine) else { return Ok(()) };
    if world.gate.amendments.is_empty() {
        return Ok(());
    }
    let due = engine.head().map_or_else(|| world.spec.clone(), |head| head.next.settings.in_force(&world.spec));
    let differ = || due.differences(engine.in_force()).join("; ");
    require(due == *engine.in_force(), || format!("node {node} goes by other terms than its head's: {}", differ()))
}
