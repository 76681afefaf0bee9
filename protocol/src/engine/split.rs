//! Two certified records of one lineage at one place: the promise is broken, and a person has to look
//! (`docs/protocol/4-agreement.md` §4.8.4).
//!
//! Any two quorums of one record share a voter, so at least one node has signed both. If such a node still votes, no
//! decision made here can be relied on. If none does, the split says nothing about today's voters: a key that was a
//! quorum once can sign another past at any time, and would stop the whole flock.

use super::ctx::Ctx;
use super::io::Refusal;
use crate::NodeId;
use crate::certificate;
use crate::message::Certificate;
use crate::mutation::{Mutation, mutated};
use crate::record::RecordKind;

impl Ctx {
    /// The certificate that this node has followed, if `theirs` is for another record at its place and a node that
    /// still votes has signed both.
    ///
    /// # Errors
    /// The certificate proves nothing of the kind.
    pub fn check_split(&self, theirs: &Certificate) -> Result<Option<Certificate>, Refusal> {
        let at = self.history.iter().position(|past| {
            (past.record.lineage, past.record.seq) == (theirs.lineage, theirs.seq) && past.digest != theirs.record
        });
        let Some(at) = at.filter(|at| *at > 0 && !mutated!(Mutation::UnseenSplit)) else { return Ok(None) };
        let (Some(parent), Some(past)) = (self.history.get(at - 1), self.history.get(at)) else { return Ok(None) };
        if past.record.kind == RecordKind::Fork {
            // A fork's lineage follows from its record: no other record has the same lineage.
            return Err(Refusal::Malformed { what: "certificate that proves nothing" });
        }
        let proof =
            certificate::verify_votes(self.verifier.as_ref(), &self.run, &parent.quorum, &parent.digest, theirs);
        let Some(ours) = past.certificate.clone().filter(|_| proof.is_ok()) else { return Ok(None) };
        if self.a_voter_signed(&ours, theirs) {
            return Ok(Some(ours));
        }
        Err(Refusal::FalseEvidence { why: "former_voters" })
    }

    /// Whether a node that votes at the head has signed both.
    pub fn a_voter_signed(&self, ours: &Certificate, theirs: &Certificate) -> bool {
        signers_of_both(ours, theirs).any(|id| self.is_voter(&id)) || mutated!(Mutation::HeedFormerVoters)
    }
}

/// The nodes whose votes are in both, by ascending id.
pub(super) fn signers_of_both(ours: &Certificate, theirs: &Certificate) -> impl Iterator<Item = NodeId> + use<> {
    let others = certificate::signers(theirs);
    certificate::signers(ours).into_iter().filter(move |id| others.contains(id))
}
