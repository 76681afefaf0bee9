//! One attempt: reducing, applying to a copy, holding the result; and leaving an attempt that cannot end.

use super::clock::Moment;
use super::conduct::Conduct;
use super::ctx::Ctx;
use super::io::{AttemptKey, Contribution, Notice, Output};
use super::outbox::Out;
use super::results::Holding;
use super::round::{Attempt, Round, Stage};
use super::succession::{self, SignedReady};
use crate::message::{Awaits, Phase};
use crate::mutation::{Mutation, mutated};
use crate::outer::Rule;
use crate::update::{Stated, lattice};
use crate::{Digest, NodeId, record};
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Failures that name the same suspect before it is ruled out although it looks alive.
const SUSPICIONS_MAX: u32 = 3;

/// The name of a set: the members that take part, and the READY of each. Two nodes that hold different READYs of one
/// member, as after its restart, therefore never mix their data.
pub(super) fn set_digest<C: Borrow<SignedReady>>(contributions: &[C]) -> Digest {
    record::set_digest(contributions.iter().map(|c| c.borrow()).map(|c| (c.member, c.digest)))
}

impl Round {
    /// Begins an attempt. The READYs of all its members are here, by ascending id.
    pub fn start_attempt(&mut self, number: u32, contributions: &[SignedReady], ctx: &Ctx, out: &mut Out) {
        let key = self.key_of(number, set_digest(contributions));
        let head = &self.head;
        // The result is here already: fetched, or made before the attempt was left.
        if self.results.holds(&key) {
            return;
        }
        let members: Vec<NodeId> = contributions.iter().map(|c| c.member).collect();
        if !head.grid.is_one_row() && !lattice::makes_a_result(&head.grid, &members) {
            return self.fail_attempt("its rows have no column in common", None, ctx, out);
        }
        let by_id: BTreeMap<NodeId, &SignedReady> = contributions.iter().map(|c| (c.member, c)).collect();
        let in_ring = head.record.ring_of(&head.digest, members.iter().copied());
        let contribution = |c: &&SignedReady| {
            let mut stated = Stated::from(&c.ready);
            if mutated!(Mutation::EqualWeights) {
                stated.tokens = 1;
            }
            Contribution { member: c.member, stated, payload: c.ready.payload }
        };
        let reduce = Output::Reduce {
            key,
            members: in_ring.iter().filter_map(|id| by_id.get(id)).map(contribution).collect(),
            flock: succession::uplinks(&head.record),
            grid: Arc::clone(&head.grid),
            codec: head.record.next.codec,
        };
        let notice = Notice::AttemptStarted { round: self.task.number, attempt: number, members: members.clone() };
        out.notice(notice);
        out.push(reduce);
        let (stage, now) = (Stage::Reducing, ctx.mark());
        self.attempts.running =
            Some(Attempt { key, members, stage, began: now, progress: 0, moved_at: now, awaits: None });
        self.go_ahead(contributions, ctx, out);
    }

    fn running(&mut self, key: &AttemptKey, stage: Stage) -> Option<&mut Attempt> {
        let running = self.attempts.running.as_mut()?;
        ((running.key == *key || mutated!(Mutation::AnyAttempt)) && running.stage == stage).then_some(running)
    }

    pub fn reduce_progress(&mut self, key: &AttemptKey, bytes: u64, awaits: Option<Awaits>, ctx: &Ctx) {
        let now = ctx.now;
        let Some(attempt) = self.running(key, Stage::Reducing) else { return };
        attempt.awaits = awaits;
        if bytes > attempt.progress {
            attempt.progress = bytes;
            attempt.moved_at = now;
        }
    }

    pub fn reduced(&mut self, key: &AttemptKey, update: Digest, ctx: &Ctx, out: &mut Out) {
        let Some(attempt) = self.running(key, Stage::Reducing) else { return };
        attempt.stage = Stage::Speculating { update };
        let contributors = attempt.members.len();
        self.speculate(*key, update, contributors, ctx, out);
    }

    pub fn speculate(&self, key: AttemptKey, update: Digest, contributors: usize, ctx: &Ctx, out: &mut Out) {
        let rule = Rule::of(&ctx.spec, &self.head.record, contributors);
        out.push(Output::Speculate { key, update, rule });
    }

