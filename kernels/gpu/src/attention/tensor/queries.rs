//! The gradient of the queries on tensor cores.

use super::exponent::{LOG2E, exp2};
use super::forward::store;
use super::fragment::{Chunk, Fragments, Pair, zeros};
use super::layout::{lane, sum_col, sum_row};
use super::product::{add_weighted, hold, products};
use super::stage::{UNITS, fetch, receive, send};
use super::tiling::{CHUNK_PAIRS, COLS, Tiling};
use crate::attention::parts::{behind, filled, parts};
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
    let part = parts(batch, head, tokens, heads, kv_heads, chunks);
    let rounds = (min(tokens, first + rows)).div_ceil(COLS);
    fetch(qkv, &mut queries, part.queries, part.pitch, first, tokens, 0usize, rows, chunks);
    fetch(dout, &mut douts, part.outs, part.out_pitch, first, tokens, 0usize, rows, chunks);
    fetch(qkv, &mut keys, part.keys, part.pitch, 0usize, tokens, 0usize, COLS, chunks);
    fetch(qkv, &mut values, part.values, part.pitch, 0usize, tokens, 0usize, COLS, chunks);
    send(&even, &odd, 0usize);

    // The plane's rows among the cube's.
    let row = UNIT_POS_X as usize / 32 * comptime!(16 * tiling.depth);
    let logs = of_rows(lse, part.sums, first + row, tokens, LOG2E, tiling);
    let deltas = of_rows(dsum, part.sums, first + row, tokens, 1.0f32, tiling);
    receive(&even, &odd, 0usize);
    let lefts = hold(&queries, row, true, tiling);
    let slopes = hold(&douts, row, true, tiling);
    let mut results = zeros(comptime!(tiling.depth * 2 * tiling.steps()));

    for round in 0..rounds {
        if round + 1 < rounds {
            let hold = (round + 1) % 2 * comptime!(COLS * tiling.chunks());
            fetch(qkv, &mut keys, part.keys, part.pitch, (round + 1) * COLS, tokens, hold, COLS, chunks);
            fetch(qkv, &mut values, part.values, part.pitch, (round + 1) * COLS, tokens, hold, COLS, chunks);
            send(&even, &odd, (round + 1) % 2);
        }
        // The first round's copies arrived with the queries.
        if round > 0 {
            receive(&even, &odd, round);
        }
        for half in 0..comptime!(COLS / PART) {
            let key = round * COLS + half * PART;
            // A plane whose rows all precede the keys has nothing to add.
            if key < first + row + comptime!(16 * tiling.depth) {
                let at = round % 2 * COLS + half * PART;
                let mut weights = products(&lefts, &keys, at, PART, tiling);
                let gains = products(&slopes, &values, at, PART, tiling);
                weigh(&mut weights, &gains, &logs, &deltas, first + row, key, scale * LOG2E, tiling);
                add_weighted::<A>(&mut results, &weights, &keys, at, PART, tiling);
            }
        }
        sync_cube();
    }
    let factors = filled(scale, comptime!(2 * tiling.depth));
    let (start, pitch) = (part.queries * CHUNK_PAIRS, part.pitch * CHUNK_PAIRS);
    store(dqkv, &results, &factors, start, pitch, first + row, tokens, tiling);
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
            slope[0] = exp2(fma(pair[0], scale, -logs[i])) * (gain[0] - deltas[i]);
            slope[1] = exp2(fma(pair[1], scale, -logs[i])) * (gain[1] - deltas[i]);
            if cut {
                slope[0] = select(col <= row, slope[0], 0.0f32);
                slope[1] = select(col < row, slope[1], 0.0f32);
            }
            sums[half] = slope;
        }
    }
}
