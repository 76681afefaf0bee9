//! Downloads content-addressed items from several peers at once.
//!
//! Each source has a few streams. Each stream takes the next item when it is free, so a faster source does more. An
//! item is believed when its check says so; a source that sends other bytes is dropped for good. When a source does not
//! have an item or breaks at it, another source is asked. Near the end a stream with nothing to do fetches a second
//! copy of an item that a slower stream still fetches, and further copies of items that have been under way for long.
//! Copies that strangers fetch keep no known source from fetching its own.
//!
//! Peers that download the same items at the same time, the fellows of a [`Swarm`], are asked for the items that they have by now.
//! A fellow that stalls is left alone after 4 s.
//!
//! Downloads that share [`Lanes`] have together no more streams to a source than one has alone. A stream for which there
//! is nothing to do makes room for the next download's.

use super::client::{Expect, FetchError, Patience, request};
use super::desk::{Desk, DownloadError, DownloadReport, IsStranger, Item, Next, SOURCES_MAX};
use super::lanes::{Lane, Lanes, Place};
use super::wire::{FetchRefusal, FetchRequest};
use crate::BulkStream;
use futures::future::BoxFuture;
use starling_protocol::NodeId;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Requests outstanding at one source. Of the streams that a stranger may have, one is left for questions in between. A
/// stream that finds no place there waits for 200 ms.
pub const STREAMS_PER_SOURCE: usize = 3;
/// Requests outstanding at one fellow.
const STREAMS_PER_FELLOW: usize = 2;
/// The pause after which a stream with nothing to do looks whether an item has been under way for long.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// The time for which a busy source is left alone, and how often that may happen.
const BUSY_PAUSE: Duration = Duration::from_millis(250);
const BUSY_MAX: usize = 40;

/// Says whether an item's bytes are what they must be.
pub type Check = Arc<dyn Fn(&Item, &[u8]) -> bool + Send + Sync>;
/// Opens a fetch stream to a source.
pub type OpenFetch = Arc<dyn Fn(NodeId) -> BoxFuture<'static, Result<BulkStream, FetchError>> + Send + Sync>;

/// Peers that download the same items at the same time.
#[derive(Clone)]
pub struct Swarm {
    /// The peers that are there now. A few of them are taken in, and stay as long as they are of use.
    pub fellows: watch::Receiver<Vec<NodeId>>,
    /// The question which items a peer has.
    pub question: FetchRequest,
    /// The length of its answer, which has a bit for each [`Item::index`] ([`is_held`](super::is_held)).
    pub answer: Expect,
    /// A peer is asked no more often than this.
    pub ask_every: Duration,
}

/// Downloads items from a set of sources.
#[derive(Clone)]
pub struct Downloader {
    open: OpenFetch,
    check: Check,
    is_stranger: IsStranger,
    swarm: Option<Swarm>,
    lanes: Option<Lanes>,
}

impl Downloader {
    pub fn new(open: OpenFetch, check: Check, is_stranger: IsStranger) -> Self {
        Self { open, check, is_stranger, swarm: None, lanes: None }
    }

    /// The same, with fellows beside the sources.
    pub fn beside(self, swarm: Swarm) -> Self {
        Self { swarm: Some(swarm), ..self }
    }

    /// The same, with streams that it shares with other downloads.
    pub fn within(self, lanes: Lanes) -> Self {
        Self { lanes: Some(lanes), ..self }
    }

