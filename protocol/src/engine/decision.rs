//! The vote on the record: who holds a result enters with it, who lacks it fetches it, a quorum decides
//! (`docs/protocol/4-agreement.md` §4.5).

use super::Engine;
use super::attempt::Attempt;
use super::clock::Moment;
use super::config::Candidate;
use super::fetch::{RESULTS_MAX, contradicts_own};
use super::io::{Output, Refusal};
use super::round::{Committing, Training};
use crate::ballot::{Ballot, Choice, Said};
use crate::certificate;
use crate::message::{Certificate, Estimate, Message, Question, Stamp, Value, ValueKind, Vote};
use crate::plant::{Plant, planted};
use crate::record::{Record, RecordKind};
use crate::{Digest, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// Attempts after attempt 0 at one round before voters enter with SKIP.
pub(super) const ATTEMPTS_MAX: u32 = 3;
/// Fetches of one result that fail before a voter that nothing else brings into the vote takes it for lost.
const FETCH_FAILURES: u32 = 3;
/// Steps of a ballot after one input: with a single voter all happen at once.
const STEPS_MAX: usize = 8;
/// The least that a voter waits for more than a quorum where that could help, in microseconds; doubles by ballot.
const PATIENCE_MIN: u64 = 300_000;
const PATIENCE_DOUBLINGS: u32 = 6;

impl Choice for Value {
    type Rank = (std::cmp::Reverse<ValueKind>, u64, u32, std::cmp::Reverse<Digest>);

    fn rank(&self) -> Self::Rank {
        let kind = std::cmp::Reverse(self.kind);
        (kind, self.tokens, self.contributors, std::cmp::Reverse(self.digest))
    }

    // Of a set the READYs are looked for when it is decided.
    fn needs_bytes(&self) -> bool {
        self.kind == ValueKind::Commit
    }
}

/// A vote under way: on a set, or on the record.
#[derive(Debug, Default)]
pub(super) struct Instance {
    pub ballot: Option<Ballot<Value>>,
    /// Newest signed votes by sender, for the certificate.
    pub votes: BTreeMap<NodeId, (Vote, Vec<u8>)>,
    /// Newest signed estimates by sender: one half of the evidence, should another contradict it.
    pub estimates: BTreeMap<NodeId, Vec<u8>>,
    /// When this node last said something new, and when it last said it again.
    pub said_at: Moment,
    pub repeated_at: Moment,
}

/// A result that this node has rebuilt.
#[derive(Debug)]
pub(super) struct Holding {
    pub digest: Digest,
    pub candidate: Candidate,
    /// It is on the disk, or goes there before anything that is said after.
    pub written: bool,
    pub made: Made,
}

/// By whom a result that is held was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Made {
    Here,
    /// By a process before this one, whose state may have been damaged.
    Before,
    /// The same, and it is being computed anew.
    Anew,
}

impl Holding {
    pub fn new(candidate: Candidate) -> Self {
        Self { digest: candidate.record.digest(), candidate, written: false, made: Made::Here }
    }

    fn value(&self) -> Value {
        let (key, record) = (&self.candidate.key, &self.candidate.record);
        let tokens = record.contributors.iter().fold(0u64, |sum, c| sum.saturating_add(c.tokens));
        let contributors = record.contributors.len() as u32;
        let (attempt, set) = (key.attempt, key.set);
        Value { kind: ValueKind::Commit, digest: self.digest, tokens, contributors, attempt, set, members: Vec::new() }
    }
}

impl Instance {
    pub fn ballot(&mut self, me: NodeId) -> &mut Ballot<Value> {
        self.ballot.get_or_insert_with(|| Ballot::new(me))
    }

    /// The newest vote of a voter as it was signed, or its newest estimate.
    fn envelope(&self, from: &NodeId, vote: bool) -> Option<&Vec<u8>> {
        if vote { self.votes.get(from).map(|(_, bytes)| bytes) } else { self.estimates.get(from) }
    }

    /// Whether this node has said something in it.
    pub fn entered(&self) -> bool {
        self.ballot.as_ref().is_some_and(|ballot| ballot.said().is_some())
    }
}

