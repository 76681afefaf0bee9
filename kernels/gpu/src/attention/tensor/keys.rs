//! The gradients of keys and values on tensor cores.

use super::exponent::{LOG2E, exp2};
use super::forward::store;
use super::fragment::{Chunk, Fragments, Pair, zeros};
use super::layout::{lane, sum_col, sum_row};
use super::product::{add_weighted, hold, products, products_of_stored};
use super::stage::{fetch, fetch_sums, gate, receive, send};
use super::tiling::{CHUNK_PAIRS, COLS, Tiling};
use crate::attention::parts::{Parts, filled, parts};
use crate::launches::count;
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
    let mut stream = stream::<A>(tiling);
    let gate = gate();

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
    fetch_round(qkv, dout, lse, dsum, &mut stream, part, open, tokens, 0usize, tiling);
    send(&gate, 0usize);
    receive(&gate, 0usize);

    // The plane's rows among the cube's.
    let row = UNIT_POS_X as usize / 32 * comptime!(16 * tiling.depth);
    let held_keys = hold(&keys, row, comptime!(held(tiling)), tiling);
    let held_values = hold(&values, row, comptime!(held(tiling)), tiling);
    let block = Block::<A> { keys, values, held_keys, held_values, row, first: first + row };
    let mut key_results = zeros(comptime!(tiling.depth * 2 * tiling.steps()));
    let mut value_results = zeros(comptime!(tiling.depth * 2 * tiling.steps()));

    for round in 0..rounds {
        if round + 1 < rounds {
            let next = parts(batch, leader + (round + 1) / blocks, tokens, heads, kv_heads, chunks);
            let query = open + (round + 1) % blocks * COLS;
            let stage = (round + 1) % 2;
            fetch_round(qkv, dout, lse, dsum, &mut stream, next, query, tokens, stage, tiling);
            send(&gate, stage);
        }
        // The first round's copies arrived with the keys.
        if round > 0 {
            receive(&gate, round);
        }
        let query = open + round % blocks * COLS;
        accumulate(&mut key_results, &mut value_results, &block, &stream, query, round % 2, scale * LOG2E, tiling);
        sync_cube();
    }
    store_both(dqkv, &key_results, &value_results, part, first + row, tokens, scale, tiling);
}

/// A plane's rows: in shared memory, where `row` is their first, and in registers, where those suffice.
#[derive(CubeType)]
struct Block<A: Float> {
    keys: SharedMemory<Chunk<A>>,
    values: SharedMemory<Chunk<A>>,
    held_keys: Fragments<A>,
    held_values: Fragments<A>,
    row: usize,
    /// The first row's token.
    first: usize,
}

/// Adds what the queries of a stage give, part by part; `query` is the first.
#[cube]
fn accumulate<A: Float>(
    key_results: &mut Fragments<f32>,
    value_results: &mut Fragments<f32>,
    block: &Block<A>,
    stream: &Stream<A>,
    query: usize,
    stage: usize,
    scale: f32,
    #[comptime] tiling: Tiling,
) {
    for part in 0..comptime!(COLS / PART) {
        let query = query + part * PART;
        let at = stage * COLS + part * PART;
        // Queries that all precede the plane's keys add nothing.
        if query + PART > block.first {
            let mut scores = score(&block.held_keys, &block.keys, block.row, &stream.queries, at, tiling);
            let mut slopes = score(&block.held_values, &block.values, block.row, &stream.douts, at, tiling);
            weigh(&mut scores, &mut slopes, stream, at, block.first, query, scale, tiling);
            add_weighted::<A>(value_results, &scores, &stream.douts, at, PART, tiling);
            add_weighted::<A>(key_results, &slopes, &stream.queries, at, PART, tiling);
        }
    }
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

/// The data that pass through the two stages of shared memory.
#[derive(CubeType)]
struct Stream<A: Float> {
    queries: SharedMemory<Chunk<A>>,
    douts: SharedMemory<Chunk<A>>,
    logs: SharedMemory<f32>,
    deltas: SharedMemory<f32>,
}

#[cube]
fn stream<A: Float>(#[comptime] tiling: Tiling) -> Stream<A> {
    Stream::<A> {
        queries: SharedMemory::<Chunk<A>>::new_aligned(comptime!(2 * COLS * tiling.chunks()), 128usize),
        douts: SharedMemory::<Chunk<A>>::new_aligned(comptime!(2 * COLS * tiling.chunks()), 128usize),
        logs: SharedMemory::<f32>::new_aligned(comptime!(2 * COLS), 128usize),
        deltas: SharedMemory::<f32>::new_aligned(comptime!(2 * COLS), 128usize),
    }
}

/// Starts the copies of a block of a head's queries, of the gradients of their results, and of their sums.
#[cube]
fn fetch_round<A: Float>(
    qkv: &Array<Chunk<A>>,
    dout: &Array<Chunk<A>>,
    lse: &Array<f32>,
    dsum: &Array<f32>,
    stream: &mut Stream<A>,
    part: Parts,
    query: usize,
    tokens: usize,
    stage: usize,
    #[comptime] tiling: Tiling,
) {
    let chunks = comptime!(tiling.chunks());
    let to = stage * comptime!(COLS * tiling.chunks());
    fetch(qkv, &mut stream.queries, part.queries, part.pitch, query, tokens, to, COLS, chunks);
    fetch(dout, &mut stream.douts, part.outs, part.out_pitch, query, tokens, to, COLS, chunks);
    fetch_sums(lse, &mut stream.logs, part.sums, query, tokens, stage * COLS, 0usize);
    fetch_sums(dsum, &mut stream.deltas, part.sums, query, tokens, stage * COLS, COLS);
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
fn weigh<A: Float>(
    scores: &mut Fragments<f32>,
    gains: &mut Fragments<f32>,
    stream: &Stream<A>,
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
        let (log, next_log) = (stream.logs[from] * LOG2E, stream.logs[from + 1] * LOG2E);
        let (delta, next_delta) = (stream.deltas[from], stream.deltas[from + 1]);
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
