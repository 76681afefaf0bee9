//! Free space, and the ballast that lets a node on a full disk still end cleanly.

use crate::StoreError;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The room on the disk of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// Bytes that this user may still write.
    pub free: u64,
    /// Whether less than the reserve is free: snapshots and adoptions are refused, records are still written.
    pub low: bool,
}

/// Bytes that an unprivileged user may still write on the file system of `path`.
pub(crate) fn free_bytes(path: &Path) -> io::Result<u64> {
    // The path may not exist yet: its nearest existing parent is on the same file system.
    let existing = path.ancestors().find(|p| p.exists()).unwrap_or(Path::new("."));
    let stat = rustix::fs::statvfs(existing)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Bytes that the files in the folder at `path` take, which need not exist yet, and bytes that this user may still
/// write beside them.
///
/// # Errors
/// [`StoreError::Io`] when the file system does not tell its free space.
pub fn folder_and_free(path: &Path) -> Result<(u64, u64), StoreError> {
    let free = free_bytes(path).map_err(|e| StoreError::io("measure the free space of", path, 0, e))?;
    Ok((folder_bytes(path, None), free))
}

/// Bytes of the files below `folder`, but for those below `except`. Files that come or go meanwhile may count or not,
/// and a folder that cannot be read counts as empty.
pub(crate) fn folder_bytes(folder: &Path, except: Option<&Path>) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let of_entry = |entry: fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() && Some(entry.path().as_path()) != except => folder_bytes(&entry.path(), except),
        Ok(found) if found.is_file() => found.len(),
        _ => 0,
    };
    entries.flatten().map(of_entry).fold(0, u64::saturating_add)
}

/// A file that only takes up space, to be deleted when the disk is full.
#[derive(Debug)]
pub(crate) struct Ballast {
    path: PathBuf,
    bytes: u64,
}

impl Ballast {
    pub fn new(path: PathBuf, bytes: u64) -> Self {
        Self { path, bytes }
    }

    /// Creates the file if it is missing and the disk has room for it beside `reserve`. A store works without it.
    pub fn prepare(&self, reserve: u64) {
        let present = fs::metadata(&self.path).is_ok_and(|m| m.len() == self.bytes);
        if present || self.bytes == 0 {
            return;
        }
        let room = free_bytes(&self.path).unwrap_or(0);
        if room < self.bytes.saturating_add(reserve) {
            tracing::warn!(free = room, "too little free space for the ballast file; the disk is nearly full");
            return;
        }
        if let Err(e) = self.fill() {
            let why = starling_words::of(&e);
            tracing::warn!(path = %self.path.display(), "could not make the ballast file: {why}");
            let _ = fs::remove_file(&self.path);
        }
    }

    fn fill(&self) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&self.path)?;
        let allocated = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, self.bytes);
        if allocated.is_ok() {
            return Ok(());
        }
        // On a file system without fallocate the bytes are written.
        let block = vec![0u8; 1 << 20];
        let mut left = self.bytes;
        while left > 0 {
            let n = left.min(block.len() as u64) as usize;
            file.write_all(&block[..n])?;
            left -= n as u64;
        }
        Ok(())
    }

    /// Gives the space back. Returns whether there was any to give.
    pub fn release(&self) -> bool {
        let there = fs::remove_file(&self.path).is_ok();
        if there {
            tracing::warn!(bytes = self.bytes, "the disk is full: released the ballast file so that work can end");
        }
        there
    }
}

impl StoreError {
    /// Returns the error for an I/O error at `path`; a full disk or a spent quota becomes [`StoreError::Full`] with
    /// `needed` bytes.
    pub(crate) fn io(action: &'static str, path: &Path, needed: u64, source: io::Error) -> Self {
        if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
            return Self::full(path, needed);
        }
        Self::Io { action, path: path.to_path_buf(), source }
    }

    pub(crate) fn full(path: &Path, needed: u64) -> Self {
        let free = free_bytes(path).unwrap_or(0);
        Self::Full { path: path.to_path_buf(), needed, free }
    }
}

/// Refuses a write before the disk is full: `needed` bytes are to be written at `path`, and `reserve` must stay free.
pub(crate) fn require(path: &Path, needed: u64, reserve: u64) -> Result<(), StoreError> {
    let free = free_bytes(path).map_err(|e| StoreError::io("measure the free space of", path, 0, e))?;
    if free < needed.saturating_add(reserve) {
        return Err(StoreError::Full { path: path.to_path_buf(), needed: needed.saturating_add(reserve), free });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ballast_takes_its_space_and_gives_it_back_once() {
        let dir = tempfile::tempdir().unwrap();
        let ballast = Ballast::new(dir.path().join("ballast"), 3 << 20);
        ballast.prepare(0);
        assert_eq!(fs::metadata(dir.path().join("ballast")).unwrap().len(), 3 << 20);
        assert!(ballast.release());
        assert!(!ballast.release());
    }

    #[test]
    fn no_ballast_where_it_would_eat_the_reserve() {
        let dir = tempfile::tempdir().unwrap();
        let ballast = Ballast::new(dir.path().join("ballast"), 1 << 20);
        ballast.prepare(u64::MAX / 2);
        assert!(!dir.path().join("ballast").exists());
    }

    #[test]
    fn a_folder_has_the_bytes_of_its_files_at_any_depth() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("node");
        let (taken, free) = folder_and_free(&home).unwrap();
        assert!(taken == 0 && free > 0, "it is not there yet");
        fs::create_dir_all(home.join("chunks/ab")).unwrap();
        fs::write(home.join("chunks/ab/one"), [0; 1000]).unwrap();
        fs::write(home.join("two"), [0; 30]).unwrap();
        std::os::unix::fs::symlink(home.join("chunks/ab/one"), home.join("three")).unwrap();
        assert_eq!(folder_and_free(&home).unwrap().0, 1030);
        assert_eq!(folder_bytes(&home, Some(&home.join("chunks"))), 30);
    }

    #[test]
    fn asking_for_more_than_there_is_says_how_much() {
        let dir = tempfile::tempdir().unwrap();
        match require(dir.path(), u64::MAX / 2, 10) {
            Err(StoreError::Full { needed, .. }) => assert_eq!(needed, u64::MAX / 2 + 10),
            other => panic!("expected Full, got {other:?}"),
        }
    }
}
