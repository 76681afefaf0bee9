//! Recordings: a chain exported as plain files, for programs that follow and verify it.
//!
//! The bytes are those of the specification, without seals; `docs/store.md`, *Recordings*, has the names. Its reader
//! takes nothing in it on trust, so nothing is synced and there are no checksums.

use crate::replace::{install, remove_dir, sibling};
use crate::store::Store;
use crate::{Part, StoreError};
use starling_protocol::record::{Record, RecordKind};
use starling_protocol::wire;
use std::fs;
use std::path::Path;

/// Records that are read at a time.
const BATCH: usize = 256;

/// The extent of what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recording {
    /// Numbers of the first and the last record.
    pub first: u64,
    pub last: u64,
    /// The record of the first state. The state of a genesis follows from the specification, unless the run begins from
    /// weights; any other is written.
    pub state: u64,
    /// Updates that lead from that state to the last record's.
    pub updates: u64,
}

impl Store {
    /// Writes the chain to the new folder `dir`: the run specification, every record from the first after which none is
    /// missing, their certificates, and the updates since the oldest state that is kept, with that state.
    ///
    /// # Errors
    /// [`StoreError::Exists`] when there is something at `dir`, [`StoreError::NoChain`] in an empty store,
    /// [`StoreError::Damaged`] when a part is not what was written. Nothing is at `dir` then.
    pub fn export_chain(&self, dir: &Path) -> Result<Recording, StoreError> {
        if dir.symlink_metadata().is_ok() {
            return Err(StoreError::Exists { path: dir.to_path_buf() });
        }
        let run = self.run().ok_or_else(|| StoreError::NoRun { path: self.path().to_path_buf() })?;
        let begun = wire::decode_spec(&run.spec).is_ok_and(|spec| spec.beginning.is_some());
        let first = self.whole_from().ok_or(StoreError::NoChain)?;
        let staging = sibling(dir, "new")?;
        remove_dir(&staging)?;
        fs::create_dir(&staging).map_err(|e| StoreError::io("create", &staging, 4096, e))?;
        let written = write(&staging.join("spec"), &run.spec)
            .and_then(|()| self.record_chain(&staging, first, begun))
            .and_then(|recording| install(&staging, dir).map(|()| recording));
        if written.is_err() {
            // Only the first error is reported.
            let _ = remove_dir(&staging);
        }
        written
    }

    /// `begun`: the run begins from weights.
    fn record_chain(&self, dir: &Path, first: u64, begun: bool) -> Result<Recording, StoreError> {
        let none = || StoreError::damaged(Part::State, &self.folder.chunks(), "there is no snapshot");
        let state = self.snapshots().into_iter().map(|(seq, _)| seq).find(|seq| *seq >= first).ok_or_else(none)?;
        let mut recording = Recording { first, last: first, state, updates: 0 };
        let mut next = first;
        loop {
            let links = self.records_from(next, BATCH)?;
            if links.is_empty() {
                break;
            }
            for (bytes, certificate) in &links {
                write(&file(dir, next, "record"), bytes)?;
                // The reader trusts the first record: the voters that signed it are those of an earlier record.
                if next > first {
                    write(&file(dir, next, "certificate"), certificate)?;
                }
                let malformed = |e: wire::WireError| StoreError::damaged(Part::Chain, &self.folder.db(), e.to_string());
                let record = wire::decode_record(bytes).map_err(malformed)?;
                recording.updates += u64::from(self.record_update(dir, &record, state)?);
                if next == state && (begun || record.kind != RecordKind::Genesis) {
                    self.record_state(dir, state)?;
                }
                recording.last = next;
                next = next.saturating_add(1);
            }
        }
        Ok(recording)
    }

    /// Writes the update of a record after the first state; returns whether it has one.
    fn record_update(&self, dir: &Path, record: &Record, state: u64) -> Result<bool, StoreError> {
        let leads_on = record.seq > state && record.changes_state();
        if leads_on {
            let update = self.update_by_digest(&record.update)?.ok_or(StoreError::NoUpdate { seq: record.seq })?;
            write(&file(dir, record.seq, "update"), &update)?;
        }
        Ok(leads_on)
    }

    fn record_state(&self, dir: &Path, seq: u64) -> Result<(), StoreError> {
        let manifest = self.tip().snapshots.get(&seq).cloned().ok_or(StoreError::NotOnChain { seq })?;
        write(&file(dir, seq, "manifest"), &manifest.encode())?;
        for (index, digest) in manifest.chunks.iter().enumerate() {
            write(&file(dir, seq, &format!("chunk-{index:06}")), &self.whole_chunk(&manifest, index, digest)?)?;
        }
        Ok(())
    }
}

fn file(dir: &Path, seq: u64, kind: &str) -> std::path::PathBuf {
    dir.join(format!("{seq:010}.{kind}"))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    fs::write(path, bytes).map_err(|e| StoreError::io("write", path, bytes.len() as u64, e))
}
