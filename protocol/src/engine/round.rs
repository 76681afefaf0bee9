//! One round as a member lives it: training, the own READY, and what the attempts have led to so far.

use super::Engine;
use super::attempt::Attempt;
use super::clock::Moment;
use super::form::Forming;
use super::heads::Standing;
use super::io::{AttemptKey, Output, PersistToken};
use super::succession::SignedReady;
use crate::message::{Form, Message, Ready, Report};
use crate::record::Record;
use crate::{Digest, NodeId, wire};
use std::collections::{BTreeMap, BTreeSet};

/// State of the round after the head record, while this node is one of its members.
#[derive(Debug)]
pub(super) struct Round {
    /// The record that it is to end in.
    pub seq: u64,
    pub number: u64,
    pub parent: Digest,
    /// By ascending id, this node included.
    pub members: Vec<NodeId>,
    pub began: Moment,
    /// Taken up by a process that did not begin it, or given up in between: attempt 0 is not for this node.
    pub resumed: bool,
    /// This node's state is in doubt or its contribution is lost: it waits for the next record.
    pub barred: bool,
    pub training: Training,
    pub own: Option<Own>,
    /// Highest attempt number that this node has used.
    pub attempt: u32,
    pub running: Option<Attempt>,
    pub forming: Option<Forming>,
    /// The newest proposal, repeated until the round ends.
    pub form: Option<Form>,
    pub report: Option<Made>,
    /// The report is on its way to the disk: nothing is said about attempts until it is there.
    pub persisting: Option<PersistToken>,
    /// The reported record is decided; its state is computed anew before it can be adopted.
    pub redoing: bool,
    pub committing: Option<(PersistToken, Record)>,
    /// Members that spoiled an attempt of this round.
    pub ruled_out: BTreeSet<NodeId>,
    /// Failed reductions of this round, and whom this node suspected how often.
    pub failures: u32,
    pub suspected: BTreeMap<NodeId, u32>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Training {
    /// Begins when the node has listened for a while.
    Due,
    Running,
    Done,
}

/// This node's READY and its signed bytes.
#[derive(Debug)]
pub(super) struct Own {
    pub signed: SignedReady,
    pub bytes: Vec<u8>,
}

/// What the trainer has done in a round.
#[derive(Debug)]
pub(super) struct Work {
    pub samples: u64,
    pub tokens: u64,
    pub steps: u32,
    pub loss_q16: u32,
    pub payload: Digest,
    pub step_us: u32,
}

/// A report of this node.
#[derive(Clone, Debug)]
pub(super) struct Made {
    pub key: AttemptKey,
    pub record: Record,
    pub digest: Digest,
    /// The driver holds the state after applying it.
    pub speculated: bool,
}

impl Made {
    pub fn message(&self) -> Report {
        let AttemptKey { lineage, seq, attempt, set } = self.key;
        Report { lineage, seq, attempt, set, record: self.digest }
    }
}

impl Round {
    fn new(head: &Standing, began: Moment, resumed: bool) -> Self {
        Self {
            seq: head.record.seq.saturating_add(1),
            number: head.record.round.saturating_add(1),
            parent: head.digest,
            members: head.record.members().collect(),
            began,
            resumed,
            barred: false,
            training: Training::Due,
            own: None,
            attempt: 0,
            running: None,
            forming: None,
            form: None,
            report: None,
            persisting: None,
            redoing: false,
            committing: None,
            ruled_out: BTreeSet::new(),
            failures: 0,
            suspected: BTreeMap::new(),
        }
    }

    /// The report, once it is on disk: only then is it said.
    pub fn durable_report(&self) -> Option<&Made> {
        self.report.as_ref().filter(|_| self.persisting.is_none())
    }

    /// Whether attempts may be made: the contribution is there and nothing is decided yet.
    pub fn open(&self) -> bool {
        self.own.is_some() && !self.barred && !self.redoing && self.committing.is_none()
    }

    /// Whether a write is under way that decides what this node may say or do next.
    pub fn writing(&self) -> bool {
        self.persisting.is_some() || self.committing.is_some()
    }
}

impl Engine {
    /// Begins the round after the head, if this node is a member.
    pub(super) fn enter_round(&mut self, resumed: bool) {
        self.round = None;
        let Some(head) = self.head.as_ref().filter(|head| head.record.lease_of(&self.me).is_some()) else { return };
        self.round = Some(Round::new(head, self.now, resumed));
        self.recheck_readys();
    }

    /// Lets the trainer begin if it is time.
    pub(super) fn begin_training(&mut self) {
        let Some((round, head)) = self.round.as_ref().zip(self.head.as_ref()) else { return };
        if round.training != Training::Due || round.barred {
            return;
        }
        let alone = round.members.len() == 1;
        if round.resumed && !alone && self.now.since(round.began) < self.timing.settle && !self.all_met(round) {
            return;
        }
        let Some(lease) = head.record.lease_of(&self.me).cloned() else { return };
        self.out.push(Output::Train {
            round: round.number,
            parent: round.parent,
            lease,
            inner_steps: head.record.next.inner_steps,
            tokens: head.record.tokens,
        });
        if let Some(round) = &mut self.round {
            round.training = Training::Running;
        }
        self.beat.steps = 0;
    }

