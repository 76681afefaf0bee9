//! The state with which the run begins, if its specification names one (`docs/protocol/2-records.md` §2.8.6).
//!
//! It cannot be made from the seed again. What a founded lineage has learned is measured from it, so its chunks stay
//! when the snapshot of the genesis goes, and other nodes may fetch them. A file beside the database names them.

use crate::sealed::{extend_f32, write_sealed};
use crate::store::{BEGINNING_KIND, Store, lock, read};
use crate::{StoreError, writing};
use starling_protocol::Digest;
use starling_protocol::state::{self, Manifest, State};
use std::sync::{Arc, PoisonError};

impl Store {
    /// Keeps the state with which the run begins, for as long as the folder lasts. Durable when this returns.
    ///
    /// # Errors
    /// [`StoreError::Full`] when there is no room for it. The run has no beginning here then; chunks that are written
    /// already stay until the next pruning.
    pub fn keep_beginning(&self, schema: &Digest, state: &State) -> Result<(), StoreError> {
        writing::check_lengths(state)?;
        let _bulk = lock(&self.bulk);
        let manifest = self.write_chunks_of(0, schema, state)?;
        let (path, encoded) = (self.folder.beginning(), manifest.encode());
        self.with_ballast(|| write_sealed(&self.folder.tmp(), &path, &BEGINNING_KIND, &[&encoded]))?;
        *self.beginning.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(manifest));
        Ok(())
    }

    /// The manifest of the state with which the run begins, if it is kept here.
    pub fn beginning(&self) -> Option<Arc<Manifest>> {
        read(&self.beginning).clone()
    }

    /// The parameters with which the run begins, every chunk checked; `None` if they are not kept here.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when a chunk is missing or damaged.
    pub fn load_beginning(&self) -> Result<Option<Vec<f32>>, StoreError> {
        let Some(manifest) = self.beginning() else { return Ok(None) };
        let mut theta = Vec::new();
        for (index, digest) in manifest.chunks.iter().enumerate().take(state::chunk_count(manifest.elements, 1)) {
            let chunk = self.whole_chunk(&manifest, index, digest)?;
            if index == 0 {
                theta.reserve_exact(usize::try_from(manifest.elements).unwrap_or_default());
            }
            extend_f32(&mut theta, &chunk);
        }
        Ok(Some(theta))
    }
}
