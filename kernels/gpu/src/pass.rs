//! The passes of a step: forward, the head with its loss, and backward, each operation one launch or two.

use crate::buffers::{Buffers, LayerBuffers, chunk_rows};
use crate::launches::Tally;
use crate::machine::{Machine, Part};
use crate::products::{Add, Form, Output, Product};
use crate::sizes::{Layer, Sizes, Weight};
use crate::{attention, cross_entropy, embed, norm, rope, swiglu};
use cubecl::prelude::*;
use cubecl::server::Handle;

/// The operands of a product and its place.
struct Operands<'a> {
    a: &'a Handle,
    b: &'a Handle,
    d: &'a Handle,
}

impl<R: Runtime, A: Float + CubeElement> Machine<R, A> {
    fn rows(&self, part: &Part) -> usize {
        part.sequences * self.sizes.tokens
    }

    fn multiply(
        &self,
        form: Form,
        [m, n, k]: [usize; 3],
        (output, add): (Output, Add),
        Operands { a, b, d }: Operands<'_>,
        tally: &Tally,
    ) -> Result<(), String> {
        let product = Product { form, count: 1, m, n, k, output, add };
        let counted = tally.of(self.products.launches(&product));
        self.products.run(&self.client, &product, a, b, d, &self.buffers.products, counted)
    }

    /// `y = x W^T`.
    fn linear(&self, rows: usize, x: &Handle, weight: &Weight, y: &Handle, tally: &Tally) -> Result<(), String> {
        let operands = Operands { a: x, b: &self.weight(weight), d: y };
        let sizes = [rows, weight.rows, weight.width];
        self.multiply(Form::Forward, sizes, (Output::Activation, Add::None), operands, tally)
    }

    /// `x W^T`, added to the residual stream.
    fn residual(&self, rows: usize, x: &Handle, weight: &Weight, tally: &Tally) -> Result<(), String> {
        let operands = Operands { a: x, b: &self.weight(weight), d: &self.buffers.stream };
        let sizes = [rows, weight.rows, weight.width];
        self.multiply(Form::Forward, sizes, (Output::Float, Add::Into), operands, tally)
    }

    /// `dx = dy W`.
    fn input(&self, rows: usize, dy: &Handle, weight: &Weight, dx: &Handle, tally: &Tally) -> Result<(), String> {
        let operands = Operands { a: dy, b: &self.weight(weight), d: dx };
        let sizes = [rows, weight.width, weight.rows];
        self.multiply(Form::Input, sizes, (Output::Activation, Add::None), operands, tally)
    }

    /// `dW = dy^T x`, added to what is there unless it is the step's first.
    fn learn(
        &self,
        (rows, first): (usize, bool),
        dy: &Handle,
        x: &Handle,
        weight: &Weight,
        tally: &Tally,
    ) -> Result<(), String> {
        let operands = Operands { a: dy, b: x, d: &self.gradient_of(weight) };
        let add = if first { Add::None } else { Add::Into };
        let sizes = [weight.rows, weight.width, rows];
        self.multiply(Form::Weight, sizes, (Output::Float, add), operands, tally)
    }

    /// From tokens to the rows after the last norm.
    pub(crate) fn forward(&self, part: &Part, tally: &Tally) -> Result<(), String> {
        let (rows, client, buffers) = (self.rows(part), &self.client, &self.buffers);
        let (vocab, width) = (self.sizes.vocab, self.sizes.width);
        // The stream begins with the table's own numbers: rounded ones would cost more than all that is rounded after.
        let table = self.master(&self.layout.embed);
        embed::forward::<R>(client, &part.inputs, &table, &buffers.stream, [rows, vocab, width], tally.of(1));
        for (layer, kept) in self.layout.layers.iter().zip(&buffers.layers) {
            self.attend(part, layer, kept, tally)?;
            let ffn = self.sizes.ffn;
            self.norm(rows, &layer.mlp_norm, [&kept.middle, &kept.mlp_normed, &kept.mlp_inverse], tally);
            self.linear(rows, &kept.mlp_normed, &layer.gate_up, &kept.gate_up, tally)?;
            swiglu::forward::<R, A>(client, &kept.gate_up, &buffers.wide, [rows, ffn], tally.of(1));
            self.residual(rows, &buffers.wide, &layer.down, tally)?;
        }
        let outputs = [&buffers.last, &buffers.last_normed, &buffers.last_inverse];
        self.norm(rows, &self.layout.norm, outputs, tally);
        Ok(())
    }

