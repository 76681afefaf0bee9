//! Tells whether this folder is the one in which its vote state was made, or a copy of it.
//!
//! Two processes that go on from one vote state contradict each other, and so does a process that goes on from an old
//! copy. A file system notes when a file was born, and no program can set that time. So each process makes a small file
//! when it writes its first vote state, and the file says when it was born itself. Copies of it (`cp -a`, `tar`,
//! `rsync`, a restored backup) say the same and were born later. A restart in place, a reboot, and a move of the folder
//! within its file system do not change it. A copy of the whole disk, such as a machine's snapshot, cannot be told from
//! the original.
//!
//! Where the time of birth is not known, the file's number on its file system takes its place.

use crate::folder::Folder;
use crate::sealed::{AtomicFile, Kind, SealedWriter, read_sealed};
use crate::{Part, StoreError};
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

const KIND: Kind = *b"SLBORN-1";
/// Nanoseconds since 1970 u128, zero if not known; number u64.
const BYTES: u64 = 16 + 8;

/// The properties that tell a file from its copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Birth {
    at: u128,
    number: u64,
}

impl Birth {
    fn of(metadata: &Metadata) -> Self {
        let born = metadata.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        Self { at: born.map_or(0, |since| since.as_nanos()), number: metadata.ino() }
    }

    /// Whether both are of one file, by the properties that are known of both.
    fn is(&self, other: &Self) -> bool {
        if self.at != 0 && other.at != 0 { self.at == other.at } else { self.number == other.number }
    }

    fn encode(&self) -> Vec<u8> {
        [&self.at.to_le_bytes()[..], &self.number.to_le_bytes()].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (at, number) = bytes.split_first_chunk::<16>()?;
        Some(Self { at: u128::from_le_bytes(*at), number: u64::from_le_bytes(number.try_into().ok()?) })
    }
}

/// Notes that the content of the folder was made in it: a new file, born now, replaces the one before.
pub(crate) fn note(folder: &Folder) -> Result<(), StoreError> {
    let target = folder.born();
    let file = AtomicFile::create(&folder.tmp(), &target)?;
    let birth = Birth::of(&file.metadata()?);
    let mut writer = SealedWriter::begin(file, &KIND, BYTES)?;
    writer.write(&birth.encode())?;
    writer.commit()
}

/// Whether the folder is a copy of the one in which its note was made. A folder without a note, from before there were
/// notes, is no copy. Nor is one whose note is damaged: copying damages no note.
pub(crate) fn is_copied(folder: &Folder) -> Result<bool, StoreError> {
    let path = folder.born();
    let noted = match read_sealed(&path, &KIND, BYTES, Part::Private) {
        Ok(noted) => noted.and_then(|bytes| Birth::decode(&bytes)),
        Err(StoreError::Damaged(damage)) => {
            tracing::warn!(%damage, "whether this folder is a copy is not known");
            None
        }
        Err(e) => return Err(e),
    };
    let Some(noted) = noted else { return Ok(false) };
    Ok(!noted.is(&Birth::of(&metadata(&path)?)))
}

fn metadata(path: &Path) -> Result<Metadata, StoreError> {
    fs::metadata(path).map_err(|e| StoreError::io("read", path, 0, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_of_its_own_file_and_of_no_copy() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::create(&dir.path().join("node")).unwrap();
        assert!(!is_copied(&folder).unwrap(), "a folder from before there were notes");
        note(&folder).unwrap();
        assert!(!is_copied(&folder).unwrap());
        let first = fs::read(folder.born()).unwrap();
        note(&folder).unwrap();
        assert!(!is_copied(&folder).unwrap(), "anew in place");
        let newest = fs::read(folder.born()).unwrap();
        // A restored backup puts the file in its place, over the old one or beside it.
        fs::write(folder.born(), &first).unwrap();
        assert!(is_copied(&folder).unwrap());
        fs::write(folder.born(), &newest).unwrap();
        assert!(!is_copied(&folder).unwrap());
        let beside = dir.path().join("copy");
        fs::copy(folder.born(), &beside).unwrap();
        fs::rename(&beside, folder.born()).unwrap();
        assert!(is_copied(&folder).unwrap());
        fs::write(folder.born(), &newest[..20]).unwrap();
        assert!(!is_copied(&folder).unwrap(), "damage is no copy");
    }

    #[test]
    fn without_a_time_of_birth_the_number_counts() {
        let (old, new) = (Birth { at: 5, number: 7 }, Birth { at: 6, number: 7 });
        assert!(!old.is(&new) && old.is(&Birth { number: 8, ..old }));
        let unknown = Birth { at: 0, number: 7 };
        assert!(unknown.is(&old) && !unknown.is(&Birth { number: 8, ..old }));
        assert_eq!(Birth::decode(&old.encode()), Some(old));
        assert_eq!(Birth::decode(&[0; 20]), None);
    }
}
