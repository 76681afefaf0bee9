//! The frames of one attempt of a ring, in the order in which they leave and arrive.
//!
//! Finished sums of former attempts go first, from those that have them to those that lack them. The other chunks then
//! go around in the schedule of [`Ring`], whose segments are cut from the list of these chunks. Everything follows from
//! the words of all members, so both ends of a hop expect the same frames (`docs/protocol/3-reduction.md` §3.4.3).
//!
//! A member passes a finished sum on as soon as it has it. Its frames are ordered by the number of hops that the sums
//! have come, so a frame never waits for one that itself waits for it, however the sums are spread.

use super::{Half, Ring};
use crate::frame::FrameKind;
use crate::mutation::{Mutation, mutated};

/// A frame that this member sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaving {
    pub kind: FrameKind,
    pub chunk: usize,
    /// The number of frames that have to have arrived before.
    pub after: usize,
    /// It carries this member's own part, and no bytes that lie on the board.
    pub begins: bool,
}

/// A frame that this member receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arriving {
    pub kind: FrameKind,
    pub chunk: usize,
    /// With this member's own part the sum is finished; or it arrives finished.
    pub finishes: bool,
    /// The number of hops that have arrived whole before it.
    pub hops: usize,
}

/// All frames of one member.
#[derive(Debug)]
pub struct Plan {
    pub leaving: Vec<Leaving>,
    pub arriving: Vec<Arriving>,
    /// Hops in all, empty ones included.
    pub hops: usize,
    /// The number of the leaving frame with this member's partial sum, by chunk.
    partial: Vec<Option<usize>>,
}

/// The finished sums of all members.
struct Finished<'a>(&'a [Vec<bool>]);

impl Finished<'_> {
    fn has(&self, position: usize, chunk: usize) -> bool {
        self.0.get(position).and_then(|sums| sums.get(chunk)).copied().unwrap_or(false)
    }

    /// Hops to `position` from the nearest member at or before it that has the sum; none if nobody has it.
    fn way(&self, position: usize, chunk: usize) -> Option<usize> {
        let members = self.0.len();
        (0..members).find(|back| self.has((position + members - back) % members, chunk))
    }

    /// The sums that `position` sends on to the next member, with the hops that they have come: by these, then by
    /// chunk.
    fn sent_by(&self, position: usize, chunks: usize) -> Vec<(usize, usize)> {
        let next = (position + 1) % self.0.len().max(1);
        let lacking = (0..chunks).filter(|chunk| !self.has(next, *chunk));
        let mut sent: Vec<_> = lacking.filter_map(|chunk| Some((self.way(position, chunk)?, chunk))).collect();
        if mutated!(Mutation::PassNoSumsOn) {
            sent.retain(|(hops, _)| *hops == 0);
        }
        sent.sort_unstable();
        sent
    }
}

impl Plan {
    /// The plan of the member at `position`. `finished` says for each member and chunk whether the member has the sum
    /// from a former attempt; nothing is kept of chunks that it does not reach.
    pub fn new(position: usize, chunks: usize, finished: &[Vec<bool>]) -> Self {
        let (members, finished) = (finished.len().max(1), Finished(finished));
        let mut plan = Self { leaving: Vec::new(), arriving: Vec::new(), hops: 0, partial: vec![None; chunks] };
        let left: Vec<usize> = (0..chunks).filter(|chunk| finished.way(position, *chunk).is_none()).collect();
        if left.len() < chunks {
            plan.pass_on(position, chunks, &finished);
        }
        plan.reduce(position, Ring::new(members, left.len()), &left);
        plan
    }

    /// Adds the frames of sums that are kept.
    fn pass_on(&mut self, position: usize, chunks: usize, finished: &Finished<'_>) {
        let members = finished.0.len();
        let mut arrived_as = vec![None; chunks];
        for (hops, chunk) in finished.sent_by((position + members - 1) % members, chunks) {
            arrived_as[chunk] = Some(self.arriving.len());
            self.arriving.push(Arriving { kind: FrameKind::Reduced, chunk, finishes: true, hops });
        }
        for (_, chunk) in finished.sent_by(position, chunks) {
            let after = arrived_as[chunk].map_or(0, |index| index + 1);
            self.leaving.push(Leaving { kind: FrameKind::Reduced, chunk, after, begins: false });
        }
        self.hops = members - 1;
    }

    /// Adds the frames of the chunks that are left to be reduced.
    fn reduce(&mut self, position: usize, ring: Ring, left: &[usize]) {
        let kind_of = |half: Half| match half {
            Half::ReduceScatter => FrameKind::Contrib,
            Half::AllGather => FrameKind::Reduced,
        };
        // The first segment sent begins here; after that, each frame that arrives is the next one to leave.
        let mut arrived = self.arriving.len();
        for (number, hop) in ring.hops(position).enumerate() {
            let (kind, begins) = (kind_of(hop.half), number == 0);
            for chunk in ring.segment(hop.send).map(|index| left[index]) {
                if kind == FrameKind::Contrib {
                    self.partial[chunk] = Some(self.leaving.len());
                }
                arrived += usize::from(!begins);
                let after = if begins { 0 } else { arrived };
                self.leaving.push(Leaving { kind, chunk, after, begins });
            }
            for chunk in ring.segment(hop.receive).map(|index| left[index]) {
                let ends = hop.receive == position || mutated!(Mutation::KeepPartialSums);
                let finishes = kind == FrameKind::Reduced || ends;
                self.arriving.push(Arriving { kind, chunk, finishes, hops: self.hops });
            }
            self.hops += 1;
        }
    }

    /// The number of hops that have arrived whole with so many frames.
    pub fn hops_with(&self, frames: usize) -> usize {
        self.arriving.get(frames).map_or(self.hops, |frame| frame.hops)
    }

    /// Whether this member's partial sum of the chunk is among the frames from `picked` on.
    pub fn has_unsent_partial(&self, chunk: usize, picked: usize) -> bool {
        self.partial.get(chunk).copied().flatten().is_some_and(|frame| frame >= picked)
    }
}

#[cfg(test)]
#[path = "plan_test.rs"]
mod tests;
