//! The transformer, on any backend that has [`Ops`].

use crate::config::ModelConfig;
use crate::ops::{AttentionShape, AttentionWeights, HeadWeights, Heads, MlpWeights, Ops};
use crate::schema::{Layout, Place};
use burn_backend::tensor::{FloatTensor, IntTensor};

/// All weights, in the groups that the operations take.
pub(crate) struct Weights<B: Ops> {
    embed: FloatTensor<B>,
    layers: Vec<(AttentionWeights<B>, MlpWeights<B>)>,
    head: HeadWeights<B>,
}

impl<B: Ops> Weights<B> {
    /// Asks `tensor` once for each place (a tied output is the embedding's tensor again).
    pub fn of(layout: &Layout, mut tensor: impl FnMut(&Place) -> FloatTensor<B>) -> Self {
        let embed = tensor(&layout.embed);
        let layers = layout
            .layers
            .iter()
            .map(|layer| {
                let attention = AttentionWeights {
                    norm: tensor(&layer.attention_norm),
                    qkv: tensor(&layer.qkv),
                    out: tensor(&layer.out),
                };
                let mlp = MlpWeights {
                    norm: tensor(&layer.mlp_norm),
                    gate_up: tensor(&layer.gate_up),
                    down: tensor(&layer.down),
                };
                (attention, mlp)
            })
            .collect();
        let norm = tensor(&layout.norm);
        let output = if layout.output == layout.embed { embed.clone() } else { tensor(&layout.output) };
        Self { embed, layers, head: HeadWeights { norm, output } }
    }
}

/// The model's constants, ready for the operations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Model {
    heads: Heads,
    eps: f32,
}

impl Model {
    pub fn of(config: &ModelConfig) -> Self {
        let heads = Heads { heads: config.heads, kv_heads: config.kv_heads, head_dim: config.head_dim() };
        Self { heads, eps: config.norm_eps as f32 }
    }

    /// Rows after the last layer, for sequences of `length` tokens one after the other.
    fn hidden<B: Ops>(
        &self,
        context: &B::Context,
        weights: &Weights<B>,
        tokens: IntTensor<B>,
        length: usize,
    ) -> FloatTensor<B> {
        let shape = AttentionShape { heads: self.heads, tokens: length, eps: self.eps };
        let mut x = B::embed(context, weights.embed.clone(), tokens);
        for (attention, mlp) in &weights.layers {
            x = B::attention_block(context, shape, x, attention.clone());
            x = B::mlp_block(context, self.eps, x, mlp.clone());
        }
        x
    }

    /// `scale` times the sum of the cross-entropies of the next token, in nats: `[1]`.
    pub fn loss<B: Ops>(
        &self,
        context: &B::Context,
        weights: &Weights<B>,
        tokens: IntTensor<B>,
        targets: IntTensor<B>,
        length: usize,
        scale: f32,
    ) -> FloatTensor<B> {
        let x = self.hidden(context, weights, tokens, length);
        B::head_loss(context, self.eps, x, weights.head.clone(), targets, scale)
    }

    /// Logits of the token after the last one of a single sequence: `[1, vocab]`.
    pub fn next_logits<B: Ops>(
        &self,
        context: &B::Context,
        weights: &Weights<B>,
        tokens: IntTensor<B>,
        length: usize,
    ) -> FloatTensor<B> {
        let x = self.hidden(context, weights, tokens, length);
        let last = burn_backend::Slice::new(length as isize - 1, Some(length as isize), 1);
        let x = B::float_slice(x, &[last]);
        B::head_logits(context, self.eps, x, weights.head.clone())
    }
}
