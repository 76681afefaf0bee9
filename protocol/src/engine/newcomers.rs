//! Rounds wait for newcomers that fetch the state (`docs/protocol/5-membership.md` §5.7).
//!
//! A newcomer that fetches updates more slowly than the flock makes them would never arrive, and a member that has just
//! been let in would be late for its first rounds. A voter that has trained
//! therefore keeps its READY back while such a newcomer makes progress. The flock's patience is a bucket: waiting empties
//! it, and the run's share of the time fills it again. A node that only pretends to fetch costs no more than that.

use super::clock::Moment;
use super::ctx::Ctx;
use super::peer::Peer;
use super::round::Round;
use crate::message::{Head, Phase};
use crate::mutation::{Mutation, mutated};
use crate::run::{AdmissionMode, JoinSpec, RunSpec};
use crate::{Digest, NodeId, update};
use std::collections::BTreeSet;

/// Newcomers that are waited for in a round.
const GUESTS_MAX: usize = 64;
/// The time after which a newcomer's pace is known, in microseconds.
const MEASURED_AFTER: u64 = 1_000_000;
/// A newcomer keeps up if it could fetch this many updates in two rounds.
const UPDATES_IN_TWO_ROUNDS: u128 = 3;

/// A round that waits for newcomers, for a person to see.
#[derive(Clone, Debug, PartialEq)]
pub struct Hold {
    /// The newcomers, by ascending id.
    pub on: Vec<NodeId>,
    /// Bytes of the state that they still lack, together.
    pub bytes: u64,
    /// Microseconds until the last of them has it, at its pace so far; none while that is not known.
    pub left: Option<u64>,
    /// Microseconds for which the round waits at most from now on.
    pub patience: u64,
}

/// The flock's patience with newcomers, as this node reckons it.
#[derive(Debug)]
pub(super) struct Newcomers {
    /// Bytes of the state, and of the longest update.
    state: u64,
    update: u64,
    /// The patience that is left, and the most that there may be, in hundredths of a microsecond.
    left: u64,
    most: u64,
    /// Per cent of the time that fills it.
    share: u64,
    /// When it was last reckoned.
    at: Moment,
    /// Those for whom the round at hand waits, by ascending id, and all for whom it has waited.
    on: Vec<NodeId>,
    seen: BTreeSet<NodeId>,
    /// Whether one of them fetches, and when the last one had the state.
    fetch: bool,
    fetched_at: Moment,
    /// Microseconds for which the round at hand has waited.
    waited: u64,
    /// How often `on` has changed.
    changes: u64,
    /// Microseconds that the last round took besides.
    usual: u64,
    /// Signs of progress of those that were waited for, and the newest of them.
    moves: u64,
    moved_at: Moment,
}

/// The most patience that there may be, in hundredths of a microsecond.
fn most_patience(join: &JoinSpec) -> u64 {
    u64::from(join.patience_ms) * 100_000
}

impl Newcomers {
    pub fn new(spec: &RunSpec) -> Self {
        let elements = spec.parameters();
        let most = most_patience(&spec.join);
        let update = update::encoded_max(spec.sync.codec, usize::try_from(elements).unwrap_or(usize::MAX));
        Self {
            state: elements.saturating_mul(4 * u64::from(spec.sync.mode.vectors())),
            update: update as u64,
            left: most,
            most,
            share: spec.join.share.into(),
            at: Moment::default(),
            on: Vec::new(),
            seen: BTreeSet::new(),
            fetch: false,
            fetched_at: Moment::default(),
            waited: 0,
            changes: 0,
            usual: 0,
            moves: 0,
            moved_at: Moment::default(),
        }
    }

    /// Takes over the terms of the run as they are amended. Patience that is added may be used at once.
    pub fn amend(&mut self, join: &JoinSpec) {
        let most = most_patience(join);
        self.left = self.left.saturating_add(most.saturating_sub(self.most)).min(most);
        (self.most, self.share) = (most, join.share.into());
    }

    /// Whether the READY of the round at hand is kept back.
    pub fn holds(&self) -> bool {
        !self.on.is_empty()
    }

    /// Newcomers for which the round waits at this moment. While it waits, serving them costs no training.
    pub fn awaited_now(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.on.iter().copied()
    }

