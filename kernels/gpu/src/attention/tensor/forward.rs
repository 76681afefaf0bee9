//! The forward pass on tensor cores.

use super::exponent::{LN2, LOG2E, exp2};
use super::fragment::{Chunk, Fragments, Pair, zeros};
use super::layout::{lane, sum_col, sum_row};
use super::product::{add_weighted, hold, products};
use super::stage::{fetch, gate, receive, send};
use super::tiling::{CHUNK_PAIRS, COLS, Tiling};
use crate::attention::parts::{behind, filled, parts};
use crate::launches::count;
use cubecl::prelude::*;

/// Less than every score.
const LOWEST: f32 = -1.0e30;
/// How far scores may exceed their row's reference, in units of the base-2 logarithm.
const SLACK: f32 = 8.0;

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
    let gate = gate();

    let head = CUBE_POS_X as usize;
    let batch = CUBE_POS_Y as usize;
    // Later blocks have more keys, so that they start first.
    let first = behind(CUBE_COUNT_Z, CUBE_POS_Z) as usize * rows;
    let part = parts(batch, head, tokens, heads, kv_heads, chunks);
    let rounds = (min(tokens, first + rows)).div_ceil(COLS);
    fetch(qkv, &mut queries, part.queries, part.pitch, first, tokens, 0usize, rows, chunks);
    fetch(qkv, &mut keys, part.keys, part.pitch, 0usize, tokens, 0usize, COLS, chunks);
    fetch(qkv, &mut values, part.values, part.pitch, 0usize, tokens, 0usize, COLS, chunks);
    send(&gate, 0usize);
    receive(&gate, 0usize);

    // The plane's rows among the cube's.
    let row = UNIT_POS_X as usize / 32 * comptime!(16 * tiling.depth);
    let lefts = hold(&queries, row, true, tiling);
    let mut results = zeros(comptime!(tiling.depth * 2 * tiling.steps()));
    let mut highest = filled(LOWEST.runtime(), comptime!(2 * tiling.depth));
    let mut totals = filled(0.0f32, comptime!(2 * tiling.depth));

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
        // A plane whose rows all precede the keys has nothing to add.
        if round * COLS < first + row + comptime!(16 * tiling.depth) {
            let stage = round % 2 * COLS;
            let mut scores = products(&lefts, &keys, stage, COLS, tiling);
            if round * COLS + COLS > first + row + 1 {
                mask(&mut scores, first + row, round * COLS, tiling);
            }
            soften(&mut scores, &mut results, &mut highest, &mut totals, scale * LOG2E, tiling);
            add_weighted::<A>(&mut results, &scores, &values, stage, COLS, tiling);
        }
        sync_cube();
    }
    finish(&mut totals, &highest, lse, part.sums, first + row, tokens, tiling);
    let (start, pitch) = (part.outs * CHUNK_PAIRS, part.out_pitch * CHUNK_PAIRS);
    store(out, &results, &totals, start, pitch, first + row, tokens, tiling);
}

/// Lowers the scores of keys behind their query.
#[cube]
fn mask(scores: &mut Fragments<f32>, query: usize, key: usize, #[comptime] tiling: Tiling) {
    let lane = lane();
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

/// Turns scores into weights relative to each row's reference, and adds them up.
///
/// `highest` holds the references, in units of the base-2 logarithm: the rows' highest scores when they were last set.
/// They are set anew, and what was summed before is rescaled, only where a score of the plane exceeds its reference by
/// [`SLACK`]: weights of up to two to this power lose no precision. `totals` are the lane's own parts of the sums.
#[cube]
fn soften(
    scores: &mut Fragments<f32>,
    results: &mut Fragments<f32>,
    highest: &mut Array<f32>,
    totals: &mut Array<f32>,
    scale: f32,
    #[comptime] tiling: Tiling,
) {
    let mut peaks = Array::<f32>::new(comptime!(2 * tiling.depth));
    let mut grown = false.runtime();
    #[unroll]
    for i in 0..comptime!(2 * tiling.depth) {
        let mut peak = LOWEST.runtime();
        #[unroll]
        for n in 0..comptime!(COLS / 8) {
            let pair = scores.index(comptime!(i / 2 * COLS / 8 + n))[comptime!(i % 2)];
            peak = max(peak, max(pair[0], pair[1]));
        }
        // The four lanes of a row.
        peak = max(peak, plane_shuffle_xor(peak, 1u32));
        peak = max(peak, plane_shuffle_xor(peak, 2u32));
        peaks[i] = max(highest[i], peak * scale);
        grown = grown || peaks[i] > highest[i] + SLACK;
    }
    if plane_any(grown) {
        rescale(results, highest, totals, &peaks, tiling);
    }
    #[unroll]
    for i in 0..comptime!(2 * tiling.depth) {
        let reference = highest[i];
        let mut total = totals[i];
        #[unroll]
        for n in 0..comptime!(COLS / 8) {
            let sums = scores.index_mut(comptime!(i / 2 * COLS / 8 + n));
            let pair = sums[comptime!(i % 2)];
            let mut weights = Pair::<f32>::empty();
            weights[0] = exp2(fma(pair[0], scale, -reference));
            weights[1] = exp2(fma(pair[1], scale, -reference));
            total += weights[0] + weights[1];
            sums[comptime!(i % 2)] = weights;
        }
        totals[i] = total;
    }
}

/// Makes the peaks the rows' references.
#[cube]
fn rescale(
    results: &mut Fragments<f32>,
    highest: &mut Array<f32>,
    totals: &mut Array<f32>,
    peaks: &Array<f32>,
    #[comptime] tiling: Tiling,
) {
    #[unroll]
    for i in 0..comptime!(2 * tiling.depth) {
        let factor = exp2(highest[i] - peaks[i]);
        highest[i] = peaks[i];
        totals[i] *= factor;
        #[unroll]
        for n in 0..comptime!(2 * tiling.steps()) {
            let sums = results.index_mut(comptime!(i / 2 * 2 * tiling.steps() + n));
            sums[comptime!(i % 2)] = sums[comptime!(i % 2)] * Pair::<f32>::new(factor);
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
    let lane = lane();
    #[unroll]
    for i in 0..comptime!(2 * tiling.depth) {
        let mut total = totals[i];
        total += plane_shuffle_xor(total, 1u32);
        total += plane_shuffle_xor(total, 2u32);
        let token = query + comptime!(8 * i) + sum_row(lane);
        if token < tokens && sum_col(lane) == 0 {
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
    let lane = lane();
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
