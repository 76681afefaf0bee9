//! The members of an attempt: attempt 0 has all that the record expects, and each later one has a set that voters
//! decide by vote (`docs/protocol/4-agreement.md` §4.3).

use super::attempt::set_digest;
use super::ctx::Ctx;
use super::decision::{FETCH_FAILURES, take_steps};
use super::io::Refusal;
use super::outbox::Out;
use super::round::{Round, Stage, Training};
use super::succession::{SignedReady, merging};
use super::vote::Instance;
use super::vote_state::OwnVotes;
use crate::message::{Message, Question, Start, Value, ValueKind, member_bits, member_indices};
use crate::mutation::{Mutation, mutated};
use crate::update::lattice;
use crate::{Digest, NodeId};

/// Attempts after attempt 0 at one round before voters enter with SKIP; in a flock of several rows, where somebody may
/// die in most of them, there are more. Sets of the last one are made of voters only.
const ATTEMPTS_MAX: u32 = 3;
const ATTEMPTS_OF_ROWS: u32 = 8;

impl Round {
    /// The number of the last attempt.
    pub fn attempts_max(&self) -> u32 {
        let rows = !self.head.grid.is_one_row() && !mutated!(Mutation::ThreeAttempts);
        if rows { ATTEMPTS_OF_ROWS } else { ATTEMPTS_MAX }
    }

    /// Whether the attempt that is due is to be formed now, and nothing better is to be had.
    pub fn may_gather(&mut self, ctx: &Ctx, out: &mut Out) -> bool {
        if self.record_vote.entered() || self.attempts.running.is_some() || self.results.proof.is_some() {
            return false;
        }
        let named = self
            .record_vote
            .heard()
            .filter(|value| value.kind == ValueKind::Commit)
            .max_by_key(|value| value.rank())
            .cloned();
        if let Some(value) = named {
            // A voter holds a result: having it beats making another.
            let given_up = self.results.fetching.get(&value.digest).is_some_and(|f| f.failures > FETCH_FAILURES);
            self.fetch(&value, ctx, out);
            if !given_up && ctx.votes() {
                return false;
            }
        }
        self.note_quorum_ready(ctx);
        self.cut_short_if_late(ctx, out);
        true
    }

    /// Whether another member's READY merges the lineage that this node's merges, and goes before it.
    pub fn has_rival(&self, ctx: &Ctx) -> bool {
        let merges = self.part.ready.as_ref().is_some_and(|own| own.signed.ready.merges.is_some());
        let present = self.task.members.iter().filter(|id| **id == ctx.me || ctx.is_present(id));
        merges && ctx.rivals(self, present).contains(&ctx.me)
    }

    /// Begins the attempt that is due, or works on the set of the next one.
    pub fn gather(&mut self, ctx: &Ctx, out: &mut Out, own_votes: &mut OwnVotes) {
        if self.attempts.number == 0 {
            self.gather_expected(ctx, out);
        }
        // Attempt 0 may have failed this very moment.
        if self.attempts.number == 0 {
            return;
        }
        if ctx.votes() {
            self.vote_on_set(ctx, out, own_votes);
        } else {
            self.begin_told(ctx, out);
        }
    }

    /// Notes when a quorum of voters is READY: the others' time begins to run then.
    fn note_quorum_ready(&mut self, ctx: &Ctx) {
        if self.attempts.quorum_ready_at.is_none() && self.head.quorum.met_by(|id| ctx.ready_of(id, self).is_some()) {
            self.attempts.quorum_ready_at = Some(ctx.mark());
        }
    }

    /// Ends this node's inner steps in time to be counted, because the others are done.
    fn cut_short_if_late(&mut self, ctx: &Ctx, out: &mut Out) {
        let trains = self.part.training == Training::Running && !self.part.cut_short;
        if trains && ctx.allowance(self).is_some_and(|allowed| ctx.is_half_over(&allowed, ctx.votes())) {
            self.cut_short(out);
        }
    }

