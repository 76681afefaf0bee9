//! The conduct of members: equivocation proofs, revocations by the run's creator, the members that this node excludes,
//! and the reports that members send.
//!
//! An equivocation proof is kept, shown and passed on. A member that holds one says "revoked" in its READYs until a
//! record says so (`docs/protocol/4-agreement.md` §4.10).
//!
//! Keys cost nothing. A member therefore holds evidence against members only, hears it from members only, and sends it
//! to members only. Evidence goes when its subject is no member any more.
//!
//! Before that record nothing else is done to the subject. Its READYs and votes count as before. Whether a node takes
//! part has to be the same for all members, and only a record is the same for all.

use super::ctx::Ctx;
use super::io::{Output, Refusal};
use super::outbox::Out;
use super::round::Round;
use super::succession::SignedReady;
use crate::admission::Revocation;
use crate::evidence::{self, Contradiction};
use crate::limits::{EVIDENCE_MAX, GRANTS_MAX};
use crate::message::{Certificate, Evidence, Message};
use crate::mutation::{Mutation, mutated};
use crate::record::Record;
use crate::{Digest, NodeId, wire};
use std::collections::BTreeMap;

/// The number of COMMITs for which a node excludes another whose bytes it has refused: the other may have been a broken
/// machine, and be mended.
const EXCLUDED_ROUNDS: u64 = 8;

#[derive(Debug, Default)]
pub(super) struct Conduct {
    /// Revocations by the run's creator, as far as this node was told: spread in its READYs.
    revocations: Vec<Revocation>,
    /// Evidence by its subject: at most [`EVIDENCE_MAX`].
    equivocators: BTreeMap<NodeId, (Contradiction, Evidence)>,
    /// Members that this node excludes, and up to which round.
    excluded: BTreeMap<NodeId, u64>,
    /// The first member that each member has reported.
    reported: BTreeMap<NodeId, NodeId>,
}

impl Conduct {
    /// Resumes from the disk's content, as far as it is evidence.
    pub fn resume(&mut self, stored: Vec<Evidence>, ctx: &Ctx, out: &mut Out) {
        for evidence in stored.into_iter().take(EVIDENCE_MAX) {
            if let Ok((against, what)) = evidence::examine(ctx.verifier.as_ref(), &ctx.run, &evidence) {
                self.equivocators.insert(against, (what, evidence));
            }
        }
        self.drop_settled(ctx, out);
    }

    /// Drops evidence against nodes that are no members of the head. Evidence against a node that was revoked because
    /// of it is kept as long as there is room: it shows the reason.
    pub fn drop_settled(&mut self, ctx: &Ctx, out: &mut Out) {
        let Some(head) = ctx.head.as_ref().filter(|_| !mutated!(Mutation::HoardEvidence)) else { return };
        let idle = |id: &&NodeId| head.record.member(id).is_none() && !is_revoked(&head.record, id);
        let idle: Vec<NodeId> = self.equivocators.keys().filter(idle).copied().collect();
        idle.into_iter().for_each(|against| self.drop_evidence(against, out));
    }

    fn drop_evidence(&mut self, against: NodeId, out: &mut Out) {
        self.equivocators.remove(&against);
        out.push(Output::DropEvidence { against });
    }

    /// The nodes against which evidence is held, by ascending id.
    pub fn evidence(&self) -> impl ExactSizeIterator<Item = (&NodeId, Contradiction)> {
        self.equivocators.iter().map(|(id, (what, _))| (id, *what))
    }

    /// Whether evidence against this node is held.
    pub fn is_equivocator(&self, id: &NodeId) -> bool {
        self.equivocators.contains_key(id)
    }

    /// Members of a record that have contradicted themselves, except this node: others say it of this node.
    pub fn equivocating_members(&self, me: NodeId, record: &Record) -> impl Iterator<Item = NodeId> {
        let news = move |id: &&NodeId| **id != me && record.member(id).is_some() && !is_revoked(record, id);
        self.equivocators.keys().filter(news).copied()
    }

