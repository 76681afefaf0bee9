//! The books of one download: what is left of it, and which source fetches what.
//!
//! *Donors* are sources that ought to have everything; a download fails when these fail. *Fellows* download the same items at the
//! same time, and have those that they say they have. A fellow that has nothing new, or fails, costs a pause and nothing else.

use super::client::{Expect, FetchError};
use super::wire::{FetchRequest, is_held};
use starling_protocol::NodeId;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Donors of one download; further ones are ignored.
pub const SOURCES_MAX: usize = 64;
/// Fellows that one download may have from its beginning to its end.
const FELLOWS_MAX: usize = 64;
/// Fellows that are asked for something at a time: with two streams each they fit into the streams that a node gives to strangers.
const FELLOWS_AT_ONCE: usize = 16;
const _: () = assert!(SOURCES_MAX + FELLOWS_MAX <= Bits::BITS as usize);
/// A fellow that has failed is left alone for so long.
const REST: Duration = Duration::from_secs(2);
/// A fellow that takes no part is left alone for so many times the pause between two questions.
const PAUSES: u32 = 2;
/// Items, from the first open one on, among which a donor is asked first for those that no fellow has.
const LOOK_AHEAD: usize = 256;
/// Streams that may break at one donor before it is given up.
const BREAKS_MAX: usize = 3;
/// Streams that fetch the same item at once. One more may for each time that it has been under way twice as long as this.
const COPIES_MAX: u8 = 2;
const LONG: Duration = Duration::from_secs(10);
/// While another download waits for a stream, that stream fetches copies only of items that have been under way for so
/// long.
const COPIED_FIRST: Duration = Duration::from_secs(2);

/// One bit for each source.
type Bits = u128;

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
    #[error("whoever asked for the download is gone")]
    Abandoned,
}

/// The result of a download.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DownloadReport {
    /// Bytes of good items by source.
    pub bytes: BTreeMap<NodeId, u64>,
    /// Bytes of good items that fellows have sent.
    pub of_fellows: u64,
    /// Sources that sent something that does not check.
    pub liars: Vec<NodeId>,
}

/// How much an item counts as being fetched that a source is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    Fellow = 0,
    Stranger = 1,
    Known = 2,
}

/// An item and the sources that have been asked for it.
struct Entry {
    item: Item,
    is_done: bool,
    /// Bit `n`: source `n` does not have it or is at it.
    asked: Bits,
    /// Streams that are at it, by [`Trust`] in their source.
    copies: [u8; 3],
    /// When a stream was last at it alone.
    since: Instant,
}

impl Entry {
    /// Streams at it whose sources are trusted at least so much.
    fn copies_from(&self, trust: Trust) -> u8 {
        self.copies.iter().skip(trust as usize).sum()
    }

    fn copies(&self) -> u8 {
        self.copies_from(Trust::Fellow)
    }

    /// Streams that may be at it by now.
    fn copies_max(&self, now: Instant) -> u8 {
        let times = now.saturating_duration_since(self.since).as_secs() / LONG.as_secs();
        COPIES_MAX.saturating_add(times.checked_ilog2().map_or(0, |doubled| doubled as u8 + 1))
    }
}

/// A source, and what is known of it.
struct Seat {
    id: NodeId,
    trust: Trust,
    breaks: usize,
    /// The items that it has, as it said last: bits by index. Nothing for a donor.
    held: Vec<u8>,
    /// A fellow is asked for nothing before this.
    rests_until: Option<Instant>,
    /// When a fellow was last asked which items it has.
    asked_at: Option<Instant>,
}

impl Seat {
    fn new(id: NodeId, trust: Trust) -> Self {
        Self { id, trust, breaks: 0, held: Vec::new(), rests_until: None, asked_at: None }
    }

    fn is_fellow(&self) -> bool {
        self.trust == Trust::Fellow
    }

    fn rest(&self, now: Instant) -> Option<Duration> {
        self.rests_until.map(|until| until.saturating_duration_since(now)).filter(|rest| !rest.is_zero())
    }

    /// The next step with a fellow that has nothing that is needed, and is asked no more often than `every`.
    fn question(&mut self, now: Instant, every: Duration) -> Next {
        let pause = self.asked_at.map_or(Duration::ZERO, |at| every.saturating_sub(now.saturating_duration_since(at)));
        if !pause.is_zero() {
            return Next::Pause(pause);
        }
        self.asked_at = Some(now);
        Next::Ask
    }
}

pub(super) struct Desk {
    entries: Vec<Entry>,
    left: usize,
    /// All entries before this one are done.
    first: usize,
    /// Something happened by which an item may have become nowhere to be had.
    doubt: bool,
    /// Donors, then fellows as they were taken in.
    seats: Vec<Seat>,
    donors: usize,
    /// A fellow is asked which items it has no more often than this.
    ask_every: Duration,
    /// Bit `n`: source `n` is of use.
    alive: Bits,
    /// Bit `n`: another download waits for a stream to source `n`.
    wanted: Bits,
    report: DownloadReport,
    last_error: String,
    abandoned: bool,
}

