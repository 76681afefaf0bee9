//! The bound on the bytes that the folder takes ([`crate::StoreOptions`]).
//!
//! The oldest snapshot goes first, since without the first update after it it leads nowhere; then the updates up to the
//! next one, the oldest first; then the next one, and so on. The newest snapshot and the updates after it stay however
//! much they take, since the node needs them to come back, and so does everything that is being written: updates of
//! candidates, the staged one, the state being adopted. Records, private state and the state with which the run begins
//! only leave less room.

use crate::StoreError;
use crate::rocks::Table;
use crate::space::folder_bytes;
use crate::store::Store;
use crate::tip::seq_key;
use starling_protocol::limits::STATE_CHUNK_BYTES;
use starling_protocol::record::Record;
use starling_protocol::state::Manifest;
use std::sync::TryLockError;
use std::sync::atomic::Ordering;

/// Updates that a round may write before the next commit: its candidate's, and one that is staged ahead.
const UPDATES_AHEAD: u64 = 2;
/// Of so many old updates one goes at a time. Each time the records after them are read.
const OLD_UPDATES: u64 = 16;

impl Store {
    /// Makes room for so many bytes more within the bound. Does nothing without a bound, and while another thread
    /// writes chunks, which makes room itself.
    pub fn make_room(&self, needed: u64) {
        if self.options.max_bytes == 0 {
            return;
        }
        let _bulk = match self.bulk.try_lock() {
            Ok(bulk) => bulk,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        self.drop_old(needed);
    }

    /// Makes room for the updates of the round after this record.
    pub(crate) fn make_room_after(&self, record: &Record) {
        if self.options.max_bytes > 0 {
            let update = self.updates.length(&record.update).unwrap_or(0);
            self.make_room(UPDATES_AHEAD.saturating_mul(update));
        }
    }

    /// Makes room for a snapshot that is due. It is written all the same if there is none: without it the updates would
    /// take ever more. Afterwards those before the oldest snapshot go as without a bound. The caller holds `bulk`.
    pub(crate) fn make_room_for_snapshot(&self, bytes: u64) {
        self.drop_old(bytes);
        self.floor.store(u64::MAX, Ordering::Relaxed);
    }

    /// Makes room for the state being adopted, and removes what another one before it has left. The caller holds
    /// `bulk`.
    pub(crate) fn make_room_to_adopt(&self) {
        if self.options.max_bytes == 0 {
            return;
        }
        self.floor.store(u64::MAX, Ordering::Relaxed);
        match self.begin() {
            Ok(change) => self.prune(change),
            Err(error) => tracing::debug!(%error, "what an earlier adoption has left stays for now"),
        }
        self.drop_old(0);
    }

    /// Drops old updates and snapshots until `needed` bytes more fit into the bound. Says so once when they do not fit
    /// in the end. The caller holds `bulk`.
    fn drop_old(&self, needed: u64) {
        while !self.fits(needed) {
            match self.drop_oldest() {
                Ok(true) => {}
                Ok(false) => {
                    self.tell_over(needed);
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, "could not drop an old snapshot or update to make room");
                    return;
                }
            }
        }
        self.over.store(false, Ordering::Relaxed);
    }

    /// Checks that so many bytes more fit into the bound.
    ///
    /// # Errors
    /// [`StoreError::OverBound`] when they do not.
    pub(crate) fn require_bound(&self, needed: u64) -> Result<(), StoreError> {
        if self.fits(needed) {
            return Ok(());
        }
        Err(self.over_bound(self.bytes_taken().saturating_add(needed)))
    }

    /// Checks that so many bytes more would fit into the bound without all that is old. Drops nothing.
    ///
    /// # Errors
    /// [`StoreError::OverBound`] when they would not.
    pub(crate) fn require_bound_without_old(&self, needed: u64) -> Result<(), StoreError> {
        if self.options.max_bytes == 0 {
            return Ok(());
        }
        let needed = self.bytes_that_stay()?.saturating_add(needed);
        if needed <= self.options.max_bytes { Ok(()) } else { Err(self.over_bound(needed)) }
    }

