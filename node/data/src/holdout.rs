//! The choice of the blocks that are held out for validation: a function of the text and the share alone.
//!
//! In each run of N = 1/share blocks one is held out, at a place that a hash of the run's number gives. In the first
//! run it is the tenth (or the last, if N is smaller), so that any corpus of eleven blocks has held-out text. In a
//! smaller corpus the tail is held out, a tenth or the share if that is more. A block, 64 KiB or more, is contiguous
//! text: longer than a sequence.

use crate::blocks::Block;
use crate::limits::HOLDOUT_BYTES_MAX;
use crate::manifest::Part;
use starling_protocol::Digest;

/// Blocks that are read before the first one is chosen.
const EARLY_BLOCKS: u64 = 10;

/// Sends each block to one of the two parts.
#[derive(Debug)]
pub(crate) struct Splitter {
    /// One block in this many is held out.
    every: u64,
    seen: u64,
    held_bytes: u64,
    /// The first blocks, kept until it is known that more follow.
    early: Vec<Block>,
}

impl Splitter {
    pub fn new(every: u64) -> Self {
        Self { every: every.max(2), seen: 0, held_bytes: 0, early: Vec::new() }
    }

    fn early_blocks(&self) -> u64 {
        self.every.min(EARLY_BLOCKS)
    }

    /// Takes the next block. Returns the blocks whose part is decided now, in the text's order.
    pub fn route(&mut self, block: Block) -> Vec<(Part, Block)> {
        let number = self.seen;
        self.seen += 1;
        if number < self.early_blocks() {
            self.early.push(block);
            return Vec::new();
        }
        let mut routed: Vec<_> = self.early.drain(..).map(|block| (Part::Train, block)).collect();
        if let Some((part, block)) = routed.last_mut() {
            *part = Part::Validation;
            self.held_bytes = block.text.len() as u64;
        }
        let part = self.part_of(number, block.text.len() as u64);
        routed.push((part, block));
        routed
    }

    fn part_of(&mut self, number: u64, bytes: u64) -> Part {
        let run = number / self.every;
        if run == 0 || number % self.every != place(run) % self.every || self.held_bytes >= HOLDOUT_BYTES_MAX {
            return Part::Train;
        }
        self.held_bytes += bytes;
        Part::Validation
    }

    /// Splits the blocks of a corpus that ended before any was decided.
    pub fn finish(self) -> Vec<(Part, Block)> {
        let mut all = Block::default();
        self.early.iter().for_each(|block| all.append(block));
        if all.text.is_empty() {
            return Vec::new();
        }
        let bytes = all.text.len();
        let held = (bytes / self.every as usize).max(bytes / EARLY_BLOCKS as usize).max(1);
        let (train, validation) = all.split_near(bytes - held);
        vec![(Part::Train, train), (Part::Validation, validation)]
    }
}

fn place(run: u64) -> u64 {
    let digest = Digest::of("starling data holdout v1", &[&run.to_le_bytes()]);
    digest.0.iter().take(8).rev().fold(0, |place, &byte| place << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Blocks of one byte each show the rule as well as large ones.
    fn split(every: u64, count: u32) -> Vec<(Part, u32)> {
        let mut splitter = Splitter::new(every);
        let mut parts = Vec::new();
        for number in 0..count {
            parts.extend(splitter.route(Block { text: number.to_le_bytes().to_vec(), ends: Vec::new() }));
        }
        parts.extend(splitter.finish());
        let number = |block: Block| u32::from_le_bytes(block.text.try_into().unwrap());
        parts.into_iter().map(|(part, block)| (part, number(block))).collect()
    }

    proptest! {
        #[test]
        fn every_block_goes_to_one_part_in_order(every in 2u64..200, more in 0u32..1000) {
            let count = every.min(EARLY_BLOCKS) as u32 + 1 + more;
            let parts = split(every, count);
            prop_assert!(parts.iter().map(|(_, number)| *number).eq(0..count));
            let held: Vec<_> = parts.iter().filter(|(part, _)| *part == Part::Validation).map(|(_, n)| *n).collect();
            // One in each run of `every`, whole runs at least.
            let runs: Vec<_> = held.iter().map(|number| u64::from(*number) / every).collect();
            let whole = u64::from(count) / every;
            prop_assert!(runs.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!((whole.max(1)..=whole + 1).contains(&(held.len() as u64)));
            prop_assert_eq!(u64::from(held[0]), every.min(EARLY_BLOCKS) - 1);
            // A longer corpus splits its beginning in the same way.
            prop_assert!(split(every, count + 500).starts_with(&parts));
        }
    }

    #[test]
    fn the_tail_of_a_small_corpus_is_held_out() {
        let mut splitter = Splitter::new(100);
        for _ in 0..3 {
            assert!(splitter.route(Block { text: vec![b'\n'; 70_000], ends: vec![70_000] }).is_empty());
        }
        let parts = splitter.finish();
        let sizes: Vec<_> = parts.iter().map(|(part, block)| (*part, block.text.len(), block.ends.len())).collect();
        assert_eq!(sizes, [(Part::Train, 189_000, 2), (Part::Validation, 21_000, 1)]);
        assert_eq!(Splitter::new(100).finish(), []);
    }
}
