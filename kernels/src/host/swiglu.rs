//! SwiGLU (Shazeer, arXiv 2002.05202): `act = silu(gate) * up`, with gate and up side by side in one row.

use super::simd::{exp, vectorized};

/// `act` (`rows x ffn`) of `gate_up` (`rows x 2 ffn`).
pub fn forward(gate_up: &[f32], act: &mut [f32], ffn: usize) {
    vectorized(
        #[inline(always)]
        || {
            for (row, act) in gate_up.chunks_exact(2 * ffn).zip(act.chunks_exact_mut(ffn)) {
                let (gate, up) = row.split_at(ffn);
                for ((a, &g), &u) in act.iter_mut().zip(gate).zip(up) {
                    *a = g * u / (1.0 + exp(-g));
                }
            }
        },
    );
}

/// Turns `gate_up` into its gradient and `dact` into `act` (which the gradient of the down projection needs).
pub fn backward(gate_up: &mut [f32], dact: &mut [f32], ffn: usize) {
    vectorized(
        #[inline(always)]
        || {
            for (row, dact) in gate_up.chunks_exact_mut(2 * ffn).zip(dact.chunks_exact_mut(ffn)) {
                let (gate, up) = row.split_at_mut(ffn);
                for ((d, g), u) in dact.iter_mut().zip(gate).zip(up) {
                    let sigmoid = 1.0 / (1.0 + exp(-*g));
                    let silu = *g * sigmoid;
                    let slope = sigmoid * (1.0 + *g - silu);
                    let (up, grad) = (*u, *d);
                    *u = grad * silu;
                    *g = grad * up * slope;
                    *d = silu * up;
                }
            }
        },
    );
}
