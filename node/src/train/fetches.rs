//! What is on its way here from peers: candidates, the flock's state, text, and proofs of what peers claim.

use super::claims::Claims;
use super::driver::{Driver, Outcome};
use super::ledger::Job;
use super::sources::Sources;
use super::variant::Matter;
use super::{candidate, catch_up, shards};
use crate::exit::Failure;
use crate::net::fetch::Expect;
use crate::watch::event::Event;
use starling_protocol::engine::io::{AttemptKey, Input};
use starling_protocol::update::Fragments;
use starling_protocol::{Digest, NodeId, update};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio_util::task::AbortOnDropHandle;

/// A candidate on its way here. Dropping it gives it up.
struct Fetching {
    key: AttemptKey,
    record: Digest,
    _work: AbortOnDropHandle<()>,
}

#[derive(Default)]
pub struct Fetches {
    candidates: Vec<Fetching>,
    pub claims: Claims,
    catch_up: Option<AbortOnDropHandle<()>>,
    shards: bool,
}

impl Fetches {
    /// Whether a round cannot begin before something is here.
    pub fn bring_text_or_state(&self) -> bool {
        self.shards || self.catch_up.is_some()
    }

    /// Whether it was on its way. It is not any more.
    fn arrived(&mut self, key: AttemptKey, record: Digest) -> bool {
        let at = self.candidates.iter().position(|fetching| (fetching.key, fetching.record) == (key, record));
        at.map(|at| self.candidates.remove(at)).is_some()
    }

    pub fn abandon(&mut self, key: AttemptKey) {
        self.candidates.retain(|fetching| fetching.key != key);
    }

    /// The record of this number is decided.
    pub fn forget(&mut self, seq: u64) {
        self.candidates.retain(|fetching| fetching.key.seq > seq);
    }
}

impl Driver {
    /// Fetches a candidate. A second request for the same one takes the first one's place.
    pub(super) fn fetch(&mut self, key: AttemptKey, record: Digest, sources: Vec<NodeId>) {
        self.fetches.arrived(key, record);
        if self.fetches.candidates.len() >= candidate::FETCHES_MAX {
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
        self.fetches.candidates.push(Fetching { key, record, _work: AbortOnDropHandle::new(work) });
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
                self.ledger(Job::Bring { key, update }).await?;
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
        // In turn or at once, a stranger shall not be in a member's way.
        errand.sources = self.net.as_sources(errand.sources);
        self.show(Event::CatchingUp { seq: errand.seq, sources: errand.sources.len(), afresh: errand.afresh });
        let task = catch_up::Task {
            proof: self.fetches.claims.proof_of(&errand.target),
            sources: Sources::new(&errand.sources),
            errand,
            net: self.net.clone(),
            ledger: self.ledger_jobs.clone(),
            store: self.store.clone(),
            spec: Arc::new(self.spec.clone()),
            elements: self.settings.elements,
            head: self.state.head(),
            feedback: self.residuals.shared(),
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
        self.fetches.catch_up = Some(AbortOnDropHandle::new(handle));
    }

    pub(super) async fn caught_up(
        &mut self,
        outcome: Result<Box<catch_up::Arrived>, catch_up::Failed>,
    ) -> Result<(), Failure> {
        self.fetches.catch_up = None;
        match outcome {
            Ok(arrived) => {
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

    pub(super) fn fetch_shards(&mut self, missing: Vec<Digest>) {
        if std::mem::replace(&mut self.fetches.shards, true) {
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

    pub(super) async fn shards_fetched(&mut self, outcome: Result<(), String>) -> Result<(), Failure> {
        self.fetches.shards = false;
        if let Err(why) = outcome {
            self.show(Event::CatchUpFailed { reason: why });
        }
        self.start_wanted_round().await
    }
}
