//! The checkpoints that a node keeps: a folder with a folder for each. The oldest give way to new ones.

use crate::checkpoint::{CheckpointManifest, CheckpointSource, describe_checkpoint, export_checkpoint};
use crate::replace::{remove_dir, sibling};
use crate::store::Store;
use crate::{StoreError, space};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Checkpoints that the node has written itself are called so, with the round behind it. No other folder is ever
/// removed.
const PREFIX: &str = "round-";

/// A checkpoint among others.
pub struct Kept {
    pub path: PathBuf,
    /// The time at which it was written.
    pub written: SystemTime,
    pub manifest: Result<CheckpointManifest, StoreError>,
}

/// The folder of the checkpoint after this round, among those of a node.
pub fn checkpoint_path(folder: &Path, round: u64) -> PathBuf {
    folder.join(format!("{PREFIX}{round:06}"))
}

/// The checkpoints in a folder, the oldest first; none if the folder is not there.
pub fn list_checkpoints(folder: &Path) -> Vec<Kept> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir() && !is_hidden(path));
    let mut found: Vec<Kept> = paths
        .map(|path| {
            let manifest = describe_checkpoint(&path);
            let changed = fs::metadata(path.join("manifest.json")).or_else(|_| fs::metadata(&path));
            let written = changed.and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
            Kept { path, written, manifest }
        })
        .collect();
    found.sort_by(|a, b| (a.written, &a.path).cmp(&(b.written, &b.path)));
    found
}

/// The newest checkpoint in a folder of which at least the description can be read.
pub fn newest_checkpoint(folder: &Path) -> Option<(PathBuf, CheckpointManifest)> {
    let readable = |kept: Kept| kept.manifest.ok().map(|manifest| (kept.path, manifest));
    list_checkpoints(folder).into_iter().rev().find_map(readable)
}

/// Removes the oldest of a node's own checkpoints until `keep` of them are left with the one at `written`, which is the
/// newest whatever the clock says, and beside those that are `spared`. Those of `first` go before older ones. Folders
/// with other names stay, and so do those that cannot be read. Returns how many went.
///
/// # Errors
/// [`StoreError::Io`] for one that cannot be removed; the others stay, too.
pub fn keep_checkpoints(
    folder: &Path,
    keep: usize,
    written: &Path,
    (spared, first): (&[PathBuf], &[PathBuf]),
) -> Result<usize, StoreError> {
    let may_go = |path: &PathBuf| is_own(path) && path != written && !spared.contains(path);
    let own = |kept: &Kept| kept.manifest.is_ok() && may_go(&kept.path);
    let mut old: Vec<Kept> = list_checkpoints(folder).into_iter().filter(own).collect();
    // The order of time stays among the others.
    old.sort_by_key(|kept| !first.contains(&kept.path));
    let surplus = old.len().saturating_sub(keep.saturating_sub(1));
    old[..surplus].iter().try_for_each(|kept| remove_checkpoint(&kept.path))?;
    Ok(surplus)
}

/// Removes one of a node's own checkpoints if it is there; a folder with another name stays.
///
/// # Errors
/// [`StoreError::Io`] if it cannot be removed.
pub fn remove_checkpoint(path: &Path) -> Result<(), StoreError> {
    if !is_own(path) || !path.exists() {
        return Ok(());
    }
    // Nobody takes a half for a whole one.
    let going = sibling(path, "old")?;
    remove_dir(&going)?;
    fs::rename(path, &going).map_err(|e| StoreError::io("remove", path, 0, e))?;
    remove_dir(&going)
}

fn is_own(path: &Path) -> bool {
    name_of(path).starts_with(PREFIX)
}

impl Store {
    /// Writes a checkpoint into this store's folder. Old snapshots and updates give way to it if the folder has a bound
    /// that it fits into without them. One that `must` be there may take the folder over its bound, and the disk's last
    /// bytes.
    ///
    /// # Errors
    /// As [`export_checkpoint`]; [`StoreError::OverBound`] and [`StoreError::Full`] before anything is written.
    pub fn write_checkpoint(&self, dir: &Path, source: &CheckpointSource<'_>, must: bool) -> Result<(), StoreError> {
        if let Some(parent) = dir.parent() {
            sweep(parent);
        }
        let bytes = source.bytes();
        if !must {
            // Nothing old goes for a checkpoint that would not fit all the same.
            self.require_bound_without_old(bytes)?;
            space::require(self.path(), bytes, self.options.reserve_bytes)?;
        }
        self.make_room(bytes);
        if !must {
            self.require_bound(bytes)?;
        }
        export_checkpoint(dir, source)
    }
}

/// Removes what a process that was killed has left of checkpoints that it wrote or removed.
fn sweep(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = name_of(&path);
        let is_rest = name
            .strip_prefix('.')
            .is_some_and(|rest| rest.starts_with(PREFIX) && [".new", ".old"].iter().any(|end| rest.ends_with(end)));
        if is_rest && let Err(error) = remove_dir(&path) {
            tracing::warn!(%error, "the rest of an unfinished checkpoint stays");
        }
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn is_hidden(path: &Path) -> bool {
    name_of(path).starts_with('.')
}
