//! The gradient of the queries on tensor cores.

use super::exponent::{LOG2E, exp2};
use super::forward::store;
use super::fragment::{Chunk, Fragments, Pair, as_a, load_a, load_deep, load_flat, multiply, zeros};
use super::layout::{sum_col, sum_row};
use super::stage::{UNITS, fetch, receive, send};
use super::tiling::{COLS, Tiling, behind};
use crate::launches::count;
use cubecl::prelude::barrier::Barrier;
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
    let even = Barrier::shared(UNITS as u32, UNIT_POS == 0);
    let odd = Barrier::shared(UNITS as u32, UNIT_POS == 0);
    sync_cube();

    let head = CUBE_POS_X as usize;
    let batch = CUBE_POS_Y as usize;
    // Later blocks have more keys, so that they start first.
    let first = behind(CUBE_COUNT_Z, CUBE_POS_Z) as usize * rows;
    let pitch = (heads + 2 * kv_heads) * chunks;
    let start = batch * tokens * pitch;
    let key_start = start + (heads + head / (heads / kv_heads)) * chunks;
    let value_start = key_start + kv_heads * chunks;
    let out_start = (batch * tokens * heads + head) * chunks;
    let rounds = (min(tokens, first + rows)).div_ceil(COLS);
    fetch(qkv, &mut queries, start + head * chunks, pitch, first, tokens, 0usize, rows, chunks);
    fetch(dout, &mut douts, out_start, heads * chunks, first, tokens, 0usize, rows, chunks);
    fetch(qkv, &mut keys, key_start, pitch, 0usize, tokens, 0usize, COLS, chunks);
    fetch(qkv, &mut values, value_start, pitch, 0usize, tokens, 0usize, COLS, chunks);
    send(&even, &odd, 0usize);

    // The plane's rows among the cube's.
    let row = UNIT_POS as usize / 32 * comptime!(16 * tiling.depth);
    let mut logs = Array::<f32>::new(comptime!(2 * tiling.depth));
    let mut deltas = Array::<f32>::new(comptime!(2 * tiling.depth));
    let sums = (batch * heads + head) * tokens;
    #[unroll]
    for i in 0..comptime!(2 * tiling.depth) {
        // Rows beyond the last token are not stored; they read the last token's sums.
        let token = min(first + row + comptime!(8 * i) + sum_row(UNIT_POS_PLANE as usize), tokens - 1);
        logs[i] = lse[sums + token] * LOG2E;
        deltas[i] = dsum[sums + token];
    }
    receive(&even, &odd, 0usize);
    let mut lefts = Fragments::<A>::new();
    let mut slopes = Fragments::<A>::new();
    #[unroll]
    for i in 0..comptime!(tiling.depth * tiling.steps()) {
        let from = row + comptime!(i / tiling.steps() * 16);
        lefts.push(load_a(&queries, from, comptime!(i % tiling.steps()), chunks));
        slopes.push(load_a(&douts, from, comptime!(i % tiling.steps()), chunks));
    }
    let mut results = zeros(comptime!(tiling.depth * 2 * tiling.steps()));

    for round in 0..rounds {
        if round + 1 < rounds {
            let hold = (round + 1) % 2 * comptime!(COLS * tiling.chunks());
            fetch(qkv, &mut keys, key_start, pitch, (round + 1) * COLS, tokens, hold, COLS, chunks);
            fetch(qkv, &mut values, value_start, pitch, (round + 1) * COLS, tokens, hold, COLS, chunks);
            send(&even, &odd, (round + 1) % 2);
        }
        // The first round's copies arrived with the queries.
        if round > 0 {
            receive(&even, &odd, round);
        }
        for part in 0..comptime!(COLS / PART) {
            let key = round * COLS + part * PART;
            // A plane whose rows all precede the keys has nothing to add.
            if key < first + row + comptime!(16 * tiling.depth) {
                let at = round % 2 * COLS + part * PART;
                let mut weights = products(&lefts, &keys, at, tiling);
                let gains = products(&slopes, &values, at, tiling);
                weigh(&mut weights, &gains, &logs, &deltas, first + row, key, scale * LOG2E, tiling);
                add_weighted::<A>(&mut results, &weights, &keys, at, tiling);
            }
        }
        sync_cube();
    }
    #[unroll]
    for i in 0..comptime!(2 * tiling.depth) {
        logs[i] = scale;
    }
    let half = comptime!(CHUNK_PAIRS);
    store(dqkv, &results, &logs, (start + head * chunks) * half, pitch * half, first + row, tokens, tiling);
}

/// Pairs of a chunk.
const CHUNK_PAIRS: usize = 4;

/// Products of the plane's rows with the keys, or values, from `at` on.
#[cube]
fn products<A: Float>(
    lefts: &Fragments<A>,
    cols: &SharedMemory<Chunk<A>>,
    at: usize,
    #[comptime] tiling: Tiling,
) -> Fragments<f32> {
    let steps = comptime!(tiling.steps());
    let mut sums = zeros(comptime!(tiling.depth * PART / 8));
    #[unroll]
    for step in 0..steps {
        #[unroll]
        for pair in 0..comptime!(PART / 16) {
            let both = load_flat(cols, at + comptime!(pair * 16), step, comptime!(tiling.chunks()));
            #[unroll]
            for d in 0..tiling.depth {
                let left = lefts.index(comptime!(d * steps + step));
                multiply(left, &both, &mut sums, comptime!(d * PART / 8 + 2 * pair));
            }
        }
    }
    sums
}

/// Turns scores into their gradients, but for the scale.
#[cube]
fn weigh(
    scores: &mut Fragments<f32>,
    gains: &Fragments<f32>,
    logs: &Array<f32>,
    deltas: &Array<f32>,
    query: usize,
    key: usize,
    scale: f32,
    #[comptime] tiling: Tiling,
) {
    let lane = UNIT_POS_PLANE as usize;
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
            slope[0] = exp2(pair[0] * scale - logs[i]) * (gain[0] - deltas[i]);
            slope[1] = exp2(pair[1] * scale - logs[i]) * (gain[1] - deltas[i]);
            if cut {
                slope[0] = select(col <= row, slope[0], 0.0f32);
                slope[1] = select(col < row, slope[1], 0.0f32);
            }
            sums[half] = slope;
        }
    }
}

/// Adds the keys from `at` on, weighted.
#[cube]
fn add_weighted<A: Float>(
    results: &mut Fragments<f32>,
    weights: &Fragments<f32>,
    keys: &SharedMemory<Chunk<A>>,
    at: usize,
    #[comptime] tiling: Tiling,
) {
    #[unroll]
    for k in 0..comptime!(PART / 16) {
        let mut lefts = Fragments::<A>::new();
        #[unroll]
        for d in 0..tiling.depth {
            lefts.push(as_a::<A>(weights, comptime!(d * PART / 8 + 2 * k)));
        }
        #[unroll]
        for step in 0..comptime!(tiling.steps()) {
            let both = load_deep(keys, at + comptime!(16 * k), step, comptime!(tiling.chunks()));
            #[unroll]
            for d in 0..tiling.depth {
                multiply(lefts.index(d), &both, results, comptime!(d * 2 * tiling.steps() + 2 * step));
            }
        }
    }
}
