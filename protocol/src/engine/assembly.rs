//! Who makes an attempt: attempt 0 all whom the record expects, each later one a set that voters decide by vote
//! (`docs/protocol/4-agreement.md` §4.3).

use super::Engine;
use super::attempt::set_digest;
use super::clock::Moment;
use super::decision::{ATTEMPTS_MAX, Instance};
use super::round::{Round, Training};
use super::succession::{SignedReady, merging};
use crate::message::{Message, Question, Start, Value, ValueKind, member_bits, member_indices};
use crate::plant::{Plant, planted};
use crate::{Digest, NodeId};

/// From this attempt on sets are made of voters only.
const VOTERS_ONLY: u32 = 3;
/// Steps of a ballot after one input.
const STEPS_MAX: usize = 8;
/// Nobody waits for a learner longer than this beyond the voters, in microseconds.
const LEARNER_GRACE: (u64, u64) = (2_000_000, 30_000_000);

/// How long attempt 0 waits, in microseconds from when a quorum is READY.
struct Allowance {
    since: Moment,
    voters: u64,
    learners: u64,
    /// By so much learners may have begun later.
    lag: u64,
}

impl Allowance {
    /// When nobody waits for a voter, or for a learner, any more.
    fn end(&self, votes: bool) -> Moment {
        self.since.plus(if votes { self.voters } else { self.learners + self.lag })
    }

    /// When such a one ends its inner steps. How long voters take a learner to lag behind it does not know.
    fn half(&self, votes: bool) -> Moment {
        self.since.plus(if votes { self.voters } else { self.learners } / 2)
    }
}

impl Engine {
    /// Begins the attempt that is due, or works on the set of the next one.
    pub(super) fn gather(&mut self) {
        let Some(round) = &self.round else { return };
        let named = round
            .record_vote
            .ballot
            .as_ref()
            .and_then(|b| b.heard().filter(|v| v.kind == ValueKind::Commit).max_by_key(|v| v.rank()).cloned());
        if round.record_vote.entered() || round.running.is_some() || round.proof.is_some() {
            return;
        }
        if let Some(value) = named {
            // Somebody holds a result: having it beats making another.
            let given_up = round.fetching.get(&value.digest).is_some_and(|f| f.failures > ATTEMPTS_MAX);
            self.fetch(&value);
            if !given_up && self.votes() {
                return;
            }
        }
        self.note_quorum_ready();
        self.cut_short_if_late();
        self.give_way_to_rival();
        if self.round.as_ref().is_some_and(|round| round.attempt == 0) {
            self.gather_expected();
        }
        // Attempt 0 may have failed this very moment.
        if self.round.as_ref().is_none_or(|round| round.attempt == 0) {
            return;
        }
        if self.votes() {
            self.vote_on_set();
        } else {
            self.begin_told();
        }
    }

    /// When a quorum of voters is READY the others' time begins to run.
    fn note_quorum_ready(&mut self) {
        let Some((round, head)) = self.round.as_ref().zip(self.head.as_ref()) else { return };
        let ready = head.quorum.met_by(|id| self.ready_of(id, round).is_some());
        let now = self.now;
        if let Some(round) = self.round.as_mut().filter(|round| round.quorum_ready_at.is_none() && ready) {
            round.quorum_ready_at = Some(now);
        }
    }

    /// How long a quorum waits for voters and for learners at most. A voter that moves may take as long again as the quorum
    /// took; a learner gets a tenth of that, and the time by which it may have begun later.
    fn allowance(&self, round: &Round) -> Option<Allowance> {
        let since = round.quorum_ready_at?;
        let took = since.since(round.began);
        // A contribution to a short round is not worth a long wait, but a loaded machine may be a second or two behind.
        let voters_least = (self.timing.patience_min / 2).max(2 * self.slowest_rtt());
        let voters = took.clamp(voters_least.min(self.timing.patience_max), self.timing.patience_max);
        let least = LEARNER_GRACE.0.max(2 * self.slowest_rtt()).min(LEARNER_GRACE.1);
        let learners = (took / 10).clamp(least, LEARNER_GRACE.1).min(voters);
        let lag = self.learners_lag().min(LEARNER_GRACE.1);
        Some(Allowance { since, voters, learners, lag })
    }

