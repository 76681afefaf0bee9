//! The order in which a run reads its samples: a keyed permutation, computed at any place without a table.
//!
//! Positions of a run count up for ever; position `p` of a run over `len` samples lies in epoch `p / len` and reads
//! sample `permutation(epoch)[p % len]`. Every epoch has a permutation of its own.
//!
//! The permutation is an alternating Feistel network on a grid of `a x b >= len` cells with `a` and `b` near the
//! root of `len`: each round adds to one coordinate a keyed function of the other, modulo the coordinate's size, which
//! can be undone and is therefore a bijection of the grid. A cell beyond `len` is sent through again until it lands
//! inside (cycle walking); as fewer than `a` cells are beyond, that is rare. The round function is an integer mixer
//! under keys derived by BLAKE3: statistically even, not a cipher.

use crate::mutation::{Mutation, mutated};

const ROUNDS: usize = 8;

/// Longest permutation: the grid, a little larger than it, is counted in u64.
pub const LEN_MAX: u64 = 1 << 62;

/// A bijection of `0 .. len`, fixed by seed, epoch and length.
#[derive(Clone, Debug)]
pub struct Permutation {
    len: u64,
    a: u64,
    b: u64,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// The permutation of one epoch of a run with this seed. A length above [`LEN_MAX`] is taken as that.
    pub fn new(seed: u64, epoch: u64, len: u64) -> Self {
        let len = len.min(LEN_MAX);
        let a = len.isqrt().max(1);
        let b = len.div_ceil(a).max(1);
        let mut hasher = blake3::Hasher::new_derive_key("starling permutation v1");
        for part in [seed, if mutated!(Mutation::OneKey) { 0 } else { epoch }, len] {
            hasher.update(&part.to_le_bytes());
        }
        let mut bytes = [0; 8 * ROUNDS];
        hasher.finalize_xof().fill(&mut bytes);
        let mut keys = [0; ROUNDS];
        for (key, bytes) in keys.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *key = u64::from_le_bytes(*bytes);
        }
        Self { len, a, b, keys }
    }

    /// Number of positions.
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value of position `index`, taken modulo the length; 0 for an empty permutation.
    pub fn get(&self, index: u64) -> u64 {
        if self.len == 0 {
            return 0;
        }
        let mut place = index % self.len;
        loop {
            place = self.step(place);
            if place < self.len {
                return place;
            }
        }
    }

    /// One pass over the grid.
    fn step(&self, place: u64) -> u64 {
        let (mut x, mut y) = (place / self.b, place % self.b);
        for pair in self.keys.as_chunks::<2>().0 {
            x = add_mod(x, scale(mix(y ^ pair[0]), self.a), self.a);
            y = add_mod(y, scale(mix(x ^ pair[1]), self.b), self.b);
        }
        x * self.b + y
    }
}

/// Finaliser of a 64-bit mixer: every bit of the input reaches every bit of the output (constants of splitmix64,
/// Steele, Lea and Flood 2014).
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Maps an even 64-bit value to `0 .. size`, evenly.
fn scale(value: u64, size: u64) -> u64 {
    ((u128::from(value) * u128::from(size)) >> 64) as u64
}

/// `x + y mod size` of two values below `size`.
fn add_mod(x: u64, y: u64, size: u64) -> u64 {
    let sum = x + y;
    if sum >= size { sum - size } else { sum }
}

/// A run's endless sequence of samples. It remembers the permutation of the epoch last asked for.
#[derive(Clone, Debug)]
pub struct SampleOrder {
    seed: u64,
    len: u64,
    epoch: u64,
    permutation: Permutation,
}

impl SampleOrder {
    /// The order of a run with this seed over `len` samples, at least one.
    pub fn new(seed: u64, len: u64) -> Self {
        let len = len.clamp(1, LEN_MAX);
        Self { seed, len, epoch: 0, permutation: Permutation::new(seed, 0, len) }
    }

    /// The sample at a position of the run.
    pub fn sample(&mut self, position: u64) -> u64 {
        let epoch = position / self.len;
        if epoch != self.epoch {
            self.epoch = epoch;
            self.permutation = Permutation::new(self.seed, epoch, self.len);
        }
        self.permutation.get(position % self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn is_a_bijection(seed: u64, epoch: u64, len in 1u64..3000) {
            let permutation = Permutation::new(seed, epoch, len);
            let mut hit = vec![false; len as usize];
            for i in 0..len {
                let place = permutation.get(i) as usize;
                prop_assert!(place < hit.len() && !hit[place]);
                hit[place] = true;
            }
        }

        #[test]
        fn stays_inside_at_any_length(seed: u64, len in 1u64..=LEN_MAX, index: u64) {
            prop_assert!(Permutation::new(seed, 0, len).get(index) < len);
        }
    }

    #[test]
    fn golden_places() {
        let permutation = Permutation::new(42, 1, 1000);
        let places: Vec<u64> = (0..8).map(|i| permutation.get(i)).collect();
        assert_eq!(places, GOLDEN);
        let far = Permutation::new(42, 1, LEN_MAX);
        assert_eq!([far.get(0), far.get(LEN_MAX - 1)], GOLDEN_FAR);
    }

    const GOLDEN: [u64; 8] = [924, 615, 806, 458, 470, 251, 0, 581];
    const GOLDEN_FAR: [u64; 2] = [3_610_749_668_359_284_093, 305_433_797_023_974_863];

    #[test]
    fn spreads_evenly_and_epochs_differ() {
        // Neighbouring positions are mapped far apart: any stretch hits the sixteenths of the range about equally
        // often, and two epochs share hardly a place.
        let (a, b) = (Permutation::new(7, 0, 1 << 20), Permutation::new(7, 1, 1 << 20));
        let mut counts = [0u32; 16];
        let mut same = 0;
        for i in 5000..5000 + 16_000 {
            counts[(a.get(i) >> 16) as usize] += 1;
            same += u32::from(a.get(i) == b.get(i));
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
        assert!(same <= 3, "{same} of 16000 places are equal");
    }

    #[test]
    fn a_run_reads_each_sample_once_an_epoch() {
        let mut order = SampleOrder::new(9, 10);
        let epochs: Vec<Vec<u64>> = (0..3).map(|e| (0..10).map(|i| order.sample(10 * e + i)).collect()).collect();
        assert_ne!(epochs[0], epochs[1]);
        for mut epoch in epochs {
            epoch.sort_unstable();
            assert_eq!(epoch, (0..10).collect::<Vec<_>>());
        }
        assert_eq!(Permutation::new(1, 1, 0).get(5), 0);
    }
}