    /// Keeps two heard statements of one node if they prove that it has contradicted itself.
    pub fn expose(&mut self, first: Vec<u8>, second: &[u8], ctx: &Ctx, out: &mut Out) {
        let evidence = Evidence { first, second: second.to_vec() };
        let claimed = wire::claimed_sender(second);
        if claimed.is_none_or(|id| !self.is_tried(&id, ctx)) {
            return;
        }
        if let Ok((against, what)) = evidence::examine(ctx.verifier.as_ref(), &ctx.run, &evidence) {
            self.hold(against, what, evidence, ctx, out);
        }
    }

    /// Hears evidence of another member. Known evidence is not examined again. Evidence against a node that is no
    /// member is counted, and not examined either.
    ///
    /// # Errors
    /// Evidence that proves nothing is a lie of its sender.
    pub fn hear_evidence(&mut self, evidence: Evidence, ctx: &Ctx, out: &mut Out) -> Result<(), Refusal> {
        if let Some(id) = wire::claimed_sender(&evidence.first).filter(|id| !self.is_tried(id, ctx)) {
            return if ctx.is_member(&id) { Ok(()) } else { Err(Refusal::Stale) };
        }
        let examined = evidence::examine(ctx.verifier.as_ref(), &ctx.run, &evidence);
        let (against, what) = examined.map_err(|error| Refusal::FalseEvidence { why: error.reason() })?;
        self.hold(against, what, evidence, ctx, out);
        Ok(())
    }

    /// Compares READYs that came with a fetched result with those that their senders have said here.
    pub fn compare_readys(&mut self, readys: &[SignedReady], round: &Round, ctx: &Ctx, out: &mut Out) {
        for theirs in readys {
            let heard = ctx.ready_of(&theirs.member, round);
            if let Some(heard) = heard.filter(|heard| heard.ready != theirs.ready) {
                self.expose(heard.bytes.clone(), &theirs.bytes, ctx, out);
            }
        }
    }

    /// Compares votes in a certificate with those that their senders have said here.
    pub fn compare_votes(&mut self, certificate: &Certificate, round: &Round, ctx: &Ctx, out: &mut Out) {
        for theirs in &certificate.votes {
            let heard = wire::claimed_sender(theirs).and_then(|id| round.record_vote.votes.get(&id));
            if let Some((_, heard)) = heard.filter(|(_, heard)| heard != theirs) {
                self.expose(heard.clone(), theirs, ctx, out);
            }
        }
    }

    /// Keeps the evidence, tells the driver, and tells the other members once.
    fn hold(&mut self, against: NodeId, what: Contradiction, evidence: Evidence, ctx: &Ctx, out: &mut Out) {
        if !self.is_tried(&against, ctx) {
            return;
        }
        if self.equivocators.len() >= EVIDENCE_MAX {
            let Some(settled) = self.settled(ctx) else { return };
            self.drop_evidence(settled, out);
        }
        self.equivocators.insert(against, (what, evidence.clone()));
        out.push(Output::Evidence { against, what, evidence: evidence.clone() });
        if !ctx.frozen && !mutated!(Mutation::KeepEvidence) {
            let mut members = ctx.reachable_members();
            members.retain(|id| ctx.peers.get(id).is_some_and(|peer| peer.link.greeted));
            out.send_to(ctx, &members, &Message::Evidence(evidence));
        }
    }

    /// Tells a member that has just greeted the evidence that no record has settled: it may not have heard it.
    pub fn pass_on(&self, to: NodeId, ctx: &Ctx, out: &mut Out) {
        if !ctx.is_member(&to) {
            return;
        }
        let settled = |id: &NodeId| ctx.head.as_ref().is_some_and(|head| is_revoked(&head.record, id));
        for (_, (_, evidence)) in self.equivocators.iter().filter(|(id, _)| !settled(id)) {
            out.send_to(ctx, &[to], &Message::Evidence(evidence.clone()));
        }
    }

    /// Whether evidence against this node is examined and kept: it is a member, there is none yet, no record has
    /// settled it, and there is room.
    fn is_tried(&self, id: &NodeId, ctx: &Ctx) -> bool {
        let member = ctx.is_member(id) || mutated!(Mutation::HoardEvidence);
        let revoked = ctx.head.as_ref().is_some_and(|head| is_revoked(&head.record, id));
        let room = self.equivocators.len() < EVIDENCE_MAX || self.settled(ctx).is_some();
        member && !revoked && !self.equivocators.contains_key(id) && room
    }

