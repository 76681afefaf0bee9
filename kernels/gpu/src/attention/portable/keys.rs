//! The portable gradients of keys and values.

use super::tile::{Tile, add_weighted, load, nothing, products, store};
use crate::attention::parts::{filled, parts};
use crate::launches::count;
use cubecl::prelude::*;

/// One cube computes the gradients of a block of keys and values of one of their heads, head after head of its group.
#[cube(launch_unchecked)]
pub(super) fn keys_kernel<A: Float, N: Size>(
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
    let mut keys = SharedMemory::<Vector<f32, N>>::new(comptime!(tile.rows() * tile.pitch()));
    let mut values = SharedMemory::<Vector<f32, N>>::new(comptime!(tile.rows() * tile.pitch()));
    let mut queries = SharedMemory::<Vector<f32, N>>::new(comptime!(tile.cols() * tile.pitch()));
    let mut douts = SharedMemory::<Vector<f32, N>>::new(comptime!(tile.cols() * tile.pitch()));
    let mut weights = SharedMemory::<f32>::new(comptime!(tile.rows() * tile.strip()));
    let mut slopes = SharedMemory::<f32>::new(comptime!(tile.rows() * tile.strip()));

    let group = heads / kv_heads;
    let leader = CUBE_POS_X as usize * group;
    let batch = CUBE_POS_Y as usize;
    // Earlier blocks have more queries, and start first.
    let first = CUBE_POS_Z as usize * rows;
    let part = parts(batch, leader, tokens, heads, kv_heads, dim);
    load(qkv, &mut keys, part.keys, part.pitch, first, tokens, rows, tile);
    load(qkv, &mut values, part.values, part.pitch, first, tokens, rows, tile);
    let mut key_results = nothing::<N>(tile);
    let mut value_results = nothing::<N>(tile);

    for member in 0..group {
        let part = parts(batch, leader + member, tokens, heads, kv_heads, dim);
        // Queries before the first key do not see the block.
        let mut query = first / cols * cols;
        while query < tokens {
            load(qkv, &mut queries, part.queries, part.pitch, query, tokens, cols, tile);
            load(dout, &mut douts, part.outs, part.out_pitch, query, tokens, cols, tile);
            sync_cube();
            let scores = products::<N>(&keys, &queries, tile);
            let gains = products::<N>(&values, &douts, tile);
            weigh(&scores, &gains, lse, dsum, &mut weights, &mut slopes, part.sums, first, query, tokens, scale, tile);
            sync_cube();
            add_weighted::<N>(&mut value_results, &weights, &douts, tile);
            add_weighted::<N>(&mut key_results, &slopes, &queries, tile);
            sync_cube();
            query += cols;
        }
    }

    let factors = filled(scale, tile.down);
    store(dqkv, &key_results, &factors, part.keys, part.pitch, first, tokens, tile);
    let factors = filled(1.0f32, tile.down);
    store(dqkv, &value_results, &factors, part.values, part.pitch, first, tokens, tile);
}

/// Writes the softmax's weights and the slopes of the scores (but for the scale) of the unit's keys and queries.
#[cube]
fn weigh(
    scores: &Array<f32>,
    gains: &Array<f32>,
    lse: &Array<f32>,
    dsum: &Array<f32>,
    weights: &mut SharedMemory<f32>,
    slopes: &mut SharedMemory<f32>,
    sums: usize,
    first: usize,
    query: usize,
    tokens: usize,
    scale: f32,
    #[comptime] tile: Tile,
) {
    let top = UNIT_POS as usize / tile.wide;
    let left = UNIT_POS as usize % tile.wide;
    #[unroll]
    for c in 0..tile.across {
        let col = left + c * tile.wide;
        let token = min(query + col, tokens - 1);
        let log = lse[sums + token];
        let delta = dsum[sums + token];
        #[unroll]
        for r in 0..tile.down {
            let row = top + r * tile.tall;
            let i = comptime!(r * tile.across + c);
            let seen = first + row <= query + col && query + col < tokens;
            let weight = (select(seen, scores[i] * scale - log, -1.0e30f32.runtime())).exp();
            weights[row * comptime!(tile.strip()) + col] = weight;
            slopes[row * comptime!(tile.strip()) + col] = weight * (gains[i] - delta);
        }
    }
}
