//! The gradients of keys and values on tensor cores.

use super::exponent::{LOG2E, exp2};
use super::forward::store;
use super::fragment::{Chunk, Fragments, Pair, zeros};
use super::layout::{lane, sum_col, sum_row};
use super::product::{add_weighted, hold, products, products_of_stored};
use super::stage::{UNITS, fetch, fetch_sums, receive, send};
use super::tiling::{CHUNK_PAIRS, COLS, Tiling};
use crate::attention::parts::{Parts, filled, parts};
use crate::launches::count;
use cubecl::prelude::barrier::Barrier;
use cubecl::prelude::*;

/// Queries whose scores a plane holds at a time.
const PART: usize = 32;

/// One cube computes the gradients of a block of keys and values of one of their heads; each plane has rows of its own.
///
/// The queries of all heads of the group, one head after the other, pass through two stages of shared memory.
#[cube(launch_unchecked)]
pub fn keys_kernel<A: Float>(
    qkv: &Array<Chunk<A>>,
    dout: &Array<Chunk<A>>,
    lse: &Array<f32>,
    dsum: &Array<f32>,
    dqkv: &mut Array<Pair<A>>,
    tally: &mut Array<Atomic<u32>>,
    tokens: usize,
    heads: usize,
    kv_heads: usize,
    scale: f32,
    #[comptime] tiling: Tiling,
) {
    count(tally);
    let chunks = comptime!(tiling.chunks());
    let rows = comptime!(tiling.rows());
    let mut keys = SharedMemory::<Chunk<A>>::new_aligned(comptime!(tiling.rows() * tiling.chunks()), 128usize);
    let mut values = SharedMemory::<Chunk<A>>::new_aligned(comptime!(tiling.rows() * tiling.chunks()), 128usize);
    let mut queries = SharedMemory::<Chunk<A>>::new_aligned(comptime!(2 * COLS * tiling.chunks()), 128usize);
    let mut douts = SharedMemory::<Chunk<A>>::new_aligned(comptime!(2 * COLS * tiling.chunks()), 128usize);
    let mut logs = SharedMemory::<f32>::new_aligned(comptime!(2 * COLS), 128usize);
    let mut deltas = SharedMemory::<f32>::new_aligned(comptime!(2 * COLS), 128usize);
    let even = Barrier::shared(UNITS as u32, UNIT_POS == 0);
    let odd = Barrier::shared(UNITS as u32, UNIT_POS == 0);
    sync_cube();

    let group = heads / kv_heads;
    let leader = CUBE_POS_X as usize * group;
    let batch = CUBE_POS_Y as usize;
    // Earlier blocks have more queries, and start first.
    let first = CUBE_POS_Z as usize * rows;
    let part = parts(batch, leader, tokens, heads, kv_heads, chunks);
    // Queries before the first key do not see the block.
    let open = first / COLS * COLS;
    let blocks = (tokens - open).div_ceil(COLS);
    let rounds = group * blocks;
    fetch(qkv, &mut keys, part.keys, part.pitch, first, tokens, 0usize, rows, chunks);
    fetch(qkv, &mut values, part.values, part.pitch, first, tokens, 0usize, rows, chunks);
    fetch_operands(qkv, dout, &mut queries, &mut douts, part, open, tokens, 0usize, tiling);
    fetch_row_sums(lse, dsum, &mut logs, &mut deltas, part, open, tokens, 0usize);
    send(&even, &odd, 0usize);
    receive(&even, &odd, 0usize);

    // The plane's rows among the cube's.
    let row = UNIT_POS_X as usize / 32 * comptime!(16 * tiling.depth);
    let lefts = hold(&keys, row, comptime!(held(tiling)), tiling);
    let rights = hold(&values, row, comptime!(held(tiling)), tiling);
    let mut key_results = zeros(comptime!(tiling.depth * 2 * tiling.steps()));
    let mut value_results = zeros(comptime!(tiling.depth * 2 * tiling.steps()));

    for round in 0..rounds {
        if round + 1 < rounds {
            let next = parts(batch, leader + (round + 1) / blocks, tokens, heads, kv_heads, chunks);
            let query = open + (round + 1) % blocks * COLS;
            let stage = (round + 1) % 2;
            fetch_operands(qkv, dout, &mut queries, &mut douts, next, query, tokens, stage, tiling);
            fetch_row_sums(lse, dsum, &mut logs, &mut deltas, next, query, tokens, stage);
            send(&even, &odd, stage);
        }
        // The first round's copies arrived with the keys.
        if round > 0 {
            receive(&even, &odd, round);
        }
        for half in 0..comptime!(COLS / PART) {
            let query = open + round % blocks * COLS + half * PART;
            // Queries that all precede the plane's keys add nothing.
            if query + PART > first + row {
                let at = round % 2 * COLS + half * PART;
                let mut scores = score(&lefts, &keys, row, &queries, at, tiling);
                let mut slopes = score(&rights, &values, row, &douts, at, tiling);
                weigh(&mut scores, &mut slopes, &logs, &deltas, at, first + row, query, scale * LOG2E, tiling);
                add_weighted::<A>(&mut value_results, &scores, &douts, at, PART, tiling);
                add_weighted::<A>(&mut key_results, &slopes, &queries, at, PART, tiling);
            }
        }
        sync_cube();
    }
    store_both(dqkv, &key_results, &value_results, part, first + row, tokens, scale, tiling);
}