    /// When time alone changes what this node does to complete attempt 0: half of what is allowed, and all of it.
    pub(super) fn assembly_deadlines(&self, round: &Round) -> impl Iterator<Item = Moment> + use<> {
        let of = |allowed: Allowance| [true, false].map(|votes| [allowed.half(votes), allowed.end(votes)]);
        let allowed = self.allowance(round).filter(|_| round.attempt == 0);
        allowed.into_iter().flat_map(of).flatten()
    }

    /// The others are done: ends the own inner steps in time to be counted.
    fn cut_short_if_late(&mut self) {
        let votes = self.votes();
        let Some(round) = self.round.as_ref().filter(|r| r.training == Training::Running && !r.cut_short) else {
            return;
        };
        if self.allowance(round).is_some_and(|allowed| allowed.half(votes).passed(self.now)) {
            self.cut_short();
        }
    }

    /// Attempt 0: begins with the last READY of those expected, or fails with the first that is lost or too late.
    fn gather_expected(&mut self) {
        let Some((round, head)) = self.round.as_ref().zip(self.head.as_ref()) else { return };
        if !head.quorum.met_by(|id| round.expected.binary_search(id).is_ok()) {
            // Those who came last time are no quorum of this record's voters: who makes the attempt is voted on.
            if round.quorum_ready_at.is_some() {
                self.next_attempt();
            }
            return;
        }
        let awaited = if self.still_awaits() {
            round.awaited
        } else {
            let incomplete = round.expected.iter().find(|id| !self.is_complete(id, round)).copied();
            // All are here: who merges what another merges, too, says its READY anew.
            incomplete.or_else(|| self.rivals(round, round.expected.iter()).first().copied())
        };
        if !round.expected.is_empty() && awaited.is_none() {
            if round.expected.contains(&self.me) {
                let ready: Vec<SignedReady> =
                    round.expected.iter().filter_map(|id| self.ready_of(id, round)).cloned().collect();
                self.start_attempt(0, &ready);
            }
            return;
        }
        if let Some(round) = &mut self.round {
            round.awaited = awaited;
        }
        let Some(round) = &self.round else { return };
        let Some(allowed) = self.allowance(round) else { return };
        let votes = |id: &NodeId| self.head.as_ref().is_some_and(|head| head.quorum.incarnation(id).is_some());
        let late = |id: &NodeId| allowed.end(votes(id)).passed(self.now) || self.fault(id, round).is_some();
        // The next attempt leaves out all that are missing: worth it when none of them is about to come.
        let rivals = self.rivals(round, round.expected.iter());
        let mut missing = round.expected.iter().filter(|id| rivals.contains(id) || !self.is_complete(id, round));
        if missing.all(late) && !planted!(Plant::NoDeadline) {
            self.next_attempt();
        }
    }

    /// Whether a member's contribution can be counted on: its READY is here, and so is it.
    fn is_complete(&self, id: &NodeId, round: &Round) -> bool {
        self.ready_of(id, round).is_some() && self.is_present(id)
    }

    /// Whether attempt 0 still waits for the member for which it was seen to wait last.
    pub(super) fn still_awaits(&self) -> bool {
        let Some(round) = self.round.as_ref().filter(|round| round.attempt == 0 && round.running.is_none()) else {
            return false;
        };
        round.awaited.is_some_and(|id| !self.is_complete(&id, round))
    }

    /// The attempt is over: the set of the next one is voted on, unless there were enough.
    pub(super) fn next_attempt(&mut self) {
        let Some(round) = &mut self.round else { return };
        if round.attempt <= ATTEMPTS_MAX {
            round.attempt += 1;
            round.set_vote = Instance::default();
            round.told = None;
        }
    }

    /// Somebody votes on the set of this attempt: goes along if it is a later one. False if it is not for this node.
    pub(super) fn turn_to_attempt(&mut self, attempt: u32) -> bool {
        let Some(round) = &self.round else { return false };
        if attempt == 0 || attempt > ATTEMPTS_MAX || attempt < round.attempt || round.record_vote.entered() {
            return false;
        }
        if attempt > round.attempt && planted!(Plant::StayBehind) {
            return false;
        }
        if attempt > round.attempt {
            // A result that is complete here is about to be named: no other attempt is worth more.
            let complete = |running: &super::attempt::Attempt| running.stage != super::attempt::Stage::Reducing;
            if round.running.as_ref().is_some_and(complete) {
                return false;
            }
            self.leave_attempt("the others have begun another attempt", None);
            if let Some(round) = &mut self.round {
                round.attempt = attempt;
                round.set_vote = Instance::default();
                round.told = None;
            }
        }
        true
    }

