//! Records, updates and reports: what a node promised and what the flock decided.

use crate::rocks::Table;
use crate::store::{Change, Store, lock};
use crate::tip::{REPORTS_KEPT, Report, seq_key};
use crate::{Part, StoreError};
use starling_protocol::engine::io::AttemptKey;
use starling_protocol::record::{Record, RecordKind};
use starling_protocol::{Digest, wire};
use std::sync::Arc;

impl Store {
    /// Begins a chain: `record` is its first, `theta` and `momentum` (flat, `elements` each) are its state. State,
    /// record and head are durable when this returns.
    ///
    /// # Errors
    /// [`StoreError::NotNext`] when there is a chain already or the record is no first one,
    /// [`StoreError::StateMismatch`] when the state is not the record's.
    pub fn found(&self, record: &Record, schema: &Digest, theta: &[f32], momentum: &[f32]) -> Result<(), StoreError> {
        self.check_run(record.run)?;
        let first = record.seq == 0 && record.kind == RecordKind::Genesis && record.parent == Digest::default();
        if !first {
            return Err(not_next(record, "a chain begins with a genesis record of number 0"));
        }
        let _bulk = lock(&self.bulk);
        if self.tip().head.is_some() {
            return Err(not_next(record, "there is a chain here already"));
        }
        let manifest = self.write_state(record, schema, theta, momentum)?;
        let mut change = self.begin()?;
        change.push(record);
        change.keep_snapshot(record.seq, Arc::new(manifest));
        change.apply()
    }

    /// Keeps the update and record that this node is about to report, durable when this returns. An update that was
    /// staged is not looked at again.
    ///
    /// # Errors
    /// [`StoreError::NotNext`] when the record does not stand on the head, [`StoreError::UpdateMismatch`] when
    /// `update` is not the one that the record names.
    pub fn put_report(&self, key: AttemptKey, record: &Record, update: &[u8]) -> Result<(), StoreError> {
        self.check_run(record.run)?;
        let mut change = self.begin()?;
        change.check_next(record)?;
        if (key.seq, key.lineage) != (record.seq, record.lineage) {
            return Err(not_next(record, "the attempt is of another lineage or number"));
        }
        self.keep_update(record, update)?;
        let report = Arc::new(Report::new(key, record));
        let id = report.key();
        change.batch.put(Table::Reports, &id, report.value());
        let before = change.tip.reports.len();
        change.tip.reports.retain(|other| other.key() != id);
        change.tip.reports.push(report);
        change.tip.reports.sort_by_key(|report| report.key());
        while change.tip.reports.len() > REPORTS_KEPT {
            let oldest = change.tip.reports.remove(0);
            change.batch.delete(Table::Reports, &oldest.key());
        }
        change.apply()?;
        if change.tip.reports.len() <= before {
            self.prune_updates(&change);
        }
        Ok(())
    }

    /// Makes `record` the head, durable when this returns. With a report of the same record at hand, its bytes are
    /// used and `update` is not looked at.
    ///
    /// # Errors
    /// [`StoreError::AlreadyCommitted`] for a record that is on the chain, [`StoreError::NotNext`] for one that does
    /// not follow the head, [`StoreError::UpdateMismatch`] when `update` is not the record's.
    pub fn commit(&self, record: &Record, update: &[u8]) -> Result<(), StoreError> {
        self.check_run(record.run)?;
        let digest = record.digest();
        let mut change = self.begin()?;
        if change.tip.head_seq().is_some_and(|head| record.seq <= head) {
            let kept = self.record_bytes(record.seq)?.map(|bytes| wire::record_digest(&bytes));
            return Err(match kept {
                Some(kept) if kept == digest => StoreError::AlreadyCommitted { seq: record.seq },
                _ => not_next(record, "the chain here goes another way"),
            });
        }
        change.check_next(record)?;
        let reported = change.tip.reports.iter().any(|report| report.link.digest == digest);
        if !(reported && self.updates.contains(&record.update)) {
            self.keep_update(record, update)?;
        }
        let dropped = std::mem::take(&mut change.tip.reports);
        for report in &dropped {
            change.batch.delete(Table::Reports, &report.key());
        }
        change.push(record);
        change.apply()?;
        if dropped.iter().any(|report| report.link.record.update != record.update) {
            self.prune_updates(&change);
        }
        Ok(())
    }

