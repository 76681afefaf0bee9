//! Two certified records of one lineage at one place: the promise is broken, and a person has to look
//! (`docs/protocol/4-agreement.md` §4.8.4).
//!
//! Any two quorums of one record share a voter, so somebody has signed both. If that one votes still, nothing that is decided
//! here can be relied on. If none does, it says nothing about today's voters: a key that was a quorum once can sign another
//! past at any time, and would stop the whole flock.

use super::Engine;
use super::io::{Notice, Refusal};
use crate::NodeId;
use crate::certificate::{self, Split};
use crate::message::Certificate;
use crate::plant::{Plant, planted};
use crate::record::RecordKind;

impl Engine {
    /// A certificate for another record than the one that this node has followed: stops and shows both. False if it was
    /// refused.
    pub(super) fn check_split(&mut self, from: NodeId, theirs: &Certificate) -> bool {
        let at = self.history.iter().position(|past| {
            (past.record.lineage, past.record.seq) == (theirs.lineage, theirs.seq) && past.digest != theirs.record
        });
        let Some(at) = at.filter(|at| *at > 0 && !planted!(Plant::UnseenSplit)) else { return true };
        let (Some(parent), Some(past)) = (self.history.get(at - 1), self.history.get(at)) else { return true };
        if past.record.kind == RecordKind::Fork {
            // The name of its lineage follows from the record: there is no other one of that name.
            self.refuse(from, Refusal::Malformed { what: "certificate that proves nothing" });
            return false;
        }
        let proof =
            certificate::verify_votes(self.verifier.as_ref(), &self.run, &parent.quorum, &parent.digest, theirs);
        let Some(ours) = past.certificate.clone().filter(|_| proof.is_ok()) else { return true };
        let breaks = self.a_voter_signed(&ours, theirs);
        if breaks {
            self.freeze(ours, theirs.clone());
        } else {
            self.refuse(from, Refusal::FalseEvidence { why: "former_voters" });
        }
        breaks
    }

    /// The same, further back than this node remembers: a catch-up, or the look at a claim, has searched for the first place
    /// that differs.
    pub(super) fn contradicted(&mut self, split: &Split) {
        if certificate::verify_split(self.verifier.as_ref(), &self.spec, split).is_err() {
            return;
        }
        let (ours, theirs) = (&split.ours.1, &split.theirs.1);
        if self.a_voter_signed(ours, theirs) {
            self.freeze(ours.clone(), theirs.clone());
        } else if let Some(peer) = who_signed(ours, theirs).next() {
            self.notice(Notice::Refused { peer, refusal: Refusal::Equivocation { what: "records of former voters" } });
        }
    }

    /// Whether somebody has signed both who votes at the head.
    fn a_voter_signed(&self, ours: &Certificate, theirs: &Certificate) -> bool {
        let votes = |id: NodeId| self.head.as_ref().is_some_and(|head| head.quorum.incarnation(&id).is_some());
        who_signed(ours, theirs).any(votes) || planted!(Plant::HeedFormerVoters)
    }

    fn freeze(&mut self, ours: Certificate, theirs: Certificate) {
        if !self.frozen {
            self.stop_training();
            self.frozen = true;
            self.notice(Notice::SplitBrain { ours, theirs });
        }
    }
}

/// Those whose votes are in both, by ascending id.
fn who_signed(ours: &Certificate, theirs: &Certificate) -> impl Iterator<Item = NodeId> + use<> {
    let others = certificate::signers(theirs);
    certificate::signers(ours).into_iter().filter(move |id| others.contains(id))
}
