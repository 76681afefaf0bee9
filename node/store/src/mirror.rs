//! The mirror: a small sealed file with the version and the fingerprint that the database must have.
//!
//! Every change of the chain is one synced batch that raises a version number. Then this file is rewritten with the
//! same number, and only then is the change acknowledged. So a healthy store shows the same version on both sides, or
//! the database is one ahead because the process died in between. Any other difference means that one side lost an
//! acknowledged change, which RocksDB alone would not notice.

use crate::folder::Folder;
use crate::sealed::{Kind, read_sealed, write_sealed};
use crate::tip::{FORMAT, Tip};
use crate::{Part, StoreError};
use starling_protocol::Digest;

const KIND: Kind = *b"SLHEAD-2";
/// The kind of the files that releases before certificates wrote.
const KIND_OF_FORMAT_1: Kind = *b"SLHEAD-1";
const BYTES: usize = 8 + 32;

/// The content of the mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mirror {
    /// Number of the batch.
    version: u64,
    /// Digest over the whole tip after that batch.
    fingerprint: Digest,
}

impl Mirror {
    pub fn of(tip: &Tip) -> Self {
        Self { version: tip.version, fingerprint: tip.fingerprint() }
    }

    /// The content of the file; `None` when there is none.
    ///
    /// # Errors
    /// [`StoreError::Format`] for a folder of an older release, whose database is not even opened;
    /// [`StoreError::Damaged`] for any other fault.
    pub fn read(folder: &Folder) -> Result<Option<Self>, StoreError> {
        let path = folder.mirror();
        let limit = BYTES as u64;
        let payload = match read_sealed(&path, &KIND, limit, Part::Chain) {
            Ok(Some(payload)) => payload,
            Ok(None) => return Ok(None),
            Err(error) => {
                let older = read_sealed(&path, &KIND_OF_FORMAT_1, limit, Part::Chain);
                let format = StoreError::Format { path: folder.root().to_path_buf(), found: 1, known: FORMAT };
                return Err(if matches!(older, Ok(Some(_))) { format } else { error });
            }
        };
        let parse = || {
            let (version, fingerprint) = payload.split_at_checked(8)?;
            let fingerprint = Digest(fingerprint.try_into().ok()?);
            Some(Self { version: u64::from_le_bytes(version.try_into().ok()?), fingerprint })
        };
        let mirror = parse().ok_or_else(|| StoreError::damaged(Part::Chain, &path, "it is too short"))?;
        Ok(Some(mirror))
    }

    pub fn write(&self, folder: &Folder) -> Result<(), StoreError> {
        let parts: [&[u8]; 2] = [&self.version.to_le_bytes(), &self.fingerprint.0];
        write_sealed(&folder.tmp(), &folder.mirror(), &KIND, &parts)
    }

    /// Compares the two sides. `Ok(true)`: they agree. `Ok(false)`: the mirror must be written anew after a crash
    /// between the two writes.
    pub fn compare(mirror: Option<Self>, tip: &Tip, folder: &Folder) -> Result<bool, StoreError> {
        let lost = |detail: String| Err(StoreError::damaged(Part::Chain, &folder.mirror(), detail));
        let said = mirror.map_or(0, |m| m.version);
        if tip.version == said.saturating_add(1) {
            return Ok(false);
        }
        if tip.version != said {
            let side = if tip.version < said { "the database lost writes" } else { "the mirror is too old" };
            return lost(format!("the database is at version {} and the mirror at {said}: {side}", tip.version));
        }
        match mirror {
            Some(m) if m.fingerprint != tip.fingerprint() => {
                lost(format!("database and mirror tell different things of version {said}"))
            }
            _ => Ok(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_equal_version_or_one_batch_ahead_is_healthy() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::create(dir.path()).unwrap();
        let tip = |version| Tip { version, ..Tip::default() };
        let mirror = Some(Mirror::of(&tip(5)));
        assert!(Mirror::compare(mirror, &tip(5), &folder).unwrap());
        assert!(!Mirror::compare(mirror, &tip(6), &folder).unwrap());
        for version in [0, 4, 7, u64::MAX] {
            assert!(Mirror::compare(mirror, &tip(version), &folder).is_err(), "{version}");
        }
        assert!(Mirror::compare(None, &tip(0), &folder).unwrap());
        assert!(!Mirror::compare(None, &tip(1), &folder).unwrap());
        assert!(Mirror::compare(None, &tip(2), &folder).is_err());
        let other = Mirror { fingerprint: Digest([1; 32]), ..Mirror::of(&tip(5)) };
        assert!(Mirror::compare(Some(other), &tip(5), &folder).is_err());
    }

    #[test]
    fn a_folder_of_an_older_release_is_refused_and_not_called_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::create(dir.path()).unwrap();
        write_sealed(&folder.tmp(), &folder.mirror(), &KIND_OF_FORMAT_1, &[&[0; BYTES]]).unwrap();
        assert!(matches!(Mirror::read(&folder), Err(StoreError::Format { found: 1, .. })));
        std::fs::write(folder.mirror(), b"SLHEAD-1 but not sealed").unwrap();
        assert!(matches!(Mirror::read(&folder), Err(StoreError::Damaged(_))));
    }

    #[test]
    fn a_written_mirror_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::create(dir.path()).unwrap();
        assert_eq!(Mirror::read(&folder).unwrap(), None);
        let mirror = Mirror::of(&Tip { version: 9, ..Tip::default() });
        mirror.write(&folder).unwrap();
        assert_eq!(Mirror::read(&folder).unwrap(), Some(mirror));
    }
}
