//! One seed, one history: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream for a purpose: streams of one seed do not depend on one another.
    pub fn new(seed: u64, purpose: &str) -> Self {
        let digest = crate::Digest::of("starling sim random v1", &[&seed.to_le_bytes(), purpose.as_bytes()]);
        let mut word = [0; 8];
        word.copy_from_slice(&digest.0[..8]);
        Self(u64::from_le_bytes(word))
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.draw() % (high.max(low) - low + 1)
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.draw() % 100 < percent
    }

    pub fn pick<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        let index = self.draw() as usize;
        items.get(index.checked_rem(items.len())?).copied()
    }

    /// A delay: most often near `mean`, now and then several times as long.
    pub fn delay(&mut self, mean: u64) -> u64 {
        let doublings = (self.draw() | 1 << 4).trailing_zeros();
        self.between(mean / 4, mean) << (doublings / 2)
    }
}
