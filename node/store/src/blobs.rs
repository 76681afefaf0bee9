//! Files named by the digest of their content.
//!
//! The bytes are checked at every reading, so a damaged file counts as missing. It is removed when noticed, so that a
//! good copy can take its place.

use crate::folder::{create_dir, list, sync_dir};
use crate::sealed::AtomicFile;
use crate::{Part, StoreError, threads};
use starling_protocol::Digest;
use starling_protocol::digest::ByteHasher;
use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A folder of such files.
pub(crate) struct Blobs {
    dir: PathBuf,
    tmp: PathBuf,
    /// Whether files lie in 256 sub-folders by the first byte of their digest.
    fan_out: bool,
    /// Makes the hasher that names a file of so many bytes.
    hasher: fn(u64) -> ByteHasher,
    /// Bytes of the largest file.
    limit: u64,
}

/// Files that are synced at a time, each on a thread of its own: the disk orders and merges what is under way together.
const SYNCS_AT_ONCE: usize = 8;
/// Bytes in memory at a time while a file is checked that will be read piece by piece.
const CHECKED_BYTES: usize = 64 << 10;

impl Blobs {
    pub fn new(dir: PathBuf, tmp: PathBuf, fan_out: bool, limit: u64, hasher: fn(u64) -> ByteHasher) -> Self {
        Self { dir, tmp, fan_out, limit, hasher }
    }

    pub fn path(&self, digest: &Digest) -> PathBuf {
        let name = digest.to_string();
        if self.fan_out { self.dir.join(&name[..2]).join(&name[2..]) } else { self.dir.join(name) }
    }

    /// The digest that names `bytes` here.
    pub fn digest_of(&self, bytes: &[u8]) -> Digest {
        let mut hasher = (self.hasher)(bytes.len() as u64);
        hasher.put(bytes);
        hasher.finish()
    }

    /// Writes `bytes`, which have this digest, unless they are there already. They are durable only after
    /// [`Blobs::sync`] over the same digests. Returns whether anything was written.
    pub fn put(&self, digest: &Digest, bytes: &[u8]) -> Result<bool, StoreError> {
        self.write(digest, bytes, AtomicFile::commit_unsynced_name)
    }

    /// The same without waiting for the disk, which takes longer for each of many files than for all together. They are durable only
    /// after [`Blobs::sync_files`]; a power cut before may leave a damaged one under its name, which is noticed as any other.
    pub fn put_unsynced(&self, digest: &Digest, bytes: &[u8]) -> Result<bool, StoreError> {
        self.write(digest, bytes, AtomicFile::commit_unsynced)
    }

    fn write(
        &self,
        digest: &Digest,
        bytes: &[u8],
        commit: fn(AtomicFile) -> Result<(), StoreError>,
    ) -> Result<bool, StoreError> {
        let path = self.path(digest);
        if holds(&path, bytes) {
            return Ok(false);
        }
        if let (true, Some(parent)) = (self.fan_out, path.parent()) {
            create_dir(parent)?;
        }
        let mut file = AtomicFile::create(&self.tmp, &path)?;
        file.write(bytes)?;
        commit(file)?;
        Ok(true)
    }

    /// Begins a file whose digest is not known yet.
    pub fn draft(&self) -> Result<AtomicFile, StoreError> {
        AtomicFile::create(&self.tmp, &self.dir)
    }

    /// Gives a file that [`Blobs::draft`] began its name. It is durable only after [`Blobs::sync`] over the same digest.
    pub fn put_draft(&self, draft: AtomicFile, digest: &Digest) -> Result<(), StoreError> {
        let path = self.path(digest);
        if let (true, Some(parent)) = (self.fan_out, path.parent()) {
            create_dir(parent)?;
        }
        draft.commit_as(path)
    }

    /// Makes these files and their names durable. All are synced, also those that were here before: what has put them there may not have
    /// come so far.
    pub fn sync_files(&self, digests: &[Digest]) -> Result<(), StoreError> {
        self.sync_contents(digests, || Ok(()))?;
        self.sync(digests)
    }

    /// Makes the contents of these files durable; [`Blobs::sync`] does so with their names. Ends when `goes_on` fails, which is asked
    /// before each file.
    pub fn sync_contents(
        &self,
        digests: &[Digest],
        goes_on: impl Fn() -> Result<(), StoreError> + Sync,
    ) -> Result<(), StoreError> {
        threads::each(("sync", self.dir.as_path()), SYNCS_AT_ONCE, digests.len(), |n, _| {
            goes_on()?;
            let Some(digest) = digests.get(n) else { return Ok(()) };
            let path = self.path(digest);
            let file = File::open(&path).map_err(|e| StoreError::io("open", &path, 0, e))?;
            // The length is part of what is needed to read the data, so this syncs it as well.
            file.sync_data().map_err(|e| StoreError::io("sync", &path, self.limit, e))
        })
    }

