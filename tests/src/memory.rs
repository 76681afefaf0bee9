//! Another process's memory, changed behind its back: what a faulty memory module does.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

/// Read at once.
const PIECE: usize = 1 << 20;
/// Memory is there, or not, in pages of at least this size.
const PAGE: usize = 4096;

/// Replaces each occurrence of `pattern`, at addresses that are multiples of four, in the writable memory of a process
/// that we may trace (a child, or any as root). Returns how many there were.
///
/// # Errors
/// The system does not let us; or pattern and replacement differ in length.
pub fn replace(process: u32, pattern: &[u8], with: &[u8]) -> anyhow::Result<usize> {
    anyhow::ensure!(pattern.len() == with.len() && pattern.len() >= 4, "as many bytes as before, and at least four");
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps"))?;
    let memory = OpenOptions::new().read(true).write(true).open(format!("/proc/{process}/mem"))?;
    let mut replaced = 0;
    for (start, end) in maps.lines().filter_map(writable) {
        replaced += replace_in(&memory, start, end, pattern, with)?;
    }
    Ok(replaced)
}

/// The range of a line of `maps` whose memory may be read and written.
fn writable(line: &str) -> Option<(u64, u64)> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    rest.starts_with("rw").then_some(())?;
    Some((hex(start)?, hex(end)?))
}

fn replace_in(memory: &File, start: u64, end: u64, pattern: &[u8], with: &[u8]) -> anyhow::Result<usize> {
    let mut bytes = vec![0; PIECE + pattern.len()];
    let (mut at, mut replaced) = (start, 0);
    while at < end {
        let room = bytes.len().min(usize::try_from(end - at)?);
        // What was unmapped meanwhile, or cannot be read at all, holds nothing of ours; what lies behind it may.
        let read = memory.read_at(&mut bytes[..room], at).unwrap_or(0);
        let piece = &bytes[..read];
        for offset in (0..read.saturating_sub(pattern.len() - 1)).step_by(4).take_while(|offset| *offset < PIECE) {
            if piece[offset..].starts_with(pattern) {
                memory.write_at(with, at + offset as u64)?;
                replaced += 1;
            }
        }
        let whole = read == room;
        at += if whole { PIECE } else { (read / PAGE * PAGE).max(PAGE) } as u64;
    }
    Ok(replaced)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_memory_that_may_be_written_counts() {
        assert_eq!(writable("7f00-7f10 rw-p 00000000 00:00 0 [heap]"), Some((0x7f00, 0x7f10)));
        assert_eq!(writable("7f00-7f10 r--p 00000000 00:00 0"), None);
        assert_eq!(writable("nonsense"), None);
    }
}