impl Engine {
    /// Takes up the votes and results that the disk holds.
    pub(super) fn resume_votes(&mut self, candidates: Vec<Candidate>) {
        let me = self.me;
        let Some(round) = &mut self.round else { return };
        let fits = |c: &&Candidate| c.record.parent == round.parent && c.record.kind == RecordKind::Commit;
        let held: Vec<Candidate> = candidates.iter().filter(fits).take(RESULTS_MAX).cloned().collect();
        for candidate in held {
            let holding = Holding { written: true, made: Made::Before, ..Holding::new(candidate) };
            round.holding.insert(holding.digest, holding);
        }
        let Some(register) =
            self.voice.register.clone().filter(|r| r.parent == round.parent && !planted!(Plant::ForgetVotes))
        else {
            return;
        };
        let Some((ballot, value)) = register.estimate.filter(|_| register.stamp.seq == round.seq) else { return };
        let estimate = Said { ballot, value, voted: None };
        let cast = |(ballot, value, voted)| Said { ballot, value, voted: Some(voted) };
        let vote = register.vote.clone().map(cast);
        let mut resumed = Instance { ballot: Some(Ballot::resume(me, estimate, vote)), ..Instance::default() };
        let (seq, instance) = (round.seq, register.stamp.instance);
        if let Some((ballot, value, voted)) = register.vote {
            let question = Question { seq, parent: register.parent, instance };
            let vote = Vote { question, incarnation: register.incarnation, ballot, value, voted };
            if let Some(bytes) = self.seal(&Message::Vote(vote.clone())) {
                resumed.votes.insert(me, (vote, bytes));
            }
        }
        let Some(round) = &mut self.round else { return };
        if register.stamp.instance == Question::RECORD {
            round.record_vote = resumed;
        } else {
            round.attempt = register.stamp.instance;
            round.set_vote = resumed;
        }
    }

    /// What the vote on this instance is about.
    pub(super) fn question(&self, instance: u32) -> Option<Question> {
        let round = self.round.as_ref()?;
        Some(Question { seq: round.seq, parent: round.parent, instance })
    }

    pub(super) fn hear_estimate(&mut self, from: NodeId, estimate: Estimate, bytes: &[u8]) {
        let Estimate { question, incarnation, ballot, value } = estimate;
        self.hear_said(from, (&question, incarnation), Said { ballot, value, voted: None }, None, bytes);
    }

    pub(super) fn hear_vote(&mut self, from: NodeId, vote: Vote, bytes: &[u8]) {
        let said = Said { ballot: vote.ballot, value: vote.value.clone(), voted: Some(vote.voted) };
        let (question, incarnation) = (vote.question.clone(), vote.incarnation);
        self.hear_said(from, (&question, incarnation), said, Some(vote), bytes);
    }

    fn hear_said(
        &mut self,
        from: NodeId,
        (question, incarnation): (&Question, u64),
        said: Said<Value>,
        vote: Option<Vote>,
        bytes: &[u8],
    ) {
        let (ballot, phase) = said.place();
        self.note_signed(from, incarnation, Stamp { seq: question.seq, instance: question.instance, ballot, phase });
        let asked = self.question(question.instance);
        let votes = self.head.as_ref().is_some_and(|head| head.quorum.has(&from, incarnation));
        let answers = asked.as_ref() == Some(question) || planted!(Plant::AcceptStale);
        if !answers || !votes {
            return self.stale(from);
        }
        if question.instance != Question::RECORD && !self.turn_to_attempt(question.instance) {
            return self.stale(from);
        }
        let me = self.me;
        let record = question.instance == Question::RECORD;
        let instance = self.round.as_ref().map(|r| if record { &r.record_vote } else { &r.set_vote });
        let first = instance.and_then(|instance| instance.envelope(&from, vote.is_some())).cloned();
        let resigned = planted!(Plant::BlameSignatures) && first.as_ref().is_some_and(|f| self.contradict(f, bytes));
        let Some(round) = &mut self.round else { return };
        let instance = if record { &mut round.record_vote } else { &mut round.set_vote };
        if instance.ballot(me).contradicts(&from, &said) || resigned {
            self.refuse(from, Refusal::Equivocation { what: "two different votes in one ballot" });
            return if let Some(first) = first {
                self.convict(first, bytes)
            };
        }
        let named = said.value.clone();
        if !instance.ballot(me).hear(from, said) {
            return self.stale(from);
        }
        match vote {
            Some(vote) => drop(instance.votes.insert(from, (vote, bytes.to_vec()))),
            None => {
                instance.estimates.insert(from, bytes.to_vec());
                self.note_left_out(from, ballot, &named);
            }
        }
    }

