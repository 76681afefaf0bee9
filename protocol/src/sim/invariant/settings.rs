//! S17: all nodes have one set of settings for a round, a pure function of earlier decisions.

use super::{Invariant, Observed, require};
use crate::Digest;
use crate::control::{self, Choice};
use crate::record::{Contributor, Measured, NextRound, Record};
use crate::run::Codec;
use crate::sim::disk::Write;
use crate::sim::world::World;
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct Settings(BTreeMap<(Digest, Vec<Digest>, Digest), (Digest, NextRound)>);

impl Settings {
    /// Where liars are fewer than half of the voters among the contributors, the cost of the round is one that an honest
    /// one of them stated, and an honest one's line is slow enough for a coarser codec.
    fn moderate(node: &usize, record: &Record, world: &World) -> Result<(), String> {
        let liar = |node: usize| world.nodes[node].liar.is_some();
        let lies = |contributor: &&Contributor| world.keys.index(&contributor.member).is_some_and(liar);
        let parent = world.nodes[*node].head().filter(|head| head.digest == record.parent);
        let Some(parent) = parent else { return Ok(()) };
        let votes = |contributor: &&Contributor| parent.record.votes(&contributor.member);
        let voters: Vec<&Contributor> = record.contributors.iter().filter(votes).collect();
        let liars = voters.iter().filter(|voter| lies(voter)).count();
        Self::one_rung(node, record, &parent.record.next, world)?;
        if voters.is_empty() || 2 * liars >= voters.len() {
            return Ok(());
        }
        let honest = voters.iter().filter(|voter| !lies(voter)).map(|voter| (&voter.member, &voter.measured));
        let honest = control::of_voters(&parent.record, honest);
        let stated = honest.iter().map(|measured| measured.overhead_us);
        let (least, most) = stated.fold((u32::MAX, 0), |(least, most), us| (least.min(us), most.max(us)));
        let changed = record.next.codec != parent.record.next.codec;
        let newest = record.next.overheads[0];
        require(changed || (least..=most).contains(&newest), || {
            format!("node {node} has a round cost {newest} us, and honest members stated {least} to {most}")
        })?;
        // An unknown line counts as the fastest.
        let slowest = honest.iter().min_by_key(|measured| measured.upload_kbps.wrapping_sub(1)).map(|m| m.upload_kbps);
        let measured = voters.iter().map(|voter| Measured { upload_kbps: slowest.unwrap_or(0), ..voter.measured });
        let measured: Vec<Measured> = measured.collect();
        let choice = Choice::after(&world.spec, &parent.record.next, &measured, record.contributors.len());
        let slow = choice.codec >= record.next.codec;
        require(slow, || {
            format!("node {node} takes {}, and {slowest:?} kbit/s is the slowest honest line", record.next.codec)
        })
    }

    /// A codec is the run's, and changes by one rung. Then what rounds before it cost does not count any more.
    fn one_rung(node: &usize, record: &Record, before: &NextRound, world: &World) -> Result<(), String> {
        let rungs = world.spec.rungs();
        let rung = |codec: &Codec| rungs.iter().position(|rung| rung == codec);
        let after = &record.next;
        let (Some(from), Some(to)) = (rung(&before.codec), rung(&after.codec)) else {
            return Err(format!("node {node} takes {}, which the run does not allow", after.codec));
        };
        let forgotten = after.overheads.iter().all(|overhead| *overhead == 0);
        require(from == to || (from.abs_diff(to) == 1 && forgotten), || {
            format!("node {node} changes {} to {} with costs {:?}", before.codec, after.codec, after.overheads)
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