    /// A number that changes with [`Self::awaited_now`].
    pub fn changes(&self) -> u64 {
        self.changes
    }

    fn wait_for(&mut self, on: Vec<NodeId>) {
        if self.on != on {
            self.on = on;
            self.changes = self.changes.wrapping_add(1);
        }
    }

    /// A number that grows while newcomers for which the round waits make progress.
    pub fn moves(&self) -> u64 {
        if self.holds() { self.moves } else { 0 }
    }

    /// The node stands on another record, after a round that began then.
    pub fn follow(&mut self, began: Option<Moment>, now: Moment) {
        self.reckon(now);
        if let Some(began) = began {
            self.usual = now.since(began).saturating_sub(self.waited);
        }
        self.wait_for(Vec::new());
        self.seen.clear();
        self.fetch = false;
        self.waited = 0;
    }

    /// Whether the READY of this round is to be kept back now. The inner steps are done.
    pub fn keep_back(&mut self, round: &Round, ctx: &Ctx) -> bool {
        self.reckon(ctx.now);
        let may_wait = Self::may_wait(round, ctx);
        let mut on = if may_wait { self.awaited(round, ctx) } else { Vec::new() };
        if std::mem::replace(&mut self.fetch, !on.is_empty()) && on.is_empty() {
            self.fetched_at = ctx.now;
        }
        if may_wait && on.is_empty() {
            on = self.trainees(round, ctx);
        }
        let patience = self.left / 100;
        let is_over = patience == 0 || ctx.is_patience_over(ctx.now.plus(patience));
        if is_over && !mutated!(Mutation::EndlessPatience) {
            on.clear();
        }
        self.wait_for(on);
        let room = GUESTS_MAX.saturating_sub(self.seen.len());
        self.seen.extend(self.on.iter().take(room));
        let newest = self.on.iter().filter_map(|id| ctx.peers.get(id)).map(|peer| peer.said.moved_at).max();
        if let Some(newest) = newest.filter(|newest| *newest > self.moved_at) {
            self.moved_at = newest;
            self.moves += 1;
        }
        self.holds()
    }

    /// The round waits no more: for whom it has waited, and how long in microseconds, if it has.
    pub fn end(&mut self) -> Option<(Vec<NodeId>, u64)> {
        let seen = std::mem::take(&mut self.seen);
        (!seen.is_empty()).then(|| (seen.into_iter().collect(), self.waited))
    }

    /// The round that waits, as a person sees it.
    pub fn view(&self, ctx: &Ctx) -> Option<Hold> {
        let peers = self.on.iter().filter_map(|id| ctx.peers.get(id));
        let lacks = peers.filter_map(|peer| {
            let (head, (since, from)) = (peer.said.head.as_ref()?, peer.said.fetches_since?);
            let bytes = self.state.saturating_sub(head.progress);
            let (got, took) = (head.progress.saturating_sub(from), peer.said.moved_at.since(since));
            let left = u128::from(bytes) * u128::from(took) / u128::from(got.max(1));
            Some((bytes, (got > 0).then(|| u64::try_from(left).unwrap_or(u64::MAX))))
        });
        let lacks: Vec<(u64, Option<u64>)> = lacks.collect();
        let left: Option<Vec<u64>> = lacks.iter().map(|(_, left)| *left).collect();
        let bytes = lacks.iter().fold(0, |sum: u64, (bytes, _)| sum.saturating_add(*bytes));
        let left = left.and_then(|left| left.into_iter().max());
        self.holds().then(|| Hold { on: self.on.clone(), bytes, left, patience: self.left / 100 })
    }

    /// Waiting since the last time has taken of the patience; other time has added its share.
    fn reckon(&mut self, now: Moment) {
        let passed = now.since(self.at);
        self.at = now;
        if self.holds() {
            self.waited += passed;
            self.left = self.left.saturating_sub(passed.saturating_mul(100));
        } else {
            self.left = self.left.saturating_add(passed.saturating_mul(self.share)).min(self.most);
        }
    }

