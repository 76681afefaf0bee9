//! The last norm, the projection on the vocabulary and the cross-entropy, fused. Logits exist for a few rows at a time.
//!
//! When tracked, the gradients are computed along with the loss, for an incoming gradient of one, as Liger's fused
//! linear cross-entropy does (arXiv 2410.10989): the loss is the end of the graph. If another gradient comes in, a
//! second pass corrects the weights' share.

use super::context::{Context, Tracked, floats, integers, tensor};
use super::weight::{GRAIN, Norm, Weight, add_gradient};
use crate::host::matrix::{Into, Matrix, MatrixMut, matmul};
use crate::host::pool::Buffer;
use crate::host::team::Shared;
use crate::host::{cross_entropy, norm};
use crate::ops::HeadWeights;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::NoCheckpointing;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops as Step, OpsKind};
use burn_backend::TensorMetadata;
use burn_backend::tensor::FloatTensor;
use burn_flex::{Flex, FlexTensor};
use std::sync::PoisonError;

/// Most logits that exist at once: bounds their memory (16 MiB) for any vocabulary.
pub const LOGITS: usize = 1 << 22;

/// Rows whose logits exist at once.
pub fn block_rows(vocab: usize) -> usize {
    (LOGITS / vocab).next_multiple_of(GRAIN).max(GRAIN)
}

/// One evaluation of the loss.
#[derive(Clone, Debug)]
pub struct Problem {
    pub eps: f32,
    pub x: FlexTensor,
    pub weights: HeadWeights<Flex>,
    pub targets: FlexTensor,
    pub scale: f32,
}

/// Normalises all rows; returns them and their inverse norms.
fn normalise(context: &Context, eps: f32, x: &[f32], gain: Weight<'_>) -> (Buffer, Buffer) {
    let width = gain.data.len();
    let rows = x.len() / width;
    let (mut normed, mut inverse) = (context.pool.take(rows * width), context.pool.take(rows));
    let (out, inverses) = (Shared::new(&mut normed), Shared::new(&mut inverse));
    context.team.ranges(rows, GRAIN, 1, |_, range| {
        let columns = range.start * width..range.end * width;
        // SAFETY: the ranges of rows do not overlap.
        let (out, inverse) = unsafe { (out.part(columns.clone()), inverses.part(range)) };
        norm::forward(&x[columns], gain.data, eps, out, inverse);
    });
    (normed, inverse)
}

pub fn logits(context: &Context, eps: f32, x: &FlexTensor, weights: &HeadWeights<Flex>) -> FlexTensor {
    let [rows, width] = x.shape().dims();
    let vocab = weights.output.shape()[0];
    let (normed, _) = normalise(context, eps, floats(x), Weight::of(&weights.norm));
    let mut out = context.pool.take(rows * vocab);
    project(context, &normed, Weight::of(&weights.output), width, &mut out);
    tensor(out, rows, vocab)
}

/// `out = x * weight^T`, all rows of `x`.
fn project(context: &Context, x: &[f32], weight: Weight<'_>, width: usize, out: &mut [f32]) {
    let vocab = weight.data.len() / width;
    let out = Shared::new(out);
    context.team.ranges(x.len() / width, GRAIN, 1, |_, range| {
        // SAFETY: the ranges of rows do not overlap.
        let part = unsafe { out.part(range.start * vocab..range.end * vocab) };
        let x = Matrix::dense(&x[range.start * width..range.end * width], range.len(), width);
        matmul(MatrixMut::dense(part, range.len(), vocab), Into::Replace, 1.0, x, weight.matrix(width).t());
    });
}

