//! What a person may want to know: phase, members, and what the node waits for.

use super::Engine;
use super::attempt::Stage;
use super::clock::Moment;
use super::io::Notice;
use super::round::{Round, Training};
use crate::message::{Phase, ValueKind};
use crate::plant::{Plant, planted};
use crate::record::{Record, Role};
use crate::{Digest, NodeId};

/// Waiting is told again after this time, in microseconds, if whom it is for has changed.
const REPEAT: u64 = 10_000_000;
/// In a large flock what this node waits for is looked at once in this time, in microseconds.
const LOOK: u64 = 500_000;

/// A picture of the engine at one moment, for `starling status`.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    pub me: NodeId,
    pub phase: Phase,
    /// The lineage; zero while the node stands nowhere.
    pub lineage: Digest,
    pub seq: u64,
    /// Digest of the head record; zero while the node stands nowhere.
    pub head: Digest,
    /// Rounds and tokens committed.
    pub round: u64,
    pub tokens: u64,
    /// Number and members of the attempt that this node is in.
    pub attempt: Option<(u32, Vec<NodeId>)>,
    /// Who decides, and whether enough of them are here.
    pub quorum: QuorumView,
    /// Members of the round under way, this node included, by ascending id.
    pub members: Vec<MemberView>,
    /// Everybody else who is connected, by ascending id.
    pub others: Vec<MemberView>,
    pub waiting: Option<Waiting>,
    /// Who is held to have contradicted itself, by ascending id.
    pub evidence: Vec<EvidenceView>,
}

/// Somebody has contradicted itself.
#[derive(Clone, Debug, PartialEq)]
pub struct EvidenceView {
    pub against: NodeId,
    /// What it said twice: `ready`, `estimate` or `vote`.
    pub what: &'static str,
    /// The head record says so.
    pub revoked: bool,
}

/// The voters on the next record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QuorumView {
    pub voters: usize,
    pub here: usize,
    pub in_reach: bool,
    /// Whose presence makes a half a quorum; zero bytes while the node stands nowhere.
    pub distinguished: Option<NodeId>,
    /// Microseconds since a quorum was last in reach, while none is.
    pub cut_off: Option<u64>,
    /// Two certified records contradict each other.
    pub frozen: bool,
}

/// How much one engine holds: each count has a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub peers: usize,
    pub history: usize,
    pub results: usize,
    pub fetches: usize,
    pub votes: usize,
    pub evidence: usize,
}

/// Another node, or this one, as this node sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberView {
    pub id: NodeId,
    pub connected: bool,
    /// Its phase and its progress in it, as last heard.
    pub phase: Option<Phase>,
    pub progress: u64,
    pub seq: u64,
    /// Microseconds since it was last heard.
    pub heard: Option<u64>,
    pub state: MemberState,
    /// Voter or learner; None for who is no member.
    pub role: Option<Role>,
}

/// What a member is to the round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// No member of this round.
    Outside,
    /// Expected to contribute.
    Working,
    /// Its contribution is announced.
    Ready,
    /// Not counted on, and why.
    Out(&'static str),
}

/// What the node waits for, in plain words, and for whom.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiting {
    pub why: &'static str,
    pub on: Vec<NodeId>,
}

/// What was last told, so that notices come on change only.
#[derive(Debug, Default)]
pub(super) struct Spoken {
    phase: Option<(Phase, u64)>,
    waiting: Option<Waiting>,
    waiting_at: Moment,
    looked_at: Moment,
    seeking: Option<usize>,
}

impl Engine {
    /// What this node is doing.
    pub(super) fn phase(&self) -> Phase {
        if self.end.is_some() {
            return Phase::Finished;
        }
        if self.frozen {
            return Phase::Frozen;
        }
        if !self.catch_up.is_idle() {
            return Phase::CatchingUp;
        }
        let Some(round) = &self.round else {
            return if self.head.is_some() { Phase::Joining } else { Phase::Seeking };
        };
        if round.committing.is_some() || round.record_vote.entered() {
            return Phase::Settling;
        }
        match (&round.running, round.training) {
            (Some(attempt), _) if attempt.stage == Stage::Reducing => Phase::Reducing,
            (Some(_), _) => Phase::Settling,
            // The others would count on it, where it was a quorum by itself before.
            (None, Training::Done) if self.cut.since().is_some() && self.lacks_word() => Phase::CutOff,
            (None, Training::Running) => Phase::Training,
            (None, Training::Due) if self.cut.since().is_some() => Phase::CutOff,
            (None, Training::Due) => Phase::Joining,
            (None, Training::Done) => Phase::Ready,
        }
    }