    /// Proof that a record was decided.
    pub(super) fn hear_certificate(&mut self, from: NodeId, certificate: Certificate) {
        if !self.check_split(from, &certificate) {
            return;
        }
        let Some((round, head)) = self.round.as_mut().zip(self.head.as_ref()) else { return self.stale(from) };
        if (certificate.lineage, certificate.seq) != (head.record.lineage, round.seq) || round.proof.is_some() {
            return self.stale(from);
        }
        let proof =
            certificate::verify_votes(self.verifier.as_ref(), &self.run, &head.quorum, &head.digest, &certificate);
        match proof {
            Ok(value) => {
                round.proof = Some(certificate.clone());
                // An attempt of another set cannot end in it: waiting for it would only make this node late.
                let other = |running: &Attempt| value.is_some_and(|value| value.set != running.key.set);
                if round.running.as_ref().is_some_and(other) {
                    self.leave_attempt("the others have decided on the result of another", None);
                }
                self.compare_votes(&certificate);
                self.learn_signed(&certificate);
            }
            Err(_) => self.refuse(from, Refusal::Malformed { what: "certificate that proves nothing" }),
        }
    }

    /// Enters the vote on the record when there is something to enter with, and goes on with it.
    pub(super) fn step_decision(&mut self) {
        if let Some(proof) = self.round.as_ref().and_then(|round| round.proof.clone()) {
            return self.conclude(proof.record, proof);
        }
        self.check_dispute();
        if self.may_speak() {
            self.enter_vote();
            for _ in 0..STEPS_MAX {
                if !self.step_record_vote() {
                    break;
                }
            }
        }
        self.conclude_vote();
    }

    /// Names the own result, or SKIP when the attempts are exhausted.
    fn enter_vote(&mut self) {
        let lost = self.names_are_lost();
        let me = self.me;
        let Some((round, head)) = self.round.as_mut().zip(self.head.as_ref()) else { return };
        if round.record_vote.entered() {
            return;
        }
        let met = |record: &Record| {
            planted!(Plant::ThinContributors)
                || head.quorum.met_by(|id| record.contributors.binary_search_by(|c| c.member.cmp(id)).is_ok())
        };
        let held = round.holding.values().filter(|held| met(&held.candidate.record)).map(Holding::value);
        let best = held.max_by_key(Choice::rank);
        // One that gives up is no reason to, as long as the others are a quorum: they go on without it.
        let skips = |id: &NodeId| {
            round.record_vote.ballot.as_ref().is_some_and(|b| b.names(id).any(|v| v.kind == ValueKind::Skip))
        };
        let others_skip = !head.quorum.met_by(|id| !skips(id));
        let idle = round.running.is_none();
        // Who is in this vote does not return to those on sets: these may never end then.
        let others = round.record_vote.ballot.as_ref().is_some_and(|ballot| ballot.heard().next().is_some());
        let last = round.set_vote.said_at.max(round.told_at).max(round.began);
        let left_behind = others && (round.attempt > 0 || lost) && self.now.since(last) >= 2 * self.timing.patience_min;
        let exhausted =
            idle && !planted!(Plant::NeverSkip) && (round.attempt > ATTEMPTS_MAX || others_skip || left_behind);
        let skip = round.skip.as_ref().filter(|_| exhausted).map(|(digest, _)| Value::skip(*digest));
        // Somebody's result may be on its way here: better than none.
        let coming = round.fetching.values().any(|fetching| fetching.active);
        if let Some(value) = best.or(skip.filter(|_| !coming)) {
            round.record_vote.ballot(me).propose(value);
        }
    }

