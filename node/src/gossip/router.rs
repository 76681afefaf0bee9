//! Hands arriving pair streams to the exchange that they belong to.
//!
//! A partner may be at an exchange before this node: its stream is parked, unread but for its opening, one for each
//! peer and for a bounded time. A stream of an exchange that is over is dropped at once, so that its sender goes on.

use super::opening::{self, OPENING_BYTES};
use super::{PairError, PairKey, Place};
use crate::net::BulkStream;
use starling_protocol::{Digest, NodeId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

/// Streams whose opening is being read or that wait for their exchange, from all peers.
const STREAMS_CAP: usize = 64;
/// Time in which an opening must have arrived.
const OPENING_PATIENCE: Duration = Duration::from_secs(10);
/// Time for which a stream stays parked; longer than any member waits for an exchange.
const PARKED_PATIENCE: Duration = Duration::from_secs(60);

/// The router of one run; cheap to clone.
#[derive(Clone)]
pub struct PairRouter {
    run: Digest,
    streams: Arc<Semaphore>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// The round that this node trains, or trained last.
    place: Place,
    /// The exchanges of this round up to this one are over.
    over: u32,
    /// The exchange that waits for its stream; the trainer makes one at a time.
    waiting: Option<(PairKey, NodeId, oneshot::Sender<BulkStream>)>,
    parked: BTreeMap<NodeId, Parked>,
}

struct Parked {
    key: PairKey,
    since: Instant,
    stream: BulkStream,
    _permit: OwnedSemaphorePermit,
}

impl State {
    fn is_over(&self, key: &PairKey) -> bool {
        key.place == self.place && key.exchange <= self.over
    }

    /// Drops parked streams that no exchange will take any more.
    fn tidy(&mut self) {
        let (place, over) = (self.place, self.over);
        self.parked.retain(|_, parked| {
            let past = parked.key.place == place && parked.key.exchange <= over;
            !past && parked.since.elapsed() < PARKED_PATIENCE
        });
    }
}

impl PairRouter {
    /// Routes streams of `run`; others are refused.
    pub fn new(run: Digest) -> Self {
        Self { run, streams: Arc::new(Semaphore::new(STREAMS_CAP)), state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a stream that `from` opened. Returns at once; refusals are counted.
    pub fn route(&self, from: NodeId, stream: BulkStream) {
        self.state().tidy();
        let Ok(permit) = Arc::clone(&self.streams).try_acquire_owned() else {
            return refused(from, "pair_streams_full");
        };
        let router = self.clone();
        tokio::spawn(async move {
            match timeout(OPENING_PATIENCE, router.read_opening(stream)).await {
                Ok(Ok((key, stream))) => router.place(from, key, stream, permit),
                Ok(Err(reason)) => refused(from, reason),
                Err(_) => refused(from, "pair_opening_timeout"),
            }
        });
    }

    async fn read_opening(&self, mut stream: BulkStream) -> Result<(PairKey, BulkStream), &'static str> {
        let mut bytes = [0; OPENING_BYTES];
        stream.read_exact(&mut bytes).await.map_err(|_| "pair_opening_truncated")?;
        let (run, key) = opening::decode(&bytes).map_err(|_| "pair_opening_malformed")?;
        if run == self.run { Ok((key, stream)) } else { Err("pair_other_run") }
    }

    /// Hands the stream to its exchange, or parks it. It replaces an older one of the same peer.
    fn place(&self, from: NodeId, key: PairKey, stream: BulkStream, permit: OwnedSemaphorePermit) {
        let mut state = self.state();
        if state.is_over(&key) {
            // This is no fault of the peer's: it is late, and sees that at once.
            tracing::debug!(peer = %from.short(), "its exchange is over here");
            return;
        }
        let mut stream = stream;
        if let Some((waiting, _, taker)) = state.waiting.take_if(|(waiting, partner, _)| {
            *partner == from && (*waiting == key || (waiting.place == key.place && waiting.exchange < key.exchange))
        }) && waiting == key
        {
            match taker.send(stream) {
                Ok(()) => return,
                // The exchange is just being given up.
                Err(back) => stream = back,
            }
        }
        state.parked.insert(from, Parked { key, since: Instant::now(), stream, _permit: permit });
    }

    /// Notes the round that the node trains now.
    pub fn begin(&self, place: Place) {
        let mut state = self.state();
        if state.place != place {
            (state.place, state.over) = (place, 0);
        }
        state.tidy();
    }

    /// Ends the exchanges of the round up to this one.
    pub fn over(&self, exchange: u32) {
        let mut state = self.state();
        state.over = state.over.max(exchange);
        state.waiting = None;
        state.tidy();
    }

    /// The stream of exchange `key` from `from`, now or when it arrives. Waits without a deadline: the caller has one.
    ///
    /// # Errors
    /// [`PairError::Ahead`] when the peer is at a later exchange, [`PairError::Left`] when this one is over.
    pub async fn accept(&self, key: PairKey, from: NodeId) -> Result<BulkStream, PairError> {
        let arriving = {
            let mut state = self.state();
            if state.is_over(&key) {
                return Err(PairError::Left);
            }
            if let Some(parked) = state.parked.remove(&from) {
                if parked.key == key {
                    return Ok(parked.stream);
                }
                if parked.key.place == key.place && parked.key.exchange > key.exchange {
                    state.parked.insert(from, parked);
                    return Err(PairError::Ahead);
                }
            }
            let (taker, arriving) = oneshot::channel();
            state.waiting = Some((key, from, taker));
            arriving
        };
        let arrived = arriving.await;
        arrived.map_err(|_| if self.state().is_over(&key) { PairError::Left } else { PairError::Ahead })
    }
}

fn refused(from: NodeId, reason: &'static str) {
    tracing::debug!(peer = %from.short(), reason, "pair stream dropped");
    metrics::counter!("starling_refused_total", "reason" => reason).increment(1);
}
