//! S9: members change at records only, and by the rules; only admitted nodes get in.

use super::{Invariant, Observed, require};
use crate::Digest;
use crate::record::{Record, RecordKind, Role};
use crate::sim::disk::Write;
use crate::sim::world::World;
use std::collections::BTreeMap;

/// The number of nodes that each ticket with limited uses has let in, up to each record.
#[derive(Default)]
pub(super) struct Membership(BTreeMap<Digest, BTreeMap<Digest, u32>>);

impl Invariant for Membership {
    fn name(&self) -> &'static str {
        "S9 membership"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        let Observed::Stored { node, write: Write::Commit { link, .. } } = event else { return Ok(()) };
        let Some(head) = world.nodes[*node].disk.head() else { return Ok(()) };
        let (record, parent) = (&link.record, &head.record);
        let strange = record.contributors.iter().find(|c| parent.member(&c.member).is_none());
        require(strange.is_none(), || format!("seq {}: {:?} contributed, and is no member", record.seq, strange))?;
        require(record.voters().next().is_some(), || format!("seq {}: nobody votes", record.seq))?;
        if record.kind != RecordKind::Commit
            && let Some(uses) = self.0.get(&record.parent).cloned()
        {
            self.0.insert(link.digest, uses);
        }
        match record.kind {
            RecordKind::Commit => {
                commit(record, parent)?;
                let uses = self.0.get(&record.parent).cloned().unwrap_or_default();
                self.0.insert(link.digest, admitted(record, parent, uses, world)?);
                Ok(())
            }
            RecordKind::Fork => {
                let known = record.next.members.iter().all(|m| parent.member(&m.id).is_some());
                require(known, || format!("seq {}: a fork with somebody new", record.seq))
            }
            RecordKind::Skip => require(record.next == parent.next, || "a skip changes members".to_owned()),
            RecordKind::Genesis => Err("a genesis record after another".to_owned()),
        }
    }
}

/// Checks that every new member may come, and no ticket lets in more than it says: counted anew, without the record's
/// counts.
fn admitted(
    record: &Record,
    parent: &Record,
    mut uses: BTreeMap<Digest, u32>,
    world: &World,
) -> Result<BTreeMap<Digest, u32>, String> {
    let seq = record.seq;
    for member in record.next.members.iter().filter(|member| parent.member(&member.id).is_none()) {
        let id = member.id;
        let node = world.keys.index(&id).ok_or_else(|| format!("seq {seq}: {id:?} is nobody"))?;
        require(world.gate.lets_in(node, parent), || format!("seq {seq}: {id:?} is let in, and is not admitted"))?;
        let Some(pass) = world.gate.pass(node).filter(|pass| pass.ticket.uses > 0) else { continue };
        let used = uses.entry(pass.grant).or_default();
        *used += 1;
        require(*used <= pass.ticket.uses, || {
            format!("seq {seq}: {id:?} is the {used}th let in by a ticket for {}", pass.ticket.uses)
        })?;
    }
    Ok(uses)
}

fn commit(record: &Record, parent: &Record) -> Result<(), String> {
    let seq = record.seq;
    let contributed = |id: &crate::NodeId| record.contributors.iter().any(|c| c.member == *id);
    let voters = parent.voters().count();
    // Some node has to vote when all former voters have gone.
    let orphaned =
        parent.voters().all(|voter| record.member(&voter.id).is_none_or(|m| m.incarnation != voter.incarnation));
    let mut new = 0;
    let revoked = |id: &crate::NodeId| record.revoked.binary_search(&crate::Digest(id.0)).is_ok();
    // The last member of a lineage stays, so that the lineage can be taken up again.
    let nobody_else = record.members().all(|id| revoked(&id));
    for member in &record.next.members {
        require(!revoked(&member.id) || nobody_else, || {
            format!("seq {seq}: {:?} is revoked, and a member", member.id)
        })?;
        match parent.member(&member.id) {
            Some(before) if before.incarnation == member.incarnation => {
                let raised = before.role == Role::Learner && member.role == Role::Voter;
                require(!raised || contributed(&member.id) || orphaned, || {
                    format!("seq {seq}: {:?} votes without having contributed", member.id)
                })?;
            }
            other => {
                new += usize::from(other.is_none());
                require(member.role == Role::Learner || orphaned, || {
                    format!("seq {seq}: {:?} comes as a voter", member.id)
                })?;
            }
        }
    }
    require(new <= (voters / 2).max(8), || format!("seq {seq}: {new} new members beside {voters} voters"))
}
