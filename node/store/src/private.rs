//! The node's own state: AdamW moments, differences of lineages, and other data that only this node needs.
//!
//! It survives [`Store::reset_chain`], and the node can go on without it. It is two f32 a parameter, so it is written
//! and read piece by piece, and never in memory beside the vectors that it comes from.

use crate::sealed::{AtomicFile, Kind, SealedReader, SealedWriter};
use crate::store::Store;
use crate::{Part, StoreError, space};
use starling_protocol::limits::PARAMETERS_MAX;
use std::fs;
use std::path::PathBuf;

const KIND: Kind = *b"SLPRIV-1";
/// Two f32 a parameter, and a little beside them.
const BYTES_MAX: u64 = 8 * PARAMETERS_MAX + 4096;
const NAME_CHARS_MAX: usize = 32;
/// Names that are listed: more than a node ever has.
const NAMES_MAX: usize = 1024;

/// Private state on its way to the disk. The old state stays until [`PrivateWriter::commit`] returns, and if this is
/// dropped before.
pub struct PrivateWriter<'a> {
    store: &'a Store,
    file: SealedWriter,
}

/// Private state on its way from the disk. Bytes that were read are valid only once [`PrivateReader::finish`] has
/// succeeded.
pub struct PrivateReader {
    file: SealedReader,
    path: PathBuf,
}

impl Store {
    /// Begins to write `bytes` bytes under `name` (`[a-z0-9-]{1,32}`), in place of the old state.
    ///
    /// # Errors
    /// [`StoreError::Malformed`] for any other name, [`StoreError::TooLarge`] beyond two f32 a parameter of the largest
    /// model, [`StoreError::Full`] before the disk is full.
    pub fn write_private(&self, name: &str, bytes: u64) -> Result<PrivateWriter<'_>, StoreError> {
        let path = self.private_path(name)?;
        if bytes > BYTES_MAX {
            return Err(StoreError::TooLarge { what: "private state", bytes, limit: BYTES_MAX });
        }
        self.make_room(bytes);
        space::require(&path, bytes, self.options.reserve_bytes)?;
        let file = AtomicFile::create(&self.folder.tmp(), &path)?;
        Ok(PrivateWriter { store: self, file: SealedWriter::begin(file, &KIND, bytes)? })
    }

    /// Begins to read the state of `name`; `None` when there is none.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when its length or kind is wrong. The file is removed then, as it is when the reader
    /// finds damage, so that the next start is clean.
    pub fn read_private(&self, name: &str) -> Result<Option<PrivateReader>, StoreError> {
        let path = self.private_path(name)?;
        let opened = SealedReader::open(&path, &KIND, BYTES_MAX, Part::Private);
        Ok(note(&path, opened)?.map(|file| PrivateReader { file, path }))
    }

    /// Removes the state of `name`, if there is any.
    ///
    /// # Errors
    /// [`StoreError::Malformed`] for any other name, [`StoreError::Io`] when it cannot be removed.
    pub fn remove_private(&self, name: &str) -> Result<(), StoreError> {
        let path = self.private_path(name)?;
        match fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(StoreError::io("remove", &path, 0, e)),
            _ => Ok(()),
        }
    }

    /// Names of private states, ascending; only some of very many.
    ///
    /// # Errors
    /// [`StoreError::Io`] when the folder cannot be read.
    pub fn private_names(&self) -> Result<Vec<String>, StoreError> {
        let folder = self.folder.private();
        let failed = |e| StoreError::io("list", &folder, 0, e);
        let entries = fs::read_dir(&folder).map_err(failed)?;
        let names = entries.map(|entry| entry.map(|entry| entry.file_name().into_string().ok()));
        let found: Result<Vec<Option<String>>, _> = names.take(NAMES_MAX).collect();
        let mut found: Vec<String> = found.map_err(failed)?.into_iter().flatten().collect();
        found.retain(|name| self.private_path(name).is_ok());
        found.sort_unstable();
        Ok(found)
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

impl PrivateWriter<'_> {
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.file.write(bytes)
    }

    /// Writes values as little-endian f32.
    pub fn write_f32s(&mut self, values: &[f32]) -> Result<(), StoreError> {
        self.file.write_f32s(values)
    }

    /// Replaces the old state by the new one; durable when this returns.
    ///
    /// # Errors
    /// [`StoreError::Io`] also when not exactly the announced number of bytes was written; the old state stays then.
    pub fn commit(self) -> Result<(), StoreError> {
        self.store.note(self.file.commit())
    }

    /// Replaces the old state by the new one without waiting for the disk, for state that is written often and can be
    /// done without. A killed process leaves the old state or the new one. A power cut may leave neither, which the
    /// reader finds.
    ///
    /// # Errors
    /// As [`PrivateWriter::commit`].
    pub fn commit_unsynced(self) -> Result<(), StoreError> {
        self.store.note(self.file.commit_unsynced())
    }
}

impl PrivateReader {
    /// Bytes not yet read.
    pub fn remaining(&self) -> u64 {
        self.file.remaining()
    }

    /// Fills `bytes` with the next bytes.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when there are not so many left.
    pub fn read(&mut self, bytes: &mut [u8]) -> Result<(), StoreError> {
        note(&self.path, self.file.read(bytes))
    }

    /// Fills `values` with the next values, little-endian f32.
    ///
    /// # Errors
    /// As [`PrivateReader::read`].
    pub fn read_f32s(&mut self, values: &mut [f32]) -> Result<(), StoreError> {
        note(&self.path, self.file.fill_f32s(values))
    }

    /// Checks that the bytes read are those that were written.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when they are not, or when some are left to read.
    pub fn finish(self) -> Result<(), StoreError> {
        note(&self.path, self.file.finish())
    }
}

/// Removes a file that was found damaged, and passes the error on.
fn note<T>(path: &std::path::Path, found: Result<T, StoreError>) -> Result<T, StoreError> {
    if let Err(StoreError::Damaged(damage)) = &found {
        tracing::warn!(%damage, "private state is damaged");
        if let Err(e) = fs::remove_file(path) {
            let why = starling_words::of(&e);
            tracing::warn!(path = %path.display(), "could not remove damaged private state: {why}");
        }
    }
    found
}
