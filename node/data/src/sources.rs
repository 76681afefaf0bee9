//! From the sources that the user named to the list of files in the corpus.

use crate::crates;
use crate::error::DataError;
use crate::kind::FileKind;
use crate::limits::FILES_MAX;
use crate::options::CRATES_SOURCE;
use crate::walk::{Found, USER_RULES, walk};
use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// One file of the corpus, as it was when it was listed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SourceFile {
    pub path: PathBuf,
    pub kind: FileKind,
    pub stamp: Stamp,
    /// Bytes of it to read; `u64::MAX` for all.
    pub take: u64,
    /// Whether the user named this very file; a file found by a search is skipped when it is not text.
    pub named: bool,
}

/// The properties that change with a file: its size, and the time of the last change of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub bytes: u64,
    pub seconds: i64,
    pub nanoseconds: i64,
}

impl Stamp {
    pub fn of(metadata: &Metadata) -> Self {
        Self { bytes: metadata.len(), seconds: metadata.mtime(), nanoseconds: metadata.mtime_nsec() }
    }
}

impl SourceFile {
    fn found(found: Found) -> Self {
        let kind = FileKind::of_named(&found.path);
        Self { kind, stamp: Stamp::of(&found.metadata), path: found.path, take: u64::MAX, named: false }
    }
}

/// Lists the files of all sources, in the sources' order. A file in two sources is listed once.
pub(crate) fn list(sources: &[String], progress: &mut dyn FnMut(u64)) -> Result<Vec<SourceFile>, DataError> {
    let mut files = Vec::new();
    let mut seen = BTreeSet::new();
    for source in sources {
        let mut listed = list_one(source)?;
        if sources.len() > 1 {
            listed.retain(|file| seen.insert(file.path.canonicalize().unwrap_or_else(|_| file.path.clone())));
        }
        files.append(&mut listed);
        if files.len() > FILES_MAX {
            return Err(DataError::TooManyFiles { max: FILES_MAX });
        }
        progress(files.len() as u64);
    }
    Ok(files)
}

/// Bytes of the files of all sources, as they are on the disk: a compressed file holds more text.
///
/// # Errors
/// The error names the source that is not there, or that has no file of a known kind.
pub fn text_bytes(sources: &[String]) -> Result<u64, DataError> {
    let files = list(sources, &mut |_| ())?;
    Ok(files.iter().map(|file| file.stamp.bytes.min(file.take)).fold(0, u64::saturating_add))
}

fn list_one(source: &str) -> Result<Vec<SourceFile>, DataError> {
    if source == CRATES_SOURCE {
        let files = crates::list_installed()?.into_iter();
        return Ok(files.map(|(found, take)| SourceFile { take, ..SourceFile::found(found) }).collect());
    }
    if source.contains("://") {
        return Err(DataError::Remote { source_text: source.to_owned() });
    }
    let path = Path::new(source);
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => list_folder(path),
        Ok(metadata) if metadata.is_file() => {
            let path = absolute(path)?;
            let kind = FileKind::of_named(&path);
            Ok(vec![SourceFile { path, kind, stamp: Stamp::of(&metadata), take: u64::MAX, named: true }])
        }
        Ok(_) => Err(DataError::NotAFile { path: path.to_owned() }),
        Err(_) if source.contains(['*', '?', '[']) => list_glob(source),
        Err(error) => Err(DataError::unreadable(path)(error)),
    }
}

/// The absolute path, so that the fingerprint of a corpus does not depend on where a node is started.
fn absolute(path: &Path) -> Result<PathBuf, DataError> {
    path.canonicalize().map_err(DataError::unreadable(path))
}

fn list_folder(folder: &Path) -> Result<Vec<SourceFile>, DataError> {
    let folder = absolute(folder)?;
    let files: Vec<_> = walk(&folder, &USER_RULES)?.into_iter().map(SourceFile::found).collect();
    if files.is_empty() {
        return Err(DataError::NoUsableFile { path: folder });
    }
    Ok(files)
}

