//! Where this node stands, where the others stand, and getting from one to the other.
//!
//! Of two heads the better one has more committed tokens, then the smaller digest. Two different records of one
//! lineage at the same `seq` can only come from sides that could not hear each other; there the one that more nodes
//! hold is better, so that a lone node comes back to its flock and not the flock to it.

use super::clock::Moment;
use super::io::{AttemptKey, Finish, Notice, Output};
use super::round::{Made, Training};
use super::{Engine, Founding, HISTORY_MAX, Stored, succession};
use crate::message::Head;
use crate::record::Record;
use crate::{Digest, NodeId};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Pauses after failures double so many times.
const DOUBLINGS_MAX: u32 = 5;

/// A record that this node holds or held the state of.
#[derive(Clone, Debug)]
pub(super) struct Standing {
    pub record: Record,
    pub digest: Digest,
}

impl Standing {
    fn new(record: Record) -> Self {
        Self { digest: record.digest(), record }
    }
}

/// A head as far as comparing goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    lineage: Digest,
    seq: u64,
    record: Digest,
    tokens: u64,
}

impl Place {
    fn of(head: &Head) -> Option<Self> {
        let Head { lineage, seq, record, tokens, .. } = *head;
        (lineage != Digest::default()).then_some(Self { lineage, seq, record, tokens })
    }

    fn worth(&self) -> (u64, Reverse<Digest>) {
        (self.tokens, Reverse(self.record))
    }
}

/// The catch-up that was asked for, and what is known from the ones before.
#[derive(Debug, Default)]
pub(super) struct CatchUp {
    active: Option<Vec<NodeId>>,
    bytes: u64,
    failures: u32,
    not_before: Moment,
    /// The chain of those ahead does not contain this node's head.
    diverged: bool,
    /// This node's own state is in doubt.
    distrusted: bool,
}

impl CatchUp {
    pub fn is_idle(&self) -> bool {
        self.active.is_none()
    }

    pub fn distrusts(&self) -> bool {
        self.distrusted
    }

    pub fn distrust(&mut self) {
        self.distrusted = true;
    }

    pub fn progress(&mut self, bytes: u64) {
        self.bytes = self.bytes.max(bytes);
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn not_before(&self) -> Moment {
        self.not_before
    }
}

impl Engine {
    /// Takes up what the disk holds.
    pub(super) fn resume(&mut self, stored: Stored) {
        let standing = Standing::new(stored.head);
        let seq = standing.record.seq.saturating_add(1);
        let fits = |(key, record): &(AttemptKey, Record)| key.seq == seq && record.parent == standing.digest;
        let report = stored.report.filter(fits);
        self.stand_on(standing);
        if self.end_if_spent() {
            return;
        }
        self.enter_round(true);
        if let (Some(round), Some((key, record))) = (&mut self.round, report) {
            let digest = record.digest();
            round.attempt = key.attempt;
            round.report = Some(Made { key, record, digest, speculated: false });
        }
    }

    pub(super) fn found(&mut self, found: &Founding) {
        let genesis = succession::genesis(self.run, &self.spec, self.me, found.nonce, found.state_root);
        // A validated run always has room for one lease.
        let Some(record) = genesis else { return };
        let token = self.next_token();
        self.founding = Some((token, record.clone()));
        self.out.push(Output::Found { token, record });
    }

    pub(super) fn founded(&mut self, record: Record) {
        self.notice(Notice::Founded { lineage: record.lineage });
        self.stand_on(Standing::new(record));
        if !self.end_if_spent() {
            self.enter_round(false);
        }
    }

    /// The decided record is on disk: it is the head now.
    pub(super) fn committed(&mut self, record: Record) {
        let standing = Standing::new(record);
        let round = standing.record.round;
        let (before, after): (BTreeSet<NodeId>, BTreeSet<NodeId>) =
            (self.head.iter().flat_map(|h| h.record.members()).collect(), standing.record.members().collect());
        self.notice(Notice::Committed {
            record: standing.digest,
            round,
            members: standing.record.contributors.iter().map(|c| c.member).collect(),
            tokens: standing.record.tokens,
        });
        for member in after.difference(&before) {
            self.notice(Notice::MemberJoined { member: *member, round });
        }
        for member in before.difference(&after) {
            let reason = self.round.as_ref().and_then(|r| self.fault(member, r)).unwrap_or("it did not contribute");
            self.notice(Notice::MemberLeft { member: *member, round, reason });
        }
        self.stand_on(standing);
        if !self.end_if_spent() {
            self.enter_round(false);
        }
    }

    fn stand_on(&mut self, standing: Standing) {
        let follows = self.history.back().is_none_or(|past| past.digest == standing.record.parent);
        if !follows {
            self.history.clear();
        }
        if self.history.len() == HISTORY_MAX {
            self.history.pop_front();
        }
        self.history.push_back(standing.clone());
        self.head = Some(standing);
        self.round = None;
    }

    fn end_if_spent(&mut self) -> bool {
        let budget = &self.spec.budget;
        let spent = |limit: u64, used: u64| limit != 0 && used >= limit;
        let done = self
            .head
            .as_ref()
            .is_some_and(|head| spent(budget.rounds, head.record.round) || spent(budget.tokens, head.record.tokens));
        if done {
            self.finish(Finish::BudgetSpent);
        }
        done
    }

    /// Commits what this node has reported.
    pub(super) fn commit_report(&mut self) {
        self.stop_training();
        let Some(round) = &mut self.round else { return };
        let Some(made) = round.report.clone() else { return };
        let other = round.running.take().filter(|attempt| attempt.key != made.key);
        round.forming = None;
        round.training = Training::Done;
        round.redoing = !made.speculated;
        if let Some(attempt) = other {
            self.out.push(Output::Abandon { key: attempt.key });
        }
        if !made.speculated {
            return self.speculate(made.key, made.record.contributors.len());
        }
        let token = self.next_token();
        self.out.push(Output::Commit { token, key: made.key, record: made.record.clone() });
        if let Some(round) = &mut self.round {
            round.committing = Some((token, made.record));
        }
    }

