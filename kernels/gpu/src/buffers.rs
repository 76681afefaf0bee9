//! The memory of a trainer on a device: every buffer, set aside once.

use crate::muon::{self, Plan};
use crate::optimizer::Rule;
use crate::products::{self, Add, Form, Output, Product};
use crate::sizes::{ALIGN, Layout, Sizes};
use crate::ways::Ways;
use crate::{embed, norm, total};

/// A step has at most so many times the sequences of its batch.
pub const BATCHES_MAX: usize = 4;

/// The batch for which memory is set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Sequences on the device at once.
    pub sequences: usize,
    /// Such parts of a step.
    pub parts: usize,
    /// Bytes of an activation.
    pub activation: usize,
    /// Bytes that products need beside their operands.
    pub products: usize,
    /// The optimizer, which may need memory of its own.
    pub rule: Rule,
}

impl Batch {
    /// The batch of a way: `sequences` at once, in so many parts of a step of an optimizer.
    pub fn new(sizes: &Sizes, sequences: usize, parts: usize, ways: Ways, rule: Rule) -> Self {
        let activation = if ways.bf16 { 2 } else { 4 };
        let rows = sequences * sizes.tokens;
        let shapes = step_products(sizes, rows);
        Self { sequences, parts, activation, products: products::scratch(&shapes, ways.cublas), rule }
    }

    /// Places of a part's losses: its rows, padded.
    pub fn stride(&self, sizes: &Sizes) -> usize {
        (self.sequences * sizes.tokens).next_multiple_of(ALIGN)
    }

    /// Places of the losses of a step over so many parts.
    pub fn losses(&self, sizes: &Sizes, parts: usize) -> usize {
        parts * self.stride(sizes)
    }

    /// Places of the losses of the largest step.
    pub fn most_losses(&self, sizes: &Sizes) -> usize {
        self.losses(sizes, BATCHES_MAX * self.parts)
    }
}

/// Logits that are there at once, at most: 128 MiB and half of it again for their gradient.
const LOGITS: usize = 1 << 25;

/// Rows whose logits are there at once. Parts of the rows begin where every device can bind.
pub fn chunk_rows(rows: usize, vocab: usize) -> usize {
    let fit = (LOGITS / vocab.max(1)) / ALIGN * ALIGN;
    rows.min(fit.max(ALIGN))
}

/// The products of a step with so many rows: what memory they need is known before any is set aside.
pub fn step_products(sizes: &Sizes, rows: usize) -> Vec<Product> {
    let chunk = chunk_rows(rows, sizes.vocab);
    let (d, ffn, vocab, qkv) = (sizes.width, sizes.ffn, sizes.vocab, sizes.qkv());
    let activation = (Output::Activation, Add::None);
    let sum = (Output::Float, Add::Into);
    let all = [
        (rows, qkv, d, activation),
        (rows, d, d, sum),
        (rows, 2 * ffn, d, activation),
        (rows, d, ffn, sum),
        (chunk, vocab, d, (Output::Float, Add::None)),
    ];
    let product = |form, [m, n, k]: [usize; 3], (output, add)| Product { form, count: 1, m, n, k, output, add };
    let shapes = all.into_iter().flat_map(|(rows, out, width, forward)| {
        [
            product(Form::Forward, [rows, out, width], forward),
            product(Form::Input, [rows, width, out], activation),
            product(Form::Weight, [out, width, rows], sum),
        ]
    });
    shapes.collect()
}

/// Buffers of one layer; with R rows (sequences x tokens) and activations A.
#[derive(Debug)]
pub struct LayerBuffers<T> {
    /// A copy of the layer's input: A `[R, width]`.
    pub x: T,
    /// The input of the products with queries, keys and values: A `[R, width]`; and f32 `[R]`.
    pub normed: T,
    pub inverse: T,
    /// Queries and keys turned by position, and values: A `[R, qkv]`.
    pub qkv: T,
    /// The values that attention mixes: A `[R, width]`.
    pub mixed: T,
    /// f32 `[sequences, heads, tokens]`.
    pub lse: T,
    /// A copy of the residual stream between attention and feed-forward: A `[R, width]`.
    pub middle: T,
    pub mlp_normed: T,
    pub mlp_inverse: T,
    /// A `[R, 2 ffn]`; the backward pass turns it into its own gradient.
    pub gate_up: T,
}

