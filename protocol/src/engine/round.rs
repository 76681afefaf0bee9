//! One round as a member lives it: training, the own READY, and what the attempts have led to so far.

use super::Engine;
use super::attempt::Attempt;
use super::chain::Standing;
use super::clock::Moment;
use super::decision::{Holding, Instance};
use super::fetch::Fetching;
use super::io::{AttemptKey, Finish, Output, PersistToken};
use super::merging::Mixed;
use super::succession::{self, SignedReady};
use crate::message::{Certificate, Leave, Message, Ready};
use crate::plant::{Plant, planted};
use crate::record::{Measured, Record};
use crate::run::SyncMode;
use crate::{Digest, NodeId, wire};
use std::collections::{BTreeMap, BTreeSet};

/// A leaving node stays for so long, in microseconds, so that the record under way takes its leave along.
const LEAVE_MAX: u64 = 6_000_000;

/// Places (lineage, round, base) of which it is remembered that this start has said READY: as many as there may be
/// lineages without a COMMIT of their own, between which a node comes and goes.
const OFFERED_MAX: usize = 64;

/// State of the work on the record after the head, while this node is a member.
#[derive(Debug)]
pub(super) struct Round {
    pub lineage: Digest,
    /// The record that it is to end in.
    pub seq: u64,
    /// The COMMIT that it is to be.
    pub number: u64,
    pub parent: Digest,
    pub base: Digest,
    /// By ascending id, this node included.
    pub members: Vec<NodeId>,
    /// Attempt 0 is made of these, by ascending id.
    pub expected: Vec<NodeId>,
    pub began: Moment,
    /// Taken up by a process that did not begin it: listens a while before it trains.
    pub resumed: bool,
    pub training: Training,
    pub own: Option<Own>,
    /// Somebody for whom attempt 0 was seen to wait.
    pub awaited: Option<NodeId>,
    /// Since when a quorum of voters is READY.
    pub quorum_ready_at: Option<Moment>,
    pub cut_short: bool,
    /// Since when the record is decided while the own inner steps still run.
    pub decided_at: Option<Moment>,
    /// Number of the attempt under way or being formed.
    pub attempt: u32,
    pub running: Option<Attempt>,
    /// The vote on the set of `attempt`, from 1 on.
    pub set_vote: Instance,
    /// The next attempt is not formed before this.
    pub not_before: Moment,
    /// The decided set of `attempt`, by the vote or as a voter has told.
    pub told: Option<crate::message::Value>,
    pub told_at: Moment,
    /// The vote on the record.
    pub record_vote: Instance,
    /// Results that this node has rebuilt, by record.
    pub holding: BTreeMap<Digest, Holding>,
    /// Results that are being fetched, or could not be, by record.
    pub fetching: BTreeMap<Digest, Fetching>,
    /// A certificate that arrived before this node decided by itself.
    pub proof: Option<Certificate>,
    /// Another result of an attempt than this node's own was named, and the own state is looked at.
    pub verifying: bool,
    pub committing: Option<Committing>,
    /// With whom this node would go on as a fork.
    pub fork: Option<crate::message::Fork>,
    /// The SKIP that this round may end in.
    pub skip: Option<(Digest, Record)>,
    /// Members that spoiled an attempt of this round.
    pub ruled_out: BTreeSet<NodeId>,
    /// Of whom this node has refused something in a reduction, and who says so of somebody.
    pub refused: Option<NodeId>,
    pub accusers: BTreeSet<NodeId>,
    /// Failed attempts of this round, and whom this node suspected how often.
    pub failures: u32,
    pub suspected: BTreeMap<NodeId, u32>,
    /// Members that voters left out of the sets that they entered votes with.
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
    /// Begins when the node has listened for a while.
    Due,
    Running,
    Done,
}

/// This node's READY.
#[derive(Debug)]
pub(super) struct Own {
    pub signed: SignedReady,
    /// When it was last said to all, and how often again.
    pub said_at: Moment,
    pub repeats: u32,
}

impl Own {
    fn new(signed: SignedReady, said_at: Moment) -> Self {
        Self { signed, said_at, repeats: 0 }
    }
}