/// The next step of one stream to a source.
pub(super) enum Next {
    Fetch(usize, Item),
    /// Ask which items the source has.
    Ask,
    /// Nothing until something changes.
    Wait,
    /// Nothing for so long.
    Pause(Duration),
    Stop,
}

impl Desk {
    /// The sources are donors; at most [`SOURCES_MAX`] of them count. A fellow is asked which items it has no more
    /// often than `ask_every`.
    pub fn new(items: Vec<Item>, sources: &[NodeId], is_stranger: &IsStranger, ask_every: Duration) -> Self {
        let trust = |source| if is_stranger(source) { Trust::Stranger } else { Trust::Known };
        let seats: Vec<Seat> = sources.iter().take(SOURCES_MAX).map(|id| Seat::new(*id, trust(id))).collect();
        let since = Instant::now();
        let entry = |item| Entry { item, is_done: false, asked: 0, copies: [0; 3], since };
        Self {
            left: items.len(),
            entries: items.into_iter().map(entry).collect(),
            first: 0,
            doubt: false,
            donors: seats.len(),
            ask_every,
            alive: (1 << seats.len()) - 1,
            wanted: 0,
            seats,
            report: DownloadReport::default(),
            last_error: "no source was given".into(),
            abandoned: false,
        }
    }

    /// Takes in those of these fellows that are new, as long as there is room; their numbers.
    pub fn take_in(&mut self, fellows: &[NodeId]) -> Vec<(usize, NodeId)> {
        let (now, mut new) = (Instant::now(), Vec::new());
        let works =
            |(n, seat): &(usize, &Seat)| seat.is_fellow() && self.alive >> n & 1 == 1 && seat.rest(now).is_none();
        let at_once = self.seats.iter().enumerate().filter(works).count();
        for id in fellows {
            let is_full = at_once + new.len() >= FELLOWS_AT_ONCE || self.seats.len() >= self.donors + FELLOWS_MAX;
            if is_full || self.left == 0 {
                break;
            }
            if self.seats.iter().all(|seat| seat.id != *id) {
                let number = self.seats.len();
                self.seats.push(Seat::new(*id, Trust::Fellow));
                self.alive |= 1 << number;
                new.push((number, *id));
            }
        }
        new
    }

    fn donors_alive(&self) -> Bits {
        self.alive & ((1 << self.donors) - 1)
    }

    /// How the download ended, if it did.
    pub fn verdict(&mut self) -> Option<Result<DownloadReport, DownloadError>> {
        if self.abandoned {
            return Some(Err(DownloadError::Abandoned));
        }
        if self.left == 0 {
            return Some(Ok(std::mem::take(&mut self.report)));
        }
        let (sources, alive) = (self.donors, self.donors_alive());
        if alive == 0 {
            let last = std::mem::take(&mut self.last_error);
            return Some(Err(DownloadError::NoSources { sources, left: self.left, last }));
        }
        if !std::mem::take(&mut self.doubt) {
            return None;
        }
        let nowhere = |e: &&Entry| !e.is_done && e.copies() == 0 && e.asked & alive == alive;
        let missing = self.entries[self.first..].iter().find(nowhere)?;
        Some(Err(DownloadError::Missing { index: missing.item.index, sources }))
    }

    /// Notes whether another download waits for a stream to source `number`.
    pub fn want(&mut self, number: usize, wanted: bool) {
        let bit: Bits = 1 << number;
        self.wanted = if wanted { self.wanted | bit } else { self.wanted & !bit };
    }

    /// Whether a stream to source `number` would have something to do, or may end.
    pub fn has_need(&self, number: usize) -> bool {
        let is_over = self.alive >> number & 1 == 0 || self.left == 0 || self.abandoned;
        is_over || self.seats[number].is_fellow() || self.choose(number, Instant::now()).is_some()
    }

    /// Returns the next step of a stream to source `number`.
    pub fn next(&mut self, number: usize) -> Next {
        let bit: Bits = 1 << number;
        if self.alive & bit == 0 || self.left == 0 || self.abandoned {
            return Next::Stop;
        }
        while self.entries.get(self.first).is_some_and(|e| e.is_done) {
            self.first += 1;
        }
        let now = Instant::now();
        if let Some(rest) = self.seats[number].rest(now) {
            return Next::Pause(rest);
        }
        let Some(at) = self.choose(number, now) else {
            let (seat, every) = (&mut self.seats[number], self.ask_every);
            return if seat.is_fellow() { seat.question(now, every) } else { Next::Wait };
        };
        let (trust, entry) = (self.seats[number].trust, &mut self.entries[at]);
        if entry.copies() == 0 {
            entry.since = now;
        }
        entry.asked |= bit;
        entry.copies[trust as usize] += 1;
        Next::Fetch(at, entry.item.clone())
    }