    /// Makes the names of these files durable.
    pub fn sync<'a>(&self, digests: impl IntoIterator<Item = &'a Digest>) -> Result<(), StoreError> {
        if self.fan_out {
            let folders: BTreeSet<_> =
                digests.into_iter().filter_map(|d| Some(self.path(d).parent()?.to_owned())).collect();
            folders.iter().try_for_each(|folder| sync_dir(folder))?;
        }
        sync_dir(&self.dir)
    }

    /// The bytes with this digest; `None` when they are not here.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when the file holds other bytes. It is removed.
    pub fn get(&self, digest: &Digest) -> Result<Option<Vec<u8>>, StoreError> {
        let mut bytes = Vec::new();
        let read = |file: &mut File, length: u64| {
            bytes.reserve_exact(length as usize);
            file.take(length).read_to_end(&mut bytes)?;
            Ok(self.digest_of(&bytes))
        };
        let found = self.checked(digest, read)?;
        Ok(found.map(|_| bytes))
    }

    /// The file with this digest, at its beginning, and its length. Its bytes were just checked. For readers that take
    /// it piece by piece; the check works by pieces too, so that little of a large file is in memory. It can be read to
    /// its end even when it is removed meanwhile.
    ///
    /// # Errors
    /// As [`Blobs::get`].
    pub fn open(&self, digest: &Digest) -> Result<Option<(File, u64)>, StoreError> {
        let read = |file: &mut File, length: u64| {
            let (mut hasher, mut left) = ((self.hasher)(length), length);
            let mut piece = vec![0; CHECKED_BYTES.min(usize::try_from(length).unwrap_or(CHECKED_BYTES))];
            while left > 0 {
                piece.truncate(usize::try_from(left).unwrap_or(CHECKED_BYTES));
                file.read_exact(&mut piece)?;
                hasher.put(&piece);
                left -= piece.len() as u64;
            }
            Ok(hasher.finish())
        };
        let Some((mut file, length)) = self.checked(digest, read)? else { return Ok(None) };
        file.rewind().map_err(|e| StoreError::io("read", &self.path(digest), 0, e))?;
        Ok(Some((file, length)))
    }

    /// The bytes at this place of the file with this digest, which are not checked; `None` when it is not here. The
    /// caller bounds the place.
    ///
    /// # Errors
    /// When the file cannot be read, or ends before.
    pub fn read(&self, digest: &Digest, place: Range<u64>) -> Result<Option<Vec<u8>>, StoreError> {
        let path = self.path(digest);
        let failed = |e| StoreError::io("read", &path, 0, e);
        let Some(mut file) = opened(&path)? else { return Ok(None) };
        let mut bytes = vec![0; usize::try_from(place.end.saturating_sub(place.start)).unwrap_or(0)];
        file.seek(SeekFrom::Start(place.start)).map_err(failed)?;
        file.read_exact(&mut bytes).map_err(failed)?;
        Ok(Some(bytes))
    }

    /// Bytes of the file with this digest, if it is here.
    pub fn length(&self, digest: &Digest) -> Option<u64> {
        fs::metadata(self.path(digest)).ok().map(|file| file.len())
    }

    /// The file with this digest and its length, if the digest that `read` computes of its bytes is the same.
    pub fn checked(
        &self,
        digest: &Digest,
        read: impl FnOnce(&mut File, u64) -> io::Result<Digest>,
    ) -> Result<Option<(File, u64)>, StoreError> {
        let path = self.path(digest);
        let failed = |e| StoreError::io("read", &path, 0, e);
        let Some(mut file) = opened(&path)? else { return Ok(None) };
        let length = file.metadata().map_err(failed)?.len();
        if length <= self.limit && read(&mut file, length).map_err(failed)? == *digest {
            return Ok(Some((file, length)));
        }
        self.remove(&path);
        Err(StoreError::damaged(Part::State, &path, "its bytes do not have the digest that names it"))
    }

    /// Whether there is a file of this name; its bytes are not looked at.
    pub fn contains(&self, digest: &Digest) -> bool {
        self.path(digest).exists()
    }

    /// Removes every file that is not in `keep`. A file that cannot be removed is left for the next time.
    pub fn retain(&self, keep: &HashSet<Digest>) -> Result<u64, StoreError> {
        let mut removed = 0;
        for path in self.files()? {
            if self.named(&path).is_none_or(|digest| !keep.contains(&digest)) {
                removed += u64::from(self.remove(&path));
            }
        }
        Ok(removed)
    }

    /// Takes every file that is not in `keep` out of the folder, for [`Blobs::discard`]: unlike the removal of a large file, this takes no
    /// time. A start removes what a killed process leaves.
    pub fn take_out(&self, keep: &HashSet<Digest>) -> Result<Vec<PathBuf>, StoreError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut out = Vec::new();
        for path in self.files()? {
            if self.named(&path).is_some_and(|digest| keep.contains(&digest)) {
                continue;
            }
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let aside = self.tmp.join(format!(".old-{}-{number}", std::process::id()));
            match fs::rename(&path, &aside) {
                Ok(()) => out.push(aside),
                Err(e) => {
                    let why = starling_words::of(&e);
                    tracing::warn!(path = %path.display(), "could not take out a file that nothing needs: {why}");
                }
            }
        }
        Ok(out)
    }

    /// Removes files that were taken out.
    pub fn discard(&self, files: &[PathBuf]) {
        files.iter().for_each(|path| {
            self.remove(path);
        });
    }

    /// The paths of all files.
    fn files(&self) -> Result<Vec<PathBuf>, StoreError> {
        let mut folders = if self.fan_out { list(&self.dir)? } else { vec![self.dir.clone()] };
        folders.retain(|folder| folder.is_dir());
        Ok(folders.iter().map(|folder| list(folder)).collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// The digest that a path stands for.
    fn named(&self, path: &Path) -> Option<Digest> {
        let name = path.file_name()?.to_str()?;
        if !self.fan_out {
            return Digest::from_hex(name);
        }
        let folder = path.parent()?.file_name()?.to_str()?;
        Digest::from_hex(&format!("{folder}{name}"))
    }

    fn remove(&self, path: &Path) -> bool {
        let removed = fs::remove_file(path);
        if let Err(e) = &removed {
            let why = starling_words::of(e);
            tracing::warn!(path = %path.display(), "could not remove a file that is no longer needed: {why}");
        }
        removed.is_ok()
    }
}

/// The file at this path, if there is one.
fn opened(path: &Path) -> Result<Option<File>, StoreError> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(StoreError::io("open", path, 0, e)),
    }
}

