//! The operations as compositions of Burn's own, for any backend, with Burn's own gradients.

use super::{AttentionShape, AttentionWeights, HeadWeights, MlpWeights};
use crate::host::rope;
use burn_backend::Backend;
use burn_backend::tensor::{FloatTensor, IntTensor};
use burn_tensor::{Bool, Int, Tensor, TensorData, TensorPrimitive, activation};

/// Tables that the composed operations read, on the device.
#[derive(Clone, Debug)]
pub struct Tables<B: Backend> {
    /// `[positions, head_dim / 2]`.
    cos: Tensor<B, 2>,
    sin: Tensor<B, 2>,
    /// `[positions, positions]`, true where a key lies after the query.
    hidden: Tensor<B, 2, Bool>,
}

impl<B: Backend> Tables<B> {
    pub fn new(positions: usize, head_dim: usize, theta: f64, device: &B::Device) -> Self {
        let table = rope::Table::new(positions, head_dim, theta);
        let upload =
            |data: &[f32]| Tensor::from_data(TensorData::new(data.to_vec(), [positions, head_dim / 2]), device);
        let hidden = Tensor::<B, 2, Bool>::tril_mask([positions, positions], 0, device);
        Self { cos: upload(table.cos()), sin: upload(table.sin()), hidden }
    }
}

fn wrap<B: Backend, const D: usize>(tensor: FloatTensor<B>) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(tensor))
}

fn unwrap<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> FloatTensor<B> {
    tensor.into_primitive().tensor()
}

/// `x * weight^T` for a weight of `[out, in]`.
fn linear<B: Backend>(x: Tensor<B, 2>, weight: FloatTensor<B>) -> Tensor<B, 2> {
    x.matmul(wrap::<B, 2>(weight).transpose())
}

fn norm<B: Backend>(x: Tensor<B, 2>, gain: FloatTensor<B>, eps: f32) -> Tensor<B, 2> {
    let mean = x.clone().powi_scalar(2).mean_dim(1);
    let gain = wrap::<B, 1>(gain).unsqueeze::<2>();
    x / (mean + eps).sqrt() * gain
}

/// See [`super::Ops::embed`].
pub fn embed<B: Backend>(table: FloatTensor<B>, tokens: IntTensor<B>) -> FloatTensor<B> {
    unwrap(wrap::<B, 2>(table).select(0, Tensor::<B, 1, Int>::from_primitive(tokens)))
}

/// Turn `[batch, heads, tokens, head_dim]`.
fn rotate<B: Backend>(tables: &Tables<B>, x: Tensor<B, 4>) -> Tensor<B, 4> {
    let [_, _, tokens, dim] = x.dims();
    let half = dim / 2;
    let cos = tables.cos.clone().narrow(0, 0, tokens).unsqueeze::<4>();
    let sin = tables.sin.clone().narrow(0, 0, tokens).unsqueeze::<4>();
    let low = x.clone().narrow(3, 0, half);
    let high = x.narrow(3, half, half);
    let turned = [low.clone() * cos.clone() - high.clone() * sin.clone(), high * cos + low * sin];
    Tensor::cat(turned.to_vec(), 3)
}

/// See [`super::Ops::attention_block`].
pub fn attention_block<B: Backend>(
    tables: &Tables<B>,
    shape: AttentionShape,
    x: FloatTensor<B>,
    weights: AttentionWeights<B>,
) -> FloatTensor<B> {
    let x = wrap::<B, 2>(x);
    let h = shape.heads;
    let [rows, _] = x.dims();
    let (tokens, dim) = (shape.tokens, h.head_dim);
    let batch = rows / tokens;
    let qkv = linear(norm(x.clone(), weights.norm, shape.eps), weights.qkv);
    let part = |first: usize, heads: usize| {
        let part = qkv.clone().narrow(1, first * dim, heads * dim);
        part.reshape([batch, tokens, heads, dim]).swap_dims(1, 2)
    };
    let q = rotate(tables, part(0, h.heads));
    // A key serves the queries of its group: fold the group into the rows of the product.
    let q = q.reshape([batch, h.kv_heads, h.group() * tokens, dim]);
    let k = rotate(tables, part(h.heads, h.kv_heads));
    let v = part(h.heads + h.kv_heads, h.kv_heads);
    let scores = q.matmul(k.swap_dims(2, 3)).mul_scalar(1.0 / (dim as f32).sqrt());
    let scores = scores.reshape([batch, h.heads, tokens, tokens]);
    let hidden = tables.hidden.clone().slice([0..tokens, 0..tokens]).unsqueeze::<4>();
    let scores = scores.mask_fill(hidden.expand([batch, h.heads, tokens, tokens]), -1.0e30);
    let p = activation::softmax(scores, 3).reshape([batch, h.kv_heads, h.group() * tokens, tokens]);
    let mixed = p.matmul(v).reshape([batch, h.heads, tokens, dim]);
    let mixed = mixed.swap_dims(1, 2).reshape([rows, h.heads * dim]);
    unwrap(x + linear(mixed, weights.out))
}

/// See [`super::Ops::mlp_block`].
pub fn mlp_block<B: Backend>(eps: f32, x: FloatTensor<B>, weights: MlpWeights<B>) -> FloatTensor<B> {
    let x = wrap::<B, 2>(x);
    let gate_up = linear(norm(x.clone(), weights.norm, eps), weights.gate_up);
    let ffn = gate_up.dims()[1] / 2;
    let act = activation::silu(gate_up.clone().narrow(1, 0, ffn)) * gate_up.narrow(1, ffn, ffn);
    unwrap(x + linear(act, weights.down))
}

/// See [`super::Ops::head_logits`].
pub fn head_logits<B: Backend>(eps: f32, x: FloatTensor<B>, weights: HeadWeights<B>) -> FloatTensor<B> {
    unwrap(linear(norm(wrap::<B, 2>(x), weights.norm, eps), weights.output))
}

/// See [`super::Ops::head_loss`].
pub fn head_loss<B: Backend>(
    eps: f32,
    x: FloatTensor<B>,
    weights: HeadWeights<B>,
    targets: IntTensor<B>,
    scale: f32,
) -> FloatTensor<B> {
    let logits = wrap::<B, 2>(head_logits::<B>(eps, x, weights));
    let rows = logits.dims()[0];
    let targets = Tensor::<B, 1, Int>::from_primitive(targets).reshape([rows, 1]);
    let chosen = activation::log_softmax(logits, 1).gather(1, targets);
    unwrap(chosen.sum().mul_scalar(-scale))
}