/// Writes the gradients of the plane's keys and values.
#[cube]
fn store_both<A: Float>(
    dqkv: &mut Array<Pair<A>>,
    keys: &Fragments<f32>,
    values: &Fragments<f32>,
    part: Parts,
    first: usize,
    tokens: usize,
    scale: f32,
    #[comptime] tiling: Tiling,
) {
    let pitch = part.pitch * CHUNK_PAIRS;
    let factors = filled(scale, comptime!(2 * tiling.depth));
    store(dqkv, keys, &factors, part.keys * CHUNK_PAIRS, pitch, first, tokens, tiling);
    let factors = filled(1.0f32, comptime!(2 * tiling.depth));
    store(dqkv, values, &factors, part.values * CHUNK_PAIRS, pitch, first, tokens, tiling);
}

/// Whether registers suffice to hold keys and values as operands.
fn held(tiling: Tiling) -> bool {
    tiling.depth * tiling.dim <= 64
}

/// Starts the copies of a block of a head's queries and of the gradients of their results.
#[cube]
fn fetch_operands<A: Float>(
    qkv: &Array<Chunk<A>>,
    dout: &Array<Chunk<A>>,
    queries: &mut SharedMemory<Chunk<A>>,
    douts: &mut SharedMemory<Chunk<A>>,
    part: Parts,
    query: usize,
    tokens: usize,
    stage: usize,
    #[comptime] tiling: Tiling,
) {
    let chunks = comptime!(tiling.chunks());
    let to = stage * comptime!(COLS * tiling.chunks());
    fetch(qkv, queries, part.queries, part.pitch, query, tokens, to, COLS, chunks);
    fetch(dout, douts, part.outs, part.out_pitch, query, tokens, to, COLS, chunks);
}

/// Starts the copies of a block of rows' logarithms and sums.
#[cube]
fn fetch_row_sums(
    lse: &Array<f32>,
    dsum: &Array<f32>,
    logs: &mut SharedMemory<f32>,
    deltas: &mut SharedMemory<f32>,
    part: Parts,
    query: usize,
    tokens: usize,
    stage: usize,
) {
    fetch_sums(lse, logs, part.sums, query, tokens, stage * COLS, 0usize);
    fetch_sums(dsum, deltas, part.sums, query, tokens, stage * COLS, COLS);
}

/// Products of the plane's rows with a part of the columns.
#[cube]
fn score<A: Float>(
    lefts: &Fragments<A>,
    rows: &SharedMemory<Chunk<A>>,
    row: usize,
    cols: &SharedMemory<Chunk<A>>,
    at: usize,
    #[comptime] tiling: Tiling,
) -> Fragments<f32> {
    if comptime!(held(tiling)) {
        products(lefts, cols, at, PART, tiling)
    } else {
        products_of_stored(rows, row, cols, at, PART, tiling)
    }
}

/// Turns scores into weights, and the weights' gradients into those of the scores, but for the scale.
///
/// Queries beyond the last are zeros, as are their sums: they weigh their zeros.
#[cube]
fn weigh(
    scores: &mut Fragments<f32>,
    gains: &mut Fragments<f32>,
    logs: &SharedMemory<f32>,
    deltas: &SharedMemory<f32>,
    at: usize,
    key: usize,
    query: usize,
    scale: f32,
    #[comptime] tiling: Tiling,
) {
    let lane = lane();
    let cut = key + comptime!(16 * tiling.depth) > query + 1;
    #[unroll]
    for n in 0..comptime!(PART / 8) {
        let from = at + comptime!(8 * n) + sum_col(lane);
        let (log, next_log) = (logs[from] * LOG2E, logs[from + 1] * LOG2E);
        let (delta, next_delta) = (deltas[from], deltas[from + 1]);
        let col = query + comptime!(8 * n) + sum_col(lane);
        #[unroll]
        for i in 0..comptime!(2 * tiling.depth) {
            let half = comptime!(i % 2);
            let sums = scores.index_mut(comptime!(i / 2 * PART / 8 + n));
            let pair = sums[half];
            let mut weight = Pair::<f32>::empty();
            weight[0] = exp2(fma(pair[0], scale, -log));
            weight[1] = exp2(fma(pair[1], scale, -next_log));
            if cut {
                let row = key + comptime!(8 * i) + sum_row(lane);
                weight[0] = select(row <= col, weight[0], 0.0f32);
                weight[1] = select(row <= col + 1, weight[1], 0.0f32);
            }
            sums[half] = weight;
            let slopes = gains.index_mut(comptime!(i / 2 * PART / 8 + n));
            let gain = slopes[half];
            let mut slope = Pair::<f32>::empty();
            slope[0] = weight[0] * (gain[0] - delta);
            slope[1] = weight[1] * (gain[1] - next_delta);
            slopes[half] = slope;
        }
    }
}
