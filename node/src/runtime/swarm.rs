//! The chunks of a snapshot, as joiners fetch them from donors and from each other.

use crate::net::fetch::{DownloadReport, Expect, FetchRequest, Item, Swarm};
use starling_protocol::state::{self, Manifest};
use starling_protocol::{Digest, NodeId};
use std::collections::HashMap;
use tokio::sync::watch;

const ORDER_DOMAIN: &str = "starling swarm order v1";

/// The items that `me` is to fetch, in an order of its own: joiners that start together then hold different chunks early, and have something for
/// each other.
pub fn items(manifest: &Manifest, missing: &[Digest], me: &NodeId) -> Vec<Item> {
    let places: HashMap<&Digest, usize> = manifest.chunks.iter().enumerate().map(|(place, d)| (d, place)).collect();
    let item = |digest: &Digest| {
        let index = *places.get(digest)?;
        let length = manifest.chunk_len(index)? as u64;
        Some(Item { index, parts: vec![(FetchRequest::StateChunk(*digest), Expect::Exactly(length))] })
    };
    let mut items: Vec<Item> = missing.iter().filter_map(item).collect();
    let root = state::root(manifest);
    items.sort_by_cached_key(|item| Digest::of(ORDER_DOMAIN, &[&me.0, &root.0, &(item.index as u64).to_le_bytes()]));
    items
}

/// Those who fetch the same state, and how to ask what they have of it.
pub fn of(manifest: &Manifest, fellows: watch::Receiver<Vec<NodeId>>) -> Swarm {
    let question = FetchRequest::ChunksHeld(state::root(manifest));
    Swarm { fellows, question, answer: Expect::Exactly(manifest.chunks.len().div_ceil(8) as u64) }
}

/// Counts what came from donors and what from fellows.
pub fn count(report: &DownloadReport) {
    let all: u64 = report.bytes.values().sum();
    for (from, bytes) in [("donor", all.saturating_sub(report.of_fellows)), ("fellow", report.of_fellows)] {
        metrics::counter!("starling_state_bytes_total", "from" => from).increment(bytes);
    }
    tracing::info!(bytes = all, of_fellows = report.of_fellows, sources = report.bytes.len(), "fetched a state");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_joiner_has_an_order_of_its_own_and_fetches_each_chunk_once() {
        let mut chunks: Vec<_> = (0..200).map(|n| Digest([n; 32])).collect();
        chunks.extend([Digest([9; 32]), Digest([9; 32])]);
        let manifest = Manifest { schema: Digest([1; 32]), elements: 101 << 18, vectors: 2, chunks };
        let missing = &manifest.chunks[8..200];
        let order = |me| items(&manifest, missing, &NodeId([me; 32])).iter().map(|item| item.index).collect::<Vec<_>>();
        let (first, second) = (order(1), order(2));
        assert_eq!(first, order(1));
        let early = first[..50].iter().filter(|place| second[..50].contains(place)).count();
        assert!(early < 30, "{early} of the first 50 are the same");
        let mut places = first;
        places.sort_unstable();
        // A chunk that is there three times is fetched once.
        assert_eq!(places, [8].into_iter().chain(10..200).chain([201]).collect::<Vec<_>>());
        let swarm = of(&manifest, watch::channel(Vec::new()).1);
        assert_eq!(swarm.answer, Expect::Exactly(26));
    }
}