    /// How much this engine holds of what others make it hold.
    pub fn held(&self) -> Held {
        let round = self.round.as_ref();
        let votes = round.map_or(0, |round| round.record_vote.votes.len() + round.set_vote.votes.len());
        Held {
            peers: self.peers.len(),
            history: self.history.len(),
            results: round.map_or(0, |round| round.holding.len()),
            fetches: round.map_or(0, |round| round.fetching.len()),
            votes,
            evidence: self.convicted.len(),
        }
    }

    fn quorum_view(&self) -> QuorumView {
        let Some(head) = &self.head else { return QuorumView::default() };
        let voters = head.quorum.voters();
        QuorumView {
            voters: voters.len(),
            here: voters.iter().filter(|(id, _)| self.voter_in_reach(id)).count(),
            in_reach: self.quorum_in_reach(),
            distinguished: Some(head.quorum.distinguished()),
            cut_off: self.cut.since().map(|since| self.now.since(since)),
            frozen: self.frozen,
        }
    }

    /// Progress in the phase.
    pub(super) fn progress(&self) -> u64 {
        match self.phase() {
            Phase::CatchingUp => self.catch_up.bytes(),
            Phase::Training => self.beat.steps,
            Phase::Reducing => {
                self.round.as_ref().and_then(|round| round.running.as_ref()).map_or(0, |attempt| attempt.progress)
            }
            _ => 0,
        }
    }

    /// The record that the node stands on, if it has one.
    pub fn head(&self) -> Option<&Record> {
        self.head.as_ref().map(|head| &head.record)
    }

    /// The state as a person sees it.
    pub fn view(&self) -> View {
        let head = self.head.as_ref();
        let running = self.round.as_ref().and_then(|round| round.running.as_ref());
        let members: Vec<NodeId> = head.iter().flat_map(|head| head.record.members()).collect();
        let others = self.peers.iter().filter(|(id, peer)| peer.connected && !self.is_member(id)).map(|(id, _)| *id);
        View {
            me: self.me,
            phase: self.phase(),
            lineage: head.map_or(Digest::default(), |h| h.record.lineage),
            seq: head.map_or(0, |h| h.record.seq),
            head: head.map_or(Digest::default(), |h| h.digest),
            round: head.map_or(0, |h| h.record.round),
            tokens: head.map_or(0, |h| h.record.tokens),
            attempt: running.map(|attempt| (attempt.key.attempt, attempt.members.clone())),
            quorum: self.quorum_view(),
            members: members.iter().map(|id| self.member_view(*id)).collect(),
            others: others.map(|id| self.member_view(id)).collect(),
            waiting: self.waiting(),
            evidence: self.evidence_view(),
        }
    }

    fn evidence_view(&self) -> Vec<EvidenceView> {
        let revoked = |id: &NodeId| {
            self.head.as_ref().is_some_and(|head| head.record.revoked.binary_search(&Digest(id.0)).is_ok())
        };
        let view = |(id, (what, _)): (&NodeId, &(crate::evidence::Contradiction, _))| EvidenceView {
            against: *id,
            what: what.name(),
            revoked: revoked(id),
        };
        self.convicted.iter().map(view).collect()
    }

    fn member_view(&self, id: NodeId) -> MemberView {
        let state = match self.round.as_ref().filter(|round| round.members.contains(&id)) {
            None => MemberState::Outside,
            Some(round) => match self.fault(&id, round) {
                Some(why) => MemberState::Out(why),
                None if self.ready_of(&id, round).is_some() => MemberState::Ready,
                None => MemberState::Working,
            },
        };
        let role = self.head.as_ref().and_then(|head| head.record.member(&id)).map(|member| member.role);
        if id == self.me {
            let seq = self.head.as_ref().map_or(0, |h| h.record.seq);
            let (phase, progress) = (Some(self.phase()), self.progress());
            return MemberView { id, connected: true, phase, progress, seq, heard: Some(0), state, role };
        }
        let peer = self.peers.get(&id);
        let head = peer.and_then(|peer| peer.head.as_ref());
        MemberView {
            id,
            connected: peer.is_some_and(|peer| peer.connected),
            phase: head.map(|head| head.phase),
            progress: head.map_or(0, |head| head.progress),
            seq: head.map_or(0, |head| head.seq),
            heard: peer.filter(|peer| peer.boot.is_some()).map(|peer| self.now.since(peer.heard_at)),
            state,
            role,
        }
    }

