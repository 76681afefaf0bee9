//! Models for other programs: a folder with the weights and small files, or the weights alone.
//!
//! Everything is written to a hidden folder beside the target first, and appears when all of it is on the disk. That
//! folder's name follows from the target's. So a failure leaves nothing, and what a killed export has left goes with the
//! next one.

use crate::folder::sync_dir;
use crate::replace::{remove_dir, sibling};
use crate::sealed::AtomicFile;
use crate::weights::{TensorView, export_safetensors};
use crate::{StoreError, space};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The weights' file in an exported folder, unless it has another name.
pub const MODEL_FILE: &str = "model.safetensors";

/// A model to be exported.
#[derive(Clone, Copy)]
pub struct Model<'a> {
    pub tensors: &'a [TensorView<'a>],
    /// Name of the weights' file in an exported folder.
    pub file: &'a str,
    /// Written into the header of the weights' file.
    pub metadata: &'a BTreeMap<String, String>,
    /// Small files beside the weights, by name.
    pub beside: &'a [(String, Vec<u8>)],
}

impl Model<'_> {
    fn bytes(&self) -> u64 {
        let values: u64 = self.tensors.iter().map(TensorView::bytes).sum();
        let beside: u64 = self.beside.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        values + beside + (1 << 20)
    }
}

/// Writes the model into the folder `dir`, which is made if it is not there. Files of the same names are replaced, each as
/// a whole; others stay.
///
/// # Errors
/// [`StoreError::Exists`] when `dir` is no folder, [`StoreError::Full`] when there is no room.
pub fn export_folder(dir: &Path, model: &Model<'_>) -> Result<(), StoreError> {
    if dir.exists() && !dir.is_dir() {
        return Err(StoreError::Exists { path: dir.to_path_buf() });
    }
    staged(dir, model, |staging| {
        export_safetensors(&staging.join(model.file), model.tensors, model.metadata)?;
        for (name, bytes) in model.beside {
            let mut file = AtomicFile::create_shared(staging, &staging.join(name))?;
            file.write(bytes)?;
            file.commit_unsynced_name()?;
        }
        sync_dir(staging)?;
        if !dir.exists() {
            fs::rename(staging, dir).map_err(|e| StoreError::io("rename to", dir, 4096, e))?;
            return sync_dir(&parent_of(dir));
        }
        // The weights come last: until then the folder has those of before.
        for name in model.beside.iter().map(|(name, _)| name.as_str()).chain([model.file]) {
            let target = dir.join(name);
            fs::rename(staging.join(name), &target).map_err(|e| StoreError::io("rename to", &target, 4096, e))?;
        }
        sync_dir(dir)
    })
}

/// Writes the weights alone to the file `path`, and replaces one that is there.
///
/// # Errors
/// [`StoreError::Exists`] when `path` is a folder, [`StoreError::Full`] when there is no room.
pub fn export_weights(path: &Path, model: &Model<'_>) -> Result<(), StoreError> {
    if path.is_dir() {
        return Err(StoreError::Exists { path: path.to_path_buf() });
    }
    staged(path, model, |staging| {
        let made = staging.join(MODEL_FILE);
        export_safetensors(&made, model.tensors, model.metadata)?;
        fs::rename(&made, path).map_err(|e| StoreError::io("rename to", path, 4096, e))?;
        sync_dir(&parent_of(path))
    })
}

/// Removes what an export to `target` that was ended has left.
///
/// # Errors
/// [`StoreError::Io`] when it cannot be removed.
pub fn abandon_export(target: &Path) -> Result<(), StoreError> {
    remove_dir(&staging_of(target)?)
}

fn staged(
    target: &Path,
    model: &Model<'_>,
    work: impl FnOnce(&Path) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let staging = staging_of(target)?;
    remove_dir(&staging)?;
    space::require(&parent_of(target), model.bytes(), 0)?;
    fs::create_dir(&staging).map_err(|e| StoreError::io("create", &staging, 4096, e))?;
    let written = work(&staging);
    remove_dir(&staging).and(written)
}

fn staging_of(target: &Path) -> Result<PathBuf, StoreError> {
    sibling(target, "new").map_err(|_| StoreError::Exists { path: target.to_path_buf() })
}

fn parent_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::read_safetensors;
    use starling_protocol::run::TensorType;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = entries.collect();
        names.sort();
        names
    }

    #[test]
    fn a_folder_appears_as_a_whole_and_is_written_over_file_by_file() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("out");
        let metadata = BTreeMap::new();
        let export = |value: f32, config: &str| {
            let tensors = [TensorView { name: "a", shape: &[1], dtype: TensorType::F32, values: &[value] }];
            let beside = [("config.json".to_owned(), config.as_bytes().to_vec())];
            export_folder(&dir, &Model { tensors: &tensors, file: MODEL_FILE, metadata: &metadata, beside: &beside })
        };
        // The rest of a killed export is no hindrance.
        fs::create_dir(parent.path().join(".out.new")).unwrap();
        fs::write(parent.path().join(".out.new/.tmp-1-0"), b"half").unwrap();
        export(1.0, "one").unwrap();
        assert_eq!(names(parent.path()), ["out"]);
        assert_eq!(names(&dir), ["config.json", MODEL_FILE]);
        fs::write(dir.join("thesis.txt"), b"years of work").unwrap();
        export(2.0, "two").unwrap();
        assert_eq!(read_safetensors(&dir.join(MODEL_FILE)).unwrap()[0].values, [2.0]);
        assert_eq!(fs::read(dir.join("config.json")).unwrap(), b"two");
        assert!(dir.join("thesis.txt").exists() && names(parent.path()) == ["out"]);
    }

    #[test]
    fn a_failure_leaves_nothing() {
        let parent = tempfile::tempdir().unwrap();
        let (dir, metadata) = (parent.path().join("out"), BTreeMap::new());
        let wrong = [TensorView { name: "a", shape: &[2], dtype: TensorType::F32, values: &[1.0] }];
        let model = Model { tensors: &wrong, file: MODEL_FILE, metadata: &metadata, beside: &[] };
        assert!(export_folder(&dir, &model).is_err());
        assert!(export_weights(&parent.path().join("a.safetensors"), &model).is_err());
        assert_eq!(names(parent.path()), [""; 0]);
        fs::write(&dir, b"a file").unwrap();
        assert!(matches!(export_folder(&dir, &model), Err(StoreError::Exists { .. })));
        assert!(matches!(export_weights(parent.path(), &model), Err(StoreError::Exists { .. })));
        assert!(matches!(export_folder(Path::new("/"), &model), Err(StoreError::Exists { .. })));
    }

    #[test]
    fn the_weights_alone_are_a_file() {
        let parent = tempfile::tempdir().unwrap();
        let (path, metadata) = (parent.path().join("a.safetensors"), BTreeMap::new());
        let tensors = [TensorView { name: "a", shape: &[1], dtype: TensorType::F32, values: &[3.0] }];
        for _ in 0..2 {
            export_weights(&path, &Model { tensors: &tensors, file: MODEL_FILE, metadata: &metadata, beside: &[] })
                .unwrap();
        }
        assert_eq!(read_safetensors(&path).unwrap()[0].values, [3.0]);
        assert_eq!(names(parent.path()), ["a.safetensors"]);
    }
}
