//! The ring: the place of each member, the chunks that each position owns, and the segments that travel on each hop.
//!
//! Position `p` of `n` sends to `p + 1` and receives from `p - 1` (mod `n`). The update's chunks are cut into `n`
//! segments; position `p` owns segment `p`.
//!
//! *Reduce-scatter*, hops `s = 0 .. n - 1`: `p` sends its partial sum of segment `p - 1 - s` and receives that of
//! segment `p - 2 - s`, to which it adds its own contribution. So on the last hop it receives segment `p`, adds its own
//! contribution, and has the whole sum of the segment that it owns. *All-gather*, hops `s = 0 .. n - 1`: `p` sends
//! segment `p - s` and receives segment `p - 1 - s`, finished. (All indices mod `n`; `n - 1` hops in each half; none
//! for `n = 1`.)

use crate::mutation::{Mutation, mutated};
use crate::{Digest, NodeId};
use std::ops::Range;

pub mod plan;
pub mod tour;

/// Members in ring order: by ascending digest of the parent record and the member's id. The order is new in each round,
/// so that no pair of slow neighbours stays together. If the head states round-trip times,
/// [`crate::record::Record::ring_of`] gives the ring of a reduction instead.
pub fn order(parent: &Digest, members: impl IntoIterator<Item = NodeId>) -> Vec<NodeId> {
    let place = |id: NodeId| (Digest::of("starling ring v1", &[&parent.0, &id.0]), id);
    let mut places: Vec<_> = members.into_iter().map(place).collect();
    places.sort_unstable();
    places.dedup();
    if mutated!(Mutation::RingBackwards) {
        places.reverse();
    }
    places.into_iter().map(|(_, id)| id).collect()
}

/// One half of an all-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Half {
    /// Partial sums travel; each hop adds.
    ReduceScatter,
    /// Finished, encoded sums travel; each hop forwards them as they are.
    AllGather,
}

/// The work of one position in one hop: it sends a segment to the next position and receives another from the one
/// before, at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    pub half: Half,
    /// From 0 in each half.
    pub step: usize,
    /// Segment to send to the next position.
    pub send: usize,
    /// Segment to receive from the position before.
    pub receive: usize,
}

/// A ring of some positions over some chunks. Pure arithmetic; every member computes the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    positions: usize,
    chunks: usize,
}

impl Ring {
    /// `positions` is at least 1; with fewer chunks than positions some positions own none.
    pub fn new(positions: usize, chunks: usize) -> Self {
        Self { positions: positions.max(1), chunks }
    }

    pub fn positions(&self) -> usize {
        self.positions
    }

    pub fn chunks(&self) -> usize {
        self.chunks
    }

    /// The position that `position` sends to.
    pub fn next(&self, position: usize) -> usize {
        (position + 1) % self.positions
    }

    /// The position that `position` receives from.
    pub fn previous(&self, position: usize) -> usize {
        (position + self.positions - 1) % self.positions
    }

    /// The chunks of a segment, which is also the position that owns it. Segments are contiguous, in order, cover
    /// all chunks, and differ by at most one in length.
    pub fn segment(&self, segment: usize) -> Range<usize> {
        let bound = |i: usize| ((i as u128 * self.chunks as u128) / self.positions as u128) as usize;
        let segment = segment % self.positions;
        bound(segment)..bound(segment + 1)
    }

    /// The segment that holds a chunk.
    pub fn owner(&self, chunk: usize) -> Option<usize> {
        if chunk >= self.chunks {
            return None;
        }
        // Inverse of `segment`: the largest p with floor(p * chunks / positions) <= chunk.
        let above = (chunk as u128 + 1) * self.positions as u128;
        Some(((above - 1) / self.chunks as u128) as usize)
    }

    /// Hops of `position`, in the order in which it makes them.
    pub fn hops(&self, position: usize) -> impl Iterator<Item = Hop> + Clone + use<> {
        let n = self.positions;
        let back = move |steps: usize| (position + 2 * n - steps) % n;
        let scatter = (0..n - 1).map(move |step| Hop {
            half: Half::ReduceScatter,
            step,
            send: back(1 + step),
            receive: back(2 + step),
        });
        let gather =
            (0..n - 1).map(move |step| Hop { half: Half::AllGather, step, send: back(step), receive: back(1 + step) });
        scatter.chain(gather)
    }