    /// Rebuilds the record from the state after an update.
    pub fn applied(&mut self, key: &AttemptKey, update: &Digest, state_root: Digest, ctx: &Ctx, out: &mut Out) {
        let head = self.head.clone();
        let speculating = |attempt: &&Attempt| attempt.is_speculating(key, update);
        let Some(attempt) = self.attempts.running.as_ref().filter(speculating) else { return };
        let members = attempt.members.clone();
        let contributions: Vec<SignedReady> = members.iter().filter_map(|id| ctx.ready_of(id, self)).cloned().collect();
        // A member that restarted meanwhile may have said READY anew: its new READY is not what this attempt reduced.
        let same = contributions.len() == members.len() && set_digest(&contributions) == key.set;
        let record = if same {
            succession::commit(&head.record, head.digest, &ctx.spec, &contributions, *update, state_root)
        } else {
            None
        };
        let Some(mut record) = record else {
            return self.fail_attempt("the contributions changed or the run's samples are used up", None, ctx, out);
        };
        let met = mutated!(Mutation::ThinContributors) || head.quorum.met_by(|id| members.binary_search(id).is_ok());
        if !met {
            return self.fail_attempt("its members are no quorum of the voters", None, ctx, out);
        }
        if mutated!(Mutation::OwnSettings) {
            record.next.overheads[0] = ctx.me.0[0].into();
        }
        let readys = contributions.into_iter().map(|c| c.bytes).collect();
        let holding = Holding::new(super::Candidate { key: *key, record, readys });
        self.results.hold(holding);
        if let Some(attempt) = &mut self.attempts.running {
            attempt.stage = Stage::Rebuilt;
        }
    }

    /// Gives up a result whose update cannot be applied here.
    pub fn not_applied(&mut self, key: &AttemptKey, update: &Digest, reason: &str, ctx: &Ctx, out: &mut Out) {
        self.results.give_up(key, update, ctx);
        let running = self.attempts.running.as_ref();
        if running.is_some_and(|attempt| attempt.is_speculating(key, update)) {
            self.fail_attempt(reason, None, ctx, out);
        }
    }

    /// Gives up a reduction that cannot go on, perhaps because of `suspect`; certainly because of it if something that
    /// it sent was `refused`.
    pub fn reduce_failed(
        &mut self,
        key: &AttemptKey,
        (suspect, refused): (Option<NodeId>, bool),
        reason: &str,
        conduct: &mut Conduct,
        (ctx, out): (&Ctx, &mut Out),
    ) {
        if self.running(key, Stage::Reducing).is_some() {
            if let Some(suspect) = suspect.filter(|_| refused) {
                self.report_refusal(suspect, conduct);
            }
            self.fail_attempt(reason, suspect, ctx, out);
        }
    }

    /// Gives the attempt up. The next one is made after a pause that doubles with each failure.
    pub fn fail_attempt(&mut self, reason: &str, suspect: Option<NodeId>, ctx: &Ctx, out: &mut Out) {
        let (me, now) = (ctx.me, ctx.mark());
        self.leave_attempt(reason, suspect, out);
        self.attempts.not_before = now.plus(ctx.attempt_pause(self.attempts.failures));
        self.attempts.failures += 1;
        if let Some(suspect) = suspect.filter(|id| *id != me && self.task.members.contains(id)) {
            let times = self.distrust.suspected.entry(suspect).or_default();
            *times += 1;
            if *times >= SUSPICIONS_MAX {
                self.distrust.ruled_out.insert(suspect);
            }
        }
        self.next_attempt();
    }

    /// Leaves the attempt for good and drops its data, unless this node holds its result.
    pub fn leave_attempt(&mut self, reason: &str, suspect: Option<NodeId>, out: &mut Out) {
        let Some(attempt) = self.attempts.running.take_if(|attempt| attempt.stage != Stage::Rebuilt) else { return };
        let number = self.task.number;
        out.push(Output::Abandon { key: attempt.key });
        let reason = reason.to_owned();
        out.notice(Notice::AttemptFailed { round: number, attempt: attempt.key.attempt, suspect, reason });
    }

