//! Changes another process's memory, as a faulty memory module does.

use rustix::process::{Pid, Signal, kill_process};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Bytes of one read.
const PIECE: usize = 1 << 20;
/// Memory is mapped in pages of at least this size.
const PAGE: usize = 4096;
/// The time in which a process must stop.
const REST: Duration = Duration::from_secs(10);

/// Replaces each occurrence of `pattern`, at addresses that are multiples of four, in the writable memory of a process
/// that we may trace (a child, or any process as root). Returns the number of occurrences.
///
/// The process is stopped meanwhile, so that for it all copies change at once.
///
/// # Errors
/// If the system refuses, the process does not stop, or pattern and replacement differ in length.
pub fn replace(process: u32, pattern: &[u8], with: &[u8]) -> anyhow::Result<usize> {
    anyhow::ensure!(pattern.len() == with.len() && pattern.len() >= 4, "as many bytes as before, and at least four");
    let _stopped = Stopped::new(process)?;
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps"))?;
    let memory = OpenOptions::new().read(true).write(true).open(format!("/proc/{process}/mem"))?;
    let mut replaced = 0;
    for (start, end) in maps.lines().filter_map(writable) {
        replaced += replace_in(&memory, start, end, pattern, with)?;
    }
    Ok(replaced)
}

/// A stopped process, which goes on when this is dropped.
struct Stopped(Pid);

impl Stopped {
    /// Stops all threads of the process, and waits until they have stopped.
    fn new(process: u32) -> anyhow::Result<Self> {
        let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| anyhow::anyhow!("{process} is no process"))?;
        kill_process(pid, Signal::STOP)?;
        let stopped = Self(pid);
        let deadline = Instant::now() + REST;
        while !all_stand(process)? {
            anyhow::ensure!(Instant::now() < deadline, "process {process} does not stop");
            std::thread::yield_now();
        }
        Ok(stopped)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

fn all_stand(process: u32) -> anyhow::Result<bool> {
    for thread in std::fs::read_dir(format!("/proc/{process}/task"))? {
        match std::fs::read_to_string(thread?.path().join("stat")) {
            // The thread may have ended since it was listed.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            stat => {
                if !stands(&stat?) {
                    return Ok(false);
                }
            }
        }
    }
    Ok(true)
}

/// Whether a line of `stat` is of a stopped or ended thread. Its name, in parentheses, may contain any character.
fn stands(stat: &str) -> bool {
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    matches!(state, Some('T' | 't' | 'Z' | 'X'))
}

/// The range in a line of `maps`, if its memory may be read and written.
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
        // Memory that was unmapped meanwhile, or cannot be read, is skipped; the memory after it may hold the pattern.
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

    #[test]
    fn threads_stand_when_the_kernel_says_so() {
        assert!(stands("17 (a) R (b) T 1 17"));
        assert!(!stands("17 (a) T (b) R 1 17") && !stands("nonsense"));
    }
}
