//! Downloads content-addressed items from several peers at once.
//!
//! Each source has a few streams. Each stream takes the next item when it is free, so a faster source does more. An
//! item is believed when its check says so; a source that sends other bytes is dropped for good. When a source does not
//! have an item or breaks at it, another source is asked. Near the end a stream with nothing to do fetches a second
//! copy of an item that a slower stream still fetches, and further copies of items that have been under way for long.
//! Copies that strangers fetch keep no known source from fetching its own.

use super::client::{Expect, FetchError, Patience, request};
use super::wire::{FetchRefusal, FetchRequest};
use crate::BulkStream;
use futures::future::BoxFuture;
use starling_protocol::NodeId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// Requests outstanding at one source. Of the streams that a stranger may have, one is left for questions in between. A
/// stream that finds no place there waits for 200 ms.
pub const STREAMS_PER_SOURCE: usize = 3;
/// Sources used at once; further ones are ignored.
pub const SOURCES_MAX: usize = 64;
/// Streams that may break at one source before it is given up.
const BREAKS_MAX: usize = 3;
/// Streams that fetch the same item at once. One more may fetch it after [`LONG`], and another each time that its age
/// doubles.
const COPIES_MAX: u8 = 2;
const LONG: Duration = Duration::from_secs(10);
/// The pause after which a stream with nothing to do looks whether an item has been under way for long.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// The time for which a busy source is left alone, and how often that may happen.
const BUSY_PAUSE: Duration = Duration::from_millis(250);
const BUSY_MAX: usize = 40;

/// Says whether an item's bytes are what they must be.
pub type Check = Arc<dyn Fn(&Item, &[u8]) -> bool + Send + Sync>;
/// Opens a fetch stream to a source.
pub type OpenFetch = Arc<dyn Fn(NodeId) -> BoxFuture<'static, Result<BulkStream, FetchError>> + Send + Sync>;

/// Says whether a source is a stranger.
pub type IsStranger = Arc<dyn Fn(&NodeId) -> bool + Send + Sync>;

/// One thing to download: the concatenated answers to its requests, which together pass the check.
#[derive(Clone, Debug)]
pub struct Item {
    /// The caller's number for it, such as its place in a manifest.
    pub index: usize,
    pub parts: Vec<(FetchRequest, Expect)>,
}

/// The error of a download.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    #[error("none of {sources} sources has item {index}; the flock may have moved on to newer state")]
    Missing { index: usize, sources: usize },
    #[error("all {sources} sources failed with {left} items left; last: {last}")]
    NoSources { sources: usize, left: usize, last: String },
    #[error("the download was given up: its asker is gone")]
    Abandoned,
}

/// The result of a download.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DownloadReport {
    /// Bytes of good items by source.
    pub bytes: BTreeMap<NodeId, u64>,
    /// Sources that sent bytes that fail the check.
    pub liars: Vec<NodeId>,
}

/// Downloads items from a set of sources.
#[derive(Clone)]
pub struct Downloader {
    open: OpenFetch,
    check: Check,
    is_stranger: IsStranger,
}

impl Downloader {
    pub fn new(open: OpenFetch, check: Check, is_stranger: IsStranger) -> Self {
        Self { open, check, is_stranger }
    }

    /// Sends every item's bytes to `done`, in no particular order and each once, as they arrive.
    ///
    /// # Errors
    /// [`DownloadError`] when no source has an item, or no source is left.
    pub async fn run(
        &self,
        items: Vec<Item>,
        sources: &[NodeId],
        done: mpsc::Sender<(usize, Vec<u8>)>,
    ) -> Result<DownloadReport, DownloadError> {
        let sources = &sources[..sources.len().min(SOURCES_MAX)];
        let shared = Arc::new(Shared {
            desk: Mutex::new(Desk::new(items, sources, &self.is_stranger)),
            changed: Notify::new(),
            open: Arc::clone(&self.open),
            check: Arc::clone(&self.check),
            done,
        });
        let mut workers = JoinSet::new();
        for (number, source) in sources.iter().enumerate() {
            for _ in 0..STREAMS_PER_SOURCE {
                workers.spawn(Worker { shared: Arc::clone(&shared), source: *source, number }.run());
            }
        }
        // Dropping `workers`, on return or with this future, stops the streams that still fetch a copy.
        loop {
            // The future is made before the look, so that a change in between is not missed.
            let changed = shared.changed.notified();
            if let Some(verdict) = shared.desk().verdict() {
                return verdict;
            }
            changed.await;
        }
    }
}

