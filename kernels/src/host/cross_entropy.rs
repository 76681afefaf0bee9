//! Cross-entropy of rows of logits.

use super::simd::{exp, max, sum, vectorized};

/// `losses[row] = -ln softmax(logits)[target]`, in nats.
///
/// With `scale`, the logits are replaced by the gradient of `scale` times the sum of the losses.
///
/// # Panics
/// If a target is not below `vocab`.
pub fn rows(logits: &mut [f32], targets: &[i32], vocab: usize, scale: Option<f32>, losses: &mut [f32]) {
    vectorized(
        #[inline(always)]
        || {
            for ((row, &target), loss) in logits.chunks_exact_mut(vocab).zip(targets).zip(losses) {
                let top = max(row);
                let target = target as usize;
                let at_target = row[target] - top;
                let norm = match scale {
                    None => sum(row, |x| exp(x - top)),
                    Some(scale) => {
                        row.iter_mut().for_each(|x| *x = exp(*x - top));
                        let norm = sum(row, |x| x);
                        let factor = scale / norm;
                        row.iter_mut().for_each(|x| *x *= factor);
                        row[target] -= scale;
                        norm
                    }
                };
                *loss = norm.ln() - at_target;
            }
        },
    );
}