    /// Sends every item's bytes to `done`, each once, as they arrive; sources are asked in the order of `items`.
    ///
    /// # Errors
    /// [`DownloadError`] when no source has an item, or no source is left. Fellows do not count as sources here.
    pub async fn run(
        &self,
        items: Vec<Item>,
        sources: &[NodeId],
        done: mpsc::Sender<(usize, Vec<u8>)>,
    ) -> Result<DownloadReport, DownloadError> {
        let sources = &sources[..sources.len().min(SOURCES_MAX)];
        let ask_every = self.swarm.as_ref().map_or(Duration::ZERO, |swarm| swarm.ask_every);
        let shared = Arc::new(Shared {
            desk: Mutex::new(Desk::new(items, sources, &self.is_stranger, ask_every)),
            changed: Notify::new(),
            open: Arc::clone(&self.open),
            check: Arc::clone(&self.check),
            swarm: self.swarm.clone(),
            done,
        });
        let mut workers = JoinSet::new();
        let hire = |workers: &mut JoinSet<()>, streams, (number, source), patience| {
            let lane = self.lanes.as_ref().map(|lanes| lanes.to(source, streams));
            for _ in 0..streams {
                let (shared, lane) = (Arc::clone(&shared), lane.clone());
                workers.spawn(Worker { shared, source, number, patience, lane }.run());
            }
        };
        let donors = sources.iter().copied().enumerate();
        donors.for_each(|donor| hire(&mut workers, STREAMS_PER_SOURCE, donor, Patience::with_many()));
        let mut fellows = self.swarm.as_ref().map(|swarm| swarm.fellows.clone());
        // Dropping `workers`, on return or with this future, stops the streams that still fetch a copy.
        loop {
            // The future is made before the look, so that a change in between is not missed.
            let changed = shared.changed.notified();
            if let Some(verdict) = shared.desk().verdict() {
                return verdict;
            }
            let there = fellows.as_mut().map(|fellows| fellows.borrow_and_update().clone()).unwrap_or_default();
            let new = shared.desk().take_in(&there);
            let patience = Patience::with_fellow();
            new.into_iter().for_each(|fellow| hire(&mut workers, STREAMS_PER_FELLOW, fellow, patience));
            tokio::select! {
                () = changed => {}
                () = told(&mut fellows) => {}
            }
        }
    }
}

/// Waits until other fellows are there.
async fn told(fellows: &mut Option<watch::Receiver<Vec<NodeId>>>) {
    let changed = match fellows {
        Some(fellows) => fellows.changed().await.is_ok(),
        None => false,
    };
    if !changed {
        // Nobody tells of any.
        std::future::pending().await
    }
}

struct Shared {
    desk: Mutex<Desk>,
    /// An item became free, or everything ended.
    changed: Notify,
    open: OpenFetch,
    check: Check,
    swarm: Option<Swarm>,
    done: mpsc::Sender<(usize, Vec<u8>)>,
}

impl Shared {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One stream to one source.
struct Worker {
    shared: Arc<Shared>,
    source: NodeId,
    number: usize,
    patience: Patience,
    /// The places for streams to the source, if other downloads share them.
    lane: Option<Arc<Lane>>,
}

impl Worker {
    async fn run(self) {
        let (mut stream, mut place) = (None, None);
        let mut busy = 0;
        loop {
            // The future is registered before the look, so that a change in between is not missed.
            let changed = self.shared.changed.notified();
            if !self.has_place(&mut stream, &mut place).await {
                drop(timeout(LOOK_AGAIN, changed).await);
                continue;
            }
            let next = self.shared.desk().next(self.number);
            let (at, item) = match next {
                Next::Stop => break,
                Next::Wait => {
                    self.make_room(&mut stream, &mut place);
                    // The stream looks again after a change, or when enough time has passed.
                    drop(timeout(LOOK_AGAIN, changed).await);
                    continue;
                }
                Next::Pause(pause) => {
                    self.make_room(&mut stream, &mut place);
                    tokio::time::sleep(pause).await;
                    continue;
                }
                Next::Ask => {
                    self.ask(&mut stream).await;
                    continue;
                }
                Next::Fetch(at, item) => (at, item),
            };
            match self.fetch(&mut stream, &item).await {
                Ok(bytes) if (self.shared.check)(&item, &bytes) => self.deliver(at, &item, bytes).await,
                Ok(_) => self.report_refusal(Some(at), "fetch_hash", "it sent bytes that do not fit their hash".into()),
                Err(error) if error.is_violation() => {
                    self.report_refusal(Some(at), "fetch_violation", error.to_string());
                }
                Err(FetchError::Refused(FetchRefusal::Busy)) if busy < BUSY_MAX => {
                    busy += 1;
                    self.shared.desk().put_back(at, self.number, true);
                    tokio::time::sleep(BUSY_PAUSE).await;
                }
                Err(FetchError::Refused(FetchRefusal::NotFound)) => self.shared.desk().put_back(at, self.number, false),
                Err(error) => {
                    stream = None;
                    self.make_room(&mut stream, &mut place);
                    self.broke(at, &error);
                }
            }
            self.shared.changed.notify_waiters();
        }
        self.shared.changed.notify_waiters();
    }

