//! The portable gradient of the queries.

use super::tile::{Tile, add_weighted, behind, load, nothing, products, store};
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
    let top = UNIT_POS as usize / tile.wide;
    let left = UNIT_POS as usize % tile.wide;
    let mut queries = SharedMemory::<Vector<f32, N>>::new(comptime!(tile.rows() * tile.pitch()));
    let mut douts = SharedMemory::<Vector<f32, N>>::new(comptime!(tile.rows() * tile.pitch()));
    let mut keys = SharedMemory::<Vector<f32, N>>::new(comptime!(tile.cols() * tile.pitch()));
    let mut values = SharedMemory::<Vector<f32, N>>::new(comptime!(tile.cols() * tile.pitch()));
    let mut weights = SharedMemory::<f32>::new(comptime!(tile.rows() * tile.strip()));

    let head = CUBE_POS_X as usize;
    let batch = CUBE_POS_Y as usize;
    // Later blocks have more keys, so that they start first.
    let first = behind(CUBE_COUNT_Z, CUBE_POS_Z) as usize * rows;
    let pitch = (heads + 2 * kv_heads) * dim;
    let start = batch * tokens * pitch;
    let query_start = start + head * dim;
    let key_start = start + (heads + head / (heads / kv_heads)) * dim;
    let value_start = key_start + kv_heads * dim;
    let out_start = (batch * tokens * heads + head) * dim;
    load(qkv, &mut queries, query_start, pitch, first, tokens, rows, tile);
    load(dout, &mut douts, out_start, heads * dim, first, tokens, rows, tile);

    let mut logs = Array::<f32>::new(tile.down);
    let mut deltas = Array::<f32>::new(tile.down);
    let mut factors = Array::<f32>::new(tile.down);
    #[unroll]
    for r in 0..tile.down {
        // Rows beyond the last token are not stored; they read the last token's sums.
        let token = min(first + top + r * tile.tall, tokens - 1);
        logs[r] = lse[(batch * heads + head) * tokens + token];
        deltas[r] = dsum[(batch * heads + head) * tokens + token];
        factors[r] = scale;
    }
    let mut results = nothing::<N>(tile);

    let end = min(tokens, first + rows);
    let mut key = 0usize;
    while key < end {
        load(qkv, &mut keys, key_start, pitch, key, tokens, cols, tile);
        load(qkv, &mut values, value_start, pitch, key, tokens, cols, tile);
        sync_cube();
        let scores = products::<N>(&queries, &keys, tile);
        let slopes = products::<N>(&douts, &values, tile);
        #[unroll]
        for r in 0..tile.down {
            let row = top + r * tile.tall;
            #[unroll]
            for c in 0..tile.across {
                let col = left + c * tile.wide;
                let i = comptime!(r * tile.across + c);
                let seen = key + col <= first + row && first + row < tokens;
                let weight = (select(seen, scores[i] * scale - logs[r], -1.0e30f32.runtime())).exp();
                weights[row * comptime!(tile.strip()) + col] = weight * (slopes[i] - deltas[r]);
            }
        }
        sync_cube();
        add_weighted::<N>(&mut results, &weights, &keys, tile);
        sync_cube();
        key += cols;
    }
    store(dqkv, &results, &factors, query_start, pitch, first, tokens, tile);
}
