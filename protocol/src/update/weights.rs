//! The weight of each contribution of an attempt: its share of the tokens, reduced if it is far longer than the others.

use crate::message::Ready;
use crate::mutation::{Mutation, mutated};
use crate::run::Codec;

/// A contribution counts for no more than so many times the length of the others.
pub const CLIP: f64 = 3.0;

/// The statements of a READY about its contribution from which its weight follows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stated {
    /// The weight before clipping: the member's own tokens, and those that a difference in its contribution counts for.
    pub tokens: u64,
    /// Inner steps.
    pub steps: u32,
    /// L2 norm of the vector that is averaged.
    pub norm: f32,
}

impl From<&Ready> for Stated {
    fn from(ready: &Ready) -> Self {
        Self {
            tokens: ready.tokens.saturating_add(ready.merged_tokens),
            steps: ready.steps,
            norm: f32::from_bits(ready.measured.norm_bits),
        }
    }
}

/// Weights of the contributions of one attempt, in the order given: `tokens / sum of tokens`, times
/// `min(1, CLIP x reference / norm)`, in f64, rounded to f32 once.
///
/// The reference for member i is the upper median, over all contributors j whose norm is not 0, of `norm_j x max(1,
/// steps_i / steps_j)`: others' lengths brought up to i's steps, so that a member that has done all of its steps is not
/// clipped because others were late. With two members the reference is never below one's own norm. Clipped weight goes
/// to nobody, so a single contribution moves the mean by `CLIP x share` references at most (`docs/reliability.md`,
/// T16).
pub fn weights(stated: &[Stated]) -> Vec<f32> {
    let total = stated.iter().fold(0u64, |sum, s| sum.saturating_add(s.tokens));
    let norms: Vec<f64> = stated.iter().map(|s| f64::from(s.norm)).filter(|norm| *norm > 0.0).collect();
    // No reference is below this one: a member whose norm is not above it needs no reference of its own.
    let least = upper_median(norms);
    let scale = |own: &Stated| {
        let norm = f64::from(own.norm);
        if norm <= CLIP * least || mutated!(Mutation::NoNormClip) {
            return 1.0;
        }
        (CLIP * reference(own, stated) / norm).min(1.0)
    };
    stated.iter().map(|own| (share(own.tokens, total) * scale(own)) as f32).collect()
}

fn share(tokens: u64, total: u64) -> f64 {
    if total == 0 { 0.0 } else { tokens as f64 / total as f64 }
}

fn reference(own: &Stated, all: &[Stated]) -> f64 {
    let brought_up = |other: &Stated| {
        let factor = f64::from(own.steps) / f64::from(other.steps.max(1));
        f64::from(other.norm) * if mutated!(Mutation::ClipTheEarly) { 1.0 } else { factor.max(1.0) }
    };
    upper_median(all.iter().filter(|other| other.norm > 0.0).map(brought_up).collect())
}

/// The value at index `n / 2` of the sorted values; 0 if there are none.
fn upper_median(mut values: Vec<f64>) -> f64 {
    let middle = if mutated!(Mutation::LowerReference) { values.len().saturating_sub(1) / 2 } else { values.len() / 2 };
    if values.is_empty() { 0.0 } else { *values.select_nth_unstable_by(middle, f64::total_cmp).1 }
}

/// Whether the decoded values of a part, with this sum of squares, are longer than a contribution of the stated norm
/// can be. A part of a contribution exceeds this no sooner than the whole does.
pub fn is_longer_than_stated(codec: Codec, squares: f64, norm: f32) -> bool {
    squares.sqrt() > stretch(codec) * f64::from(norm) + TINY
}

/// The greatest length of a sum of contributions with these weights, as an owner sends it. `None` with codecs that
/// leave something out, since the sum may include what earlier sums left out.
pub fn longest_sum(codec: Codec, stated: &[Stated], weights: &[f32]) -> Option<f32> {
    if !matches!(codec, Codec::Bf16 | Codec::Int8) {
        return None;
    }
    let part = |(stated, weight): (&Stated, &f32)| f64::from(*weight) * f64::from(stated.norm);
    let sum: f64 = stated.iter().zip(weights).map(part).sum();
    Some((stretch(codec) * sum).min(f64::from(f32::MAX)) as f32)
}

/// The norm that the sum of contributions with these weights has at most before any encoding: the one by which
/// [`is_longer_than_stated`] judges the sums of a row, whose parts were encoded once.
pub fn longest_row_sum(stated: &[Stated], weights: &[f32]) -> f32 {
    let part = |(stated, weight): (&Stated, &f32)| f64::from(*weight) * f64::from(stated.norm);
    let sum: f64 = stated.iter().zip(weights).map(part).sum();
    sum.min(f64::from(f32::MAX)) as f32
}

/// Allowance for norms that are so small that f32 cannot state them.
const TINY: f64 = 1e-36;

/// The greatest ratio of the length of decoded values to that of the encoded ones, and a little more, for rounded
/// norms.
///
/// bf16 moves each value by 2^-8 of itself at most. A block of n values with the largest magnitude a has a scale s of
/// at most `(1 + 2^-7) a / L` (L = 127 or 7) and moves each value by `s / 2` at most, so all of them by `sqrt(n) / (2
/// L) (1 + 2^-7)` times a, and a is no longer than the block: 0.0635 with int8 (n = 256), 0.576 with int4 (n = 64).
/// Top-k leaves out values; each value that it keeps takes the nearer of two levels that are means of parts, so the
/// change is no greater than the values themselves.
fn stretch(codec: Codec) -> f64 {
    match codec {
        Codec::Bf16 => 1.01,
        Codec::Int8 => 1.07,
        Codec::Int4 => 1.6,
        Codec::TopK { .. } => 2.02,
    }
}

#[cfg(test)]
#[path = "weights_test.rs"]
mod tests;
