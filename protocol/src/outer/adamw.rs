//! AdamW (Loshchilov and Hutter, arXiv 1711.05101) on the mean gradient, with clipping by its global norm.

use super::schedule;
use crate::limits::CHUNK_ELEMENTS;
use crate::mutation::{Mutation, mutated};
use crate::record::Record;
use crate::run::{Gains, InnerSpec, ModelSpec, RunSpec};
use std::ops::Range;

/// Sums of squares that go side by side, so that they fit vector registers.
const LANES: usize = 8;

/// One step's constants, each computed in f64 and rounded to f32 once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    clip: f64,
    beta1: f32,
    rest1: f32,
    beta2: f32,
    rest2: f32,
    /// The learning rate over the first moment's bias.
    rate: f32,
    /// One over the root of the second moment's bias.
    root: f32,
    eps: f32,
    /// The factor that weight decay leaves of a parameter.
    keep: f32,
    gains: Gains,
}

impl AdamW {
    /// The step that makes the state of the COMMIT after `parent`. Its number, which corrects the bias of young
    /// moments, is that COMMIT's round: rounds count the COMMITs that lead to a state, also through forks, and nothing
    /// else changes a state. The terms are those in force after `parent`.
    pub fn of(spec: &RunSpec, parent: &Record) -> Self {
        let number = parent.round.saturating_add(1);
        let spec = parent.next.settings.in_force(spec);
        let lr = schedule::rate(&spec.inner, &spec.budget, number, 0, &parent.done());
        Self::new(&spec.inner, &spec.model, number, lr)
    }

    /// Step `number` (from 1) at this learning rate. Only betas, epsilon, decay and clip of `inner` matter.
    pub fn new(inner: &InnerSpec, model: &ModelSpec, number: u64, lr: f64) -> Self {
        let bias = |beta: f64| 1.0 - power(beta, number);
        Self {
            clip: inner.clip,
            beta1: inner.beta1 as f32,
            rest1: (1.0 - inner.beta1) as f32,
            beta2: inner.beta2 as f32,
            rest2: (1.0 - inner.beta2) as f32,
            rate: (lr / bias(inner.beta1)) as f32,
            root: (1.0 / bias(inner.beta2).sqrt()) as f32,
            eps: inner.eps as f32,
            keep: (1.0 - lr * inner.weight_decay) as f32,
            gains: Gains::of(model),
        }
    }

    pub(super) fn clips(&self) -> bool {
        self.clip > 0.0
    }

    /// The factor that brings a gradient with this sum of squares down to the clip.
    pub(super) fn scale(&self, squares: f64) -> f32 {
        let norm = squares.sqrt();
        if self.clips() && norm > self.clip { (self.clip / norm) as f32 } else { 1.0 }
    }

    /// See [`super::Rule::step`].
    ///
    /// ```text
    /// g     <- scale * d
    /// m     <- beta1 * m + rest1 * g
    /// v     <- beta2 * v + (rest2 * g) * g
    /// theta <- theta * keep - (rate * m) / (sqrt(v) * root + eps)      keep = 1 for gains
    /// ```
    pub(super) fn step(
        &self,
        scale: f32,
        first: usize,
        theta: &mut [f32],
        [m, v]: [&mut [f32]; 2],
        update: &[f32],
    ) -> bool {
        assert!(
            [theta.len(), m.len(), v.len()] == [update.len(); 3],
            "parameters, moments and gradient are of one model"
        );
        let mut finite = true;
        let first = first as u64;
        for (range, gain) in self.gains.cut(first..first.saturating_add(update.len() as u64)) {
            let range = (range.start - first) as usize..(range.end - first) as usize;
            let keep = if gain && !mutated!(Mutation::DecayOfGains) { 1.0 } else { self.keep };
            finite &= self.piece((scale, keep), range, theta, [m, v], update);
        }
        finite
    }

    fn piece(
        &self,
        (scale, keep): (f32, f32),
        range: Range<usize>,
        theta: &mut [f32],
        [m, v]: [&mut [f32]; 2],
        update: &[f32],
    ) -> bool {
        let mut finite = true;
        let (theta, m, v) = (&mut theta[range.clone()], &mut m[range.clone()], &mut v[range.clone()]);
        for (((theta, m), v), d) in theta.iter_mut().zip(m).zip(v).zip(&update[range]) {
            let g = scale * d;
            *m = self.beta1 * *m + self.rest1 * g;
            *v = self.beta2 * *v + (self.rest2 * g) * g;
            *theta = *theta * keep - (self.rate * *m) / (v.sqrt() * self.root + self.eps);
            finite &= theta.is_finite() & m.is_finite() & v.is_finite();
        }
        finite
    }
}

/// The sum of the squares of one chunk of an update, at most [`CHUNK_ELEMENTS`]: element i is added to sum i mod 8, and
/// then the eight sums are added in order, all in f64.
pub fn squares(chunk: &[f32]) -> f64 {
    debug_assert!(chunk.len() <= CHUNK_ELEMENTS, "chunks are those of the update");
    let mut sums = [0f64; LANES];
    for eight in chunk.chunks(LANES) {
        for (sum, x) in sums.iter_mut().zip(eight) {
            *sum += f64::from(*x) * f64::from(*x);
        }
    }
    sums.iter().sum()
}

/// `base^exponent`, by squaring from the lowest bit of the exponent: platforms' own functions differ in their bits.
fn power(base: f64, mut exponent: u64) -> f64 {
    let (mut result, mut square) = (1.0, base);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= square;
        }
        square *= square;
        exponent >>= 1;
    }
    result
}

#[cfg(test)]
#[path = "adamw_test.rs"]
mod tests;
