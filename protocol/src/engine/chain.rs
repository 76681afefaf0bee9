//! Where this node stands, where the others stand, and getting from one to the other.
//!
//! Which claims of others lead anywhere, and which of two lineages has the better right, is said in [`super::claims`].

use super::clock::Moment;
use super::io::{Finish, Notice, Output, Proven};
use super::partition::Cut;
use super::round::Training;
use super::{Engine, Founding, HISTORY_MAX, PAST_MAX, Stored, succession};
use crate::ancestry::Ancestry;
use crate::message::{Certificate, Head, Message, Phase};
use crate::plant::{Plant, planted};
use crate::quorum::Quorum;
use crate::record::Record;
use crate::{Digest, NodeId};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Pauses after failures double so many times.
pub(super) const DOUBLINGS_MAX: u32 = 5;
/// Records that a node may lack and ask to be let in all the same; others know a Join by the last 8 of theirs.
const JOIN_BEHIND_MAX: u64 = 6;

/// A record that this node holds or held the state of, and what follows from it.
#[derive(Clone, Debug)]
pub(super) struct Standing {
    pub record: Record,
    pub digest: Digest,
    /// The record that made the state.
    pub base: Digest,
    /// Who decides on the next record.
    pub quorum: Quorum,
    /// The votes that decided this one; none for a genesis record.
    pub certificate: Option<Certificate>,
}

impl Standing {
    pub fn new(record: Record, certificate: Option<Certificate>) -> Self {
        let digest = record.digest();
        Self { base: record.base_or(digest), quorum: Quorum::after(&record, &digest), digest, record, certificate }
    }
}

/// A head as far as comparing goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub lineage: Digest,
    pub seq: u64,
    pub record: Digest,
    pub tokens: u64,
}

impl Place {
    pub fn of(head: &Head) -> Option<Self> {
        let Head { lineage, seq, record, tokens, .. } = *head;
        (lineage != Digest::default()).then_some(Self { lineage, seq, record, tokens })
    }

    /// Whether a fork that stands there would win over another of the same record that stands at `other`, if as many went along.
    pub fn beats(&self, other: &Self) -> bool {
        (self.tokens, self.seq, Reverse(self.lineage)) > (other.tokens, other.seq, Reverse(other.lineage))
    }
}

/// The catch-up that was asked for, and what is known from the ones before.
#[derive(Debug, Default)]
pub(super) struct CatchUp {
    /// From whom, and to which head.
    active: Option<(Vec<NodeId>, Proven)>,
    bytes: u64,
    failures: u32,
    not_before: Moment,
    /// This node's own state is in doubt.
    distrusted: bool,
    considered_at: Moment,
    /// The catch-up under way is over a few records only.
    near: bool,
    /// Since when others are one record ahead, which this node may yet decide by itself, and since when somebody says so.
    ahead_since: Option<Moment>,
    named_since: Option<Moment>,
}

impl CatchUp {
    pub fn is_idle(&self) -> bool {
        self.active.is_none()
    }

    /// Whether this node stands where the others are, or was a moment ago. Where a round is shorter than it takes to fetch
    /// one, a node that asked to be let in only when it has caught up would never be there; once it is listed, the others
    /// wait for it.
    pub fn is_near(&self) -> bool {
        self.is_idle() || self.near
    }

    /// The head to which the one under way leads.
    pub fn target(&self) -> Option<&Proven> {
        self.active.as_ref().map(|(_, target)| target)
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
        let Stored { head, certificate, past, ancestry, register, candidates, evidence } = stored;
        self.ancestry = ancestry;
        self.stand_on(Standing::new(head, certificate.clone()));
        self.resume_evidence(evidence);
        self.resume_voice(register);
        for proof in certificate.iter().chain(past.iter().take(PAST_MAX)) {
            self.learn_signed(proof);
        }
        self.heed_witnesses();
        self.resume_lineage();
        if self.voice.register.is_none() {
            self.write_empty_register();
        }
        if self.end_if_spent() {
            return;
        }
        self.enter_round(true);
        self.resume_votes(candidates);
        if self.force_fork {
            self.fork_alone();
        }
    }