/// The scaled loss; with `dx`, also the gradients: of the input into `dx`, of the weights into the context's.
pub fn loss(context: &Context, problem: &Problem, mut dx: Option<&mut [f32]>) -> FlexTensor {
    let weights = &problem.weights;
    let (gain, output) = (Weight::of(&weights.norm), Weight::of(&weights.output));
    let (width, x, targets) = (gain.data.len(), floats(&problem.x), integers(&problem.targets));
    let (rows, vocab) = (targets.len(), output.data.len() / width);
    let (normed, inverse) = normalise(context, problem.eps, x, gain);
    let block = block_rows(vocab).min(rows.max(1));
    let mut logits = context.pool.take(block * vocab);
    let mut total = 0.0f64;
    for first in (0..rows).step_by(block) {
        let range = first..(first + block).min(rows);
        let columns = range.start * width..range.end * width;
        let logits = &mut logits[..range.len() * vocab];
        project(context, &normed[columns.clone()], output, width, logits);
        total += cross_entropy_rows(context, logits, &targets[range.clone()], vocab, problem.scale, dx.is_some());
        let Some(dx) = dx.as_deref_mut() else { continue };
        let mut gradients = context.gradients.lock().unwrap_or_else(PoisonError::into_inner);
        add_gradient(context, &mut gradients, output, logits, &normed[columns.clone()], range.len());
        let dx = &mut dx[columns.clone()];
        dx.fill(0.0);
        let norm = Norm { x: &x[columns], gain, inverse: &inverse[range] };
        norm.backward(context, &mut gradients, logits, output, dx);
    }
    let mut out = context.pool.take(1);
    out[0] = (total * f64::from(problem.scale)) as f32;
    tensor(out, 1, 1).reshape([1].into())
}

fn cross_entropy_rows(
    context: &Context,
    logits: &mut [f32],
    targets: &[i32],
    vocab: usize,
    scale: f32,
    gradient: bool,
) -> f64 {
    let rows = targets.len();
    let piece = context.team.piece(rows, GRAIN, 1);
    // One f32 a row: the sum in f64, in order, is the same for any number of threads.
    let mut losses = vec![0.0f32; rows];
    let (parts, logits) = (Shared::new(&mut losses), Shared::new(logits));
    context.team.each(rows.div_ceil(piece), |part| {
        let range = part * piece..((part + 1) * piece).min(rows);
        // SAFETY: the ranges of rows do not overlap.
        let (logits, losses) =
            unsafe { (logits.part(range.start * vocab..range.end * vocab), parts.part(range.clone())) };
        cross_entropy::rows(logits, &targets[range], vocab, gradient.then_some(scale), losses);
    });
    losses.iter().map(|&l| f64::from(l)).sum()
}

#[derive(Debug)]
struct Loss;

#[derive(Clone, Debug)]
struct State {
    context: Context,
    problem: Problem,
    dx: FlexTensor,
}

impl Backward<Flex, 3> for Loss {
    type State = State;

    fn backward(self, step: Step<State, 3>, grads: &mut Gradients, _: &mut Checkpointer) {
        let State { context, mut problem, dx } = step.state;
        let incoming = floats(&grads.consume::<Flex>(&step.node))[0];
        let dx = if incoming == 1.0 {
            dx
        } else {
            let [rows, width] = dx.shape().dims();
            let mut rest = context.pool.take(rows * width);
            problem.scale *= incoming - 1.0;
            loss(&context, &problem, Some(&mut rest));
            rest.iter_mut().zip(floats(&dx)).for_each(|(r, d)| *r += d);
            tensor(rest, rows, width)
        };
        if let [Some(x), ..] = step.parents {
            grads.register::<Flex>(x.id, dx);
        }
    }
}

pub fn tracked(
    context: &Context,
    eps: f32,
    x: FloatTensor<Tracked>,
    weights: HeadWeights<Tracked>,
    targets: FlexTensor,
    scale: f32,
) -> FloatTensor<Tracked> {
    let nodes = [x.node, weights.norm.node, weights.output.node];
    let weights = HeadWeights { norm: weights.norm.primitive, output: weights.output.primitive };
    let problem = Problem { eps, x: x.primitive, weights, targets, scale };
    match Loss.prepare::<NoCheckpointing>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(prep) => {
            let [rows, width] = problem.x.shape().dims();
            let mut dx = context.pool.take(rows * width);
            let value = loss(context, &problem, Some(&mut dx));
            let dx = tensor(dx, rows, width);
            prep.finish(State { context: context.clone(), problem, dx }, value)
        }
        OpsKind::UnTracked(prep) => {
            let value = loss(context, &problem, None);
            prep.finish(value)
        }
    }
}
