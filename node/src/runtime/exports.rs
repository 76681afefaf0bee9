//! The files that go with a model which a trainer has brought: the document of its tensors, and the small files that
//! the trainer leaves for exports (`docs/bridge.md`, section 3.5).

use super::bridge::exports_folder;
use super::learned::{SCHEMA_FILE, kept_schema};
use super::ledger::MoreFiles;
use super::origin::RunSource;
use super::tokenizer::tokenizer_file;
use crate::exit::Failure;
use starling_protocol::run::{ExternalSpec, TaskSchema};
use starling_store::is_extra;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// Small files by name.
pub type SmallFiles = Vec<(String, Vec<u8>)>;

/// Files that are taken, and their bytes together.
const FILES_MAX: usize = 12;
const BYTES_MAX: u64 = 64 << 20;
/// Entries of the folder that are looked at.
const ENTRIES_MAX: usize = 1024;
/// Name of a node's own file, by which an exported folder would be taken for a node's.
const SPEC_FILE: &str = "run.spec";

/// The files of checkpoints of a node: those that it has, and the way to those that its trainer leaves later.
///
/// # Errors
/// The tokenizer cannot be read.
pub fn checkpoint_files(
    run: &RunSource,
    home: &Path,
    schema: Option<&TaskSchema>,
) -> Result<(SmallFiles, Option<MoreFiles>), Failure> {
    let mut files = tokenizer_file(run, home)?;
    let Some(schema) = schema else { return Ok((files, None)) };
    files.push(schema_file(schema));
    let home = home.to_path_buf();
    Ok((files, Some(Box::new(move || left_files(&home)))))
}

/// The files that the trainer of the node in this folder has left, by name.
fn left_files(home: &Path) -> SmallFiles {
    let folder = exports_folder(home);
    // A trainer that has left nothing is as good as any.
    let Ok(entries) = fs::read_dir(&folder) else { return Vec::new() };
    let names = entries.take(ENTRIES_MAX).filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    // A name with a point in front is that of a file that is being written.
    let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    let (mut files, mut left) = (Vec::new(), BYTES_MAX);
    for name in names {
        let path = folder.join(&name);
        let skipped = |why: &str| tracing::warn!("{} does not go with the model: {why}", path.display());
        if name == SCHEMA_FILE || name == SPEC_FILE || !is_extra(&name, 0) {
            skipped("its name is taken, or no plain one of up to 64 letters, digits, points and dashes");
        } else if files.len() == FILES_MAX {
            skipped(&format!("{FILES_MAX} files do already"));
        } else {
            match read(&path, left) {
                Ok(Some(bytes)) => {
                    left -= bytes.len() as u64;
                    files.push((name, bytes));
                }
                Ok(None) => skipped(&format!("all files together may have {} MiB", BYTES_MAX >> 20)),
                Err(e) => skipped(&starling_words::of(&e)),
            }
        }
    }
    files
}

/// The content of a file; none if it is longer.
fn read(path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes).filter(|bytes| bytes.len() as u64 <= limit))
}

/// The document of a task's tensors as a file that goes with the model.
fn schema_file(schema: &TaskSchema) -> (String, Vec<u8>) {
    (SCHEMA_FILE.to_owned(), schema.encode())
}

/// All files that go with the model of the node in this folder, which need not run.
pub fn brought_files(home: &Path, task: &ExternalSpec) -> SmallFiles {
    let schema = kept_schema(home, task).map(|schema| schema_file(&schema));
    schema.into_iter().chain(left_files(home)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_files_with_plain_names_are_taken() {
        let home = tempfile::tempdir().expect("a folder");
        assert!(left_files(home.path()).is_empty());
        let folder = exports_folder(home.path());
        fs::create_dir_all(folder.join("a-folder")).expect("made");
        for name in ["config.json", ".config.json.new", "manifest.json", "task.schema", "run.spec", "a name", "b_1.txt"]
        {
            fs::write(folder.join(name), name).expect("written");
        }
        let large = File::create(folder.join("large")).expect("made");
        large.set_len(BYTES_MAX).expect("a file of zeros");
        let names = |files: &[(String, Vec<u8>)]| files.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        let files = left_files(home.path());
        assert_eq!(names(&files), ["b_1.txt", "config.json"], "the large one is too large beside them");
        assert_eq!(files[1].1, b"config.json");
        for number in 0..2 * FILES_MAX {
            fs::write(folder.join(format!("c{number:02}")), "").expect("written");
        }
        assert_eq!(left_files(home.path()).len(), FILES_MAX);
    }
}
