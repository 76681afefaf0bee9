//! S17: all nodes have one set of settings for a round, a pure function of earlier decisions.

use super::{Invariant, Observed, require};
use crate::Digest;
use crate::record::{Contributor, NextRound, Record};
use crate::sim::disk::Write;
use crate::sim::world::World;
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct Settings(BTreeMap<(Digest, Vec<Digest>, Digest), (Digest, NextRound)>);

impl Settings {
    /// Where liars are fewer than half of the voters among the contributors, the cost of the round is one that an honest
    /// one of them stated.
    fn moderate(node: &usize, record: &Record, world: &World) -> Result<(), String> {
        let liar = |node: usize| world.nodes[node].liar.is_some();
        let lies = |contributor: &&Contributor| world.keys.index(&contributor.member).is_some_and(liar);
        let parent = world.nodes[*node].head().filter(|head| head.digest == record.parent);
        let Some(parent) = parent else { return Ok(()) };
        let votes = |contributor: &&Contributor| parent.record.votes(&contributor.member);
        let voters: Vec<&Contributor> = record.contributors.iter().filter(votes).collect();
        let liars = voters.iter().filter(|voter| lies(voter)).count();
        if voters.is_empty() || 2 * liars >= voters.len() {
            return Ok(());
        }
        let newest = record.next.overheads[0];
        let honest = voters.iter().filter(|voter| !lies(voter));
        let stated = honest.map(|voter| voter.measured.overhead_us);
        let (least, most) = stated.fold((u32::MAX, 0), |(least, most), us| (least.min(us), most.max(us)));
        require((least..=most).contains(&newest), || {
            format!("node {node} has a round cost {newest} us, and honest members stated {least} to {most}")
        })
    }
}

impl Invariant for Settings {
    fn name(&self) -> &'static str {
        "S17 agreed settings"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        let Observed::Stored { node, write: Write::Vote { candidate: Some(held), .. } } = event else { return Ok(()) };
        let record = &held.candidate.record;
        require(record.next.codec == world.spec.sync.codec, || format!("node {node} changes the codec by itself"))?;
        Self::moderate(node, record, world)?;
        let readys = record.contributors.iter().map(|contributor| contributor.ready).collect();
        let of = (record.parent, readys, record.state_root);
        let fresh = || (record.digest(), record.next.clone());
        let known = self.0.entry(of).or_insert_with(fresh);
        require(known.1 == record.next, || {
            format!("node {node} builds other settings than another of the same: {:?}, {:?}", record.next, known.1)
        })?;
        require(known.0 == record.digest(), || format!("node {node} builds another record than another of the same"))
    }
}
