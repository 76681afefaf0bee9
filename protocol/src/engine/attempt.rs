//! One attempt: reduce, apply to a copy, hold the result; and leaving it when it cannot end.

use super::Engine;
use super::clock::Moment;
use super::decision::Holding;
use super::io::{AttemptKey, Contribution, Notice, Output};
use super::round::Round;
use super::succession::{self, SignedReady};
use crate::message::{Awaits, Phase};
use crate::outer::Rule;
use crate::plant::{Plant, planted};
use crate::update::Stated;
use crate::{Digest, NodeId, record};
use std::collections::BTreeMap;

/// Failures that name the same suspect before it is ruled out although it looks alive.
const SUSPICIONS_MAX: u32 = 3;
/// First pause after a failure, in microseconds; it doubles so many times.
const PAUSE: u64 = 250_000;
const PAUSE_DOUBLINGS: u32 = 4;
/// A reduction that moves is given up after so many times what reductions took.
const REDUCTION_FACTOR: u64 = 16;
/// A reduction's deadline doubles so many times.
const PATIENCE_DOUBLINGS: u32 = 2;

/// The attempt that this node is in.
#[derive(Debug)]
pub(super) struct Attempt {
    pub key: AttemptKey,
    /// By ascending id.
    pub members: Vec<NodeId>,
    pub stage: Stage,
    pub began: Moment,
    /// Bytes moved here, and when they last moved.
    pub progress: u64,
    pub moved_at: Moment,
    /// What the reduction waits for here.
    pub awaits: Option<Awaits>,
}

