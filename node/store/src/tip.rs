//! The state of the chain in the database, checked link by link and kept in memory.

use crate::rocks::{Batch, Db, Table};
use crate::{Part, StoreError};
use starling_protocol::Digest;
use starling_protocol::ancestry::Ancestry;
use starling_protocol::engine::{Candidate, VoteState};
use starling_protocol::record::{Record, RecordKind};
use starling_protocol::state::{self, Manifest};
use starling_protocol::wire;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Layout of the data folder. Raised with every incompatible change, of records as well; 1 knew neither certificates
/// nor vote states, 2 no amendments, 3 no cells, 4 no inner optimizer; in 5 votes were signed for protocol 7.
pub(crate) const FORMAT: u32 = 7;
/// Candidates kept on top of one head: the newest, and always the one that the vote state names.
pub(crate) const CANDIDATES_KEPT: usize = 4;

const FORMAT_KEY: &[u8] = b"format";
const VERSION_KEY: &[u8] = b"version";
const HEAD_KEY: &[u8] = b"head";
pub(crate) const VOTE_STATE_KEY: &[u8] = b"register";

/// Head, vote state, candidates and snapshots as of one version of the database.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tip {
    /// Number of the last batch.
    pub version: u64,
    /// Number of the oldest record.
    pub first: Option<u64>,
    /// From this record on none is missing up to the head, and each but a genesis has its votes.
    pub whole: Option<u64>,
    pub head: Option<Arc<Link>>,
    /// The ancestry of the head, as far back as the records here tell.
    pub ancestry: Ancestry,
    /// The last signed vote state. It belongs to the identity, not to the chain: a reset keeps it.
    pub vote_state: Option<Arc<VoteState>>,
    /// Candidates on top of the head, oldest attempt first.
    pub candidates: Vec<Arc<Held>>,
    /// Manifests of the snapshots kept, by sequence number.
    pub snapshots: BTreeMap<u64, Arc<Manifest>>,
}

/// A record and its digest.
#[derive(Debug)]
pub(crate) struct Link {
    pub record: Record,
    pub digest: Digest,
}

/// A candidate on disk.
#[derive(Debug)]
pub(crate) struct Held {
    pub candidate: Candidate,
    /// Digest of its record.
    pub record: Digest,
    /// Digest of its encoding, for the fingerprint.
    sum: Digest,
}

impl Link {
    pub fn new(record: &Record) -> Arc<Self> {
        Arc::new(Self { digest: record.digest(), record: record.clone() })
    }
}

impl Tip {
    /// Reads the tip and checks every record below it: each must be able to follow the one before.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when a check fails; [`StoreError::Format`] for a database of another layout.
    pub fn load(db: &Db, path: &Path) -> Result<Self, StoreError> {
        let Some(version) = db.get(Table::Meta, VERSION_KEY)? else { return Ok(Self::default()) };
        let format = db.get(Table::Meta, FORMAT_KEY)?.map_or(0, |bytes| le_u32(&bytes));
        if format != FORMAT {
            return Err(StoreError::Format { path: path.to_path_buf(), found: format, known: FORMAT });
        }
        let damaged = |detail: &str| StoreError::damaged(Part::Chain, path, detail);
        let version = be_u64(&version).ok_or_else(|| damaged("the version is malformed"))?;
        let walked = walk(db, path)?;
        match (db.get(Table::Meta, HEAD_KEY)?, &walked.head) {
            (None, None) => {}
            (Some(named), Some(last)) if named == last.digest.0 => {}
            _ => return Err(damaged("the last record is not the head that is noted")),
        }
        let vote_state = match db.get(Table::Meta, VOTE_STATE_KEY)? {
            Some(bytes) => Some(Arc::new(wire::decode_vote_state(&bytes).map_err(|e| damaged(&e.to_string()))?)),
            None => None,
        };
        let (mut candidates, mut snapshots) = (Vec::new(), BTreeMap::new());
        db.each(Table::Candidates, &[], |key, value| {
            let candidate = wire::decode_candidate(value).map_err(|e| damaged(&e.to_string()))?;
            let held = Held::of(candidate, value);
            if held.id() != key {
                return Err(damaged("a candidate is kept under the key of another"));
            }
            candidates.push(Arc::new(held));
            Ok(true)
        })?;
        db.each(Table::Snapshots, &[], |key, value| {
            let seq = be_u64(key).ok_or_else(|| damaged("a snapshot has no number"))?;
            let manifest = Manifest::decode(value).map_err(|e| damaged(&format!("manifest of snapshot {seq}: {e}")))?;
            snapshots.insert(seq, Arc::new(manifest));
            Ok(true)
        })?;
        let tip = Self { version, vote_state, candidates, snapshots, ..walked };
        tip.check_references(db, path)?;
        Ok(tip)
    }

