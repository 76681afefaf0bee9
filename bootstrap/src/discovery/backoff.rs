//! The waits before the next attempt.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(200);
const LEAST: Duration = Duration::from_secs(1);
/// The longest wait without jitter; with the jitter of a quarter it is 30 s.
const MOST: Duration = Duration::from_secs(24);

/// Waits of 0.2 s, 1 s, 2 s, 4 s and so on, with jitter from a seed: equal seeds give equal waits.
#[derive(Debug)]
pub struct Backoff {
    random: u64,
}

impl Backoff {
    pub fn new(seed: u64) -> Self {
        Self { random: seed }
    }

    /// The wait after so many failed rounds.
    pub fn after(&mut self, rounds: u32) -> Duration {
        let doubled = LEAST.saturating_mul(1 << rounds.saturating_sub(2).min(5));
        self.jittered(if rounds < 2 { FIRST } else { doubled.min(MOST) })
    }

    /// `base` plus up to a quarter of it.
    pub fn jittered(&mut self, base: Duration) -> Duration {
        // splitmix64 (Steele, Lea, Flood 2014).
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        base + base / 4 * ((z ^ (z >> 31)) >> 44) as u32 / (1 << 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_thirty_seconds_and_follow_from_the_seed() {
        let waits = |seed| {
            let mut backoff = Backoff::new(seed);
            (1..100).map(|rounds| backoff.after(rounds).as_secs_f64()).collect::<Vec<_>>()
        };
        let first = waits(7);
        for (wait, base) in first.iter().zip([0.2, 1.0, 2.0, 4.0, 8.0, 16.0].into_iter().chain(std::iter::repeat(24.0)))
        {
            assert!((base..=base * 1.25).contains(wait), "{wait} of {base}");
        }
        assert_eq!(first, waits(7));
        assert_ne!(first, waits(8));
    }
}