    fn over_bound(&self, needed: u64) -> StoreError {
        StoreError::OverBound { path: self.path().to_path_buf(), needed, max: self.options.max_bytes }
    }

    fn fits(&self, needed: u64) -> bool {
        let max = self.options.max_bytes;
        max == 0 || self.bytes_taken().saturating_add(needed) <= max
    }

    /// Bytes that the folder takes. The chunks, of which there are many, are counted by the states that name them: one
    /// that two states share counts twice, and those of a state being adopted as whole ones.
    fn bytes_taken(&self) -> u64 {
        let states = self.tip().snapshots.values().map(|manifest| state_bytes(manifest)).fold(0, u64::saturating_add);
        let rest = folder_bytes(self.path(), Some(&self.folder.chunks()));
        states.saturating_add(self.beginning_bytes()).saturating_add(self.adopted_bytes()).saturating_add(rest)
    }

    /// The parameters with which the run begins, if they are kept here; their moments are one chunk of zeros. They are
    /// never dropped.
    fn beginning_bytes(&self) -> u64 {
        self.beginning().map_or(0, |manifest| manifest.elements.saturating_mul(4))
    }

    /// The chunks of a state being adopted, as whole ones.
    fn adopted_bytes(&self) -> u64 {
        (self.chunks_adopted() as u64).saturating_mul(STATE_CHUNK_BYTES as u64)
    }

    /// Bytes that the folder takes without all that is old: the newest snapshot, the updates after it, those of
    /// candidates, and what is never dropped.
    fn bytes_that_stay(&self) -> Result<u64, StoreError> {
        let tip = self.tip();
        let newest = tip.snapshots.last_key_value();
        let state = newest.map_or(0, |(_, manifest)| state_bytes(manifest)).saturating_add(self.beginning_bytes());
        let live = self.live_updates(&tip, newest.map_or(0, |(seq, _)| seq.saturating_add(1)))?;
        let lengths = live.iter().filter_map(|digest| self.updates.length(digest));
        let updates = lengths.fold(0, u64::saturating_add);
        let all_updates = folder_bytes(&self.folder.updates(), None);
        let rest = folder_bytes(self.path(), Some(&self.folder.chunks())).saturating_sub(all_updates);
        Ok(state.saturating_add(self.adopted_bytes()).saturating_add(updates).saturating_add(rest))
    }

    /// Drops the oldest updates that lead to the oldest snapshot, or if there are none the oldest of several snapshots.
    /// Returns false if there is nothing to drop.
    fn drop_oldest(&self) -> Result<bool, StoreError> {
        let mut change = self.begin()?;
        let Some(oldest) = change.tip.snapshots.keys().next().copied() else { return Ok(false) };
        let floor = self.floor.load(Ordering::Relaxed);
        if floor <= oldest {
            let step = ((oldest - floor) / OLD_UPDATES).max(1);
            self.floor.store(floor.saturating_add(step), Ordering::Relaxed);
            self.prune_updates(change);
            return Ok(true);
        }
        if change.tip.snapshots.len() < 2 {
            return Ok(false);
        }
        change.tip.snapshots.remove(&oldest);
        change.batch.delete(Table::Snapshots, &seq_key(oldest));
        change.apply()?;
        tracing::debug!(seq = oldest, "an old snapshot is gone: the folder would take more than store.max_gib");
        self.floor.store(oldest.saturating_add(1), Ordering::Relaxed);
        self.prune(change);
        Ok(true)
    }

    fn tell_over(&self, needed: u64) {
        if self.over.swap(true, Ordering::Relaxed) {
            return;
        }
        tracing::warn!(
            path = %self.path().display(),
            bytes = self.bytes_taken().saturating_add(needed),
            max = self.options.max_bytes,
            "this folder takes more than store.max_gib allows, and all of it is needed: give it more, or a lower \
             snapshot_every"
        );
    }
}

fn state_bytes(manifest: &Manifest) -> u64 {
    manifest.elements.saturating_mul(4 * u64::from(manifest.vectors))
}
