//! Rotary position embedding (Su et al., arXiv 2104.09864), with the halves paired as Hugging Face's Llama does:
//! element `i` turns with element `i + head_dim / 2`.

use super::simd::vectorized;

/// Cosines and sines for each position and pair.
#[derive(Clone, Debug)]
pub struct Table {
    half: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Table {
    pub fn new(positions: usize, head_dim: usize, theta: f64) -> Self {
        let half = head_dim / 2;
        let angle = |i: usize| {
            let (position, pair) = (i / half, i % half);
            position as f64 * theta.powf(-2.0 * pair as f64 / head_dim as f64)
        };
        let cos = (0..positions * half).map(|i| angle(i).cos() as f32).collect();
        let sin = (0..positions * half).map(|i| angle(i).sin() as f32).collect();
        Self { half, cos, sin }
    }

    /// `positions x head_dim / 2`, row-major.
    pub fn cos(&self) -> &[f32] {
        &self.cos
    }

    /// `positions x head_dim / 2`, row-major.
    pub fn sin(&self) -> &[f32] {
        &self.sin
    }

    /// Turn the first `heads` heads of each row of `rows` (which are `stride` wide) by the row's position; the first
    /// row has position `first % positions`, positions wrap around. `inverse` turns back.
    pub fn rotate(&self, rows: &mut [f32], stride: usize, heads: usize, first: usize, positions: usize, inverse: bool) {
        let half = self.half;
        let sign = if inverse { -1.0f32 } else { 1.0 };
        vectorized(
            #[inline(always)]
            || {
                for (row, x) in rows.chunks_exact_mut(stride).enumerate() {
                    let at = (first + row) % positions * half;
                    let (cos, sin) = (&self.cos[at..at + half], &self.sin[at..at + half]);
                    for head in x[..heads * 2 * half].chunks_exact_mut(2 * half) {
                        let (low, high) = head.split_at_mut(half);
                        for (((a, b), &c), &s) in low.iter_mut().zip(high).zip(cos).zip(sin) {
                            let (x, y, s) = (*a, *b, s * sign);
                            *a = x * c - y * s;
                            *b = y * c + x * s;
                        }
                    }
                }
            },
        );
    }
}