    /// Bytes of payload that `position` sends in one all-reduce, if segment `i` takes `encoded(range of chunks)` bytes:
    /// every segment but its own once, and every segment but the next one's once more. Frame headers are not counted.
    pub fn sent_bytes(&self, position: usize, encoded: impl Fn(Range<usize>) -> u64) -> u64 {
        if self.positions == 1 {
            return 0;
        }
        let total: u64 = (0..self.positions).map(|segment| encoded(self.segment(segment))).sum();
        2 * total - encoded(self.segment(position)) - encoded(self.segment(self.next(position)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Runs the schedule with exact integers; returns each position's final vector and the chunks it sent.
    fn simulate(n: usize, contributions: &[Vec<i64>]) -> (Vec<Vec<i64>>, Vec<u64>) {
        let ring = Ring::new(n, contributions[0].len());
        let mut held = contributions.to_vec();
        let mut sent = vec![0; n];
        let hop_of = |position: usize, index: usize| ring.hops(position).nth(index).unwrap();
        for index in 0..2 * (n - 1) {
            let before = held.clone();
            for (p, held) in held.iter_mut().enumerate() {
                let (from, hop) = (ring.previous(p), hop_of(p, index));
                let sends = hop_of(from, index);
                assert_eq!((sends.half, sends.send), (hop.half, hop.receive), "both ends name the same segment");
                let range = ring.segment(hop.receive);
                sent[from] += range.len() as u64;
                for chunk in range {
                    match hop.half {
                        Half::ReduceScatter => held[chunk] += before[from][chunk],
                        Half::AllGather => held[chunk] = before[from][chunk],
                    }
                }
            }
        }
        (held, sent)
    }

    #[test]
    fn the_order_ascends_by_place() {
        let parent = Digest([5; 32]);
        let order = order(&parent, (0..9).rev().map(|n| NodeId([n; 32])));
        let places: Vec<_> = order.iter().map(|id| Digest::of("starling ring v1", &[&parent.0, &id.0])).collect();
        assert!(places.len() == 9 && places.is_sorted());
    }

    proptest! {
        #[test]
        fn every_position_ends_with_the_sum(
            n in 1usize..=16,
            chunks in 0usize..50,
            seed in prop::collection::vec(-1_000_000i64..1_000_000, 16 * 50),
        ) {
            let contributions: Vec<Vec<i64>> = (0..n).map(|p| seed[p * 50..p * 50 + chunks].to_vec()).collect();
            let sum: Vec<i64> = (0..chunks).map(|c| contributions.iter().map(|v| v[c]).sum()).collect();
            let (held, sent) = simulate(n, &contributions);
            let ring = Ring::new(n, chunks);
            for p in 0..n {
                prop_assert_eq!(&held[p], &sum);
                prop_assert_eq!(sent[p], ring.sent_bytes(p, |range| range.len() as u64));
            }
        }

        #[test]
        fn segments_partition_the_chunks(n in 1usize..=64, chunks in 0usize..300) {
            let ring = Ring::new(n, chunks);
            let mut next = 0;
            for p in 0..n {
                let range = ring.segment(p);
                prop_assert_eq!(range.start, next);
                prop_assert!(range.len() == chunks / n || range.len() == chunks.div_ceil(n));
                for chunk in range.clone() {
                    prop_assert_eq!(ring.owner(chunk), Some(p));
                }
                next = range.end;
            }
            prop_assert_eq!(next, chunks);
            prop_assert_eq!(ring.owner(chunks), None);
        }
    }

    #[test]
    fn every_size_up_to_sixteen_sums() {
        for n in 1..=16 {
            for chunks in [0, 1, n - 1, n, n + 1, 3 * n + 2] {
                let contributions: Vec<Vec<i64>> =
                    (0..n).map(|p| (0..chunks).map(|c| (1 << p) + 100_000 * c as i64).collect()).collect();
                let expect: Vec<i64> = (0..chunks).map(|c| (1 << n) - 1 + 100_000 * (n * c) as i64).collect();
                assert!(simulate(n, &contributions).0.iter().all(|held| *held == expect), "n = {n}, {chunks} chunks");
            }
        }
    }

    #[test]
    fn the_owner_finishes_its_own_segment() {
        let ring = Ring::new(5, 20);
        for p in 0..5 {
            let last = ring.hops(p).filter(|hop| hop.half == Half::ReduceScatter).last().unwrap();
            assert_eq!(last.receive, p);
            let first = ring.hops(p).find(|hop| hop.half == Half::AllGather).unwrap();
            assert_eq!(first.send, p);
        }
    }

    #[test]
    fn order_depends_on_the_parent_and_not_on_the_input() {
        let members: Vec<NodeId> = (0..8).map(|i| NodeId([i; 32])).collect();
        let (a, b) = (Digest([1; 32]), Digest([2; 32]));
        let backwards: Vec<NodeId> = members.iter().rev().copied().collect();
        assert_eq!(order(&a, members.clone()), order(&a, backwards));
        assert_ne!(order(&a, members.clone()), order(&b, members.clone()));
    }
}
