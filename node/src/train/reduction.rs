//! One attempt's reduction under way.

use super::driver::Outcome;
use super::ledger::Update;
use crate::reduce::{NetLinks, OwnersReducer, ReduceEngine, ReduceError, ReduceJob, RingReducer};
use starling_protocol::engine::io::AttemptKey;
use starling_protocol::run::EngineKind;
use starling_protocol::update;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

/// Dropping it stops the work and closes its streams.
pub struct Reduction {
    pub key: AttemptKey,
    /// The attempt's encoded update, once it is complete.
    pub update: Option<Update>,
    _work: AbortOnDropHandle<()>,
}

impl Reduction {
    /// Starts the run's engine; results go to `results`.
    pub fn start(engine: EngineKind, job: ReduceJob, links: NetLinks, results: mpsc::Sender<Outcome>) -> Self {
        let key = job.key;
        let engine: Box<dyn ReduceEngine> = match engine {
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
        Self { key, update: None, _work: AbortOnDropHandle::new(work) }
    }
}

/// Hashes away from the runtime's threads: it takes a while for large models.
async fn named(update: Vec<u8>) -> Result<Update, ReduceError> {
    let hash = move || Update { digest: update::digest(&update), bytes: Arc::new(update) };
    tokio::task::spawn_blocking(hash).await.map_err(|e| ReduceError::Task(e.to_string()))
}
