//! Updates that are written while they are being made, so that little of them is left to write when they are whole.

use crate::sealed::AtomicFile;
use crate::store::{Store, lock};
use crate::{StoreError, space};
use starling_protocol::Digest;

/// An update that is being made. Its file has no name before [`Store::stage_draft`], and goes with it. A failure costs
/// the draft only, since nothing names it.
pub struct Draft(AtomicFile);

impl Draft {
    /// Writes bytes of the update to their place. The same place may be written again.
    ///
    /// # Errors
    /// [`StoreError::Io`] or [`StoreError::Full`]; the draft is of no use then.
    pub fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), StoreError> {
        self.0.write_at(at, bytes)
    }

    /// Waits until what was written is on the disk.
    ///
    /// # Errors
    /// [`StoreError::Io`]; the draft is of no use then.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.0.sync_data()
    }
}

impl Store {
    /// Begins an update of so many bytes, which come piece by piece, in any order.
    ///
    /// # Errors
    /// [`StoreError::Full`] when it would take the space that is to stay free, [`StoreError::Io`] when no file can be
    /// made.
    pub fn draft_update(&self, bytes: u64) -> Result<Draft, StoreError> {
        space::require(self.folder.root(), bytes, self.options.reserve_bytes)?;
        Ok(Draft(self.updates.draft()?))
    }

    /// As [`Store::stage_update`] for an update that is written. The store does not read it again: the caller answers for
    /// it that the bytes have this digest.
    ///
    /// # Errors
    /// As [`Store::stage_update`].
    pub fn stage_draft(&self, draft: Draft, digest: &Digest) -> Result<(), StoreError> {
        // A snapshot on another thread may remove old updates meanwhile, and must know of this one.
        *lock(&self.staged) = Some(*digest);
        self.note(self.updates.put_draft(draft.0, digest).and_then(|()| self.updates.sync([digest])))
    }
}
