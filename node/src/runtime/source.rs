//! Answers peers' fetches from disk: records with their certificates, candidates, updates, state and text.

use super::ledger::Job;
use super::near::Near;
use crate::net::fetch::{
    Answer, FetchRefusal, FetchRequest, FetchSource, RECORDS_MAX, Start, encode_records, encode_start,
};
use starling_data::Dataset;
use starling_protocol::Digest;
use starling_protocol::limits::{
    CONTROL_BYTES_MAX, PATH_BYTES_MAX, PATH_LINKS_MAX, RECORD_BYTES_MAX, STATE_CHUNK_BYTES,
};
use starling_protocol::path::Link;
use starling_protocol::run::AdmissionMode;
use starling_protocol::wire;
use starling_store::{EncodedLink, Store, StoreError};
use std::fs::File;
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use tokio::sync::mpsc;

/// Bytes of an answer with records, which is in memory until the peer has read it: less than requesters admit. The
/// largest record fits.
const RECORDS_BYTES: usize = 1 << 20;
/// Bytes of a list of the largest record with the longest certificate.
const ONE_RECORD_BYTES: usize = 2 + 8 + RECORD_BYTES_MAX + CONTROL_BYTES_MAX;
const _: () = assert!(ONE_RECORD_BYTES <= RECORDS_BYTES);

/// Serves from the store and, once it is open, from the dataset.
pub struct Source {
    store: Arc<Store>,
    spec: Vec<u8>,
    /// Whether the run lets anybody in.
    is_open: bool,
    data: OnceLock<Arc<Dataset>>,
    /// The document of an external task's tensors.
    schema: OnceLock<Vec<u8>>,
    /// The data's manifest and its digest. Encoding it for each request would cost milliseconds, and memory for each
    /// requester that does not read it.
    manifest: OnceLock<(Digest, Arc<Vec<u8>>)>,
    near: Near,
}

impl Source {
    pub fn new(store: Arc<Store>, spec: Vec<u8>) -> Self {
        let is_open = wire::decode_spec(&spec).is_ok_and(|spec| spec.admission.mode == AdmissionMode::Open);
        let (data, schema, manifest) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Self { store, spec, is_open, data, schema, manifest, near: Near::default() }
    }

    /// Serves the document of the task's tensors.
    pub fn set_schema(&self, document: Vec<u8>) {
        // A second call would mean a second task, so the first stays.
        let _ = self.schema.set(document);
    }

    /// Serves the text, which is here or on its way, as far as it is here.
    pub fn set_data(&self, data: Arc<Dataset>) {
        // A second call would mean a second dataset, so the first stays.
        let _ = self.data.set(data);
    }

    /// The ledger runs: it writes snapshots for newcomers.
    pub fn set_ledger(&self, jobs: &mpsc::Sender<Job>) {
        self.near.set_ledger(jobs);
    }

    fn data(&self) -> Result<&Dataset, FetchRefusal> {
        self.data.get().map(Arc::as_ref).ok_or(FetchRefusal::NotFound)
    }

    fn data_manifest(&self, asked: &Digest) -> Result<Arc<Vec<u8>>, FetchRefusal> {
        let data = self.data()?;
        let (digest, bytes) =
            self.manifest.get_or_init(|| (data.manifest().digest(), Arc::new(data.manifest().encode())));
        (digest == asked).then(|| Arc::clone(bytes)).ok_or(FetchRefusal::NotFound)
    }

