//! Carrying out what the engine wants.

use super::driver::{Driver, Outcome};
use super::ledger::Job;
use super::reduction::{Named, Reduction};
use super::trainer::{self, Trained};
use super::{catch_up, shards};
use crate::exit::{Code, Failure};
use crate::reduce::{NetLinks, ReduceError, ReduceJob};
use crate::watch::event::{Committed, Event, RoundTiming};
use starling_protocol::engine::io::{AttemptKey, Contribution, Input, Notice, Output, Refusal};
use starling_protocol::record::{Lease, Record};
use starling_protocol::run::Codec;
use starling_protocol::{Digest, NodeId};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// A round that the engine wants trained.
#[derive(Clone)]
pub struct WantedRound {
    pub round: u64,
    pub parent: Digest,
    pub lease: Lease,
    pub inner_steps: u32,
    pub tokens: u64,
}

impl Driver {
    /// One output. Nothing here waits for the network, the disk or the device.
    pub(super) async fn carry_out(&mut self, output: Output) -> Result<(), Failure> {
        match output {
            Output::Send { to, bytes, after: None } => self.net.send_control(to, bytes),
            Output::Send { to, bytes, after: Some(token) } => self.hold(token, to, bytes),
            Output::Train { round, parent, lease, inner_steps, tokens } => {
                self.wanted_round = Some(WantedRound { round, parent, lease, inner_steps, tokens });
                self.start_wanted_round().await?;
            }
            Output::StopTraining { round } => {
                self.wanted_round.take_if(|wanted| wanted.round == round);
                self.trainer.next_generation();
            }
            Output::Reduce { key, members, codec } => self.reduce(key, members, codec),
            Output::Abandon { key } => self.abandon(key).await?,
            Output::Speculate { key, outer_lr, momentum } => {
                // Without a reduction at hand it is the attempt of the persisted report, whose update is on disk.
                let update = self.reduction.as_ref().filter(|r| r.key == key).and_then(|r| r.update.clone());
                self.ledger(Job::Speculate { key, update, lr: outer_lr, momentum }).await?;
            }
            Output::PersistReport { token, key, record } => {
                self.ledger(Job::PersistReport { token, key, record }).await?
            }
            Output::Commit { token, key, record } => {
                let committed = self.committed(&record);
                self.undurable.insert(token, committed);
                self.ledger(Job::Commit { token, key, record }).await?;
                self.reduction = None;
                self.router.leave(key);
                self.delta = None;
            }
            Output::Found { token, record } => self.ledger(Job::Found { token, record }).await?,
            Output::CatchUp { seq, target, sources, afresh, lineage } => {
                self.catch_up(catch_up::Errand { lineage, seq, target, sources, afresh });
            }
            Output::Refuse { peer, refusal } => {
                self.show(Event::Refused { peer: peer.to_string(), reason: refusal_text(&refusal) });
                self.net.refuse(peer, &refusal_text(&refusal));
                count_refusal(&refusal);
            }
            Output::Notice(notice) => self.notice(notice),
            Output::Finished { reason } => self.finish = Some(reason),
        }
        Ok(())
    }

    /// Queues a job; the queue is longer than what the engine ever has under way, so this does not wait in practice.
    pub(super) async fn ledger(&mut self, job: Job) -> Result<(), Failure> {
        self.ledger_jobs
            .send(job)
            .await
            .map_err(|_| Failure::message(Code::StoreDamaged, "the ledger thread stopped; see the message before"))
    }

    /// Starts the wanted round if its parent is the state at hand and its shards are here.
    pub(super) async fn start_wanted_round(&mut self) -> Result<(), Failure> {
        let Some(wanted) = &self.wanted_round else { return Ok(()) };
        // The ledger may be changing the state: when it is done it says so, and this is tried again.
        let at_parent = self.state.try_read().is_ok_and(|state| state.digest == wanted.parent);
        if !at_parent || self.device_busy || self.shards_under_way || self.catching_up.is_some() {
            return Ok(());
        }
        let missing =
            shards::missing_for(&self.data, &self.spec, &wanted.lease, self.settings.validate_sequences as u64);
        if !missing.is_empty() {
            self.fetch_shards(missing);
            return Ok(());
        }
        let generation = self.trainer.next_generation();
        let due = wanted.round == 1 || (wanted.round - 1) % self.settings.validate_every.max(1) == 0;
        let wanted = wanted.clone();
        self.gauges.training_started();
        let job = trainer::Job::Round(trainer::Round {
            round: wanted.round,
            parent: wanted.parent,
            lease: wanted.lease,
            inner_steps: wanted.inner_steps,
            tokens: wanted.tokens,
            validate: due.then_some(self.settings.validate_sequences).filter(|n| *n > 0),
            generation,
        });
        self.device_busy = true;
        // Kept in `wanted_round` until it is trained, so that a missing shard or a stop can start it again.
        self.trainer_jobs
            .send(job)
            .await
            .map_err(|_| Failure::message(Code::Refused, "the trainer thread stopped; see the message before"))
    }

