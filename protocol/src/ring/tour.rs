//! Good rings: an order in which no hop takes long (`docs/protocol/2-records.md` §2.5.1).
//!
//! In a ring all wait for the slowest hop, so the largest edge counts first and the sum of edges second: the bottleneck
//! travelling salesman on directed edges. Small rings are solved exactly, by dynamic programming over sets of positions
//! (Held and Karp, "A Dynamic Programming Approach to Sequencing Problems", 1962), once for the largest edge and once
//! more for the sum of edges not above it. Larger ones are improved by a number of moves that a seed draws. The number
//! is fixed and does not depend on time, so that all nodes find the same ring.

use crate::Digest;
use crate::mutation::{Mutation, mutated};

/// Positions of a ring that is solved exactly: 2^10 sets of 11 positions each.
const EXACT_MAX: usize = 11;
/// Moves that are tried for each position of a larger ring.
const MOVES: usize = 200;
/// Positions that are moved together, at most.
const MOVED_MAX: usize = 3;

/// The cost of each hop: from position `a` to position `b`, in row `a`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Costs {
    positions: usize,
    hops: Vec<u32>,
}

impl Costs {
    /// The costs of hops between so many positions, by `cost(from, to)`.
    pub fn new(positions: usize, cost: impl Fn(usize, usize) -> u32) -> Self {
        let hops = (0..positions).flat_map(|a| (0..positions).map(move |b| (a, b))).map(|(a, b)| cost(a, b)).collect();
        Self { positions, hops }
    }

    fn hop(&self, from: usize, to: usize) -> u32 {
        self.hops.get(from * self.positions + to).copied().unwrap_or(u32::MAX)
    }

    /// The largest hop of a ring, and the sum of all hops.
    pub fn of(&self, ring: &[usize]) -> (u32, u64) {
        let next = ring.iter().cycle().skip(1);
        let hops = ring.iter().zip(next).map(|(a, b)| self.hop(*a, *b));
        hops.fold((0, 0), |(largest, sum), hop| (largest.max(hop), sum + u64::from(hop)))
    }
}

/// The positions in a good order, beginning with position 0; it is no worse than the given order.
pub fn best(costs: &Costs, seed: &Digest) -> Vec<usize> {
    let given: Vec<usize> = (0..costs.positions).collect();
    // There is only one ring of two.
    if given.len() < 3 {
        return given;
    }
    let found = if given.len() <= EXACT_MAX { exact(costs) } else { improved(costs, seed) };
    if costs.of(&found) < costs.of(&given) && !mutated!(Mutation::AnyRing) { found } else { given }
}

/// The best ring; of equal ones the first, compared position by position.
fn exact(costs: &Costs) -> Vec<usize> {
    let largest = |hop: u32, rest: u64| rest.max(u64::from(hop));
    let limit = Ways::new(costs, u32::MAX, largest).best();
    let limit = u32::try_from(limit).unwrap_or(u32::MAX);
    let add = |hop: u32, rest: u64| rest + u64::from(hop);
    let ways = Ways::new(costs, limit, add);
    let (mut ring, mut left) = (vec![0], ways.all());
    while left != 0 {
        let last = ring.last().copied().unwrap_or(0);
        // One of the next positions is on the best way.
        let next = ways.nexts(left).find(|next| ways.over(left, last, *next) == ways.rest(left, last));
        let Some(next) = next else { break };
        ring.push(next);
        left &= !(1 << (next - 1));
    }
    ring
}

/// The least cost of each way home: from a position through all positions of a set to position 0.
struct Ways<'a, F> {
    costs: &'a Costs,
    /// Hops above it are not taken.
    limit: u32,
    /// The cost of a hop and of the rest of the way.
    add: F,
    /// By set and by position; bit `p - 1` of a set is position p.
    rest: Vec<u64>,
}

impl<'a, F: Fn(u32, u64) -> u64> Ways<'a, F> {
    const NONE: u64 = u64::MAX;

