//! The part of the model that a COMMIT steps: fragments take turns (Streaming DiLoCo, arXiv 2501.18512, section 2.2).
//!
//! A fragment is a contiguous range of the codec's chunks, so that no block of a codec lies in two. The turn follows
//! from the COMMIT's round alone: no node decides it, and a replay needs only the chain.

use crate::limits::CHUNK_ELEMENTS;
use crate::mutation::{Mutation, mutated};
use crate::run::SyncSpec;
use std::ops::Range;

/// A vector's fragments. Pure arithmetic; every member computes the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragments {
    count: usize,
    elements: usize,
    /// Elements of a chunk: no boundary lies within one.
    chunk: usize,
}

impl Fragments {
    /// The fragments of a run whose model has so many parameters.
    pub fn of(sync: &SyncSpec, elements: usize) -> Self {
        Self::new(sync.fragments, elements, CHUNK_ELEMENTS)
    }

    /// `count` fragments of `elements` in chunks of `chunk`; both are taken for at least 1.
    pub fn new(count: u32, elements: usize, chunk: usize) -> Self {
        Self { count: count.max(1) as usize, elements, chunk: chunk.max(1) }
    }

    /// The number of fragments.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Elements of all fragments together.
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// The fragment that the COMMIT of a round steps, from 0.
    pub fn turn(&self, round: u64) -> usize {
        if mutated!(Mutation::FragmentsStill) { 0 } else { (round.saturating_sub(1) % self.count as u64) as usize }
    }

    /// The elements of fragment `index`. With c chunks and P fragments, fragment f has the chunks `floor(f c / P) ..
    /// floor((f + 1) c / P)`. Empty beyond the last fragment, and possibly before if there are fewer chunks than
    /// fragments.
    pub fn range(&self, index: usize) -> Range<usize> {
        let chunks = self.elements.div_ceil(self.chunk) as u128;
        let bound = |i: usize| {
            let chunk = (i.min(self.count) as u128 * chunks / self.count as u128) as usize;
            chunk.saturating_mul(self.chunk).min(self.elements)
        };
        bound(index)..bound(index.saturating_add(1))
    }

    /// The elements that the COMMIT of a round steps.
    pub fn of_round(&self, round: u64) -> Range<usize> {
        self.range(self.turn(round))
    }
}

/// Mixes a trainer's own parameters with the canonical ones where a COMMIT has stepped (Streaming DiLoCo, algorithm 2):
/// `own <- mixing own + (1 - mixing) canonical`; with 0 they are the canonical ones, to the bit.
///
/// Only the member itself is concerned: other nodes' bits depend on it only through its contributions.
pub fn mix(mixing: f32, own: &mut [f32], canonical: &[f32]) {
    if mixing == 0.0 {
        return own.copy_from_slice(canonical);
    }
    for (own, canonical) in own.iter_mut().zip(canonical) {
        *own = mixing * *own + (1.0 - mixing) * *canonical;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::update;
    use proptest::prelude::*;

    #[test]
    fn rounds_take_turns_from_the_first() {
        let fragments = Fragments::new(4, 10 * CHUNK_ELEMENTS + 5, CHUNK_ELEMENTS);
        assert_eq!([1, 2, 3, 4, 5, 8, 9].map(|round| fragments.turn(round)), [0, 1, 2, 3, 0, 3, 0]);
        // 11 chunks: 2, 3, 3 and 3, the last of them short.
        let at = |chunk: usize| (chunk * CHUNK_ELEMENTS).min(fragments.elements());
        assert_eq!(
            (0..4).map(|f| fragments.range(f)).collect::<Vec<_>>(),
            [at(0)..at(2), at(2)..at(5), at(5)..at(8), at(8)..at(11)]
        );
        assert_eq!(fragments.of_round(6), at(2)..at(5));
        assert!(fragments.range(4).is_empty() && fragments.range(usize::MAX).is_empty());
        assert_eq!(Fragments::new(1, 77, CHUNK_ELEMENTS).of_round(u64::MAX), 0..77);
    }

    #[test]
    fn nothing_is_kept_without_mixing_and_half_with_one_half() {
        let mut own = [1.0, -0.0, f32::MIN_POSITIVE];
        mix(0.5, &mut own, &[3.0, 0.0, f32::MIN_POSITIVE]);
        assert_eq!(own, [2.0, 0.0, f32::MIN_POSITIVE]);
        mix(0.0, &mut own, &[-0.0, 1e-45, 7.0]);
        assert_eq!(own.map(f32::to_bits), [-0.0, 1e-45, 7.0f32].map(f32::to_bits));
    }

    proptest! {
        #[test]
        fn fragments_tile_the_vector_in_whole_chunks(count in 1u32..=64, elements in 1usize..100 * CHUNK_ELEMENTS) {
            let fragments = Fragments::new(count, elements, CHUNK_ELEMENTS);
            let chunks = update::chunks(elements);
            let mut at = 0;
            for range in (0..fragments.count()).map(|f| fragments.range(f)) {
                prop_assert_eq!(range.start, at);
                prop_assert!(range.start.is_multiple_of(CHUNK_ELEMENTS) || range.is_empty());
                prop_assert!(count as usize > chunks || !range.is_empty(), "each has a chunk if there are enough");
                at = range.end;
            }
            prop_assert_eq!(at, elements);
        }
    }
}