    pub(super) async fn trained(&mut self, trained: Trained) -> Result<(), Failure> {
        if self.wanted_round.as_ref().is_none_or(|w| w.parent != trained.parent) {
            return self.start_wanted_round().await;
        }
        self.wanted_round = None;
        self.gauges.trained(&trained);
        self.show(Event::Trained {
            round: trained.round,
            loss: trained.loss,
            tokens: trained.tokens,
            seconds: trained.seconds,
        });
        self.delta = Some((trained.parent, trained.delta));
        self.feed(Input::Trained {
            round: trained.round,
            parent: trained.parent,
            samples: trained.samples,
            tokens: trained.tokens,
            steps: trained.steps,
            loss_q16: (trained.loss.max(0.0) * 65536.0).min(f64::from(u32::MAX)) as u32,
            payload: trained.payload,
            step_us: trained.step_us,
        })
        .await
    }

    fn reduce(&mut self, key: AttemptKey, members: Vec<Contribution>, codec: Codec) {
        let Some((_, delta)) = self.delta.clone() else {
            self.later(Input::ReduceFailed { key, suspect: None, reason: "this node has no contribution".into() });
            return;
        };
        let job = ReduceJob { run: self.run, key, codec, members, me: self.me, delta };
        self.gauges.reduce_started();
        let links = NetLinks::new(self.net.clone(), self.router.clone());
        self.reduction = Some(Reduction::start(job, links, self.results.clone()));
    }

    pub(super) async fn reduced(
        &mut self,
        key: AttemptKey,
        outcome: Result<Named, ReduceError>,
    ) -> Result<(), Failure> {
        let Some(reduction) = self.reduction.as_mut().filter(|r| r.key == key) else { return Ok(()) };
        match outcome {
            Ok(Named { digest, update }) => {
                reduction.update = Some(update);
                self.gauges.reduced();
                self.feed(Input::Reduced { key, update: digest }).await
            }
            Err(error) => {
                let (suspect, reason) = (error.suspect(), error.to_string());
                self.feed(Input::ReduceFailed { key, suspect, reason }).await
            }
        }
    }

    async fn abandon(&mut self, key: AttemptKey) -> Result<(), Failure> {
        self.router.leave(key);
        self.reduction.take_if(|r| r.key == key);
        self.ledger(Job::Forget { key }).await
    }

    fn catch_up(&mut self, errand: catch_up::Errand) {
        self.trainer.next_generation();
        self.show(Event::CatchingUp { seq: errand.seq, sources: errand.sources.len(), afresh: errand.afresh });
        let task = catch_up::Task {
            errand,
            net: self.net.clone(),
            ledger: self.ledger_jobs.clone(),
            store: self.store.clone(),
            spec: self.spec.clone(),
            elements: self.settings.elements,
            head: {
                let state = self.state.read().unwrap_or_else(|p| p.into_inner());
                (state.record.clone(), state.schema)
            },
            bytes: AtomicU64::new(0),
        };
        let results = self.results.clone();
        let progress_results = self.results.clone();
        let handle = tokio::spawn(async move {
            let progress = move |bytes| {
                let _ = progress_results.try_send(Outcome::CatchUpProgress { bytes });
            };
            let outcome = task.run(&progress).await;
            let _ = results.send(Outcome::CaughtUp(outcome)).await;
        });
        self.catching_up = Some(tokio_util::task::AbortOnDropHandle::new(handle));
    }

    pub(super) async fn caught_up(
        &mut self,
        outcome: Result<catch_up::Arrived, catch_up::Failed>,
    ) -> Result<(), Failure> {
        self.catching_up = None;
        match outcome {
            Ok(arrived) => {
                self.delta = None;
                self.show(Event::CaughtUp { seq: arrived.record.seq, bytes: arrived.bytes, seconds: arrived.seconds });
                self.feed(Input::CaughtUp { record: arrived.record }).await?;
                self.start_wanted_round().await
            }
            Err(failed) => self.feed(Input::CatchUpFailed { reason: failed.reason, diverged: failed.diverged }).await,
        }
    }