struct Shared {
    desk: Mutex<Desk>,
    /// An item became free, or everything ended.
    changed: Notify,
    open: OpenFetch,
    check: Check,
    done: mpsc::Sender<(usize, Vec<u8>)>,
}

impl Shared {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An item and the sources that have been asked for it.
struct Entry {
    item: Item,
    state: State,
    /// Bit `n`: source `n` does not have it or is fetching it.
    asked: u64,
    copies: u8,
    /// Those of the copies that known sources fetch.
    of_known: u8,
    /// When a stream last began to fetch it while no other did.
    since: Instant,
}

impl Entry {
    /// Streams that may fetch it at once by now.
    fn copies_max(&self, now: Instant) -> u8 {
        let times = now.saturating_duration_since(self.since).as_secs() / LONG.as_secs();
        COPIES_MAX.saturating_add(times.checked_ilog2().map_or(0, |doubled| doubled as u8 + 1))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Done,
}

/// The books of one download.
struct Desk {
    entries: Vec<Entry>,
    left: usize,
    /// All entries before this one are done.
    first: usize,
    /// An event has happened by which an item may have lost its last source.
    doubt: bool,
    sources: Vec<NodeId>,
    /// Bit `n`: source `n` is in use.
    alive: u64,
    /// Bit `n`: source `n` is a stranger.
    strangers: u64,
    breaks: Vec<usize>,
    report: DownloadReport,
    last_error: String,
    abandoned: bool,
}

enum Next {
    Fetch(usize, Item),
    Wait,
    Stop,
}

impl Desk {
    fn new(items: Vec<Item>, sources: &[NodeId], is_stranger: &IsStranger) -> Self {
        let alive = if sources.len() >= 64 { u64::MAX } else { (1 << sources.len()) - 1 };
        let strangers = sources.iter().enumerate().filter(|(_, source)| is_stranger(source));
        let since = Instant::now();
        let entry = |item| Entry { item, state: State::Open, asked: 0, copies: 0, of_known: 0, since };
        Self {
            left: items.len(),
            entries: items.into_iter().map(entry).collect(),
            first: 0,
            doubt: false,
            sources: sources.to_vec(),
            alive,
            strangers: strangers.fold(0, |bits, (number, _)| bits | 1 << number),
            breaks: vec![0; sources.len()],
            report: DownloadReport::default(),
            last_error: "no source was given".into(),
            abandoned: false,
        }
    }

    /// The result of the download, if it has ended.
    fn verdict(&mut self) -> Option<Result<DownloadReport, DownloadError>> {
        if self.abandoned {
            return Some(Err(DownloadError::Abandoned));
        }
        if self.left == 0 {
            return Some(Ok(std::mem::take(&mut self.report)));
        }
        let sources = self.sources.len();
        if self.alive == 0 {
            let last = std::mem::take(&mut self.last_error);
            return Some(Err(DownloadError::NoSources { sources, left: self.left, last }));
        }
        if !std::mem::take(&mut self.doubt) {
            return None;
        }
        let alive = self.alive;
        let nowhere = |e: &&Entry| e.state == State::Open && e.copies == 0 && e.asked & alive == alive;
        let missing = self.entries[self.first..].iter().find(nowhere)?;
        Some(Err(DownloadError::Missing { index: missing.item.index, sources }))
    }

    /// The next step of a stream to source `number`.
    fn next(&mut self, number: usize) -> Next {
        let bit = 1u64 << number;
        if self.alive & bit == 0 || self.left == 0 || self.abandoned {
            return Next::Stop;
        }
        while self.entries.get(self.first).is_some_and(|e| e.state == State::Done) {
            self.first += 1;
        }
        // The open items lie close behind `first`, so the search is short until every item is under way.
        let (first, open) = (self.first, &self.entries[self.first..]);
        let find = |may: &dyn Fn(&Entry) -> bool| {
            let may = |e: &Entry| e.state == State::Open && e.asked & bit == 0 && may(e);
            open.iter().position(may).map(|at| first + at)
        };
        let (now, is_known) = (Instant::now(), self.strangers & bit == 0);
        let at = find(&|e| e.copies == 0)
            // An item that a stranger is sending may never come.
            .or_else(|| find(&|e| is_known && e.of_known == 0))
            .or_else(|| find(&|e| if is_known { e.of_known } else { e.copies } < e.copies_max(now)));
        let Some(at) = at else { return Next::Wait };
        let entry = &mut self.entries[at];
        if entry.copies == 0 {
            entry.since = now;
        }
        entry.asked |= bit;
        entry.copies += 1;
        entry.of_known += u8::from(is_known);
        Next::Fetch(at, entry.item.clone())
    }

