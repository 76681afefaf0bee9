//! The node's own state: AdamW moments and whatever else only this node needs.
//!
//! It survives [`Store::reset_chain`]; losing it is no reason to stop.

use crate::sealed::{Kind, read_sealed, write_sealed};
use crate::store::Store;
use crate::{Part, StoreError, space};
use starling_protocol::limits::PARAMETERS_MAX;
use std::fs;
use std::path::PathBuf;

const KIND: Kind = *b"SLPRIV-1";
/// Two f32 a parameter, and a little beside them.
const BYTES_MAX: u64 = 8 * PARAMETERS_MAX + 4096;
const NAME_CHARS_MAX: usize = 32;

impl Store {
    /// Writes `parts`, one after another, under `name` (`[a-z0-9-]{1,32}`), in place of what was there.
    pub fn put_private(&self, name: &str, parts: &[&[u8]]) -> Result<(), StoreError> {
        let path = self.private_path(name)?;
        let bytes: u64 = parts.iter().map(|part| part.len() as u64).sum();
        if bytes > BYTES_MAX {
            return Err(StoreError::TooLarge { what: "private state", bytes, limit: BYTES_MAX });
        }
        space::require(&path, bytes, self.options.reserve_bytes)?;
        self.note(write_sealed(&self.folder.tmp(), &path, &KIND, parts))
    }

    /// What was written under `name`; `None` when nothing was.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when it is not what was written. It is removed then, so that the next start is clean.
    pub fn private(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let path = self.private_path(name)?;
        let found = read_sealed(&path, &KIND, BYTES_MAX, Part::Private);
        if let Err(StoreError::Damaged(damage)) = &found {
            tracing::warn!(%damage, "private state is damaged");
            if let Err(e) = fs::remove_file(&path) {
                tracing::warn!(path = %path.display(), error = %e, "could not remove damaged private state");
            }
        }
        found
    }

    fn private_path(&self, name: &str) -> Result<PathBuf, StoreError> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || name.len() > NAME_CHARS_MAX || !name.chars().all(plain) {
            let why = format!("{name:?} is not 1 to {NAME_CHARS_MAX} of a-z, 0-9 and -");
            return Err(StoreError::Malformed { what: "the name of private state", why });
        }
        Ok(self.folder.private().join(name))
    }
}