    pub(super) fn fetch_shards(&mut self, missing: Vec<Digest>) {
        if std::mem::replace(&mut self.shards_under_way, true) {
            return;
        }
        let (net, data, results) = (self.net.clone(), self.data.clone(), self.results.clone());
        tokio::spawn(async move {
            let outcome = shards::fetch(&net, &data, &missing).await;
            if outcome.is_err() {
                // Peers may come; the round is tried again then.
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            let _ = results.send(Outcome::ShardsFetched(outcome)).await;
        });
    }

    /// What a commit will be shown as once it is on disk.
    fn committed(&self, record: &Record) -> Committed {
        let tokens: u64 = record.contributors.iter().map(|c| c.tokens).sum();
        let loss_sum: f64 = record.contributors.iter().map(|c| f64::from(c.loss_q16) / 65536.0 * c.tokens as f64).sum();
        Committed {
            seq: record.seq,
            round: record.round,
            record: record.digest().to_string(),
            state_root: record.state_root.to_string(),
            contributors: record.contributors.iter().map(|c| c.member.to_string()).collect(),
            members: record.next.members.len(),
            tokens: record.tokens,
            loss: loss_sum / tokens.max(1) as f64,
            bytes_sent: self.net.counters().bytes_sent,
            timing: RoundTiming::default(),
        }
    }

    /// The commit is on disk: this is what its times are taken to.
    pub(super) fn show_committed(&mut self, mut committed: Committed) {
        let timing = self.gauges.committed(Instant::now());
        self.gauges.loss = Some(committed.loss);
        metrics::gauge!("starling_round").set(committed.round as f64);
        metrics::gauge!("starling_tokens").set(committed.tokens as f64);
        metrics::gauge!("starling_members").set(committed.members as f64);
        metrics::gauge!("starling_loss_nats_per_token").set(committed.loss);
        metrics::histogram!("starling_round_seconds").record(timing.seconds);
        metrics::histogram!("starling_reduce_seconds").record(timing.reduce_seconds);
        metrics::histogram!("starling_settle_seconds").record(timing.settle_seconds);
        committed.timing = timing;
        self.show(Event::Committed(committed));
    }

    fn notice(&mut self, notice: Notice) {
        let ids = |ids: Vec<NodeId>| ids.iter().map(NodeId::to_string).collect::<Vec<_>>();
        let event = match notice {
            Notice::Founded { lineage } => Event::Founded { lineage: lineage.to_string() },
            Notice::Seeking { peers } => Event::Waiting { on: Vec::new(), why: super::view::seeking_text(peers) },
            Notice::PhaseChanged { phase, round } => {
                self.waiting = None;
                metrics::gauge!("starling_phase").set(f64::from(phase as u8));
                Event::Phase { phase: format!("{phase:?}").to_lowercase(), round }
            }
            Notice::Waiting { on, why } => {
                self.waiting = Some((Event::Waiting { on: ids(on), why: why.into() }, Instant::now()));
                return;
            }
            Notice::AttemptStarted { round, attempt, members } => {
                Event::AttemptStarted { round, attempt, members: ids(members) }
            }
            Notice::AttemptFailed { round, attempt, suspect, reason } => {
                metrics::counter!("starling_attempts_failed_total").increment(1);
                Event::AttemptFailed { round, attempt, suspect: suspect.map(|s| s.to_string()), reason }
            }
            // Shown with its timings when the commit is carried out.
            Notice::Committed { .. } => return,
            Notice::MemberJoined { member, round } => Event::MemberJoined { member: member.to_string(), round },
            Notice::MemberLeft { member, round, reason } => {
                Event::MemberLeft { member: member.to_string(), round, reason: reason.into() }
            }
            Notice::CatchUpFailed { reason } => Event::CatchUpFailed { reason },
            Notice::RolledBack { from_seq, to_seq } => Event::RolledBack { from_seq, to_seq },
            Notice::Refused { peer, refusal } => {
                count_refusal(&refusal);
                if refusal == Refusal::Stale {
                    return;
                }
                Event::Refused { peer: peer.to_string(), reason: refusal_text(&refusal) }
            }
            _ => return,
        };
        self.show(event);
    }
}

fn count_refusal(refusal: &Refusal) {
    metrics::counter!("starling_refused_total", "reason" => refusal_label(refusal)).increment(1);
}

fn refusal_label(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Malformed { .. } => "malformed",
        Refusal::BadSignature => "bad_signature",
        Refusal::Version { .. } => "version",
        Refusal::RunMismatch { .. } => "run_mismatch",
        Refusal::IdentityInUse => "identity_in_use",
        Refusal::Equivocation { .. } => "equivocation",
        Refusal::Stale => "stale",
        Refusal::Full => "full",
        _ => "other",
    }
}

/// Why a peer or its bytes were refused, as a person reads it.
pub fn refusal_text(refusal: &Refusal) -> String {
    match refusal {
        Refusal::Malformed { what } => format!("it sent a message that does not decode ({what})"),
        Refusal::BadSignature => "a signature of its does not hold".into(),
        Refusal::Version { theirs, ours } => {
            format!("it speaks protocol version {theirs}, this node {ours}: run the same release on both")
        }
        Refusal::RunMismatch { keys } => format!("its run differs in {}", keys.join("; ")),
        Refusal::IdentityInUse => "its identity is in use by another process".into(),
        Refusal::Equivocation { what } => format!("it signed two contradicting statements ({what})"),
        Refusal::Stale => "it sent something of another round".into(),
        Refusal::Full => "the flock is full".into(),
        other => format!("{other:?}"),
    }
}
