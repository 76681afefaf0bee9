//! The text of all cases, cut into sequences.

use anyhow::{Context, Result, ensure};
use starling_protocol::permutation::Permutation;
use std::path::{Path, PathBuf};

/// Text of a user's own beyond this many bytes is not read.
const BYTES_MAX: usize = 64 << 20;
/// One part of so many is held out.
const HELD_OUT: usize = 20;

/// Bytes of text: the part to train on, and the held-out part.
pub struct Text {
    train: Vec<u8>,
    held_out: Vec<u8>,
}

impl Text {
    /// Splits a text for sequences of so many tokens.
    pub fn new(mut bytes: Vec<u8>, seq: usize) -> Result<Self> {
        ensure!(bytes.len() >= 100 * seq, "{} bytes are too little text: at least {}", bytes.len(), 100 * seq);
        let held_out = bytes.split_off(bytes.len() - bytes.len() / HELD_OUT);
        Ok(Self { train: bytes, held_out })
    }

    /// Sequence number `n` of the stream of a seed, with the token after it. No sequence comes a second time before
    /// all others have come.
    pub fn sample(&self, seed: u64, n: u64, seq: usize, out: &mut Vec<u32>) {
        let places = ((self.train.len() - 1) / seq) as u64;
        let start = Permutation::new(seed, n / places, places).get(n % places) as usize * seq;
        out.extend(self.train[start..=start + seq].iter().map(|byte| u32::from(*byte)));
    }

    /// At most so many held-out sequences, evenly spread, each with the token after it.
    pub fn held_out(&self, sequences: usize, seq: usize) -> Vec<u32> {
        let length = seq + 1;
        let there = self.held_out.len() / length;
        let taken = sequences.min(there);
        let start = |n: usize| n * there / taken * length;
        let all = (0..taken).flat_map(|n| &self.held_out[start(n)..start(n) + length]);
        all.map(|byte| u32::from(*byte)).collect()
    }
}

/// A file, or the `.rs` and `.md` files in a folder.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    let (mut bytes, mut waiting) = (Vec::new(), vec![path.to_path_buf()]);
    while let Some(path) = waiting.pop() {
        if path.is_dir() {
            let mut inside: Vec<_> = std::fs::read_dir(&path)?.flatten().map(|entry| entry.path()).collect();
            inside.sort();
            let wanted = |p: &PathBuf| p.is_dir() || p.extension().is_some_and(|e| e == "rs" || e == "md");
            waiting.extend(inside.into_iter().rev().filter(wanted));
        } else if bytes.len() < BYTES_MAX {
            bytes.extend(std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?);
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn text() -> Text {
        Text::new((0..40_000u32).flat_map(|n| n.to_le_bytes()).collect(), 8).unwrap()
    }

    fn sample(text: &Text, seed: u64, n: u64) -> Vec<u32> {
        let mut out = Vec::new();
        text.sample(seed, n, 8, &mut out);
        out
    }

    #[test]
    fn nothing_is_trained_on_twice_in_a_pass() {
        let text = text();
        let places = (text.train.len() as u64 - 1) / 8;
        let pass: BTreeSet<_> = (0..places).map(|n| sample(&text, 3, n)).collect();
        assert_eq!(pass.len() as u64, places);
        assert!(pass.iter().all(|sequence| sequence.len() == 9));
        let next: Vec<_> = (places..places + 5).map(|n| sample(&text, 3, n)).collect();
        assert!(next.iter().all(|sequence| pass.contains(sequence)));
        assert_ne!(next, (0..5).map(|n| sample(&text, 3, n)).collect::<Vec<_>>(), "in another order");
    }

    #[test]
    fn a_seed_has_its_order() {
        let text = text();
        let of = |seed| (0..5).map(|n| sample(&text, seed, n)).collect::<Vec<_>>();
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn held_out_sequences_are_spread_over_the_end() {
        let text = text();
        let bytes = text.held_out(10, 8);
        assert_eq!(bytes.len(), 90);
        assert_eq!((text.train.len(), text.held_out.len()), (152_000, 8_000));
        let first: Vec<u32> = text.held_out[..9].iter().map(|byte| u32::from(*byte)).collect();
        assert_eq!(bytes[..9], first);
        let late = &text.held_out[7_000..];
        let last: Vec<u8> = bytes[81..].iter().map(|byte| *byte as u8).collect();
        assert!(late.windows(9).any(|part| part == last), "the last is near the end");
        assert_eq!(text.held_out(1 << 20, 8).len(), 8_000 / 9 * 9);
    }

    #[test]
    fn too_little_text_is_refused() {
        assert!(Text::new(vec![0; 799], 8).is_err());
        assert!(Text::new(vec![0; 800], 8).is_ok());
    }
}