/// What the trainer has done in a round.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub samples: u64,
    pub tokens: u64,
    pub steps: u32,
    pub loss_q16: u32,
    pub payload: Digest,
    pub measured: Measured,
}

/// Work that no COMMIT has taken in yet: it is offered until one does, with the lease that it used.
#[derive(Clone, Debug)]
pub(super) struct Contribution {
    pub start: u64,
    /// The record that made the state that it was trained from.
    pub base: Digest,
    pub work: Work,
    /// With a difference mixed into it.
    pub mixed: Option<Mixed>,
    /// The READY that offered it last: one for each round, also over SKIPs.
    pub ready: Option<SignedReady>,
}

impl Round {
    fn new(head: &Standing, began: Moment, resumed: bool) -> Self {
        Self {
            lineage: head.record.lineage,
            seq: head.record.seq.saturating_add(1),
            number: head.record.round.saturating_add(1),
            parent: head.digest,
            base: head.base,
            members: head.record.members().collect(),
            expected: succession::expected(&head.record),
            began,
            resumed,
            training: Training::Due,
            own: None,
            awaited: None,
            quorum_ready_at: None,
            cut_short: false,
            decided_at: None,
            attempt: 0,
            running: None,
            set_vote: Instance::default(),
            not_before: began,
            told: None,
            told_at: began,
            record_vote: Instance::default(),
            holding: BTreeMap::new(),
            fetching: BTreeMap::new(),
            proof: None,
            verifying: false,
            committing: None,
            fork: None,
            skip: succession::skip(&head.record, head.digest).map(|record| (record.digest(), record)),
            ruled_out: BTreeSet::new(),
            refused: None,
            accusers: BTreeSet::new(),
            failures: 0,
            suspected: BTreeMap::new(),
            left_out: BTreeMap::new(),
        }
    }

    /// Whether this node could commit a record at once if it were decided.
    pub fn holds(&self, record: &Digest) -> bool {
        self.holding.contains_key(record) || self.skip.as_ref().is_some_and(|(digest, _)| digest == record)
    }
}

impl Engine {
    /// Begins the work on the record after the head, if this node is a member.
    pub(super) fn enter_round(&mut self, resumed: bool) {
        self.round = None;
        self.heed_seat();
        let Some(head) = self.head.as_ref().filter(|head| head.record.member(&self.me).is_some()) else {
            return self.discard();
        };
        self.round = Some(Round::new(head, self.now, resumed));
        let record = &head.record;
        self.shunned.retain(|_, until| *until > record.round);
        self.accused.retain(|accuser, _| record.member(accuser).is_some());
        self.recheck_readys();
        self.offer();
    }

    /// Lets the trainer begin if it is time.
    pub(super) fn begin_training(&mut self) {
        let Some((round, head)) = self.round.as_ref().zip(self.head.as_ref()) else { return };
        let decided = round.committing.is_some() || round.decided_at.is_some();
        if round.training != Training::Due || decided || self.cut.holds_training() || self.leaving.is_some() {
            return;
        }
        let alone = round.members.len() == 1;
        if round.resumed && !alone && self.now.since(round.began) < self.timing.settle && !self.all_met(round) {
            return;
        }
        let Some(member) = head.record.member(&self.me) else { return };
        let inner_steps = self.steps_of(&member.lease, head.record.next.inner_steps);
        self.out.push(Output::Train {
            round: round.number,
            base: round.base,
            lease: member.lease,
            inner_steps,
            tokens: head.record.tokens,
        });
        if let Some(round) = &mut self.round {
            round.training = Training::Running;
        }
        self.beat.steps = 0;
    }

    /// Whether every member of the round that tells this node where it stands is here and has done so.
    fn all_met(&self, round: &Round) -> bool {
        let met = |id: &NodeId| *id == self.me || self.peers.get(id).is_some_and(|p| p.present() && p.head.is_some());
        round.members.iter().all(|id| met(id) || !self.in_touch(id))
    }

    pub(super) fn train_progress(&mut self, round: u64, step: u32) {
        let running = |r: &Round| r.number == round && r.training == Training::Running;
        if self.round.as_ref().is_some_and(running) {
            self.beat.steps = self.beat.steps.max(step.into());
        }
    }

