//! The attention block. It keeps for the backward pass: the inverse norms, the turned queries and keys, the values, the
//! mixed values and a logarithm a score row.

use super::context::{Context, Tracked, floats, tensor};
use super::weight::{GRAIN, Norm, Weight, add_gradient};
use crate::host::matrix::{Into, Matrix, MatrixMut, matmul};
use crate::host::pool::Buffer;
use crate::host::team::{Shared, with_scratch};
use crate::host::{attention, norm};
use crate::ops::{AttentionShape, AttentionWeights};
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::NoCheckpointing;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops as Step, OpsKind};
use burn_backend::TensorMetadata;
use burn_backend::tensor::FloatTensor;
use burn_flex::{Flex, FlexTensor};
use std::sync::{Arc, PoisonError};

/// The values that the backward pass needs beside the input and the weights.
#[derive(Debug)]
pub struct Kept {
    inverse: Buffer,
    qkv: Buffer,
    mixed: Buffer,
    /// One logarithm a token, for each sequence and query head.
    log_sum: Buffer,
}

pub fn forward(
    context: &Context,
    shape: AttentionShape,
    x: &FlexTensor,
    weights: &AttentionWeights<Flex>,
) -> (FlexTensor, Kept) {
    let [rows, width] = x.shape().dims();
    let x = floats(x);
    let h = shape.heads;
    let mut kept = Kept {
        inverse: context.pool.take(rows),
        qkv: context.pool.take(rows * h.row()),
        mixed: context.pool.take(rows * h.query_width()),
        log_sum: context.pool.take(rows * h.heads),
    };
    project(context, shape, x, weights, &mut kept);
    mix(context, shape, &mut kept);
    let mut y = context.pool.take(rows * width);
    let (out, weight, mixed) = (Shared::new(&mut y), Weight::of(&weights.out), &kept.mixed);
    context.team.ranges(rows, GRAIN, 1, |_, range| {
        let columns = range.start * width..range.end * width;
        // SAFETY: the ranges of rows do not overlap.
        let y = unsafe { out.part(columns.clone()) };
        y.copy_from_slice(&x[columns]);
        let mixed = &mixed[range.start * h.query_width()..range.end * h.query_width()];
        let mixed = Matrix::dense(mixed, range.len(), h.query_width());
        matmul(MatrixMut::dense(y, range.len(), width), Into::Add, 1.0, mixed, weight.matrix(h.query_width()).t());
    });
    (tensor(y, rows, width), kept)
}

/// Queries, keys and values of all rows; queries and keys are turned by their positions.
fn project(context: &Context, shape: AttentionShape, x: &[f32], weights: &AttentionWeights<Flex>, kept: &mut Kept) {
    let h = shape.heads;
    let (gain, weight) = (Weight::of(&weights.norm), Weight::of(&weights.qkv));
    let width = gain.data.len();
    let rows = kept.inverse.len();
    let (inverse, qkv) = (Shared::new(&mut kept.inverse), Shared::new(&mut kept.qkv));
    context.team.ranges(rows, GRAIN, 1, |_, range| {
        // SAFETY: the ranges of rows do not overlap.
        let (inverse, qkv) =
            unsafe { (inverse.part(range.clone()), qkv.part(range.start * h.row()..range.end * h.row())) };
        with_scratch(range.len() * width, |normed| {
            norm::forward(&x[range.start * width..range.end * width], gain.data, shape.eps, normed, inverse);
            let normed = Matrix::dense(normed, range.len(), width);
            matmul(MatrixMut::dense(qkv, range.len(), h.row()), Into::Replace, 1.0, normed, weight.matrix(width).t());
        });
        context.rope.rotate(qkv, h.row(), h.heads + h.kv_heads, range.start, shape.tokens, false);
    });
}

/// The values that each query gathers.
fn mix(context: &Context, shape: AttentionShape, kept: &mut Kept) {
    let (h, tokens) = (shape.heads, shape.tokens);
    let sequences = kept.inverse.len() / tokens;
    let (dim, group, width) = (h.head_dim, h.group(), h.query_width());
    let (qkv, mixed, log_sum) = (&kept.qkv, Shared::new(&mut kept.mixed), Shared::new(&mut kept.log_sum));
    context.team.each(sequences * h.kv_heads, |unit| {
        let (sequence, kv_head) = (unit / h.kv_heads, unit % h.kv_heads);
        let first = sequence * tokens;
        // SAFETY: units have their own heads of their own sequences.
        let log_sum = unsafe { log_sum.part(unit * group * tokens..(unit + 1) * group * tokens) };
        with_scratch(group * tokens * dim, |out| {
            attention::forward(h, kv_head, &qkv[first * h.row()..(first + tokens) * h.row()], out, log_sum);
            for (i, row) in out.chunks_exact(dim).enumerate() {
                let (member, token) = (i / tokens, i % tokens);
                let at = (first + token) * width + (kv_head * group + member) * dim;
                // SAFETY: as above.
                unsafe { mixed.part(at..at + dim) }.copy_from_slice(row);
            }
        });
    });
}

#[derive(Debug)]
struct Attention;

#[derive(Clone, Debug)]
struct State {
    context: Context,
    shape: AttentionShape,
    x: FlexTensor,
    weights: AttentionWeights<Flex>,
    kept: Arc<Kept>,
}