    /// Whether no result that another voter names can come here any more: its holders are gone, or could not give it. Who
    /// was not in attempt 0, or has left it, cannot wait for it then.
    fn names_are_lost(&self) -> bool {
        let Some((round, head)) = self.round.as_ref().zip(self.head.as_ref()) else { return false };
        let gone = |value: &Value| {
            round.skip.as_ref().is_some_and(|(skip, _)| *skip == value.digest)
                || round.fetching.get(&value.digest).is_some_and(|fetching| fetching.failures > FETCH_FAILURES)
        };
        let names = |id: &NodeId| round.record_vote.ballot.iter().flat_map(|b| b.names(id)).collect::<Vec<_>>();
        let others = head.quorum.voters().iter().map(|(id, _)| id).filter(|id| **id != self.me);
        let mut naming = others.map(|id| (id, names(id))).filter(|(_, names)| !names.is_empty()).peekable();
        let lost = |(id, names): (&NodeId, Vec<&Value>)| {
            if self.is_present(id) { names.into_iter().all(gone) } else { self.fault(id, round).is_some() }
        };
        naming.peek().is_some() && naming.all(lost)
    }

    /// One step of the ballot; whether there may be another.
    fn step_record_vote(&mut self) -> bool {
        let patience = self.vote_patience();
        // Results that somebody here names, beside this node itself: after a repair it may have named one that it lost.
        let named = self.named_by_others();
        let awaited = self.awaits_votes();
        let Some((round, head)) = self.round.as_mut().zip(self.head.as_ref()) else { return false };
        let Some((skip, _)) = &round.skip else { return false };
        let fallback = Value::skip(*skip);
        let (holding, fetching, now) = (&round.holding, &round.fetching, self.now);
        // Nobody could give it just now. It may be needed all the same, and is asked for again after a while.
        let failed = |digest: &Digest| {
            !named.contains(digest) || fetching.get(digest).is_some_and(|f| f.failures > 0 && now < f.not_before)
        };
        let usable = |value: &Value| match value.kind {
            ValueKind::Skip => value.digest == fallback.digest,
            ValueKind::Set => false,
            ValueKind::Commit => {
                holding.contains_key(&value.digest) || !(failed(&value.digest) || contradicts_own(holding, value))
            }
        };
        let patient = awaited && self.now.since(round.record_vote.said_at) < patience;
        let Some(ballot) = round.record_vote.ballot.as_mut() else { return false };
        ballot.advance(&head.quorum, usable, &fallback, patient);
        let Some((said, forced)) = ballot.pending().map(|(said, forced)| (said.clone(), forced)) else { return false };
        // A vote for nothing names what may be chosen next: a value that only this node names, and cannot give, would keep
        // the others from ever following it.
        let lacking = !planted!(Plant::EstimateUnheld)
            && said.voted != Some(true)
            && said.value.kind == ValueKind::Commit
            && !round.holding.contains_key(&said.value.digest);
        if !lacking {
            return self.say(Question::RECORD);
        }
        let other = contradicts_own(&round.holding, &said.value);
        let failed = other || failed(&said.value.digest);
        if other && forced {
            // A quorum has named it: it is this node's result that is wrong.
            self.own_fault("its result of an attempt differs from that of a quorum");
            return false;
        }
        if failed && !forced {
            if let Some(ballot) = round.record_vote.ballot.as_mut() {
                ballot.withdraw();
            }
            return true;
        }
        self.fetch(&said.value);
        false
    }

    /// Values of the record vote that voters name who are here.
    fn named_by_others(&self) -> BTreeSet<Digest> {
        let voters = self.head.iter().flat_map(|head| head.quorum.voters()).map(|(id, _)| id);
        let others = voters.filter(|id| **id != self.me && self.is_present(id));
        let ballot = self.round.as_ref().and_then(|round| round.record_vote.ballot.as_ref());
        others.flat_map(|id| ballot.into_iter().flat_map(|b| b.names(id))).map(|value| value.digest).collect()
    }

    /// Whether a voter that is here may still say something in the ballot under way: for those that are gone nobody waits.
    fn awaits_votes(&self) -> bool {
        let Some((round, head)) = self.round.as_ref().zip(self.head.as_ref()) else { return false };
        let Some(ballot) = &round.record_vote.ballot else { return true };
        let own = ballot.said().map(Said::place);
        let others = head.quorum.voters().iter().map(|(id, _)| id).filter(|id| **id != self.me);
        let mut here = others.filter(|id| planted!(Plant::AwaitTheGone) || self.fault(id, round).is_none());
        here.any(|id| ballot.place_of(id) < own)
    }