    pub(super) fn found(&mut self, found: &Founding) {
        let founder = (self.me, self.voice.incarnation);
        let genesis = succession::genesis(self.run, &self.spec, founder, found.nonce, found.state_root);
        // A validated run always has room for one lease.
        let Some(record) = genesis else { return };
        self.begin_lineage();
        let token = self.next_token();
        self.founding = Some((token, record.clone()));
        self.out.push(Output::Found { token, record });
    }

    pub(super) fn founded(&mut self, record: Record) {
        self.notice(Notice::Founded { lineage: record.lineage });
        self.stand_on(Standing::new(record, None));
        if !self.end_if_spent() {
            self.enter_round(false);
        }
    }

    /// The decided record is on disk: it is the head now.
    pub(super) fn committed(&mut self, record: Record, certificate: Certificate) {
        let standing = Standing::new(record, Some(certificate));
        let record = &standing.record;
        let (round, seq) = (record.round, record.seq);
        let (before, after): (BTreeSet<NodeId>, BTreeSet<NodeId>) =
            (self.head.iter().flat_map(|h| h.record.members()).collect(), record.members().collect());
        if record.contributors.is_empty() {
            let forked = self.head.as_ref().is_some_and(|head| head.record.lineage != record.lineage);
            let lineage = record.lineage;
            let notice = if forked {
                Notice::Forked { lineage, members: after.iter().copied().collect() }
            } else {
                Notice::Skipped { record: standing.digest, lineage, seq }
            };
            self.notice(notice);
        } else {
            self.notice(Notice::Committed {
                record: standing.digest,
                round,
                members: standing.record.contributors.iter().map(|c| c.member).collect(),
                tokens: standing.record.tokens,
            });
            let before = self.head.as_ref().map_or_else(Vec::new, |head| head.record.merged.clone());
            self.tell_merged(&before, &standing.record.merged, round);
        }
        for member in after.difference(&before) {
            self.notice(Notice::MemberJoined { member: *member, round });
        }
        for member in before.difference(&after) {
            let reason = self.round.as_ref().and_then(|r| self.fault(member, r)).unwrap_or("it did not contribute");
            self.notice(Notice::MemberLeft { member: *member, round, reason });
        }
        let fork = self.head.as_ref().is_some_and(|head| head.record.lineage != standing.record.lineage);
        let (lineage, digest) = (standing.record.lineage, standing.digest);
        self.stand_on(standing);
        if fork {
            self.take_along(lineage, digest);
        }
        self.hand_to_learners();
        if !self.end_if_spent() {
            self.enter_round(false);
        }
    }

