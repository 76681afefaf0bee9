//! The vote on the record: a voter that holds a result enters with it, a voter that lacks it fetches it, and a quorum
//! decides (`docs/protocol/4-agreement.md` §4.5).

use super::conduct::Conduct;
use super::config::VoteState;
use super::ctx::Ctx;
use super::io::{AttemptKey, Output, Refusal};
use super::offer::Offer;
use super::outbox::Out;
use super::results::{Holding, Made, RESULTS_MAX};
use super::round::{Attempt, Committing, Round, Training};
use super::vote::{Instance, Objection};
use super::vote_state::OwnVotes;
use crate::ballot::{Choice, Said};
use crate::candidate::Candidate;
use crate::certificate;
use crate::message::{Certificate, Phase, Question, Value, ValueKind};
use crate::mutation::{Mutation, mutated};
use crate::record::{Record, RecordKind};
use crate::{Digest, NodeId};
use std::collections::BTreeSet;

/// The failed fetches of one result after which a voter that nothing else brings into the vote takes the result for
/// lost.
pub(super) const FETCH_FAILURES: u32 = 3;
/// Steps of a ballot after one input: with a single voter all happen at once.
const STEPS_MAX: usize = 8;

/// A record that is decided and held, with the key of its attempt, if it is no SKIP.
pub(super) struct Decided {
    key: Option<AttemptKey>,
    record: Record,
    certificate: Certificate,
}

/// Takes steps of a ballot as long as there may be another.
pub(super) fn take_steps(mut step: impl FnMut() -> bool) {
    for _ in 0..STEPS_MAX {
        if !step() {
            break;
        }
    }
}

impl Round {
    /// Resumes the votes and results from the disk.
    pub fn resume_votes(&mut self, candidates: Vec<Candidate>, vote_state: Option<&VoteState>, ctx: &Ctx) {
        let fits = |c: &Candidate| c.record.parent == self.head.digest && c.record.kind == RecordKind::Commit;
        for candidate in candidates.into_iter().filter(fits).take(RESULTS_MAX) {
            let holding = Holding { written: true, made: Made::Before, ..Holding::new(candidate) };
            self.results.holding.insert(holding.digest, holding);
        }
        let vote_state = vote_state.filter(|r| r.parent == self.head.digest && !mutated!(Mutation::ForgetVotes));
        let Some(resumed) = vote_state.and_then(|vote_state| Instance::resume(vote_state, self.task.seq, ctx)) else {
            return;
        };
        let instance = resumed.question.instance;
        if instance != Question::RECORD {
            self.attempts.number = instance;
        }
        *self.vote_mut(instance) = resumed;
    }

    /// The question of the vote with this instance.
    pub fn question(&self, instance: u32) -> Question {
        Question { seq: self.task.seq, parent: self.head.digest, instance }
    }

    /// The vote on the record, or the vote on the set of the attempt at hand.
    pub fn vote(&self, instance: u32) -> &Instance {
        if instance == Question::RECORD { &self.record_vote } else { &self.set_vote }
    }

    fn vote_mut(&mut self, instance: u32) -> &mut Instance {
        if instance == Question::RECORD { &mut self.record_vote } else { &mut self.set_vote }
    }

    /// Hears a statement of another voter in a vote.
    ///
    /// # Errors
    /// The statement is not for this node now, or contradicts an earlier one of its sender.
    pub fn hear_said(
        &mut self,
        from: NodeId,
        (question, incarnation): (&Question, u64),
        said: Said<Value>,
        bytes: &[u8],
        (ctx, out): (&Ctx, &mut Out),
    ) -> Result<(), Objection> {
        let answers = self.question(question.instance) == *question || mutated!(Mutation::AcceptStale);
        if !answers || !self.head.quorum.has(&from, incarnation) {
            return Err(Refusal::Stale.into());
        }
        if question.instance != Question::RECORD && !self.turn_to_attempt(question.instance, ctx, out) {
            return Err(Refusal::Stale.into());
        }
        let named = said.voted.is_none().then(|| (said.ballot, said.value.clone()));
        self.vote_mut(question.instance).hear(from, incarnation, said, bytes, ctx)?;
        if let Some((ballot, value)) = named {
            self.note_left_out(from, ballot, &value);
        }
        Ok(())
    }

