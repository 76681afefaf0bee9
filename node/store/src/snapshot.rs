//! Snapshots of the canonical state, and loading the state from them.
//!
//! A snapshot is the state's chunks as files and its manifest in the database. The chunks are written and synced first
//! (`writing`); then the manifest names them. Only then are older snapshots, their chunks and the updates before them removed. So
//! there is a snapshot and every update after it whenever the process dies.

use crate::chain::not_next;
use crate::rocks::Table;
use crate::sealed::extend_f32;
use crate::store::{Change, Store, lock};
use crate::tip::seq_key;
use crate::writing::{self, StateChunks};
use crate::{Damage, Part, StoreError};
use starling_protocol::record::Record;
use starling_protocol::state::{self, Manifest, State, StateError};
use starling_protocol::{Digest, wire};
use std::fs::File;
use std::sync::Arc;

/// A snapshot is due at every record whose number this divides.
pub const SNAPSHOT_EVERY: u64 = 16;
/// Snapshots kept. If the newest is damaged, the one before it and more updates lead to the same state.
const SNAPSHOTS_KEPT: usize = 2;
/// The same with one that was written between two that are due, for those who fetch it: it takes no place of theirs.
const SNAPSHOTS_KEPT_BETWEEN: usize = SNAPSHOTS_KEPT + 1;

/// A state loaded from disk.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedState {
    /// The record whose state this is.
    pub record: Record,
    /// Digest of the model's schema.
    pub schema: Digest,
    pub state: State,
    /// Updates that were applied on top of the snapshot.
    pub replayed: u64,
}

/// The place of a snapshot among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotKind {
    /// One that is due: the oldest give way to it.
    Due,
    /// One between two that are due, for those who fetch it: both stay, and all updates after the older one. Only another such snapshot
    /// gives way to it.
    Between,
}

impl Store {
    /// [`Store::write_snapshot_of`] a state that nobody changes meanwhile, as one that is due.
    ///
    /// # Errors
    /// As there.
    pub fn write_snapshot(&self, record: &Record, schema: &Digest, state: &State) -> Result<(), StoreError> {
        writing::check_lengths(state)?;
        self.write_snapshot_of(SnapshotKind::Due, record, schema, state)
    }

    /// Writes the state of `record`, which is on the chain, as a snapshot. Then removes the files that only older
    /// snapshots needed. Takes the disk's time for 4 bytes a parameter and vector. Commits go on meanwhile: none waits for more than the
    /// batch with the manifest. Adoptions wait.
    ///
    /// # Errors
    /// [`StoreError::Full`] before the disk is full; [`StoreError::StateMismatch`] when this is not the record's state;
    /// [`StoreError::NotOnChain`] or [`StoreError::NotNext`] when the record is no longer on the chain; [`StoreError::GivenUp`] when the
    /// state is not wanted any more, or there is a newer snapshot; [`StoreError::OverBound`] when one between two that are due does not
    /// fit into the bound of the folder. The snapshots before are kept then, and nothing else.
    pub fn write_snapshot_of(
        &self,
        kind: SnapshotKind,
        record: &Record,
        schema: &Digest,
        state: &dyn StateChunks,
    ) -> Result<(), StoreError> {
        let _bulk = lock(&self.bulk);
        self.check_on_chain(record)?;
        let seq = record.seq;
        if self.tip().snapshots.keys().next_back().is_some_and(|newest| *newest > seq) {
            return Err(StoreError::GivenUp { seq });
        }
        let bytes = state.elements().saturating_mul(4 * u64::from(state.vectors()));
        match kind {
            SnapshotKind::Due => self.make_room_for_snapshot(bytes),
            SnapshotKind::Between => self.require_bound(bytes)?,
        }
        let manifest = Arc::new(self.write_state(record, schema, state)?);
        let mut change = self.begin().inspect_err(|_| self.prune_chunks())?;
        self.check_on_chain(record)?;
        match kind {
            SnapshotKind::Due => change.keep_snapshot(seq, manifest),
            SnapshotKind::Between => change.keep_snapshot_between(seq, manifest),
        }
        change.apply()?;
        self.prune(change);
        Ok(())
    }