    /// The contribution is complete: offers it.
    pub(super) fn trained(&mut self, number: u64, base: Digest, work: Work) {
        let Some((round, head)) = self.round.as_mut().zip(self.head.as_ref()) else { return };
        if round.training != Training::Running || round.number != number || round.base != base || work.samples == 0 {
            return;
        }
        let Some(lease) = head.record.lease_of(&self.me) else { return };
        self.contribution = Some(Contribution { start: lease.start, base, work, mixed: None, ready: None });
        let place = (head.record.lineage, number, base);
        if self.offered.contains(&place) {
            // As after another lineage that came to nothing. What was offered here before is lost: a new start, since two
            // contributions of one are a lie.
            self.renew();
        }
        if !self.mix() {
            self.offer();
        }
    }

    /// Says READY with the contribution that is at hand, if it used this round's lease. One that a COMMIT left out is
    /// offered again, in place of a new one: its lease was kept for it. But a gradient holds where it was taken only: with
    /// another base its lease is trained on anew. And with fragments it is the turn of another one, which is made first.
    pub(super) fn offer(&mut self) {
        let statements = self.statements();
        let rtts = self.rtts();
        let Some((round, head)) = self.round.as_mut().zip(self.head.as_ref()) else { return };
        let Some(Contribution { start, base, work, mixed, ready: said }) = self.contribution.clone() else { return };
        let fits = head.record.lease_of(&self.me).is_some_and(|l| l.start == start && work.samples <= l.count);
        let every_step = self.spec.sync.mode == SyncMode::EveryStep;
        let stale =
            (every_step || planted!(Plant::DropLeftOut)) && base != round.base && !planted!(Plant::StaleGradient);
        if !fits || stale || work.steps > head.record.next.inner_steps {
            return self.discard();
        }
        if round.own.is_some() {
            return;
        }
        let place = (head.record.lineage, round.number, round.base);
        if let Some(signed) = said.filter(|s| (s.ready.lineage, s.ready.round, s.ready.base) == place) {
            round.training = Training::Done;
            round.own = Some(Own::new(signed, self.now));
            return;
        }
        if self.spec.sync.fragments > 1 && base != round.base && !planted!(Plant::StaleFragment) {
            return self.retake();
        }
        let mixed = mixed.filter(|mixed| mixed.is_for(round.number, &round.base));
        round.training = Training::Done;
        if mixed.as_ref().is_some_and(|mixed| mixed.made.is_none()) {
            return;
        }
        let merge = mixed.as_ref().map(|mixed| mixed.merge);
        let own = (work.payload, work.measured.norm_bits);
        let (payload, norm_bits) = mixed.and_then(|mixed| mixed.made).unwrap_or(own);
        let ready = Ready {
            lineage: head.record.lineage,
            round: round.number,
            base: round.base,
            state_root: head.record.state_root,
            boot: self.boot,
            start,
            samples: work.samples,
            tokens: work.tokens,
            steps: work.steps,
            loss_q16: work.loss_q16,
            payload,
            measured: Measured { norm_bits, ..work.measured },
            statements,
            leave: self.leaving.is_some(),
            merges: merge.map(|merge| merge.lineage),
            merged_tokens: merge.map_or(0, |merge| merge.tokens),
            rtts,
        };
        let sealed = wire::seal(self.signer.as_ref(), &self.run, &Message::Ready(ready.clone()));
        let opened =
            sealed.and_then(|bytes| Ok((wire::open(self.verifier.as_ref(), &self.run, &bytes)?.digest, bytes)));
        // Only a driver that reports impossible work fails here: it sits the round out rather than say nonsense.
        if let Ok((digest, bytes)) = opened {
            let signed = SignedReady { member: self.me, ready, digest, bytes };
            if let Some(contribution) = &mut self.contribution {
                contribution.ready = Some(signed.clone());
            }
            round.own = Some(Own::new(signed, self.now));
            self.offered.push_back(place);
            if self.offered.len() > OFFERED_MAX {
                self.offered.pop_front();
            }
            let members = self.reachable_members();
            self.repeat_ready(&members);
        }
    }