    /// Hears the proof that a record was decided.
    ///
    /// # Errors
    /// The certificate proves nothing, or is not for this round's record.
    pub fn hear_certificate(
        &mut self,
        certificate: &Certificate,
        conduct: &mut Conduct,
        (ctx, out): (&Ctx, &mut Out),
    ) -> Result<(), Refusal> {
        let here = (certificate.lineage, certificate.seq) == (self.head.record.lineage, self.task.seq);
        if !here || self.results.proof.is_some() {
            return Err(Refusal::Stale);
        }
        let (verifier, head) = (ctx.verifier.as_ref(), &self.head);
        let Ok(value) = certificate::verify_votes(verifier, &ctx.run, &head.quorum, &head.digest, certificate) else {
            return Err(Refusal::Malformed { what: "certificate that proves nothing" });
        };
        self.results.proof = Some(certificate.clone());
        // An attempt of another set cannot end in the decided record: waiting for it would only make this node late.
        let other = |running: &Attempt| value.is_some_and(|value| value.set != running.key.set);
        if self.attempts.running.as_ref().is_some_and(other) {
            self.leave_attempt("the others have decided on the result of another", None, out);
        }
        conduct.compare_votes(certificate, self, ctx, out);
        Ok(())
    }

    /// Writes and sends the pending statement of a vote; returns whether it did.
    pub fn say(&mut self, instance: u32, ctx: &Ctx, out: &mut Out, own_votes: &mut OwnVotes) -> bool {
        let Some((value, vote_state)) = self.vote(instance).next(&self.head, ctx) else { return false };
        if !own_votes.may_sign(&vote_state.stamp) {
            return false;
        }
        let candidate = self.results.unwritten(&value);
        let token = own_votes.persist(vote_state, candidate, out);
        let Some(bytes) = self.vote_mut(instance).say(ctx) else { return false };
        out.send_bytes(&ctx.reachable_voters(), &bytes, Some(token));
        true
    }

    /// Repeats to a peer the statements that it may have missed.
    pub fn repeat_votes(&self, peer: NodeId, ctx: &Ctx, out: &mut Out, own_votes: &OwnVotes) {
        for vote in [&self.set_vote, &self.record_vote] {
            vote.repeat(&[peer], |_, _| true, own_votes, (ctx, out));
        }
    }

    /// Repeats statements that were made a while ago to voters that may need them. A voter that trains does not. Nor
    /// does a voter in an attempt that the vote on its set has led to, or whose result it would vote on.
    pub fn repeat_late_votes(&mut self, ctx: &Ctx, out: &mut Out, own_votes: &OwnVotes) {
        let (parent, over) = (self.head.digest, self.attempts.running.is_none());
        for (vote, over) in [(&mut self.set_vote, over), (&mut self.record_vote, false)] {
            let waits = |id: &NodeId| {
                let Some(head) = ctx.peers.get(id).and_then(|peer| peer.said.head.as_ref()) else { return true };
                head.record == parent && head.phase != Phase::Training && (head.phase != Phase::Reducing || over)
            };
            vote.repeat_late(waits, own_votes, (ctx, out));
        }
    }

    /// Enters the vote on the record when there is a value to enter with, and goes on with the vote. Returns the
    /// decided record if it can be committed now.
    pub fn step_decision(&mut self, ctx: &Ctx, out: &mut Out, own_votes: &mut OwnVotes) -> Option<Decided> {
        if let Some(proof) = self.results.proof.clone() {
            return self.conclude(proof.record, proof, ctx, out);
        }
        self.check_dispute(out);
        if ctx.may_speak() {
            self.enter_vote(ctx);
            take_steps(|| self.step_record_vote(ctx, out, own_votes));
        }
        self.conclude_vote(ctx, out)
    }

    /// Names this node's own result, or SKIP when the attempts are exhausted.
    fn enter_vote(&mut self, ctx: &Ctx) {
        if self.record_vote.entered() {
            return;
        }
        let quorum = &self.head.quorum;
        let met = |record: &Record| {
            mutated!(Mutation::ThinContributors)
                || quorum.met_by(|id| record.contributors.binary_search_by(|c| c.member.cmp(id)).is_ok())
        };
        let held = self.results.holding.values().filter(|held| met(&held.candidate.record)).map(Holding::value);
        let best = held.max_by_key(Choice::rank);
        // A voter that gives up is no reason to skip as long as the others are a quorum: they go on without it.
        let skips = |id: &NodeId| self.record_vote.names(id).any(|value| value.kind == ValueKind::Skip);
        let others_skip = !quorum.met_by(|id| !skips(id));
        let idle = self.attempts.running.is_none();
        // A voter in this vote does not return to the votes on sets, which may never end then.
        let others = self.record_vote.heard().next().is_some();
        let last = self.set_vote.said_at.max(self.attempts.told_at).max(self.began);
        let behind = self.attempts.number > 0 || self.names_are_lost(ctx);
        let left_behind = others && behind && ctx.is_left_behind(last);
        let exhausted = idle
            && !mutated!(Mutation::NeverSkip)
            && (self.attempts.number > self.attempts_max() || others_skip || left_behind);
        let skip = self.task.skip.as_ref().filter(|_| exhausted).map(|(digest, _)| Value::skip(*digest));
        // Another voter's result may be on its way here: better than none.
        let coming = self.results.fetching.values().any(|fetching| fetching.active);
        if let Some(value) = best.or(skip.filter(|_| !coming)) {
            self.record_vote.ballot(ctx.me).propose(value);
        }
    }

