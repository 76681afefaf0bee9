//! The portable forward pass.

use super::tile::{Tile, add_weighted, load, nothing, products, store};
use crate::attention::parts::{behind, filled, parts};
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
    let part = parts(batch, head, tokens, heads, kv_heads, dim);
    load(qkv, &mut queries, part.queries, part.pitch, first, tokens, rows, tile);

    let mut highest = filled(LOWEST.runtime(), tile.down);
    let mut totals = filled(0.0f32, tile.down);
    let mut results = nothing::<N>(tile);

    let end = min(tokens, first + rows);
    let mut key = 0usize;
    while key < end {
        load(qkv, &mut keys, part.keys, part.pitch, key, tokens, cols, tile);
        load(qkv, &mut values, part.values, part.pitch, key, tokens, cols, tile);
        sync_cube();
        let mut scores = products::<N>(&queries, &keys, tile);
        mask(&mut scores, &mut peaks, first + top, key + left, scale, tile);
        sync_cube();
        soften(&scores, &peaks, &mut weights, &mut results, &mut highest, &mut totals, tile);
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
            lse[part.sums + token] = highest[r] + totals[r].ln();
        }
        totals[r] = 1.0f32 / totals[r];
    }
    store(out, &results, &totals, part.outs, part.out_pitch, first, tokens, tile);
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

/// Sets the rows' peaks anew, rescales what was summed before, and writes the unit's weights.
#[cube]
fn soften<N: Size>(
    scores: &Array<f32>,
    peaks: &SharedMemory<f32>,
    weights: &mut SharedMemory<f32>,
    results: &mut Array<Vector<f32, N>>,
    highest: &mut Array<f32>,
    totals: &mut Array<f32>,
    #[comptime] tile: Tile,
) {
    let top = UNIT_POS as usize / tile.wide;
    let left = UNIT_POS as usize % tile.wide;
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
}