/// All buffers of a trainer.
#[derive(Debug)]
pub struct Buffers<T> {
    /// Parameters, gradient and the optimizer's two moments: f32, in the device's layout.
    pub master: T,
    pub gradient: T,
    pub moments: [T; 2],
    /// The parameters that products read: A. Where A is f32, it is the master again.
    pub weights: Option<T>,
    pub layers: Vec<LayerBuffers<T>>,
    /// A copy of the last layer's output: A `[R, width]`; normed; f32 `[R]`.
    pub last: T,
    pub last_normed: T,
    pub last_inverse: T,
    /// The residual stream, then its gradient: f32 `[R, width]`. Sums over many layers would lose too much in A.
    pub stream: T,
    /// The gradient of the residual stream as products read it: A. Where A is f32, it is `stream` again.
    pub rounded: Option<T>,
    /// The gradient of a norm's output, and of what attention mixed: A `[R, width]`.
    pub narrow: T,
    /// The feed-forward layer's activations, and their gradient: A `[R, ffn]`. The backward pass computes them again.
    pub wide: T,
    /// The gradient of queries, keys and values: A `[R, qkv]`.
    pub dqkv: T,
    /// Scratch of attention's backward pass: f32 `[sequences, heads, tokens]`.
    pub sums: T,
    /// Logits of a part of the rows and their gradient: f32 and A `[chunk, vocab]`.
    pub logits: T,
    pub dlogits: T,
    /// The loss of each row of a step: f32 `[BATCHES_MAX x parts, R]`, see [`Batch::stride`].
    pub losses: T,
    /// Parts of the gains' gradients, see [`norm`].
    pub gains: T,
    /// Parts of the table's gradient, see [`embed`].
    pub segments: T,
    /// Partial sums of the gradient's norm and the loss.
    pub partials: T,
    pub products: T,
    /// Scratch of Muon's step, where that is the optimizer.
    pub muon: Option<muon::Scratch<T>>,
    /// Cosines and sines of the rotary embedding: f32 `[tokens, head_dim / 2]`.
    pub cos: T,
    pub sin: T,
}

/// Bytes that a trainer takes on its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// In all.
    pub total: u64,
    /// The largest buffer.
    pub largest: u64,
}

/// Devices hand out memory in such units.
const UNIT: u64 = 512;

impl Need {
    pub fn of(sizes: &Sizes, batch: &Batch) -> Self {
        let mut need = Self::default();
        Buffers::of(sizes, batch, &mut |bytes: u64| {
            need.total = need.total.saturating_add(bytes.next_multiple_of(UNIT));
            need.largest = need.largest.max(bytes);
        });
        need
    }
}

impl<T> Buffers<T> {
    /// Asks `take` for each buffer by its bytes.
    pub fn of(sizes: &Sizes, batch: &Batch, take: &mut dyn FnMut(u64) -> T) -> Self {
        let rows = batch.sequences * sizes.tokens;
        let layout = Layout::of(sizes);
        let mut floats = |elements: usize| take(4 * elements.max(1) as u64);
        let [master, gradient, first, second] = [(); 4].map(|()| floats(layout.device));
        let heads = rows * sizes.heads;
        let half = sizes.tokens * sizes.head_dim() / 2;
        let chunk = chunk_rows(rows, sizes.vocab);
        let [cos, sin] = [(); 2].map(|()| floats(half));
        let sums = floats(heads);
        let logits = floats(chunk * sizes.vocab);
        let losses = floats(batch.most_losses(sizes));
        let gains = floats(layout.gains().len() * norm::blocks_max(rows) * sizes.width);
        let segments = floats(embed::scratch_bytes(rows, sizes.width) / 4);
        let partials = floats(total::scratch_bytes(layout.device.max(batch.most_losses(sizes))) / 4);
        let last_inverse = floats(rows);
        let mut sides: Vec<[T; 3]> = (0..sizes.layers).map(|_| [floats(rows), floats(heads), floats(rows)]).collect();
        let stream = floats(rows * sizes.width);
        let mut rows_of = |width: usize| take((batch.activation * rows * width) as u64);
        let [d, ffn, qkv] = [sizes.width, sizes.ffn, sizes.qkv()];
        let layers = sides.drain(..).map(|[inverse, lse, mlp_inverse]| LayerBuffers {
            x: rows_of(d),
            normed: rows_of(d),
            inverse,
            qkv: rows_of(qkv),
            mixed: rows_of(d),
            lse,
            middle: rows_of(d),
            mlp_normed: rows_of(d),
            mlp_inverse,
            gate_up: rows_of(2 * ffn),
        });
        let layers = layers.collect();
        let [last, last_normed, narrow] = [(); 3].map(|()| rows_of(d));
        let rounded = (batch.activation != 4).then(|| rows_of(d));
        let (wide, dqkv) = (rows_of(ffn), rows_of(qkv));
        let dlogits = take((batch.activation * chunk * sizes.vocab) as u64);
        let weights = (batch.activation != 4).then(|| take((batch.activation * layout.device) as u64));
        let products = take(batch.products.max(4) as u64);
        let muon = batch.rule == Rule::Muon;
        let muon = muon.then(|| muon::Scratch::of(&Plan::of(&layout), batch.activation, take));
        Self {
            master,
            gradient,
            moments: [first, second],
            weights,
            layers,
            last,
            last_normed,
            last_inverse,
            stream,
            rounded,
            narrow,
            wide,
            dqkv,
            sums,
            logits,
            dlogits,
            losses,
            gains,
            segments,
            partials,
            products,
            muon,
            cos,
            sin,
        }
    }

    /// The gradient of the residual stream, as products read it.
    pub fn slopes(&self) -> &T {
        self.rounded.as_ref().unwrap_or(&self.stream)
    }
}
