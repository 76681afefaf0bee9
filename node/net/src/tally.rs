//! The bytes that each peer has sent to a catch-up, for a person to see.

use super::fetch::{DownloadReport, SOURCES_MAX};
use starling_protocol::NodeId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that one peer has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    pub state: u64,
    pub updates: u64,
}

/// The bytes of each peer since they were last taken; clones share them. At most [`SOURCES_MAX`] peers are in it, the
/// first that sent something.
#[derive(Clone, Debug, Default)]
pub struct FetchTally(Arc<Mutex<BTreeMap<NodeId, Fetched>>>);

impl FetchTally {
    /// Adds a download of the state.
    pub fn state(&self, report: &DownloadReport) {
        report.bytes.iter().for_each(|(peer, bytes)| self.add(peer, Fetched { state: *bytes, updates: 0 }));
    }

    /// Adds a download of updates.
    pub fn updates(&self, report: &DownloadReport) {
        report.bytes.iter().for_each(|(peer, bytes)| self.update(peer, *bytes));
    }

    /// Adds an update, or a part of one.
    pub fn update(&self, peer: &NodeId, bytes: u64) {
        self.add(peer, Fetched { state: 0, updates: bytes });
    }

    /// Takes all counts, by ascending id.
    pub fn take(&self) -> Vec<(NodeId, Fetched)> {
        std::mem::take(&mut *self.counts()).into_iter().collect()
    }

    fn add(&self, peer: &NodeId, more: Fetched) {
        let mut counts = self.counts();
        if counts.len() >= SOURCES_MAX && !counts.contains_key(peer) {
            return;
        }
        let of_peer = counts.entry(*peer).or_default();
        of_peer.state = of_peer.state.saturating_add(more.state);
        of_peer.updates = of_peer.updates.saturating_add(more.updates);
    }

    fn counts(&self) -> MutexGuard<'_, BTreeMap<NodeId, Fetched>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u8) -> NodeId {
        NodeId([n; 32])
    }

    #[test]
    fn state_and_updates_of_a_peer_are_counted_apart_until_they_are_taken() {
        let tally = FetchTally::default();
        let report = DownloadReport { bytes: BTreeMap::from([(id(1), 10), (id(2), 20)]), ..DownloadReport::default() };
        tally.state(&report);
        tally.clone().update(&id(2), 5);
        tally.updates(&report);
        let [first, second] = [Fetched { state: 10, updates: 10 }, Fetched { state: 20, updates: 25 }];
        assert_eq!(tally.take(), [(id(1), first), (id(2), second)]);
        assert!(tally.take().is_empty());
    }

    #[test]
    fn so_many_peers_are_told_apart_and_no_more() {
        let tally = FetchTally::default();
        for n in 0..=u8::MAX {
            tally.update(&id(n), 1);
        }
        tally.update(&id(0), 1);
        let counts = tally.take();
        assert_eq!(counts.len(), SOURCES_MAX);
        assert_eq!(counts.first(), Some(&(id(0), Fetched { state: 0, updates: 2 })));
    }
}