    /// Norms the residual stream: its copy, the normed rows, and their inverse norms.
    fn norm(&self, rows: usize, gain: &Weight, outputs: [&Handle; 3], tally: &Tally) {
        let gain = norm::Gain { gain: &self.master(gain), eps: self.sizes.eps };
        let sizes = [rows, self.sizes.width];
        norm::forward::<R, A>(&self.client, &self.buffers.stream, gain, outputs, sizes, tally.of(1));
    }

    fn attend(&self, part: &Part, layer: &Layer, kept: &LayerBuffers<Handle>, tally: &Tally) -> Result<(), String> {
        let rows = self.rows(part);
        self.norm(rows, &layer.attention_norm, [&kept.x, &kept.normed, &kept.inverse], tally);
        self.linear(rows, &kept.normed, &layer.qkv, &kept.qkv, tally)?;
        self.turn(&kept.qkv, rows, rope::Turn::Forward, tally);
        let shape = self.shape(part.sequences);
        let tensors = attention::Forward { qkv: &kept.qkv, out: &kept.mixed, lse: &kept.lse };
        attention::forward::<R, A>(&self.client, self.way, shape, tensors, tally.of(attention::FORWARD))?;
        self.residual(rows, &kept.mixed, &layer.out, tally)
    }

    /// Turns queries and keys, or their gradients back.
    fn turn(&self, qkv: &Handle, rows: usize, direction: rope::Turn, tally: &Tally) {
        let Buffers { cos, sin, .. } = &self.buffers;
        let Sizes { heads, kv_heads, tokens, .. } = self.sizes;
        let tables = rope::Tables { cos: cos.clone(), sin: sin.clone(), positions: tokens };
        let heads = rope::Heads { heads, kv_heads, dim: self.sizes.head_dim() };
        rope::rotate::<R, A>(&self.client, qkv, &tables, heads, [rows, tokens], direction, tally.of(1));
    }

    /// The loss of each row; with `scale`, the gradients of the output and of the last norm's output too. A part of the
    /// rows at a time, so that not all logits are there at once.
    pub(crate) fn head(&self, part: &Part, scale: Option<f32>, tally: &Tally) -> Result<(), String> {
        let (all, vocab, width) = (self.rows(part), self.sizes.vocab, self.sizes.width);
        let chunk = chunk_rows(self.batch.sequences * self.sizes.tokens, vocab);
        let before = part.number * self.batch.stride(&self.sizes);
        let losses = self.buffers.losses.clone().offset_start(4 * before as u64);
        let (buffers, output) = (&self.buffers, &self.layout.output);
        for start in (0..all).step_by(chunk) {
            let rows = chunk.min(all - start);
            let activations = (size_of::<A>() * start * width) as u64;
            let x = buffers.last_normed.clone().offset_start(activations);
            self.logits(rows, &x, tally)?;
            let these = cross_entropy::Rows { first: start, rows, vocab };
            let (gradient, counted) = (scale.map(|scale| (&buffers.dlogits, scale)), tally.of(1));
            let Buffers { logits, .. } = buffers;
            cross_entropy::rows::<R, A>(&self.client, logits, &part.targets, &losses, these, gradient, counted);
            if scale.is_some() {
                let first = part.number == 0 && start == 0;
                let dx = buffers.narrow.clone().offset_start(activations);
                self.input(rows, &buffers.dlogits, output, &dx, tally)?;
                self.learn((rows, first), &buffers.dlogits, &x, output, tally)?;
            }
        }
        Ok(())
    }

    fn logits(&self, rows: usize, x: &Handle, tally: &Tally) -> Result<(), String> {
        let output = &self.layout.output;
        let operands = Operands { a: x, b: &self.weight(output), d: &self.buffers.logits };
        let sizes = [rows, output.rows, output.width];
        self.multiply(Form::Forward, sizes, (Output::Float, Add::None), operands, tally)
    }

    /// Logits behind the row `at`, at the start of the logits' buffer.
    pub(crate) fn last_logits(&self, at: usize, tally: &Tally) -> Result<(), String> {
        // Rows of any width do not begin where every device can bind, so the row is copied to where another buffer begins.
        let Buffers { last_normed, narrow, .. } = &self.buffers;
        let width = self.sizes.width;
        crate::fill::copy::<R, A>(&self.client, (last_normed, at * width), (narrow, 0), width, tally.of(1));
        self.logits(1, narrow, tally)
    }

