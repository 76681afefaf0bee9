//! Replaces a folder as a whole.

use crate::StoreError;
use crate::folder::sync_dir;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// `.name.suffix` beside `dir`.
pub(crate) fn sibling(dir: &Path, suffix: &str) -> Result<PathBuf, StoreError> {
    let name = dir.file_name().ok_or_else(|| StoreError::NotACheckpoint { path: dir.to_path_buf() })?;
    Ok(dir.with_file_name(format!(".{}.{suffix}", name.to_string_lossy())))
}

/// Removes a folder if it is there.
pub(crate) fn remove_dir(dir: &Path) -> Result<(), StoreError> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(StoreError::io("remove", dir, 0, e)),
        _ => Ok(()),
    }
}

/// Puts the finished folder in its place. A folder that was there takes the finished one's former place.
pub(crate) fn install(staging: &Path, dir: &Path) -> Result<(), StoreError> {
    let parent = match dir.parent() {
        Some(parent) if parent != Path::new("") => parent.to_path_buf(),
        _ => PathBuf::from("."),
    };
    let renamed = if dir.exists() { exchange(staging, dir) } else { fs::rename(staging, dir) };
    renamed.map_err(|e| StoreError::io("rename to", dir, 4096, e))?;
    sync_dir(&parent)
}

/// Swaps two folders in one step where the file system can. Elsewhere `b` is missing for a moment.
fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        if renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).is_ok() {
            return Ok(());
        }
    }
    let aside = a.with_extension("old");
    if aside.exists() {
        fs::remove_dir_all(&aside)?;
    }
    fs::rename(b, &aside)?;
    fs::rename(a, b)?;
    fs::rename(&aside, a)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_folders_change_places() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        for (folder, text) in [(&a, "new"), (&b, "old")] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("file"), text).unwrap();
        }
        install(&a, &b).unwrap();
        assert_eq!(fs::read_to_string(b.join("file")).unwrap(), "new");
        assert_eq!(fs::read_to_string(a.join("file")).unwrap(), "old");
        remove_dir(&a).unwrap();
        remove_dir(&a).unwrap();
        install(&b, &a).unwrap();
        assert!(a.join("file").exists() && !b.exists());
    }
}
