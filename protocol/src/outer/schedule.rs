//! The learning rate of AdamW over a run: a linear warm-up, and half a cosine down to a share of the peak.

use crate::record::Done;
use crate::run::{Budget, InnerSpec};
use std::f64::consts::PI;

/// Terms of the sine's series: the rest is below 1e-18 up to a right angle.
const TERMS: u32 = 10;

/// The rate of step `step` (from 0) of round `round` (from 1), which begins after the work `before`.
///
/// The warm-up counts inner steps, of which rounds may have different numbers. The cosine follows the spent share of the
/// budget, by rounds or by tokens, whichever is more. A member's own steps need the rate to be near only; with
/// `every-step` every member's state has its bits in it.
pub fn rate(inner: &InnerSpec, budget: &Budget, round: u64, step: u32, before: &Done) -> f64 {
    let warmup = ((before.steps as f64 + f64::from(step) + 1.0) / f64::from(inner.warmup_steps.max(1))).min(1.0);
    let by = |done: f64, all: u64| if all == 0 { 0.0 } else { (done / all as f64).min(1.0) };
    let share = by(round.saturating_sub(1) as f64, budget.rounds).max(by(before.tokens as f64, budget.tokens));
    let cosine = 0.5 * (1.0 + cosine(share));
    inner.lr * warmup * (inner.lr_final + (1.0 - inner.lr_final) * cosine)
}

/// `cos(pi x)` for x in 0..=1, as `sin(pi (1/2 - x))` by its series: platforms' own functions differ in the last bit.
fn cosine(x: f64) -> f64 {
    let z = PI * (0.5 - x);
    let square = z * z;
    let mut sum = 1.0;
    for term in (1..=TERMS).rev() {
        let divisor = f64::from(2 * term * (2 * term + 1));
        sum = 1.0 - sum * square / divisor;
    }
    z * sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::sample::spec;

    #[test]
    fn the_cosine_is_one_and_has_these_bits() {
        for n in 0..=1000 {
            let x = f64::from(n) / 1000.0;
            assert!((cosine(x) - (PI * x).cos()).abs() < 4e-16, "{x}");
        }
        let bits = [0.0, 0.1, 0.25, 0.5, 0.75, 1.0].map(|x| cosine(x).to_bits());
        assert_eq!(bits, COSINES);
    }

    const COSINES: [u64; 6] =
        [0x3fefffffffffffff, 0x3fee6f0e13445500, 0x3fe6a09e667f3bcc, 0x0, 0xbfe6a09e667f3bcc, 0xbfefffffffffffff];

    #[test]
    fn it_rises_and_falls_with_the_budget() {
        let inner = InnerSpec { steps: 1, lr: 1.0, lr_final: 0.1, warmup_steps: 10, ..spec().inner };
        let rounds = Budget { rounds: 100, tokens: 0 };
        let at = |round: u64| rate(&inner, &rounds, round, 0, &Done { tokens: 0, steps: round.saturating_sub(1) });
        assert!((at(1) - 0.1).abs() < 1e-12 && (at(5) - 0.5).abs() < 0.01);
        assert!((51..=101).all(|round| at(round) < at(round - 1)));
        assert!((at(101) - 0.1).abs() < 1e-12 && at(u64::MAX) == at(101));
        let tokens = Budget { rounds: 0, tokens: 1000 };
        assert!((rate(&inner, &tokens, 50, 0, &Done { tokens: 500, steps: 50 }) - 0.55).abs() < 1e-12);
        let long = Done { tokens: 1 << 40, steps: 1 << 40 };
        assert_eq!(rate(&inner, &Budget { rounds: 0, tokens: 0 }, 1 << 40, 0, &long), 1.0, "without an end it stays");
        let after_four = Done { tokens: 0, steps: 4 };
        assert!((rate(&inner, &rounds, 2, 1, &after_four) - 0.6).abs() < 0.01, "the sixth step");
    }
}