    fn new(costs: &'a Costs, limit: u32, add: F) -> Self {
        let sets = 1usize << (costs.positions - 1);
        let mut ways = Self { costs, limit, add, rest: Vec::with_capacity(sets * costs.positions) };
        // Smaller sets come first: taking a position out of a set makes its number smaller.
        for set in 0..sets {
            for from in 0..costs.positions {
                let home = if set == 0 { ways.hop(from, 0, 0) } else { Self::NONE };
                let least = ways.nexts(set).map(|next| ways.over(set, from, next)).min();
                ways.rest.push(least.unwrap_or(home));
            }
        }
        ways
    }

    fn all(&self) -> usize {
        (1 << (self.costs.positions - 1)) - 1
    }

    fn best(&self) -> u64 {
        self.rest(self.all(), 0)
    }

    fn nexts(&self, set: usize) -> impl Iterator<Item = usize> + use<F> {
        (1..self.costs.positions).filter(move |next| set >> (next - 1) & 1 == 1)
    }

    fn rest(&self, set: usize, from: usize) -> u64 {
        self.rest.get(set * self.costs.positions + from).copied().unwrap_or(Self::NONE)
    }

    fn hop(&self, from: usize, to: usize, rest: u64) -> u64 {
        let hop = self.costs.hop(from, to);
        if rest == Self::NONE || hop > self.limit { Self::NONE } else { (self.add)(hop, rest) }
    }

    /// The cost from a position through a set, first to `next`, which is in the set.
    fn over(&self, set: usize, from: usize, next: usize) -> u64 {
        self.hop(from, next, self.rest(set & !(1 << (next - 1)), next))
    }
}

/// The better of the given order and the nearest-neighbour order, improved by moves.
fn improved(costs: &Costs, seed: &Digest) -> Vec<usize> {
    let given: Vec<usize> = (0..costs.positions).collect();
    let nearest = nearest(costs);
    let mut ring = if costs.of(&nearest) < costs.of(&given) { nearest } else { given };
    let mut cost = costs.of(&ring);
    let mut draws = Draws::new(seed);
    for _ in 0..MOVES * costs.positions {
        let tried = if draws.below(2) == 0 { reversed(&ring, &mut draws) } else { moved(&ring, &mut draws) };
        let after = costs.of(&tried);
        if after < cost {
            (ring, cost) = (tried, after);
        }
    }
    let start = ring.iter().position(|position| *position == 0).unwrap_or(0);
    ring.rotate_left(start);
    ring
}

/// The ring from position 0, always to the nearest position that is left; of equally near ones the first.
fn nearest(costs: &Costs) -> Vec<usize> {
    let (mut ring, mut left) = (vec![0], (1..costs.positions).collect::<Vec<_>>());
    let mut last = 0;
    while let Some(index) = (0..left.len()).min_by_key(|index| (costs.hop(last, left[*index]), left[*index])) {
        last = left.remove(index);
        ring.push(last);
    }
    ring
}

/// 2-opt (Croes 1958): reverses a part of the ring.
fn reversed(ring: &[usize], draws: &mut Draws) -> Vec<usize> {
    let (a, b) = (draws.below(ring.len()), draws.below(ring.len()));
    let mut tried = ring.to_vec();
    tried[a.min(b)..=a.max(b)].reverse();
    tried
}

/// Or-opt (Or 1976): moves some neighbours to another place, perhaps reversed.
fn moved(ring: &[usize], draws: &mut Draws) -> Vec<usize> {
    let mut tried = ring.to_vec();
    tried.rotate_left(draws.below(ring.len()));
    let length = 1 + draws.below(MOVED_MAX);
    let mut part: Vec<usize> = tried.drain(..length).collect();
    if draws.below(2) == 0 {
        part.reverse();
    }
    let place = draws.below(tried.len());
    tried.splice(place..place, part);
    tried
}

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
struct Draws(u64);

impl Draws {
    fn new(seed: &Digest) -> Self {
        Self(u64::from_le_bytes(std::array::from_fn(|i| seed.0[i])))
    }

    /// A number below `limit`, which is small.
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit.max(1) as u64) as usize
    }
}

#[cfg(test)]
#[path = "tour_test.rs"]
mod tests;
