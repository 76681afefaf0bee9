//! Updates that are written while they are being made, so that little of them is left to write when they are whole.

use crate::StoreError;
use crate::sealed::AtomicFile;
use crate::store::{Store, lock};
use starling_protocol::Digest;

/// Bytes that wait in the page cache for one sync: so much is left to sync at most when an update is whole.
const SYNCED_TOGETHER: usize = 4 << 20;

/// An update that is being made. Its file has no name before [`Store::stage_draft`], and goes with it.
pub struct Draft {
    file: AtomicFile,
    unsynced: usize,
}

impl Store {
    /// Begins an update whose bytes come piece by piece, in any order.
    ///
    /// # Errors
    /// [`StoreError::Io`] when no file can be made.
    pub fn draft_update(&self) -> Result<Draft, StoreError> {
        Ok(Draft { file: self.updates.draft()?, unsynced: 0 })
    }

    /// Writes bytes of an update to their place. The same place may be written again.
    ///
    /// # Errors
    /// [`StoreError::Io`]; the draft is of no use then.
    pub fn write_draft(&self, draft: &mut Draft, at: u64, bytes: &[u8]) -> Result<(), StoreError> {
        draft.file.write_at(at, bytes)?;
        draft.unsynced += bytes.len();
        if draft.unsynced >= SYNCED_TOGETHER {
            draft.unsynced = 0;
            self.note(draft.file.sync_data())?;
        }
        Ok(())
    }

    /// As [`Store::stage_update`] for an update that is written. The caller answers for it that the bytes have this
    /// digest; a reader checks them.
    ///
    /// # Errors
    /// [`StoreError::Io`]; nothing is staged then.
    pub fn stage_draft(&self, draft: Draft, digest: &Digest) -> Result<(), StoreError> {
        // A snapshot on another thread may remove old updates meanwhile, and must know of this one.
        *lock(&self.staged) = Some(*digest);
        self.note(self.updates.put_draft(draft.file, digest).and_then(|()| self.updates.sync([digest])))
    }
}