    /// How long to wait for more than a quorum, by the ballot.
    fn vote_patience(&self) -> u64 {
        let ballot = self.round.as_ref().and_then(|round| round.record_vote.ballot.as_ref()?.said().map(|s| s.ballot));
        let once = PATIENCE_MIN.max(4 * self.slowest_rtt());
        let disturbed = if planted!(Plant::Disturbed) { crate::plant::disturbance() } else { 0 };
        (once << ballot.unwrap_or(0).min(PATIENCE_DOUBLINGS)).min(self.timing.patience_max) + disturbed
    }

    /// Commits what the vote has decided, if its bytes are here.
    fn conclude_vote(&mut self) {
        if let Some((round, head)) = self.round.as_mut().zip(self.head.as_ref())
            && let Some(ballot) = &mut round.record_vote.ballot
        {
            ballot.observe(&head.quorum);
        }
        let Some(round) = &self.round else { return };
        let Some((ballot, value)) = round.record_vote.ballot.as_ref().and_then(|ballot| ballot.decided()) else {
            return;
        };
        let deciders = |(_, (vote, _)): &(&NodeId, &(Vote, Vec<u8>))| {
            (vote.ballot == ballot || planted!(Plant::MixedProof)) && vote.voted && vote.value == *value
        };
        let value = value.clone();
        let signed: Vec<(&NodeId, &(Vote, Vec<u8>))> = round.record_vote.votes.iter().filter(deciders).collect();
        let Some(vote) = signed.first().map(|(_, (vote, _))| vote.clone()) else { return };
        let certificate =
            certificate::of_votes(round.lineage, &vote, signed.iter().map(|(id, (_, bytes))| (*id, bytes)));
        // Kept as it is now: while this node ends its inner step, the others' newer votes take the place of these.
        if let Some(round) = &mut self.round {
            round.proof = Some(certificate.clone());
        }
        self.conclude(value.digest, certificate);
    }

    /// The record is decided: commits it if it is held; else fetches it, or waits for those ahead.
    fn conclude(&mut self, digest: Digest, certificate: Certificate) {
        let Some(round) = &self.round else { return };
        let held = round.holding.get(&digest).map(|held| (Some(held.candidate.key), held.candidate.record.clone()));
        let skip = round.skip.as_ref().filter(|(skip, _)| *skip == digest).map(|(_, record)| (None, record.clone()));
        let Some((key, record)) = held.or(skip) else {
            let known = round.record_vote.ballot.as_ref().and_then(|b| b.heard().find(|v| v.digest == digest).cloned());
            let Some(value) = known else { return };
            if contradicts_own(&round.holding, &value) {
                self.own_fault("its result of the decided attempt differs from the decided one");
            } else {
                self.fetch(&value);
            }
            return;
        };
        if !self.may_apply() {
            return;
        }
        self.stop_training();
        if let Some(running) = self.round.as_mut().and_then(|round| round.running.take())
            && Some(running.key) != key
        {
            self.out.push(Output::Abandon { key: running.key });
        }
        let at = record.contributors.binary_search_by(|c| c.member.cmp(&self.me)).ok();
        let taken = at.and_then(|at| record.contributors.get(at)).map(|own| own.ready);
        let mine = (taken.is_some() || planted!(Plant::ForgetLeftOut)) && !planted!(Plant::KeepTakenIn);
        assert!(key.is_some() || !planted!(Plant::PanicAtSkip), "planted");
        if mine {
            self.taken_in(taken);
        }
        let (token, since) = (self.next_token(), self.now);
        let (decided, proof) = (record.clone(), certificate.clone());
        self.out.push(Output::Commit { token, key, record: decided, certificate: proof, mine });
        if let Some(round) = &mut self.round {
            round.committing = Some(Committing { token, record, certificate, since });
        }
    }

    /// Own inner steps that are not counted in this record are ended before the state changes under them, so that they
    /// count in the next. Who hangs in a step does not hold up itself for long.
    fn may_apply(&mut self) -> bool {
        self.cut_short();
        let (now, patience) = (self.now, self.timing.patience_min);
        let Some(round) = self.round.as_mut().filter(|round| round.training == Training::Running) else { return true };
        let since = *round.decided_at.get_or_insert(now);
        now.since(since) >= patience
    }
}
