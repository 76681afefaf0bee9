//! The text of all cases.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// Text beyond this many bytes is not read.
const TEXT_BYTES_MAX: usize = 16 << 20;

/// Bytes of text: the part to train on, and the held-out part.
pub struct Text {
    pub train: Vec<u8>,
    pub held_out: Vec<u8>,
}

impl Text {
    pub fn read(path: &Path) -> Result<Self> {
        let (mut bytes, mut waiting) = (Vec::new(), vec![path.to_path_buf()]);
        while let Some(path) = waiting.pop() {
            if path.is_dir() {
                let mut inside: Vec<_> = std::fs::read_dir(&path)?.flatten().map(|entry| entry.path()).collect();
                inside.sort();
                let wanted = |p: &PathBuf| p.is_dir() || p.extension().is_some_and(|e| e == "rs" || e == "md");
                waiting.extend(inside.into_iter().rev().filter(wanted));
            } else if bytes.len() < TEXT_BYTES_MAX {
                bytes.extend(std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?);
            }
        }
        let held_out = bytes.split_off(bytes.len() - bytes.len() / 20);
        Ok(Self { train: bytes, held_out })
    }

    /// Sequence number `n` of the stream of a seed, with the token after it.
    pub fn sample(&self, seed: u64, n: u64, seq: usize, out: &mut Vec<u32>) {
        let mut z = (seed << 40 ^ n).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let start = ((z ^ z >> 31) % (self.train.len() - seq) as u64) as usize;
        out.extend(self.train[start..=start + seq].iter().map(|byte| u32::from(*byte)));
    }
}
