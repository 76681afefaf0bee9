//! Changes to a node's folder from outside.

use anyhow::Context;
use std::io::Write;
use std::path::Path;

/// Copies a folder and all below it, except sockets.
pub fn copy_folder(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let (kind, target) = (entry.file_type()?, to.join(entry.file_name()));
        if kind.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else if kind.is_file() {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// Flips a bit of the file that the pattern names; returns the name of the file.
pub fn flip_bit(home: &Path, pattern: &str, draw: u64) -> anyhow::Result<String> {
    let whole = format!("{}/{pattern}", glob::Pattern::escape(&home.to_string_lossy()));
    let found = glob::glob(&whole).with_context(|| format!("{pattern} is no pattern for files"))?;
    let mut files: Vec<_> =
        found.flatten().filter(|p| p.metadata().is_ok_and(|m| m.is_file() && m.len() > 0)).collect();
    files.sort();
    anyhow::ensure!(!files.is_empty(), "no file {pattern} in {}", home.display());
    let path = &files[(draw % files.len() as u64) as usize];
    let mut bytes = std::fs::read(path)?;
    let bit = (draw >> 8) % (bytes.len() as u64 * 8);
    bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    std::fs::write(path, &bytes)?;
    Ok(format!("bit {bit} of {} is flipped", path.display()))
}

/// Fills the disk except for this many KiB.
pub fn fill(disk: &Path, free_kib: u64) -> anyhow::Result<()> {
    let path = disk.join("ballast");
    let mut file = std::fs::File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let block = vec![1u8; 64 << 10];
    while file.write_all(&block).is_ok() {}
    let full = file.metadata()?.len();
    file.set_len(full.saturating_sub(free_kib << 10))?;
    Ok(())
}