    /// The contributions that this node could average now, by ascending member. Late attempts do without those who do
    /// not vote: one that says different READYs to different voters would keep them apart for ever.
    fn live_ready(&self, round: &Round) -> Vec<SignedReady> {
        let votes = |id: &NodeId| self.head.as_ref().is_some_and(|head| head.quorum.incarnation(id).is_some());
        let counts = |id: &NodeId| round.attempt < VOTERS_ONLY || votes(id);
        let live = |id: &&NodeId| counts(id) && self.is_present(id) && self.fault(id, round).is_none();
        let ready: Vec<&SignedReady> =
            round.members.iter().filter(live).filter_map(|id| self.ready_of(id, round)).collect();
        let rivals = self.rivals(round, ready.iter().map(|c| &c.member));
        self.within_reach(round, ready.into_iter().filter(|c| !rivals.contains(&c.member)).cloned().collect())
    }

    /// A set as a value of the vote on it.
    fn set_value(&self, attempt: u32, contributions: &[SignedReady]) -> Option<Value> {
        let head = self.head.as_ref()?;
        let indices = contributions.iter().filter_map(|c| head.record.member_index(&c.member));
        let digest = set_digest(contributions);
        Some(Value {
            kind: ValueKind::Set,
            digest,
            tokens: contributions.iter().fold(0u64, |sum, c| sum.saturating_add(c.ready.tokens)),
            contributors: contributions.len() as u32,
            attempt,
            set: digest,
            members: member_bits(indices),
        })
    }

    /// The contributions of a set, by ascending member, if this node has all of their READYs and they can be averaged.
    fn contributions_of(&self, round: &Round, value: &Value) -> Option<Vec<SignedReady>> {
        let ready = |index: usize| self.ready_of(round.members.get(index)?, round).cloned();
        let all: Option<Vec<SignedReady>> = member_indices(&value.members).map(ready).collect();
        all.filter(|all| {
            let merging = all.iter().filter_map(|c| Some((c.member, c.ready.merges?)));
            set_digest(all) == value.digest && merging::rivals(&round.parent, merging).is_empty()
        })
    }

    fn vote_on_set(&mut self) {
        if self.round.as_ref().is_none_or(|round| round.attempt > ATTEMPTS_MAX) {
            return;
        }
        if self.may_speak() {
            for _ in 0..STEPS_MAX {
                if !self.step_set_vote() {
                    break;
                }
            }
        }
        if let Some((round, head)) = self.round.as_mut().zip(self.head.as_ref())
            && let Some(ballot) = &mut round.set_vote.ballot
        {
            ballot.observe(&head.quorum);
        }
        let Some(round) = &self.round else { return };
        let decided = round.set_vote.ballot.as_ref().and_then(|ballot| ballot.decided()).map(|(_, v)| v.clone());
        if let Some(value) = decided {
            self.begin_decided(&value, true);
        }
    }

    /// One step of the ballot on the set; whether there may be another.
    fn step_set_vote(&mut self) -> bool {
        let me = self.me;
        let Some((round, head)) = self.round.as_ref().zip(self.head.as_ref()) else { return false };
        let ready = self.live_ready(round);
        let met = planted!(Plant::ThinContributors) || head.quorum.met_by(|id| ready.iter().any(|c| c.member == *id));
        let Some(own) = self.set_value(round.attempt, &ready).filter(|own| own.contributors > 0) else { return false };
        let entered = round.set_vote.entered();
        let grudge = entered && planted!(Plant::KeepGrudge);
        if !met && !grudge && self.forgive() {
            return true;
        }
        let Some((round, head)) = self.round.as_ref().zip(self.head.as_ref()) else { return false };
        if !entered && (!met || self.now < round.not_before) {
            return false;
        }
        // Most name the same.
        let mut heard: Vec<&Value> = Vec::new();
        for value in round.set_vote.ballot.iter().flat_map(|ballot| ballot.heard()) {
            if !heard.contains(&value) {
                heard.push(value);
            }
        }
        // A set that is no quorum of voters leads to no record, nor does one with a member that is gone.
        let useful = |value: &&Value| {
            let contributions = self.contributions_of(round, value);
            contributions.is_some_and(|all| {
                let live = all.iter().all(|c| ready.iter().any(|live| live.member == c.member));
                let met = || head.quorum.met_by(|id| all.iter().any(|c| c.member == *id));
                live && (planted!(Plant::ThinContributors) || met())
            })
        };
        let known: Vec<Digest> = heard.into_iter().filter(useful).map(|value| value.digest).collect();
        let said = round.set_vote.ballot.as_ref().and_then(|ballot| ballot.said()).map(|said| said.value.clone());
        let Some(fallback) = (if met { Some(own.clone()) } else { said }) else { return false };
        let patience = 4 * self.slowest_rtt().max(75_000);
        let patient = self.now.since(round.set_vote.said_at) < patience;
        let attempt = round.attempt;
        let Some((round, head)) = self.round.as_mut().zip(self.head.as_ref()) else { return false };
        let ballot = round.set_vote.ballot(me);
        if !entered {
            ballot.propose(own.clone());
        }
        let usable = |value: &Value| value.digest == fallback.digest || known.contains(&value.digest);
        ballot.advance(&head.quorum, usable, &fallback, patient);
        ballot.pending().is_some() && self.say(attempt)
    }