    /// Begins attempt 0 with the last READY of the expected members, or fails it when all missing members are lost or
    /// late.
    fn gather_expected(&mut self, ctx: &Ctx, out: &mut Out) {
        if !self.head.quorum.met_by(|id| self.task.expected.binary_search(id).is_ok()) {
            // The members that came last time are no quorum of this record's voters: the members of the attempt are
            // voted on.
            if self.attempts.quorum_ready_at.is_some() {
                self.next_attempt();
            }
            return;
        }
        let awaited = if self.still_awaits(ctx) {
            self.attempts.awaited
        } else {
            let incomplete = self.task.expected.iter().find(|id| !ctx.is_complete(id, self)).copied();
            // All are here. A member that merges a lineage that another merges, too, says its READY anew.
            incomplete.or_else(|| ctx.rivals(self, self.task.expected.iter()).first().copied())
        };
        if !self.task.expected.is_empty() && awaited.is_none() {
            // The voters choose which of the two sits out, and tell all others. Where they begin, they have not heard of it.
            let apart = self.expects_two_apart(ctx);
            if apart && ctx.votes() {
                return self.next_attempt();
            }
            if apart && !self.voters_reduce(ctx) {
                return;
            }
            if self.task.expected.contains(&ctx.me) {
                let ready: Vec<SignedReady> =
                    self.task.expected.iter().filter_map(|id| ctx.ready_of(id, self)).cloned().collect();
                self.start_attempt(0, &ready, ctx, out);
            }
            return;
        }
        self.attempts.awaited = awaited;
        let Some(allowed) = ctx.allowance(self) else { return };
        // Voters alone decide whom attempt 0 does not wait for. A learner that left it would hold up those that begin it with
        // a READY that comes at the last moment: nobody hears from a learner that it has left.
        let judges = ctx.votes() || mutated!(Mutation::LearnersJudge);
        let late = |id: &NodeId| judges && ctx.is_late(&allowed, ctx.is_voter(id)) || ctx.fault(id, self).is_some();
        // The next attempt leaves out all missing members: that is worth it when none of them is about to come.
        let mut missing = self.task.expected.iter().filter(|id| !ctx.is_complete(id, self));
        let all_late = missing.all(late) && ctx.rivals(self, self.task.expected.iter()).iter().all(late);
        if all_late && !mutated!(Mutation::NoDeadline) {
            self.next_attempt();
        }
    }

    /// Whether attempt 0 still waits for the member that it was last seen to wait for.
    pub fn still_awaits(&self, ctx: &Ctx) -> bool {
        let forms = self.attempts.number == 0 && self.attempts.running.is_none();
        forms && self.attempts.awaited.is_some_and(|id| !ctx.is_complete(&id, self))
    }

    /// Ends the attempt. The set of the next one is voted on, unless there were enough.
    pub fn next_attempt(&mut self) {
        if self.attempts.number <= self.attempts_max() {
            self.go_to_attempt(self.attempts.number + 1);
        }
    }

    fn go_to_attempt(&mut self, number: u32) {
        self.attempts.number = number;
        self.attempts.told = None;
        self.set_vote = Instance::new(self.question(number));
    }

    /// Goes along to the attempt whose set another voter votes on, if it is a later one. False if it is not for this
    /// node.
    pub fn turn_to_attempt(&mut self, attempt: u32, ctx: &Ctx, out: &mut Out) -> bool {
        if attempt == 0 || attempt > self.attempts_max() || attempt < self.attempts.number || self.record_vote.entered()
        {
            return false;
        }
        if attempt > self.attempts.number && mutated!(Mutation::StayBehind) {
            return false;
        }
        if attempt > self.attempts.number {
            // A result that is complete here is about to be named: no other attempt is worth more. If this node may not
            // name it, no other node hears of it, and the others would wait for this node.
            let names = ctx.may_speak() || mutated!(Mutation::MutesStay);
            let stays = |stage: Stage| match stage {
                Stage::Reducing => false,
                Stage::Speculating { .. } => true,
                Stage::Rebuilt => names,
            };
            if self.attempts.running.as_ref().is_some_and(|running| stays(running.stage)) {
                return false;
            }
            self.leave_attempt("the others have begun another attempt", None, out);
            // The result of the attempt is kept.
            self.attempts.running = None;
            self.go_to_attempt(attempt);
        }
        true
    }

    /// The contributions that this node could average now, by ascending member: without rows from which no sum would
    /// come to the voters'. Late attempts do without learners: one
    /// that says different READYs to different voters would keep them apart for ever.
    fn live_ready<'a>(&'a self, ctx: &'a Ctx) -> Vec<&'a SignedReady> {
        let counts = |id: &NodeId| self.attempts.number < self.attempts_max() || ctx.is_voter(id);
        let live = |id: &&NodeId| counts(id) && ctx.is_present(id) && ctx.fault(id, self).is_none();
        let ready: Vec<&SignedReady> =
            self.task.members.iter().filter(live).filter_map(|id| ctx.ready_of(id, self)).collect();
        let rivals = ctx.rivals(self, ready.iter().map(|c| &c.member));
        let agree = ready.into_iter().filter(|c| !rivals.contains(&c.member));
        let mut live = self.within_reach(agree.collect(), ctx);
        if !self.head.grid.is_one_row() && !mutated!(Mutation::CutOffRows) {
            let cut_off = lattice::without_way(&self.head.grid, live.iter().map(|c| &c.member));
            live.retain(|c| cut_off.binary_search(&c.member).is_err());
        }
        live
    }