    fn stand_on(&mut self, standing: Standing) {
        let follows = self.history.back().is_none_or(|past| past.digest == standing.record.parent);
        if !follows {
            self.history.clear();
        }
        if self.history.len() >= HISTORY_MAX && !planted!(Plant::HoardHistory) {
            self.history.pop_front();
        }
        // Of the older ones only what tells them apart, and who decided, is needed.
        if let Some(past) = self.history.iter_mut().nth_back(1) {
            past.record.contributors = Vec::new();
            past.record.next.members = Vec::new();
        }
        self.history.push_back(standing.clone());
        self.ancestry.follow(self.head.as_ref().map(|head| &head.record), &standing.record);
        self.head = Some(standing);
        self.round = None;
        self.cut = Cut::default();
        (self.catch_up.ahead_since, self.catch_up.named_since) = (None, None);
        self.heed_witnesses();
        self.heed_merged();
        self.drop_settled_evidence();
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

    /// Looks at the heads of all peers, and catches up with the best.
    pub(super) fn consider_heads(&mut self) {
        let writing = self.round.as_ref().is_some_and(|round| round.committing.is_some());
        if !self.catch_up.is_idle() || self.founding.is_some() || writing || self.now < self.catch_up.not_before {
            return;
        }
        // Looking at everybody is dear in a large flock, and a moment later is soon enough.
        if self.is_large() && self.now.since(self.catch_up.considered_at) < super::QUIET_MAX {
            return;
        }
        self.catch_up.considered_at = self.now;
        self.note_ahead();
        self.look_at_claims();
        if let Some(target) = self.proven_target() {
            let sources = self.sources_of(&target);
            self.begin_catch_up(target, sources);
        } else if self.catch_up.distrusted && self.claims.are_settled() {
            self.fetch_own_state();
        }
    }

    /// This node's own state is in doubt, and nobody is ahead: those who stand where it does have it whole.
    fn fetch_own_state(&mut self) {
        let Some(head) = &self.head else { return };
        let own = Proven::of(&head.record, head.digest, self.ancestry.clone());
        if self.has_source(&own) {
            let sources = self.sources_of(&own);
            self.begin_catch_up(own, sources);
        }
    }

    /// Whether the others are just one record ahead, whose bytes this node holds or is about to: its votes are on their
    /// way.
    fn votes_on(&self, mine: &Place, best: &Place) -> bool {
        let holds = self.round.as_ref().is_some_and(|round| round.holds(&best.record) || round.running.is_some());
        let next = mine.lineage == best.lineage && mine.seq.checked_add(1) == Some(best.seq);
        holds && next && !self.catch_up.distrusted
    }

    /// Whether it is given the time to, before it goes there.
    pub(super) fn may_decide_itself(&self, mine: &Place, best: &Place) -> bool {
        self.votes_on(mine, best) && self.has_time(self.catch_up.ahead_since)
    }

    /// The same before anybody is asked to show what it says.
    pub(super) fn may_leave_unasked(&self, mine: &Place, best: &Place) -> bool {
        self.votes_on(mine, best) && self.has_time(self.catch_up.named_since)
    }

    fn has_time(&self, since: Option<Moment>) -> bool {
        let patience = self.timing.repeat.max(4 * self.slowest_rtt());
        since.map_or(0, |since| self.now.since(since)) < patience
    }

    /// Notes since when others are one record ahead. A stranger's bare word does not use up the time that the own vote has.
    fn note_ahead(&mut self) {
        let Some(mine) = self.place() else { return };
        let ahead = || self.places().filter(|(_, place)| self.votes_on(&mine, place));
        let (named, ahead) = (ahead().next().is_some(), ahead().any(|(id, place)| self.is_believed(&id, &place)));
        if named {
            self.catch_up.named_since.get_or_insert(self.now);
        }
        if ahead {
            self.catch_up.ahead_since.get_or_insert(self.now);
        }
    }

    pub(super) fn place(&self) -> Option<Place> {
        let head = self.head.as_ref()?;
        let Record { lineage, seq, tokens, .. } = head.record;
        Some(Place { lineage, seq, record: head.digest, tokens })
    }

    /// Heads of the peers that can be heard and are not avoided for a while, by ascending id.
    pub(super) fn places(&self) -> impl Iterator<Item = (NodeId, Place)> + '_ {
        let open = self.peers.iter().filter(|(_, peer)| peer.present() && self.now >= peer.avoid_until);
        let heard = open.filter(|(_, peer)| self.now.since(peer.heard_at) < self.silence(peer));
        let thawed = |head: &&Head| head.phase != Phase::Frozen;
        heard.filter_map(move |(id, peer)| Some((*id, Place::of(peer.head.as_ref().filter(thawed)?)?)))
    }

    fn begin_catch_up(&mut self, target: Proven, sources: Vec<NodeId>) {
        let Proven { record, ancestry, .. } = &target;
        let (Some(lineage), Some(seq)) = (ancestry.lineage(), ancestry.seq()) else { return };
        let mine = self.place();
        let other = mine.is_some_and(|mine| mine.lineage != lineage);
        let afresh = mine.is_none() || other || self.catch_up.distrusted;
        self.catch_up.near = !afresh && mine.is_some_and(|mine| seq.saturating_sub(mine.seq) <= JOIN_BEHIND_MAX);
        self.stop_training();
        self.leave_attempt("the flock is elsewhere", None);
        if let (Some(mine), true) = (mine, other) {
            self.notice(Notice::LineageMet { lineage, yields: true });
            self.notice(Notice::RolledBack { from_seq: mine.seq, to_seq: seq });
        }
        self.out.push(Output::CatchUp { lineage, seq, target: *record, sources: sources.clone(), afresh });
        self.catch_up.active = Some((sources, target));
        self.catch_up.bytes = 0;
    }

