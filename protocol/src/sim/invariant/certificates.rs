//! S2: every record that a disk holds as decided was decided by a quorum of the record before, counted here anew, and
//! no two records are ever decided at one place.

use super::{Invariant, Observed, require};
use crate::message::{Message, Question, member_indices};
use crate::record::{Record, RecordKind, Role};
use crate::sim::disk::{Link, Write};
use crate::sim::world::World;
use crate::{Digest, NodeId};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

#[derive(Default)]
pub(super) struct Certificates {
    records: BTreeMap<Digest, Rc<Record>>,
    /// The record that was decided after each record. Forks leave the lineage and do not count.
    after: BTreeMap<Digest, Digest>,
}

impl Invariant for Certificates {
    fn name(&self) -> &'static str {
        "S2 no fork"
    }

    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String> {
        let Observed::Stored { node, write } = event else { return Ok(()) };
        match write {
            Write::Found { link, .. } => drop(self.records.insert(link.digest, Rc::clone(&link.record))),
            Write::Commit { link, .. } => {
                self.check(link, world).map_err(|why| format!("node {node}: {why}"))?;
                self.records.insert(link.digest, Rc::clone(&link.record));
            }
            Write::Vote { .. } => {}
        }
        Ok(())
    }
}

impl Certificates {
    fn check(&mut self, link: &Link, world: &World) -> Result<(), String> {
        let record = &link.record;
        let parent = self.records.get(&record.parent).ok_or("a record follows one that nobody has")?;
        let votes = link.certificate.as_deref().map(|certificate| certificate.votes.as_slice()).unwrap_or_default();
        let mut signers = BTreeSet::new();
        for bytes in votes {
            let opened = world.open(bytes).ok_or("a vote in a certificate does not open")?;
            signers.insert(self.signer(link, parent, &opened.message, opened.sender)?);
        }
        if record.kind == RecordKind::Fork {
            return require(record.members().all(|id| signers.contains(&id)), || "a fork not all agreed to".to_owned());
        }
        let other = *self.after.entry(record.parent).or_insert(link.digest);
        require(other == link.digest, || format!("after {:?} both {other:?} and {:?}", record.parent, link.digest))?;
        let voters: Vec<NodeId> = parent.voters().map(|voter| voter.id).collect();
        let distinguished = parent.voters().min_by_key(|voter| (voter.absent, voter.since, voter.id));
        let half = 2 * signers.len() == voters.len() && distinguished.is_some_and(|voter| signers.contains(&voter.id));
        require(2 * signers.len() > voters.len() || half, || {
            format!("{} of {} voters decided {:?} at seq {}", signers.len(), voters.len(), link.digest, record.seq)
        })
    }

    /// The signer, if it may sign and signed this.
    fn signer(&self, link: &Link, parent: &Record, message: &Message, sender: NodeId) -> Result<NodeId, String> {
        let member = parent.member(&sender).ok_or("somebody signed who is no member")?;
        let good = match message {
            Message::Vote(vote) => {
                let asked = vote.question.parent == link.record.parent && vote.question.instance == Question::RECORD;
                let may = member.role == Role::Voter && member.incarnation == vote.incarnation;
                asked && may && vote.voted && vote.value.digest == link.digest
            }
            Message::Fork(fork) => {
                let mut named = member_indices(&fork.members).filter_map(|index| parent.next.members.get(index));
                link.record.kind == RecordKind::Fork
                    && fork.parent == link.record.parent
                    && link.record.members().all(|id| named.any(|member| member.id == id))
            }
            _ => false,
        };
        require(good, || format!("{sender:?} signed something else, or may not sign"))?;
        Ok(sender)
    }
}