    /// The answer from the data that this node holds. Where the run lets in only some, a stranger's questions change
    /// nothing: it has no snapshot written, and keeps none from being written.
    fn held(&self, request: &FetchRequest, by_stranger: bool) -> Result<Answer, FetchRefusal> {
        let may_enter = self.is_open || !by_stranger;
        let file = |found: Result<Option<(File, u64)>, _>| {
            let (file, len) = found.map_err(internal)?.ok_or(FetchRefusal::NotFound)?;
            Ok(Answer::File { file, len })
        };
        let bytes = match request {
            FetchRequest::StateChunk(digest) => {
                return file(self.store.open_state_chunk(digest)).inspect(|_| {
                    if may_enter {
                        self.near.fetched(Instant::now());
                    }
                });
            }
            FetchRequest::UpdateByDigest(digest) => return file(self.store.open_update_by_digest(digest)),
            FetchRequest::Update { seq } => return file(self.store.open_update(*seq)),
            FetchRequest::DataManifest(digest) => return self.data_manifest(digest).map(Answer::Bytes),
            FetchRequest::Spec => self.spec.clone(),
            FetchRequest::Schema => self.schema.get().ok_or(FetchRefusal::NotFound)?.clone(),
            FetchRequest::Beginning => self.store.beginning().ok_or(FetchRefusal::NotFound)?.encode(),
            FetchRequest::ChunksHeld(of) => match self.store.pieces_held(of) {
                Some(pieces) => pieces,
                None => self.store.chunks_held(of).map_err(internal)?.ok_or(FetchRefusal::NotFound)?,
            },
            FetchRequest::UpdatePieces(update) => {
                self.store.update_pieces(update).map_err(internal)?.ok_or(FetchRefusal::NotFound)?
            }
            FetchRequest::UpdatePiece { update, piece } => {
                self.store.update_piece(update, *piece as usize).map_err(internal)?.ok_or(FetchRefusal::NotFound)?
            }
            FetchRequest::Start { to, known } => {
                if may_enter && self.near.is_awaited(&self.store, Instant::now()).map_err(internal)? {
                    return Err(FetchRefusal::Busy);
                }
                self.start(*to, known)?
            }
            FetchRequest::Records { from_seq, max } => {
                // Two bytes hold the number of records.
                let records = self.store.records_within(*from_seq, usize::from(*max), RECORDS_BYTES - 2);
                encode_records(&records.map_err(internal)?).map_err(|_| FetchRefusal::Internal)?
            }
            FetchRequest::Candidate(record) => {
                self.store.candidate(record).map_err(internal)?.ok_or(FetchRefusal::NotFound)?
            }
            FetchRequest::Path { to, known } => {
                let path = self.store.way(known, *to).map_err(internal)?.ok_or(FetchRefusal::NotFound)?;
                encode_records(&cut(path)).map_err(|_| FetchRefusal::Internal)?
            }
            FetchRequest::ShardPiece { shard, piece } => {
                self.data()?.shard_piece(shard, *piece).map_err(|_| FetchRefusal::NotFound)?
            }
        };
        Ok(bytes.into())
    }

    /// The newest snapshot on this node's chain, the path to its record from the newest of these that is on the chain,
    /// and the records after it up to number `to`, as far as they fit: path and records have no more bytes than an
    /// answer with records.
    fn start(&self, to: u64, known: &[(u64, Digest)]) -> Result<Vec<u8>, FetchRefusal> {
        let head = self.store.head().map_or(0, |head| head.seq);
        let newest = self.store.snapshots().into_iter().rev().find(|(seq, _)| *seq <= head);
        let (seq, manifest) = newest.ok_or(FetchRefusal::NotFound)?;
        let path = self.store.way(known, seq).map_err(internal)?.ok_or(FetchRefusal::NotFound)?;
        let path = encode_records(&cut(path)).map_err(|_| FetchRefusal::Internal)?;
        let room = RECORDS_BYTES.saturating_sub(path.len());
        let most = if room < ONE_RECORD_BYTES { 0 } else { to.saturating_sub(seq).min(RECORDS_MAX.into()) };
        let records = self.store.records_within(seq.saturating_add(1), most as usize, room.saturating_sub(2));
        let records = encode_records(&records.map_err(internal)?).map_err(|_| FetchRefusal::Internal)?;
        let start = Start { seq, manifest: manifest.encode(), path, records };
        encode_start(&start).map_err(|_| FetchRefusal::Internal)
    }

    fn answer(&self, request: &FetchRequest, by_stranger: bool) -> Result<Answer, FetchRefusal> {
        let answer = self.held(request, by_stranger);
        #[cfg(feature = "byzantine")]
        let answer = crate::byzantine::served(request, answer);
        answer
    }
}

fn internal(error: StoreError) -> FetchRefusal {
    tracing::warn!("a peer's request was not served: {error}");
    FetchRefusal::Internal
}

impl FetchSource for Source {
    fn serve(&self, request: &FetchRequest) -> Result<Answer, FetchRefusal> {
        self.answer(request, false)
    }

    fn serve_stranger(&self, request: &FetchRequest) -> Result<Answer, FetchRefusal> {
        self.answer(request, true)
    }

    fn minds_strangers(&self, request: &FetchRequest) -> bool {
        !self.is_open && matches!(request, FetchRequest::Start { .. })
    }

    fn newcomer_bytes(&self) -> u64 {
        let newest = self.store.snapshots().pop().map_or(0, |(_, manifest)| manifest.chunks.len());
        // A joiner has no snapshot before it has the state, and serves other joiners meanwhile.
        (newest.max(self.store.chunks_adopted()) * STATE_CHUNK_BYTES) as u64
    }
}

/// The part of a path that fits in an answer, up to a record with its votes: from there the requester goes on.
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

#[cfg(test)]
#[path = "source_test.rs"]
mod tests;
