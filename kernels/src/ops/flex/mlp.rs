//! The SwiGLU block. It keeps for the backward pass: the inverse norms and the outputs of gate and up.

use super::context::{Context, Tracked, floats, tensor};
use super::weight::{GRAIN, Norm, Weight, add_gradient};
use crate::host::matrix::{Into, Matrix, MatrixMut, matmul};
use crate::host::pool::Buffer;
use crate::host::team::{Shared, with_scratch};
use crate::host::{norm, swiglu};
use crate::ops::MlpWeights;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::NoCheckpointing;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops as Step, OpsKind};
use burn_backend::TensorMetadata;
use burn_backend::tensor::FloatTensor;
use burn_flex::{Flex, FlexTensor};
use std::sync::{Arc, Mutex, PoisonError};

/// The values that the backward pass needs beside the input and the weights.
#[derive(Debug)]
pub struct Kept {
    inverse: Buffer,
    /// `rows x 2 ffn`; the backward pass turns it into its own gradient.
    gate_up: Buffer,
}

pub fn forward(context: &Context, eps: f32, x: &FlexTensor, weights: &MlpWeights<Flex>) -> (FlexTensor, Kept) {
    let [rows, width] = x.shape().dims();
    let ffn = weights.down.shape()[1];
    let (gain, gate_up, down) = (Weight::of(&weights.norm), Weight::of(&weights.gate_up), Weight::of(&weights.down));
    let x = floats(x);
    let mut y = context.pool.take(rows * width);
    let mut kept = Kept { inverse: context.pool.take(rows), gate_up: context.pool.take(rows * 2 * ffn) };
    let (out, inverse, hidden) = (Shared::new(&mut y), Shared::new(&mut kept.inverse), Shared::new(&mut kept.gate_up));
    context.team.ranges(rows, GRAIN, 1, |_, range| {
        let (count, columns) = (range.len(), range.start * width..range.end * width);
        // SAFETY: the ranges of rows do not overlap.
        let (y, inverse, hidden) = unsafe {
            (
                out.part(columns.clone()),
                inverse.part(range.clone()),
                hidden.part(range.start * 2 * ffn..range.end * 2 * ffn),
            )
        };
        let x = &x[columns];
        with_scratch(count * width, |normed| {
            norm::forward(x, gain.data, eps, normed, inverse);
            let normed = Matrix::dense(normed, count, width);
            matmul(MatrixMut::dense(hidden, count, 2 * ffn), Into::Replace, 1.0, normed, gate_up.matrix(width).t());
        });
        with_scratch(count * ffn, |act| {
            swiglu::forward(hidden, act, ffn);
            y.copy_from_slice(x);
            let act = Matrix::dense(act, count, ffn);
            matmul(MatrixMut::dense(y, count, width), Into::Add, 1.0, act, down.matrix(ffn).t());
        });
    });
    (tensor(y, rows, width), kept)
}

#[derive(Debug)]
struct Mlp;

#[derive(Clone, Debug)]
struct State {
    context: Context,
    x: FlexTensor,
    weights: MlpWeights<Flex>,
    /// Shared because Burn wants states that can be cloned; it does not clone them.
    kept: Arc<Mutex<Kept>>,
}

impl Backward<Flex, 4> for Mlp {
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
    let State { context, x, weights, kept } = state;
    let [rows, width] = x.shape().dims();
    let (x, dy) = (floats(x), floats(dy));
    let (gate_up, down) = (Weight::of(&weights.gate_up), Weight::of(&weights.down));
    let ffn = down.data.len() / width;
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    let Kept { inverse, gate_up: hidden } = &mut *kept;
    let mut act = context.pool.take(rows * ffn);
    let mut dx = context.pool.take(rows * width);
    let (acts, hiddens, dxs) = (Shared::new(&mut act), Shared::new(hidden), Shared::new(&mut dx));
    context.team.ranges(rows, GRAIN, 1, |_, range| {
        let (count, columns) = (range.len(), range.start * width..range.end * width);
        // SAFETY: the ranges of rows do not overlap.
        let (act, hidden, dx) = unsafe {
            (
                acts.part(range.start * ffn..range.end * ffn),
                hiddens.part(range.start * 2 * ffn..range.end * 2 * ffn),
                dxs.part(columns.clone()),
            )
        };
        let dy = &dy[columns];
        dx.copy_from_slice(dy);
        let dy = Matrix::dense(dy, count, width);
        matmul(MatrixMut::dense(act, count, ffn), Into::Replace, 1.0, dy, down.matrix(ffn));
        swiglu::backward(hidden, act, ffn);
    });
    let mut gradients = context.gradients.lock().unwrap_or_else(PoisonError::into_inner);
    add_gradient(context, &mut gradients, down, dy, &act, rows);
    drop(act);
    let norm = Norm { x, gain: Weight::of(&weights.norm), inverse };
    norm.backward(context, &mut gradients, hidden, gate_up, &mut dx);
    let mut normed = context.pool.take(rows * width);
    norm.replay(context, &mut normed);
    add_gradient(context, &mut gradients, gate_up, hidden, &normed, rows);
    tensor(dx, rows, width)
}

pub fn tracked(
    context: &Context,
    eps: f32,
    x: FloatTensor<Tracked>,
    weights: MlpWeights<Tracked>,
) -> FloatTensor<Tracked> {
    let nodes = [x.node, weights.norm.node, weights.gate_up.node, weights.down.node];
    let x = x.primitive;
    let weights =
        MlpWeights { norm: weights.norm.primitive, gate_up: weights.gate_up.primitive, down: weights.down.primitive };
    let (y, kept) = forward(context, eps, &x, &weights);
    match Mlp.prepare::<NoCheckpointing>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(prep) => {
            let kept = Arc::new(Mutex::new(kept));
            prep.finish(State { context: context.clone(), x, weights, kept }, y)
        }
        OpsKind::UnTracked(prep) => prep.finish(y),
    }
}