    /// Record numbers and manifests of the snapshots here, ascending.
    pub fn snapshots(&self) -> Vec<(u64, Arc<Manifest>)> {
        self.tip().snapshots.into_iter().collect()
    }

    /// The bytes of a chunk of the state; `None` when it is not here.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when its bytes are not those that were written; the chunk is removed then.
    pub fn state_chunk(&self, digest: &Digest) -> Result<Option<Vec<u8>>, StoreError> {
        self.chunks.get(digest)
    }

    /// The file with the bytes of [`Store::state_chunk`], checked and at its beginning, and its length in bytes.
    pub fn open_state_chunk(&self, digest: &Digest) -> Result<Option<(File, u64)>, StoreError> {
        self.chunks.open(digest)
    }

    /// The state of the snapshot at `seq`, every chunk checked.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when a chunk is missing or damaged, [`StoreError::NotOnChain`] if there is no such
    /// snapshot.
    pub fn load_snapshot(&self, seq: u64) -> Result<LoadedState, StoreError> {
        let manifest = self.tip().snapshots.get(&seq).cloned().ok_or(StoreError::NotOnChain { seq })?;
        let record = self.record(seq)?.ok_or(StoreError::NotOnChain { seq })?;
        let elements = usize::try_from(manifest.elements).unwrap_or(usize::MAX);
        let mut chunks = manifest.chunks.iter().enumerate();
        // Every vector has the same number of chunks, the last of them short.
        let mut vector = || -> Result<Vec<f32>, StoreError> {
            let mut values = Vec::with_capacity(elements);
            for (index, digest) in chunks.by_ref().take(state::chunk_count(manifest.elements, 1)) {
                extend_f32(&mut values, &self.whole_chunk(&manifest, index, digest)?);
            }
            Ok(values)
        };
        let theta = vector()?;
        let moments = (1..manifest.vectors).map(|_| vector()).collect::<Result<_, _>>()?;
        Ok(LoadedState { record, schema: manifest.schema, state: State { theta, moments }, replayed: 0 })
    }

    /// The state of the head: the newest snapshot that passes its checks, and every update since. Records that change
    /// no state (a SKIP, a FORK) are passed over. `apply` performs the outer step that ended in the record.
    ///
    /// The result is checked against the head's state root. A snapshot that is found damaged is taken off the list.
    ///
    /// # Errors
    /// [`StoreError::NoChain`] in an empty store, [`StoreError::Damaged`] when no snapshot leads to the head.
    pub fn load_state<F>(&self, mut apply: F) -> Result<LoadedState, StoreError>
    where
        F: FnMut(&Record, &[u8], &mut State) -> Result<(), String>,
    {
        self.db()?;
        let tip = self.tip();
        let head = tip.head.as_ref().ok_or(StoreError::NoChain)?;
        let mut bad = Vec::new();
        for seq in tip.snapshots.keys().rev() {
            let mut loaded = match self.load_snapshot(*seq) {
                Err(StoreError::Damaged(damage)) => {
                    tracing::error!(seq, %damage, "a snapshot is damaged; trying the one before it");
                    bad.push((*seq, damage));
                    continue;
                }
                other => other?,
            };
            self.replay(&mut loaded, &head.record, &mut apply)?;
            self.forget_snapshots(&bad);
            return Ok(loaded);
        }
        let none = || Damage::new(Part::State, &self.folder.chunks(), "there is no snapshot");
        Err(StoreError::Damaged(bad.pop().map_or_else(none, |(_, damage)| damage)))
    }

