//! AdamW (Loshchilov and Hutter, arXiv 1711.05101) over flat vectors, in one pass.

use super::simd::{sum, vectorized};
use super::team::{Shared, Team};

/// Elements that one task updates. The norm adds up squares by the same pieces, so that it does not depend on the
/// number of threads.
const PIECE: usize = 1 << 15;

/// One step's constants.
#[derive(Clone, Copy, Debug)]
pub struct Update {
    pub lr: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub weight_decay: f64,
    /// Factor on the gradient (clipping).
    pub gradient_scale: f64,
    /// Number of this step, from 1: corrects the bias of the moments.
    pub step: u64,
}

/// Euclidean norm of `g`.
pub fn norm(team: &Team, g: &[f32]) -> f64 {
    let mut squares = vec![0.0f32; g.len().div_ceil(PIECE)];
    let out = Shared::new(&mut squares);
    team.each(g.len().div_ceil(PIECE), |i| {
        let piece = &g[i * PIECE..((i + 1) * PIECE).min(g.len())];
        // SAFETY: each part writes its own element.
        let slot = unsafe { out.part(i..i + 1) };
        slot[0] = vectorized(
            #[inline(always)]
            || sum(piece, |x| x * x),
        );
    });
    squares.iter().map(|&s| f64::from(s)).sum::<f64>().sqrt()
}

/// Update `theta` and the moments by the gradient. `decayed` lists, in order, the ranges of elements and whether weight
/// decay applies to them; together they cover the vector.
pub fn step(
    team: &Team,
    update: Update,
    decayed: &[(std::ops::Range<usize>, bool)],
    theta: &mut [f32],
    [m, v]: [&mut [f32]; 2],
    gradient: &[f32],
) {
    let (theta, m, v) = (Shared::new(theta), Shared::new(m), Shared::new(v));
    let pieces: Vec<(std::ops::Range<usize>, bool)> = decayed
        .iter()
        .flat_map(|(range, decay)| {
            let end = range.end;
            range.clone().step_by(PIECE).map(move |at| (at..(at + PIECE).min(end), *decay))
        })
        .collect();
    team.each(pieces.len(), |i| {
        let (range, decay) = pieces[i].clone();
        // SAFETY: the pieces do not overlap.
        let (theta, m, v) = unsafe { (theta.part(range.clone()), m.part(range.clone()), v.part(range.clone())) };
        piece(update, if decay { update.weight_decay } else { 0.0 }, theta, m, v, &gradient[range]);
    });
}

fn piece(update: Update, weight_decay: f64, theta: &mut [f32], m: &mut [f32], v: &mut [f32], g: &[f32]) {
    let (b1, b2) = (update.beta1 as f32, update.beta2 as f32);
    let (c1, c2) = ((1.0 - update.beta1) as f32, (1.0 - update.beta2) as f32);
    let exponent = i32::try_from(update.step).unwrap_or(i32::MAX);
    let rate = (update.lr / (1.0 - update.beta1.powi(exponent))) as f32;
    let root = (1.0 / (1.0 - update.beta2.powi(exponent)).sqrt()) as f32;
    let keep = (1.0 - update.lr * weight_decay) as f32;
    let (eps, scale) = (update.eps as f32, update.gradient_scale as f32);
    vectorized(
        #[inline(always)]
        || {
            for (((t, m), v), &g) in theta.iter_mut().zip(m).zip(v).zip(g) {
                let g = g * scale;
                let first = b1 * *m + c1 * g;
                let second = b2 * *v + c2 * g * g;
                *m = first;
                *v = second;
                *t = *t * keep - rate * first / (second.sqrt() * root + eps);
            }
        },
    );
}
