//! Accelerators: the operations composed of Burn's own.
//!
//! The methods are `#[inline]` so that they are compiled only where they are used: a backend's kernels take minutes.

use super::composed::{self, Tables};
use super::{AttentionShape, AttentionWeights, HeadWeights, MlpWeights, Ops};
use burn_autodiff::Autodiff;
use burn_backend::tensor::{FloatTensor, IntTensor};
use burn_wgpu::Wgpu;

macro_rules! composed_ops {
    ($backend:ty) => {
        impl Ops for $backend {
            type Context = Tables<Self>;

            #[inline]
            fn embed(_: &Tables<Self>, table: FloatTensor<Self>, tokens: IntTensor<Self>) -> FloatTensor<Self> {
                composed::embed::<Self>(table, tokens)
            }

            #[inline]
            fn attention_block(
                tables: &Tables<Self>,
                shape: AttentionShape,
                x: FloatTensor<Self>,
                weights: AttentionWeights<Self>,
            ) -> FloatTensor<Self> {
                composed::attention_block::<Self>(tables, shape, x, weights)
            }

            #[inline]
            fn mlp_block(
                _: &Tables<Self>,
                eps: f32,
                x: FloatTensor<Self>,
                weights: MlpWeights<Self>,
            ) -> FloatTensor<Self> {
                composed::mlp_block::<Self>(eps, x, weights)
            }

            #[inline]
            fn head_loss(
                _: &Tables<Self>,
                eps: f32,
                x: FloatTensor<Self>,
                weights: HeadWeights<Self>,
                targets: IntTensor<Self>,
                scale: f32,
            ) -> FloatTensor<Self> {
                composed::head_loss::<Self>(eps, x, weights, targets, scale)
            }

            #[inline]
            fn head_logits(
                _: &Tables<Self>,
                eps: f32,
                x: FloatTensor<Self>,
                weights: HeadWeights<Self>,
            ) -> FloatTensor<Self> {
                composed::head_logits::<Self>(eps, x, weights)
            }
        }
    };
}

composed_ops!(Wgpu);
composed_ops!(Autodiff<Wgpu>);
#[cfg(feature = "cuda")]
composed_ops!(burn_cuda::Cuda);
#[cfg(feature = "cuda")]
composed_ops!(Autodiff<burn_cuda::Cuda>);