    fn replay<F>(&self, loaded: &mut LoadedState, head: &Record, apply: &mut F) -> Result<(), StoreError>
    where
        F: FnMut(&Record, &[u8], &mut State) -> Result<(), String>,
    {
        let damaged = |detail: String| StoreError::damaged(Part::State, &self.folder.updates(), detail);
        for seq in loaded.record.seq.saturating_add(1)..=head.seq {
            let record = self.record(seq)?.ok_or_else(|| damaged(format!("record {seq} is missing")))?;
            if record.changes_state() {
                let update = self.updates.get(&record.update)?;
                let update = update.ok_or_else(|| damaged(format!("the update of record {seq} is missing")))?;
                apply(&record, &update, &mut loaded.state)
                    .map_err(|why| damaged(format!("the update of record {seq} cannot be applied: {why}")))?;
                loaded.replayed += 1;
            }
            loaded.record = record;
        }
        let got = state::root(&manifest_of(&loaded.schema, &loaded.state)?);
        if got != head.state_root {
            let expected = head.state_root;
            return Err(damaged(format!("replaying them gives state root {got}, and the head says {expected}")));
        }
        Ok(())
    }

    /// Takes damaged snapshots off the list, so that they are not offered to others. A failure here only costs others a
    /// request in vain.
    fn forget_snapshots(&self, bad: &[(u64, Damage)]) {
        if bad.is_empty() {
            return;
        }
        let forgotten = self.begin().and_then(|mut change| {
            for (seq, _) in bad {
                change.batch.delete(Table::Snapshots, &seq_key(*seq));
                change.tip.snapshots.remove(seq);
            }
            change.apply()
        });
        if let Err(error) = forgotten {
            tracing::warn!(%error, "could not take damaged snapshots off the list");
        }
    }

    /// Reads chunk `index` of `manifest` from disk, and checks its length and digest.
    pub(crate) fn whole_chunk(
        &self,
        manifest: &Manifest,
        index: usize,
        digest: &Digest,
    ) -> Result<Vec<u8>, StoreError> {
        let damaged = |detail| StoreError::damaged(Part::State, &self.chunks.path(digest), detail);
        let bytes = self.chunks.get(digest)?.ok_or_else(|| damaged("it is missing"))?;
        if manifest.chunk_len(index) != Some(bytes.len()) {
            return Err(damaged("it has another length than its place in the state"));
        }
        Ok(bytes)
    }

    fn check_on_chain(&self, record: &Record) -> Result<(), StoreError> {
        let kept = self.record_bytes(record.seq)?.map(|bytes| wire::record_digest(&bytes));
        match kept {
            Some(kept) if kept == record.digest() => Ok(()),
            Some(_) => Err(not_next(record, "the chain here goes another way")),
            None => Err(StoreError::NotOnChain { seq: record.seq }),
        }
    }
}

impl Change<'_> {
    /// Adds a snapshot and drops those that are older than the ones to keep.
    pub fn keep_snapshot(&mut self, seq: u64, manifest: Arc<Manifest>) {
        self.add_snapshot(seq, manifest);
        while self.tip.snapshots.len() > SNAPSHOTS_KEPT {
            if let Some((oldest, _)) = self.tip.snapshots.pop_first() {
                self.batch.delete(Table::Snapshots, &seq_key(oldest));
            }
        }
    }

    /// Adds a snapshot beside those that are due. With [`SNAPSHOTS_KEPT_BETWEEN`] before it, the last of these was such a one.
    pub fn keep_snapshot_between(&mut self, seq: u64, manifest: Arc<Manifest>) {
        if self.tip.snapshots.len() >= SNAPSHOTS_KEPT_BETWEEN
            && let Some((last, _)) = self.tip.snapshots.pop_last()
        {
            self.batch.delete(Table::Snapshots, &seq_key(last));
        }
        self.add_snapshot(seq, manifest);
    }

    fn add_snapshot(&mut self, seq: u64, manifest: Arc<Manifest>) {
        self.batch.put(Table::Snapshots, &seq_key(seq), manifest.encode());
        self.tip.snapshots.insert(seq, manifest);
    }
}

fn manifest_of(schema: &Digest, state: &State) -> Result<Manifest, StoreError> {
    let malformed = |e: StateError| StoreError::Malformed { what: "state", why: e.to_string() };
    state.manifest(*schema).map_err(malformed)
}
