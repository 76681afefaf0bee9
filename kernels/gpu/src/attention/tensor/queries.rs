//! The gradient of the queries on tensor cores.

use super::exponent::{LOG2E, exp2};
use super::forward::store;
use super::fragment::{Chunk, Fragments, Pair, zeros};
use super::layout::{lane, sum_col, sum_row};
use super::product::{add_weighted, hold, products};
use super::stage::{fetch, gate, receive, send};
use super::tiling::{CHUNK_PAIRS, COLS, Tiling};
use crate::attention::parts::{behind, filled, parts};
use crate::launches::count;
use cubecl::prelude::*;

/// Keys whose scores a plane holds at a time.
const PART: usize = 32;

/// One cube computes the gradient of a block of queries of one head; each of its planes has rows of its own.
#[cube(launch_unchecked)]
pub fn queries_kernel<A: Float>(
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
    let mut queries = SharedMemory::<Chunk<A>>::new_aligned(comptime!(tiling.rows() * tiling.chunks()), 128usize);
    let mut douts = SharedMemory::<Chunk<A>>::new_aligned(comptime!(tiling.rows() * tiling.chunks()), 128usize);
    let mut keys = SharedMemory::<Chunk<A>>::new_aligned(comptime!(2 * COLS * tiling.chunks()), 128usize);
    let mut values = SharedMemory::<Chunk<A>>::new_aligned(comptime!(2 * COLS * tiling.chunks()), 128usize);
    let gate = gate();

    let head = CUBE_POS_X as usize;
    let batch = CUBE_POS_Y as usize;
    // Later blocks have more keys, so that they start first.
    let first = behind(CUBE_COUNT_Z, CUBE_POS_Z) as usize * rows;
    let part = parts(batch, head, tokens, heads, kv_heads, chunks);
    let rounds = (min(tokens, first + rows)).div_ceil(COLS);
    fetch(qkv, &mut queries, part.queries, part.pitch, first, tokens, 0usize, rows, chunks);
    fetch(dout, &mut douts, part.outs, part.out_pitch, first, tokens, 0usize, rows, chunks);
    fetch(qkv, &mut keys, part.keys, part.pitch, 0usize, tokens, 0usize, COLS, chunks);
    fetch(qkv, &mut values, part.values, part.pitch, 0usize, tokens, 0usize, COLS, chunks);
    send(&gate, 0usize);

    // The plane's rows among the cube's.
    let row = UNIT_POS_X as usize / 32 * comptime!(16 * tiling.depth);
    receive(&gate, 0usize);
    let block = Block::<A> {
        queries: hold(&queries, row, true, tiling),
        douts: hold(&douts, row, true, tiling),
        logs: of_rows(lse, part.sums, first + row, tokens, LOG2E, tiling),
        deltas: of_rows(dsum, part.sums, first + row, tokens, 1.0f32, tiling),
    };
    let mut results = zeros(comptime!(tiling.depth * 2 * tiling.steps()));

    for round in 0..rounds {
        if round + 1 < rounds {
            let hold = (round + 1) % 2 * comptime!(COLS * tiling.chunks());
            fetch(qkv, &mut keys, part.keys, part.pitch, (round + 1) * COLS, tokens, hold, COLS, chunks);
            fetch(qkv, &mut values, part.values, part.pitch, (round + 1) * COLS, tokens, hold, COLS, chunks);
            send(&gate, (round + 1) % 2);
        }
        // The first round's copies arrived with the queries.
        if round > 0 {
            receive(&gate, round);
        }
        accumulate(&mut results, &block, &keys, &values, first + row, round, scale * LOG2E, tiling);
        sync_cube();
    }
    let factors = filled(scale, comptime!(2 * tiling.depth));
    let (start, pitch) = (part.queries * CHUNK_PAIRS, part.pitch * CHUNK_PAIRS);
    store(dqkv, &results, &factors, start, pitch, first + row, tokens, tiling);
}

/// A lane's part of its plane's rows.
#[derive(CubeType)]
struct Block<A: Float> {
    queries: Fragments<A>,
    douts: Fragments<A>,
    logs: Array<f32>,
    deltas: Array<f32>,
}

/// Adds what the keys of a round give, part by part.
#[cube]
fn accumulate<A: Float>(
    results: &mut Fragments<f32>,
    block: &Block<A>,
    keys: &SharedMemory<Chunk<A>>,
    values: &SharedMemory<Chunk<A>>,
    query: usize,
    round: usize,
    scale: f32,
    #[comptime] tiling: Tiling,
) {
    for part in 0..comptime!(COLS / PART) {
        let key = round * COLS + part * PART;
        // A plane whose rows all precede the keys has nothing to add.
        if key < query + comptime!(16 * tiling.depth) {
            let at = round % 2 * COLS + part * PART;
            let mut weights = products(&block.queries, keys, at, PART, tiling);
            let gains = products(&block.douts, values, at, PART, tiling);
            weigh(&mut weights, &gains, block, query, key, scale, tiling);
            add_weighted::<A>(results, &weights, keys, at, PART, tiling);
        }
    }
}

/// The numbers of the lane's rows, times a factor; rows beyond the last token, which are not stored, read the last's.
#[cube]
fn of_rows(
    source: &Array<f32>,
    start: usize,
    first: usize,
    tokens: usize,
    factor: f32,
    #[comptime] tiling: Tiling,
) -> Array<f32> {
    let mut numbers = Array::<f32>::new(comptime!(2 * tiling.depth));
    #[unroll]
    for i in 0..comptime!(2 * tiling.depth) {
        let token = min(first + comptime!(8 * i) + sum_row(lane()), tokens - 1);
        numbers[i] = source[start + token] * factor;
    }
    numbers
}

/// Turns scores into their gradients, but for the scale.
#[cube]
fn weigh<A: Float>(
    scores: &mut Fragments<f32>,
    gains: &Fragments<f32>,
    block: &Block<A>,
    query: usize,
    key: usize,
    scale: f32,
    #[comptime] tiling: Tiling,
) {
    let lane = lane();
    let cut = key + PART > query + 1;
    #[unroll]
    for i in 0..comptime!(2 * tiling.depth) {
        let row = query + comptime!(8 * i) + sum_row(lane);
        #[unroll]
        for n in 0..comptime!(PART / 8) {
            let at = comptime!(i / 2 * PART / 8 + n);
            let half = comptime!(i % 2);
            let sums = scores.index_mut(at);
            let pair = sums[half];
            let gain = gains.index(at)[half];
            let col = key + comptime!(8 * n) + sum_col(lane);
            let mut slope = Pair::<f32>::empty();
            slope[0] = exp2(fma(pair[0], scale, -block.logs[i])) * (gain[0] - block.deltas[i]);
            slope[1] = exp2(fma(pair[1], scale, -block.logs[i])) * (gain[1] - block.deltas[i]);
            if cut {
                slope[0] = select(col <= row, slope[0], 0.0f32);
                slope[1] = select(col < row, slope[1], 0.0f32);
            }
            sums[half] = slope;
        }
    }
}
