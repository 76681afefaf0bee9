//! Fetching the shards of text that a lease needs, from whoever has them.

use crate::net::NetHandle;
use crate::net::fetch::{FetchRequest, Piece, download};
use starling_data::{Dataset, PIECE_BYTES};
use starling_protocol::permutation::Permutation;
use starling_protocol::record::Lease;
use starling_protocol::run::RunSpec;
use starling_protocol::{Digest, NodeId};
use std::collections::BTreeSet;
use std::sync::{Arc, RwLock};

/// Shards that the lease reads and that are not here.
pub fn missing_for(data: &RwLock<Dataset>, spec: &RunSpec, lease: &Lease) -> Vec<Digest> {
    let data = data.read().unwrap_or_else(|p| p.into_inner());
    if data.missing().is_empty() {
        return Vec::new();
    }
    let seq_len = spec.model.seq_len as usize;
    let sequences = data.train_sequences(seq_len);
    if sequences == 0 {
        return Vec::new();
    }
    let absent: BTreeSet<Digest> = data.missing().iter().map(|s| s.digest).collect();
    let mut wanted: BTreeSet<Digest> = data.missing().iter().filter(|s| s.validation).map(|s| s.digest).collect();
    for position in lease.start..lease.start.saturating_add(lease.count) {
        let index = Permutation::new(spec.seed, position / sequences, sequences).get(position % sequences);
        wanted.extend(data.shards_for(seq_len, index).into_iter().filter(|d| absent.contains(d)));
        if wanted.len() == absent.len() {
            break;
        }
    }
    wanted.into_iter().collect()
}

/// Fetches shards from all connected peers at once and adds them to the dataset.
pub async fn fetch(net: &NetHandle, data: &Arc<RwLock<Dataset>>, shards: &[Digest]) -> Result<(), String> {
    let sources: Vec<NodeId> = net.peers();
    if sources.is_empty() {
        return Err("text is missing here and no peer is connected to fetch it from".into());
    }
    for shard in shards {
        let bytes = {
            let data = data.read().unwrap_or_else(|p| p.into_inner());
            data.missing().iter().find(|s| s.digest == *shard).map(|s| s.bytes)
        };
        let Some(bytes) = bytes else { continue };
        let pieces = (0..bytes.div_ceil(PIECE_BYTES as u64))
            .map(|piece| Piece {
                request: FetchRequest::ShardPiece { shard: *shard, piece: piece as u32 },
                bytes_max: (bytes - piece * PIECE_BYTES as u64).min(PIECE_BYTES as u64) as usize,
            })
            .collect();
        let parts = download(net, &sources, pieces).await.map_err(|e| format!("shard {}: {e}", shard.short()))?;
        let whole = parts.concat();
        let (data, shard) = (data.clone(), *shard);
        tokio::task::spawn_blocking(move || {
            data.write().unwrap_or_else(|p| p.into_inner()).add_shard(&shard, &whole).map_err(|e| e.to_string())
        })
        .await
        .map_err(|e| e.to_string())??;
    }
    Ok(())
}
