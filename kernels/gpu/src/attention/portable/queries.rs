//! The portable gradient of the queries.

use super::tile::{Tile, add_weighted, load, nothing, products, store};
use crate::attention::parts::{behind, filled, parts};
use crate::launches::count;
use cubecl::prelude::*;

/// One cube computes the gradient of a block of queries of one head.
#[cube(launch_unchecked)]
pub(super) fn queries_kernel<A: Float, N: Size>(
    qkv: &Array<Vector<A, N>>,
    dout: &Array<Vector<A, N>>,
    lse: &Array<f32>,
    dsum: &Array<f32>,
    dqkv: &mut Array<Vector<A, N>>,
    tally: &mut Array<Atomic<u32>>,
    tokens: usize,
    heads: usize,
    kv_heads: usize,
    scale: f32,
    #[comptime] tile: Tile,
) {
    count(tally);
    let dim = comptime!(tile.dim);
    let rows = comptime!(tile.rows());
    let cols = comptime!(tile.cols());
    let mut queries = SharedMemory::<Vector<f32, N>>::new(comptime!(tile.rows() * tile.pitch()));
    let mut douts = SharedMemory::<Vector<f32, N>>::new(comptime!(tile.rows() * tile.pitch()));
    let mut keys = SharedMemory::<Vector<f32, N>>::new(comptime!(tile.cols() * tile.pitch()));
    let mut values = SharedMemory::<Vector<f32, N>>::new(comptime!(tile.cols() * tile.pitch()));
    let mut weights = SharedMemory::<f32>::new(comptime!(tile.rows() * tile.strip()));

    let head = CUBE_POS_X as usize;
    let batch = CUBE_POS_Y as usize;
    // Later blocks have more keys, so that they start first.
    let first = behind(CUBE_COUNT_Z, CUBE_POS_Z) as usize * rows;
    let part = parts(batch, head, tokens, heads, kv_heads, dim);
    load(qkv, &mut queries, part.queries, part.pitch, first, tokens, rows, tile);
    load(dout, &mut douts, part.outs, part.out_pitch, first, tokens, rows, tile);

    let logs = of_rows(lse, part.sums, first, tokens, tile);
    let deltas = of_rows(dsum, part.sums, first, tokens, tile);
    let mut results = nothing::<N>(tile);

    let end = min(tokens, first + rows);
    let mut key = 0usize;
    while key < end {
        load(qkv, &mut keys, part.keys, part.pitch, key, tokens, cols, tile);
        load(qkv, &mut values, part.values, part.pitch, key, tokens, cols, tile);
        sync_cube();
        let scores = products::<N>(&queries, &keys, tile);
        let gains = products::<N>(&douts, &values, tile);
        weigh(&scores, &gains, &logs, &deltas, &mut weights, first, key, tokens, scale, tile);
        sync_cube();
        add_weighted::<N>(&mut results, &weights, &keys, tile);
        sync_cube();
        key += cols;
    }
    store(dqkv, &results, &filled(scale, tile.down), part.queries, part.pitch, first, tokens, tile);
}

/// The numbers of the unit's rows; rows beyond the last token, which are not stored, read the last token's.
#[cube]
fn of_rows(source: &Array<f32>, start: usize, first: usize, tokens: usize, #[comptime] tile: Tile) -> Array<f32> {
    let top = UNIT_POS as usize / tile.wide;
    let mut numbers = Array::<f32>::new(tile.down);
    #[unroll]
    for r in 0..tile.down {
        numbers[r] = source[start + min(first + top + r * tile.tall, tokens - 1)];
    }
    numbers
}

/// Writes the slopes of the scores (but for the scale) of the unit's queries and keys.
#[cube]
fn weigh(
    scores: &Array<f32>,
    gains: &Array<f32>,
    logs: &Array<f32>,
    deltas: &Array<f32>,
    weights: &mut SharedMemory<f32>,
    first: usize,
    key: usize,
    tokens: usize,
    scale: f32,
    #[comptime] tile: Tile,
) {
    let top = UNIT_POS as usize / tile.wide;
    let left = UNIT_POS as usize % tile.wide;
    #[unroll]
    for r in 0..tile.down {
        let row = top + r * tile.tall;
        #[unroll]
        for c in 0..tile.across {
            let col = left + c * tile.wide;
            let i = comptime!(r * tile.across + c);
            let seen = key + col <= first + row && first + row < tokens;
            let weight = (select(seen, scores[i] * scale - logs[r], -1.0e30f32.runtime())).exp();
            weights[row * comptime!(tile.strip()) + col] = weight * (gains[i] - deltas[r]);
        }
    }
}
