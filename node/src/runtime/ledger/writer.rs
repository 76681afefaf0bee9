//! The writer of snapshots and checkpoints: one at a time, on a thread of its own, so that the ledger waits for no
//! disk.

use super::frozen::Frozen;
use super::job::{CheckpointMade, CheckpointOutcome, CheckpointPurpose, Job};
use crate::runtime::head::SharedState;
use starling_store::{SnapshotKind, Store, StoreError};
use std::io;
use std::sync::Arc;
#[cfg(test)]
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::WeakSender;
use tokio::sync::oneshot;

/// The time that a snapshot may still take when the node ends. Then it is given up: the one before and the updates since
/// lead to the same state.
const ENDS_WITHIN: Duration = Duration::from_secs(3);

/// A snapshot or a checkpoint that is to be written.
pub enum Order {
    Snapshot(SnapshotOrder),
    Checkpoint(CheckpointOrder),
}

/// The purpose of a snapshot.
pub struct SnapshotOrder {
    pub kind: SnapshotKind,
    /// It takes the place of one for which memory no longer held the state of its record.
    pub is_second: bool,
    /// The one that waits for it; it is told how long it took.
    pub asked: Option<oneshot::Sender<Duration>>,
}

/// The purpose of a checkpoint.
pub struct CheckpointOrder {
    pub purpose: CheckpointPurpose,
    /// The checkpoint as it will be reported once it is written.
    pub made: CheckpointMade,
    /// It takes the place of one whose state was no longer there.
    pub is_second: bool,
    /// Those that wait for it.
    pub asked: Vec<oneshot::Sender<CheckpointOutcome>>,
}

/// A state on its way to the disk.
struct Writing {
    order: Order,
    frozen: Arc<Frozen>,
    began: Instant,
    thread: JoinHandle<Result<(), StoreError>>,
}

/// A snapshot or checkpoint that was written, or was not.
pub struct Written {
    pub order: Order,
    pub took: Duration,
    pub result: Result<(), StoreError>,
}

pub struct Writer {
    store: Arc<Store>,
    state: Arc<SharedState>,
    /// The ledger ends when its jobs' senders are gone: this one does not keep it.
    jobs: WeakSender<Job>,
    writing: Option<Writing>,
    /// A test that holds it holds up the writing.
    #[cfg(test)]
    pub hold: Arc<Mutex<()>>,
}

/// Tells the ledger that the writing ends, also by a panic.
struct Tell(WeakSender<Job>);

impl Drop for Tell {
    fn drop(&mut self) {
        if let Some(jobs) = self.0.upgrade() {
            // If the ledger has ended, it looks for itself.
            drop(jobs.blocking_send(Job::Written));
        }
    }
}

impl Writer {
    pub fn new(store: Arc<Store>, state: Arc<SharedState>, jobs: WeakSender<Job>) -> Self {
        Self {
            store,
            state,
            jobs,
            writing: None,
            #[cfg(test)]
            hold: Arc::default(),
        }
    }

    pub fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// The state that is being written.
    pub fn frozen(&self) -> Option<Arc<Frozen>> {
        self.writing.as_ref().map(|writing| Arc::clone(&writing.frozen))
    }

    /// Begins to write the present state as `work` does. A [`Job::Written`] comes when it ends. The caller has seen
    /// that none is being written.
    ///
    /// # Errors
    /// The order again, if there is no thread for it.
    pub fn begin<W>(&mut self, order: Order, work: W) -> Result<(), (Order, io::Error)>
    where
        W: FnOnce(&Store, &Frozen) -> Result<(), StoreError> + Send + 'static,
    {
        let frozen = Arc::new(Frozen::of(&self.state));
        let (store, state, jobs) = (self.store.clone(), frozen.clone(), self.jobs.clone());
        let name = match &order {
            Order::Snapshot(_) => "snapshot",
            Order::Checkpoint(_) => "checkpoint",
        };
        #[cfg(test)]
        let hold = self.hold.clone();
        let write = move || {
            let _tell = Tell(jobs);
            #[cfg(test)]
            drop(hold.lock());
            work(&store, &state)
        };
        match std::thread::Builder::new().name(name.into()).spawn(write) {
            Ok(thread) => {
                self.writing = Some(Writing { order, frozen, began: Instant::now(), thread });
                Ok(())
            }
            Err(e) => Err((order, e)),
        }
    }

    /// The snapshot that is being written.
    pub fn snapshot(&mut self) -> Option<&mut SnapshotOrder> {
        match &mut self.writing.as_mut()?.order {
            Order::Snapshot(order) => Some(order),
            Order::Checkpoint(_) => None,
        }
    }

    /// Whether a checkpoint is being written.
    pub fn is_at_checkpoint(&self) -> bool {
        matches!(&self.writing, Some(Writing { order: Order::Checkpoint(_), .. }))
    }

    /// Gives up what is being written, because the state in memory is about to become another one.
    pub fn give_up(&self) {
        if let Some(writing) = &self.writing {
            writing.frozen.give_up();
        }
    }

    /// The end of what was being written; waits for it.
    pub fn take(&mut self) -> Option<Written> {
        let Writing { order, frozen: _, began, thread } = self.writing.take()?;
        let result = thread.join().unwrap_or_else(|_| {
            let source = io::Error::other("the thread panicked; see the message before");
            Err(StoreError::Io { action: "write a state to", path: self.store.path().to_path_buf(), source })
        });
        Some(Written { order, took: began.elapsed(), result })
    }

    /// Waits a moment for the snapshot that is being written, and then gives it up: the node ends. For a checkpoint the
    /// node has waited already if somebody wants it.
    pub fn end(&mut self) {
        if let Some(writing) = &self.writing {
            let within = if self.is_at_checkpoint() { Duration::ZERO } else { ENDS_WITHIN };
            writing.frozen.end_by(Instant::now() + within);
        }
        if let Some(Written { result: Err(e), .. }) = self.take() {
            tracing::info!("the last snapshot or checkpoint was not written: {e}");
        }
    }
}
