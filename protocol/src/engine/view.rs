//! The status for a person: phase, members, and what the node waits for.

use super::clock::Moment;
use super::conduct::{self, Conduct};
use super::ctx::Ctx;
use super::io::{Finish, Notice};
use super::newcomers::{Hold, Newcomers};
use super::outbox::Out;
use super::round::{Round, Training};
use super::sync::CatchUp;
use crate::evidence::Contradiction;
use crate::message::{Head, Phase, ValueKind};
use crate::mutation::{Mutation, mutated};
use crate::record::{Member, Role};
use crate::run::Minority;
use crate::{Digest, NodeId};

/// A picture of the engine at one moment, for `starling status`.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    pub me: NodeId,
    pub phase: Phase,
    /// This node founds a lineage, whose first record is not on the disk yet.
    pub founds: bool,
    /// The lineage; zero without a head.
    pub lineage: Digest,
    pub seq: u64,
    /// Digest of the head record; zero without a head.
    pub head: Digest,
    /// Rounds and tokens committed.
    pub round: u64,
    pub tokens: u64,
    /// Number and members of the attempt that this node is in.
    pub attempt: Option<(u32, Vec<NodeId>)>,
    /// The voters that decide, and whether enough of them are here.
    pub quorum: QuorumView,
    /// Members of the round under way, this node included, by ascending id.
    pub members: Vec<MemberView>,
    /// All other connected nodes, by ascending id.
    pub others: Vec<MemberView>,
    pub waiting: Option<Waiting>,
    /// The round waits for newcomers.
    pub hold: Option<Hold>,
    /// Nodes against which evidence is held, by ascending id.
    pub evidence: Vec<EvidenceView>,
}

/// Evidence that a node has contradicted itself.
#[derive(Clone, Debug, PartialEq)]
pub struct EvidenceView {
    pub against: NodeId,
    /// The kind of its two statements: `ready`, `estimate` or `vote`.
    pub what: &'static str,
    /// The head record says that it is revoked.
    pub revoked: bool,
}

/// The voters on the next record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QuorumView {
    pub voters: usize,
    pub here: usize,
    pub in_reach: bool,
    /// The distinguished voter, whose presence makes a half a quorum; None without a head.
    pub distinguished: Option<NodeId>,
    /// Microseconds since a quorum was last in reach, while none is.
    pub quorum_lost: Option<u64>,
    /// Microseconds until this node goes on as a lineage of its own, if it is to do so and no quorum comes back.
    pub forks_in: Option<u64>,
    /// Two certified records contradict each other.
    pub frozen: bool,
}

/// The amounts that one engine holds; each has a limit.
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
    /// Voter or learner; None for a node that is no member.
    pub role: Option<Role>,
}

/// A member's part in the round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// No member of this round.
    Outside,
    /// Expected to contribute.
    Working,
    /// Its contribution is announced.
    Ready,
    /// The member is not counted on, for this reason.
    Out(&'static str),
}

/// The reason for which the node waits, in plain words, and the members that it waits for.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiting {
    pub why: &'static str,
    pub on: Vec<NodeId>,
}

/// The notices last given, so that they come on change only.
#[derive(Debug, Default)]
pub(super) struct Spoken {
    phase: Option<(Phase, u64)>,
    waiting: Option<Waiting>,
    waiting_at: Moment,
    looked_at: Moment,
    seeking: Option<usize>,
}

/// The engine as a whole, to read from.
#[derive(Clone, Copy)]
pub(super) struct Scene<'a> {
    pub ctx: &'a Ctx,
    pub round: Option<&'a Round>,
    pub catch_up: &'a CatchUp,
    pub conduct: &'a Conduct,
    pub newcomers: &'a Newcomers,
    pub end: Option<&'a Finish>,
    /// This node founds a lineage, whose first record is not on the disk yet.
    pub founds: bool,
}

