//! Times of single operations, for benches.

use crate::attention::{self, Shape, Way};
use crate::buffers::step_products;
use crate::launches::Tally;
use crate::products::{self, Add, Form, Output, Precision, Product, Products};
use crate::sizes::Sizes;
use crate::ways::Ways;
use crate::words;
use cubecl::prelude::*;
use std::time::Instant;

/// Runs between two waits.
const TURNS: u32 = 20;

/// Seconds of one run of `f`, in the mean over some after a first one, which may compile.
fn seconds<R: Runtime>(
    client: &ComputeClient<R>,
    mut f: impl FnMut(&Tally) -> Result<(), String>,
) -> Result<f64, String> {
    let mut turns = |count: u32| {
        let (tally, start) = (Tally::new(client), Instant::now());
        (0..count).try_for_each(|_| f(&tally))?;
        tally.read::<R, 0>(client)?;
        Ok::<_, String>(start.elapsed().as_secs_f64() / f64::from(count))
    };
    turns(1)?;
    turns(TURNS)
}

/// Seconds of attention forward and backward.
pub fn attention<R: Runtime, A: Float + CubeElement>(
    client: &ComputeClient<R>,
    [heads, kv_heads, head_dim, batch, tokens]: [usize; 5],
    tensor_cores: bool,
) -> Result<[f64; 2], String> {
    let shape = Shape { batch, tokens, heads, kv_heads, head_dim };
    let way = if tensor_cores { Way::TensorCores } else { Way::Portable };
    let noise = |len: usize| {
        let values = (0..len).map(|i| A::from_int(((i * 7919) % 201) as i64 - 100));
        client.create_from_slice(bytemuck::cast_slice(&values.collect::<Vec<A>>()))
    };
    words::guarded(|| {
        let (qkv, out) = (noise(shape.rows() * shape.width()), noise(shape.rows() * heads * head_dim));
        let [dqkv, dout] = [&qkv, &out].map(|like| client.empty(like.size() as usize));
        let [lse, sums] = [(); 2].map(|()| client.empty(4 * shape.sums()));
        let tensors = attention::Forward { qkv: &qkv, out: &out, lse: &lse };
        let forward = seconds(client, |tally| {
            attention::forward::<R, A>(client, way, shape, tensors, tally.of(attention::FORWARD))
        })?;
        let tensors = attention::Backward { forward: tensors, dout: &dout, dsum: &sums, dqkv: &dqkv };
        let backward = seconds(client, |tally| {
            attention::backward::<R, A>(client, way, shape, tensors, tally.of(attention::BACKWARD))
        })?;
        Ok([forward, backward])
    })?
}

/// A product's form (0 forward, 1 input, 2 weight), `m`, `n`, `k`, and its seconds.
pub type Timed = ([usize; 4], Result<f64, String>);

/// Seconds of each product of a model's step.
pub fn products<R: Runtime>(client: &ComputeClient<R>, sizes: &Sizes, sequences: usize, ways: Ways) -> Vec<Timed> {
    let (rows, precision) = match ways.bf16 {
        true => (sequences * sizes.tokens, Precision::Bf16),
        false => (sequences * sizes.tokens, Precision::F32),
    };
    let engine = match ways.cublas {
        true => Products::open(client, precision).0,
        false => Products::open_portable(precision),
    };
    let shapes = step_products(sizes, rows);
    let scratch = client.empty(products::scratch(&shapes, ways.cublas).max(4));
    let timed = shapes.into_iter().map(|product| {
        let Product { form, m, n, k, output, .. } = product;
        let product = Product { form, count: 1, m, n, k, output, add: Add::None };
        let bytes = |elements: usize, output: Output| match output {
            Output::Activation => elements * precision.bytes(),
            Output::Float => 4 * elements,
        };
        let a = client.empty(bytes(m * k, Output::Activation));
        let b = client.empty(bytes(n * k, Output::Activation));
        let d = client.empty(bytes(m * n, output));
        let run =
            |tally: &Tally| engine.run(client, &product, &a, &b, &d, &scratch, tally.of(engine.launches(&product)));
        let seconds = words::guarded(|| seconds(client, run)).and_then(|told| told);
        let form = [Form::Forward, Form::Input, Form::Weight].iter().position(|known| *known == form);
        ([form.unwrap_or_default(), m, n, k], seconds)
    });
    timed.collect()
}