    /// From the gradient of the last norm's output to those of all weights.
    pub(crate) fn backward(&self, part: &Part, tally: &Tally) -> Result<(), String> {
        let (rows, client, buffers) = (self.rows(part), &self.client, &self.buffers);
        let gains = self.layout.gains().len();
        let inputs = (&buffers.last, &buffers.last_inverse);
        self.norm_back(rows, inputs, (&self.layout.norm, gains - 1), norm::Into::Replace, tally);
        for (number, (layer, kept)) in self.layout.layers.iter().zip(&buffers.layers).enumerate().rev() {
            self.mlp_back(part, layer, kept, 2 * number + 1, tally)?;
            self.attend_back(part, layer, kept, 2 * number, tally)?;
        }
        let (vocab, width) = (self.sizes.vocab, self.sizes.width);
        let table = self.gradient_of(&self.layout.embed);
        let segments = (&part.segments, &part.segment_words);
        let (sizes, counted) = ([rows, vocab, width], tally.of(embed::BACKWARD));
        let Buffers { stream, segments: scratch, gains: sums, gradient, .. } = buffers;
        embed::backward::<R>(client, stream, segments, &table, scratch, sizes, counted);
        let (sums, gradient) = (norm::Sums { sums, norms: gains }, (gradient, self.layout.device));
        norm::gains::<R, A>(client, sums, &self.gain_places, gradient, [rows, width], tally.of(1));
        Ok(())
    }

    /// From the gradient of a norm's output, in `narrow`, to that of the residual stream before it.
    fn norm_back(
        &self,
        rows: usize,
        (x, inverse): (&Handle, &Handle),
        (gain, number): (&Weight, usize),
        into: norm::Into,
        tally: &Tally,
    ) {
        let Buffers { narrow, gains, stream, rounded, .. } = &self.buffers;
        let sums = norm::Sums { sums: gains, norms: self.layout.gains().len() };
        let slopes = norm::Slopes { dx: stream, copy: rounded.as_ref(), into };
        let (gain, sizes) = (self.master(gain), [rows, self.sizes.width]);
        let known = [x, &gain, inverse, narrow];
        norm::backward::<R, A>(&self.client, known, slopes, (sums, number), sizes, tally.of(1));
    }

    fn mlp_back(
        &self,
        part: &Part,
        layer: &Layer,
        kept: &LayerBuffers<Handle>,
        number: usize,
        tally: &Tally,
    ) -> Result<(), String> {
        let (rows, ffn, first) = (self.rows(part), self.sizes.ffn, part.number == 0);
        let Buffers { wide, narrow, .. } = &self.buffers;
        let stream = self.buffers.slopes();
        self.input(rows, stream, &layer.down, wide, tally)?;
        swiglu::backward::<R, A>(&self.client, &kept.gate_up, wide, [rows, ffn], tally.of(1));
        self.learn((rows, first), stream, wide, &layer.down, tally)?;
        self.input(rows, &kept.gate_up, &layer.gate_up, narrow, tally)?;
        self.learn((rows, first), &kept.gate_up, &kept.mlp_normed, &layer.gate_up, tally)?;
        let inputs = (&kept.middle, &kept.mlp_inverse);
        self.norm_back(rows, inputs, (&layer.mlp_norm, number), norm::Into::Add, tally);
        Ok(())
    }

    fn attend_back(
        &self,
        part: &Part,
        layer: &Layer,
        kept: &LayerBuffers<Handle>,
        number: usize,
        tally: &Tally,
    ) -> Result<(), String> {
        let (rows, first, client) = (self.rows(part), part.number == 0, &self.client);
        let Buffers { narrow, dqkv, sums, .. } = &self.buffers;
        let LayerBuffers { qkv, mixed, lse, .. } = kept;
        let stream = self.buffers.slopes();
        self.input(rows, stream, &layer.out, narrow, tally)?;
        self.learn((rows, first), stream, mixed, &layer.out, tally)?;
        let forward = attention::Forward { qkv, out: mixed, lse };
        let tensors = attention::Backward { forward, dout: narrow, dsum: sums, dqkv };
        let shape = self.shape(part.sequences);
        attention::backward::<R, A>(client, self.way, shape, tensors, tally.of(attention::BACKWARD))?;
        self.turn(dqkv, rows, rope::Turn::Backward, tally);
        self.input(rows, dqkv, &layer.qkv, narrow, tally)?;
        self.learn((rows, first), dqkv, &kept.normed, &layer.qkv, tally)?;
        self.norm_back(rows, (&kept.x, &kept.inverse), (&layer.attention_norm, number), norm::Into::Add, tally);
        Ok(())
    }
}