    /// Checks that the head was decided, that candidates follow it, and that snapshots are of records held here.
    fn check_references(&self, db: &Db, path: &Path) -> Result<(), StoreError> {
        let damaged = |detail: String| StoreError::damaged(Part::Chain, path, detail);
        if let Some(head) = self.head.as_ref().filter(|head| head.record.kind != RecordKind::Genesis) {
            let certificate = db.get(Table::Certificates, &seq_key(head.record.seq))?;
            let named = certificate.and_then(|bytes| wire::decode_certificate(&bytes).ok()).map(|c| c.record);
            if named != Some(head.digest) {
                return Err(damaged("the votes that decided the last record are missing, or are for another".into()));
            }
        }
        for held in &self.candidates {
            if Some(held.candidate.record.parent) != self.head.as_ref().map(|head| head.digest) {
                return Err(damaged("a candidate does not stand on the head".into()));
            }
        }
        for (seq, manifest) in &self.snapshots {
            let record = db.get(Table::Records, &seq_key(*seq))?.map(|bytes| wire::decode_record(&bytes));
            let fits = matches!(record, Some(Ok(record)) if record.state_root == state::root(manifest));
            if !fits {
                return Err(damaged(format!("snapshot {seq} is not of a record of this chain")));
            }
        }
        Ok(())
    }

    /// Adds the parts of every batch: the next version and the head.
    pub fn seal(&mut self, batch: &mut Batch) {
        self.version += 1;
        batch.put(Table::Meta, FORMAT_KEY, FORMAT.to_le_bytes().to_vec());
        batch.put(Table::Meta, VERSION_KEY, self.version.to_be_bytes().to_vec());
        match &self.head {
            Some(head) => batch.put(Table::Meta, HEAD_KEY, head.digest.0.to_vec()),
            None => batch.delete(Table::Meta, HEAD_KEY),
        }
    }

    /// Digest over the whole tip.
    pub fn fingerprint(&self) -> Digest {
        let mut bytes = Vec::new();
        if let (Some(first), Some(head)) = (self.first, &self.head) {
            bytes.extend_from_slice(&first.to_le_bytes());
            bytes.extend_from_slice(&head.digest.0);
        }
        for held in &self.candidates {
            bytes.extend_from_slice(&held.id());
            bytes.extend_from_slice(&held.sum.0);
        }
        let vote_state =
            self.vote_state.as_ref().map(|vote_state| wire::encode_vote_state(vote_state)).unwrap_or_default();
        let mut snapshots = Vec::new();
        for (seq, manifest) in &self.snapshots {
            snapshots.extend_from_slice(&seq.to_le_bytes());
            snapshots.extend_from_slice(&state::root(manifest).0);
        }
        Digest::of("starling store tip v2", &[&bytes, &vote_state, &snapshots])
    }

    /// Puts a record on top; `certified` says whether it has its votes.
    pub fn push(&mut self, link: Arc<Link>, certified: bool) {
        let record = &link.record;
        let next = self.head_seq().and_then(|head| head.checked_add(1)) == Some(record.seq);
        let proven = certified || record.kind == RecordKind::Genesis;
        self.whole = if proven { self.whole.filter(|_| next).or(Some(record.seq)) } else { None };
        self.first = self.first.or(Some(record.seq));
        self.ancestry.follow(self.head.as_ref().map(|head| &head.record), record);
        self.head = Some(link);
    }