    pub(super) fn caught_up(&mut self, record: Record, certificate: Option<Certificate>, ancestry: Ancestry) {
        let Some((sources, _)) = self.catch_up.active.take() else { return };
        self.catch_up = CatchUp::default();
        for id in sources {
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.failures = 0;
            }
        }
        let said = self.round.as_ref().and_then(|round| round.own.as_ref()).map(|own| own.signed.ready.base);
        self.contribution = None;
        if self.spec.sync.streams() {
            self.out.push(Output::StartOver);
        }
        if let Some(proof) = &certificate {
            self.learn_signed(proof);
        }
        self.ancestry = ancestry;
        self.stand_on(Standing::new(record, certificate));
        let lineage = self.head.as_ref().map_or(Digest::default(), |head| head.record.lineage);
        self.speak_in(&lineage);
        self.beat.forget_join();
        if self.end_if_spent() {
            return;
        }
        // The contribution that was announced for this very round is lost: whoever makes another is a new start.
        if said.is_some() && said == self.head.as_ref().map(|head| head.base) {
            self.renew();
        }
        self.enter_round(true);
        // What this identity has signed about the next record stands, also when the head is the same as before.
        self.resume_votes(Vec::new());
    }

    /// Tries again later, first with others; until then goes on from the old head.
    pub(super) fn catch_up_failed(&mut self, reason: String) {
        let Some((sources, target)) = self.catch_up.active.take() else { return };
        self.claims.forget(&target.record);
        self.catch_up.not_before = self.now.plus(self.timing.retry << self.catch_up.failures.min(DOUBLINGS_MAX));
        for id in &sources {
            self.pause(id);
        }
        self.catch_up.failures += 1;
        if planted!(Plant::NoRetry) {
            self.catch_up.not_before = self.now.plus(u64::MAX >> 1);
        }
        self.notice(Notice::CatchUpFailed { reason });
        if let Some(round) = self.round.as_mut().filter(|round| round.training == Training::Due) {
            round.resumed = true;
        }
    }

    /// A peer has said where it stands: gives it the votes that contradict what it holds, or that it lacks and should
    /// have by now.
    pub(super) fn help_along(&mut self, from: NodeId, heard: &Head) {
        let Some(mine) = &self.head else { return };
        if heard.lineage != mine.record.lineage {
            return;
        }
        let behind = Some(mine.record.seq) == heard.seq.checked_add(1) && heard.record == mine.record.parent;
        let at = self.history.iter().find(|past| past.record.seq == heard.seq);
        let contradicts = at.is_some_and(|past| past.digest != heard.record);
        let given =
            if contradicts { at } else { Some(mine).filter(|_| behind && self.should_know(&from, heard.phase)) };
        let Some(certificate) = given.and_then(|standing| standing.certificate.clone()) else { return };
        let (now, repeat) = (self.now, self.timing.repeat);
        let Some(peer) = self.peers.get_mut(&from).filter(|p| p.handed_at.is_none_or(|at| now.since(at) >= repeat / 4))
        else {
            return;
        };
        peer.handed_at = Some(now);
        self.send_to(&[from], &Message::Certificate(certificate));
    }

    /// Whether a peer that is one record behind must have missed something. What it said may be older than what it has
    /// heard since; who trains or reduces will decide when it is done; and learners are told by one another.
    fn should_know(&self, id: &NodeId, phase: Phase) -> bool {
        let Some(round) = self.round.as_ref() else { return true };
        let voted = self.history.iter().nth_back(1).is_some_and(|parent| parent.quorum.incarnation(id).is_some());
        let trips = 2 * self.peers.get(id).map_or(0, |peer| u64::from(peer.rtt));
        let patience = if voted { self.timing.repeat / 4 } else { self.timing.repeat };
        let busy = matches!(phase, Phase::Training | Phase::Reducing);
        !busy && self.now.since(round.began) >= patience.max(trips)
    }
}
