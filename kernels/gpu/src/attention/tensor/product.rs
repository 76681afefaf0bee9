//! Products of a plane's rows with a run of columns in shared memory, and weighted sums of the columns.

use super::fragment::{Chunk, Fragment, Fragments, as_a, load_a, load_deep, load_flat, multiply, zeros};
use super::tiling::Tiling;
use cubecl::prelude::*;

/// The plane's rows as operands: `depth * steps` fragments, loaded from `row` on; none unless wanted.
#[cube]
pub fn hold<A: Float>(
    tile: &SharedMemory<Chunk<A>>,
    row: usize,
    #[comptime] wanted: bool,
    #[comptime] tiling: Tiling,
) -> Fragments<A> {
    let mut lefts = Fragments::<A>::new();
    #[unroll]
    for i in 0..comptime!(if wanted { tiling.depth * tiling.steps() } else { 0 }) {
        let from = row + comptime!(i / tiling.steps() * 16);
        lefts.push(load_a(tile, from, comptime!(i % tiling.steps()), comptime!(tiling.chunks())));
    }
    lefts
}

/// Products of held rows with `width` columns from `at` on: `depth * width / 8` fragments of sums.
#[cube]
pub fn products<A: Float>(
    lefts: &Fragments<A>,
    cols: &SharedMemory<Chunk<A>>,
    at: usize,
    #[comptime] width: usize,
    #[comptime] tiling: Tiling,
) -> Fragments<f32> {
    let steps = comptime!(tiling.steps());
    let mut sums = zeros(comptime!(tiling.depth * width / 8));
    #[unroll]
    for step in 0..steps {
        #[unroll]
        for pair in 0..comptime!(width / 16) {
            let both = load_flat(cols, at + comptime!(pair * 16), step, comptime!(tiling.chunks()));
            #[unroll]
            for d in 0..tiling.depth {
                let left = lefts.index(comptime!(d * steps + step));
                multiply(left, &both, &mut sums, comptime!(d * width / 8 + 2 * pair));
            }
        }
    }
    sums
}

/// The same for rows that stay in shared memory, from `row` on.
#[cube]
pub fn products_of_stored<A: Float>(
    rows: &SharedMemory<Chunk<A>>,
    row: usize,
    cols: &SharedMemory<Chunk<A>>,
    at: usize,
    #[comptime] width: usize,
    #[comptime] tiling: Tiling,
) -> Fragments<f32> {
    let chunks = comptime!(tiling.chunks());
    let mut sums = zeros(comptime!(tiling.depth * width / 8));
    #[unroll]
    for step in 0..comptime!(tiling.steps()) {
        #[unroll]
        for d in 0..tiling.depth {
            let left: Fragment<A> = load_a(rows, row + comptime!(16 * d), step, chunks);
            #[unroll]
            for pair in 0..comptime!(width / 16) {
                let both = load_flat(cols, at + comptime!(pair * 16), step, chunks);
                multiply(&left, &both, &mut sums, comptime!(d * width / 8 + 2 * pair));
            }
        }
    }
    sums
}

/// Adds `width` columns from `at` on to the rows' results, weighted.
#[cube]
pub fn add_weighted<A: Float>(
    results: &mut Fragments<f32>,
    weights: &Fragments<f32>,
    cols: &SharedMemory<Chunk<A>>,
    at: usize,
    #[comptime] width: usize,
    #[comptime] tiling: Tiling,
) {
    #[unroll]
    for k in 0..comptime!(width / 16) {
        let mut lefts = Fragments::<A>::new();
        #[unroll]
        for d in 0..tiling.depth {
            lefts.push(as_a::<A>(weights, comptime!(d * width / 8 + 2 * k)));
        }
        #[unroll]
        for step in 0..comptime!(tiling.steps()) {
            let both = load_deep(cols, at + comptime!(16 * k), step, comptime!(tiling.chunks()));
            #[unroll]
            for d in 0..tiling.depth {
                multiply(lefts.index(d), &both, results, comptime!(d * 2 * tiling.steps() + 2 * step));
            }
        }
    }
}