    /// Whether every member of the round is here and has said where it stands.
    fn all_met(&self, round: &Round) -> bool {
        let met = |id: &NodeId| *id == self.me || self.peers.get(id).is_some_and(|p| p.present() && p.head.is_some());
        round.members.iter().all(met)
    }

    pub(super) fn train_progress(&mut self, round: u64, step: u32) {
        let running = |r: &Round| r.number == round && r.training == Training::Running;
        if self.round.as_ref().is_some_and(running) {
            self.beat.steps = self.beat.steps.max(step.into());
        }
    }

    /// The own contribution is complete: says READY.
    pub(super) fn trained(&mut self, number: u64, parent: Digest, work: Work) {
        let joins = self.joins();
        let Some((round, head)) = self.round.as_mut().zip(self.head.as_ref()) else { return };
        if round.training != Training::Running || round.number != number || round.parent != parent {
            return;
        }
        let Some(lease) = head.record.lease_of(&self.me) else { return };
        let Work { samples, tokens, steps, loss_q16, payload, step_us } = work;
        let ready = Ready {
            lineage: head.record.lineage,
            seq: round.seq,
            round: number,
            parent,
            state_root: head.record.state_root,
            lease_start: lease.start,
            samples,
            tokens,
            steps,
            loss_q16,
            payload,
            step_us,
            joins,
            leave: false,
        };
        round.training = Training::Done;
        let sealed = wire::seal(self.signer.as_ref(), &self.run, &Message::Ready(ready.clone()));
        let opened =
            sealed.and_then(|bytes| Ok((wire::open(self.verifier.as_ref(), &self.run, &bytes)?.digest, bytes)));
        match opened {
            Ok((digest, bytes)) => {
                round.own = Some(Own { signed: SignedReady { member: self.me, ready, digest }, bytes });
                self.last_ready = Some(parent);
                self.beat.readied(self.now);
                let members = self.reachable_members();
                self.repeat_ready(&members);
            }
            // Only a driver that reports impossible work gets here: sit the round out rather than say nonsense.
            Err(_) => round.barred = true,
        }
    }

    /// Stops the trainer if it runs.
    pub(super) fn stop_training(&mut self) {
        if let Some(round) = self.round.as_mut().filter(|round| round.training == Training::Running) {
            round.training = Training::Due;
            self.out.push(Output::StopTraining { round: round.number });
        }
    }

    /// The READY of a member of this round, own or heard.
    pub(super) fn ready_of<'a>(&'a self, id: &NodeId, round: &'a Round) -> Option<&'a SignedReady> {
        if *id == self.me {
            return round.own.as_ref().map(|own| &own.signed);
        }
        self.peers.get(id)?.ready(round.seq, &round.parent)
    }

    /// Nodes that ask to be let in and stand on a recent record of this chain, by ascending id.
    fn joins(&self) -> Vec<NodeId> {
        let fresh = |at: Moment| self.now.since(at) <= self.timing.join_valid;
        let wants = |peer: &super::peer::Peer| peer.present() && peer.join.as_ref().is_some_and(|(_, at)| fresh(*at));
        let mut joins: Vec<NodeId> = self.peers.iter().filter(|(_, peer)| wants(peer)).map(|(id, _)| *id).collect();
        joins.truncate(crate::limits::MEMBERS_MAX);
        joins
    }

    /// Whether this node has to ask the others to be let into the next round: it is no member, or one of which the
    /// others may have given up.
    pub(super) fn wants_in(&self) -> bool {
        let settled = self.head.is_some() && self.catch_up.is_idle() && !self.catch_up.distrusts();
        settled && self.round.as_ref().is_none_or(|round| round.resumed || round.barred || self.is_left_out(round))
    }

    /// The one place from which the round moves on by itself.
    pub(super) fn advance_round(&mut self) {
        if !self.catch_up.is_idle() {
            return;
        }
        self.begin_training();
        for step in [Self::check_attempt, Self::check_gathering, Self::step_forming] {
            // Each step may have closed the round for the next.
            if self.round.as_ref().is_some_and(Round::open) {
                step(self);
            }
        }
    }

    /// Writes that were asked for are on disk.
    pub(super) fn durable(&mut self, token: PersistToken) {
        if let Some((_, record)) = self.founding.take_if(|(awaited, _)| *awaited == token) {
            return self.founded(record);
        }
        let Some(round) = &mut self.round else { return };
        if let Some((_, record)) = round.committing.take_if(|(awaited, _)| *awaited == token) {
            return self.committed(record);
        }
        round.persisting.take_if(|awaited| *awaited == token);
    }
}
