//! What the database says about the chain, checked link by link and kept in memory.

use crate::rocks::{Batch, Db, Table};
use crate::{Part, StoreError};
use starling_protocol::Digest;
use starling_protocol::engine::{Candidate, Register};
use starling_protocol::record::{Record, RecordKind};
use starling_protocol::state::{self, Manifest};
use starling_protocol::wire;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Layout of the data folder. Raised with every incompatible change; 1 knew neither certificates nor vote registers.
pub(crate) const FORMAT: u32 = 2;
/// Candidates kept on top of one head: the newest, and in any case the one that the register speaks of.
pub(crate) const CANDIDATES_KEPT: usize = 4;

const FORMAT_KEY: &[u8] = b"format";
const VERSION_KEY: &[u8] = b"version";
const HEAD_KEY: &[u8] = b"head";
pub(crate) const REGISTER_KEY: &[u8] = b"register";

/// Head, register, candidates and snapshots as of one version of the database.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tip {
    /// Number of the last batch.
    pub version: u64,
    /// Number of the oldest record.
    pub first: Option<u64>,
    pub head: Option<Arc<Link>>,
    /// What this node has signed last. It belongs to the identity, not to the chain: a reset keeps it.
    pub register: Option<Arc<Register>>,
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

/// A candidate as it was persisted.
#[derive(Debug)]
pub(crate) struct Held {
    pub candidate: Candidate,
    /// Digest of its record.
    pub record: Digest,
    /// Digest of its encoding, for the fingerprint.
    sum: Digest,
}

impl Link {
    fn new(record: &Record) -> Arc<Self> {
        Arc::new(Self { digest: record.digest(), record: record.clone() })
    }
}

impl Tip {
    /// Reads the tip and walks every record behind it: each must follow the one before.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when anything does not fit; [`StoreError::Format`] for a database of another layout.
    pub fn load(db: &Db, path: &Path) -> Result<Self, StoreError> {
        let Some(version) = db.get(Table::Meta, VERSION_KEY)? else { return Ok(Self::default()) };
        let format = db.get(Table::Meta, FORMAT_KEY)?.map_or(0, |bytes| le_u32(&bytes));
        if format != FORMAT {
            return Err(StoreError::Format { path: path.to_path_buf(), found: format, known: FORMAT });
        }
        let damaged = |detail: &str| StoreError::damaged(Part::Chain, path, detail);
        let version = be_u64(&version).ok_or_else(|| damaged("the version is malformed"))?;
        let (first, last) = walk(db, path)?;
        let head = match (db.get(Table::Meta, HEAD_KEY)?, last) {
            (None, None) => None,
            (Some(named), Some(last)) if named == last.digest.0 => Some(Arc::new(last)),
            _ => return Err(damaged("the last record is not the head that is noted")),
        };
        let register = match db.get(Table::Meta, REGISTER_KEY)? {
            Some(bytes) => Some(Arc::new(wire::decode_register(&bytes).map_err(|e| damaged(&e.to_string()))?)),
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
        let tip = Self { version, first, head, register, candidates, snapshots };
        tip.check_references(db, path)?;
        Ok(tip)
    }

    /// The head was decided, candidates stand on it, snapshots are of records held here.
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

    /// Adds what every batch carries: the next version and the head.
    pub fn seal(&mut self, batch: &mut Batch) {
        self.version += 1;
        batch.put(Table::Meta, FORMAT_KEY, FORMAT.to_le_bytes().to_vec());
        batch.put(Table::Meta, VERSION_KEY, self.version.to_be_bytes().to_vec());
        match &self.head {
            Some(head) => batch.put(Table::Meta, HEAD_KEY, head.digest.0.to_vec()),
            None => batch.delete(Table::Meta, HEAD_KEY),
        }
    }

    /// Digest over all that the tip says.
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
        let register = self.register.as_ref().map(|register| wire::encode_register(register)).unwrap_or_default();
        let mut snapshots = Vec::new();
        for (seq, manifest) in &self.snapshots {
            snapshots.extend_from_slice(&seq.to_le_bytes());
            snapshots.extend_from_slice(&state::root(manifest).0);
        }
        Digest::of("starling store tip v2", &[&bytes, &register, &snapshots])
    }

    /// Puts a record on top.
    pub fn push(&mut self, record: &Record) {
        self.first = self.first.or(Some(record.seq));
        self.head = Some(Link::new(record));
    }

    pub fn head_seq(&self) -> Option<u64> {
        self.head.as_ref().map(|head| head.record.seq)
    }
}

/// Follows all records, each with the votes that decided it: the number of the first, and the last.
fn walk(db: &Db, path: &Path) -> Result<(Option<u64>, Option<Link>), StoreError> {
    let mut first = None;
    let mut last: Option<Link> = None;
    db.each(Table::Records, &[], |key, value| {
        let damaged = |detail: String| StoreError::damaged(Part::Chain, path, detail);
        let record = wire::decode_record(value).map_err(|e| damaged(format!("a record is malformed: {e}")))?;
        if key != seq_key(record.seq) {
            return Err(damaged(format!("record {} is kept under another number", record.seq)));
        }
        if let Some(before) = &last {
            record
                .validate_after(&before.record)
                .map_err(|why| damaged(format!("record {} does not follow the one before: {why}", record.seq)))?;
        }
        let digest = wire::record_digest(value);
        let certified = db.get(Table::Certificates, key)?.map(|bytes| wire::decode_certificate(&bytes));
        match certified {
            Some(Ok(certificate)) if certificate.record == digest => {}
            // A genesis, and the record before an adopted one. The head is looked at by itself.
            None if last.is_none() => {}
            _ => return Err(damaged(format!("the votes for record {} are missing, or are for another", record.seq))),
        }
        first = first.or(Some(record.seq));
        last = Some(Link { digest, record });
        Ok(true)
    })?;
    Ok((first, last))
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

    /// `seq ‖ attempt ‖ record`, big-endian, so that attempts sort by age. An attempt may have several: two nodes whose
    /// results differ are a fault that the vote survives only if both can be fetched.
    pub fn id(&self) -> Vec<u8> {
        let key = &self.candidate.key;
        [&key.seq.to_be_bytes()[..], &key.attempt.to_be_bytes(), &self.record.0].concat()
    }
}

/// Key of a record or a snapshot: sorts by number.
pub(crate) fn seq_key(seq: u64) -> [u8; 8] {
    seq.to_be_bytes()
}

fn be_u64(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

/// Zero, which is no format, for a malformed one.
fn le_u32(bytes: &[u8]) -> u32 {
    bytes.try_into().map_or(0, u32::from_le_bytes)
}
