//! Bringing this node's state to the flock's head: records and updates from peers, and a snapshot when what is
//! held is not on their chain.
//!
//! Nothing of a peer is believed: records must form a chain from what is held (or from the snapshot) to the head
//! that the engine asked for, chunks must have the digests of the snapshot's manifest, whose root must be that of its
//! record, updates must have the digest in their record, and replaying them must give its state root.

use super::ledger::Job;
use crate::net::NetHandle;
use crate::net::fetch::{FetchRequest, Piece, decode_records, decode_snapshots, download};
use crate::net::fetch::{RECORDS_BYTES_MAX, RECORDS_MAX, SNAPSHOTS_BYTES_MAX};
use starling_protocol::limits::STATE_CHUNK_BYTES;
use starling_protocol::record::Record;
use starling_protocol::run::RunSpec;
use starling_protocol::state::{self, Manifest};
use starling_protocol::{Digest, NodeId, update, wire};
use starling_store::Store;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{mpsc, oneshot};

/// Longest gap that is closed record by record; beyond it a snapshot is fetched.
const RECORDS_GAP_MAX: u64 = 4096;

/// What the engine asked for.
#[derive(Clone, Debug)]
pub struct Errand {
    pub lineage: Digest,
    pub seq: u64,
    pub target: Digest,
    pub sources: Vec<NodeId>,
    pub afresh: bool,
}

/// Where the errand ended.
#[derive(Debug)]
pub struct Arrived {
    pub record: Record,
    pub bytes: u64,
    pub seconds: f64,
}

/// Everything an errand needs.
pub struct Task {
    pub errand: Errand,
    pub net: NetHandle,
    pub ledger: mpsc::Sender<Job>,
    pub store: Arc<Store>,
    pub spec: RunSpec,
    pub elements: usize,
    /// The head held now and the schema.
    pub head: (Record, Digest),
}

impl Task {
    /// Runs the errand. The error says in plain words why no source could help.
    pub async fn run(self) -> Result<Arrived, String> {
        let started = Instant::now();
        let mut bytes = 0;
        let incremental = !self.errand.afresh && self.head.0.seq < self.errand.seq;
        if incremental && let Some(chain) = self.chain_from(&self.head.0).await {
            let record = self.replay(chain, &mut bytes).await?;
            return Ok(Arrived { record, bytes, seconds: started.elapsed().as_secs_f64() });
        }
        let (base, manifest, chain) = self.snapshot().await?;
        let base = self.adopt(base, manifest, &mut bytes).await?;
        let record = if chain.is_empty() { base } else { self.replay(chain, &mut bytes).await? };
        Ok(Arrived { record, bytes, seconds: started.elapsed().as_secs_f64() })
    }

    /// The records after `base` up to the target, from the first source whose records form that chain.
    async fn chain_from(&self, base: &Record) -> Option<Vec<Record>> {
        for source in &self.errand.sources {
            match self.chain_of(*source, base).await {
                Ok(chain) => return Some(chain),
                Err(why) => tracing::debug!("no chain from {}: {why}", source.short()),
            }
        }
        None
    }

    async fn chain_of(&self, source: NodeId, base: &Record) -> Result<Vec<Record>, String> {
        let mut chain: Vec<Record> = Vec::new();
        let mut parent = base.digest();
        if parent == self.errand.target {
            return Ok(chain);
        }
        let gap = self.errand.seq.checked_sub(base.seq).filter(|gap| *gap <= RECORDS_GAP_MAX);
        let mut left = gap.ok_or("the gap is too long for records alone")?;
        while left > 0 {
            let from_seq = self.errand.seq - left + 1;
            let max = left.min(u64::from(RECORDS_MAX)) as u16;
            let request = FetchRequest::Records { from_seq, max };
            let answer = self.net.fetch(source, request, RECORDS_BYTES_MAX as usize).await.map_err(|e| e.to_string())?;
            let records = decode_records(&answer).map_err(|e| e.to_string())?;
            if records.is_empty() {
                return Err("it does not have these records".into());
            }
            for bytes in records {
                let record = wire::decode_record(bytes.as_ref()).map_err(|e| e.to_string())?;
                let seq = self.errand.seq - left + 1;
                if record.seq != seq || record.parent != parent || record.run != self.spec.digest() || left == 0 {
                    return Err(format!("its record {seq} does not follow the one before it"));
                }
                parent = record.digest();
                chain.push(record);
                left -= 1;
            }
        }
        if parent == self.errand.target { Ok(chain) } else { Err("its records lead to another head".into()) }
    }