impl Attempt {
    /// Whether its update is complete, this one, and being applied.
    fn is_speculating(&self, key: &AttemptKey, update: &Digest) -> bool {
        self.key == *key && self.stage == Stage::Speculating { update: *update }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Stage {
    Reducing,
    /// The update is complete; the driver applies it to a copy of the state.
    Speculating {
        update: Digest,
    },
    /// This node holds the attempt's record.
    Rebuilt,
}

/// Name of the set: who takes part, and with which READY. Two nodes that hold different READYs of one member, as
/// after its restart, so never mix their data.
pub(super) fn set_digest(contributions: &[SignedReady]) -> Digest {
    record::set_digest(contributions.iter().map(|c| (c.member, c.digest)))
}

impl Engine {
    /// Begins an attempt whose members' READYs are all here; they are by ascending id.
    pub(super) fn start_attempt(&mut self, number: u32, contributions: &[SignedReady]) {
        let Some(key) = self.key_of(number, contributions) else { return };
        let Some((round, head)) = self.round.as_ref().zip(self.head.as_ref()) else { return };
        // Its result is here already, fetched or made before the attempt was left.
        if round.holding.values().any(|held| held.candidate.key == key) {
            return;
        }
        let members: Vec<NodeId> = contributions.iter().map(|c| c.member).collect();
        let by_id: BTreeMap<NodeId, &SignedReady> = contributions.iter().map(|c| (c.member, c)).collect();
        let in_ring = head.record.ring_of(&round.parent, members.iter().copied());
        let contribution = |c: &&SignedReady| {
            let mut stated = Stated::from(&c.ready);
            if planted!(Plant::EqualWeights) {
                stated.tokens = 1;
            }
            Contribution { member: c.member, stated, payload: c.ready.payload }
        };
        let reduce = Output::Reduce {
            key,
            members: in_ring.iter().filter_map(|id| by_id.get(id)).map(contribution).collect(),
            flock: succession::uplinks(&head.record),
            codec: head.record.next.codec,
        };
        let notice = Notice::AttemptStarted { round: round.number, attempt: number, members: members.clone() };
        self.notice(notice);
        self.out.push(reduce);
        let now = self.now;
        if let Some(round) = &mut self.round {
            let stage = Stage::Reducing;
            round.running = Some(Attempt { key, members, stage, began: now, progress: 0, moved_at: now, awaits: None });
        }
        self.go_ahead(contributions);
    }

    fn running(&mut self, key: &AttemptKey, stage: Stage) -> Option<&mut Attempt> {
        let running = self.round.as_mut()?.running.as_mut()?;
        ((running.key == *key || planted!(Plant::AnyAttempt)) && running.stage == stage).then_some(running)
    }

    pub(super) fn reduce_progress(&mut self, key: &AttemptKey, bytes: u64, awaits: Option<Awaits>) {
        let now = self.now;
        let Some(attempt) = self.running(key, Stage::Reducing) else { return };
        attempt.awaits = awaits;
        if bytes > attempt.progress {
            attempt.progress = bytes;
            attempt.moved_at = now;
        }
    }

    pub(super) fn reduced(&mut self, key: &AttemptKey, update: Digest) {
        let Some(attempt) = self.running(key, Stage::Reducing) else { return };
        attempt.stage = Stage::Speculating { update };
        let contributors = attempt.members.len();
        self.speculate(*key, update, contributors);
    }

    pub(super) fn speculate(&mut self, key: AttemptKey, update: Digest, contributors: usize) {
        let Some(head) = &self.head else { return };
        let rule = Rule::of(&self.spec, &head.record, contributors);
        self.out.push(Output::Speculate { key, update, rule });
    }

    /// The state after an update is known: rebuilds the record.
    pub(super) fn applied(&mut self, key: &AttemptKey, update: &Digest, state_root: Digest) {
        if self.made_anew((key, update), state_root) || self.rebuilt_fetched((key, update), state_root) {
            return;
        }
        let Some((round, head)) = self.round.as_ref().zip(self.head.as_ref()) else { return };
        let speculating = |attempt: &&Attempt| attempt.is_speculating(key, update);
        let Some(attempt) = round.running.as_ref().filter(speculating) else { return };
        let members = attempt.members.clone();
        let contributions: Vec<SignedReady> =
            members.iter().filter_map(|id| self.ready_of(id, round)).cloned().collect();
        // A member that restarted meanwhile may have said READY anew: then this attempt is not what was reduced.
        let same = contributions.len() == members.len() && set_digest(&contributions) == key.set;
        let record = if same {
            succession::commit(&head.record, head.digest, &self.spec, &contributions, *update, state_root)
        } else {
            None
        };
        let Some(mut record) = record else {
            return self.fail_attempt("the contributions changed or the run's samples are used up", None);
        };
        let met = planted!(Plant::ThinContributors) || head.quorum.met_by(|id| members.binary_search(id).is_ok());
        if !met {
            return self.fail_attempt("its members are no quorum of the voters", None);
        }
        if planted!(Plant::OwnKnobs) {
            record.next.dwell = self.me.0[0];
        }
        let readys = contributions.into_iter().map(|c| c.bytes).collect();
        let holding = Holding::new(super::Candidate { key: *key, record, readys });
        if let Some(round) = &mut self.round {
            round.holding.insert(holding.digest, holding);
            if let Some(attempt) = &mut round.running {
                attempt.stage = Stage::Rebuilt;
            }
        }
    }

    /// The state after an update cannot be known: there is no such result here.
    pub(super) fn not_applied(&mut self, key: &AttemptKey, update: &Digest, reason: &str) {
        self.give_up_fetched(key, update);
        let running = self.round.as_ref().and_then(|round| round.running.as_ref());
        if running.is_some_and(|attempt| attempt.is_speculating(key, update)) {
            self.fail_attempt(reason, None);
        }
    }

    pub(super) fn reduce_failed(&mut self, key: &AttemptKey, (suspect, refused): (Option<NodeId>, bool), reason: &str) {
        if self.running(key, Stage::Reducing).is_some() {
            if let Some(suspect) = suspect.filter(|_| refused) {
                self.accuse(suspect);
            }
            self.fail_attempt(reason, suspect);
        }
    }

    /// Gives the attempt up: the next one is made after a pause that doubles with each failure.
    pub(super) fn fail_attempt(&mut self, reason: &str, suspect: Option<NodeId>) {
        let (me, now) = (self.me, self.now);
        self.leave_attempt(reason, suspect);
        let Some(round) = &mut self.round else { return };
        round.not_before = now.plus(PAUSE << round.failures.min(PAUSE_DOUBLINGS));
        round.failures += 1;
        if let Some(suspect) = suspect.filter(|id| *id != me && round.members.contains(id)) {
            let times = round.suspected.entry(suspect).or_default();
            *times += 1;
            if *times >= SUSPICIONS_MAX {
                round.ruled_out.insert(suspect);
            }
        }
        self.next_attempt();
    }

    /// Leaves the attempt for good and drops its data, unless this node holds its result.
    pub(super) fn leave_attempt(&mut self, reason: &str, suspect: Option<NodeId>) {
        let Some(round) = &mut self.round else { return };
        let Some(attempt) = round.running.take_if(|attempt| attempt.stage != Stage::Rebuilt) else { return };
        let number = round.number;
        self.out.push(Output::Abandon { key: attempt.key });
        let reason = reason.to_owned();
        self.notice(Notice::AttemptFailed { round: number, attempt: attempt.key.attempt, suspect, reason });
    }

    /// Whether the reduction under way can still end.
    pub(super) fn check_attempt(&mut self) {
        let Some(round) = &self.round else { return };
        let Some(attempt) = round.running.as_ref().filter(|attempt| attempt.stage == Stage::Reducing) else { return };
        let others = attempt.members.iter().filter(|id| **id != self.me);
        let gone = others.clone().find_map(|id| Some((*id, self.fault(id, round)?)));
        if let Some((id, why)) = gone {
            return self.fail_attempt(why, Some(id));
        }
        // Who holds another result, or would skip, has left this attempt.
        let left = |id: &NodeId| {
            let ballot = round.record_vote.ballot.as_ref();
            ballot.is_some_and(|b| b.names(id).any(|v| (v.attempt, v.set) != (attempt.key.attempt, attempt.key.set)))
        };
        if let Some(id) = others.clone().copied().find(left) {
            // Who is in the vote on the record does not come back to attempts.
            if let Some(round) = &mut self.round {
                round.ruled_out.insert(id);
            }
            return self.fail_attempt("a member has left the attempt", Some(id));
        }
        self.check_stall();
    }

    /// How long a reduction may take that moves: far longer than those took that the voters in it have measured. Who sends
    /// a byte now and then is never still, and must not hold everybody up for good.
    fn longest_reduction(&self, round: &Round, attempt: &Attempt) -> u64 {
        let heeded = |id: &&NodeId| self.is_voter(id) || planted!(Plant::LearnersTime);
        let took = attempt
            .members
            .iter()
            .filter(heeded)
            .filter_map(|id| Some(self.ready_of(id, round)?.ready.measured.reduce_us));
        let mut took: Vec<u64> = took.filter(|micros| *micros > 0).map(u64::from).collect();
        took.sort_unstable();
        let median = took.get(took.len() / 2);
        median.map_or(self.timing.patience_max, |micros| (REDUCTION_FACTOR * micros).max(self.timing.unmeasured))
    }

    /// A reduction in which nothing moves anywhere: leaves it, and rules out who is to blame.
    fn check_stall(&mut self) {
        let Some(round) = &self.round else { return };
        let Some(attempt) = round.running.as_ref() else { return };
        let doublings = round.failures.min(PATIENCE_DOUBLINGS);
        let lively = |moved: Moment| self.now.since(moved) < (2 * self.timing.patience_min) << doublings;
        let young = self.now.since(attempt.began) < self.timing.unmeasured.min(self.timing.patience_max);
        let peer = |id: &NodeId| self.peers.get(id).is_some_and(|peer| lively(peer.moved_at));
        if young && (lively(attempt.moved_at) || attempt.members.iter().any(peer)) {
            return;
        }
        let (mut moved, mut patience) = (attempt.moved_at, 2 * self.timing.patience_min);
        for peer in attempt.members.iter().filter_map(|id| self.peers.get(id)) {
            moved = moved.max(peer.moved_at);
            patience = patience.max(self.stall(peer, Phase::Reducing));
        }
        let creeps = self.now.since(attempt.began) >= self.longest_reduction(round, attempt) << doublings;
        if self.now.since(moved) < patience << doublings && !creeps {
            return;
        }
        let blame = self.blame(round, attempt);
        if let (Some(blame), Some(round)) = (blame, &mut self.round) {
            round.ruled_out.insert(blame.culprit);
            if let Some(other) = blame.other {
                *round.suspected.entry(other).or_default() += 1;
            }
        }
        self.fail_attempt("nothing has moved for too long", blame.map(|blame| blame.culprit));
    }
}