    /// The contributions of a set, by ascending member, if this node has all of their READYs and they can be averaged.
    fn contributions_of<'a>(&'a self, value: &Value, ctx: &'a Ctx) -> Option<Vec<&'a SignedReady>> {
        let ready = |index: usize| ctx.ready_of(self.task.members.get(index)?, self);
        let all: Option<Vec<&SignedReady>> = member_indices(&value.members).map(ready).collect();
        all.filter(|all| {
            let merging = all.iter().filter_map(|c| Some((c.member, c.ready.merges?)));
            set_digest(all) == value.digest && merging::rivals(&self.head.digest, merging).is_empty()
        })
    }

    fn vote_on_set(&mut self, ctx: &Ctx, out: &mut Out, own_votes: &mut OwnVotes) {
        if self.attempts.number > self.attempts_max() {
            return;
        }
        if ctx.may_speak() {
            take_steps(|| self.step_set_vote(ctx, out, own_votes));
        }
        if let Some(ballot) = &mut self.set_vote.ballot {
            ballot.observe(&self.head.quorum);
        }
        let decided = self.set_vote.ballot.as_ref().and_then(|ballot| ballot.decided()).map(|(_, v)| v.clone());
        if let Some(value) = decided {
            self.begin_decided(&value, true, ctx, out);
        }
    }

    /// Takes one step of the ballot on the set; returns whether there may be another.
    fn step_set_vote(&mut self, ctx: &Ctx, out: &mut Out, own_votes: &mut OwnVotes) -> bool {
        let me = ctx.me;
        let head = self.head.clone();
        let (met, own, known) = {
            let ready = self.live_ready(ctx);
            let live = |id: &NodeId| ready.binary_search_by(|c| c.member.cmp(id)).is_ok();
            let met = mutated!(Mutation::ThinContributors) || head.quorum.met_by(live);
            let own = ctx.set_value(self.attempts.number, &ready).filter(|own| own.contributors > 0);
            (met, own, self.useful_sets(&ready, ctx))
        };
        let Some(own) = own else { return false };
        let entered = self.set_vote.entered();
        let grudge = entered && mutated!(Mutation::KeepSpoilersOut);
        if !met && !grudge && self.forgive() {
            return true;
        }
        if !entered && (!met || !ctx.may_attempt(self)) {
            return false;
        }
        let said = self.set_vote.ballot.as_ref().and_then(|ballot| ballot.said()).map(|said| said.value.clone());
        let Some(fallback) = (if met { Some(own.clone()) } else { said }) else { return false };
        let patient = ctx.awaits_more(self.set_vote.said_at, ctx.set_patience());
        let attempt = self.attempts.number;
        let ballot = self.set_vote.ballot(me);
        if !entered {
            ballot.propose(own.clone());
        }
        let usable = |value: &Value| value.digest == fallback.digest || known.contains(&value.digest);
        ballot.advance(&head.quorum, usable, &fallback, patient);
        ballot.pending().is_some() && self.say(attempt, ctx, out, own_votes)
    }

    /// The sets that voters have named, of READYs that this node holds of live members. A set that is no quorum of voters
    /// leads to no record, nor does a set with a member that is gone.
    fn useful_sets(&self, ready: &[&SignedReady], ctx: &Ctx) -> Vec<Digest> {
        // Most voters name the same set.
        let mut heard: Vec<&Value> = Vec::new();
        for value in self.set_vote.heard() {
            if !heard.contains(&value) {
                heard.push(value);
            }
        }
        let useful = |value: &&Value| {
            let contributions = self.contributions_of(value, ctx);
            contributions.is_some_and(|all| {
                let live = all.iter().all(|c| ready.binary_search_by(|live| live.member.cmp(&c.member)).is_ok());
                let met = || self.head.quorum.met_by(|id| all.iter().any(|c| c.member == *id));
                live && (mutated!(Mutation::ThinContributors) || met())
            })
        };
        heard.into_iter().filter(useful).map(|value| value.digest).collect()
    }

