//! Nodes that are known to have contradicted themselves: the proof is kept, shown and passed on, and who holds it says
//! "revoked" in its READYs until a record says so (`protocol.md`, fault model).
//!
//! Nothing else is done to them before that record. Their READYs and votes count as far as they did: whether one takes
//! part has to be the same for all, and only a record is.

use super::Engine;
use super::io::{Output, Refusal};
use super::succession::SignedReady;
use crate::evidence::{self, Contradiction};
use crate::limits::EVIDENCE_MAX;
use crate::message::{Certificate, Evidence, Message};
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
        if claimed.is_none_or(|id| self.has_room_for(&id).is_none()) {
            return;
        }
        if let Ok((against, what)) = evidence::examine(self.verifier.as_ref(), &self.run, &evidence) {
            self.hold(against, what, evidence);
        }
    }

    /// Another node has heard them. What is known is not looked at again; what proves nothing is a lie of its sender.
    pub(super) fn hear_evidence(&mut self, from: NodeId, evidence: Evidence) {
        let claimed = wire::claimed_sender(&evidence.first);
        if claimed.is_some_and(|id| self.has_room_for(&id).is_none()) {
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

    /// Keeps it, tells the driver, and tells everybody once.
    fn hold(&mut self, against: NodeId, what: Contradiction, evidence: Evidence) {
        let Some(drops) = self.has_room_for(&against) else { return };
        if let Some(dropped) = drops {
            self.convicted.remove(&dropped);
        }
        self.convicted.insert(against, (what, evidence.clone()));
        self.out.push(Output::Evidence { against, what, evidence: evidence.clone(), drops });
        if !self.frozen {
            let all = self.reachable();
            self.send_to(&all, &Message::Evidence(evidence));
        }
    }

    /// Tells a newly connected peer what it may not have heard: what no record has settled.
    pub(super) fn pass_on_evidence(&mut self, to: NodeId) {
        let settled = |id: &NodeId| self.head.as_ref().is_some_and(|head| is_revoked(&head.record, id));
        let open = self.convicted.iter().filter(|(id, _)| !settled(id));
        let open: Vec<Evidence> = open.map(|(_, (_, evidence))| evidence.clone()).collect();
        for evidence in open {
            self.send_to(&[to], &Message::Evidence(evidence));
        }
    }

    /// Whether there is room for evidence against this node, and whose has to go for it; None if there is none, or if
    /// it would be no news. When all places are taken, those go that a record has revoked, and for members strangers
    /// do: whoever makes many identities to contradict themselves keeps nobody from being found out.
    fn has_room_for(&self, id: &NodeId) -> Option<Option<NodeId>> {
        let record = self.head.as_ref().map(|head| &head.record);
        let settled = |id: &NodeId| record.is_some_and(|record| is_revoked(record, id));
        if self.convicted.contains_key(id) || settled(id) {
            return None;
        }
        if self.convicted.len() < EVIDENCE_MAX {
            return Some(None);
        }
        let member = |id: &NodeId| record.is_some_and(|record| record.member(id).is_some());
        let stranger = || self.convicted.keys().find(|held| member(id) && !member(held));
        self.convicted.keys().find(|held| settled(held)).or_else(stranger).map(|held| Some(*held))
    }
}

fn is_revoked(record: &Record, id: &NodeId) -> bool {
    record.revoked.binary_search(&Digest(id.0)).is_ok()
}
