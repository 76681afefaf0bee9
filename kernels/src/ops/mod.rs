//! The operations that Starling adds to Burn's backends.
//!
//! Each is as large as half a layer, so that a backend may fuse within it. On `Flex` they run on raw host buffers
//! with hand-written gradients ([`flex`]). The same operations composed of Burn's own ([`composed`]) are what the tests
//! compare them with.

pub mod composed;
pub mod flex;

use burn_backend::Backend;
use burn_backend::tensor::{FloatTensor, IntTensor};

pub use crate::host::attention::Heads;

/// Sizes and constants of one attention block.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    pub heads: Heads,
    /// Tokens a sequence: rows of `x` are sequences of this length, one after the other.
    pub tokens: usize,
    pub eps: f32,
}

/// Weights of an attention block; matrices are `[out, in]`.
#[derive(Clone, Debug)]
pub struct AttentionWeights<B: Backend> {
    /// Gain of the norm before, `[width]`.
    pub norm: FloatTensor<B>,
    /// Queries, keys and values one after the other, `[(heads + 2 kv_heads) * head_dim, width]`.
    pub qkv: FloatTensor<B>,
    /// `[width, heads * head_dim]`.
    pub out: FloatTensor<B>,
}

/// Weights of a SwiGLU block; matrices are `[out, in]`.
#[derive(Clone, Debug)]
pub struct MlpWeights<B: Backend> {
    /// Gain of the norm before, `[width]`.
    pub norm: FloatTensor<B>,
    /// Gate, then up, `[2 ffn, width]`.
    pub gate_up: FloatTensor<B>,
    /// `[width, ffn]`.
    pub down: FloatTensor<B>,
}

/// Weights after the last layer.
#[derive(Clone, Debug)]
pub struct HeadWeights<B: Backend> {
    /// Gain of the last norm, `[width]`.
    pub norm: FloatTensor<B>,
    /// `[vocab, width]`.
    pub output: FloatTensor<B>,
}

/// A Burn backend with the operations of a decoder-only transformer. Activations are `[rows, width]`.
pub trait Ops: Backend {
    /// The resources of the operations beside tensors: threads and buffers, or tables on the device.
    type Context: Clone + Send;

    /// Rows of `table` (`[vocab, width]`) for each of `tokens` (`[rows]`): `[rows, width]`.
    fn embed(context: &Self::Context, table: FloatTensor<Self>, tokens: IntTensor<Self>) -> FloatTensor<Self>;

    /// `x + out(attention(rope(qkv(norm(x)))))`, causal within each sequence.
    fn attention_block(
        context: &Self::Context,
        shape: AttentionShape,
        x: FloatTensor<Self>,
        weights: AttentionWeights<Self>,
    ) -> FloatTensor<Self>;

    /// `x + down(silu(gate(norm(x))) * up(norm(x)))`.
    fn mlp_block(
        context: &Self::Context,
        eps: f32,
        x: FloatTensor<Self>,
        weights: MlpWeights<Self>,
    ) -> FloatTensor<Self>;

    /// `scale` times the sum over the rows of the cross-entropy in nats of `output(norm(x))` against `targets`
    /// (`[rows]`): `[1]`.
    fn head_loss(
        context: &Self::Context,
        eps: f32,
        x: FloatTensor<Self>,
        weights: HeadWeights<Self>,
        targets: IntTensor<Self>,
        scale: f32,
    ) -> FloatTensor<Self>;

    /// `output(norm(x))`: `[rows, vocab]`.
    fn head_logits(
        context: &Self::Context,
        eps: f32,
        x: FloatTensor<Self>,
        weights: HeadWeights<Self>,
    ) -> FloatTensor<Self>;
}
