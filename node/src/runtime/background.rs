//! Work in the background: how the driver starts reductions, fetches, catch-ups and proofs of claims, and what it does
//! with their results.

use super::arrival::Arrival;
use super::driver::Driver;
use super::fetches::FETCHES_MAX;
use super::ledger::{Ahead, Awaited, Job, Update, step_after};
use super::matter::{Matter, Outcome};
use super::proof::{ANSWER_PATIENCE, Asked, Proof, Unproven};
use super::sources::Sources;
use super::{candidate, catch_up, shards};
use crate::exit::Failure;
use crate::net::Fetched;
use crate::net::fetch::{Expect, Lanes};
use crate::reduce::{ReduceError, ReduceJob, Report};
use crate::watch::event::{Event, FetchedFrom};
use starling_protocol::engine::CLAIMS_MAX;
use starling_protocol::engine::io::{AttemptKey, Claim, Contribution, Input};
use starling_protocol::grid::Grid;
use starling_protocol::outer::Rule;
use starling_protocol::run::Codec;
use starling_protocol::update::Fragments;
use starling_protocol::{Digest, NodeId, update};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio_util::task::AbortOnDropHandle;

impl Driver {
    pub(super) async fn result(&mut self, result: Outcome) -> Result<(), Failure> {
        match result {
            Outcome::ReduceProgress { key, report: Report { reached, awaits } } => {
                self.feed(Input::ReduceProgress { key, bytes: reached, awaits }).await
            }
            Outcome::Reduced { key, outcome } => self.reduced(key, outcome).await,
            Outcome::CatchUpProgress { bytes } => {
                let moved = self.gauges.arrival.as_mut().map(|arrival| arrival.moved(bytes, Instant::now()));
                moved.into_iter().flatten().for_each(|event| self.show(event));
                self.feed(Input::CatchUpProgress { bytes }).await
            }
            Outcome::CaughtUp(outcome) => self.caught_up(outcome).await,
            Outcome::Claim { peer, record, outcome } => self.shown(peer, record, outcome).await,
            Outcome::Fetched { key, record, outcome } => self.fetched(key, record, outcome).await,
            Outcome::Variant(matter) => self.hand_over(*matter).await,
            Outcome::ShardsFetched(outcome) => self.shards_fetched(outcome).await,
        }
    }

    pub(super) fn reduce(
        &mut self,
        key: AttemptKey,
        members: Vec<Contribution>,
        (flock, grid): (Vec<(NodeId, u32)>, Arc<Grid>),
        codec: Codec,
    ) {
        let mine = members.iter().find(|member| member.member == self.me);
        let Some(delta) = mine.and_then(|mine| self.contributions.of(&mine.payload)) else {
            let reason = "this node no longer has the contribution that it announced".into();
            self.later(Input::ReduceFailed { key, suspect: None, refused: false, reason });
            return;
        };
        // The residuals are those of the round that this COMMIT would end.
        let round = self.state.head().record.round.saturating_add(1);
        let feedback = self.residuals.of_round(round);
        let (parts, sums) = (Arc::clone(&self.reductions.parts), Arc::clone(&self.reductions.sums));
        let run = self.reductions.run;
        let ahead = self.work_ahead(key, members.len());
        let job = ReduceJob { run, key, codec, members, flock, grid, me: self.me, delta, feedback, parts, sums };
        self.gauges.reduce_started();
        self.reductions.start((job, ahead), self.net.clone(), self.results.clone());
    }

    /// Begins to work on the update of an attempt with so many members.
    fn work_ahead(&self, key: AttemptKey, members: usize) -> Option<Ahead> {
        let (head, elements) = (self.state.head(), self.settings.elements);
        let step = step_after(&self.spec, &head.record, Rule::of(&self.spec, &head.record, members), elements);
        let awaited = Awaited { key, parent: head.record.digest(), step, elements };
        Ahead::start(awaited, Arc::clone(&self.state), Arc::clone(&self.reductions.sums), &self.store)
    }