    /// Drops everything after this record, which has its votes or is a genesis.
    pub fn cut_after(&mut self, link: Arc<Link>) {
        let seq = link.record.seq;
        self.whole = self.whole.filter(|whole| *whole <= seq).or(Some(seq));
        self.ancestry = self.ancestry.until(seq);
        self.head = Some(link);
        self.candidates.clear();
        self.snapshots.clear();
    }

    pub fn head_seq(&self) -> Option<u64> {
        self.head.as_ref().map(|head| head.record.seq)
    }
}

/// Checks that `record` can follow `before`: as the next one by their content or, where records between the two were
/// left out, as a later one of the same lineage.
///
/// # Errors
/// The reason why it cannot.
pub(crate) fn follows(before: &Record, record: &Record) -> Result<(), String> {
    if before.seq.checked_add(1) == Some(record.seq) {
        return record.validate_after(before).map_err(|why| why.to_string());
    }
    let same = (record.run, record.lineage) == (before.run, before.lineage);
    if record.seq > before.seq && same && record.kind != RecordKind::Fork {
        return Ok(());
    }
    Err("records between the two are missing, and it is not a later one of the same lineage".to_owned())
}

/// Walks all records, each with the votes that decided it. A record without votes is a stone: its child must be here,
/// and the child's votes count for both.
fn walk(db: &Db, path: &Path) -> Result<Tip, StoreError> {
    let mut tip = Tip::default();
    let mut stone = None;
    db.each(Table::Records, &[], |key, value| {
        let damaged = |detail: String| StoreError::damaged(Part::Chain, path, detail);
        let record = wire::decode_record(value).map_err(|e| damaged(format!("a record is malformed: {e}")))?;
        let seq = record.seq;
        if key != seq_key(seq) {
            return Err(damaged(format!("record {seq} is kept under another number")));
        }
        if let Some(before) = &tip.head {
            let follows = follows(&before.record, &record);
            follows.map_err(|why| damaged(format!("record {seq} does not follow the one before: {why}")))?;
        }
        let digest = wire::record_digest(value);
        let certified = match db.get(Table::Certificates, key)?.map(|bytes| wire::decode_certificate(&bytes)) {
            None => false,
            Some(Ok(certificate)) if certificate.record == digest => true,
            Some(_) => return Err(damaged(format!("the votes for record {seq} are for another"))),
        };
        if let Some(stone) = stone.filter(|stone| !certified || *stone + 1 != seq) {
            return Err(damaged(format!("the votes for record {stone} are missing")));
        }
        stone = Some(seq).filter(|_| !certified && record.kind != RecordKind::Genesis);
        tip.push(Arc::new(Link { digest, record }), certified);
        Ok(true)
    })?;
    // The caller checks the last record by itself.
    Ok(tip)
}

impl Held {
    /// The candidate, and the bytes to keep.
    pub fn new(candidate: &Candidate) -> (Self, Vec<u8>) {
        let bytes = wire::encode_candidate(candidate);
        (Self::of(candidate.clone(), &bytes), bytes)
    }

    fn of(candidate: Candidate, bytes: &[u8]) -> Self {
        let sum = Digest::of("starling store candidate v1", &[bytes]);
        Self { record: candidate.record.digest(), candidate, sum }
    }

    /// `seq ‖ attempt ‖ record`, big-endian, so that attempts sort by age. An attempt may have several candidates: if
    /// the results of two nodes differ, the vote survives that fault only if both can be fetched.
    pub fn id(&self) -> Vec<u8> {
        let key = &self.candidate.key;
        [&key.seq.to_be_bytes()[..], &key.attempt.to_be_bytes(), &self.record.0].concat()
    }
}

/// The key of a record or a snapshot; sorts by number.
pub(crate) fn seq_key(seq: u64) -> [u8; 8] {
    seq.to_be_bytes()
}

fn be_u64(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

/// Returns zero, which is no format, for malformed bytes.
fn le_u32(bytes: &[u8]) -> u32 {
    bytes.try_into().map_or(0, u32::from_le_bytes)
}
