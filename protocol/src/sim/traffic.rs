//! Traffic between nodes, counted by kind of message and by sender.

use crate::Digest;
use crate::record::Record;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Kinds of messages that voting uses.
pub const VOTING: &[&str] = &["estimate", "vote", "certificate", "start", "witness", "fork"];
/// Offset of the sequence number in an estimate: behind the envelope's header and the tag.
const SEQ: usize = 40;

/// Traffic between nodes since the last reset.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    /// Bytes by kind of message, and within a kind by sender.
    pub kinds: BTreeMap<&'static str, BTreeMap<usize, u64>>,
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
        *self.kinds.entry(kind).or_default().entry(from).or_default() += bytes;
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
        *self = Self { newest: self.newest, records: std::mem::take(&mut self.records), ..Self::default() };
    }
}