    /// Better with somebody who has spoiled an attempt than not at all; whether there was anybody.
    fn forgive(&mut self) -> bool {
        let Some(round) = &mut self.round else { return false };
        let any = !(round.ruled_out.is_empty() && round.suspected.is_empty());
        round.ruled_out.clear();
        round.suspected.clear();
        any
    }

    /// The set is decided: begins the attempt when its READYs are here, and tells members that do not vote.
    fn begin_decided(&mut self, value: &Value, tell: bool) {
        let Some(round) = &self.round else { return };
        let members: Vec<NodeId> =
            member_indices(&value.members).filter_map(|index| round.members.get(index)).copied().collect();
        if round.told.as_ref() != Some(value) {
            let now = self.now;
            if let Some(round) = &mut self.round {
                round.told = Some(value.clone());
                round.told_at = now;
            }
            if tell {
                self.tell_set();
            }
        }
        let Some(round) = &self.round else { return };
        if self.now < round.not_before {
            return;
        }
        if !members.contains(&self.me) {
            self.cut_short();
            return self.check_without_me(&members);
        }
        if let Some(contributions) = self.contributions_of(round, value) {
            return self.start_attempt(value.attempt, &contributions);
        }
        // A READY is said again and again; one that does not come was lost with the process that made it.
        let lost = self.now.since(round.told_at) >= 3 * self.timing.repeat.max(self.slowest_rtt());
        if lost || members.iter().any(|id| self.fault(id, round).is_some()) {
            self.fail_attempt("a contribution of the decided set is gone", None);
        }
    }

    /// Tells the decided set to those of its members that do not vote.
    pub(super) fn tell_set(&mut self) {
        let Some((round, head)) = self.round.as_ref().zip(self.head.as_ref()) else { return };
        let Some(value) = round.told.clone().filter(|_| self.votes()) else { return };
        let votes = |id: &NodeId| self.peers.get(id).is_some_and(|peer| head.quorum.has(id, peer.incarnation));
        let members = member_indices(&value.members).filter_map(|index| round.members.get(index)).copied();
        let learners: Vec<NodeId> = members.filter(|id| !votes(id) && self.is_present(id) && *id != self.me).collect();
        if let Some(question) = self.question(value.attempt) {
            self.send_to(&learners, &Message::Start(Start { question, value }));
        }
    }

    /// The others make this attempt without this node: it waits for their result, as long as they are there.
    fn check_without_me(&mut self, members: &[NodeId]) {
        let Some(round) = &self.round else { return };
        if members.iter().any(|id| self.fault(id, round).is_some()) {
            self.fail_attempt("a member of the decided set is gone", None);
        }
    }

    pub(super) fn hear_start(&mut self, from: NodeId, start: Start) {
        let Start { question, value } = start;
        let voter = planted!(Plant::AnyStarter)
            || self.head.as_ref().is_some_and(|head| head.quorum.incarnation(&from).is_some());
        let asked = self.question(question.instance);
        if asked.as_ref() != Some(&question) || question.instance == Question::RECORD || !voter || self.votes() {
            return self.stale(from);
        }
        if self.turn_to_attempt(question.instance)
            && let Some(round) = &mut self.round
        {
            round.told = Some(value);
        }
    }

    /// A member that does not vote begins what a voter has told it.
    fn begin_told(&mut self) {
        if let Some(value) = self.round.as_ref().and_then(|round| round.told.clone()) {
            self.begin_decided(&value, false);
        }
    }
}