    /// Looks at the heads of all peers: commits what somebody has committed, or catches up.
    pub(super) fn consider_heads(&mut self) {
        let writing = self.round.as_ref().is_some_and(|round| round.writing() || round.redoing);
        if !self.catch_up.is_idle() || self.founding.is_some() || writing {
            return;
        }
        let reported = self.round.as_ref().and_then(|round| round.durable_report()).map(|made| made.digest);
        let heads = self.places();
        if !self.catch_up.distrusted && heads.iter().any(|(_, place)| Some(place.record) == reported) {
            return self.commit_report();
        }
        if self.now < self.catch_up.not_before {
            return;
        }
        let open = heads.iter().filter(|(id, _)| self.peers.get(id).is_none_or(|peer| self.now >= peer.avoid_until));
        let open: Vec<(NodeId, Place)> = open.copied().collect();
        let mine = self.place();
        // This node is one more holder of its own head.
        let held: Vec<Place> = heads.iter().map(|(_, place)| *place).chain(mine).collect();
        let best = open.iter().map(|(_, place)| *place).reduce(|a, b| if better(&b, &a, &held) { b } else { a });
        let Some(best) = best else { return };
        let as_good = |mine: Place| mine.lineage == best.lineage && best.worth() >= mine.worth();
        let doubtful = self.catch_up.distrusted && mine.is_some_and(as_good);
        if doubtful || mine.is_none_or(|mine| better(&best, &mine, &held)) {
            let sources = open.iter().filter(|(_, p)| p.lineage == best.lineage && p.worth() >= best.worth());
            let sources = sources.map(|(id, _)| *id).collect();
            self.begin_catch_up(best, sources);
        }
    }

    fn place(&self) -> Option<Place> {
        let head = self.head.as_ref()?;
        let Record { lineage, seq, tokens, .. } = head.record;
        Some(Place { lineage, seq, record: head.digest, tokens })
    }

    /// Heads of the peers that can be heard, by ascending id.
    fn places(&self) -> Vec<(NodeId, Place)> {
        let heard = |at: Moment| self.now.since(at) < self.timing.silence;
        let present = self.peers.iter().filter(|(_, peer)| peer.present() && heard(peer.heard_at));
        present.filter_map(|(id, peer)| Some((*id, Place::of(peer.head.as_ref()?)?))).collect()
    }

    fn begin_catch_up(&mut self, target: Place, sources: Vec<NodeId>) {
        let mine = self.place();
        let afresh = mine.is_none_or(|mine| mine.lineage != target.lineage || mine.seq >= target.seq)
            || self.catch_up.diverged
            || self.catch_up.distrusted;
        self.stop_training();
        self.leave_attempt("the flock is elsewhere", None, 0);
        self.drop_speculation();
        if let Some(round) = &mut self.round {
            round.forming = None;
        }
        if let (Some(mine), true) = (mine, afresh) {
            self.notice(Notice::RolledBack { from_seq: mine.seq, to_seq: target.seq });
        }
        let Place { lineage, seq, record, .. } = target;
        self.out.push(Output::CatchUp { lineage, seq, target: record, sources: sources.clone(), afresh });
        self.catch_up.active = Some(sources);
        self.catch_up.bytes = 0;
    }

    pub(super) fn caught_up(&mut self, record: Record) {
        let Some(sources) = self.catch_up.active.take() else { return };
        self.catch_up = CatchUp::default();
        for id in sources {
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.failures = 0;
            }
        }
        let used = self.round.as_ref().map_or(0, |round| round.attempt);
        self.stand_on(Standing::new(record));
        if self.end_if_spent() {
            return;
        }
        // The contribution that was announced for this very round is lost: whoever makes another is a new start.
        let again = self.last_ready.is_some() && self.last_ready == self.head.as_ref().map(|head| head.digest);
        if again {
            self.renew();
        }
        self.enter_round(again);
        if let Some(round) = self.round.as_mut().filter(|_| again) {
            round.attempt = used;
        }
    }

    /// Tries again later, first with others; until then goes on from the old head.
    pub(super) fn catch_up_failed(&mut self, reason: String, diverged: bool) {
        let Some(sources) = self.catch_up.active.take() else { return };
        let pause = |failures: u32| self.timing.catch_up_retry << failures.min(DOUBLINGS_MAX);
        let again = self.now.plus(pause(self.catch_up.failures));
        let (now, retry) = (self.now, self.timing.catch_up_retry);
        for id in sources.iter().filter(|_| !diverged) {
            if let Some(peer) = self.peers.get_mut(id) {
                peer.avoid_until = now.plus(retry << peer.failures.min(DOUBLINGS_MAX));
                peer.failures += 1;
            }
        }
        self.catch_up.failures += 1;
        self.catch_up.not_before = if diverged { now } else { again };
        self.catch_up.diverged |= diverged;
        self.notice(Notice::CatchUpFailed { reason });
        if let Some(round) = &mut self.round {
            round.resumed = true;
        }
    }
}

/// Whether `a` is strictly better than `b`, when all known nodes hold `held`.
fn better(a: &Place, b: &Place, held: &[Place]) -> bool {
    if a.record == b.record {
        return false;
    }
    if a.lineage == b.lineage && a.seq == b.seq {
        let holders = |place: &Place| held.iter().filter(|held| held.record == place.record).count();
        return (holders(a), a.worth()) > (holders(b), b.worth());
    }
    a.worth() > b.worth()
}