    /// Whether this round could begin its attempt later: nothing has begun, and no quorum waits for this node.
    fn may_wait(round: &Round, ctx: &Ctx) -> bool {
        let attempts = &round.attempts;
        let begun = attempts.number > 0 || attempts.running.is_some() || round.record_vote.entered();
        let is_due = || ctx.allowance(round).is_some_and(|allowed| ctx.is_half_over(&allowed, true));
        ctx.votes() && ctx.leaving.is_none() && !begun && round.committing.is_none() && !is_due()
    }

    fn awaited(&self, round: &Round, ctx: &Ctx) -> Vec<NodeId> {
        let newcomers = ctx.peers.iter().filter(|(id, peer)| {
            let head = peer.said.head.as_ref().filter(|_| peer.present());
            let expected = round.task.expected.binary_search(id).is_ok();
            !(expected && mutated!(Mutation::LeaveTheAdmitted))
                && ctx.may_come(id, peer)
                && head.is_some_and(|head| self.is_on_its_way(id, (head, peer), round, ctx))
        });
        newcomers.map(|(id, _)| *id).take(GUESTS_MAX).collect()
    }

    /// Members for which the round has waited, and which train for the first time since. READY would cut them short, as
    /// they have begun late. They have as long as a round takes.
    fn trainees(&self, round: &Round, ctx: &Ctx) -> Vec<NodeId> {
        if mutated!(Mutation::LeaveTheAdmitted) || self.seen.is_empty() {
            return Vec::new();
        }
        let is_over = ctx.is_patience_over(self.fetched_at.plus(self.usual));
        let trains = |id: &&NodeId| {
            let Some(peer) = ctx.peers.get(id).filter(|peer| peer.present()) else { return false };
            let head = peer.said.head.as_ref();
            let here = head.is_some_and(|head| head.phase == Phase::Training && head.record == round.head.digest);
            let expected = round.task.expected.binary_search(id).is_ok() && ctx.ready_of(id, round).is_none();
            here && expected && !ctx.newcomer_stands_still(peer.said.moved_at)
        };
        self.seen.iter().filter(trains).filter(|_| !is_over).copied().collect()
    }

    /// Whether a node fetches what the flock makes faster than it can, or is about to ask to be let in.
    fn is_on_its_way(&self, id: &NodeId, (head, peer): (&Head, &Peer), round: &Round, ctx: &Ctx) -> bool {
        match (head.phase, peer.said.fetches_since) {
            (Phase::CatchingUp, Some((since, from))) => {
                let moved = peer.said.moved_at.max(since);
                let (got, took) = (head.progress.saturating_sub(from), moved.since(since));
                // A member is late for this round, however fast it is.
                let expected = round.task.expected.binary_search(id).is_ok();
                !ctx.newcomer_stands_still(moved) && (expected || !self.keeps_up(got, took, round, ctx))
            }
            (Phase::Joining, _) if head.record == round.head.digest => {
                let asked = peer.said.join.as_ref().is_some_and(|(_, at)| ctx.is_join_valid(*at));
                !asked && !ctx.should_have_asked(peer.said.moved_at)
            }
            _ => false,
        }
    }

    /// Whether a node that has fetched so many bytes in so many microseconds fetches updates faster than rounds make them.
    /// None does in a flock of one: its rounds cost no time on the wire, and one line carries each update to everybody.
    fn keeps_up(&self, got: u64, took: u64, round: &Round, ctx: &Ctx) -> bool {
        if round.task.members.len() == 1 {
            return false;
        }
        let lasted = ctx.now.since(round.began).saturating_sub(self.waited).max(self.usual);
        let [got, took, lasted, update] = [got, took, lasted, self.update].map(u128::from);
        took >= u128::from(MEASURED_AFTER) && 2 * got * lasted >= UPDATES_IN_TWO_ROUNDS * update * took
    }
}

impl Ctx {
    /// Whether the run might let this peer in.
    fn may_come(&self, id: &NodeId, peer: &Peer) -> bool {
        let Some(head) = &self.head else { return false };
        let revoked = head.record.revoked.binary_search(&Digest(id.0)).is_ok();
        let known = head.record.member(id).is_some();
        let admitted = match self.spec.admission.mode {
            AdmissionMode::Open => true,
            AdmissionMode::List => self.spec.admission.allow.binary_search(id).is_ok(),
            AdmissionMode::Ticket => peer.said.invited,
        };
        !revoked && (known || admitted || mutated!(Mutation::WaitForStrangers))
    }
}
