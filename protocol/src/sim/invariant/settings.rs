//! S17: all nodes have one set of settings for a round, a pure function of earlier decisions.

use super::{Invariant, Observed, require};
use crate::Digest;
use crate::record::NextRound;
use crate::sim::disk::Write;
use crate::sim::world::World;
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct Settings(BTreeMap<(Digest, Vec<Digest>, Digest), (Digest, NextRound)>);

impl Invariant for Settings {
    fn name(&self) -> &'static str {
        "S17 agreed settings"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        let Observed::Stored { node, write: Write::Vote { candidate: Some(held), .. } } = event else { return Ok(()) };
        let record = &held.candidate.record;
        require(record.next.codec == world.spec.sync.codec, || format!("node {node} changes the codec by itself"))?;
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
