//! The files of a folder, in an order that depends only on their names.

use crate::error::DataError;
use crate::kind::FileKind;
use crate::limits::FILES_MAX;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Folders whose content a tool makes from the files beside them.
const MADE_FOLDERS: &[&str] = &["node_modules", "__pycache__"];
/// Marks a folder that can be made again, such as cargo's target/ (bford.info/cachedir).
const CACHE_TAG: &str = "CACHEDIR.TAG";

/// The rules for the files that a walk takes.
pub(crate) struct WalkRules<'a> {
    /// Whether links are followed. They are not in folders that others wrote: a link may lead out of them.
    pub follow_links: bool,
    /// Takes a file by its path and metadata.
    pub takes: &'a dyn Fn(&Path, &Metadata) -> bool,
}

/// Takes files whose names say that they are text, and follows links: the rules for folders that the user names.
pub(crate) const USER_RULES: WalkRules<'static> =
    WalkRules { follow_links: true, takes: &|path, _| FileKind::of_found(path).is_some() };

/// A regular file that the rules take.
#[derive(Debug)]
pub(crate) struct Found {
    pub path: PathBuf,
    pub metadata: Metadata,
}

/// The files below `root` that the rules take, sorted by the bytes of their paths relative to it.
///
/// Hidden files and folders, folders with a cache tag and [`MADE_FOLDERS`] are skipped (`root` itself is exempt). A
/// folder met twice through links is walked once, so that loops of links end.
pub(crate) fn walk(root: &Path, rules: &WalkRules<'_>) -> Result<Vec<Found>, DataError> {
    let mut files = Vec::new();
    let mut visited = BTreeSet::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let metadata = fs::metadata(&folder).map_err(DataError::unreadable(&folder))?;
        if !visited.insert((metadata.dev(), metadata.ino())) {
            continue;
        }
        let names = sorted_names(&folder)?;
        if folder != root && names.iter().any(|name| name == CACHE_TAG) {
            continue;
        }
        let mut below = Vec::new();
        for name in names.iter().filter(|name| !is_skipped(name)) {
            let path = folder.join(name);
            let Some(metadata) = metadata_of(&path, rules)? else { continue };
            if metadata.is_dir() {
                below.push(path);
            } else if metadata.is_file() && (rules.takes)(&path, &metadata) {
                if files.len() == FILES_MAX {
                    return Err(DataError::TooManyFiles { max: FILES_MAX });
                }
                files.push(Found { path, metadata });
            }
        }
        // The folders are a stack, so they are pushed in reverse: the first name is walked first, and wins where links
        // lead to one folder twice.
        folders.extend(below.into_iter().rev());
    }
    let relative = |found: &Found| found.path.strip_prefix(root).map_or_else(|_| found.path.clone(), Path::to_owned);
    files.sort_by_cached_key(|found| relative(found).as_os_str().as_bytes().to_vec());
    Ok(files)
}

fn sorted_names(folder: &Path) -> Result<Vec<std::ffi::OsString>, DataError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(DataError::unreadable(folder))? {
        names.push(entry.map_err(DataError::unreadable(folder))?.file_name());
    }
    names.sort();
    Ok(names)
}

fn is_skipped(name: &OsStr) -> bool {
    name.as_bytes().first() == Some(&b'.') || MADE_FOLDERS.iter().any(|made| name == *made)
}

/// Metadata of the path's target; `None` for a link that is not followed, or a dangling one that would not be taken
/// anyway.
fn metadata_of(path: &Path, rules: &WalkRules<'_>) -> Result<Option<Metadata>, DataError> {
    let own = fs::symlink_metadata(path).map_err(DataError::unreadable(path))?;
    if !own.is_symlink() {
        return Ok(Some(own));
    }
    if !rules.follow_links {
        return Ok(None);
    }
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        // A dangling link to a text is an error: left out silently, it would make this node's corpus differ from
        // others'.
        Err(source) if FileKind::of_found(path).is_some() => {
            Err(DataError::Unreadable { path: path.to_owned(), source })
        }
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn tree(files: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "text").unwrap();
        }
        root
    }

    fn names(root: &Path, rules: &WalkRules<'_>) -> Vec<String> {
        let found = walk(root, rules).unwrap();
        found.iter().map(|f| f.path.strip_prefix(root).unwrap().to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn order_is_by_bytes_of_the_relative_path_and_skips_hold() {
        let root = tree(&[
            "b/x.txt",
            "b.txt",
            "a/z.rs",
            "B.md",
            ".git/c.txt",
            "a/.hidden.txt",
            "node_modules/m.js",
            "out/CACHEDIR.TAG",
            "out/made.rs",
            "target/kept.rs",
            "a/pic.png",
        ]);
        assert_eq!(names(root.path(), &USER_RULES), ["B.md", "a/z.rs", "b.txt", "b/x.txt", "target/kept.rs"]);
    }

    #[test]
    fn a_cache_tag_in_the_named_folder_itself_does_not_hide_it() {
        let root = tree(&["CACHEDIR.TAG", "a.txt"]);
        assert_eq!(names(root.path(), &USER_RULES), ["a.txt"]);
    }

    #[test]
    fn links_in_a_loop_end_and_linked_folders_are_walked_once() {
        let root = tree(&["a/x.txt"]);
        symlink("..", root.path().join("a/up")).unwrap();
        symlink("a", root.path().join("b")).unwrap();
        symlink("x.txt", root.path().join("a/y.txt")).unwrap();
        assert_eq!(names(root.path(), &USER_RULES), ["a/x.txt", "a/y.txt"]);
        let strict = WalkRules { follow_links: false, ..USER_RULES };
        assert_eq!(names(root.path(), &strict), ["a/x.txt"]);
    }

    #[test]
    fn a_dangling_link_to_a_text_is_an_error_that_names_it() {
        let root = tree(&["a.txt"]);
        symlink("gone.png", root.path().join("b.png")).unwrap();
        assert_eq!(names(root.path(), &USER_RULES), ["a.txt"]);
        symlink("gone.txt", root.path().join("b.txt")).unwrap();
        let error = walk(root.path(), &USER_RULES).unwrap_err();
        assert!(error.to_string().contains("b.txt"), "{error}");
    }
}