/// Whether the file holds exactly these bytes. A damaged one must not stand in for a good one.
fn holds(path: &Path, bytes: &[u8]) -> bool {
    let same = || -> io::Result<bool> {
        let mut file = File::open(path)?;
        if file.metadata()?.len() != bytes.len() as u64 {
            return Ok(false);
        }
        let mut block = vec![0u8; bytes.len().min(1 << 20)];
        for part in bytes.chunks(1 << 20) {
            file.read_exact(&mut block[..part.len()])?;
            if block[..part.len()] != *part {
                return Ok(false);
            }
        }
        Ok(true)
    };
    same().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOMAIN: &str = "starling test blob";

    fn digest(bytes: &[u8]) -> Digest {
        Digest::of(DOMAIN, &[bytes])
    }

    const LIMIT: u64 = 3 * CHECKED_BYTES as u64;

    fn blobs(fan_out: bool) -> (tempfile::TempDir, Blobs) {
        let dir = tempfile::tempdir().unwrap();
        for name in ["blobs", "tmp"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let blobs = Blobs::new(dir.path().join("blobs"), dir.path().join("tmp"), fan_out, LIMIT, |bytes| {
            ByteHasher::new(DOMAIN, bytes)
        });
        (dir, blobs)
    }

    #[test]
    fn bytes_are_found_by_digest_and_written_once() {
        for fan_out in [false, true] {
            let (_dir, blobs) = blobs(fan_out);
            let id = digest(b"bytes");
            assert_eq!(blobs.get(&id).unwrap(), None);
            assert!(blobs.put(&id, b"bytes").unwrap());
            assert!(!blobs.put(&id, b"bytes").unwrap());
            blobs.sync([&id]).unwrap();
            assert_eq!(blobs.get(&id).unwrap().unwrap(), b"bytes");
            let (mut file, length) = blobs.open(&id).unwrap().unwrap();
            assert_eq!(length, 5);
            blobs.retain(&HashSet::new()).unwrap();
            let mut read = Vec::new();
            file.read_to_end(&mut read).unwrap();
            assert_eq!(read, b"bytes", "it is read to its end though it is gone");
            assert!(blobs.open(&id).unwrap().is_none());
        }
    }

    /// Before, the whole file was read to be checked, however large: an update may be as large as the model.
    #[test]
    fn a_file_that_is_opened_is_checked_piece_by_piece() {
        let (_dir, blobs) = blobs(false);
        for length in [0, 1, CHECKED_BYTES - 1, CHECKED_BYTES, CHECKED_BYTES + 1, LIMIT as usize] {
            let bytes: Vec<u8> = (0..length).map(|at| (at / 3) as u8).collect();
            let id = digest(&bytes);
            blobs.put(&id, &bytes).unwrap();
            let (mut file, of_file) = blobs.open(&id).unwrap().unwrap();
            let mut read = Vec::new();
            file.read_to_end(&mut read).unwrap();
            assert!(of_file == length as u64 && read == bytes, "{length}");
            let Some(last) = read.last_mut() else { continue };
            *last ^= 1;
            fs::write(blobs.path(&id), &read).unwrap();
            assert!(matches!(blobs.open(&id), Err(StoreError::Damaged(_))), "{length}");
        }
    }

    #[test]
    fn many_files_are_synced_together_and_a_missing_one_is_noticed() {
        let (_dir, blobs) = blobs(true);
        let ids: Vec<_> = (0..40u8).map(|n| digest(&[n])).collect();
        for (n, id) in (0..).zip(&ids) {
            assert!(blobs.put_unsynced(id, &[n]).unwrap());
            assert!(!blobs.put_unsynced(id, &[n]).unwrap());
        }
        blobs.sync_files(&ids).unwrap();
        blobs.sync_files(&[]).unwrap();
        assert_eq!(blobs.get(&ids[33]).unwrap().unwrap(), [33]);
        fs::remove_file(blobs.path(&ids[33])).unwrap();
        assert!(matches!(blobs.sync_files(&ids), Err(StoreError::Io { action: "open", .. })));
    }

    #[test]
    fn files_are_taken_out_before_they_are_removed() {
        for fan_out in [false, true] {
            let (dir, blobs) = blobs(fan_out);
            let ids: Vec<_> = (0..4u8).map(|n| digest(&[n])).collect();
            for (n, id) in (0..).zip(&ids) {
                blobs.put(id, &[n]).unwrap();
            }
            let out = blobs.take_out(&HashSet::from([ids[0], ids[3]])).unwrap();
            assert_eq!([0, 1, 2, 3].map(|n| blobs.contains(&ids[n])), [true, false, false, true]);
            // A file that comes back under its name stays.
            assert!(blobs.put(&ids[1], &[1]).unwrap());
            let waiting = || fs::read_dir(dir.path().join("tmp")).unwrap().count();
            assert_eq!((out.len(), waiting()), (2, 2));
            blobs.discard(&out);
            assert_eq!((blobs.contains(&ids[1]), waiting()), (true, 0));
        }
    }

    #[test]
    fn syncing_ends_when_it_is_not_to_go_on() {
        let (_dir, blobs) = blobs(true);
        let asked = AtomicU64::new(0);
        let goes_on = || match asked.fetch_add(1, Ordering::Relaxed) {
            0 => Ok(()),
            _ => Err(StoreError::GivenUp { seq: 3 }),
        };
        let ids: Vec<_> = (0..1000u32).map(|n| digest(&n.to_le_bytes())).collect();
        blobs.put(&ids[0], &0u32.to_le_bytes()).unwrap();
        let ended = blobs.sync_contents(&ids[..1], goes_on).and_then(|()| blobs.sync_contents(&ids, goes_on));
        assert!(matches!(ended, Err(StoreError::GivenUp { seq: 3 })), "no file is missed");
        assert!(asked.into_inner() <= 1 + SYNCS_AT_ONCE as u64);
    }

    #[test]
    fn damage_is_reported_once_and_a_good_copy_takes_its_place() {
        let (_dir, blobs) = blobs(true);
        let id = digest(b"bytes");
        for bad in [&b"bytez"[..], b"byte", b"", &[0; LIMIT as usize + 1]] {
            blobs.put(&id, b"bytes").unwrap();
            fs::write(blobs.path(&id), bad).unwrap();
            assert!(matches!(blobs.open(&id), Err(StoreError::Damaged(_))));
            assert_eq!(blobs.get(&id).unwrap(), None);
        }
        fs::create_dir_all(blobs.path(&id).parent().unwrap()).unwrap();
        fs::write(blobs.path(&id), b"bytez").unwrap();
        assert!(blobs.put(&id, b"bytes").unwrap(), "a damaged file is replaced");
        assert_eq!(blobs.get(&id).unwrap().unwrap(), b"bytes");
    }

    #[test]
    fn retaining_removes_the_rest() {
        for fan_out in [false, true] {
            let (_dir, blobs) = blobs(fan_out);
            let ids: Vec<_> = (0..20u8).map(|i| digest(&[i])).collect();
            for (i, id) in (0..).zip(&ids) {
                blobs.put(id, &[i]).unwrap();
            }
            let keep: HashSet<_> = ids.iter().take(5).copied().collect();
            assert_eq!(blobs.retain(&keep).unwrap(), 15);
            assert_eq!(ids.iter().filter(|id| blobs.contains(id)).count(), 5);
        }
    }
}