    /// Whether this stream has a place, after it has waited for one. It does not wait while there is nothing to do.
    async fn has_place(&self, stream: &mut Option<BulkStream>, place: &mut Option<Place>) -> bool {
        let Some(lane) = &self.lane else { return true };
        if place.is_none() && self.shared.desk().has_need(self.number) {
            *place = lane.place().await;
            *stream = lane.take_over();
        }
        self.shared.desk().want(self.number, lane.is_wanted());
        place.is_some()
    }

    /// Gives the place up if another download waits for it, and leaves the stream to that one.
    fn make_room(&self, stream: &mut Option<BulkStream>, place: &mut Option<Place>) {
        let Some(lane) = self.lane.as_ref().filter(|lane| lane.is_wanted()) else { return };
        // The stream is there before the place: who gets this looks for it at once.
        if let Some(stream) = stream.take() {
            lane.leave(stream);
        }
        drop(place.take());
    }

    /// Asks a fellow which items it has. One that takes no part, or cannot be asked, is left alone for a while.
    async fn ask(&self, stream: &mut Option<BulkStream>) {
        let Some(swarm) = &self.shared.swarm else { return };
        let parts = [(swarm.question.clone(), swarm.answer)];
        match self.answers(stream, &parts).await {
            Ok(held) => self.shared.desk().heard(self.number, held),
            Err(error) if error.is_violation() => self.report_refusal(None, "fetch_violation", error.to_string()),
            Err(error) => {
                if !error.stream_survives() {
                    *stream = None;
                }
                match error {
                    FetchError::Refused(FetchRefusal::NotFound) => self.shared.desk().absent(self.number),
                    _ => self.shared.desk().rest(self.number),
                }
            }
        }
    }

    async fn fetch(&self, stream: &mut Option<BulkStream>, item: &Item) -> Result<Vec<u8>, FetchError> {
        self.answers(stream, &item.parts).await
    }

    /// The answers to all of these over the worker's stream, which is opened when there is none.
    async fn answers(
        &self,
        stream: &mut Option<BulkStream>,
        parts: &[(FetchRequest, Expect)],
    ) -> Result<Vec<u8>, FetchError> {
        let io = match stream {
            Some(io) => io,
            None => stream.insert((self.shared.open)(self.source).await?),
        };
        let patience = self.patience;
        let most = parts.iter().fold(0u64, |bytes, (_, expected)| bytes.saturating_add(expected.most()));
        let all = async {
            let mut bytes = Vec::new();
            for (part, expected) in parts {
                let answer = request(io, part, *expected, patience).await?;
                if bytes.is_empty() {
                    bytes = answer;
                } else {
                    bytes.extend_from_slice(&answer);
                }
            }
            Ok(bytes)
        };
        // Each part has a deadline of its own; all together have a shorter one than the sum of those.
        let after = patience.in_all(most);
        timeout(after, all).await.map_err(|_| FetchError::NoAnswer(after))?
    }

    async fn deliver(&self, at: usize, item: &Item, bytes: Vec<u8>) {
        // An item counts as done only when there is room for it: the download may end with the last one, and drops the
        // streams that still wait.
        let room = self.shared.done.reserve().await;
        let mut desk = self.shared.desk();
        match room {
            Ok(room) if desk.finish(at, self.number, bytes.len()) => room.send((item.index, bytes)),
            Ok(_) => {}
            Err(_) => desk.abandon(),
        }
    }

    /// The source sent bytes that fail the check: it is asked for nothing more.
    fn report_refusal(&self, at: Option<usize>, reason: &'static str, why: String) {
        tracing::warn!(peer = %self.source.short(), why, "a source of downloads is dropped");
        metrics::counter!("starling_refused_total", "reason" => reason).increment(1);
        let mut desk = self.shared.desk();
        if let Some(at) = at {
            desk.put_back(at, self.number, false);
        }
        desk.lied(self.number, why);
    }

    fn broke(&self, at: usize, error: &FetchError) {
        let mut desk = self.shared.desk();
        desk.put_back(at, self.number, true);
        if desk.broke(self.number, error) {
            tracing::debug!(peer = %self.source.short(), %error, "a source of downloads failed repeatedly");
        }
    }
}

#[cfg(test)]
#[path = "downloader_test.rs"]
mod tests;