    /// Gives up the reduction under way if it cannot end any more.
    pub fn check_attempt(&mut self, ctx: &Ctx, out: &mut Out) {
        let Some(attempt) = self.attempts.running.as_ref().filter(|attempt| attempt.stage == Stage::Reducing) else {
            return;
        };
        let others = attempt.members.iter().filter(|id| **id != ctx.me);
        let gone = others.clone().find_map(|id| Some((*id, ctx.fault(id, self)?)));
        if let Some((id, why)) = gone {
            return self.fail_attempt(why, Some(id), ctx, out);
        }
        // A member that names another result, or SKIP, has left this attempt.
        let left = |id: &NodeId| {
            let ballot = self.record_vote.ballot.as_ref();
            ballot.is_some_and(|b| b.names(id).any(|v| (v.attempt, v.set) != (attempt.key.attempt, attempt.key.set)))
        };
        if let Some(id) = others.clone().copied().find(left) {
            // A voter that votes on the record does not return to attempts.
            self.distrust.ruled_out.insert(id);
            return self.fail_attempt("a member has left the attempt", Some(id), ctx, out);
        }
        self.check_stall(ctx, out);
    }

    /// The longest time for a reduction in which something moves, from the measurements of the voters in it.
    fn longest_reduction(&self, attempt: &Attempt, ctx: &Ctx) -> u64 {
        let heeded = |id: &&NodeId| ctx.is_voter(id) || mutated!(Mutation::LearnersTime);
        let took = attempt
            .members
            .iter()
            .filter(heeded)
            .filter_map(|id| Some(ctx.ready_of(id, self)?.ready.measured.reduce_us));
        let mut took: Vec<u64> = took.filter(|micros| *micros > 0).map(u64::from).collect();
        took.sort_unstable();
        ctx.longest_reduction(took.get(took.len() / 2).copied())
    }

    /// Leaves a reduction in which nothing moves anywhere, and rules out the member to blame.
    fn check_stall(&mut self, ctx: &Ctx, out: &mut Out) {
        let Some(attempt) = self.attempts.running.as_ref() else { return };
        let failures = self.attempts.failures;
        let lively = |moved: Moment| !ctx.stands_still(moved, ctx.reduction_stall(), failures);
        let peer = |id: &NodeId| ctx.peers.get(id).is_some_and(|peer| lively(peer.said.moved_at));
        if ctx.is_young(attempt.began) && (lively(attempt.moved_at) || attempt.members.iter().any(peer)) {
            return;
        }
        let (mut moved, mut patience) = (attempt.moved_at, ctx.reduction_stall());
        for peer in attempt.members.iter().filter_map(|id| ctx.peers.get(id)) {
            moved = moved.max(peer.said.moved_at);
            patience = patience.max(ctx.stall(peer, Phase::Reducing));
        }
        let creeps = || ctx.stands_still(attempt.began, self.longest_reduction(attempt, ctx), failures);
        if !ctx.stands_still(moved, patience, failures) && !creeps() {
            return;
        }
        let blame = self.blame(attempt, ctx);
        if let Some(blame) = blame {
            self.distrust.ruled_out.insert(blame.culprit);
            if let Some(other) = blame.other {
                *self.distrust.suspected.entry(other).or_default() += 1;
            }
        }
        self.fail_attempt("nothing has moved for too long", blame.map(|blame| blame.culprit), ctx, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::sample::node;

    #[test]
    fn a_member_is_ruled_out_with_the_third_attempt_that_it_fails() {
        let (ctx, mut out) = (Ctx::sample(), Out::default());
        let mut round = ctx.sample_round();
        for times in 1..=SUSPICIONS_MAX {
            round.fail_attempt("it failed", Some(node(16)), &ctx, &mut out);
            assert_eq!(round.distrust.ruled_out.contains(&node(16)), times == SUSPICIONS_MAX);
            assert_eq!(round.attempts.number, times);
            assert_eq!(round.attempts.not_before, ctx.now.plus(ctx.attempt_pause(times - 1)));
        }
        round.fail_attempt("it failed", Some(ctx.me), &ctx, &mut out);
        assert!(!round.distrust.suspected.contains_key(&ctx.me), "nobody rules itself out");
    }
}
