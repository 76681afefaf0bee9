//! The forward pass on tensor cores.

use super::exponent::{LN2, LOG2E, exp2};
use super::fragment::{Chunk, Fragments, Pair, as_a, load_a, load_deep, load_flat, multiply, zeros};
use super::layout::{sum_col, sum_row};
use super::stage::{UNITS, fetch, receive, send};
use super::tiling::{COLS, Tiling, behind};
use crate::launches::count;
use cubecl::prelude::barrier::Barrier;
use cubecl::prelude::*;

/// Less than every score.
const LOWEST: f32 = -1.0e30;

/// One cube computes `out` and `lse` of a block of queries of one head; each of its planes has rows of its own.
///
/// Keys and values pass through two stages of shared memory; scores and results stay in registers.
#[cube(launch_unchecked)]
pub fn forward_kernel<A: Float>(
    qkv: &Array<Chunk<A>>,
    out: &mut Array<Pair<A>>,
    lse: &mut Array<f32>,
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
    let rounds = (min(tokens, first + rows)).div_ceil(COLS);
    fetch(qkv, &mut queries, start + head * chunks, pitch, first, tokens, 0usize, rows, chunks);
    fetch(qkv, &mut keys, key_start, pitch, 0usize, tokens, 0usize, COLS, chunks);
    fetch(qkv, &mut values, value_start, pitch, 0usize, tokens, 0usize, COLS, chunks);
    send(&even, &odd, 0usize);
    receive(&even, &odd, 0usize);

    // The plane's rows among the cube's.
    let row = UNIT_POS as usize / 32 * comptime!(16 * tiling.depth);
    let mut lefts = Fragments::<A>::new();
    #[unroll]
    for i in 0..comptime!(tiling.depth * tiling.steps()) {
        lefts.push(load_a(&queries, row + comptime!(i / tiling.steps() * 16), comptime!(i % tiling.steps()), chunks));
    }
    let mut results = zeros(comptime!(tiling.depth * 2 * tiling.steps()));
    let mut highest = Array::<f32>::new(comptime!(2 * tiling.depth));
    let mut totals = Array::<f32>::new(comptime!(2 * tiling.depth));
    #[unroll]
    for i in 0..comptime!(2 * tiling.depth) {
        highest[i] = LOWEST;
        totals[i] = 0.0f32;
    }

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
        // A plane whose rows all precede the keys has nothing to add.
        if round * COLS < first + row + comptime!(16 * tiling.depth) {
            let stage = round % 2 * COLS;
            let mut scores = score(&lefts, &keys, stage, tiling);
            if round * COLS + COLS > first + row + 1 {
                mask(&mut scores, first + row, round * COLS, tiling);
            }
            soften(&mut scores, &mut results, &mut highest, &mut totals, scale * LOG2E, tiling);
            add_weighted::<A>(&mut results, &scores, &values, stage, tiling);
        }
        sync_cube();
    }
    finish(&mut totals, &highest, lse, (batch * heads + head) * tokens, first + row, tokens, tiling);
    let out_start = (batch * tokens * heads + head) * comptime!(tiling.dim / 2);
    store(out, &results, &totals, out_start, heads * comptime!(tiling.dim / 2), first + row, tokens, tiling);
}

/// Scores of the plane's rows with the keys of a stage, not yet scaled.
#[cube]
fn score<A: Float>(
    lefts: &Fragments<A>,
    keys: &SharedMemory<Chunk<A>>,
    stage: usize,
    #[comptime] tiling: Tiling,
) -> Fragments<f32> {
    let steps = comptime!(tiling.steps());
    let mut scores = zeros(comptime!(tiling.depth * COLS / 8));
    #[unroll]
    for step in 0..steps {
        #[unroll]
        for pair in 0..comptime!(COLS / 16) {
            let both = load_flat(keys, stage + comptime!(pair * 16), step, comptime!(tiling.chunks()));
            #[unroll]
            for d in 0..tiling.depth {
                let left = lefts.index(comptime!(d * steps + step));
                multiply(left, &both, &mut scores, comptime!(d * COLS / 8 + 2 * pair));
            }
        }
    }
    scores
}

/// Lowers the scores of keys behind their query.
#[cube]
fn mask(scores: &mut Fragments<f32>, query: usize, key: usize, #[comptime] tiling: Tiling) {
    let lane = UNIT_POS_PLANE as usize;
    #[unroll]
    for d in 0..tiling.depth {
        #[unroll]
        for half in 0..2usize {
            let row = query + comptime!(16 * d + 8 * half) + sum_row(lane);
            #[unroll]
            for n in 0..comptime!(COLS / 8) {
                let col = key + comptime!(8 * n) + sum_col(lane);
                let sums = scores.index_mut(comptime!(d * COLS / 8 + n));
                let pair = sums[half];
                let mut masked = Pair::<f32>::empty();
                masked[0] = select(col <= row, pair[0], LOWEST);
                masked[1] = select(col < row, pair[1], LOWEST);
                sums[half] = masked;
            }
        }
    }
}

