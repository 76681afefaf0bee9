//! Fragments in registers, and products of them.

use super::layout::{deep_chunk, deep_row, flat_chunk, flat_row, lane, place};
use cubecl::cmma::MatrixIdent;
use cubecl::prelude::cmma::MmaDefinition;
use cubecl::prelude::*;

/// Two numbers of a register, or of a pair of them.
pub type Pair<T> = Vector<T, Const<2>>;
/// Eight numbers of 16 bytes.
pub type Chunk<T> = Vector<T, Const<8>>;
/// A lane's part of an operand or of sums.
pub type Fragment<T> = Array<Pair<T>>;
/// Fragments side by side.
pub type Fragments<T> = Sequence<Fragment<T>>;

/// Loads A of 16 rows by 16 elements: `row` is its first row, `step` counts 16 elements.
#[cube]
pub fn load_a<A: Float>(
    tile: &SharedMemory<Chunk<A>>,
    row: usize,
    #[comptime] step: usize,
    #[comptime] chunks: usize,
) -> Fragment<A> {
    let lane = lane();
    let at = place(row + deep_row(lane), 2 * step + deep_chunk(lane), chunks);
    let product = MmaDefinition::<A, A, f32>::new(16usize, 8usize, 16usize);
    product.load_matrix::<Chunk<A>, Const<2>>(&tile.slice(at, at + 1), MatrixIdent::A, 4usize, false)
}

/// Loads two Bs side by side, stored column by column: `row` is the first column, `step` counts 16 elements.
#[cube]
pub fn load_flat<A: Float>(
    tile: &SharedMemory<Chunk<A>>,
    row: usize,
    #[comptime] step: usize,
    #[comptime] chunks: usize,
) -> Fragment<A> {
    let lane = lane();
    let at = place(row + flat_row(lane), 2 * step + flat_chunk(lane), chunks);
    let product = MmaDefinition::<A, A, f32>::new(16usize, 8usize, 16usize);
    product.load_matrix::<Chunk<A>, Const<2>>(&tile.slice(at, at + 1), MatrixIdent::B, 4usize, false)
}

/// Loads two Bs side by side, stored element by element: `row` is the first element, `step` counts 16 columns.
#[cube]
pub fn load_deep<A: Float>(
    tile: &SharedMemory<Chunk<A>>,
    row: usize,
    #[comptime] step: usize,
    #[comptime] chunks: usize,
) -> Fragment<A> {
    let lane = lane();
    let at = place(row + deep_row(lane), 2 * step + deep_chunk(lane), chunks);
    let product = MmaDefinition::<A, A, f32>::new(16usize, 8usize, 16usize);
    product.load_matrix::<Chunk<A>, Const<2>>(&tile.slice(at, at + 1), MatrixIdent::B, 4usize, true)
}

/// Adds to the sums `at` and `at + 1` the products of A with the two Bs of one load.
#[cube]
pub fn multiply<A: Float>(left: &Fragment<A>, both: &Fragment<A>, sums: &mut Fragments<f32>, #[comptime] at: usize) {
    let product = MmaDefinition::<A, A, f32>::new(16usize, 8usize, 16usize);
    #[unroll]
    for side in 0..2usize {
        let mut right = Fragment::<A>::new(2usize);
        right[0] = both[comptime!(2 * side)];
        right[1] = both[comptime!(2 * side + 1)];
        product.execute_inplace(left, &right, sums.index_mut(comptime!(at + side)));
    }
}

/// `count` fragments of sums, all zeros.
#[cube]
pub fn zeros(#[comptime] count: usize) -> Fragments<f32> {
    let mut sums = Fragments::<f32>::new();
    #[unroll]
    for _ in 0..count {
        let mut sum = Fragment::<f32>::new(2usize);
        sum[0] = Pair::<f32>::new(0.0f32);
        sum[1] = Pair::<f32>::new(0.0f32);
        sums.push(sum);
    }
    sums
}

/// A's fragment of 16 by 16 made of the sums `at` and `at + 1`.
#[cube]
pub fn as_a<A: Float>(sums: &Fragments<f32>, #[comptime] at: usize) -> Fragment<A> {
    let left = sums.index(at);
    let right = sums.index(comptime!(at + 1));
    let mut fragment = Fragment::<A>::new(4usize);
    fragment[0] = Pair::<A>::cast_from(left[0]);
    fragment[1] = Pair::<A>::cast_from(left[1]);
    fragment[2] = Pair::<A>::cast_from(right[0]);
    fragment[3] = Pair::<A>::cast_from(right[1]);
    fragment
}