    /// The item to fetch from source `number`, if there is one.
    fn choose(&self, number: usize, now: Instant) -> Option<usize> {
        let (bit, seat): (Bits, _) = (1 << number, &self.seats[number]);
        let (trust, is_fellow) = (seat.trust, seat.is_fellow());
        // The next items lie close behind `first`, so the search is short until nothing fresh is left.
        let (first, open) = (self.first, &self.entries[self.first..]);
        let find = |among: &[Entry], fits: &dyn Fn(&Entry) -> bool| {
            let may = |e: &Entry| {
                !e.is_done && e.asked & bit == 0 && (!is_fellow || is_held(&seat.held, e.item.index)) && fits(e)
            };
            among.iter().position(may).map(|at| first + at)
        };
        let near = &open[..open.len().min(LOOK_AHEAD)];
        let rare = |e: &Entry| e.copies() == 0 && !self.is_at_a_fellow(e.item.index);
        // The donors' uplinks are what the fellows wait for together: what one of these has need not come over them.
        let at = if is_fellow || self.seats.len() == self.donors { None } else { find(near, &rare) };
        let at = at.or_else(|| find(open, &|e| e.copies() == 0));
        // A fellow has only a part of what is left: it makes second copies when nothing is left to begin.
        if at.is_some() || is_fellow && open.iter().any(|e| !e.is_done && e.copies() == 0) {
            return at;
        }
        if self.wanted & bit != 0 {
            let is_slow = |e: &Entry| now.saturating_duration_since(e.since) >= COPIED_FIRST;
            return find(open, &|e| is_slow(e) && e.copies_from(trust) < e.copies_max(now));
        }
        // An item that a less trusted source is sending may never come.
        let alone = if is_fellow { None } else { find(open, &|e| e.copies_from(trust) == 0) };
        alone.or_else(|| find(open, &|e| e.copies_from(trust) < e.copies_max(now)))
    }

    fn is_at_a_fellow(&self, index: usize) -> bool {
        self.seats.iter().skip(self.donors).any(|fellow| is_held(&fellow.held, index))
    }

    /// A fellow has said which items it has.
    pub fn heard(&mut self, number: usize, held: Vec<u8>) {
        self.seats[number].held = held;
    }

    /// Leaves a fellow that has failed alone for a while.
    pub fn rest(&mut self, number: usize) {
        self.rest_for(number, REST);
    }

    /// Leaves a fellow that has said that it takes no part alone for a while: it may have only just begun.
    pub fn absent(&mut self, number: usize) {
        self.rest_for(number, self.ask_every.saturating_mul(PAUSES));
    }

    /// Leaves a fellow alone for so long. It is asked anew then which items it has.
    fn rest_for(&mut self, number: usize, pause: Duration) {
        let seat = &mut self.seats[number];
        (seat.held, seat.asked_at) = (Vec::new(), None);
        seat.rests_until = Some(Instant::now() + pause);
    }

    /// Source `number` is no longer at entry `at`.
    fn leave(&mut self, at: usize, number: usize) -> &mut Entry {
        let (trust, entry) = (self.seats[number].trust, &mut self.entries[at]);
        entry.copies[trust as usize] -= 1;
        entry
    }

    /// Source `number` is no longer at entry `at`; with `again` it may be asked for it once more.
    pub fn put_back(&mut self, at: usize, number: usize, again: bool) {
        let entry = self.leave(at, number);
        if again {
            entry.asked &= !(1 << number);
        }
        self.doubt |= !again || self.seats[number].is_fellow();
    }

    /// Whether these bytes are the first good ones of their item.
    pub fn finish(&mut self, at: usize, number: usize, bytes: usize) -> bool {
        let entry = self.leave(at, number);
        if std::mem::replace(&mut entry.is_done, true) {
            return false;
        }
        self.left -= 1;
        let seat = &self.seats[number];
        *self.report.bytes.entry(seat.id).or_default() += bytes as u64;
        self.report.of_fellows += if seat.is_fellow() { bytes as u64 } else { 0 };
        true
    }

    /// A stream to source `number` broke. Whether the source is given up.
    pub fn broke(&mut self, number: usize, error: &FetchError) -> bool {
        if self.seats[number].is_fellow() {
            self.rest(number);
            return false;
        }
        self.seats[number].breaks += 1;
        let is_over = self.seats[number].breaks >= BREAKS_MAX;
        if is_over {
            self.give_up(number, error.to_string());
        }
        is_over
    }

    /// Source `number` lied.
    pub fn lied(&mut self, number: usize, why: String) {
        self.give_up(number, why);
        let id = self.seats[number].id;
        if !self.report.liars.contains(&id) {
            self.report.liars.push(id);
        }
    }

    fn give_up(&mut self, number: usize, why: String) {
        self.alive &= !(1 << number);
        self.seats[number].held = Vec::new();
        self.doubt = true;
        self.last_error = why;
    }

    /// Nobody takes what is downloaded any more.
    pub fn abandon(&mut self) {
        self.abandoned = true;
    }
}

#[cfg(test)]
#[path = "desk_test.rs"]
mod tests;
