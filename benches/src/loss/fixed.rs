//! The text that no commit changes: Rust sources of published crates, 64 MiB, in which no paragraph comes twice.
//!
//! The crates and their versions are in `benches/text/crates.txt`, apart from `Cargo.lock`, which goes on. Their files
//! come in the order of their names' SHA-256, so that each stretch of the text is a sample of all of it.

use anyhow::{Context, Result, bail, ensure};
use aws_lc_rs::digest::{SHA256, digest};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Bytes of the text.
const BYTES: usize = 64 << 20;
/// The digest of the text; rows name its beginning.
pub const DIGEST: &str = "2b92b44cc75bdcf06838b65487b969187696fefb8aad0cf0f3856fca33c160e7";
/// The crates, `NAME-VERSION` a line.
const CRATES: &str = include_str!("../../text/crates.txt");
/// A commit that locks, in the workspace, `tests/sim` and `fuzz`, the crates that later ones do not.
const LOCKED_BY: &str = "737a85ff";
/// Larger files are tables.
const FILE_MAX: u64 = 256 << 10;
/// Shorter paragraphs, such as a brace, may come again.
const PARAGRAPH_MIN: usize = 64;

/// The text from this file; it is made, from the crates in a folder, if the file is not there yet.
///
/// # Errors
/// If a crate is missing, or the text is not the one that the digest names.
pub fn text(path: &Path, crates: Option<&Path>) -> Result<Vec<u8>> {
    if path.exists() {
        let bytes = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        check(&bytes).with_context(|| format!("{}: remove it, and it is made again", path.display()))?;
        return Ok(bytes);
    }
    println!("making the text: {}", path.display());
    let homes = crates.map_or_else(cargo_sources, |folder| Ok(vec![folder.to_path_buf()]))?;
    let bytes = made(&homes, CRATES.lines(), BYTES)?;
    check(&bytes)?;
    // Under another name first: a bench that is killed here leaves no half of it.
    let part = path.with_extension(format!("part-{}", std::process::id()));
    path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
    std::fs::write(&part, &bytes).with_context(|| format!("writing {}", part.display()))?;
    std::fs::rename(&part, path).with_context(|| format!("writing {}", path.display()))?;
    Ok(bytes)
}

/// The file that keeps the text of this user.
pub fn place() -> Result<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")));
    Ok(cache.context("neither XDG_CACHE_HOME nor HOME is set: give --text")?.join("starling").join("loss-text"))
}

/// The folders into which cargo unpacks crates, one a registry.
fn cargo_sources() -> Result<Vec<PathBuf>> {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = folder("CARGO_HOME").or_else(|| folder("HOME").map(|home| home.join(".cargo")));
    let home = home.context("neither CARGO_HOME nor HOME is set: give --crates")?.join("registry").join("src");
    let inside = std::fs::read_dir(&home).with_context(|| format!("reading {}: {}", home.display(), advice()))?;
    let mut homes: Vec<PathBuf> = inside.flatten().map(|entry| entry.path()).collect();
    homes.sort();
    Ok(homes)
}

fn advice() -> String {
    format!(
        "fetch the crates with `cargo fetch --locked` in this checkout and in one of commit {LOCKED_BY}, there also in \
         tests/sim and fuzz, or give --crates"
    )
}

fn check(bytes: &[u8]) -> Result<()> {
    let found = hex(digest(&SHA256, bytes).as_ref());
    ensure!(found == DIGEST, "this text has the digest {found}, not {DIGEST}");
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The first `most` bytes of the crates' text.
fn made<'a>(homes: &[PathBuf], crates: impl Iterator<Item = &'a str>, most: usize) -> Result<Vec<u8>> {
    let mut files = Vec::new();
    for name in crates {
        let Some(folder) = homes.iter().map(|home| home.join(name)).find(|folder| folder.is_dir()) else {
            bail!("the sources of {name} are not here: {}", advice());
        };
        list(&folder, name, &mut files)?;
    }
    let mut files: Vec<_> =
        files.into_iter().map(|(name, path)| (hex(digest(&SHA256, name.as_bytes()).as_ref()), path)).collect();
    files.sort();
    let mut assembly = Assembly { text: Vec::with_capacity(most), seen: HashSet::new(), most };
    for (_, path) in files {
        let bytes = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        // Files with the line ends of other systems are few.
        if let Ok(text) = String::from_utf8(bytes)
            && !text.contains('\r')
        {
            assembly.add(&text);
        }
        if assembly.is_full() {
            return Ok(assembly.text);
        }
    }
    bail!("the crates have {} bytes of text, {most} are needed", assembly.text.len());
}

