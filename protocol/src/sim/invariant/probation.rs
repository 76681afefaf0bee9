//! S23: in an open run with probation no member votes before its probation is over, and newcomers never hold a third of
//! the votes. Counted anew from the records' members and contributors, without the records' own counts.

use super::{Invariant, Observed, require};
use crate::record::{Member, Record, RecordKind, Role};
use crate::sim::disk::Write;
use crate::sim::world::World;
use crate::{Digest, NodeId};
use std::collections::BTreeMap;

/// The tenure of each record's members.
#[derive(Default)]
pub(super) struct Probation(BTreeMap<Digest, BTreeMap<NodeId, Tenure>>);

#[derive(Clone, Copy)]
struct Tenure {
    /// The round that let it in; None if it founded the lineage.
    since: Option<u64>,
    served: u64,
}

impl Tenure {
    fn age(&self, round: u64) -> u64 {
        self.since.map_or(u64::MAX, |since| round - since)
    }
}

impl Invariant for Probation {
    fn name(&self) -> &'static str {
        "S27 probation"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        let rounds = u64::from(world.options.probation);
        let Observed::Stored { node, write: Write::Commit { link, .. } } = event else { return Ok(()) };
        let Some(head) = world.nodes[*node].disk.head().filter(|_| rounds > 0) else { return Ok(()) };
        let (record, parent) = (&link.record, &head.record);
        let before = self.0.get(&record.parent).cloned().unwrap_or_else(|| founders(parent));
        let tenures = after(record, &before);
        self.0.insert(link.digest, tenures.clone());
        if record.kind == RecordKind::Skip {
            return Ok(());
        }
        let of = |member: &Member| tenures.get(&member.id).copied().unwrap_or(Tenure { since: None, served: 0 });
        let new = |member: &Member| of(member).age(record.round) < 4 * rounds;
        let seq = record.seq;
        let (newcomers, all) = (record.voters().filter(|voter| new(voter)).count(), record.voters().count());
        require(newcomers == all || 3 * newcomers < all, || {
            format!("seq {seq}: {newcomers} of {all} voters are newcomers")
        })?;
        let voted = |member: &Member| {
            let before = parent.member(&member.id).filter(|before| before.role == Role::Voter);
            before.is_some_and(|before| before.incarnation == member.incarnation)
        };
        // A member that one record removed and let in again becomes a learner, as always.
        let contributed = |member: &Member| record.contributors.iter().any(|c| c.member == member.id);
        let again = |m: &Member| record.kind == RecordKind::Commit && m.absent == 0 && !contributed(m);
        let kept = |member: &Member| !voted(member) || member.role == Role::Voter || new(member) || again(member);
        let lost = record.next.members.iter().find(|member| !kept(member));
        require(lost.is_none(), || format!("seq {seq}: {lost:?} is no newcomer, and lost its vote"))?;
        // When no former voter is left, the members that came first vote.
        let orphaned = !record.voters().any(voted);
        let here = || record.next.members.iter().filter(|member| member.absent == 0);
        let first = here().map(|member| of(member).since).min();
        for voter in record.voters().filter(|voter| !voted(voter)) {
            let tenure = of(voter);
            let over = tenure.age(record.round) >= rounds && tenure.served >= rounds.div_ceil(2);
            let elder = orphaned && (!new(voter) || Some(tenure.since) == first);
            require(over || tenure.since.is_none() || elder, || {
                format!("seq {seq}: {voter:?} votes, let in at {:?}, {} rounds served", tenure.since, tenure.served)
            })?;
        }
        Ok(())
    }
}

fn founders(genesis: &Record) -> BTreeMap<NodeId, Tenure> {
    genesis.members().map(|id| (id, Tenure { since: None, served: 0 })).collect()
}

fn after(record: &Record, before: &BTreeMap<NodeId, Tenure>) -> BTreeMap<NodeId, Tenure> {
    let tenure = |id: NodeId| {
        let new = Tenure { since: Some(record.round), served: 0 };
        let counted = before.contains_key(&id) && record.contributors.iter().any(|c| c.member == id);
        let tenure = before.get(&id).copied().unwrap_or(new);
        (id, Tenure { served: tenure.served + u64::from(counted), ..tenure })
    };
    record.members().map(tenure).collect()
}