/// Turns scores into weights relative to each row's highest score so far, and rescales what was summed before.
///
/// `highest` is in units of the base-2 logarithm; `totals` are the lane's own parts of the rows' sums.
#[cube]
fn soften(
    scores: &mut Fragments<f32>,
    results: &mut Fragments<f32>,
    highest: &mut Array<f32>,
    totals: &mut Array<f32>,
    scale: f32,
    #[comptime] tiling: Tiling,
) {
    #[unroll]
    for d in 0..tiling.depth {
        #[unroll]
        for half in 0..2usize {
            let mut peak = LOWEST.runtime();
            #[unroll]
            for n in 0..comptime!(COLS / 8) {
                let pair = scores.index(comptime!(d * COLS / 8 + n))[half];
                peak = max(peak, max(pair[0], pair[1]));
            }
            // The four lanes of a row.
            peak = max(peak, plane_shuffle_xor(peak, 1u32));
            peak = max(peak, plane_shuffle_xor(peak, 2u32));
            let i = comptime!(2 * d + half);
            peak = max(highest[i], peak * scale);
            let factor = exp2(highest[i] - peak);
            highest[i] = peak;
            let mut total = totals[i] * factor;
            #[unroll]
            for n in 0..comptime!(COLS / 8) {
                let sums = scores.index_mut(comptime!(d * COLS / 8 + n));
                let pair = sums[half];
                let mut weights = Pair::<f32>::empty();
                weights[0] = exp2(pair[0] * scale - peak);
                weights[1] = exp2(pair[1] * scale - peak);
                total += weights[0] + weights[1];
                sums[half] = weights;
            }
            totals[i] = total;
            #[unroll]
            for n in 0..comptime!(2 * tiling.steps()) {
                let sums = results.index_mut(comptime!(d * 2 * tiling.steps() + n));
                sums[half] = sums[half] * Pair::<f32>::new(factor);
            }
        }
    }
}

/// Adds the stage's values, weighted.
#[cube]
fn add_weighted<A: Float>(
    results: &mut Fragments<f32>,
    weights: &Fragments<f32>,
    values: &SharedMemory<Chunk<A>>,
    stage: usize,
    #[comptime] tiling: Tiling,
) {
    #[unroll]
    for k in 0..comptime!(COLS / 16) {
        let mut lefts = Fragments::<A>::new();
        #[unroll]
        for d in 0..tiling.depth {
            lefts.push(as_a::<A>(weights, comptime!(d * COLS / 8 + 2 * k)));
        }
        #[unroll]
        for step in 0..comptime!(tiling.steps()) {
            let both = load_deep(values, stage + comptime!(16 * k), step, comptime!(tiling.chunks()));
            #[unroll]
            for d in 0..tiling.depth {
                multiply(lefts.index(d), &both, results, comptime!(d * 2 * tiling.steps() + 2 * step));
            }
        }
    }
}

/// Completes the rows' sums, writes their logarithms, and turns the sums into factors of the results.
#[cube]
fn finish(
    totals: &mut Array<f32>,
    highest: &Array<f32>,
    lse: &mut Array<f32>,
    start: usize,
    query: usize,
    tokens: usize,
    #[comptime] tiling: Tiling,
) {
    let lane = UNIT_POS_PLANE as usize;
    #[unroll]
    for i in 0..comptime!(2 * tiling.depth) {
        let mut total = totals[i];
        total += plane_shuffle_xor(total, 1u32);
        total += plane_shuffle_xor(total, 2u32);
        let token = query + comptime!(8 * i) + sum_row(lane);
        if token < tokens && lane % 4 == 0 {
            lse[start + token] = highest[i] * LN2 + total.ln();
        }
        totals[i] = 1.0f32 / total;
    }
}

/// Writes the plane's rows, each times its factor.
#[cube]
pub fn store<A: Float>(
    target: &mut Array<Pair<A>>,
    results: &Fragments<f32>,
    factors: &Array<f32>,
    start: usize,
    pitch: usize,
    first: usize,
    tokens: usize,
    #[comptime] tiling: Tiling,
) {
    let lane = UNIT_POS_PLANE as usize;
    #[unroll]
    for i in 0..comptime!(2 * tiling.depth) {
        let token = first + comptime!(8 * i) + sum_row(lane);
        if token < tokens {
            let factor = Pair::<f32>::new(factors[i]);
            #[unroll]
            for n in 0..comptime!(2 * tiling.steps()) {
                let sums = results.index(comptime!(i / 2 * 2 * tiling.steps() + n));
                let at = start + token * pitch + comptime!(4 * n) + sum_col(lane) / 2;
                target[at] = Pair::<A>::cast_from(sums[comptime!(i % 2)] * factor);
            }
        }
    }
}