/// Lists the sources in a folder with their names: those of the folder and below, with slashes.
fn list(folder: &Path, name: &str, files: &mut Vec<(String, PathBuf)>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let entry = entry?;
        let Some(name) = entry.file_name().to_str().map(|own| format!("{name}/{own}")) else { continue };
        let kind = entry.file_type()?;
        if kind.is_dir() {
            list(&entry.path(), &name, files)?;
        } else if kind.is_file() && name.ends_with(".rs") && entry.metadata()?.len() <= FILE_MAX {
            files.push((name, entry.path()));
        }
    }
    Ok(())
}

/// A text that grows by paragraphs.
struct Assembly {
    text: Vec<u8>,
    /// Half digests of the paragraphs.
    seen: HashSet<[u8; 16]>,
    most: usize,
}

impl Assembly {
    /// Adds the paragraphs of a file that did not come before; whatever is too much is cut off.
    fn add(&mut self, file: &str) {
        for paragraph in file.split("\n\n") {
            if paragraph.len() >= PARAGRAPH_MIN && !self.seen.insert(half_digest(paragraph)) {
                continue;
            }
            self.text.extend_from_slice(paragraph.as_bytes());
            self.text.extend_from_slice(b"\n\n");
        }
        self.text.truncate(self.most);
    }

    fn is_full(&self) -> bool {
        self.text.len() >= self.most
    }
}

fn half_digest(paragraph: &str) -> [u8; 16] {
    let mut half = [0; 16];
    let whole = digest(&SHA256, paragraph.as_bytes());
    half.copy_from_slice(&whole.as_ref()[..16]);
    half
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_paragraph_comes_twice() {
        let license = "// ".to_owned() + &"all rights, and so on; ".repeat(4);
        let mut assembly = Assembly { text: Vec::new(), seen: HashSet::new(), most: 1000 };
        assembly.add(&format!("{license}\n\nfn a() {{}}\n\n}}"));
        assembly.add(&format!("{license}\n\nfn b() {{}}\n\n}}"));
        assert!(!assembly.is_full());
        let text = String::from_utf8(assembly.text).unwrap();
        assert_eq!(text, format!("{license}\n\nfn a() {{}}\n\n}}\n\nfn b() {{}}\n\n}}\n\n"));
    }

    #[test]
    fn a_text_ends_where_it_is_full() {
        let mut assembly = Assembly { text: Vec::new(), seen: HashSet::new(), most: 5 };
        assembly.add("abc\n\ndef");
        assert!(assembly.is_full());
        assert_eq!(assembly.text, b"abc\n\n");
    }

    #[test]
    fn crates_give_one_text_whatever_the_order_of_their_folders() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("one/a-1.0.0/src/lib.rs", "fn a() {}\n");
        write("one/a-1.0.0/README.md", "no source");
        write("two/b-2.0.0/tests/deep/b.rs", "fn b() {}\n");
        write("two/b-2.0.0/src/other.rs", "fn other() {}\r\n");
        write("two/b-2.0.0/src/table.rs", &"x".repeat(300 << 10));
        let homes = [folder.path().join("one"), folder.path().join("two")];
        let text = made(&homes, ["a-1.0.0", "b-2.0.0"].into_iter(), 20).unwrap();
        let back = made(&[homes[1].clone(), homes[0].clone()], ["b-2.0.0", "a-1.0.0"].into_iter(), 20).unwrap();
        assert_eq!(text, back);
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("fn a()") && text.contains("fn b()") && !text.contains("other"), "{text}");
        let missing = made(&homes, ["c-1.0.0"].into_iter(), 20).unwrap_err().to_string();
        assert!(missing.contains("c-1.0.0") && missing.contains(LOCKED_BY), "{missing}");
        let short = made(&homes, ["a-1.0.0"].into_iter(), 2000).unwrap_err().to_string();
        assert!(short.contains("2000 are needed"), "{short}");
    }

    #[test]
    fn another_text_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("loss-text");
        std::fs::write(&path, "something else").unwrap();
        let refused = format!("{:#}", text(&path, None).unwrap_err());
        assert!(refused.contains("remove it") && refused.contains(DIGEST), "{refused}");
    }

    #[test]
    fn the_list_names_each_crate_once() {
        let names: HashSet<&str> = CRATES.lines().collect();
        assert_eq!(names.len(), CRATES.lines().count());
        assert!(names.len() > 250);
        assert!(names.iter().all(|name| name.contains('-') && !name.contains('/')));
    }
}
