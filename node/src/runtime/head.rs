//! The canonical state as the node's threads share it, and its head, which every thread may read.
//!
//! There are two locks: the tensors are locked as long as the arithmetic on them takes, the head only to be swapped. A
//! thread that reads the head never waits for a large model's outer step, nor for a disk.

use super::canonical::Canonical;
use starling_protocol::Digest;
use starling_protocol::record::Record;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

/// The head of the state.
pub struct Head {
    pub record: Record,
    /// [`Canonical::base`]: zero while the state is on its way from one record to the next.
    pub base: Digest,
    /// Digest of the parameters' names and shapes.
    pub schema: Digest,
}

impl Head {
    fn of(state: &Canonical) -> Arc<Self> {
        Arc::new(Self { record: state.record.clone(), base: state.base, schema: state.schema })
    }
}

/// Written by the ledger; read by the trainer, the driver and watchers.
pub struct SharedState {
    canonical: RwLock<Canonical>,
    head: RwLock<Arc<Head>>,
    /// The number of changes so far. Two equal numbers mean the same state.
    changes: AtomicU64,
}

impl SharedState {
    pub fn new(state: Canonical) -> Self {
        let head = RwLock::new(Head::of(&state));
        Self { canonical: RwLock::new(state), head, changes: AtomicU64::new(0) }
    }

    /// Locks the tensors; waits while they change. For threads that may wait.
    pub fn read(&self) -> RwLockReadGuard<'_, Canonical> {
        self.canonical.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of changes so far, which stays while [`Self::read`]'s guard is held.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// The head of the state; does not wait.
    pub fn head(&self) -> Arc<Head> {
        self.head.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the state, and then publishes its head. The closure must not wait for a disk.
    pub fn change<T>(&self, change: impl FnOnce(&mut Canonical) -> T) -> T {
        let mut state = self.canonical.write().unwrap_or_else(PoisonError::into_inner);
        self.changes.fetch_add(1, Ordering::Relaxed);
        let changed = change(&mut state);
        let head = Head::of(&state);
        // The head is swapped while the tensors are locked, so that a thread never reads new tensors and then an old
        // head.
        *self.head.write().unwrap_or_else(PoisonError::into_inner) = head;
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::sample_test::genesis;
    use starling_protocol::run::SyncMode;
    use starling_protocol::state::State;

    #[test]
    fn a_reader_of_the_head_does_not_wait_for_a_change_of_the_tensors() {
        let record = genesis().record;
        let digest = record.digest();
        let vectors = State::initial(vec![1.0; 8], SyncMode::Rounds);
        let schema = Digest([3; 32]);
        let state = SharedState::new(Canonical { record, digest, base: digest, schema, state: vectors });
        state.change(|tensors| {
            tensors.base = Digest::default();
            assert_eq!(state.head().base, digest, "the head before, and at once");
        });
        assert_eq!(state.head().base, Digest::default());
    }
}
