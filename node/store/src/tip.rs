//! What the database says about the chain, checked link by link and kept in memory.

use crate::rocks::{Batch, Db, Table};
use crate::{Part, StoreError};
use starling_protocol::Digest;
use starling_protocol::engine::io::AttemptKey;
use starling_protocol::record::Record;
use starling_protocol::state::{self, Manifest};
use starling_protocol::wire;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Layout of the database. Raised with every incompatible change.
const FORMAT: u32 = 1;
/// Reports kept on top of one head. Only the newest is ever used; the others are history for a person who looks.
pub(crate) const REPORTS_KEPT: usize = 4;

const FORMAT_KEY: &[u8] = b"format";
const VERSION_KEY: &[u8] = b"version";
const HEAD_KEY: &[u8] = b"head";

/// Head, reports and snapshots as of one version of the database.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tip {
    /// Number of the last batch.
    pub version: u64,
    /// Number of the oldest record.
    pub first: Option<u64>,
    pub head: Option<Arc<Link>>,
    /// Reports on top of the head, by ascending attempt.
    pub reports: Vec<Arc<Report>>,
    /// Manifests of the snapshots kept, by sequence number.
    pub snapshots: BTreeMap<u64, Arc<Manifest>>,
}

/// A record and its digest.
#[derive(Debug)]
pub(crate) struct Link {
    pub record: Record,
    pub digest: Digest,
}

/// A report as it was persisted.
#[derive(Debug)]
pub(crate) struct Report {
    pub key: AttemptKey,
    pub link: Link,
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
        let (mut reports, mut snapshots) = (Vec::new(), BTreeMap::new());
        db.each(Table::Reports, &[], |key, value| {
            let report = Report::decode(key, value).ok_or_else(|| damaged("a report is malformed"))?;
            reports.push(Arc::new(report));
            Ok(true)
        })?;
        db.each(Table::Snapshots, &[], |key, value| {
            let seq = be_u64(key).ok_or_else(|| damaged("a snapshot has no number"))?;
            let manifest = Manifest::decode(value).map_err(|e| damaged(&format!("manifest of snapshot {seq}: {e}")))?;
            snapshots.insert(seq, Arc::new(manifest));
            Ok(true)
        })?;
        let tip = Self { version, first, head, reports, snapshots };
        tip.check_references(db, path)?;
        Ok(tip)
    }

    /// Reports stand on the head; snapshots are of records held here.
    fn check_references(&self, db: &Db, path: &Path) -> Result<(), StoreError> {
        let damaged = |detail: String| StoreError::damaged(Part::Chain, path, detail);
        for report in &self.reports {
            if Some(report.link.record.parent) != self.head.as_ref().map(|head| head.digest) {
                return Err(damaged("a report does not stand on the head".into()));
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
        for report in &self.reports {
            bytes.extend_from_slice(&report.key());
            bytes.extend_from_slice(&report.link.digest.0);
        }
        let mut snapshots = Vec::new();
        for (seq, manifest) in &self.snapshots {
            snapshots.extend_from_slice(&seq.to_le_bytes());
            snapshots.extend_from_slice(&state::root(manifest).0);
        }
        Digest::of("starling store tip v1", &[&bytes, &snapshots])
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

/// Follows all records: the number of the first, and the last.
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
        first = first.or(Some(record.seq));
        last = Some(Link { digest: wire::record_digest(value), record });
        Ok(true)
    })?;
    Ok((first, last))
}

impl Report {
    pub fn new(key: AttemptKey, record: &Record) -> Self {
        Self { key, link: Link { digest: record.digest(), record: record.clone() } }
    }

    /// `seq ‖ attempt ‖ set`, big-endian, so that attempts sort by age.
    pub fn key(&self) -> Vec<u8> {
        [&self.key.seq.to_be_bytes()[..], &self.key.attempt.to_be_bytes(), &self.key.set.0].concat()
    }

    pub fn value(&self) -> Vec<u8> {
        [&self.key.lineage.0[..], &wire::encode_record(&self.link.record)].concat()
    }

    fn decode(key: &[u8], value: &[u8]) -> Option<Self> {
        let (seq, rest) = key.split_at_checked(8)?;
        let (attempt, set) = rest.split_at_checked(4)?;
        let (lineage, record) = value.split_at_checked(32)?;
        let key = AttemptKey {
            lineage: Digest(lineage.try_into().ok()?),
            seq: be_u64(seq)?,
            attempt: u32::from_be_bytes(attempt.try_into().ok()?),
            set: Digest(set.try_into().ok()?),
        };
        let link = Link { digest: wire::record_digest(record), record: wire::decode_record(record).ok()? };
        Some(Self { key, link })
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
