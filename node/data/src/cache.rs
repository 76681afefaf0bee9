//! The cache folder: shards, manifests and fingerprints. Each file is written whole or not at all.
//!
//! ```text
//! shards/HEX      tokens of a shard, named by its digest      shards/HEX.damaged   one that failed its check
//! manifests/HEX   an encoded manifest, named by its digest
//! files/HEX/      the opaque files of a data set            files/HEX.new/       one that is being laid out
//! sources/HEX     digest of the manifest made of the sources with this fingerprint
//! tmp/            files being written
//! lock            held by the process that prepares a corpus
//! ```
//!
//! Names are hexadecimal digests: no text of a peer or a source becomes part of a path. Several processes may use one
//! folder: files appear by rename, complete and synced, and never change after that.

use crate::error::DataError;
use crate::limits::MANIFEST_BYTES_MAX;
use crate::manifest::DataManifest;
use starling_protocol::Digest;
use std::fs::{self, File, Permissions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A file in tmp/ that is older than this is from a process that died: writing one takes seconds.
const LEFTOVER_AGE: Duration = Duration::from_secs(3600);

/// An open cache folder.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    root: PathBuf,
}

/// Released when dropped, and by the kernel when the process dies.
#[derive(Debug)]
pub(crate) struct CacheLock(#[expect(dead_code, reason = "held for its lock")] File);

impl Cache {
    /// Opens the folder, and creates missing parts.
    pub fn open(root: &Path) -> Result<Self, DataError> {
        for name in ["shards", "manifests", "files", "sources", "tmp"] {
            let folder = root.join(name);
            fs::create_dir_all(&folder).map_err(DataError::cache("make a folder", &folder))?;
        }
        Ok(Self { root: root.to_owned() })
    }

    pub fn shard_path(&self, digest: &Digest) -> PathBuf {
        self.root.join("shards").join(digest.to_string())
    }

    /// The folder of a data set's opaque files, by the digest of the manifest.
    pub fn files_folder(&self, manifest: &Digest) -> PathBuf {
        self.root.join("files").join(manifest.to_string())
    }

    /// Waits for the lock; calls `waiting` first if another process holds it.
    pub fn lock(&self, waiting: impl FnOnce()) -> Result<CacheLock, DataError> {
        let path = self.root.join("lock");
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(DataError::cache("open the lock", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                waiting();
                file.lock().map_err(DataError::cache("take the lock", &path))?;
            }
            // Some network file systems have no locks. Work may then be done twice, with the same result.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(DataError::cache("take the lock", &path)(error)),
        }
        Ok(CacheLock(file))
    }

    /// Removes old files of dead processes from tmp/. A failure does not matter.
    pub fn sweep(&self) {
        let Ok(entries) = fs::read_dir(self.root.join("tmp")) else { return };
        for entry in entries.flatten() {
            let modified = entry.metadata().and_then(|metadata| metadata.modified());
            let age = modified.ok().and_then(|time| SystemTime::now().duration_since(time).ok());
            if age.is_some_and(|age| age > LEFTOVER_AGE) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Writes a shard. A file of that name is replaced, since it may be damaged.
    pub fn put_shard(&self, digest: &Digest, bytes: &[u8]) -> Result<(), DataError> {
        self.write(&self.shard_path(digest), bytes)
    }

    /// Makes the names of all shards written so far durable.
    pub fn sync_shards(&self) -> Result<(), DataError> {
        sync_folder(&self.root.join("shards"))
    }

    /// Moves a damaged shard aside, so that it is never read or served again; returns its new path.
    pub fn set_aside(&self, digest: &Digest) -> Result<PathBuf, DataError> {
        let path = self.shard_path(digest);
        let aside = path.with_extension("damaged");
        match fs::rename(&path, &aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(DataError::cache("set a damaged shard aside", &path)(error))
            }
            _ => Ok(aside),
        }
    }

    pub fn put_manifest(&self, manifest: &DataManifest) -> Result<(), DataError> {
        let folder = self.root.join("manifests");
        self.write(&folder.join(manifest.digest().to_string()), &manifest.encode())?;
        sync_folder(&folder)
    }

    /// The manifest with this digest; `None` if it is missing or damaged.
    pub fn manifest(&self, digest: &Digest) -> Result<Option<DataManifest>, DataError> {
        let path = self.root.join("manifests").join(digest.to_string());
        let Some(bytes) = read_bounded(&path, MANIFEST_BYTES_MAX)? else { return Ok(None) };
        Ok(DataManifest::decode(&bytes).ok().filter(|manifest| manifest.digest() == *digest))
    }

    /// Remembers the manifest made of the sources with this fingerprint.
    pub fn put_fingerprint(&self, fingerprint: &Digest, manifest: &Digest) -> Result<(), DataError> {
        let folder = self.root.join("sources");
        self.write(&folder.join(fingerprint.to_string()), manifest.to_string().as_bytes())?;
        sync_folder(&folder)
    }

    /// The manifest made of the sources with this fingerprint, if they were prepared here.
    pub fn prepared(&self, fingerprint: &Digest) -> Result<Option<DataManifest>, DataError> {
        let path = self.root.join("sources").join(fingerprint.to_string());
        let Some(text) = read_bounded(&path, 64)? else { return Ok(None) };
        match std::str::from_utf8(&text).ok().and_then(Digest::from_hex) {
            Some(digest) => self.manifest(&digest),
            None => Ok(None),
        }
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), DataError> {
        let folder = self.root.join("tmp");
        let mut file = tempfile::NamedTempFile::new_in(&folder).map_err(DataError::cache("make a file", &folder))?;
        let written = file.write_all(bytes).and_then(|()| {
            // Read-only, since a mapped file that shrinks would end the process.
            file.as_file().set_permissions(Permissions::from_mode(0o444))?;
            file.as_file().sync_all()
        });
        written.map_err(DataError::cache("write", path))?;
        file.persist(path).map_err(|error| DataError::cache("write", path)(error.error))?;
        Ok(())
    }
}

fn sync_folder(folder: &Path) -> Result<(), DataError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(DataError::cache("sync", folder))
}

/// The file's bytes if it is there and has at most `max` of them.
fn read_bounded(path: &Path, max: usize) -> Result<Option<Vec<u8>>, DataError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(DataError::cache("read", path)(error)),
    };
    let mut bytes = Vec::new();
    file.take(max as u64 + 1).read_to_end(&mut bytes).map_err(DataError::cache("read", path))?;
    Ok((bytes.len() <= max).then_some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn the_lock_is_waited_for_and_said_to_be() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path()).unwrap();
        let held = cache.lock(|| panic!("nobody holds it")).unwrap();
        let (said, heard) = mpsc::channel();
        let waiter = std::thread::spawn({
            let cache = cache.clone();
            move || cache.lock(move || said.send(()).unwrap()).map(drop)
        });
        heard.recv().unwrap();
        drop(held);
        waiter.join().unwrap().unwrap();
    }

    #[test]
    fn damaged_small_files_are_as_good_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path()).unwrap();
        let key = Digest([1; 32]);
        assert_eq!(cache.prepared(&key).unwrap(), None);
        let manifest = Digest([2; 32]);
        cache.put_fingerprint(&key, &manifest).unwrap();
        assert_eq!(cache.prepared(&key).unwrap(), None);
        for garbage in [&b""[..], b"STARDATA", &[0; 100], &vec![0; MANIFEST_BYTES_MAX + 1]] {
            fs::write(folder.path().join("manifests").join(manifest.to_string()), garbage).unwrap();
            assert_eq!(cache.prepared(&key).unwrap(), None);
        }
        cache.put_fingerprint(&key, &manifest).unwrap();
        fs::remove_file(folder.path().join("sources").join(key.to_string())).unwrap();
        fs::write(folder.path().join("sources").join(key.to_string()), "../../x").unwrap();
        assert_eq!(cache.prepared(&key).unwrap(), None);
    }

    #[test]
    fn only_old_leftovers_are_swept() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path()).unwrap();
        let (old, new) = (folder.path().join("tmp/old"), folder.path().join("tmp/new"));
        fs::write(&old, "x").unwrap();
        fs::write(&new, "x").unwrap();
        File::options().write(true).open(&old).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        cache.sweep();
        assert!(!old.exists() && new.exists());
    }
}
