//! S31: in a flock of several rows a member is to be connected with members of its row and its column only, by its head
//! and the record before; and its reductions need no other connection.

use super::{Invariant, Observed, require};
use crate::engine::io::Output;
use crate::record::Record;
use crate::sim::process::Process;
use crate::sim::trainer;
use crate::sim::world::World;
use crate::update::lattice::Lattice;
use crate::{Digest, NodeId};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub(super) struct Degree {
    /// The start of a process and its head, for which a node's contacts were last checked: they follow from that
    /// head and the record before.
    checked: BTreeMap<usize, (u64, Option<(Digest, u64)>)>,
}

impl Invariant for Degree {
    fn name(&self) -> &'static str {
        "S31 bounded degree"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        let process = |node: &usize| world.nodes.get(*node).and_then(|node| node.process.as_ref());
        match event {
            Observed::Step { node } => {
                let Some(process) = process(node) else { return Ok(()) };
                let at = (world.nodes[*node].starts, process.engine.head().map(|head| (head.lineage, head.seq)));
                if self.checked.insert(*node, at) == Some(at) { Ok(()) } else { contacts(*node, process, world) }
            }
            Observed::Outputs { node, outputs } => {
                let Some(process) = process(node) else { return Ok(()) };
                outputs.iter().try_for_each(|output| links(*node, output, process, world))
            }
            _ => Ok(()),
        }
    }
}

/// Checks that all contacts of a node are near it by its head or the record before.
fn contacts(node: usize, process: &Process, world: &World) -> Result<(), String> {
    let Some(head) = process.engine.head().filter(|head| head.rows() > 1) else { return Ok(()) };
    let me = world.nodes[node].id;
    let Some(own) = head.member(&me) else { return Ok(()) };
    let near = |record: &Record, other: &NodeId| {
        let both = record.member(&me).zip(record.member(other)).map(|(own, other)| (own.cell, other.cell));
        both.is_some_and(|(own, other)| own.row() == other.row() || own.column() == other.column())
    };
    let Some(contacts) = process.engine.contacts() else {
        return Err(format!("node {node} is to be connected with all, at {:?}", own.cell));
    };
    let far: Vec<&NodeId> = contacts.iter().filter(|other| !near(head, other)).collect();
    if far.is_empty() {
        return Ok(());
    }
    let is_parent = |link: &&crate::sim::disk::Link| link.digest == head.parent;
    let Some(parent) = world.nodes.iter().flat_map(|node| &node.disk.chain).find(is_parent) else { return Ok(()) };
    let one_row = parent.record.rows() <= 1;
    let far = far.into_iter().find(|other| !one_row && !near(&parent.record, other));
    require(far.is_none(), || format!("node {node} is to be connected with {far:?}, which is not near it"))
}

/// Checks that a reduction's streams end at contacts.
fn links(node: usize, output: &Output, process: &Process, world: &World) -> Result<(), String> {
    let Output::Reduce { members, grid, .. } = output else { return Ok(()) };
    let Some(contacts) = process.engine.contacts().filter(|_| !grid.is_one_row()) else { return Ok(()) };
    let me = world.nodes[node].id;
    let ids: Vec<NodeId> = members.iter().map(|c| c.member).collect::<BTreeSet<_>>().into_iter().collect();
    let chunks = trainer::chunks(trainer::ELEMENTS);
    let lattice = Lattice::new(grid, &ids, chunks).ok_or(format!("node {node} begins a set that makes no result"))?;
    let Ok(place) = ids.binary_search(&me) else { return Ok(()) };
    let far = lattice.links(place).filter_map(|other| ids.get(other)).find(|other| !contacts.contains(other));
    require(far.is_none(), || format!("node {node} reduces with {far:?}, with which it is not connected"))
}
