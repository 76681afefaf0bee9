//! What this node hands to peers that fetch: records with their certificates, candidates, updates, state and text,
//! from disk.

use crate::net::fetch::{FetchRefusal, FetchRequest, FetchSource, RECORDS_BYTES_MAX, encode_records, encode_snapshots};
use starling_data::Dataset;
use starling_protocol::Digest;
use starling_protocol::limits::{PATH_BYTES_MAX, PATH_LINKS_MAX};
use starling_protocol::path::Link;
use starling_protocol::wire;
use starling_store::{EncodedLink, Store};
use std::sync::{Arc, OnceLock};

/// Serves from the store and, once it is open, from the dataset.
pub struct Source {
    store: Arc<Store>,
    spec: Vec<u8>,
    data: OnceLock<Arc<Dataset>>,
    /// The digest of the data's manifest: encoding it for each that asks for another one costs milliseconds.
    manifest: OnceLock<Digest>,
}

impl Source {
    pub fn new(store: Arc<Store>, spec: Vec<u8>) -> Self {
        Self { store, spec, data: OnceLock::new(), manifest: OnceLock::new() }
    }

    /// The text is here (or on its way): serve what there is of it.
    pub fn set_data(&self, data: Arc<Dataset>) {
        // A second call would mean a second dataset; the first stays.
        let _ = self.data.set(data);
    }

    fn data(&self) -> Result<&Dataset, FetchRefusal> {
        self.data.get().map(Arc::as_ref).ok_or(FetchRefusal::NotFound)
    }
}

impl FetchSource for Source {
    fn serve(&self, request: &FetchRequest) -> Result<Vec<u8>, FetchRefusal> {
        let internal = |error: starling_store::StoreError| {
            tracing::warn!("a peer's request was not served: {error}");
            FetchRefusal::Internal
        };
        match request {
            FetchRequest::Spec => Ok(self.spec.clone()),
            FetchRequest::SnapshotManifests => {
                let snapshots: Vec<_> =
                    self.store.snapshots().into_iter().map(|(seq, manifest)| (seq, manifest.encode())).collect();
                encode_snapshots(&snapshots).map_err(|_| FetchRefusal::Internal)
            }
            FetchRequest::StateChunk(digest) => {
                self.store.state_chunk(digest).map_err(internal)?.ok_or(FetchRefusal::NotFound)
            }
            FetchRequest::Records { from_seq, max } => {
                // The two bytes are the number of records.
                let (max, bytes) = (usize::from(*max), RECORDS_BYTES_MAX as usize - 2);
                let records = self.store.records_within(*from_seq, max, bytes).map_err(internal)?;
                encode_records(&records).map_err(|_| FetchRefusal::Internal)
            }
            FetchRequest::Candidate(record) => {
                self.store.candidate(record).map_err(internal)?.ok_or(FetchRefusal::NotFound)
            }
            FetchRequest::UpdateByDigest(digest) => {
                self.store.update_by_digest(digest).map_err(internal)?.ok_or(FetchRefusal::NotFound)
            }
            FetchRequest::Update { seq } => self.store.update(*seq).map_err(internal)?.ok_or(FetchRefusal::NotFound),
            FetchRequest::Path { to, known } => {
                let path = self.store.way(known, *to).map_err(internal)?.ok_or(FetchRefusal::NotFound)?;
                encode_records(&cut(path)).map_err(|_| FetchRefusal::Internal)
            }
            FetchRequest::DataManifest(digest) => {
                let data = self.data()?;
                if self.manifest.get_or_init(|| data.manifest().digest()) == digest {
                    Ok(data.manifest().encode())
                } else {
                    Err(FetchRefusal::NotFound)
                }
            }
            FetchRequest::ShardPiece { shard, piece } => {
                self.data()?.shard_piece(shard, *piece).map_err(|_| FetchRefusal::NotFound)
            }
        }
    }
}

/// As much of a path as an answer may hold, up to a record with its votes: from there the asker goes on.
fn cut(path: Vec<Link>) -> Vec<EncodedLink> {
    let mut links = Vec::new();
    let (mut bytes, mut whole) = (2, 0);
    for Link { record, certificate, .. } in path.into_iter().take(PATH_LINKS_MAX) {
        let votes = certificate.as_ref().map(wire::encode_certificate).unwrap_or_default();
        let link = (wire::encode_record(&record), votes);
        bytes += 8 + link.0.len() + link.1.len();
        if bytes > PATH_BYTES_MAX {
            break;
        }
        links.push(link);
        if certificate.is_some() || links.len() == 1 {
            whole = links.len();
        }
    }
    links.truncate(whole);
    links
}