    /// A revoked node, whose evidence may go.
    fn settled(&self, ctx: &Ctx) -> Option<NodeId> {
        let record = &ctx.head.as_ref()?.record;
        self.equivocators.keys().find(|id| is_revoked(record, id)).copied()
    }

    /// Takes a revocation, if the run's creator has signed it.
    pub fn revoke(&mut self, revocation: Revocation, ctx: &Ctx) {
        let signed = |creator| revocation.verify(ctx.verifier.as_ref(), &ctx.run, creator);
        let known = self.revocations.iter().any(|known| known.subject == revocation.subject);
        let names = revocation.subject != Digest::default();
        if ctx.spec.creator.as_ref().is_some_and(signed) && names && !known && self.revocations.len() < GRANTS_MAX {
            self.revocations.push(revocation);
        }
    }

    /// The creator's revocations that this record does not list yet.
    pub fn revocations(&self, record: &Record) -> impl Iterator<Item = &Revocation> {
        self.revocations.iter().filter(|revocation| record.revoked.binary_search(&revocation.subject).is_err())
    }

    /// Excludes a member for a while, because this node has refused its bytes in an attempt at this round.
    pub fn exclude(&mut self, id: NodeId, round: u64) {
        self.excluded.insert(id, round.saturating_add(EXCLUDED_ROUNDS));
    }

    /// Whether this node excludes another.
    pub fn excludes(&self, id: &NodeId) -> bool {
        self.excluded.contains_key(id)
    }

    /// The member that `by` has reported first. `by` is believed about no other.
    pub fn first_reported(&mut self, by: NodeId, reported: NodeId) -> NodeId {
        *self.reported.entry(by).or_insert(reported)
    }

    /// Forgets what is over now that this record is the head.
    pub fn follow(&mut self, record: &Record) {
        self.excluded.retain(|_, until| *until > record.round);
        self.reported.retain(|reporter, _| record.member(reporter).is_some());
    }
}

/// Whether a record says that this node is revoked.
pub(super) fn is_revoked(record: &Record, id: &NodeId) -> bool {
    record.revoked.binary_search(&Digest(id.0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::sample::{self, node};

    #[test]
    fn a_proof_is_kept_once_and_goes_with_its_subject() {
        let (mut ctx, mut out, mut conduct) = (Ctx::sample(), Out::default(), Conduct::default());
        let Evidence { first, second } = sample::evidence();
        conduct.expose(first.clone(), &first, &ctx, &mut out);
        assert!(!conduct.is_equivocator(&ctx.me), "one statement contradicts nothing");
        for _ in 0..2 {
            conduct.expose(first.clone(), &second, &ctx, &mut out);
        }
        let kept = out.outputs.iter().filter(|output| matches!(output, Output::Evidence { .. })).count();
        assert!(conduct.is_equivocator(&ctx.me) && kept == 1);
        let mut record = ctx.head.as_ref().unwrap().record.clone();
        record.next.members.retain(|member| member.id != ctx.me);
        ctx.stand_on(super::super::chain::ChainHead::new(record, None));
        conduct.drop_settled(&ctx, &mut out);
        assert!(!conduct.is_equivocator(&ctx.me));
    }

    #[test]
    fn a_member_is_believed_about_the_first_that_it_reports_and_excluded_for_eight_rounds() {
        let (ctx, mut conduct) = (Ctx::sample(), Conduct::default());
        assert_eq!(conduct.first_reported(node(16), node(32)), node(32));
        assert_eq!(conduct.first_reported(node(16), ctx.me), node(32));
        conduct.exclude(node(32), 4);
        let mut record = ctx.head.as_ref().unwrap().record.clone();
        for (round, excluded) in [(11, true), (12, false)] {
            record.round = round;
            conduct.follow(&record);
            assert_eq!(conduct.excludes(&node(32)), excluded, "round {round}");
        }
    }
}
