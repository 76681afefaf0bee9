//! The flock's decisions: records, the votes that decided them, and their updates.

use crate::rocks::Table;
use crate::store::{Change, Store, lock};
use crate::tip::{Link, seq_key};
use crate::{Part, StoreError, writing};
use starling_protocol::ancestry::Ancestry;
use starling_protocol::message::Certificate;
use starling_protocol::record::{Record, RecordKind};
use starling_protocol::state::State;
use starling_protocol::{Digest, wire};
use std::fs::File;
use std::sync::Arc;

/// An encoded record, and the encoded certificate that decided it; the certificate is empty where there is none.
pub type EncodedLink = (Vec<u8>, Vec<u8>);

impl Store {
    /// Begins a chain with `record` as its first and `state` as its state. State, record and head are durable when this
    /// returns.
    ///
    /// # Errors
    /// [`StoreError::NotNext`] when there is a chain already or the record is no first one,
    /// [`StoreError::StateMismatch`] when the state is not the record's.
    pub fn found(&self, record: &Record, schema: &Digest, state: &State) -> Result<(), StoreError> {
        self.check_run(record.run)?;
        let first = record.seq == 0 && record.kind == RecordKind::Genesis && record.parent == Digest::default();
        if !first {
            return Err(not_next(record, "a chain begins with a genesis record of number 0"));
        }
        let _bulk = lock(&self.bulk);
        if self.tip().head.is_some() {
            return Err(not_next(record, "there is a chain here already"));
        }
        writing::check_lengths(state)?;
        let manifest = self.write_state(record, schema, state)?;
        let mut change = self.begin()?;
        change.push(record, None);
        change.keep_snapshot(record.seq, Arc::new(manifest));
        change.apply()
    }