    /// Source `number` no longer fetches entry `at`.
    fn leave(&mut self, at: usize, number: usize) -> &mut Entry {
        let is_known = self.strangers & 1 << number == 0;
        let entry = &mut self.entries[at];
        entry.copies -= 1;
        entry.of_known -= u8::from(is_known);
        entry
    }

    /// Source `number` no longer fetches entry `at`; with `again` it may be asked for it once more.
    fn put_back(&mut self, at: usize, number: usize, again: bool) {
        let entry = self.leave(at, number);
        if again {
            entry.asked &= !(1 << number);
        }
        self.doubt |= !again;
    }

    /// Whether these bytes are the first good ones of their item.
    fn finish(&mut self, at: usize, number: usize, bytes: usize) -> bool {
        let entry = self.leave(at, number);
        if entry.state == State::Done {
            return false;
        }
        entry.state = State::Done;
        self.left -= 1;
        *self.report.bytes.entry(self.sources[number]).or_default() += bytes as u64;
        true
    }

    fn give_up(&mut self, number: usize, why: String) {
        self.alive &= !(1 << number);
        self.doubt = true;
        self.last_error = why;
    }
}

/// One stream to one source.
struct Worker {
    shared: Arc<Shared>,
    source: NodeId,
    number: usize,
}

impl Worker {
    async fn run(self) {
        let mut stream = None;
        let mut busy = 0;
        loop {
            // The future is registered before the look, so that a change in between is not missed.
            let changed = self.shared.changed.notified();
            let next = self.shared.desk().next(self.number);
            let (at, item) = match next {
                Next::Stop => break,
                Next::Wait => {
                    // The stream looks again after a change, or when enough time has passed.
                    drop(timeout(LOOK_AGAIN, changed).await);
                    continue;
                }
                Next::Fetch(at, item) => (at, item),
            };
            match self.fetch(&mut stream, &item).await {
                Ok(bytes) if (self.shared.check)(&item, &bytes) => self.deliver(at, &item, bytes).await,
                Ok(_) => self.report_refusal(at, "fetch_hash", "it sent bytes that do not fit their hash".into()),
                Err(error) if error.is_violation() => self.report_refusal(at, "fetch_violation", error.to_string()),
                Err(FetchError::Refused(FetchRefusal::Busy)) if busy < BUSY_MAX => {
                    busy += 1;
                    self.shared.desk().put_back(at, self.number, true);
                    tokio::time::sleep(BUSY_PAUSE).await;
                }
                Err(FetchError::Refused(FetchRefusal::NotFound)) => self.shared.desk().put_back(at, self.number, false),
                Err(error) => {
                    stream = None;
                    self.broke(at, &error);
                }
            }
            self.shared.changed.notify_waiters();
        }
        self.shared.changed.notify_waiters();
    }

    /// Fetches all parts of an item over the worker's stream, which is opened when there is none.
    async fn fetch(&self, stream: &mut Option<BulkStream>, item: &Item) -> Result<Vec<u8>, FetchError> {
        let io = match stream {
            Some(io) => io,
            None => stream.insert((self.shared.open)(self.source).await?),
        };
        let patience = Patience::with_many();
        let most = item.parts.iter().fold(0u64, |bytes, (_, expected)| bytes.saturating_add(expected.most()));
        let all = async {
            let mut bytes = Vec::new();
            for (part, expected) in &item.parts {
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
        let first = self.shared.desk().finish(at, self.number, bytes.len());
        if first && self.shared.done.send((item.index, bytes)).await.is_err() {
            self.shared.desk().abandoned = true;
        }
    }

    /// The source sent bytes that fail the check: it is asked for nothing more.
    fn report_refusal(&self, at: usize, reason: &'static str, why: String) {
        tracing::warn!(peer = %self.source.short(), why, "a source of downloads is dropped");
        metrics::counter!("starling_refused_total", "reason" => reason).increment(1);
        let mut desk = self.shared.desk();
        desk.put_back(at, self.number, false);
        desk.give_up(self.number, why);
        if !desk.report.liars.contains(&self.source) {
            desk.report.liars.push(self.source);
        }
    }

    fn broke(&self, at: usize, error: &FetchError) {
        let mut desk = self.shared.desk();
        desk.put_back(at, self.number, true);
        desk.breaks[self.number] += 1;
        if desk.breaks[self.number] >= BREAKS_MAX {
            tracing::debug!(peer = %self.source.short(), %error, "a source of downloads failed repeatedly");
            desk.give_up(self.number, error.to_string());
        }
    }
}

#[cfg(test)]
#[path = "downloader_test.rs"]
mod tests;