impl Scene<'_> {
    /// This node's phase.
    pub fn phase(&self) -> Phase {
        if self.end.is_some() {
            return Phase::Finished;
        }
        if self.ctx.frozen {
            return Phase::Frozen;
        }
        if !self.catch_up.is_idle() {
            return Phase::CatchingUp;
        }
        match self.round {
            Some(round) => round.phase(self.ctx),
            None if self.ctx.head.is_some() => Phase::Joining,
            None => Phase::Seeking,
        }
    }

    fn quorum_lost(&self) -> Option<Moment> {
        self.round.and_then(|round| round.quorum_loss.since())
    }

    /// This node's phase as others hear it. To the others, a node that says that it has lost the quorum is no voter. If
    /// all nodes that halt for want of a quorum said so, none of them would find the others again. In the middle of a
    /// vote, too, a node that may not speak is no voter.
    fn told_phase(&self) -> Phase {
        let lacks = self.ctx.lacks_word();
        let mute = lacks && self.quorum_lost().is_some() && !mutated!(Mutation::MuteSettles);
        match self.phase() {
            Phase::Settling if mute => Phase::QuorumLost,
            Phase::QuorumLost if !lacks && !mutated!(Mutation::HaltApart) => Phase::Joining,
            phase => phase,
        }
    }

    /// Progress in the phase.
    fn progress(&self) -> u64 {
        let running = self.round.and_then(|round| round.attempts.running.as_ref());
        match self.phase() {
            Phase::CatchingUp => self.catch_up.bytes(),
            Phase::Training => self.round.map_or(0, |round| round.part.steps),
            Phase::Reducing => running.map_or(0, |attempt| attempt.progress),
            Phase::Ready => self.newcomers.moves(),
            _ => 0,
        }
    }

    pub fn head_message(&self) -> Head {
        let head = self.ctx.head.as_ref();
        let (lineage, seq, tokens) =
            head.map_or((Digest::default(), 0, 0), |h| (h.record.lineage, h.record.seq, h.record.tokens));
        let record = self.ctx.head_digest();
        let phase = self.told_phase();
        let awaits = match phase {
            Phase::Reducing => self.round.and_then(|round| round.attempts.running.as_ref()?.awaits),
            _ => self.round.and_then(Round::refusal_report),
        };
        Head {
            lineage,
            seq,
            record,
            tokens,
            phase,
            progress: self.progress(),
            awaits,
            pulse: self.ctx.pulse(self.round),
        }
    }

    /// Whether this node has to ask the others to be let into the next round: it is no member, or a member that they do
    /// not expect, or know under another incarnation.
    pub fn wants_in(&self) -> bool {
        let ctx = self.ctx;
        let settled = self.catch_up.is_near() && !ctx.distrusted && !ctx.frozen && ctx.leaving.is_none();
        let Some(head) = ctx.head.as_ref().filter(|_| settled) else { return false };
        let known = |member: &Member| member.incarnation == ctx.identity.incarnation && member.expected;
        !head.record.member(&ctx.me).is_some_and(known) || self.round.is_some_and(|round| round.resumed)
    }

    pub fn held(&self) -> Held {
        let round = self.round;
        Held {
            peers: self.ctx.peers.len(),
            history: self.ctx.history.len(),
            results: round.map_or(0, |round| round.results.holding.len()),
            fetches: round.map_or(0, |round| round.results.fetching.len()),
            votes: round.map_or(0, |round| round.record_vote.votes.len() + round.set_vote.votes.len()),
            evidence: self.conduct.evidence().len(),
        }
    }

    fn quorum(&self) -> QuorumView {
        let Some(head) = &self.ctx.head else { return QuorumView::default() };
        let (voters, policy) = (head.quorum.voters(), self.ctx.rules.partition.minority);
        let fork = self.round.and_then(|round| round.quorum_loss.due_at(self.ctx.fork_grace()));
        QuorumView {
            voters: voters.len(),
            here: voters.iter().filter(|(id, _)| self.ctx.voter_in_reach(id)).count(),
            in_reach: self.ctx.quorum_in_reach(),
            distinguished: Some(head.quorum.distinguished()),
            quorum_lost: self.quorum_lost().map(|since| self.ctx.now.since(since)),
            forks_in: fork.filter(|_| policy == Minority::Fork).map(|at| at.since(self.ctx.now)),
            frozen: self.ctx.frozen,
        }
    }

    pub fn view(&self) -> View {
        let ctx = self.ctx;
        let head = ctx.head.as_ref();
        let running = self.round.and_then(|round| round.attempts.running.as_ref());
        let others = ctx.peers.iter().filter(|(id, peer)| peer.link.connected && !ctx.is_member(id)).map(|(id, _)| *id);
        View {
            me: ctx.me,
            phase: self.phase(),
            founds: self.founds,
            lineage: head.map_or(Digest::default(), |h| h.record.lineage),
            seq: head.map_or(0, |h| h.record.seq),
            head: ctx.head_digest(),
            round: head.map_or(0, |h| h.record.round),
            tokens: head.map_or(0, |h| h.record.tokens),
            attempt: running.map(|attempt| (attempt.key.attempt, attempt.members.clone())),
            quorum: self.quorum(),
            members: head.iter().flat_map(|head| head.record.members()).map(|id| self.member(id)).collect(),
            others: others.map(|id| self.member(id)).collect(),
            waiting: self.waiting(),
            hold: self.newcomers.view(ctx),
            evidence: self.evidence(),
        }
    }

    /// Looks at the deadlines behind a view of the others, so that the node wakes when time alone changes it. In a
    /// large flock that is expensive, and a view is as old as the last input.
    pub fn foresee(&self) {
        let ctx = self.ctx;
        if ctx.is_large() {
            return;
        }
        for (id, _) in ctx.head.iter().flat_map(|head| head.quorum.voters()) {
            ctx.voter_in_reach(id);
        }
        if let Some(round) = self.round {
            for id in &round.task.members {
                ctx.fault(id, round);
            }
        }
    }

    fn evidence(&self) -> Vec<EvidenceView> {
        let revoked = |id: &NodeId| self.ctx.head.as_ref().is_some_and(|head| conduct::is_revoked(&head.record, id));
        let view = |(id, what): (&NodeId, Contradiction)| EvidenceView {
            against: *id,
            what: what.name(),
            revoked: revoked(id),
        };
        self.conduct.evidence().map(view).collect()
    }

    fn member(&self, id: NodeId) -> MemberView {
        let ctx = self.ctx;
        let state = match self.round.filter(|round| round.task.members.contains(&id)) {
            None => MemberState::Outside,
            Some(round) => match ctx.fault(&id, round) {
                Some(why) => MemberState::Out(why),
                None if ctx.ready_of(&id, round).is_some() => MemberState::Ready,
                None => MemberState::Working,
            },
        };
        let role = ctx.head.as_ref().and_then(|head| head.record.member(&id)).map(|member| member.role);
        if id == ctx.me {
            let seq = ctx.head.as_ref().map_or(0, |h| h.record.seq);
            let (phase, progress) = (Some(self.phase()), self.progress());
            return MemberView { id, connected: true, phase, progress, seq, heard: Some(0), state, role };
        }
        let peer = ctx.peers.get(&id);
        let head = peer.and_then(|peer| peer.said.head.as_ref());
        MemberView {
            id,
            connected: peer.is_some_and(|peer| peer.link.connected),
            phase: head.map(|head| head.phase),
            progress: head.map_or(0, |head| head.progress),
            seq: head.map_or(0, |head| head.seq),
            heard: peer.filter(|peer| peer.process.boot.is_some()).map(|peer| ctx.now.since(peer.link.heard_at)),
            state,
            role,
        }
    }

    /// The reason for which this node waits, if it has nothing to do itself.
    fn waiting(&self) -> Option<Waiting> {
        let waiting = |why, on| Some(Waiting { why, on });
        let head = self.ctx.head.as_ref().filter(|_| self.end.is_none() && self.catch_up.is_idle())?;
        let Some(round) = self.round else {
            let members = head.record.members().collect();
            return waiting("the members' next record, which is to let this node in", members);
        };
        if round.committing.is_some() {
            return None;
        }
        if self.ctx.frozen {
            return waiting("a person: two certified records contradict each other", Vec::new());
        }
        if round.quorum_loss.since().is_some() {
            return waiting("a quorum of voters, from which this node is cut off", self.ctx.missing_voters());
        }
        match round.part.training {
            Training::Running => return None,
            Training::Due => {
                let unmet = self.others(round).filter(|id| !self.ctx.is_present(id)).collect();
                return waiting("after a restart: listening whether the flock has gone on", unmet);
            }
            Training::Done if self.newcomers.holds() => {
                let on = self.newcomers.view(self.ctx).map(|hold| hold.on);
                return waiting("newcomers that fetch the state", on.unwrap_or_default());
            }
            Training::Done => {}
        }
        if round.record_vote.entered() {
            let silent = |id: &NodeId| round.record_vote.names(id).next().is_none();
            let voters = head.quorum.voters().iter().map(|(id, _)| *id);
            return waiting("the vote on the record", voters.filter(|id| *id != self.ctx.me && silent(id)).collect());
        }
        if round.attempts.running.is_some() { None } else { Some(self.waiting_to_begin(round)) }
    }

    fn waiting_to_begin(&self, round: &Round) -> Waiting {
        let ctx = self.ctx;
        let unready = round.task.expected.iter().copied().filter(|id| ctx.ready_of(id, round).is_none());
        let unready: Vec<NodeId> = unready.filter(|id| ctx.fault(id, round).is_none()).collect();
        let named = round.record_vote.heard().any(|value| value.kind == ValueKind::Commit);
        let why = if named || round.attempts.told.is_some() {
            "the others end this round without this node"
        } else if round.attempts.number == 0 && !unready.is_empty() {
            return Waiting { why: "members that still train", on: unready };
        } else {
            "the voters to decide who goes on"
        };
        Waiting { why, on: self.others(round).collect() }
    }

    fn others<'a>(&self, round: &'a Round) -> impl Iterator<Item = NodeId> + use<'a> {
        let me = self.ctx.me;
        round.task.members.iter().copied().filter(move |id| *id != me)
    }
}