    pub(super) async fn reduced(
        &mut self,
        key: AttemptKey,
        outcome: Result<Update, ReduceError>,
    ) -> Result<(), Failure> {
        if !self.reductions.is_at(key) {
            return Ok(());
        }
        match outcome {
            Ok(update) => {
                let (digest, ahead) = (update.digest, self.reductions.take_ahead());
                self.ledger(Job::Bring { key, update, ahead }).await?;
                self.gauges.reduced();
                self.residuals.stage(key);
                self.feed(Input::Reduced { key, update: digest }).await
            }
            Err(error) => {
                let (suspect, refused) = (error.suspect(), error.refusal().is_some());
                self.feed(Input::ReduceFailed { key, suspect, refused, reason: error.to_string() }).await
            }
        }
    }

    /// Fetches a candidate. A second request for it replaces the first.
    pub(super) fn fetch(&mut self, key: AttemptKey, record: Digest, sources: Vec<NodeId>) {
        self.fetches.arrived(key, record);
        if self.fetches.candidates() >= FETCHES_MAX {
            metrics::counter!("starling_refused_total", "reason" => "candidate_fetches_full").increment(1);
            self.later(Input::FetchFailed { key, record });
            return;
        }
        let head = self.state.head();
        let (codec, round) = (head.record.next.codec, head.record.round.saturating_add(1));
        let fragments = Fragments::of(&self.spec.sync, self.settings.elements);
        let most = update::encoded_max(codec, fragments.of_round(round).len()) as u64;
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
        self.fetches.start(key, record, work);
    }

    pub(super) async fn fetched(
        &mut self,
        key: AttemptKey,
        record: Digest,
        outcome: Result<Box<candidate::Arrived>, String>,
    ) -> Result<(), Failure> {
        if !self.fetches.arrived(key, record) {
            return Ok(());
        }
        match outcome {
            Ok(arrived) => {
                let candidate::Arrived { candidate, update } = *arrived;
                self.ledger(Job::Bring { key, update, ahead: None }).await?;
                self.feed(Input::Fetched { candidate }).await
            }
            Err(why) => {
                tracing::info!("the result of attempt {} at record {} cannot be fetched: {why}", key.attempt, key.seq);
                self.feed(Input::FetchFailed { key, record }).await
            }
        }
    }