    /// Says READY once more, as a new start: what the one before said does not count any more. It merges nothing.
    pub(super) fn offer_anew(&mut self) {
        if let Some(contribution) = &mut self.contribution {
            contribution.ready = None;
            contribution.mixed = None;
        }
        if let Some(round) = &mut self.round {
            round.own = None;
        }
        self.offer();
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
        self.peers.get(id)?.ready(&round.lineage, round.number, &round.base)
    }

    /// Whether this node has to ask the others to be let into the next round: it is no member, or one that they do
    /// not expect, or know under another incarnation.
    pub(super) fn wants_in(&self) -> bool {
        let settled = self.catch_up.is_near() && !self.catch_up.distrusts() && !self.frozen && self.leaving.is_none();
        let Some(head) = self.head.as_ref().filter(|_| settled) else { return false };
        let known = |m: &crate::record::Member| m.incarnation == self.voice.incarnation && m.expected;
        !head.record.member(&self.me).is_some_and(known) || self.round.as_ref().is_some_and(|round| round.resumed)
    }

    /// The one place from which the round moves on by itself.
    pub(super) fn advance_round(&mut self) {
        if !self.catch_up.is_idle() {
            return;
        }
        self.begin_training();
        let attempt = |engine: &Self| engine.round.as_ref().map(|round| round.attempt);
        loop {
            let before = attempt(self);
            for step in [Self::check_attempt, Self::step_decision, Self::gather] {
                // Each step may have closed the round for the next.
                if self.round.as_ref().is_some_and(|round| round.committing.is_none()) {
                    step(self);
                }
            }
            // What follows from the end of an attempt follows now, and not with the next input. There are few of them.
            if attempt(self) == before {
                return;
            }
        }
    }

    /// Writes that were asked for are on disk.
    pub(super) fn durable(&mut self, token: PersistToken) {
        self.voice.written(token);
        if let Some((_, record)) = self.founding.take_if(|(awaited, _)| *awaited == token) {
            return self.founded(record);
        }
        let Some(round) = &mut self.round else { return };
        if let Some(Committing { record, certificate, since, .. }) = round.committing.take_if(|c| c.token == token) {
            self.commit_took = self.now.since(since);
            self.committed(record, certificate);
        }
    }

    /// The operator wants this node to go: it offers what it has with its leave, and goes with the record.
    pub(super) fn leave(&mut self) {
        if self.leaving.is_some() || self.end.is_some() {
            return;
        }
        self.leaving = Some(self.now);
        self.cut_short();
    }

    /// Ends the own inner steps after the one under way.
    pub(super) fn cut_short(&mut self) {
        if let Some(round) = self.round.as_mut().filter(|r| r.training == Training::Running && !r.cut_short) {
            round.cut_short = true;
            self.out.push(Output::CutShort { round: round.number });
        }
    }

    pub(super) fn leave_when_due(&mut self) {
        let Some(since) = self.leaving else { return };
        let offered = self.round.as_ref().is_some_and(|round| round.own.is_some());
        let training = self.round.as_ref().is_some_and(|round| round.training == Training::Running);
        let alone = self.round.as_ref().is_none_or(|round| round.members.len() == 1);
        let pending = !alone && (offered || training) && self.quorum_in_reach();
        let writing = self.round.as_ref().is_some_and(|round| round.committing.is_some());
        if (!pending && !writing) || self.now.since(since) >= LEAVE_MAX {
            let (lineage, seq) =
                self.head.as_ref().map_or((Digest::default(), 0), |head| (head.record.lineage, head.record.seq));
            let targets = self.reachable();
            self.send_to(&targets, &Message::Leave(Leave { lineage, seq }));
            self.finish(Finish::Left);
        }
    }

    /// Names an attempt at this round with these contributions, by ascending member.
    pub(super) fn key_of(&self, attempt: u32, contributions: &[SignedReady]) -> Option<AttemptKey> {
        let (round, head) = self.round.as_ref().zip(self.head.as_ref())?;
        let set = super::attempt::set_digest(contributions);
        Some(AttemptKey { lineage: head.record.lineage, seq: round.seq, attempt, set })
    }
}
