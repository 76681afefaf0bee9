//! Places of tiles and fragments: plain functions, tested on the CPU against the tables of the PTX manual.
//!
//! A tile in shared memory has rows of 32, 64 or 128 elements of bf16, cut into chunks of eight elements (16 bytes). The
//! chunks of a row are permuted by its number, so that eight rows' chunks of one number lie in eight different quarters
//! of the banks: neither copies nor `ldmatrix` meet a bank conflict.
//!
//! A product `m16n8k16` takes A of 16 rows by 16, B of 16 by 8 columns, and sums of 16 by 8. Lane `l` holds of A the
//! pairs (row `l / 4`, elements `2 (l % 4)` and the next), the same eight rows on, both again eight elements on; of B the
//! pairs (column `l / 4`, elements `2 (l % 4)` and the next) and the same eight elements on; of the sums the pairs (row
//! `l / 4`, columns `2 (l % 4)` and the next), and the same eight rows on.

use cubecl::prelude::*;

/// Elements of a chunk.
pub const CHUNK: usize = 8;

/// Number of the unit in its plane; cubes are flat, and planes of 32.
#[cube]
pub fn lane() -> usize {
    UNIT_POS_X as usize % 32
}

/// Place of a chunk in a tile, in chunks.
#[cube]
pub fn place(row: usize, chunk: usize, #[comptime] chunks: usize) -> usize {
    if comptime!(chunks == 4) {
        // Two rows share the 128 bytes of all banks.
        row * chunks + (chunk ^ ((row / 2) % 4))
    } else {
        row * chunks + (chunk ^ (row % 8))
    }
}

/// Row that a lane points `ldmatrix` to: of A, stored row by row, and of B, stored element by element (transposed).
#[cube]
pub fn deep_row(lane: usize) -> usize {
    lane % 16
}

/// Chunk, from the first of two on, that belongs to [`deep_row`].
#[cube]
pub fn deep_chunk(lane: usize) -> usize {
    lane / 16
}

/// Row that a lane points `ldmatrix` to: of two Bs side by side, stored column by column.
#[cube]
pub fn flat_row(lane: usize) -> usize {
    lane / 16 * 8 + lane % 8
}

/// Chunk, from the first of two on, that belongs to [`flat_row`].
#[cube]
pub fn flat_chunk(lane: usize) -> usize {
    lane / 8 % 2
}

/// Row of a lane's first pair of sums; its second pair is eight rows on.
#[cube]
pub fn sum_row(lane: usize) -> usize {
    lane / 4
}

/// Column of the first of each of a lane's pairs of sums.
#[cube]
pub fn sum_col(lane: usize) -> usize {
    lane % 4 * 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Rows and elements that the registers of a lane hold after `ldmatrix` of four matrices of 8 by 8: register `i`
    /// holds of matrix `i`, whose row `r` lane `8 i + r` points to, row `lane / 4`, elements `2 (lane % 4)` and the
    /// next; transposed, column for row.
    fn loaded(point: impl Fn(usize) -> (usize, usize), lane: usize, transposed: bool) -> Vec<[(usize, usize); 2]> {
        let element = |i: usize, row: usize, col: usize| {
            let (r, chunk) = point(8 * i + row);
            (r, chunk * CHUNK + col)
        };
        let pair = |i: usize| {
            let (major, minor) = (lane / 4, lane % 4 * 2);
            match transposed {
                false => [element(i, major, minor), element(i, major, minor + 1)],
                true => [element(i, minor, major), element(i, minor + 1, major)],
            }
        };
        (0..4).map(pair).collect()
    }

    /// The manual's tables for `mma.m16n8k16` of bf16: (row, column) of A's element `i`, and B's (element, column).
    fn manual_a(lane: usize, i: usize) -> (usize, usize) {
        let row = if i < 2 || (4..6).contains(&i) { lane / 4 } else { lane / 4 + 8 };
        (row, lane % 4 * 2 + i % 2 + if i < 4 { 0 } else { 8 })
    }

    fn manual_b(lane: usize, i: usize) -> (usize, usize) {
        (lane % 4 * 2 + i % 2 + if i < 2 { 0 } else { 8 }, lane / 4)
    }

    #[test]
    fn fragments_of_a_lie_as_in_the_manual() {
        for lane in 0..32 {
            let registers = loaded(|l| (deep_row(l), deep_chunk(l)), lane, false);
            for (i, pair) in registers.iter().enumerate() {
                assert_eq!(*pair, [manual_a(lane, 2 * i), manual_a(lane, 2 * i + 1)], "lane {lane}, register {i}");
            }
        }
    }

    #[test]
    fn fragments_of_b_lie_as_in_the_manual() {
        for lane in 0..32 {
            let flat = loaded(|l| (flat_row(l), flat_chunk(l)), lane, false);
            let deep = loaded(|l| (deep_row(l), deep_chunk(l)), lane, true);
            for (register, (flat, deep)) in flat.iter().zip(&deep).enumerate() {
                // Two registers for each of the two products side by side.
                let (product, first) = (register / 2, register % 2 * 2);
                for e in 0..2 {
                    let (k, n) = manual_b(lane, first + e);
                    assert_eq!(flat[e], (n + 8 * product, k), "lane {lane}, register {register}");
                    assert_eq!(deep[e], (k, n + 8 * product), "lane {lane}, register {register}");
                }
            }
        }
    }

    /// The sums of two products side by side are, in their order, A's fragment of 16 by 16 of the next product.
    #[test]
    fn sums_become_fragments_of_a() {
        for lane in 0..32 {
            for register in 0..4 {
                let (product, half) = (register / 2, register % 2);
                for e in 0..2 {
                    let sum = (sum_row(lane) + 8 * half, 8 * product + sum_col(lane) + e);
                    assert_eq!(sum, manual_a(lane, 2 * register + e), "lane {lane}, register {register}");
                }
            }
        }
    }

    #[test]
    fn places_are_unique_and_free_of_conflicts() {
        for chunks in [4, 8, 16] {
            let all: HashSet<usize> = (0..64 * chunks).map(|i| place(i / chunks, i % chunks, chunks)).collect();
            assert_eq!(all.len(), 64 * chunks);
            assert!(all.iter().all(|&p| p < 64 * chunks));
            let apart = |places: Vec<usize>| places.iter().map(|p| p % 8).collect::<HashSet<_>>().len() == 8;
            for start in (0..64).step_by(8) {
                for chunk in 0..chunks {
                    assert!(apart((0..8).map(|r| place(start + r, chunk, chunks)).collect()), "ldmatrix, {chunks}");
                }
            }
            for start in (0..64 * chunks).step_by(8) {
                assert!(apart((start..start + 8).map(|i| place(i / chunks, i % chunks, chunks)).collect()), "copies");
            }
        }
    }
}