    /// What this node waits for, if it has nothing to do itself.
    fn waiting(&self) -> Option<Waiting> {
        let waiting = |why, on| Some(Waiting { why, on });
        if self.end.is_some() || !self.catch_up.is_idle() || self.head.is_none() {
            return None;
        }
        let Some(round) = &self.round else {
            let members = self.head.iter().flat_map(|head| head.record.members()).collect();
            return waiting("the members' next record, which is to let this node in", members);
        };
        if round.committing.is_some() {
            return None;
        }
        if self.frozen {
            return waiting("a person: two certified records contradict each other", Vec::new());
        }
        if self.cut.since().is_some() {
            return waiting("a quorum of voters, from which this node is cut off", self.missing_voters());
        }
        if round.training == Training::Running {
            return None;
        }
        if round.training == Training::Due {
            return waiting("after a restart: listening whether the flock has gone on", self.unmet(round));
        }
        if round.record_vote.entered() {
            let heard = round.record_vote.ballot.as_ref();
            let silent = |id: &NodeId| heard.is_none_or(|ballot| ballot.names(id).next().is_none());
            let voters = self.head.iter().flat_map(|head| head.quorum.voters()).map(|(id, _)| *id);
            return waiting("the vote on the record", voters.filter(|id| *id != self.me && silent(id)).collect());
        }
        if round.running.is_some() {
            return None;
        }
        self.waiting_to_begin(round)
    }

    fn waiting_to_begin(&self, round: &Round) -> Option<Waiting> {
        let unready = round.expected.iter().copied().filter(|id| self.ready_of(id, round).is_none());
        let unready: Vec<NodeId> = unready.filter(|id| self.fault(id, round).is_none()).collect();
        let named = round.record_vote.ballot.iter().flat_map(|b| b.heard()).any(|v| v.kind == ValueKind::Commit);
        let why = if named || round.told.as_ref().is_some_and(|_| round.running.is_none()) {
            "the others end this round without this node"
        } else if round.attempt == 0 && !unready.is_empty() {
            return Some(Waiting { why: "members that still train", on: unready });
        } else {
            "the voters to decide who goes on"
        };
        Some(Waiting { why, on: self.others(round) })
    }

    fn others(&self, round: &Round) -> Vec<NodeId> {
        round.members.iter().copied().filter(|id| *id != self.me).collect()
    }

    fn unmet(&self, round: &Round) -> Vec<NodeId> {
        self.others(round).into_iter().filter(|id| !self.is_present(id)).collect()
    }

    /// Tells the user what has changed.
    pub(super) fn speak(&mut self) {
        let phase = (self.phase(), self.round.as_ref().map_or(0, |round| round.number));
        let changed = self.spoken.phase != Some(phase);
        if changed {
            self.spoken.phase = Some(phase);
            self.notice(Notice::PhaseChanged { phase: phase.0, round: phase.1 });
        }
        let peers = || self.peers.values().filter(|peer| peer.connected).count();
        let seeking = (phase.0 == Phase::Seeking && self.founding.is_none()).then(peers);
        if self.spoken.seeking != seeking {
            self.spoken.seeking = seeking;
            if let Some(peers) = seeking {
                self.notice(Notice::Seeking { peers });
            }
        }
        // Looking at everybody is dear in a large flock.
        if !changed && self.is_large() && self.now.since(self.spoken.looked_at) < LOOK {
            return;
        }
        self.spoken.looked_at = self.now;
        let waiting = self.waiting();
        let why = |w: &Option<Waiting>| w.as_ref().map(|w| w.why);
        let long_ago = self.now.since(self.spoken.waiting_at) >= REPEAT;
        if why(&self.spoken.waiting) != why(&waiting) || (long_ago && self.spoken.waiting != waiting) {
            if let Some(Waiting { why, on }) = waiting.clone() {
                self.notice(Notice::Waiting { on, why });
            }
            self.spoken.waiting = waiting;
            self.spoken.waiting_at = self.now;
        }
    }

    /// When time alone changes something next: a beat, or a deadline about a member.
    pub(super) fn next_deadline(&self) -> Moment {
        let mut next = self.beat.due(self.timing.heartbeat);
        if !self.catch_up.not_before().passed(self.now) {
            next = next.min(self.catch_up.not_before());
        }
        let pauses = self.peers.values().map(|peer| peer.avoid_until).filter(|at| !at.passed(self.now));
        next = if planted!(Plant::SleepOn) { next } else { pauses.fold(next, Moment::min) };
        let Some(round) = &self.round else { return next };
        let down = self.peers.iter().filter(|(id, peer)| !peer.connected && round.members.binary_search(id).is_ok());
        let graces = down.map(|(_, peer)| peer.switched_at.plus(self.down_grace(round)));
        let votes = [&round.set_vote, &round.record_vote].map(|vote| vote.said_at.plus(100_000));
        let fork = self.cut.due_at(self.fork_grace());
        let fetches = round.fetching.values().map(|fetching| fetching.not_before);
        let waits = self.waits_for_witnesses();
        let others = votes.into_iter().chain(fork).chain(fetches).chain(waits).chain([round.not_before]);
        let settle = (round.training == Training::Due).then(|| round.began.plus(self.timing.settle));
        let assembly = self.assembly_deadlines(round);
        graces.chain(others).chain(settle).chain(assembly).filter(|at| !at.passed(self.now)).fold(next, Moment::min)
    }
}