    /// The newest snapshot of any source that lies on the target's chain, and the records after it.
    async fn snapshot(&self) -> Result<(Record, Manifest, Vec<Record>), String> {
        let mut why = "no peer to fetch from".to_string();
        for source in &self.errand.sources {
            let offered = match self.snapshots_of(*source).await {
                Ok(offered) => offered,
                Err(e) => {
                    why = e;
                    continue;
                }
            };
            for (record, manifest) in offered {
                match self.chain_of(*source, &record).await {
                    Ok(chain) => return Ok((record, manifest, chain)),
                    Err(e) => why = e,
                }
            }
        }
        Err(format!("no source offers a snapshot on the way to record {}: {why}", self.errand.seq))
    }

    /// Newest first; only those whose manifest has the root that its record names.
    async fn snapshots_of(&self, source: NodeId) -> Result<Vec<(Record, Manifest)>, String> {
        let answer = self
            .net
            .fetch(source, FetchRequest::SnapshotManifests, SNAPSHOTS_BYTES_MAX as usize)
            .await
            .map_err(|e| e.to_string())?;
        let mut offered = Vec::new();
        for (record, manifest) in decode_snapshots(&answer).map_err(|e| e.to_string())? {
            let record = wire::decode_record(record.as_ref()).map_err(|e| e.to_string())?;
            let manifest = Manifest::decode(manifest.as_ref()).map_err(|e| e.to_string())?;
            let fits = manifest.schema == self.head.1 && manifest.elements == self.elements as u64;
            if fits && state::root(&manifest) == record.state_root && record.lineage == self.errand.lineage {
                offered.push((record, manifest));
            }
        }
        offered.sort_by_key(|(record, _)| std::cmp::Reverse(record.seq));
        Ok(offered)
    }

    /// Fetches a snapshot's chunks from all sources at once and makes it this node's head.
    async fn adopt(&self, record: Record, manifest: Manifest, bytes: &mut u64) -> Result<Record, String> {
        let pieces = manifest
            .chunks
            .iter()
            .map(|digest| Piece { request: FetchRequest::StateChunk(*digest), bytes_max: STATE_CHUNK_BYTES })
            .collect();
        let store = self.store.clone();
        let begun = tokio::task::spawn_blocking(move || store.begin_adopt().map_err(|e| e.to_string()));
        begun.await.map_err(|e| e.to_string())??;
        let chunks = download(&self.net, &self.errand.sources, pieces).await.map_err(|e| e.to_string())?;
        let store = self.store.clone();
        let adopting = move || -> Result<u64, String> {
            let mut bytes = 0;
            for (digest, chunk) in manifest.chunks.iter().zip(chunks) {
                bytes += chunk.len() as u64;
                store.put_chunk(digest, &chunk).map_err(|e| e.to_string())?;
            }
            store.finish_adopt(&manifest, &record).map_err(|e| e.to_string())?;
            Ok(bytes)
        };
        *bytes += tokio::task::spawn_blocking(adopting).await.map_err(|e| e.to_string())??;
        let (reply, reloaded) = oneshot::channel();
        self.ledger.send(Job::Reload { reply }).await.map_err(|_| "the ledger stopped")?;
        reloaded.await.map_err(|_| "the ledger stopped")?
    }

    /// Fetches the updates of a chain and replays them; returns the last record.
    async fn replay(&self, chain: Vec<Record>, bytes: &mut u64) -> Result<Record, String> {
        let mut last = None;
        for record in chain {
            let update = self.update_of(&record).await?;
            *bytes += update.len() as u64;
            let (reply, replayed) = oneshot::channel();
            let job = Job::Replay { record: record.clone(), update, reply };
            self.ledger.send(job).await.map_err(|_| "the ledger stopped")?;
            replayed.await.map_err(|_| "the ledger stopped")??;
            last = Some(record);
        }
        last.ok_or_else(|| "nothing to replay".into())
    }

    async fn update_of(&self, record: &Record) -> Result<Vec<u8>, String> {
        let mut why = "no peer to fetch from".to_string();
        // The codec was fixed by the record before; both fit within the larger one.
        let bytes_max = update::encoded_len(starling_protocol::run::Codec::Bf16, self.elements);
        for source in &self.errand.sources {
            match self.net.fetch(*source, FetchRequest::Update { seq: record.seq }, bytes_max).await {
                Ok(bytes) if update::digest(&bytes) == record.update => return Ok(bytes),
                Ok(_) => why = format!("{} sent another update than the record names", source.short()),
                Err(e) => why = e.to_string(),
            }
        }
        Err(format!("no source has the update of record {}: {why}", record.seq))
    }
}
