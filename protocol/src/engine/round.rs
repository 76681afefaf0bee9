//! One round of a member: training, the own READY, and the attempts so far.

use super::chain::ChainHead;
use super::clock::Moment;
use super::ctx::Ctx;
use super::io::{AttemptKey, Output, PersistToken};
use super::outbox::Out;
use super::quorum_loss::QuorumLoss;
use super::results::Results;
use super::succession::{self, SignedReady};
use super::touch::Touch;
use super::vote::Instance;
use crate::message::{Awaits, Certificate, Phase, Question, Value};
use crate::record::Record;
use crate::{Digest, NodeId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// State of the work on the record after the head, while this node is a member.
#[derive(Debug)]
pub(super) struct Round {
    /// The record that the round follows.
    pub head: Arc<ChainHead>,
    pub task: Task,
    pub began: Moment,
    /// The process that resumed this round did not begin it: it listens a while before it trains.
    pub resumed: bool,
    pub part: Part,
    pub attempts: Attempts,
    /// The vote on the set of the attempt at hand, from 1 on.
    pub set_vote: Instance,
    /// The vote on the record.
    pub record_vote: Instance,
    pub results: Results,
    pub committing: Option<Committing>,
    pub distrust: Distrust,
    pub quorum_loss: QuorumLoss,
}

/// The record to make.
#[derive(Debug)]
pub(super) struct Task {
    /// The place of the round's record in the chain.
    pub seq: u64,
    /// The number of the round, if its record is a COMMIT.
    pub number: u64,
    /// By ascending id, this node included.
    pub members: Vec<NodeId>,
    /// The members of attempt 0, by ascending id.
    pub expected: Vec<NodeId>,
    /// The SKIP that this round may end in.
    pub skip: Option<(Digest, Record)>,
}

/// This node's contribution to the round.
#[derive(Debug)]
pub(super) struct Part {
    pub training: Training,
    /// Inner steps done.
    pub steps: u64,
    pub cut_short: bool,
    /// Since when the record is decided while this node's inner steps still run.
    pub decided_at: Option<Moment>,
    pub ready: Option<Own>,
}

/// This node's READY.
#[derive(Debug)]
pub(super) struct Own {
    pub signed: SignedReady,
    /// When it was last said to all, and how often it was repeated.
    pub said_at: Moment,
    pub repeats: u32,
}

/// The attempts at the record so far.
#[derive(Debug)]
pub(super) struct Attempts {
    /// The number of the attempt under way or being formed.
    pub number: u32,
    pub running: Option<Attempt>,
    /// A member for which attempt 0 was seen to wait.
    pub awaited: Option<NodeId>,
    /// Since when a quorum of voters is READY.
    pub quorum_ready_at: Option<Moment>,
    /// The next attempt is not formed before this.
    pub not_before: Moment,
    /// The decided set of the attempt, by the vote or by a voter's word.
    pub told: Option<Value>,
    pub told_at: Moment,
    pub failures: u32,
}

/// The attempt that this node is in.
#[derive(Debug)]
pub(super) struct Attempt {
    pub key: AttemptKey,
    /// By ascending id.
    pub members: Vec<NodeId>,
    pub stage: Stage,
    pub began: Moment,
    /// Bytes moved here, and the time at which they last moved.
    pub progress: u64,
    pub moved_at: Moment,
    /// What the reduction waits for here, and from which member.
    pub awaits: Option<Awaits>,
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

/// Members that this node leaves out as long as it can, and the reasons.
#[derive(Debug, Default)]
pub(super) struct Distrust {
    /// Members that spoiled an attempt of this round.
    pub ruled_out: BTreeSet<NodeId>,
    /// The member whose bytes this node has refused in a reduction, and the members that have sent a report.
    pub refused: Option<NodeId>,
    pub reporters: BTreeSet<NodeId>,
    /// Members that this node suspected of a failed attempt, and how often.
    pub suspected: BTreeMap<NodeId, u32>,
    /// Members that voters left out of the sets with which they entered votes.
    pub left_out: BTreeMap<NodeId, Vec<NodeId>>,
}

/// A decided record on its way to the disk.
#[derive(Debug)]
pub(super) struct Committing {
    pub token: PersistToken,
    pub record: Record,
    pub certificate: Certificate,
    pub since: Moment,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Training {
    /// Training begins when the node has listened for a while.
    Due,
    Running,
    Done,
}

impl Task {
    fn after(head: &ChainHead) -> Self {
        Self {
            seq: head.record.seq.saturating_add(1),
            number: head.record.round.saturating_add(1),
            members: head.record.members().collect(),
            expected: succession::expected(&head.record),
            skip: succession::skip(&head.record, head.digest).map(|record| (record.digest(), record)),
        }
    }
}

impl Attempt {
    pub fn is_reducing(&self) -> bool {
        self.stage == Stage::Reducing
    }

    /// Whether this update of the attempt is complete and being applied.
    pub fn is_speculating(&self, key: &AttemptKey, update: &Digest) -> bool {
        self.key == *key && self.stage == Stage::Speculating { update: *update }
    }
}

impl Round {
    pub fn new(head: Arc<ChainHead>, began: Moment, resumed: bool) -> Self {
        let task = Task::after(&head);
        let question = |instance| Question { seq: task.seq, parent: head.digest, instance };
        let attempts = Attempts {
            number: 0,
            running: None,
            awaited: None,
            quorum_ready_at: None,
            not_before: began,
            told: None,
            told_at: began,
            failures: 0,
        };
        Self {
            set_vote: Instance::new(question(0)),
            record_vote: Instance::new(question(Question::RECORD)),
            head,
            task,
            began,
            resumed,
            part: Part { training: Training::Due, steps: 0, cut_short: false, decided_at: None, ready: None },
            attempts,
            results: Results::default(),
            committing: None,
            distrust: Distrust::default(),
            quorum_loss: QuorumLoss::default(),
        }
    }

    /// Whether this node could commit a record at once if it were decided.
    pub fn holds(&self, record: &Digest) -> bool {
        self.results.holding.contains_key(record) || self.task.skip.as_ref().is_some_and(|(digest, _)| digest == record)
    }

    /// Names an attempt at this round.
    pub fn key_of(&self, attempt: u32, set: Digest) -> AttemptKey {
        AttemptKey { lineage: self.head.record.lineage, seq: self.task.seq, attempt, set }
    }

    /// The node's phase.
    pub fn phase(&self, ctx: &Ctx) -> Phase {
        if self.committing.is_some() || self.record_vote.entered() {
            return Phase::Settling;
        }
        let quorum_lost = self.quorum_loss.since().is_some();
        match (&self.attempts.running, self.part.training) {
            (Some(attempt), _) if attempt.is_reducing() => Phase::Reducing,
            (Some(_), _) => Phase::Settling,
            // The other members would count on this node, although it was a quorum by itself before.
            (None, Training::Done) if quorum_lost && ctx.lacks_word() => Phase::QuorumLost,
            (None, Training::Running) => Phase::Training,
            (None, Training::Due) if quorum_lost => Phase::QuorumLost,
            (None, Training::Due) => Phase::Joining,
            (None, Training::Done) => Phase::Ready,
        }
    }

    /// Lets the trainer begin if it is time.
    pub fn begin_training(&mut self, ctx: &Ctx, out: &mut Out) {
        let decided = self.committing.is_some() || self.part.decided_at.is_some();
        if self.part.training != Training::Due || decided || self.quorum_loss.holds_training() || ctx.leaving.is_some()
        {
            return;
        }
        let alone = self.task.members.len() == 1;
        if !alone && ctx.is_settling(self) && !self.all_met(ctx) {
            return;
        }
        let ChainHead { record, base, .. } = &*self.head;
        let Some(member) = record.member(&ctx.me) else { return };
        let inner_steps = ctx.steps_of(&member.lease, record.next.inner_steps);
        let (round, lease, done) = (self.task.number, member.lease, record.done());
        out.push(Output::Train { round, base: *base, lease, inner_steps, done });
        (self.part.training, self.part.steps) = (Training::Running, 0);
    }

    /// Whether every member of the round that exchanges Heads with this node is here and has sent one.
    fn all_met(&self, ctx: &Ctx) -> bool {
        let met =
            |id: &NodeId| *id == ctx.me || ctx.peers.get(id).is_some_and(|p| p.present() && p.said.head.is_some());
        self.task.members.iter().all(|id| met(id) || !ctx.in_touch(id) || ctx.touch(id) != Touch::Direct)
    }

    pub fn train_progress(&mut self, round: u64, step: u32) {
        if self.task.number == round && self.part.training == Training::Running {
            self.part.steps = self.part.steps.max(step.into());
        }
    }

    /// Stops the trainer if it runs.
    pub fn stop_training(&mut self, out: &mut Out) {
        if self.part.training == Training::Running {
            self.part.training = Training::Due;
            out.push(Output::StopTraining { round: self.task.number });
        }
    }

    /// Ends this node's inner steps after the one under way.
    pub fn cut_short(&mut self, out: &mut Out) {
        if self.part.training == Training::Running && !std::mem::replace(&mut self.part.cut_short, true) {
            out.push(Output::CutShort { round: self.task.number });
        }
    }

    /// Returns the decided record whose write has this token, with the time at which the write began.
    pub fn written(&mut self, token: PersistToken) -> Option<Committing> {
        self.committing.take_if(|committing| committing.token == token)
    }
}

impl Ctx {
    /// The READY of a member of this round, this node's own or a heard one.
    pub fn ready_of<'a>(&'a self, id: &NodeId, round: &'a Round) -> Option<&'a SignedReady> {
        if *id == self.me {
            return round.part.ready.as_ref().map(|own| &own.signed);
        }
        self.peers.get(id)?.ready(&round.head.record.lineage, round.task.number, &round.head.base)
    }
}
