//! Reductions: attempts to make one update of what the members contribute.

use super::driver::{Driver, Outcome};
use super::ledger::{Job, Update};
use crate::exit::Failure;
use crate::net::{BulkStream, NetHandle};
use crate::reduce::{BulkRouter, NetLinks, OwnersReducer, Parts, ReduceEngine, ReduceError, ReduceJob, RingReducer};
use starling_protocol::engine::io::{AttemptKey, Contribution, Input};
use starling_protocol::run::{Codec, EngineKind};
use starling_protocol::{Digest, NodeId, update};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

/// The attempt under way, its streams, and what attempts at one record have in common.
pub struct Reductions {
    run: Digest,
    engine: EngineKind,
    router: BulkRouter,
    parts: Arc<Parts>,
    current: Option<Reduction>,
}

/// Dropping it stops the work and closes its streams.
struct Reduction {
    key: AttemptKey,
    _work: AbortOnDropHandle<()>,
}

impl Reductions {
    pub fn new(run: Digest, engine: EngineKind) -> Self {
        Self { run, engine, router: BulkRouter::new(run), parts: Arc::default(), current: None }
    }

    /// A stream that a peer opened for an attempt.
    pub fn route(&self, from: NodeId, stream: BulkStream) {
        self.router.route(from, stream);
    }

    /// Starts the run's engine, in place of the attempt before; results go to `results`.
    fn start(&mut self, job: ReduceJob, net: NetHandle, results: mpsc::Sender<Outcome>) {
        let (key, links) = (job.key, NetLinks::new(net, self.router.clone()));
        let engine: Box<dyn ReduceEngine> = match self.engine {
            EngineKind::Ring => Box::new(RingReducer::new(links)),
            EngineKind::Owners => Box::new(OwnersReducer::new(links)),
        };
        let progress_results = results.clone();
        // Progress is for liveness; when the driver is behind, the next report says more.
        let progress = Arc::new(move |report| {
            let _ = progress_results.try_send(Outcome::ReduceProgress { key, report });
        });
        let work = tokio::spawn(async move {
            let outcome = match engine.run(job, progress).await {
                Ok(update) => named(update).await,
                Err(error) => Err(error),
            };
            let _ = results.send(Outcome::Reduced { key, outcome }).await;
        });
        self.current = Some(Reduction { key, _work: AbortOnDropHandle::new(work) });
    }

    /// Closes the attempt's streams.
    pub fn leave(&self, key: AttemptKey) {
        self.router.leave(key);
    }

    pub fn abandon(&mut self, key: AttemptKey) {
        self.router.leave(key);
        self.current.take_if(|reduction| reduction.key == key);
    }

    /// The record of this number is decided.
    pub fn forget(&mut self, seq: u64) {
        self.current.take_if(|reduction| reduction.key.seq <= seq);
        self.parts.forget();
    }
}

impl Driver {
    pub(super) fn reduce(
        &mut self,
        key: AttemptKey,
        members: Vec<Contribution>,
        flock: Vec<(NodeId, u32)>,
        codec: Codec,
    ) {
        let mine = members.iter().find(|member| member.member == self.me);
        let Some(delta) = mine.and_then(|mine| self.contributions.of(&mine.payload)) else {
            let reason = "this node no longer has the contribution that it announced".into();
            self.later(Input::ReduceFailed { key, suspect: None, refused: false, reason });
            return;
        };
        // That of the round that it is to be the COMMIT of.
        let round = self.state.head().record.round.saturating_add(1);
        let (feedback, parts) = (self.residuals.of_round(round), Arc::clone(&self.reductions.parts));
        let run = self.reductions.run;
        let job = ReduceJob { run, key, codec, members, flock, me: self.me, delta, feedback, parts };
        self.gauges.reduce_started();
        self.reductions.start(job, self.net.clone(), self.results.clone());
    }

    pub(super) async fn reduced(
        &mut self,
        key: AttemptKey,
        outcome: Result<Update, ReduceError>,
    ) -> Result<(), Failure> {
        if self.reductions.current.as_ref().is_none_or(|reduction| reduction.key != key) {
            return Ok(());
        }
        match outcome {
            Ok(update) => {
                let digest = update.digest;
                self.ledger(Job::Bring { key, update }).await?;
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
}

/// Hashes away from the runtime's threads: it takes a while for large models.
async fn named(update: Vec<u8>) -> Result<Update, ReduceError> {
    let hash = move || Update { digest: update::digest(&update), bytes: Arc::new(update) };
    tokio::task::spawn_blocking(hash).await.map_err(|e| ReduceError::Task(e.to_string()))
}
