//! Sums of rows on their way: each is put here once, by the adder or by the reader that it came to, and taken once, by
//! the writer that passes it on or by the owner.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// A chunk and a row.
pub(super) type Way = (usize, usize);

#[derive(Default)]
pub(super) struct Post {
    waiting: Mutex<BTreeMap<Way, Vec<f32>>>,
    /// Changes with each sum that is put here.
    put: watch::Sender<u64>,
}

impl Post {
    /// Every step leaves the sums whole, so a holder that panicked leaves a usable lock.
    fn waiting(&self) -> MutexGuard<'_, BTreeMap<Way, Vec<f32>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn put(&self, way: Way, sum: Vec<f32>) {
        self.waiting().insert(way, sum);
        self.put.send_modify(|count| *count = count.wrapping_add(1));
    }

    pub fn has(&self, way: Way) -> bool {
        self.waiting().contains_key(&way)
    }

    /// Takes the sum of a row if it is here.
    pub fn take(&self, way: Way) -> Option<Vec<f32>> {
        self.waiting().remove(&way)
    }

    /// Returns when the sum of a row is here.
    pub async fn arrived(&self, way: Way) {
        // The sender is in `self`, so the channel cannot close during the wait.
        drop(self.put.subscribe().wait_for(|_| self.has(way)).await);
    }
}
