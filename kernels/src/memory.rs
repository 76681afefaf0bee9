//! The memory that a trainer takes, estimated before it takes it.

use crate::config::ModelConfig;
use crate::host::optimizer::Rule;
use crate::ops::flex::block_rows;
use crate::train::TrainerOptions;

/// Bytes of the CPU trainer. An accelerator keeps the same parameters, gradients and moments on the device, and more
/// activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryEstimate {
    pub parameters: u64,
    pub gradients: u64,
    /// The optimizer's two moments.
    pub moments: u64,
    /// The copies that the optimizer makes in its step.
    pub copies: u64,
    /// The values between the inputs and the loss of one micro-batch, and the buffers of its passes.
    pub activations: u64,
}

impl MemoryEstimate {
    pub fn total(&self) -> u64 {
        self.parameters + self.gradients + self.moments + self.copies + self.activations
    }
}

/// The memory that training `model` takes.
///
/// Activations follow the CPU's operations: the buffers that each layer keeps for its backward pass, the largest set of
/// other buffers that one backward pass has in use, and the scratch of the threads.
pub fn memory_estimate(model: &ModelConfig, options: &TrainerOptions) -> MemoryEstimate {
    let size = |elements: u64| elements.saturating_mul(4);
    let parameters = size(model.parameters());
    MemoryEstimate {
        parameters,
        gradients: parameters,
        moments: 2 * parameters,
        copies: size(copies(model, options)),
        activations: size(activations(model, options)),
    }
}

/// Copies of the optimizer in floats: of each matrix that a thread makes orthogonal (`host/muon.rs`).
fn copies(model: &ModelConfig, options: &TrainerOptions) -> u64 {
    if options.rule != Rule::Muon {
        return 0;
    }
    let n = |x: usize| x as u64;
    let (short, long) = (n(model.d_model.min(model.ffn)), n(model.d_model.max(model.ffn)));
    n(options.threads) * (2 * short * long + 2 * short * short)
}

/// Activations in floats; see [`memory_estimate`].
fn activations(model: &ModelConfig, options: &TrainerOptions) -> u64 {
    let n = |x: usize| x as u64;
    let (d, ffn, heads, layers) = (n(model.d_model), n(model.ffn), n(model.heads), n(model.layers));
    let rows = n(options.batch) * n(model.seq_len);
    let qkv = d + 2 * n(model.kv_heads * model.head_dim());
    // Attention: input, inverse norm, queries, keys and values, mixed values, sums. Feed-forward: input, inverse
    // norm, gate and up.
    let kept = layers * rows * ((d + 1 + qkv + d + heads) + (d + 1 + 2 * ffn));
    let attention = rows * (d + d + qkv + d);
    let mlp = rows * (d + d + ffn.max(d));
    let block = n(block_rows(model.vocab)).min(rows);
    let head = rows * (3 * d + 1) + block * n(model.vocab);
    // Per thread: the rows it normalises or whose feed-forward it computes, and one attention unit with its scores.
    let threads = n(options.threads);
    let group = n(model.heads / model.kv_heads.max(1));
    let unit = (group + 2) * n(model.seq_len * model.head_dim()) + 2 * 64 * n(model.seq_len);
    let scratch = rows * d.max(ffn) + threads * unit;
    kept + attention + mlp + head + scratch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_as_it_should() {
        let options = TrainerOptions {
            batch: 4,
            accumulate: 1,
            threads: 2,
            rule: Rule::AdamW,
            beta1: 0.9,
            beta2: 0.99,
            eps: 1e-8,
            weight_decay: 0.1,
            clip: 1.0,
        };
        let model = ModelConfig::preset("3m").unwrap();
        let one = memory_estimate(&model, &options);
        assert_eq!(one.parameters, 4 * model.parameters());
        assert_eq!(one.total(), 4 * one.parameters + one.activations);
        let two = memory_estimate(&model, &TrainerOptions { batch: 8, ..options.clone() });
        assert!(two.activations > one.activations * 3 / 2 && two.activations < one.activations * 21 / 10);
        assert_eq!(memory_estimate(&model, &TrainerOptions { accumulate: 9, ..options.clone() }), one);
        let muon = memory_estimate(&model, &TrainerOptions { rule: Rule::Muon, ..options });
        let (d, ffn) = (model.d_model as u64, model.ffn as u64);
        assert_eq!(muon.total() - one.total(), 4 * 2 * (2 * d * ffn + 2 * d * d), "of two threads");
    }
}
