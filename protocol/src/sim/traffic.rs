//! Traffic between nodes, counted by kind of message and by node, and the time that engines take.

use crate::Digest;
use crate::record::Record;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Kinds of messages that voting uses.
pub const VOTING: &[&str] = &["estimate", "vote", "certificate", "start", "witness", "fork"];
/// Offset of the sequence number in an estimate: behind the envelope's header and the tag.
const SEQ: usize = 40;

/// Messages, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub messages: u64,
    pub bytes: u64,
}

/// Messages and bytes that nodes sent, or received, by kind of message and within a kind by node.
pub type Counts = BTreeMap<&'static str, BTreeMap<usize, Count>>;

/// Traffic between nodes since the last reset.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    pub sent: Counts,
    pub received: Counts,
    /// For each node, the others of which it received a message.
    pub heard: BTreeMap<usize, BTreeSet<usize>>,
    /// A clock in nanoseconds, where the time of engines is measured; and that time by node.
    pub clock: Option<fn() -> u64>,
    pub engines: BTreeMap<usize, u64>,
    /// Bytes of voting between two nodes, both ways.
    pub pairs: BTreeMap<(usize, usize), u64>,
    pub largest_ready: u64,
    /// By sequence number of the record: the nodes that have said an estimate, and the time of the first one.
    entered: BTreeMap<u64, BTreeMap<usize, u64>>,
    /// Records, so that nodes can share them.
    pub records: BTreeMap<Digest, Rc<Record>>,
    /// The newest record that a node has committed.
    pub newest: u64,
    /// For each record, the times when voters entered the vote on it, rising, and the time when the first node
    /// committed it.
    pub agreements: Vec<(Vec<u64>, u64)>,
}

impl Traffic {
    pub fn sent(&mut self, (from, to): (usize, usize), kind: &'static str, message: &[u8], now: u64) {
        let bytes = message.len() as u64;
        count(&mut self.sent, kind, from, bytes);
        if VOTING.contains(&kind) {
            *self.pairs.entry((from.min(to), from.max(to))).or_default() += bytes;
        }
        let seq = message.get(SEQ..SEQ + 8).and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)));
        match (kind, seq) {
            ("ready", _) => self.largest_ready = self.largest_ready.max(bytes),
            ("estimate", Some(seq)) if seq > self.newest => {
                self.entered.entry(seq).or_default().entry(from).or_insert(now);
            }
            _ => {}
        }
    }

    /// Notes that a message reached a program.
    pub fn arrived(&mut self, (from, to): (usize, usize), kind: &'static str, message: &[u8]) {
        count(&mut self.received, kind, to, message.len() as u64);
        self.heard.entry(to).or_default().insert(from);
    }

    /// Calls an engine, and counts its time if there is a clock.
    pub fn timed<T>(&mut self, node: usize, call: impl FnOnce() -> T) -> T {
        let Some(clock) = self.clock else { return call() };
        let began = clock();
        let answer = call();
        *self.engines.entry(node).or_default() += clock().saturating_sub(began);
        answer
    }

    /// Notes that a node commits the record of this sequence number.
    pub fn committed(&mut self, seq: u64, now: u64) {
        if seq > self.newest {
            self.newest = seq;
            let mut entered: Vec<u64> = self.entered.remove(&seq).unwrap_or_default().into_values().collect();
            entered.sort_unstable();
            self.agreements.push((entered, now));
        }
    }

    /// Starts the count anew.
    pub fn restart(&mut self) {
        let records = std::mem::take(&mut self.records);
        *self = Self { newest: self.newest, records, clock: self.clock, ..Self::default() };
    }
}

fn count(counts: &mut Counts, kind: &'static str, node: usize, bytes: u64) {
    let count = counts.entry(kind).or_default().entry(node).or_default();
    count.messages += 1;
    count.bytes += bytes;
}