/// The files that match the glob, sorted by path. A folder that matches is walked, as if a shell had expanded the glob.
fn list_glob(pattern: &str) -> Result<Vec<SourceFile>, DataError> {
    let rules =
        glob::MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };
    let matches = glob::glob_with(pattern, rules)
        .map_err(|error| DataError::BadGlob { pattern: pattern.to_owned(), reason: error.to_string() })?;
    let mut files = Vec::new();
    for found in matches {
        let path = found.map_err(|error| {
            let path = error.path().to_owned();
            DataError::Unreadable { path, source: error.into() }
        })?;
        let metadata = fs::metadata(&path).map_err(DataError::unreadable(&path))?;
        let path = absolute(&path)?;
        if metadata.is_dir() {
            files.extend(walk(&path, &USER_RULES)?.into_iter().map(SourceFile::found));
        } else if metadata.is_file() {
            files.push(SourceFile::found(Found { path, metadata }));
        }
        if files.len() > FILES_MAX {
            return Err(DataError::TooManyFiles { max: FILES_MAX });
        }
    }
    if files.is_empty() {
        return Err(DataError::NoMatch { pattern: pattern.to_owned() });
    }
    files.sort_by(|a, b| a.path.as_os_str().as_bytes().cmp(b.path.as_os_str().as_bytes()));
    // `**` matches a folder and the files in it.
    files.dedup_by(|a, b| a.path == b.path);
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("sub/deep")).unwrap();
        for name in ["b.txt", "a.md", "sub/c.rs", "sub/deep/d.txt", "e.log", "pic.png"] {
            fs::write(root.path().join(name), name).unwrap();
        }
        root
    }

    fn names(root: &Path, sources: &[&str]) -> Vec<String> {
        let root = root.canonicalize().unwrap();
        let sources: Vec<_> = sources.iter().map(|source| format!("{}/{source}", root.display())).collect();
        let files = list(&sources, &mut |_| ()).unwrap();
        files.iter().map(|file| file.path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn files_folders_globs_and_lists_of_them() {
        let root = folder();
        assert_eq!(names(root.path(), &["e.log"]), ["e.log"]);
        assert_eq!(names(root.path(), &["sub"]), ["sub/c.rs", "sub/deep/d.txt"]);
        assert_eq!(names(root.path(), &["*.log", "*.md"]), ["e.log", "a.md"]);
        assert_eq!(names(root.path(), &["**/*.txt"]), ["b.txt", "sub/deep/d.txt"]);
        assert_eq!(names(root.path(), &["s*"]), ["sub/c.rs", "sub/deep/d.txt"]);
        // A file is read once, at its first mention.
        assert_eq!(names(root.path(), &["b.txt", ""]), ["b.txt", "a.md", "sub/c.rs", "sub/deep/d.txt"]);
    }

    #[test]
    fn the_bytes_of_all_files_are_added_up_once() {
        let root = folder();
        let bytes = |sources: &[&str]| {
            let sources: Vec<_> = sources.iter().map(|source| format!("{}/{source}", root.path().display())).collect();
            text_bytes(&sources).unwrap()
        };
        // Each file holds its own name.
        assert_eq!(bytes(&["e.log"]), 5);
        assert_eq!(bytes(&["sub"]), ("sub/c.rs".len() + "sub/deep/d.txt".len()) as u64);
        assert_eq!(bytes(&["e.log", "*.log"]), 5);
        assert!(text_bytes(&[root.path().join("gone").display().to_string()]).is_err());
    }

    #[test]
    fn each_wrong_source_is_named() {
        let root = folder();
        let error = |source: &str| list(&[format!("{}/{source}", root.path().display())], &mut |_| ()).unwrap_err();
        assert!(matches!(error("gone"), DataError::NotFound { .. }));
        assert!(matches!(error("*.gone"), DataError::NoMatch { .. }));
        assert!(matches!(error("a/***"), DataError::BadGlob { .. }));
        fs::create_dir(root.path().join("empty")).unwrap();
        assert!(matches!(error("empty"), DataError::NoUsableFile { .. }));
        let remote = list(&["s3://bucket/corpus.txt".to_owned()], &mut |_| ()).unwrap_err();
        assert!(remote.to_string().contains("s3://bucket/corpus.txt"), "{remote}");
        let device = list(&["/dev/null".to_owned()], &mut |_| ()).unwrap_err();
        assert!(matches!(device, DataError::NotAFile { .. }), "{device}");
    }
}