    /// Voters beside this node.
    pub fn other_voters(&self, ctx: &Ctx) -> impl Iterator<Item = &NodeId> {
        let me = ctx.me;
        self.head.quorum.voters().iter().map(|(id, _)| id).filter(move |id| **id != me)
    }

    /// Whether no result that another voter names can come here any more: its holders are gone, or could not give it. A
    /// voter that was not in attempt 0, or has left it, cannot wait for it then.
    fn names_are_lost(&self, ctx: &Ctx) -> bool {
        let gone = |value: &Value| {
            self.task.skip.as_ref().is_some_and(|(skip, _)| *skip == value.digest)
                || self.results.fetching.get(&value.digest).is_some_and(|fetching| fetching.failures > FETCH_FAILURES)
        };
        let mut naming = self.other_voters(ctx).filter(|id| self.record_vote.names(id).next().is_some()).peekable();
        let lost = |id: &NodeId| {
            if ctx.is_present(id) { self.record_vote.names(id).all(gone) } else { ctx.fault(id, self).is_some() }
        };
        naming.peek().is_some() && naming.all(lost)
    }

    /// Takes one step of the ballot; returns whether there may be another.
    fn step_record_vote(&mut self, ctx: &Ctx, out: &mut Out, own_votes: &mut OwnVotes) -> bool {
        // Results that present voters name, except this node: after a repair it may have named a result that it lost.
        let named = self.named_by_others(ctx);
        let awaited = self.awaits_votes(ctx);
        let Some((skip, _)) = &self.task.skip else { return false };
        let fallback = Value::skip(*skip);
        let results = &self.results;
        // No source could give the result just now. It may be needed all the same, and is asked for again after a
        // while.
        let failed = |digest: &Digest| {
            !named.contains(digest)
                || results.fetching.get(digest).is_some_and(|f| f.failures > 0 && !ctx.may_fetch(f.not_before))
        };
        let usable = |value: &Value| match value.kind {
            ValueKind::Skip => value.digest == fallback.digest,
            ValueKind::Set => false,
            ValueKind::Commit => {
                results.holding.contains_key(&value.digest) || !(failed(&value.digest) || results.contradict(value))
            }
        };
        let said = self.record_vote.ballot.as_ref().and_then(|ballot| ballot.said());
        let patience = ctx.record_patience(said.map_or(0, |said| said.ballot));
        let patient = awaited && ctx.awaits_more(self.record_vote.said_at, patience);
        let Some(ballot) = self.record_vote.ballot.as_mut() else { return false };
        ballot.advance(&self.head.quorum, usable, &fallback, patient);
        let Some((said, forced)) = ballot.pending().map(|(said, forced)| (said.clone(), forced)) else { return false };
        // A vote for nothing names the value that may be chosen next. A value that only this node names, and cannot
        // give, would keep the others from ever following it.
        let lacking = !mutated!(Mutation::EstimateUnheld)
            && said.voted != Some(true)
            && said.value.kind == ValueKind::Commit
            && !results.holding.contains_key(&said.value.digest);
        if !lacking {
            return self.say(Question::RECORD, ctx, out, own_votes);
        }
        let other = results.contradict(&said.value);
        let failed = other || failed(&said.value.digest);
        if other && forced {
            // A quorum has named the value: this node's result is the wrong one.
            out.own_fault("its result of an attempt differs from that of a quorum", ctx);
            return false;
        }
        if failed && !forced {
            ballot.withdraw();
            return true;
        }
        self.fetch(&said.value, ctx, out);
        false
    }

    /// Values of the record vote that present voters name.
    fn named_by_others(&self, ctx: &Ctx) -> BTreeSet<Digest> {
        let others = self.other_voters(ctx).filter(|id| ctx.is_present(id));
        others.flat_map(|id| self.record_vote.names(id)).map(|value| value.digest).collect()
    }