    /// Forgives members that have spoiled an attempt: better with them than not at all. Returns whether there were any.
    fn forgive(&mut self) -> bool {
        let any = !(self.distrust.ruled_out.is_empty() && self.distrust.suspected.is_empty());
        self.distrust.ruled_out.clear();
        self.distrust.suspected.clear();
        any
    }

    /// Begins the attempt of a decided set when its READYs are here, and tells members that do not vote.
    fn begin_decided(&mut self, value: &Value, tell: bool, ctx: &Ctx, out: &mut Out) {
        let members: Vec<NodeId> =
            member_indices(&value.members).filter_map(|index| self.task.members.get(index)).copied().collect();
        if self.attempts.told.as_ref() != Some(value) {
            (self.attempts.told, self.attempts.told_at) = (Some(value.clone()), ctx.mark());
            if tell {
                self.tell_set(ctx, out);
            }
        }
        if !ctx.may_attempt(self) {
            return;
        }
        if !members.contains(&ctx.me) {
            self.cut_short(out);
            return self.check_without_me(&members, ctx, out);
        }
        let contributions = self.contributions_of(value, ctx);
        if let Some(contributions) = contributions.map(|all| all.into_iter().cloned().collect::<Vec<_>>()) {
            return self.start_attempt(value.attempt, &contributions, ctx, out);
        }
        let lost = ctx.is_ready_lost(self.attempts.told_at);
        if lost || members.iter().any(|id| ctx.fault(id, self).is_some()) {
            self.fail_attempt("a contribution of the decided set is gone", None, ctx, out);
        }
    }

    /// Tells the decided set to those of its members that do not vote.
    pub fn tell_set(&self, ctx: &Ctx, out: &mut Out) {
        let Some(value) = self.attempts.told.clone().filter(|_| ctx.votes()) else { return };
        let votes =
            |id: &NodeId| ctx.peers.get(id).is_some_and(|peer| self.head.quorum.has(id, peer.vote_state.incarnation));
        let members = member_indices(&value.members).filter_map(|index| self.task.members.get(index)).copied();
        let learners: Vec<NodeId> =
            members.filter(|id| !votes(id) && ctx.is_connected(id) && ctx.is_neighbour(id)).collect();
        let question = self.question(value.attempt);
        out.send_to(ctx, &learners, &Message::Start(Start { question, value }));
    }

    /// Waits for the result of an attempt that the others make without this node, as long as they are there.
    fn check_without_me(&mut self, members: &[NodeId], ctx: &Ctx, out: &mut Out) {
        if members.iter().any(|id| ctx.fault(id, self).is_some()) {
            self.fail_attempt("a member of the decided set is gone", None, ctx, out);
        }
    }

    /// Hears from a voter the decided set of an attempt.
    ///
    /// # Errors
    /// The set is not for this node now.
    pub fn hear_start(&mut self, from: NodeId, start: Start, ctx: &Ctx, out: &mut Out) -> Result<(), Refusal> {
        let Start { question, value } = start;
        let voter = mutated!(Mutation::AnyStarter) || ctx.is_voter(&from);
        let asked = self.question(question.instance) == question && question.instance != Question::RECORD;
        if !asked || !voter || ctx.votes() {
            return Err(Refusal::Stale);
        }
        if self.turn_to_attempt(question.instance, ctx, out) && self.attempts.told.as_ref() != Some(&value) {
            (self.attempts.told, self.attempts.told_at) = (Some(value), ctx.now);
        }
        Ok(())
    }

    /// Begins the attempt that a voter has told this node of, which does not vote.
    fn begin_told(&mut self, ctx: &Ctx, out: &mut Out) {
        if let Some(value) = self.attempts.told.clone() {
            self.begin_decided(&value, false, ctx, out);
        }
    }
}

impl Ctx {
    /// Those of some members whose READY merges a lineage that another of them merges, too, with a READY that goes
    /// before it.
    pub fn rivals<'a>(&'a self, round: &'a Round, members: impl Iterator<Item = &'a NodeId>) -> Vec<NodeId> {
        let merging = members.filter_map(|id| Some((*id, self.ready_of(id, round)?.ready.merges?)));
        merging::rivals(&round.head.digest, merging)
    }

    /// Whether a member's contribution can be counted on: both the READY and the member are here.
    fn is_complete(&self, id: &NodeId, round: &Round) -> bool {
        self.ready_of(id, round).is_some() && self.is_present(id)
    }

    /// A set as a value of the vote on it.
    fn set_value(&self, attempt: u32, contributions: &[&SignedReady]) -> Option<Value> {
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
}