    pub(super) fn catch_up(&mut self, mut errand: catch_up::Errand) {
        self.device.halt();
        // Strangers come after members among the sources, so that none is in a member's way.
        errand.sources = self.net.as_sources(errand.sources);
        let state = self.settings.elements as u64 * 4 * u64::from(self.spec.sync.mode.vectors());
        let patience = Duration::from_millis(self.engine.in_force().join.patience_ms.into());
        self.gauges.arrival = Some(Arrival::new(Instant::now(), errand.afresh.then_some(state), patience));
        self.show(Event::CatchingUp { seq: errand.seq, sources: errand.sources.len(), afresh: errand.afresh });
        let task = catch_up::Task {
            proof: self.fetches.claims.proof_of(&errand.target),
            sources: Sources::new(&errand.sources),
            fellows: self.fetches.fellows.begin(errand.seq),
            errand,
            net: self.net.clone(),
            ledger: self.ledger_jobs.clone(),
            store: self.store.clone(),
            spec: Arc::new(self.spec.clone()),
            elements: self.settings.elements,
            head: self.state.head(),
            feedback: self.residuals.shared(),
            bytes: AtomicU64::new(0),
            lanes: Lanes::default(),
            asking: tokio::sync::Mutex::default(),
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
        self.fetches.catch_up = Some(AbortOnDropHandle::new(handle));
    }

    /// Tells the catch-up under way which peers may have parts of what it fetches.
    pub(super) fn tell_fellows(&mut self) {
        if self.fetches.fellows.is_due(Instant::now()) {
            self.fetches.fellows.tell(&self.engine.view());
        }
    }

    pub(super) async fn caught_up(
        &mut self,
        outcome: Result<Box<catch_up::Arrived>, catch_up::Failed>,
    ) -> Result<(), Failure> {
        self.fetches.catch_up = None;
        self.gauges.arrival = None;
        self.show_fetched();
        match outcome {
            Ok(arrived) => {
                self.gauges.left_the_round();
                self.show(Event::CaughtUp { seq: arrived.record.seq, bytes: arrived.bytes, seconds: arrived.seconds });
                self.forget_attempts(arrived.record.seq);
                self.residuals.settle(&arrived.passed);
                self.check_admission(&arrived.record);
                let catch_up::Arrived { record, certificate, ancestry, left, merged, .. } = *arrived;
                self.hand(Matter::Merged(&merged));
                self.feed(Input::CaughtUp { record: record.clone(), certificate, ancestry }).await?;
                if let Some(left) = left {
                    self.hand_over(Matter::Left(left, Box::new(record))).await?;
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

    /// Shows which peers have sent what a catch-up fetched.
    fn show_fetched(&mut self) {
        let source = |(peer, Fetched { state, updates }): (NodeId, Fetched)| FetchedFrom {
            peer: peer.to_string(),
            state_bytes: state,
            update_bytes: updates,
        };
        let sources: Vec<FetchedFrom> = self.net.fetched().take().into_iter().map(source).collect();
        if !sources.is_empty() {
            self.show(Event::Fetched { sources });
        }
    }

    pub(super) fn fetch_shards(&mut self, missing: Vec<Digest>) {
        if std::mem::replace(&mut self.fetches.shards, true) {
            return;
        }
        let (net, data, results) = (self.net.clone(), self.data.clone(), self.results.clone());
        tokio::spawn(async move {
            let outcome = shards::fetch(&net, &data, &missing).await;
            if outcome.is_err() {
                // Peers may arrive; the round is tried again then.
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            let _ = results.send(Outcome::ShardsFetched(outcome)).await;
        });
    }

    pub(super) async fn shards_fetched(&mut self, outcome: Result<(), String>) -> Result<(), Failure> {
        self.fetches.shards = false;
        if let Err(why) = outcome {
            self.show(Event::CatchUpFailed { reason: why });
        }
        self.start_wanted_round().await
    }

    /// Asks a peer to show the path to the record that it claims as its head.
    pub(super) fn prove(&mut self, peer: NodeId, (seq, record): (u64, Digest), foreign: bool) {
        if self.fetches.claims.under_way.len() >= CLAIMS_MAX {
            metrics::counter!("starling_refused_total", "reason" => "claims_full").increment(1);
            let why = "too many claims are looked at".to_owned();
            return self.later(Input::Claim { peer, record, outcome: Claim::Open { why } });
        }
        let (net, results) = (self.net.clone(), self.results.clone());
        let (spec, store) = (Arc::new(self.spec.clone()), self.store.clone());
        let asked = Asked { peer, seq, record, foreign, spec, store, patience: ANSWER_PATIENCE };
        let work = tokio::spawn(async move {
            let outcome = asked.prove(|request, expected| net.fetch(peer, request, expected)).await;
            let _ = results.send(Outcome::Claim { peer, record, outcome }).await;
        });
        self.fetches.claims.under_way.push((peer, record, AbortOnDropHandle::new(work)));
    }

    pub(super) async fn shown(
        &mut self,
        peer: NodeId,
        record: Digest,
        outcome: Result<Proof, Unproven>,
    ) -> Result<(), Failure> {
        self.fetches.claims.under_way.retain(|(of, about, _)| (of, about) != (&peer, &record));
        let mut split = None;
        let outcome = match outcome {
            Ok(proof) => match proof.claim() {
                Some(proven) => {
                    self.fetches.claims.keep(proof);
                    Claim::Proven(proven)
                }
                None => Claim::Open { why: "its path is empty".to_owned() },
            },
            Err(unproven) => {
                if let Unproven::False(label) = &unproven {
                    metrics::counter!("starling_refused_total", "reason" => *label).increment(1);
                }
                tracing::debug!("{} has not proven record {record}: {unproven:?}", peer.short());
                if let Unproven::Split(found) = &unproven {
                    split = Some(found.clone());
                }
                unproven.into()
            }
        };
        self.feed(Input::Claim { peer, record, outcome }).await?;
        match split {
            Some(split) => self.feed(Input::Contradicted { split }).await,
            None => Ok(()),
        }
    }
}