    /// Whether a voter that is here may still say something in the ballot under way. A voter that is gone is not waited
    /// for.
    fn awaits_votes(&self, ctx: &Ctx) -> bool {
        let Some(ballot) = &self.record_vote.ballot else { return true };
        let own = ballot.said().map(Said::place);
        let counts = |id: &&NodeId| mutated!(Mutation::AwaitTheGone) || ctx.fault(id, self).is_none();
        self.other_voters(ctx).filter(counts).any(|id| ballot.place_of(id) < own)
    }

    /// The record that the vote has decided, if it can be committed now.
    fn conclude_vote(&mut self, ctx: &Ctx, out: &mut Out) -> Option<Decided> {
        let ballot = self.record_vote.ballot.as_mut()?;
        ballot.observe(&self.head.quorum);
        let (ballot, value) = ballot.decided()?;
        let decides = |vote: &crate::message::Vote| {
            (vote.ballot == ballot || mutated!(Mutation::MixedProof)) && vote.voted && vote.value == *value
        };
        let signed = || self.record_vote.votes.iter().filter(|(_, (vote, _))| decides(vote));
        let (_, (vote, _)) = signed().next()?;
        let votes = signed().map(|(id, (_, bytes))| (id, bytes));
        let certificate = certificate::of_votes(self.head.record.lineage, vote, votes);
        let digest = value.digest;
        // The votes are kept as they are now: while this node ends its inner step, the others' newer votes replace
        // them.
        self.results.proof = Some(certificate.clone());
        self.conclude(digest, certificate, ctx, out)
    }

    /// Returns the decided record for its commit if it is held. Otherwise fetches it, or waits for peers that are
    /// ahead.
    fn conclude(&mut self, digest: Digest, certificate: Certificate, ctx: &Ctx, out: &mut Out) -> Option<Decided> {
        let held = self.results.holding.get(&digest);
        let held = held.map(|held| (Some(held.candidate.key), held.candidate.record.clone()));
        let skip =
            self.task.skip.as_ref().filter(|(skip, _)| *skip == digest).map(|(_, record)| (None, record.clone()));
        let Some((key, record)) = held.or(skip) else {
            let value = self.record_vote.heard().find(|value| value.digest == digest).cloned()?;
            if self.results.contradict(&value) {
                out.own_fault("its result of the decided attempt differs from the decided one", ctx);
            } else {
                self.fetch(&value, ctx, out);
            }
            return None;
        };
        self.may_apply(ctx, out).then_some(Decided { key, record, certificate })
    }

    /// Whether the decided record may be applied. Inner steps of this node that do not count in this record end before
    /// the state changes under them, so that they count in the next. A node that hangs in a step does not hold itself
    /// up for long.
    fn may_apply(&mut self, ctx: &Ctx, out: &mut Out) -> bool {
        self.cut_short(out);
        if self.part.training != Training::Running {
            return true;
        }
        let since = *self.part.decided_at.get_or_insert_with(|| ctx.mark());
        ctx.gives_up_own_step(since)
    }

    /// Has the decided record written.
    pub fn commit(&mut self, decided: Decided, offer: &mut Offer, ctx: &Ctx, out: &mut Out) {
        let Decided { key, record, certificate } = decided;
        self.stop_training(out);
        if let Some(running) = self.attempts.running.take().filter(|running| Some(running.key) != key) {
            out.push(Output::Abandon { key: running.key });
        }
        let at = record.contributors.binary_search_by(|c| c.member.cmp(&ctx.me)).ok();
        let taken = at.and_then(|at| record.contributors.get(at)).map(|own| own.ready);
        let mine = (taken.is_some() || mutated!(Mutation::ForgetLeftOut)) && !mutated!(Mutation::KeepTakenIn);
        assert!(key.is_some() || !mutated!(Mutation::PanicAtSkip), "injected");
        if mine {
            offer.taken_in(taken, ctx, out);
        }
        self.write(key, record, certificate, mine, ctx, out);
    }

    /// Has a decided record written.
    pub fn write(
        &mut self,
        key: Option<AttemptKey>,
        record: Record,
        certificate: Certificate,
        mine: bool,
        ctx: &Ctx,
        out: &mut Out,
    ) {
        let (token, since) = (out.next_token(), ctx.now);
        out.push(Output::Commit { token, key, record: record.clone(), certificate: certificate.clone(), mine });
        self.committing = Some(Committing { token, record, certificate, since });
        // A READY that is kept back for newcomers waits no longer.
        ctx.watch.begin();
    }
}
