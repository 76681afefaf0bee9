//! Embedding: a gather, and a scatter into the gradient of the table.

use super::context::{Context, Tracked, floats, integers, tensor};
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::NoCheckpointing;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops as Step, OpsKind};
use burn_backend::TensorMetadata;
use burn_backend::tensor::FloatTensor;
use burn_flex::{Flex, FlexTensor};
use std::sync::PoisonError;

pub fn forward(context: &Context, table: &FlexTensor, tokens: &FlexTensor) -> FlexTensor {
    let width = table.shape()[1];
    let (table, tokens) = (floats(table), integers(tokens));
    let mut out = context.pool.take(tokens.len() * width);
    for (row, &token) in out.chunks_exact_mut(width).zip(tokens) {
        let at = token as usize * width;
        row.copy_from_slice(&table[at..at + width]);
    }
    tensor(out, tokens.len(), width)
}

#[derive(Debug)]
struct Embed;

#[derive(Clone, Debug)]
struct State {
    context: Context,
    tokens: FlexTensor,
    offset: usize,
}

impl Backward<Flex, 1> for Embed {
    type State = State;

    fn backward(self, step: Step<State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let State { context, tokens, offset } = step.state;
        let dy = grads.consume::<Flex>(&step.node);
        let (width, dy) = (dy.shape()[1], floats(&dy));
        let mut gradients = context.gradients.lock().unwrap_or_else(PoisonError::into_inner);
        for (row, &token) in dy.chunks_exact(width).zip(integers(&tokens)) {
            let at = offset + token as usize * width;
            gradients[at..at + width].iter_mut().zip(row).for_each(|(g, d)| *g += d);
        }
    }
}

pub fn tracked(context: &Context, table: FloatTensor<Tracked>, tokens: FlexTensor) -> FloatTensor<Tracked> {
    let out = forward(context, &table.primitive, &tokens);
    let offset = table.primitive.layout().start_offset();
    match Embed.prepare::<NoCheckpointing>([table.node]).compute_bound().stateful() {
        OpsKind::Tracked(prep) => prep.finish(State { context: context.clone(), tokens, offset }, out),
        OpsKind::UnTracked(prep) => prep.finish(out),
    }
}
