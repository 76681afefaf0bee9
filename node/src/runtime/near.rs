//! Snapshots for newcomers: a member whose newest snapshot is far behind its head has its ledger write one when a peer asks.
//!
//! A newcomer fetches each update after its snapshot, too, and an update may have an eighth of the state's bytes.

use super::ledger::Job;
use starling_store::{Store, StoreError};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{Sender, WeakSender};
use tokio::sync::oneshot::{self, Receiver, error::TryRecvError};

/// COMMITs after the newest snapshot that a newcomer may well fetch.
const BEHIND_MAX: u64 = 2;
/// Such snapshots are written no more often than this, however many ask; and so many times as long as one takes lie between two, so that
/// strangers that ask again and again cost the disk a twentieth of its time.
const EVERY: Duration = Duration::from_secs(30);
const APART: u32 = 20;
/// The longest time for which an asker is told to wait; then it takes the snapshots that there are.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// A state of which nothing has been fetched for so long is not being fetched.
const FETCHED: Duration = Duration::from_secs(10);

/// Whether a snapshot for newcomers is due, or on its way to the disk.
#[derive(Default)]
pub struct Near {
    /// The ledger ends when its jobs' senders are gone: this one does not keep it.
    ledger: OnceLock<WeakSender<Job>>,
    times: Mutex<Times>,
}

#[derive(Default)]
struct Times {
    /// When the last snapshot was asked of the ledger, and its answer, which is still to come.
    asked: Option<Instant>,
    writing: Option<Receiver<Duration>>,
    /// How long the last one took to write.
    took: Duration,
    /// When a chunk was last handed out.
    fetched: Option<Instant>,
}

impl Near {
    pub fn set_ledger(&self, jobs: &Sender<Job>) {
        // A node has one ledger; a second one would not be asked.
        let _ = self.ledger.set(jobs.downgrade());
    }

    /// No statement leaves them half-changed, so a poisoned lock is still good.
    fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A chunk of a state is handed out: whoever comes next joins those who fetch this state, and all have it from each other. Another
    /// snapshot could take it away from them.
    pub fn fetched(&self, now: Instant) {
        self.times().fetched = Some(now);
    }

    /// Whether the peer that asks for snapshots had better ask again in a moment, since one is being written. Has one written if it is
    /// due.
    ///
    /// # Errors
    /// When the store cannot say how far behind its newest snapshot is.
    pub fn is_awaited(&self, store: &Store, now: Instant) -> Result<bool, StoreError> {
        let mut times = self.times();
        let since = |at: Option<Instant>| at.map(|at| now.saturating_duration_since(at));
        if let Some(writing) = &mut times.writing {
            match writing.try_recv() {
                Err(TryRecvError::Empty) => return Ok(since(times.asked).is_some_and(|since| since < WAIT_MAX)),
                took => (times.took, times.writing) = (took.unwrap_or_default(), None),
            }
        }
        let pause = EVERY.max(times.took.saturating_mul(APART));
        let is_early = since(times.asked).is_some_and(|since| since < pause);
        let is_fetched = since(times.fetched).is_some_and(|since| since < FETCHED);
        if is_early || is_fetched || behind(store)? <= BEHIND_MAX {
            return Ok(false);
        }
        let Some(ledger) = self.ledger.get().and_then(WeakSender::upgrade) else { return Ok(false) };
        let (reply, writing) = oneshot::channel();
        // A ledger with that much to do has no time for it.
        let is_asked = ledger.try_send(Job::Snapshot { reply }).is_ok();
        if is_asked {
            (times.asked, times.writing) = (Some(now), Some(writing));
        }
        Ok(is_asked)
    }
}

/// COMMITs from the newest snapshot to the head; none without one.
fn behind(store: &Store) -> Result<u64, StoreError> {
    let (Some(head), Some((seq, _))) = (store.head(), store.snapshots().pop()) else { return Ok(0) };
    let round = store.record(seq)?.map_or(head.round, |record| record.round);
    Ok(head.round.saturating_sub(round))
}

#[cfg(test)]
#[path = "near_test.rs"]
mod tests;
