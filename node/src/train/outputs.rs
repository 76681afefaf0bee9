//! Carrying out what the engine wants.

use super::driver::{Driver, Fetched, Fetching, Outcome};
use super::ledger::{Job, Update};
use super::notice::{count_refusal, refusal_text};
use super::reduction::Reduction;
use super::sources::Sources;
use super::trainer::{self, Trained};
use super::{candidate, catch_up, shards};
use crate::exit::{Code, Failure};
use crate::net::fetch::Expect;
use crate::reduce::{NetLinks, Passed, ReduceError, ReduceJob};
use crate::watch::event::Event;
use starling_protocol::admission;
use starling_protocol::engine::io::{AttemptKey, Contribution, Input, Output};
use starling_protocol::identity::Ed25519Verifier;
use starling_protocol::record::{Measured, Record, Span};
use starling_protocol::run::Codec;
use starling_protocol::{Digest, NodeId, update};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A round that the engine wants trained.
#[derive(Clone)]
pub struct WantedRound {
    pub round: u64,
    /// The record that made the state to start from.
    pub base: Digest,
    pub lease: Span,
    pub inner_steps: u32,
    pub tokens: u64,
    /// The others are done: it is to end after its first step.
    pub cut: bool,
}

impl Driver {
    /// One output. Nothing here waits for the network, the disk or the device.
    pub(super) async fn carry_out(&mut self, output: Output) -> Result<(), Failure> {
        match output {
            Output::Send { to, bytes, after: None } => self.net.send_control(to, bytes),
            Output::Send { to, bytes, after: Some(token) } => self.hold(token, to, bytes),
            Output::Train { round, base, lease, inner_steps, tokens } => {
                #[cfg(feature = "evil")]
                crate::evil::at_round(round);
                self.make_way();
                self.wanted_round = Some(WantedRound { round, base, lease, inner_steps, tokens, cut: false });
                self.start_wanted_round().await?;
            }
            Output::CutShort { round } => {
                if let Some(wanted) = self.wanted_round.as_mut().filter(|wanted| wanted.round == round) {
                    wanted.cut = true;
                    self.trainer.cut_short();
                }
            }
            Output::StopTraining { round } => {
                self.wanted_round.take_if(|wanted| wanted.round == round);
                self.trainer.next_generation();
            }
            Output::Ahead { round, base, lease, inner_steps, tokens, steps } => {
                self.ahead((round, base), (lease, inner_steps), (steps, tokens)).await?;
            }
            Output::Retake { round, base } => self.retake(round, base).await?,
            Output::StartOver => self.start_over(),
            Output::Reduce { key, members, flock, codec } => self.reduce(key, members, flock, codec),
            Output::Merge { round, base, tokens, merge } => self.mix((round, base), tokens, merge),
            Output::DropDifference { lineage } => self.drop_difference(lineage),
            Output::Abandon { key } => self.abandon(key),
            Output::Speculate { key, update, rule } => {
                let at_hand = self.update_at_hand(&update);
                self.ledger(Job::Speculate { key, update, at_hand, rule }).await?;
            }
            Output::Persist { token, register, candidate } => {
                candidate.iter().for_each(|candidate| self.note_merging(candidate));
                let update = candidate.as_ref().and_then(|held| self.update_at_hand(&held.record.update));
                let update_digest = update.as_ref().map(|update| update.digest);
                let candidate = candidate.map(Box::new);
                self.ledger(Job::Persist { token, register, candidate, update }).await?;
                // On disk from now on.
                self.fetched.retain(|fetched| Some(fetched.update.digest) != update_digest);
            }
            Output::Commit { token, key, record, certificate, mine } => {
                if record.changes_state() {
                    let committed = self.committed(&record);
                    self.undurable.insert(token, committed);
                }
                self.settle_feedback(&[Passed::of(&record, &self.me)]);
                self.note_step(&record);
                let update = self.update_at_hand(&record.update);
                let (seq, record) = (record.seq, Box::new(record));
                self.ledger(Job::Commit { token, record, certificate, update }).await?;
                self.forget_attempts(seq);
                if let Some(key) = key {
                    self.router.leave(key);
                }
                if mine {
                    (self.delta, self.mixed) = (None, None);
                }
            }
            Output::VerifyState => self.ledger(Job::Verify).await?,
            Output::Fetch { key, record, sources } => self.fetch(key, record, sources),
            Output::Found { token, record } => self.ledger(Job::Found { token, record }).await?,
            Output::CatchUp { seq, target, sources, afresh, lineage } => {
                self.catch_up(catch_up::Errand { lineage, seq, target, sources, afresh });
            }
            Output::Prove { peer, seq, record, foreign } => self.prove(peer, (seq, record), foreign),
            Output::Evidence { against, what, evidence } => {
                self.show_evidence(against, what, &evidence);
                self.ledger(Job::Evidence { against, evidence: Some(Box::new(evidence)) }).await?;
            }
            Output::DropEvidence { against } => self.ledger(Job::Evidence { against, evidence: None }).await?,
            Output::Refuse { peer, refusal } => {
                self.show(Event::Refused { peer: peer.to_string(), reason: refusal_text(&refusal) });
                self.net.refuse(peer, &refusal_text(&refusal));
                count_refusal(&refusal);
            }
            Output::Admit { peer } => self.net.admit(peer),
            Output::Deny { peer, proof } => self.net.turn_away(peer, proof),
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

    /// Starts the wanted round if its base is the state at hand and its shards are here.
    pub(super) async fn start_wanted_round(&mut self) -> Result<(), Failure> {
        let Some(wanted) = &self.wanted_round else { return Ok(()) };
        // The ledger may be changing the state: when it is done it says so, and this is tried again.
        let head = self.state.head();
        let at_base = head.base == wanted.base;
        if !at_base || self.device_busy || self.shards_under_way || self.catching_up.is_some() {
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
            base: wanted.base,
            lineage: head.record.lineage,
            expected: head.record.next.members.iter().filter(|m| m.expected).map(|m| m.id).collect(),
            lease: wanted.lease,
            inner_steps: wanted.inner_steps,
            tokens: wanted.tokens,
            validate: due.then_some(self.settings.validate_sequences).filter(|n| *n > 0),
            generation,
            news: self.streaming.news(),
        });
        self.device_busy = true;
        if wanted.cut {
            self.trainer.cut_short();
        }
        // Kept in `wanted_round` until it is trained, so that a missing shard or a stop can start it again.
        self.trainer_jobs
            .send(job)
            .await
            .map_err(|_| Failure::message(Code::Refused, "the trainer thread stopped; see the message before"))
    }

    pub(super) async fn trained(&mut self, trained: Trained) -> Result<(), Failure> {
        if self.wanted_round.as_ref().is_none_or(|w| (w.base, w.round) != (trained.base, trained.round)) {
            return self.start_wanted_round().await;
        }
        self.wanted_round = None;
        #[cfg(feature = "evil")]
        let trained = {
            let mut trained = trained;
            crate::evil::contribution(&mut trained.delta, &mut trained.norm, &mut trained.payload);
            trained
        };
        self.gauges.trained(&trained);
        self.show(Event::Trained {
            round: trained.round,
            loss: trained.loss,
            tokens: trained.tokens,
            seconds: trained.seconds,
        });
        (self.delta, self.mixed) = (Some((trained.payload, trained.delta)), None);
        let (upload_kbps, reduce_us) = (self.net.end_uplink_round(), self.gauges.last_reduction_us());
        let norm_bits = trained.norm.to_bits();
        let measured = Measured { step_us: trained.step_us, upload_kbps, reduce_us, norm_bits };
        let gathering = self.gauges.gathering();
        self.feed(Input::Trained {
            round: trained.round,
            base: trained.base,
            samples: trained.samples,
            tokens: trained.tokens,
            steps: trained.steps,
            loss_q16: (trained.loss.max(0.0) * 65536.0).min(f64::from(u32::MAX)) as u32,
            payload: trained.payload,
            measured,
        })
        .await?;
        // The attempt that this READY began waited for nobody after it.
        if gathering {
            self.gauges.was_last();
        }
        Ok(())
    }

    fn reduce(&mut self, key: AttemptKey, members: Vec<Contribution>, flock: Vec<(NodeId, u32)>, codec: Codec) {
        let mine = members.iter().find(|member| member.member == self.me).map(|member| member.payload);
        let mut held = self.delta.iter().chain(&self.mixed).cloned();
        let Some((_, delta)) = held.find(|(payload, _)| Some(*payload) == mine) else {
            let reason = "this node no longer has the contribution that it announced".into();
            self.later(Input::ReduceFailed { key, suspect: None, refused: false, reason });
            return;
        };
        // That of the round that it is to be the COMMIT of.
        let round = self.state.head().record.round.saturating_add(1);
        let (feedback, parts) = (self.feedback.of_round(round), Arc::clone(&self.parts));
        let job = ReduceJob { run: self.run, key, codec, members, flock, me: self.me, delta, feedback, parts };
        self.gauges.reduce_started();
        let links = NetLinks::new(self.net.clone(), self.router.clone());
        self.reduction = Some(Reduction::start(self.spec.sync.engine, job, links, self.results.clone()));
    }

    pub(super) async fn reduced(
        &mut self,
        key: AttemptKey,
        outcome: Result<Update, ReduceError>,
    ) -> Result<(), Failure> {
        let Some(reduction) = self.reduction.as_mut().filter(|r| r.key == key) else { return Ok(()) };
        match outcome {
            Ok(update) => {
                let digest = update.digest;
                reduction.update = Some(update);
                self.gauges.reduced();
                self.stage_feedback(key);
                self.feed(Input::Reduced { key, update: digest }).await
            }
            Err(error) => {
                let (suspect, refused) = (error.suspect(), error.refusal().is_some());
                self.feed(Input::ReduceFailed { key, suspect, refused, reason: error.to_string() }).await
            }
        }
    }

    /// What was speculated on stays with the ledger, which holds little of it, until the head moves.
    fn abandon(&mut self, key: AttemptKey) {
        self.router.leave(key);
        self.reduction.take_if(|r| r.key == key);
        self.fetching.retain(|fetching| fetching.key != key);
        self.fetched.retain(|fetched| fetched.key != key);
    }

    /// A record of this number was decided: nothing that was to become it, or one before, is of use any more.
    fn forget_attempts(&mut self, seq: u64) {
        self.reduction.take_if(|reduction| reduction.key.seq <= seq);
        self.parts.forget();
        self.fetching.retain(|fetching| fetching.key.seq > seq);
        self.fetched.retain(|fetched| fetched.key.seq > seq);
    }

    /// The update of this digest, if it is in memory.
    fn update_at_hand(&self, digest: &Digest) -> Option<Update> {
        let reduced = self.reduction.as_ref().and_then(|reduction| reduction.update.as_ref());
        let mut at_hand = self.fetched.iter().map(|fetched| &fetched.update).chain(reduced);
        at_hand.find(|update| update.digest == *digest).cloned()
    }

    /// Fetches a candidate. A second request for the same one takes the first one's place.
    fn fetch(&mut self, key: AttemptKey, record: Digest, sources: Vec<NodeId>) {
        self.fetching.retain(|fetching| (fetching.key, fetching.record) != (key, record));
        if self.fetching.len() >= candidate::FETCHES_MAX {
            metrics::counter!("starling_refused_total", "reason" => "candidate_fetches_full").increment(1);
            self.later(Input::FetchFailed { key, record });
            return;
        }
        let head = self.state.head();
        let (codec, round) = (head.record.next.codec, head.record.round.saturating_add(1));
        let most = update::encoded_max(codec, self.fragments().of_round(round).len()) as u64;
        let update = if codec.is_fixed() { Expect::Exactly(most) } else { Expect::AtMost(most) };
        let wanted = candidate::Wanted { key, record, update, sources };
        let (net, results) = (self.net.clone(), self.results.clone());
        let work = tokio::spawn(async move {
            let ask = |source, request, expected| {
                let net = net.clone();
                async move { net.fetch(source, request, expected).await }
            };
            let outcome = wanted.fetch(ask).await.map(Box::new);
            let _ = results.send(Outcome::Fetched { key, record, outcome }).await;
        });
        self.fetching.push(Fetching { key, record, _work: tokio_util::task::AbortOnDropHandle::new(work) });
    }

    pub(super) async fn fetched(
        &mut self,
        key: AttemptKey,
        record: Digest,
        outcome: Result<Box<candidate::Arrived>, String>,
    ) -> Result<(), Failure> {
        let asked = self.fetching.iter().position(|fetching| (fetching.key, fetching.record) == (key, record));
        let Some(at) = asked else { return Ok(()) };
        self.fetching.remove(at);
        match outcome {
            Ok(arrived) => {
                let candidate::Arrived { candidate, update } = *arrived;
                self.fetched.retain(|fetched| fetched.update.digest != update.digest);
                self.fetched.push(Fetched { key, update });
                let surplus = self.fetched.len().saturating_sub(candidate::FETCHES_MAX);
                self.fetched.drain(..surplus);
                self.feed(Input::Fetched { candidate }).await
            }
            Err(why) => {
                tracing::info!("the result of attempt {} at record {} cannot be fetched: {why}", key.attempt, key.seq);
                self.feed(Input::FetchFailed { key, record }).await
            }
        }
    }

    fn catch_up(&mut self, mut errand: catch_up::Errand) {
        self.trainer.next_generation();
        // In turn or at once, a stranger shall not be in a member's way.
        errand.sources = self.net.as_sources(errand.sources);
        self.show(Event::CatchingUp { seq: errand.seq, sources: errand.sources.len(), afresh: errand.afresh });
        let task = catch_up::Task {
            proof: self.claims.proof_of(&errand.target),
            sources: Sources::new(&errand.sources),
            errand,
            net: self.net.clone(),
            ledger: self.ledger_jobs.clone(),
            store: self.store.clone(),
            spec: Arc::new(self.spec.clone()),
            elements: self.settings.elements,
            head: self.state.head(),
            feedback: Arc::clone(&self.feedback),
            bytes: AtomicU64::new(0),
            way: Mutex::default(),
            left: Mutex::new(None),
        };
        let results = self.results.clone();
        let progress_results = self.results.clone();
        let handle = tokio::spawn(async move {
            let progress = move |bytes| {
                let _ = progress_results.try_send(Outcome::CatchUpProgress { bytes });
            };
            let outcome = task.run(&progress).await.map(Box::new);
            let _ = results.send(Outcome::CaughtUp(outcome)).await;
        });
        self.catching_up = Some(tokio_util::task::AbortOnDropHandle::new(handle));
    }

    pub(super) async fn caught_up(
        &mut self,
        outcome: Result<Box<catch_up::Arrived>, catch_up::Failed>,
    ) -> Result<(), Failure> {
        self.catching_up = None;
        match outcome {
            Ok(arrived) => {
                self.show(Event::CaughtUp { seq: arrived.record.seq, bytes: arrived.bytes, seconds: arrived.seconds });
                self.forget_attempts(arrived.record.seq);
                self.settle_feedback(&arrived.passed);
                self.check_admission(&arrived.record);
                let catch_up::Arrived { record, certificate, ancestry, left, merged, .. } = *arrived;
                self.note_merged(merged);
                self.feed(Input::CaughtUp { record: record.clone(), certificate, ancestry }).await?;
                if let Some(left) = left {
                    self.note_left(left, &record).await?;
                }
                self.start_wanted_round().await
            }
            Err(failed) => {
                if let Some(split) = failed.split {
                    self.feed(Input::Contradicted { split }).await?;
                }
                self.feed(Input::CatchUpFailed { reason: failed.reason }).await
            }
        }
    }

    /// A node that stands where the flock does and is no member asks to be let in. Members refuse it without many words,
    /// and hear no more of it for a minute; from the same record it can tell by itself why they would.
    pub(super) fn check_admission(&mut self, record: &Record) {
        let ticket = &self.settings.admission;
        let verdict = admission::admit(&self.spec, &Ed25519Verifier, &self.run, record, &self.me, ticket);
        let barred = verdict.err().map(|why| why.to_string());
        if barred != self.barred
            && let Some(why) = barred.clone()
        {
            self.show(Event::Waiting { on: Vec::new(), why });
        }
        self.barred = barred;
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
}
