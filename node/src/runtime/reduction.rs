//! Reductions: attempts to make one update of the members' contributions.

use super::ledger::{Ahead, Update};
use super::matter::Outcome;
use crate::contribution;
use crate::net::{BulkStream, NetHandle};
use crate::reduce::{
    BulkRouter, LatticeReducer, NetLinks, OwnersReducer, Parts, ReduceEngine, ReduceError, ReduceJob, RingReducer, Sums,
};
use starling_protocol::engine::io::AttemptKey;
use starling_protocol::run::{EngineKind, SyncSpec};
use starling_protocol::{Digest, NodeId};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

/// The attempt under way, its streams, and the parts and sums that attempts at one record share.
pub struct Reductions {
    pub run: Digest,
    sync: SyncSpec,
    router: BulkRouter,
    pub parts: Arc<Parts>,
    pub sums: Arc<Sums>,
    current: Option<Reduction>,
}

/// The attempt under way. Dropping it stops the work and closes its streams.
struct Reduction {
    key: AttemptKey,
    ahead: Option<Ahead>,
    _work: AbortOnDropHandle<()>,
}

impl Reductions {
    pub fn new(run: Digest, sync: SyncSpec) -> Self {
        Self { run, sync, router: BulkRouter::new(run), parts: Arc::default(), sums: Arc::default(), current: None }
    }

    /// Hands on a stream that a peer opened for an attempt.
    pub fn route(&self, from: NodeId, stream: BulkStream) {
        self.router.route(from, stream);
    }

    /// Starts the engine for the round's codec, or in a flock of several rows that of rows and columns, in place of the attempt before;
    /// the result goes to `results`. The work ahead of it is kept until it is taken, or the attempt is over.
    pub fn start(&mut self, (job, ahead): (ReduceJob, Option<Ahead>), net: NetHandle, results: mpsc::Sender<Outcome>) {
        let (key, links) = (job.key, NetLinks::new(net, self.router.clone()));
        let engine: Box<dyn ReduceEngine> = match self.sync.engine_for(job.codec) {
            _ if !job.grid.is_one_row() => Box::new(LatticeReducer::new(links)),
            EngineKind::Ring => Box::new(RingReducer::new(links)),
            EngineKind::Owners => Box::new(OwnersReducer::new(links)),
        };
        let progress_results = results.clone();
        // Reports show that the attempt is alive; if the driver is behind, one is dropped, and the next says more.
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
        self.current = Some(Reduction { key, ahead, _work: AbortOnDropHandle::new(work) });
    }

    /// Whether this attempt is under way.
    pub fn is_at(&self, key: AttemptKey) -> bool {
        self.current.as_ref().is_some_and(|reduction| reduction.key == key)
    }

    /// Takes the work that is done ahead of the present attempt's result.
    pub fn take_ahead(&mut self) -> Option<Ahead> {
        self.current.as_mut()?.ahead.take()
    }

    /// Closes the attempt's streams.
    pub fn leave(&self, key: AttemptKey) {
        self.router.leave(key);
    }

    pub fn abandon(&mut self, key: AttemptKey) {
        self.router.leave(key);
        self.current.take_if(|reduction| reduction.key == key);
    }

    /// Forgets the attempts at this record, which is decided.
    pub fn forget(&mut self, seq: u64) {
        self.current.take_if(|reduction| reduction.key.seq <= seq);
        self.parts.forget();
        self.sums.forget();
    }
}

/// Hashes on a thread that may wait for the others: that takes a while for large models.
async fn named(update: Vec<u8>) -> Result<Update, ReduceError> {
    let hash = move || Update { digest: contribution::update_digest(&update), bytes: Arc::new(update) };
    tokio::task::spawn_blocking(hash).await.map_err(|e| ReduceError::Task(e.to_string()))
}
