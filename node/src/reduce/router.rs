//! Hands arriving bulk streams to the attempt that they belong to.
//!
//! A neighbour may begin an attempt before this node: its stream is parked, unread but for its opening, for a bounded
//! time. A stream of an attempt that this node has left is dropped, so nothing of it can reach the next one.

use super::opening::{self, OPENING_BYTES};
use crate::net::BulkStream;
use starling_protocol::engine::io::AttemptKey;
use starling_protocol::{Digest, NodeId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

/// Streams whose opening is being read or that wait for their attempt, from all peers.
const STREAMS_CAP: usize = 128;
/// Parked streams of one peer; attempts follow one another, so more than two make no sense.
const PARKED_PER_PEER: usize = 4;
/// Attempts that are remembered as left.
const LEFT_CAP: usize = 64;

/// The times for which the router waits.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// Time in which an opening must have arrived.
    opening: Duration,
    /// Time for which a stream stays parked.
    parked: Duration,
}

const PATIENCE: Patience = Patience { opening: Duration::from_secs(10), parked: Duration::from_secs(60) };

/// Why no stream will arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouterError {
    #[error("this node has left the attempt")]
    Left,
    #[error("the attempt waits for this stream already")]
    Twice,
}

type Slot = (AttemptKey, NodeId);

/// The router of one run; cheap to clone.
#[derive(Clone)]
pub struct BulkRouter {
    run: Digest,
    patience: Patience,
    streams: Arc<Semaphore>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Attempts of this node that wait for a stream.
    waiting: BTreeMap<Slot, oneshot::Sender<BulkStream>>,
    /// Streams that wait for an attempt.
    parked: BTreeMap<Slot, Parked>,
    /// Attempts that were left, the newest last.
    left: VecDeque<AttemptKey>,
    /// Names parked streams, so that a timer drops only its own.
    serial: u64,
}

struct Parked {
    serial: u64,
    stream: BulkStream,
    _permit: OwnedSemaphorePermit,
}

impl BulkRouter {
    /// Routes streams of `run`; others are refused.
    pub fn new(run: Digest) -> Self {
        Self { run, patience: PATIENCE, streams: Arc::new(Semaphore::new(STREAMS_CAP)), state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a stream that `from` opened. Returns at once; refusals are counted.
    pub fn route(&self, from: NodeId, stream: BulkStream) {
        let Ok(permit) = Arc::clone(&self.streams).try_acquire_owned() else {
            return refused(from, "bulk_streams_full");
        };
        let router = self.clone();
        tokio::spawn(async move {
            match timeout(router.patience.opening, router.read_opening(stream)).await {
                Ok(Ok((key, stream))) => router.place(from, key, stream, permit).await,
                Ok(Err(reason)) => refused(from, reason),
                Err(_) => refused(from, "bulk_opening_timeout"),
            }
        });
    }

    async fn read_opening(&self, mut stream: BulkStream) -> Result<(AttemptKey, BulkStream), &'static str> {
        let mut bytes = [0; OPENING_BYTES];
        stream.read_exact(&mut bytes).await.map_err(|_| "bulk_opening_truncated")?;
        let (run, key) = opening::decode(&bytes).map_err(|_| "bulk_opening_malformed")?;
        if run == self.run { Ok((key, stream)) } else { Err("bulk_other_run") }
    }

    /// Hands the stream to its attempt, or parks it and stays until it is taken or too old.
    async fn place(&self, from: NodeId, key: AttemptKey, stream: BulkStream, permit: OwnedSemaphorePermit) {
        let slot = (key, from);
        let serial = {
            let mut state = self.state();
            if state.left.contains(&key) {
                return refused(from, "bulk_left_attempt");
            }
            let stream = match state.waiting.remove(&slot) {
                None => stream,
                Some(waiter) => match waiter.send(stream) {
                    Ok(()) => return,
                    // The attempt is just being dropped.
                    Err(stream) => stream,
                },
            };
            if state.parked.contains_key(&slot) {
                return refused(from, "bulk_stream_twice");
            }
            if state.parked.keys().filter(|(_, peer)| *peer == from).count() >= PARKED_PER_PEER {
                return refused(from, "bulk_parked_full");
            }
            state.serial += 1;
            let serial = state.serial;
            state.parked.insert(slot, Parked { serial, stream, _permit: permit });
            serial
        };
        tokio::time::sleep(self.patience.parked).await;
        let mut state = self.state();
        if state.parked.get(&slot).is_some_and(|parked| parked.serial == serial) {
            state.parked.remove(&slot);
            refused(from, "bulk_parked_timeout");
        }
    }

    /// The stream of attempt `key` from `from`, now or when it arrives. Waits without a deadline: the engine has one.
    ///
    /// # Errors
    /// [`RouterError`] when the attempt was left, is being left, or waits for the stream already.
    pub async fn accept(&self, key: AttemptKey, from: NodeId) -> Result<BulkStream, RouterError> {
        let slot = (key, from);
        let receiver = {
            let mut state = self.state();
            if state.left.contains(&key) {
                return Err(RouterError::Left);
            }
            if let Some(parked) = state.parked.remove(&slot) {
                return Ok(parked.stream);
            }
            if state.waiting.get(&slot).is_some_and(|waiter| !waiter.is_closed()) {
                return Err(RouterError::Twice);
            }
            let (sender, receiver) = oneshot::channel();
            state.waiting.insert(slot, sender);
            receiver
        };
        receiver.await.map_err(|_| RouterError::Left)
    }

    /// Leaves an attempt for good: waits for its streams end with an error, and parked and later streams are dropped.
    pub fn leave(&self, key: AttemptKey) {
        let mut state = self.state();
        state.waiting.retain(|(waiting, _), _| *waiting != key);
        state.parked.retain(|(parked, _), _| *parked != key);
        if !state.left.contains(&key) {
            if state.left.len() >= LEFT_CAP {
                state.left.pop_front();
            }
            state.left.push_back(key);
        }
    }
}

fn refused(from: NodeId, reason: &'static str) {
    tracing::debug!(peer = %from.short(), reason, "bulk stream dropped");
    metrics::counter!("starling_refused_total", "reason" => reason).increment(1);
}

#[cfg(test)]
#[path = "router_test.rs"]
mod tests;