impl Spoken {
    /// Tells the user what has changed.
    pub fn speak(&mut self, scene: &Scene<'_>, out: &mut Out) {
        let ctx = scene.ctx;
        let phase = (scene.phase(), scene.round.map_or(0, |round| round.task.number));
        let changed = self.phase != Some(phase);
        if changed {
            self.phase = Some(phase);
            out.notice(Notice::PhaseChanged { phase: phase.0, round: phase.1 });
        }
        let peers = || ctx.peers.values().filter(|peer| peer.link.connected).count();
        let seeking = (phase.0 == Phase::Seeking && !scene.founds).then(peers);
        if self.seeking != seeking {
            self.seeking = seeking;
            if let Some(peers) = seeking {
                out.notice(Notice::Seeking { peers });
            }
        }
        // Looking at all members is expensive in a large flock.
        if !changed && ctx.is_large() && !ctx.may_look_for_user(self.looked_at) {
            return;
        }
        self.looked_at = ctx.now;
        let waiting = scene.waiting();
        let why = |w: &Option<Waiting>| w.as_ref().map(|w| w.why);
        let news = why(&self.waiting) != why(&waiting);
        if news || self.waiting != waiting && ctx.may_tell_again(self.waiting_at) {
            if let Some(Waiting { why, on }) = waiting.clone() {
                out.notice(Notice::Waiting { on, why });
            }
            (self.waiting, self.waiting_at) = (waiting, ctx.now);
        }
    }
}