    /// The last committed record.
    pub fn head(&self) -> Option<Record> {
        self.tip().head.map(|head| head.record.clone())
    }

    /// Digest of the last committed record.
    pub fn head_digest(&self) -> Option<Digest> {
        self.tip().head.map(|head| head.digest)
    }

    /// The newest report on top of the head that was neither committed nor replaced by another commit.
    pub fn pending_report(&self) -> Option<(AttemptKey, Record)> {
        self.tip().reports.last().map(|report| (report.key, report.link.record.clone()))
    }

    /// The record of this number.
    pub fn record(&self, seq: u64) -> Result<Option<Record>, StoreError> {
        let Some(bytes) = self.record_bytes(seq)? else { return Ok(None) };
        let malformed = |e: wire::WireError| StoreError::damaged(Part::Chain, &self.folder.db(), e.to_string());
        wire::decode_record(&bytes).map(Some).map_err(malformed)
    }

    /// The encoded record of this number.
    pub fn record_bytes(&self, seq: u64) -> Result<Option<Vec<u8>>, StoreError> {
        self.db()?.get(Table::Records, &seq_key(seq))
    }

    /// Encoded records from `seq` on, ascending, at most `max`.
    pub fn records_from(&self, seq: u64, max: usize) -> Result<Vec<Vec<u8>>, StoreError> {
        let pairs = self.db()?.scan(Table::Records, &seq_key(seq), max)?;
        Ok(pairs.into_iter().map(|(_, record)| record).collect())
    }

    /// The encoded update that ended in record `seq`; `None` when it is older than the snapshots kept, or not there.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when its bytes are not what was written.
    pub fn update(&self, seq: u64) -> Result<Option<Vec<u8>>, StoreError> {
        match self.record(seq)? {
            Some(record) if record.kind == RecordKind::Commit => self.updates.get(&record.update),
            _ => Ok(None),
        }
    }

    /// The encoded update of this digest, of a record or of a report.
    pub fn update_by_digest(&self, digest: &Digest) -> Result<Option<Vec<u8>>, StoreError> {
        self.updates.get(digest)
    }

    /// Writes an update ahead of the report or commit that will name it, durable when this returns, so that they need
    /// not wait for it. Only the last one staged is kept for them; at most one that nothing names stays behind.
    pub fn stage_update(&self, update: &[u8]) -> Result<(), StoreError> {
        let digest = self.updates.digest_of(update);
        self.note(self.updates.put(&digest, update).and_then(|_| self.updates.sync([&digest])))?;
        *lock(&self.staged) = Some(digest);
        Ok(())
    }

    fn keep_update(&self, record: &Record, update: &[u8]) -> Result<(), StoreError> {
        if *lock(&self.staged) == Some(record.update) && self.updates.contains(&record.update) {
            return Ok(());
        }
        let got = self.updates.digest_of(update);
        if got != record.update {
            return Err(StoreError::UpdateMismatch { expected: record.update, got });
        }
        self.with_ballast(|| self.updates.put(&got, update).and_then(|_| self.updates.sync([&got])))
    }
}

impl Change<'_> {
    /// `record` can follow the head, by all that the two say.
    fn check_next(&self, record: &Record) -> Result<(), StoreError> {
        let head = self.tip.head.as_ref().ok_or(StoreError::NoChain)?;
        record.validate_after(&head.record).map_err(|why| not_next(record, &why.to_string()))
    }

    /// Puts `record` on top.
    pub fn push(&mut self, record: &Record) {
        self.batch.put(Table::Records, &seq_key(record.seq), wire::encode_record(record));
        self.tip.push(record);
    }
}

pub(crate) fn not_next(record: &Record, why: &str) -> StoreError {
    StoreError::NotNext { seq: record.seq, why: why.to_owned() }
}
