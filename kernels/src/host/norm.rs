//! RMSNorm (Zhang and Sennrich, arXiv 1910.07467): `y = g * x / sqrt(mean(x^2) + eps)`, row by row.

use super::simd::{sum, sum3, vectorized};

/// Normalise rows of `x` into `y`, both `rows x gain.len()`; `inverse[row]` receives `1 / sqrt(mean(x^2) + eps)`.
pub fn forward(x: &[f32], gain: &[f32], eps: f32, y: &mut [f32], inverse: &mut [f32]) {
    let width = gain.len();
    vectorized(
        #[inline(always)]
        || {
            for ((x, y), inverse) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(inverse) {
                let square = sum(x, |v| v * v);
                let scale = 1.0 / (square / width as f32 + eps).sqrt();
                *inverse = scale;
                for ((y, &x), &g) in y.iter_mut().zip(x).zip(gain) {
                    *y = x * scale * g;
                }
            }
        },
    );
}

/// Computes [`forward`]'s output again, from the kept inverses.
pub fn replay(x: &[f32], gain: &[f32], inverse: &[f32], y: &mut [f32]) {
    let width = gain.len();
    vectorized(
        #[inline(always)]
        || {
            for ((x, y), &scale) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(inverse) {
                for ((y, &x), &g) in y.iter_mut().zip(x).zip(gain) {
                    *y = x * scale * g;
                }
            }
        },
    );
}

/// Gradients: adds to `dx` what flows through the norm from `dy`, and to `dgain` the gain's share of these rows.
pub fn backward(x: &[f32], gain: &[f32], inverse: &[f32], dy: &[f32], dx: &mut [f32], dgain: &mut [f32]) {
    let width = gain.len();
    let rows = x.chunks_exact(width).zip(dy.chunks_exact(width)).zip(dx.chunks_exact_mut(width)).zip(inverse);
    vectorized(
        #[inline(always)]
        || {
            for (((x, dy), dx), &scale) in rows {
                for ((d, &x), &dy) in dgain.iter_mut().zip(x).zip(dy) {
                    *d += dy * x * scale;
                }
                // With n = x * scale: dx = scale * (g * dy - n * mean(g * dy * n)).
                let mean = sum3(x, gain, dy, |x, g, dy| x * g * dy) * scale / width as f32;
                for (((d, &x), &dy), &g) in dx.iter_mut().zip(x).zip(dy).zip(gain) {
                    *d += scale * (g * dy - x * scale * mean);
                }
            }
        },
    );
}
