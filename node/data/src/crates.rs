//! The default corpus: the sources of the crates that Starling itself is built from.

use crate::error::DataError;
use crate::limits::{CRATES_BYTES_MAX, CRATES_FILE_BYTES_MAX};
use crate::walk::{Found, WalkRules, walk};
use std::fs;
use std::path::{Path, PathBuf};

/// The list of the crates: those that the build of this very binary was locked to.
const CARGO_LOCK: &str = include_str!("../../../Cargo.lock");

/// Takes Rust and Markdown files that a person may have written. Links are not followed: the shards are served to
/// peers, and only the crates' own files may get into them.
const RULES: WalkRules<'static> = WalkRules {
    follow_links: false,
    takes: &|path, metadata| {
        let extension = path.extension();
        extension.is_some_and(|e| e == "rs" || e == "md") && metadata.len() <= CRATES_FILE_BYTES_MAX
    },
};

/// The files of the crates as cargo unpacked them on this machine, each with the number of its bytes to read.
pub(crate) fn list_installed() -> Result<Vec<(Found, u64)>, DataError> {
    let home = match std::env::var_os("CARGO_HOME").filter(|home| !home.is_empty()) {
        Some(home) => PathBuf::from(home),
        None => std::env::home_dir().unwrap_or_default().join(".cargo"),
    };
    list_below(CARGO_LOCK, &home.join("registry").join("src"))
}

/// The first [`CRATES_BYTES_MAX`] bytes of the files of the crates in `lock`, found in any of the folders of
/// `registries`: crates sorted by name, then version, each one's files by path.
fn list_below(lock: &str, registries: &Path) -> Result<Vec<(Found, u64)>, DataError> {
    let none = || DataError::NoDefaultCorpus { looked: registries.to_owned() };
    let mut roots = Vec::new();
    for entry in fs::read_dir(registries).map_err(|_| none())? {
        roots.push(entry.map_err(DataError::unreadable(registries))?.path());
    }
    roots.sort();
    let mut files = Vec::new();
    let mut bytes = 0;
    for folder in locked_folders(lock) {
        // The same crate from two mirrors has the same files: one copy is enough.
        let Some(root) = roots.iter().map(|root| root.join(&folder)).find(|path| path.is_dir()) else { continue };
        for found in walk(&root, &RULES)? {
            let take = found.metadata.len().min(CRATES_BYTES_MAX - bytes);
            bytes += take;
            files.push((found, take));
            if bytes == CRATES_BYTES_MAX {
                return Ok(files);
            }
        }
    }
    if bytes == 0 {
        return Err(none());
    }
    Ok(files)
}

/// `name-version` of each registry package in a Cargo.lock, in the lock's order: by name, then version.
///
/// Packages of the workspace or from git have no folder in the registry. A name that could lead out of the folder is
/// not one of cargo's and is skipped.
fn locked_folders(lock: &str) -> Vec<String> {
    let mut folders = Vec::new();
    for package in lock.split("[[package]]").skip(1) {
        let value = |key: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix('='))?;
            line.trim().strip_prefix('"')?.strip_suffix('"')
        };
        let (Some(name), Some(version), Some(source)) = (value("name"), value("version"), value("source")) else {
            continue;
        };
        let is_plain = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.+".contains(c));
        if source.starts_with("registry+") && is_plain(name) && is_plain(version) && !name.starts_with('.') {
            folders.push(format!("{name}-{version}"));
        }
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = r#"
version = 4

[[package]]
name = "beta"
version = "1.0.0+x"
source = "registry+https://example.org/index"
checksum = "00"
dependencies = [
 "name",
]

[[package]]
name = "ours"
version = "0.1.0"

[[package]]
name = "../../byzantine"
version = "1"
source = "registry+https://example.org/index"

[[package]]
name = "zeta"
version = "2.0.0"
source = "registry+https://example.org/index"
"#;

    #[test]
    fn only_registry_packages_of_the_lock() {
        assert_eq!(locked_folders(LOCK), ["beta-1.0.0+x", "zeta-2.0.0"]);
        let ours = locked_folders(CARGO_LOCK);
        assert!(ours.len() > 100 && ours.iter().any(|name| name.starts_with("blake3-")));
        assert!(!ours.iter().any(|name| name.starts_with("starling-")));
    }

    #[test]
    fn files_of_locked_crates_and_nothing_else() {
        let home = tempfile::tempdir().unwrap();
        for file in [
            "b/zeta-2.0.0/src/lib.rs",
            "b/zeta-2.0.0/README.md",
            "b/zeta-2.0.0/x.bin",
            "b/other-1.0.0/src/lib.rs",
            "a/beta-1.0.0+x/lib.rs",
            "b/beta-1.0.0+x/lib.rs",
        ] {
            let path = home.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "fn main() {}").unwrap();
        }
        fs::write(home.path().join("b/zeta-2.0.0/table.rs"), vec![b'0'; CRATES_FILE_BYTES_MAX as usize + 1]).unwrap();
        std::os::unix::fs::symlink("../other-1.0.0/src/lib.rs", home.path().join("b/zeta-2.0.0/link.rs")).unwrap();
        let files = list_below(LOCK, home.path()).unwrap();
        let names: Vec<_> =
            files.iter().map(|(f, _)| f.path.strip_prefix(home.path()).unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["a/beta-1.0.0+x/lib.rs", "b/zeta-2.0.0/README.md", "b/zeta-2.0.0/src/lib.rs"]);
    }

    #[test]
    fn a_machine_without_the_sources_is_told_what_to_give() {
        let home = tempfile::tempdir().unwrap();
        for registries in [home.path().to_owned(), home.path().join("gone")] {
            let error = list_below(LOCK, &registries).unwrap_err();
            assert!(error.to_string().contains("--data"), "{error}");
        }
    }
}
