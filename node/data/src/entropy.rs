//! The entropy of a byte given the one before it: the best loss of a model that sees only one byte back.

/// Counts pairs of neighbouring bytes.
pub(crate) struct PairCounts {
    /// `counts[a << 8 | b]`: how often b follows a.
    counts: Vec<u64>,
    last: Option<u8>,
}

impl PairCounts {
    pub fn new() -> Self {
        Self { counts: vec![0; 1 << 16], last: None }
    }

    pub fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if let Some(last) = self.last {
                self.counts[usize::from(last) << 8 | usize::from(byte)] += 1;
            }
            self.last = Some(byte);
        }
    }

    /// H(b | a) = (sum over a of n_a ln n_a - sum over a, b of n_ab ln n_ab) / n, in millionths of a nat.
    ///
    /// An integer, computed in a fixed order without library functions. It enters the manifest, and every machine that
    /// prepares the same text must write the same bytes.
    pub fn conditional_micronats(&self) -> u32 {
        let (mut firsts, mut pairs, mut total) = (0.0, 0.0, 0u64);
        for row in self.counts.chunks_exact(256) {
            let sum: u64 = row.iter().sum();
            total += sum;
            firsts += n_ln_n(sum);
            pairs += row.iter().map(|&count| n_ln_n(count)).sum::<f64>();
        }
        if total == 0 {
            return 0;
        }
        ((firsts - pairs) / total as f64 * 1e6).round() as u32
    }
}

fn n_ln_n(n: u64) -> f64 {
    if n < 2 { 0.0 } else { n as f64 * ln(n as f64) }
}

/// Natural logarithm of x >= 1 with + - * / only, to about 1e-15: x = m 2^e with m in [0.7, 1.42), and ln m = 2
/// artanh((m - 1) / (m + 1)) as a series.
fn ln(x: f64) -> f64 {
    const LN_2: f64 = std::f64::consts::LN_2;
    let mut exponent = (x.to_bits() >> 52) as i32 - 1023;
    let mut mantissa = f64::from_bits(x.to_bits() & ((1 << 52) - 1) | 1023 << 52);
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa /= 2.0;
        exponent += 1;
    }
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let series = (0..13).rev().fold(0.0, |sum, k| sum * square + 1.0 / f64::from(2 * k + 1));
    f64::from(exponent) * LN_2 + 2.0 * s * series
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn micronats(bytes: &[u8]) -> u32 {
        let mut counts = PairCounts::new();
        counts.add(bytes);
        counts.conditional_micronats()
    }

    #[test]
    fn known_sources() {
        assert_eq!(micronats(b""), 0);
        assert_eq!(micronats(&b"ab".repeat(1000)), 0);
        // Each of the 256 bytes follows each equally often: ln 256 nats.
        let all: Vec<u8> = (0..=255u8).flat_map(|a| (0..=255u8).flat_map(move |b| [a, b])).collect();
        assert!(micronats(&all) > 5_000_000 && micronats(&all) <= 5_545_178);
    }

    #[test]
    fn pairs_reach_over_pieces() {
        let mut counts = PairCounts::new();
        b"abracadabra".chunks(2).for_each(|piece| counts.add(piece));
        assert_eq!(counts.conditional_micronats(), micronats(b"abracadabra"));
    }

    proptest! {
        #[test]
        fn agrees_with_the_textbook(text in prop::collection::vec(0u8..6, 2..400)) {
            let (mut pairs, mut firsts) = (BTreeMap::new(), BTreeMap::new());
            for pair in text.windows(2) {
                *pairs.entry((pair[0], pair[1])).or_insert(0.0) += 1.0;
                *firsts.entry(pair[0]).or_insert(0.0) += 1.0;
            }
            let n = (text.len() - 1) as f64;
            let entropy: f64 = pairs.iter().map(|((a, _), count): (_, &f64)| -count / n * (count / firsts[a]).ln()).sum();
            prop_assert!((f64::from(micronats(&text)) - entropy * 1e6).abs() <= 1.0);
        }

        #[test]
        fn logarithm_is_right(x in 1.0f64..1e18) {
            prop_assert!((ln(x) - x.ln()).abs() <= 1e-14 * (1.0 + x.ln()));
        }
    }
}
