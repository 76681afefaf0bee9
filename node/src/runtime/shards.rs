//! Fetches the shards of text that a lease needs from peers, or those of a trainer's files.

use crate::net::NetHandle;
use crate::net::fetch::{Expect, FetchRequest, Item};
use starling_data::{Dataset, PIECE_BYTES, ShardInfo};
use starling_protocol::permutation::SampleOrder;
use starling_protocol::record::Span;
use starling_protocol::run::RunSpec;
use starling_protocol::{Digest, NodeId};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Fetched shards that may wait to be written.
const SHARDS_WAITING: usize = 2;

/// Shards that the lease or a validation reads and that this node lacks; those of all files, if the task is external.
pub fn missing_for(data: &Dataset, spec: &RunSpec, lease: &Span, validation: u64) -> Vec<Digest> {
    let absent: BTreeSet<Digest> = data.missing().iter().map(|s| s.digest).collect();
    if spec.task.is_some() {
        return absent.into_iter().collect();
    }
    let seq_len = spec.model.seq_len as usize;
    let sequences = data.train_sequences(seq_len);
    if absent.is_empty() || sequences == 0 {
        return Vec::new();
    }
    let mut wanted: BTreeSet<Digest> = data.shards_for_validation(seq_len, validation).into_iter().collect();
    let mut order = SampleOrder::new(spec.seed, sequences);
    for position in lease.start..lease.start.saturating_add(lease.count) {
        wanted.extend(data.shards_for(seq_len, order.sample(position)));
        if absent.is_subset(&wanted) {
            break;
        }
    }
    wanted.intersection(&absent).copied().collect()
}

/// Fetches shards from connected peers at once, members before strangers, and adds them to the dataset.
///
/// # Errors
/// A text for people, if no peer is connected or none has the shards.
pub async fn fetch(net: &NetHandle, data: &Arc<Dataset>, shards: &[Digest]) -> Result<(), String> {
    let sources: Vec<NodeId> = net.sources();
    if sources.is_empty() {
        return Err("data are missing here, and no peer is connected to fetch them from".into());
    }
    let asked: BTreeSet<&Digest> = shards.iter().collect();
    let wanted: Vec<ShardInfo> = data.missing().into_iter().filter(|s| asked.contains(&s.digest)).collect();
    let items = wanted.iter().enumerate().map(|(index, shard)| Item { index, parts: pieces(shard) }).collect();
    let digests: Arc<Vec<Digest>> = Arc::new(wanted.iter().map(|s| s.digest).collect());
    let check = {
        let digests = digests.clone();
        Arc::new(move |item: &Item, bytes: &[u8]| {
            digests.get(item.index).is_some_and(|digest| starling_data::shard_digest(bytes) == *digest)
        })
    };
    let (done, mut arrived) = mpsc::channel::<(usize, Vec<u8>)>(SHARDS_WAITING);
    let downloader = net.downloader(check);
    let download = async { downloader.run(items, &sources, done).await.map_err(|e| format!("data: {e}")) };
    let writing = async {
        while let Some((index, bytes)) = arrived.recv().await {
            let Some(digest) = digests.get(index).copied() else { continue };
            let data = data.clone();
            let adding = move || data.add_shard(&digest, &bytes).map_err(|e| e.to_string());
            tokio::task::spawn_blocking(adding).await.map_err(|e| e.to_string())??;
        }
        Ok(())
    };
    tokio::try_join!(download, writing).map(drop)
}

/// The requests whose answers make up the shard.
fn pieces(shard: &ShardInfo) -> Vec<(FetchRequest, Expect)> {
    let piece_bytes = PIECE_BYTES as u64;
    (0..shard.pieces())
        .map(|piece| {
            let length = (shard.bytes - u64::from(piece) * piece_bytes).min(piece_bytes);
            (FetchRequest::ShardPiece { shard: shard.digest, piece }, Expect::Exactly(length))
        })
        .collect()
}
