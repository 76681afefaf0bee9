//! Nodes that are known to have contradicted themselves: the proof is kept, shown and passed on, and who holds it says
//! "revoked" in its READYs until a record says so (`docs/protocol/4-agreement.md` §4.10).
//!
//! Keys cost nothing, so that evidence is held against members only, heard from members only, and told to members only:
//! when its subject is none any more, it goes.
//!
//! Nothing else is done to them before that record. Their READYs and votes count as far as they did: whether one takes
//! part has to be the same for all, and only a record is.

use super::Engine;
use super::io::{Output, Refusal};
use super::succession::SignedReady;
use crate::evidence::{self, Contradiction};
use crate::limits::EVIDENCE_MAX;
use crate::message::{Certificate, Evidence, Message};
use crate::plant::{Plant, planted};
use crate::record::Record;
use crate::{Digest, NodeId, wire};
use std::collections::BTreeMap;

/// Evidence by whom it is against: at most [`EVIDENCE_MAX`].
pub(super) type Convicted = BTreeMap<NodeId, (Contradiction, Evidence)>;

impl Engine {
    /// Takes up what the disk holds, as far as it is evidence.
    pub(super) fn resume_evidence(&mut self, stored: Vec<Evidence>) {
        for evidence in stored.into_iter().take(EVIDENCE_MAX) {
            if let Ok((against, what)) = evidence::examine(self.verifier.as_ref(), &self.run, &evidence) {
                self.convicted.insert(against, (what, evidence));
            }
        }
        self.drop_settled_evidence();
    }

    /// Evidence against who is no member of the head is of no use any more, and goes. That against who was revoked because of
    /// it is kept as long as there is room: it shows why.
    pub(super) fn drop_settled_evidence(&mut self) {
        let Some(head) = self.head.as_ref().filter(|_| !planted!(Plant::HoardEvidence)) else { return };
        let idle = |id: &&NodeId| head.record.member(id).is_none() && !is_revoked(&head.record, id);
        let idle: Vec<NodeId> = self.convicted.keys().filter(idle).copied().collect();
        idle.into_iter().for_each(|against| self.drop_evidence(against));
    }

    fn drop_evidence(&mut self, against: NodeId) {
        self.convicted.remove(&against);
        self.out.push(Output::DropEvidence { against });
    }

    /// Whether this node is held to have contradicted itself.
    pub(super) fn is_convicted(&self, id: &NodeId) -> bool {
        self.convicted.contains_key(id)
    }

    /// Members of a record that have contradicted themselves, this node apart: others say it of that one.
    pub(super) fn convicted_members(&self, record: &Record) -> Vec<NodeId> {
        let news = |id: &&NodeId| **id != self.me && record.member(id).is_some() && !is_revoked(record, id);
        self.convicted.keys().filter(news).copied().collect()
    }

    /// Whether two envelopes contradict each other.
    pub(super) fn contradict(&self, first: &[u8], second: &[u8]) -> bool {
        let evidence = Evidence { first: first.to_vec(), second: second.to_vec() };
        first != second && evidence::examine(self.verifier.as_ref(), &self.run, &evidence).is_ok()
    }

    /// Two statements of one node were heard: keeps them if they prove that it has contradicted itself.
    pub(super) fn convict(&mut self, first: Vec<u8>, second: &[u8]) {
        let evidence = Evidence { first, second: second.to_vec() };
        let claimed = wire::claimed_sender(second);
        if claimed.is_none_or(|id| !self.is_tried(&id)) {
            return;
        }
        if let Ok((against, what)) = evidence::examine(self.verifier.as_ref(), &self.run, &evidence) {
            self.hold(against, what, evidence);
        }
    }

    /// Another member has heard them. What is known is not looked at again; what is against no member is counted, and not
    /// looked at either; what proves nothing is a lie of its sender.
    pub(super) fn hear_evidence(&mut self, from: NodeId, evidence: Evidence) {
        if let Some(id) = wire::claimed_sender(&evidence.first).filter(|id| !self.is_tried(id)) {
            if !self.is_member(&id) {
                self.stale(from);
            }
            return;
        }
        match evidence::examine(self.verifier.as_ref(), &self.run, &evidence) {
            Ok((against, what)) => self.hold(against, what, evidence),
            Err(error) => self.refuse(from, Refusal::FalseEvidence { why: error.reason() }),
        }
    }

    /// READYs that came with a fetched result, beside those that their senders have said here.
    pub(super) fn compare_readys(&mut self, readys: &[SignedReady]) {
        for theirs in readys {
            let heard = self.round.as_ref().and_then(|round| self.ready_of(&theirs.member, round));
            if let Some(heard) = heard.filter(|heard| heard.ready != theirs.ready) {
                self.convict(heard.bytes.clone(), &theirs.bytes);
            }
        }
    }

    /// Votes in a certificate, beside those that their senders have said here.
    pub(super) fn compare_votes(&mut self, certificate: &Certificate) {
        for theirs in &certificate.votes {
            let sender = wire::claimed_sender(theirs);
            let round = self.round.as_ref();
            let heard = sender.and_then(|id| round.and_then(|round| round.record_vote.votes.get(&id)));
            if let Some((_, heard)) = heard.filter(|(_, heard)| heard != theirs) {
                self.convict(heard.clone(), theirs);
            }
        }
    }

    /// Keeps it, tells the driver, and tells the other members once.
    fn hold(&mut self, against: NodeId, what: Contradiction, evidence: Evidence) {
        if !self.is_tried(&against) {
            return;
        }
        if self.convicted.len() >= EVIDENCE_MAX {
            let Some(settled) = self.settled() else { return };
            self.drop_evidence(settled);
        }
        self.convicted.insert(against, (what, evidence.clone()));
        self.out.push(Output::Evidence { against, what, evidence: evidence.clone() });
        if !self.frozen && !planted!(Plant::KeepEvidence) {
            let mut members = self.reachable_members();
            members.retain(|id| self.peers.get(id).is_some_and(|peer| peer.greeted));
            self.send_to(&members, &Message::Evidence(evidence));
        }
    }

    /// Tells a member that has just greeted what it may not have heard: what no record has settled.
    pub(super) fn pass_on_evidence(&mut self, to: NodeId) {
        if !self.is_member(&to) {
            return;
        }
        let settled = |id: &NodeId| self.head.as_ref().is_some_and(|head| is_revoked(&head.record, id));
        let open = self.convicted.iter().filter(|(id, _)| !settled(id));
        let open: Vec<Evidence> = open.map(|(_, (_, evidence))| evidence.clone()).collect();
        for evidence in open {
            self.send_to(&[to], &Message::Evidence(evidence));
        }
    }

    /// Whether evidence against this node is looked at and kept: it is a member, there is none yet, no record has settled
    /// it, and there is room.
    fn is_tried(&self, id: &NodeId) -> bool {
        let member = self.is_member(id) || planted!(Plant::HoardEvidence);
        let revoked = self.head.as_ref().is_some_and(|head| is_revoked(&head.record, id));
        let room = self.convicted.len() < EVIDENCE_MAX || self.settled().is_some();
        member && !revoked && !self.convicted.contains_key(id) && room
    }

    /// Somebody who was revoked, so that what is held against it may go.
    fn settled(&self) -> Option<NodeId> {
        let record = &self.head.as_ref()?.record;
        self.convicted.keys().find(|id| is_revoked(record, id)).copied()
    }
}

fn is_revoked(record: &Record, id: &NodeId) -> bool {
    record.revoked.binary_search(&Digest(id.0)).is_ok()
}
