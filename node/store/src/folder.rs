//! The layout of a data folder, its access rights, and the lock that keeps a second process out.
//!
//! ```text
//! lock        taken with flock for as long as the store is open; names the process
//! run.spec    the encoded specification of the run, sealed
//! beginning   the manifest of the state that the run begins with, sealed; see `beginning`
//! born        the time of this very file's birth, which tells a copy of the folder; see `birth`
//! head        mirror of the database's version, sealed; see `mirror`
//! db/         RocksDB: records, certificates, candidates, snapshot manifests, head, vote state
//! updates/    encoded updates of records and candidates, named by digest
//! chunks/ab/  1 MiB chunks of the canonical state, named by digest
//! private/    the node's own state: optimizer, and differences of lineages that gave way; sealed
//! tmp/        files being written; emptied at each start
//! damaged/    the last chain that failed its checks, set aside
//! ballast     space to give back when the disk is full
//! ```

use crate::StoreError;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Paths of a data folder.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    root: PathBuf,
}

impl Folder {
    /// Makes the folder and its parts, readable by their owner only.
    pub fn create(root: &Path) -> Result<Self, StoreError> {
        let folder = Self { root: root.to_path_buf() };
        for dir in [folder.root.clone(), folder.chunks(), folder.updates(), folder.private(), folder.tmp()] {
            create_dir(&dir)?;
        }
        Ok(folder)
    }

    /// The folder as it is, to look into without its lock.
    pub fn at(root: &Path) -> Self {
        Self { root: root.to_path_buf() }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }
    pub fn lock_file(&self) -> PathBuf {
        self.root.join("lock")
    }
    pub fn run_spec(&self) -> PathBuf {
        self.root.join("run.spec")
    }
    pub fn born(&self) -> PathBuf {
        self.root.join("born")
    }
    pub fn beginning(&self) -> PathBuf {
        self.root.join("beginning")
    }
    pub fn mirror(&self) -> PathBuf {
        self.root.join("head")
    }
    pub fn db(&self) -> PathBuf {
        self.root.join("db")
    }
    pub fn updates(&self) -> PathBuf {
        self.root.join("updates")
    }
    pub fn chunks(&self) -> PathBuf {
        self.root.join("chunks")
    }
    pub fn private(&self) -> PathBuf {
        self.root.join("private")
    }
    pub fn tmp(&self) -> PathBuf {
        self.root.join("tmp")
    }
    pub fn damaged(&self) -> PathBuf {
        self.root.join("damaged")
    }
    pub fn ballast(&self) -> PathBuf {
        self.root.join("ballast")
    }

    /// Locks the folder for this process until the returned file is dropped.
    ///
    /// # Errors
    /// [`StoreError::InUse`] when another open store holds it, in this process or another.
    pub fn lock(&self) -> Result<File, StoreError> {
        let path = self.lock_file();
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|e| StoreError::io("open", &path, 0, e))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                // The pid only improves the message; an unreadable one is left out.
                let _ = (&mut file).take(32).read_to_string(&mut text);
                return Err(StoreError::InUse { path: self.root.clone(), pid: text.trim().parse().ok() });
            }
            Err(TryLockError::Error(e)) => return Err(StoreError::io("lock", &path, 0, e)),
        }
        let noted = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        if let Err(e) = noted {
            // The lock holds without the pid in it. A full disk is reported where space is needed.
            tracing::debug!(path = %path.display(), error = %e, "could not note the pid in the lock file");
        }
        Ok(file)
    }

    /// Removes the files that a killed process left unfinished.
    pub fn clear_tmp(&self) -> Result<(), StoreError> {
        for path in list(&self.tmp())? {
            fs::remove_file(&path).map_err(|e| StoreError::io("remove", &path, 0, e))?;
        }
        Ok(())
    }

    /// Moves database and mirror out of the way after damage. Only the last such set is kept, so that repeated damage
    /// does not fill the disk.
    pub fn set_aside(&self) -> Result<(), StoreError> {
        let aside = self.damaged();
        if aside.exists() {
            fs::remove_dir_all(&aside).map_err(|e| StoreError::io("remove", &aside, 0, e))?;
        }
        create_dir(&aside)?;
        // The mirror moves last: as long as it is there, a start after a crash still knows that there was a chain.
        for (from, name) in [(self.db(), "db"), (self.mirror(), "head")] {
            if from.exists() {
                fs::rename(&from, aside.join(name)).map_err(|e| StoreError::io("set aside", &from, 0, e))?;
            }
        }
        sync_dir(&aside)?;
        sync_dir(&self.root)
    }
}

/// Creates `dir` and its missing parents, with mode 0700.
pub(crate) fn create_dir(dir: &Path) -> Result<(), StoreError> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|e| StoreError::io("create", dir, 4096, e))
}

/// Makes names in `dir` durable: a power cut can undo a rename without this.
pub(crate) fn sync_dir(dir: &Path) -> Result<(), StoreError> {
    File::open(dir).and_then(|file| file.sync_all()).map_err(|e| StoreError::io("sync", dir, 0, e))
}

/// Paths in `dir`, in no particular order.
pub(crate) fn list(dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let entries = fs::read_dir(dir).map_err(|e| StoreError::io("list", dir, 0, e))?;
    entries.map(|entry| entry.map(|e| e.path()).map_err(|e| StoreError::io("list", dir, 0, e))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_second_lock_is_refused_and_names_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::create(&dir.path().join("node")).unwrap();
        let held = folder.lock().unwrap();
        match folder.lock() {
            Err(StoreError::InUse { pid, path }) => {
                assert_eq!(pid, Some(std::process::id()));
                assert_eq!(path, folder.root());
            }
            other => panic!("expected InUse, got {other:?}"),
        }
        drop(held);
        folder.lock().unwrap();
    }

    #[test]
    fn new_folders_are_for_their_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::create(&dir.path().join("node")).unwrap();
        for path in [folder.root().to_path_buf(), folder.private(), folder.chunks()] {
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700, "{}", path.display());
        }
    }
}