impl Backward<Flex, 4> for Attention {
    type State = State;

    fn backward(self, step: Step<State, 4>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = grads.consume::<Flex>(&step.node);
        let dx = backward(&step.state, &dy);
        if let [Some(x), ..] = step.parents {
            grads.register::<Flex>(x.id, dx);
        }
    }
}

fn backward(state: &State, dy: &FlexTensor) -> FlexTensor {
    let State { context, shape, x, weights, kept } = state;
    let [rows, width] = x.shape().dims();
    let (x, dy) = (floats(x), floats(dy));
    let h = shape.heads;
    let (out, qkv) = (Weight::of(&weights.out), Weight::of(&weights.qkv));
    let mut dmixed = context.pool.take(rows * h.query_width());
    let mut dx = context.pool.take(rows * width);
    let (dmixeds, dxs) = (Shared::new(&mut dmixed), Shared::new(&mut dx));
    context.team.ranges(rows, GRAIN, 1, |_, range| {
        let columns = range.start * width..range.end * width;
        // SAFETY: the ranges of rows do not overlap.
        let (dmixed, dx) = unsafe {
            (dmixeds.part(range.start * h.query_width()..range.end * h.query_width()), dxs.part(columns.clone()))
        };
        dx.copy_from_slice(&dy[columns.clone()]);
        let dy = Matrix::dense(&dy[columns], range.len(), width);
        let weight = out.matrix(h.query_width());
        matmul(MatrixMut::dense(dmixed, range.len(), h.query_width()), Into::Replace, 1.0, dy, weight);
    });
    let mut dqkv = context.pool.take(rows * h.row());
    unmix(context, *shape, kept, &dmixed, &mut dqkv);
    let mut gradients = context.gradients.lock().unwrap_or_else(PoisonError::into_inner);
    add_gradient(context, &mut gradients, out, dy, &kept.mixed, rows);
    let norm = Norm { x, gain: Weight::of(&weights.norm), inverse: &kept.inverse };
    norm.backward(context, &mut gradients, &dqkv, qkv, &mut dx);
    let mut normed = context.pool.take(rows * width);
    norm.replay(context, &mut normed);
    add_gradient(context, &mut gradients, qkv, &dqkv, &normed, rows);
    tensor(dx, rows, width)
}

/// Gradients of queries, keys and values before the turn.
fn unmix(context: &Context, shape: AttentionShape, kept: &Kept, dmixed: &[f32], dqkv: &mut [f32]) {
    let (h, tokens) = (shape.heads, shape.tokens);
    let (dim, group, width, row) = (h.head_dim, h.group(), h.query_width(), h.row());
    let rows = kept.inverse.len();
    let target = Shared::new(dqkv);
    context.team.each(rows / tokens * h.kv_heads, |unit| {
        let (sequence, kv_head) = (unit / h.kv_heads, unit % h.kv_heads);
        let range = sequence * tokens..(sequence + 1) * tokens;
        let source = attention::Kept {
            qkv: &kept.qkv[range.start * row..range.end * row],
            log_sum: &kept.log_sum[unit * group * tokens..(unit + 1) * group * tokens],
            dout: &dmixed[range.start * width..range.end * width],
            out: &kept.mixed[range.start * width..range.end * width],
        };
        let len = tokens * dim;
        with_scratch((group + 2) * len, |scratch| {
            let (dq, dkv) = scratch.split_at_mut(group * len);
            let (dk, dv) = dkv.split_at_mut(len);
            attention::backward(h, kv_head, source, dq, dk, dv);
            let query = kv_head * group * dim;
            let heads = (0..group).map(|member| query + member * dim);
            let columns =
                heads.chain([h.query_width() + kv_head * dim, h.query_width() + h.key_width() + kv_head * dim]);
            for (column, block) in columns.zip(scratch.chunks_exact(len)) {
                for (token, values) in range.clone().zip(block.chunks_exact(dim)) {
                    // SAFETY: units have their own heads of their own sequences.
                    unsafe { target.part(token * row + column..token * row + column + dim) }.copy_from_slice(values);
                }
            }
        });
    });
    context.team.ranges(rows, GRAIN, 1, |_, range| {
        // SAFETY: the ranges of rows do not overlap.
        let part = unsafe { target.part(range.start * row..range.end * row) };
        context.rope.rotate(part, row, h.heads + h.kv_heads, range.start, tokens, true);
    });
}

pub fn tracked(
    context: &Context,
    shape: AttentionShape,
    x: FloatTensor<Tracked>,
    weights: AttentionWeights<Tracked>,
) -> FloatTensor<Tracked> {
    let nodes = [x.node, weights.norm.node, weights.qkv.node, weights.out.node];
    let x = x.primitive;
    let weights =
        AttentionWeights { norm: weights.norm.primitive, qkv: weights.qkv.primitive, out: weights.out.primitive };
    let (y, kept) = forward(context, shape, &x, &weights);
    match Attention.prepare::<NoCheckpointing>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(prep) => {
            prep.finish(State { context: context.clone(), shape, x, weights, kept: Arc::new(kept) }, y)
        }
        OpsKind::UnTracked(prep) => prep.finish(y),
    }
}
