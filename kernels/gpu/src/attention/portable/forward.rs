//! The portable forward pass.

use super::tile::{Tile, add_weighted, behind, load, nothing, products, store};
use crate::launches::count;
use cubecl::prelude::*;

/// Less than every score.
const LOWEST: f32 = -1.0e30;

/// One cube computes `out` and `lse` of a block of queries of one head.
#[cube(launch_unchecked)]
pub(super) fn forward_kernel<A: Float, N: Size>(
    qkv: &Array<Vector<A, N>>,
    out: &mut Array<Vector<A, N>>,
    lse: &mut Array<f32>,
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
    let mut keys = SharedMemory::<Vector<f32, N>>::new(comptime!(tile.cols() * tile.pitch()));
    let mut values = SharedMemory::<Vector<f32, N>>::new(comptime!(tile.cols() * tile.pitch()));
    let mut weights = SharedMemory::<f32>::new(comptime!(tile.rows() * tile.strip()));
    let mut peaks = SharedMemory::<f32>::new(comptime!(tile.rows() * tile.wide));

    let head = CUBE_POS_X as usize;
    let batch = CUBE_POS_Y as usize;
    // Later blocks have more keys, so that they start first.
    let first = behind(CUBE_COUNT_Z, CUBE_POS_Z) as usize * rows;
    let pitch = (heads + 2 * kv_heads) * dim;
    let start = batch * tokens * pitch;
    let key_start = start + (heads + head / (heads / kv_heads)) * dim;
    let value_start = key_start + kv_heads * dim;
    load(qkv, &mut queries, start + head * dim, pitch, first, tokens, rows, tile);

    let mut highest = Array::<f32>::new(tile.down);
    let mut totals = Array::<f32>::new(tile.down);
    #[unroll]
    for r in 0..tile.down {
        highest[r] = LOWEST;
        totals[r] = 0.0f32;
    }
    let mut results = nothing::<N>(tile);

    let end = min(tokens, first + rows);
    let mut key = 0usize;
    while key < end {
        load(qkv, &mut keys, key_start, pitch, key, tokens, cols, tile);
        load(qkv, &mut values, value_start, pitch, key, tokens, cols, tile);
        sync_cube();
        let mut scores = products::<N>(&queries, &keys, tile);
        mask(&mut scores, &mut peaks, first + top, key + left, scale, tile);
        sync_cube();
        #[unroll]
        for r in 0..tile.down {
            let row = top + r * tile.tall;
            let mut peak = highest[r];
            for i in 0..tile.wide {
                peak = max(peak, peaks[row * tile.wide + i]);
            }
            let factor = (highest[r] - peak).exp();
            highest[r] = peak;
            totals[r] *= factor;
            #[unroll]
            for s in 0..comptime!(tile.share()) {
                results[r * comptime!(tile.share()) + s] *= Vector::<f32, N>::new(factor);
            }
            #[unroll]
            for c in 0..tile.across {
                let weight = (scores[r * tile.across + c] - peak).exp();
                weights[row * comptime!(tile.strip()) + left + c * tile.wide] = weight;
            }
        }
        sync_cube();
        #[unroll]
        for r in 0..tile.down {
            for col in 0..cols {
                totals[r] += weights[(top + r * tile.tall) * comptime!(tile.strip()) + col];
            }
        }
        add_weighted::<N>(&mut results, &weights, &values, tile);
        sync_cube();
        key += cols;
    }

    #[unroll]
    for r in 0..tile.down {
        let token = first + top + r * tile.tall;
        if token < tokens && left == 0 {
            lse[(batch * heads + head) * tokens + token] = highest[r] + totals[r].ln();
        }
        totals[r] = 1.0f32 / totals[r];
    }
    let out_start = (batch * tokens * heads + head) * dim;
    store(out, &results, &totals, out_start, heads * dim, first, tokens, tile);
}

/// Scales the scores, lowers those of keys behind their query, and writes the highest of each of the unit's rows.
#[cube]
fn mask(
    scores: &mut Array<f32>,
    peaks: &mut SharedMemory<f32>,
    query: usize,
    key: usize,
    scale: f32,
    #[comptime] tile: Tile,
) {
    let top = UNIT_POS as usize / tile.wide;
    let left = UNIT_POS as usize % tile.wide;
    #[unroll]
    for r in 0..tile.down {
        let mut peak = LOWEST.runtime();
        #[unroll]
        for c in 0..tile.across {
            let seen = key + c * tile.wide <= query + r * tile.tall;
            let score = select(seen, scores[r * tile.across + c] * scale, LOWEST.runtime());
            scores[r * tile.across + c] = score;
            peak = max(peak, score);
        }
        peaks[(top + r * tile.tall) * tile.wide + left] = peak;
    }
}
