//! Attention in plain f64 arithmetic, forward and backward, row by row.

use crate::attention::Shape;

/// Right answers.
pub struct Reference {
    pub out: Vec<f64>,
    pub lse: Vec<f64>,
    pub dqkv: Vec<f64>,
}

impl Reference {
    pub fn new(shape: Shape, qkv: &[f32], dout: &[f32]) -> Self {
        let mut right =
            Reference { out: vec![0.0; dout.len()], lse: vec![0.0; shape.sums()], dqkv: vec![0.0; qkv.len()] };
        for batch in 0..shape.batch {
            for head in 0..shape.heads {
                for token in 0..shape.tokens {
                    right.row(shape, qkv, dout, (batch, head, token));
                }
            }
        }
        right
    }

    fn row(&mut self, shape: Shape, qkv: &[f32], dout: &[f32], (batch, head, token): (usize, usize, usize)) {
        let Shape { tokens, heads, kv_heads, head_dim, .. } = shape;
        let kv = head / (heads / kv_heads);
        let at = |token: usize, slot: usize| ((batch * tokens + token) * (heads + 2 * kv_heads) + slot) * head_dim;
        let (q, k, v) = (at(token, head), |t| at(t, heads + kv), |t| at(t, heads + kv_heads + kv));
        let o = ((batch * tokens + token) * heads + head) * head_dim;
        let scale = 1.0 / (head_dim as f64).sqrt();
        let dot = |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(a, b)| *a as f64 * *b as f64).sum() };
        let part = |from: usize| &qkv[from..from + head_dim];
        let scores: Vec<f64> = (0..=token).map(|t| dot(part(q), part(k(t))) * scale).collect();
        let highest = scores.iter().copied().fold(f64::MIN, f64::max);
        let log = highest + scores.iter().map(|s| (s - highest).exp()).sum::<f64>().ln();
        self.lse[(batch * heads + head) * tokens + token] = log;
        let weights: Vec<f64> = scores.iter().map(|s| (s - log).exp()).collect();
        for d in 0..head_dim {
            self.out[o + d] = weights.iter().enumerate().map(|(t, w)| w * qkv[v(t) + d] as f64).sum();
        }
        let gains: Vec<f64> = (0..=token).map(|t| dot(&dout[o..o + head_dim], part(v(t)))).collect();
        let delta: f64 = gains.iter().zip(&weights).map(|(g, w)| g * w).sum();
        for t in 0..=token {
            let slope = weights[t] * (gains[t] - delta) * scale;
            for d in 0..head_dim {
                self.dqkv[q + d] += slope * qkv[k(t) + d] as f64;
                self.dqkv[k(t) + d] += slope * qkv[q + d] as f64;
                self.dqkv[v(t) + d] += weights[t] * dout[o + d] as f64;
            }
        }
    }
}

/// The largest difference, relative to the largest element; infinite where something is not finite.
pub fn largest_error(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(1e-6, |most: f64, w| most.max(w.abs()));
    let errors = got.iter().zip(want).map(|(g, w)| if g.is_finite() { (*g as f64 - w).abs() } else { f64::INFINITY });
    errors.fold(0.0, f64::max) / largest
}

/// Numbers between -2 and 2 from a linear congruential generator.
pub fn noise(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 22) as f32 - 2.0
    };
    (0..len).map(|_| next()).collect()
}
