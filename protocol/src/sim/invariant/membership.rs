//! S9: members change at records only, and by the rules.

use super::{Invariant, Observed, require};
use crate::record::{Record, RecordKind, Role};
use crate::sim::disk::Write;
use crate::sim::world::World;

pub(super) struct Membership;

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
        match record.kind {
            RecordKind::Commit => commit(record, parent),
            RecordKind::Fork => {
                let known = record.next.members.iter().all(|m| parent.member(&m.id).is_some());
                require(known, || format!("seq {}: a fork with somebody new", record.seq))
            }
            RecordKind::Skip => require(record.next == parent.next, || "a skip changes members".to_owned()),
            RecordKind::Genesis => Err("a genesis record after another".to_owned()),
        }
    }
}

fn commit(record: &Record, parent: &Record) -> Result<(), String> {
    let seq = record.seq;
    let contributed = |id: &crate::NodeId| record.contributors.iter().any(|c| c.member == *id);
    let voters = parent.voters().count();
    // Somebody has to vote when all who did have gone.
    let orphaned =
        parent.voters().all(|voter| record.member(&voter.id).is_none_or(|m| m.incarnation != voter.incarnation));
    let mut new = 0;
    for member in &record.next.members {
        let revoked = record.revoked.binary_search(&crate::Digest(member.id.0)).is_ok();
        require(!revoked, || format!("seq {seq}: {:?} is revoked, and a member", member.id))?;
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
    require(new <= (voters / 2).max(1), || format!("seq {seq}: {new} new members beside {voters} voters"))
}
