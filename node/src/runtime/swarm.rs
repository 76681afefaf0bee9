//! The chunks of a snapshot and the pieces of an update, as nodes fetch them from donors and from each other.

use crate::net::fetch::{DownloadReport, Expect, FetchRequest, Item, Swarm};
use starling_protocol::state::{self, Manifest};
use starling_protocol::{Digest, NodeId};
use starling_store::Pieces;
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::watch;

const ORDER_DOMAIN: &str = "starling swarm order v1";
/// Fellows are asked for chunks no more often than this. An update takes seconds, so they are asked for its pieces more
/// often.
const ASK_FOR_CHUNKS_EVERY: Duration = Duration::from_secs(1);
const ASK_FOR_PIECES_EVERY: Duration = Duration::from_millis(250);

/// The items that `me` is to fetch, in an order of its own: joiners that start together then hold different chunks early, and have something for
/// each other.
pub fn items(manifest: &Manifest, missing: &[Digest], me: &NodeId) -> Vec<Item> {
    let places: HashMap<&Digest, usize> = manifest.chunks.iter().enumerate().map(|(place, d)| (d, place)).collect();
    let item = |digest: &Digest| {
        let index = *places.get(digest)?;
        let length = manifest.chunk_len(index)? as u64;
        Some(Item { index, parts: vec![(FetchRequest::StateChunk(*digest), Expect::Exactly(length))] })
    };
    in_order_of(me, &state::root(manifest), missing.iter().filter_map(item).collect())
}

/// The pieces of the update with this digest as items, in the order of `me`.
pub fn pieces_of(update: &Digest, pieces: &Pieces, me: &NodeId) -> Vec<Item> {
    let item = |index: usize| {
        let (range, piece) = (pieces.range(index), u32::try_from(index).ok()?);
        let request = FetchRequest::UpdatePiece { update: *update, piece };
        Some(Item { index, parts: vec![(request, Expect::Exactly(range.end - range.start))] })
    };
    in_order_of(me, update, (0..pieces.count()).filter_map(item).collect())
}

fn in_order_of(me: &NodeId, of: &Digest, mut items: Vec<Item>) -> Vec<Item> {
    items.sort_by_cached_key(|item| Digest::of(ORDER_DOMAIN, &[&me.0, &of.0, &(item.index as u64).to_le_bytes()]));
    items
}

/// The peers that fetch the same state, and the question which of its chunks they have.
pub fn of(manifest: &Manifest, fellows: watch::Receiver<Vec<NodeId>>) -> Swarm {
    let question = FetchRequest::ChunksHeld(state::root(manifest));
    let answer = Expect::Exactly(manifest.chunks.len().div_ceil(8) as u64);
    Swarm { fellows, question, answer, ask_every: ASK_FOR_CHUNKS_EVERY }
}

/// The peers that may have pieces of the same update, and the question which.
pub fn of_update(update: &Digest, pieces: &Pieces, fellows: watch::Receiver<Vec<NodeId>>) -> Swarm {
    let answer = Expect::Exactly(pieces.count().div_ceil(8) as u64);
    Swarm { fellows, question: FetchRequest::ChunksHeld(*update), answer, ask_every: ASK_FOR_PIECES_EVERY }
}

/// Counts the state's bytes that came from donors, and those from fellows.
pub fn count(report: &DownloadReport) {
    let (bytes, shares) = shares(report);
    for (from, bytes) in shares {
        metrics::counter!("starling_state_bytes_total", "from" => from).increment(bytes);
    }
    tracing::debug!(bytes, of_fellows = report.of_fellows, sources = report.bytes.len(), "fetched a state");
}

/// The same for an update.
pub fn count_update(report: &DownloadReport) {
    let (bytes, shares) = shares(report);
    for (from, bytes) in shares {
        metrics::counter!("starling_update_bytes_total", "from" => from).increment(bytes);
    }
    tracing::debug!(bytes, of_fellows = report.of_fellows, sources = report.bytes.len(), "fetched an update");
}

/// The bytes in all, and those of each sort of source.
fn shares(report: &DownloadReport) -> (u64, [(&'static str, u64); 2]) {
    let all: u64 = report.bytes.values().sum();
    (all, [("donor", all.saturating_sub(report.of_fellows)), ("fellow", report.of_fellows)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_protocol::update;
    use starling_store::UPDATE_PIECE_BYTES;

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

    #[test]
    fn each_piece_of_an_update_is_asked_for_with_its_length() {
        let update: Vec<u8> = (0..9 * UPDATE_PIECE_BYTES + 5).map(|i| (i * 3) as u8).collect();
        let pieces = Pieces::read(&mut &*update, update.len() as u64).expect("in memory").expect("more than one");
        let (digest, mut lengths) = (update::digest(&update), 0);
        let items = |me| pieces_of(&digest, &pieces, &NodeId([me; 32]));
        let mut mine = items(1);
        let order = |items: &[Item]| items.iter().map(|item| item.index).collect::<Vec<_>>();
        assert_ne!(order(&mine), order(&items(2)));
        mine.sort_by_key(|item| item.index);
        assert_eq!(order(&mine), (0..10).collect::<Vec<usize>>());
        for (index, item) in mine.iter().enumerate() {
            let [(FetchRequest::UpdatePiece { update, piece }, Expect::Exactly(length))] = item.parts[..] else {
                panic!("{item:?}");
            };
            assert_eq!((update, piece as usize), (digest, index));
            lengths += length;
        }
        assert_eq!(lengths, update.len() as u64);
        assert_eq!(of_update(&digest, &pieces, watch::channel(Vec::new()).1).answer, Expect::Exactly(2));
    }
}