    /// Makes `record` the head, with the votes that decided it; durable when this returns. Drops all candidates and
    /// keeps the vote state. A record that changes no state (a SKIP, a FORK) has no update. If there is a candidate of
    /// the same record, its bytes are used, and `update` may be left out.
    ///
    /// # Errors
    /// [`StoreError::AlreadyCommitted`] for a record that is on the chain, [`StoreError::NotNext`] for one that does
    /// not follow the head, [`StoreError::CertificateMismatch`] when the certificate is for another record,
    /// [`StoreError::UpdateMismatch`] when `update` is not the record's, [`StoreError::NoUpdate`] when there is none.
    pub fn commit(&self, record: &Record, update: Option<&[u8]>, certificate: &Certificate) -> Result<(), StoreError> {
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
        check_certificate(record, Some(certificate))?;
        let held = change.tip.candidates.iter().any(|held| held.record == digest);
        let at_hand = held && self.updates.contains(&record.update);
        if record.changes_state() && !at_hand {
            self.keep_update(record, update.ok_or(StoreError::NoUpdate { seq: record.seq })?)?;
        }
        let dropped = std::mem::take(&mut change.tip.candidates);
        for held in &dropped {
            change.batch.delete(Table::Candidates, &held.id());
        }
        change.push(record, Some(certificate));
        change.apply()?;
        if dropped.iter().any(|held| held.candidate.record.update != record.update) {
            self.prune_updates(change);
        } else {
            drop(change);
        }
        self.make_room_after(record);
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

    /// Encoded records from number `seq` on, each the successor of the one before, at most `max`, with their encoded
    /// certificates; a genesis record has none. Ends before a record that is missing, or whose votes are.
    pub fn records_from(&self, seq: u64, max: usize) -> Result<Vec<EncodedLink>, StoreError> {
        self.records_within(seq, max, usize::MAX)
    }

    /// The same, limited to so many bytes in all, with 8 more for each link; the first link comes in any case.
    pub fn records_within(&self, seq: u64, max: usize, bytes_max: usize) -> Result<Vec<EncodedLink>, StoreError> {
        let db = self.db()?;
        let (mut links, mut next) = (Vec::new(), seq);
        let mut bytes = 0usize;
        db.each(Table::Records, &seq_key(seq), |key, record| {
            if links.len() >= max || key != seq_key(next) {
                return Ok(false);
            }
            let votes = match db.get(Table::Certificates, key)? {
                None if next > 0 => return Ok(false),
                votes => votes.unwrap_or_default(),
            };
            bytes = bytes.saturating_add(8 + record.len() + votes.len());
            if bytes > bytes_max && !links.is_empty() {
                return Ok(false);
            }
            links.push((record.to_vec(), votes));
            next = next.saturating_add(1);
            Ok(true)
        })?;
        Ok(links)
    }

    /// The oldest record from which none is missing up to the head, and each but a genesis has its votes. None in an
    /// empty store.
    pub fn whole_from(&self) -> Option<u64> {
        self.tip().whole
    }

    /// The ancestry of the head, as far back as the records here tell.
    pub fn ancestry(&self) -> Ancestry {
        self.tip().ancestry
    }

    /// The votes that decided the record of this number; `None` for a genesis record, and where there is no record.
    pub fn certificate(&self, seq: u64) -> Result<Option<Certificate>, StoreError> {
        let Some(bytes) = self.db()?.get(Table::Certificates, &seq_key(seq))? else { return Ok(None) };
        let malformed = |e: wire::WireError| StoreError::damaged(Part::Chain, &self.folder.db(), e.to_string());
        wire::decode_certificate(&bytes).map(Some).map_err(malformed)
    }

    /// The encoded update that ended in record `seq`; `None` when it is older than the snapshots kept, or missing.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when its bytes are not those that were written.
    pub fn update(&self, seq: u64) -> Result<Option<Vec<u8>>, StoreError> {
        match self.record(seq)? {
            Some(record) if record.kind == RecordKind::Commit => self.updates.get(&record.update),
            _ => Ok(None),
        }
    }

    /// The file with the bytes of [`Store::update`], checked and at its beginning, and its length in bytes.
    pub fn open_update(&self, seq: u64) -> Result<Option<(File, u64)>, StoreError> {
        match self.record(seq)? {
            Some(record) if record.kind == RecordKind::Commit => self.updates.open(&record.update),
            _ => Ok(None),
        }
    }

    /// The file with the bytes of [`Store::update_by_digest`], checked and at its beginning, and its length in bytes.
    pub fn open_update_by_digest(&self, digest: &Digest) -> Result<Option<(File, u64)>, StoreError> {
        self.updates.open(digest)
    }

    /// The encoded update of this digest, of a record or of a candidate.
    pub fn update_by_digest(&self, digest: &Digest) -> Result<Option<Vec<u8>>, StoreError> {
        self.updates.get(digest)
    }

    /// Writes an update ahead of the candidate or commit that will name it, so that they need not wait for it; durable
    /// when this returns. Only the last staged update is kept for them; at most one that nothing names stays behind.
    pub fn stage_update(&self, update: &[u8]) -> Result<(), StoreError> {
        let digest = self.updates.digest_of(update);
        // A snapshot on another thread may remove old updates meanwhile, and must know of this one.
        *lock(&self.staged) = Some(digest);
        self.note(self.updates.put(&digest, update).and_then(|_| self.updates.sync([&digest])))
    }

    /// Writes the update of `record`, after checking that it has the record's digest. A staged update was checked
    /// already, here or by whoever wrote it ([`Store::stage_draft`]).
    pub(crate) fn keep_update(&self, record: &Record, update: &[u8]) -> Result<(), StoreError> {
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
    /// Checks that `record` can follow the head, by the content of the two.
    pub fn check_next(&self, record: &Record) -> Result<(), StoreError> {
        let head = self.tip.head.as_ref().ok_or(StoreError::NoChain)?;
        record.validate_after(&head.record).map_err(|why| not_next(record, &why.to_string()))
    }

    /// Puts `record` on top.
    pub fn push(&mut self, record: &Record, certificate: Option<&Certificate>) {
        self.batch.put(Table::Records, &seq_key(record.seq), wire::encode_record(record));
        if let Some(certificate) = certificate {
            self.batch.put(Table::Certificates, &seq_key(record.seq), wire::encode_certificate(certificate));
        }
        self.tip.push(Link::new(record), certificate.is_some());
    }
}

/// Checks that the certificate names the record. The caller checks that its votes are a quorum's: that takes the record
/// before and a verifier of signatures.
pub(crate) fn check_certificate(record: &Record, certificate: Option<&Certificate>) -> Result<(), StoreError> {
    let fits = match certificate {
        None => record.kind == RecordKind::Genesis,
        Some(c) => (c.lineage, c.seq, c.record) == (record.lineage, record.seq, record.digest()),
    };
    if fits { Ok(()) } else { Err(StoreError::CertificateMismatch { seq: record.seq }) }
}

pub(crate) fn not_next(record: &Record, why: &str) -> StoreError {
    StoreError::NotNext { seq: record.seq, why: why.to_owned() }
}
