//! One attempt's reduction under way.

use super::driver::Outcome;
use crate::net::NetHandle;
use crate::reduce::{BulkRouter, ReduceJob, RingReducer};
use starling_protocol::engine::io::AttemptKey;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

/// Time between two progress inputs.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);

/// Dropping it stops the work and closes its streams.
pub struct Reduction {
    pub key: AttemptKey,
    /// The attempt's encoded update, once it is complete.
    pub update: Option<Arc<Vec<u8>>>,
    _work: AbortOnDropHandle<()>,
    _progress: AbortOnDropHandle<()>,
}

impl Reduction {
    /// Starts the ring; results go to `results`.
    pub fn start(job: ReduceJob, net: &NetHandle, router: &mut BulkRouter, results: mpsc::Sender<Outcome>) -> Self {
        let key = job.key;
        let moved = Arc::new(AtomicU64::new(0));
        let incoming = router.enter(&job);
        let (net, counter, progress_results) = (net.clone(), moved.clone(), results.clone());
        let work = tokio::spawn(async move {
            let progress = move |bytes: u64| {
                counter.store(bytes, Ordering::Relaxed);
            };
            let outcome = RingReducer::new(net).run(job, incoming, progress).await.map(Arc::new);
            let _ = results.send(Outcome::Reduced { key, outcome }).await;
        });
        let progress = tokio::spawn(async move {
            let mut tick = tokio::time::interval(PROGRESS_EVERY);
            let mut told = 0;
            loop {
                tick.tick().await;
                let bytes = moved.load(Ordering::Relaxed);
                if bytes != told {
                    told = bytes;
                    if progress_results.send(Outcome::ReduceProgress { key, bytes }).await.is_err() {
                        return;
                    }
                }
            }
        });
        Self { key, update: None, _work: AbortOnDropHandle::new(work), _progress: AbortOnDropHandle::new(progress) }
    }
}
