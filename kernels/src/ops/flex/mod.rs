//! The operations on `Flex`, fused, with hand-written gradients.
//!
//! Weights are views of one flat vector, and their gradients are added straight to a flat vector of the same layout
//! ([`Context::gradients`]): autodiff tracks the activations, and no tensor is made for the gradient of a weight.
//! A weight takes part in the graph as a tracked leaf, so operations are recorded as for any other backend, but the
//! gradients container holds nothing for it.

mod attention;
mod context;
mod embed;
mod head;
mod mlp;
mod weight;

pub use context::{Context, Tracked};
pub use head::block_rows;

use super::{AttentionShape, AttentionWeights, HeadWeights, MlpWeights, Ops};
use burn_backend::tensor::{FloatTensor, IntTensor};
use burn_flex::Flex;

impl Ops for Flex {
    type Context = Context;

    fn embed(context: &Context, table: FloatTensor<Self>, tokens: IntTensor<Self>) -> FloatTensor<Self> {
        embed::forward(context, &table, &tokens)
    }

    fn attention_block(
        context: &Context,
        shape: AttentionShape,
        x: FloatTensor<Self>,
        weights: AttentionWeights<Self>,
    ) -> FloatTensor<Self> {
        attention::forward(context, shape, &x, &weights).0
    }

    fn mlp_block(context: &Context, eps: f32, x: FloatTensor<Self>, weights: MlpWeights<Self>) -> FloatTensor<Self> {
        mlp::forward(context, eps, &x, &weights).0
    }

    fn head_loss(
        context: &Context,
        eps: f32,
        x: FloatTensor<Self>,
        weights: HeadWeights<Self>,
        targets: IntTensor<Self>,
        scale: f32,
    ) -> FloatTensor<Self> {
        head::loss(context, &head::Problem { eps, x, weights, targets, scale }, None)
    }

    fn head_logits(context: &Context, eps: f32, x: FloatTensor<Self>, weights: HeadWeights<Self>) -> FloatTensor<Self> {
        head::logits(context, eps, &x, &weights)
    }
}

impl Ops for Tracked {
    type Context = Context;

    fn embed(context: &Context, table: FloatTensor<Self>, tokens: IntTensor<Self>) -> FloatTensor<Self> {
        embed::tracked(context, table, tokens)
    }

    fn attention_block(
        context: &Context,
        shape: AttentionShape,
        x: FloatTensor<Self>,
        weights: AttentionWeights<Self>,
    ) -> FloatTensor<Self> {
        attention::tracked(context, shape, x, weights)
    }

    fn mlp_block(context: &Context, eps: f32, x: FloatTensor<Self>, weights: MlpWeights<Self>) -> FloatTensor<Self> {
        mlp::tracked(context, eps, x, weights)
    }

    fn head_loss(
        context: &Context,
        eps: f32,
        x: FloatTensor<Self>,
        weights: HeadWeights<Self>,
        targets: IntTensor<Self>,
        scale: f32,
    ) -> FloatTensor<Self> {
        head::tracked(context, eps, x, weights, targets, scale)
    }

    fn head_logits(context: &Context, eps: f32, x: FloatTensor<Self>, weights: HeadWeights<Self>) -> FloatTensor<Self> {
        // Logits are for inference: nothing flows back through them.
        let weights = HeadWeights { norm: weights.norm.primitive, output: weights.output.primitive };
        <Self as burn_backend::AutodiffBackend>::from_inner(head::logits(context, eps, &x.primitive, &weights))
    }
}
