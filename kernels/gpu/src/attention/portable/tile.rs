//! Tiles of the portable kernels: their sizes, their copies into shared memory and the products of their rows.

use cubecl::prelude::*;

/// The passes differ in what they hold in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    Forward,
    Backward,
}

/// Sizes of a cube's work. Units form a grid, and each computes `down * across` products of a row and a column, where
/// rows stay in shared memory, and columns pass through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Vectors of a head's row.
    pub dim: usize,
    /// Units along the rows.
    pub tall: usize,
    /// Units along the columns.
    pub wide: usize,
    /// Rows of each unit.
    pub down: usize,
    /// Columns of each unit.
    pub across: usize,
}

/// Candidates from the largest to the least: units along rows, units along columns, rows and columns of each unit.
const CANDIDATES: [(usize, usize, usize, usize); 8] =
    [(16, 8, 2, 2), (8, 8, 2, 2), (8, 8, 2, 1), (8, 8, 1, 1), (8, 4, 1, 1), (4, 4, 1, 1), (4, 2, 1, 1), (2, 2, 1, 1)];

impl Tile {
    /// The largest tile that fits `memory` bytes and `units` units.
    pub fn largest(dim: usize, vector: usize, pass: Pass, memory: usize, units: usize) -> Option<Self> {
        let tiles = CANDIDATES.map(|(tall, wide, down, across)| Tile { dim, tall, wide, down, across });
        tiles.into_iter().find(|tile| tile.units() <= units && tile.bytes(vector, pass) <= memory)
    }

    pub fn rows(&self) -> usize {
        self.tall * self.down
    }

    pub fn cols(&self) -> usize {
        self.wide * self.across
    }

    pub fn units(&self) -> usize {
        self.tall * self.wide
    }

    /// Vectors between rows in shared memory: one more than a row has, so that the units' rows lie in different banks.
    pub fn pitch(&self) -> usize {
        self.dim + 1
    }

    /// Elements between rows of scores in shared memory.
    pub fn strip(&self) -> usize {
        self.cols() + 1
    }

    /// Vectors of a row of results that each unit computes.
    pub fn share(&self) -> usize {
        self.dim.div_ceil(self.wide)
    }

    /// Bytes of shared memory.
    pub fn bytes(&self, vector: usize, pass: Pass) -> usize {
        let row = self.pitch() * vector;
        let scores = self.rows() * self.strip();
        let elements = match pass {
            Pass::Forward => (self.rows() + 2 * self.cols()) * row + scores + self.rows() * self.wide,
            Pass::Backward => 2 * (self.rows() + self.cols()) * row + 2 * scores,
        };
        elements * size_of::<f32>()
    }
}

/// Copies `rows` tokens from `first` on into shared memory; tokens beyond the last are zeros.
///
/// `start` is the offset of the head's part in the sequence's first row, and `pitch` the distance of rows, in vectors.
#[cube]
pub(super) fn load<A: Float, N: Size>(
    source: &Array<Vector<A, N>>,
    held: &mut SharedMemory<Vector<f32, N>>,
    start: usize,
    pitch: usize,
    first: usize,
    tokens: usize,
    #[comptime] rows: usize,
    #[comptime] tile: Tile,
) {
    let units = comptime!(tile.units());
    let dim = comptime!(tile.dim);
    let mut i = UNIT_POS as usize;
    while i < rows * dim {
        let row = i / dim;
        let col = i % dim;
        let mut value = Vector::<f32, N>::new(0.0f32);
        if first + row < tokens {
            value = Vector::<f32, N>::cast_from(source[start + (first + row) * pitch + col]);
        }
        held[row * comptime!(tile.pitch()) + col] = value;
        i += units;
    }
}

/// The unit's products of rows and columns, `down * across` of them.
#[cube]
pub(super) fn products<N: Size>(
    rows: &SharedMemory<Vector<f32, N>>,
    cols: &SharedMemory<Vector<f32, N>>,
    #[comptime] tile: Tile,
) -> Array<f32> {
    let down = comptime!(tile.down);
    let across = comptime!(tile.across);
    let pitch = comptime!(tile.pitch());
    let top = UNIT_POS as usize / tile.wide;
    let left = UNIT_POS as usize % tile.wide;
    let mut sums = Array::<f32>::new(comptime!(tile.down * tile.across));
    #[unroll]
    for i in 0..down * across {
        sums[i] = 0.0f32;
    }
    for d in 0..tile.dim {
        #[unroll]
        for r in 0..down {
            let row = rows[(top + r * tile.tall) * pitch + d];
            #[unroll]
            for c in 0..across {
                let col = cols[(left + c * tile.wide) * pitch + d];
                #[unroll]
                for n in 0..N::value() {
                    sums[r * across + c] += row[n] * col[n];
                }
            }
        }
    }
    sums
}

/// Adds weighted columns to the unit's part of its rows' results: `down * share` vectors.
#[cube]
pub(super) fn add_weighted<N: Size>(
    results: &mut Array<Vector<f32, N>>,
    weights: &SharedMemory<f32>,
    cols: &SharedMemory<Vector<f32, N>>,
    #[comptime] tile: Tile,
) {
    let share = comptime!(tile.share());
    let top = UNIT_POS as usize / tile.wide;
    let left = UNIT_POS as usize % tile.wide;
    for col in 0..comptime!(tile.cols()) {
        #[unroll]
        for r in 0..tile.down {
            let weight = Vector::<f32, N>::new(weights[(top + r * tile.tall) * comptime!(tile.strip()) + col]);
            #[unroll]
            for s in 0..share {
                let d = left + s * tile.wide;
                if within(d, tile) {
                    results[r * share + s] += cols[col * comptime!(tile.pitch()) + d] * weight;
                }
            }
        }
    }
}

/// Whether a row has this vector; no test where the units divide a row evenly.
#[cube]
pub(super) fn within(d: usize, #[comptime] tile: Tile) -> bool {
    let mut inside = true.runtime();
    if comptime!(!tile.dim.is_multiple_of(tile.wide)) {
        inside = d < tile.dim;
    }
    inside
}

/// The unit's results, all zeros.
#[cube]
pub(super) fn nothing<N: Size>(#[comptime] tile: Tile) -> Array<Vector<f32, N>> {
    let count = comptime!(tile.down * tile.share());
    let mut results = Array::<Vector<f32, N>>::new(count);
    #[unroll]
    for i in 0..count {
        results[i] = Vector::<f32, N>::new(0.0f32);
    }
    results
}

/// Writes the unit's part of its rows' results, times a factor for each row.
#[cube]
pub(super) fn store<A: Float, N: Size>(
    target: &mut Array<Vector<A, N>>,
    results: &Array<Vector<f32, N>>,
    factors: &Array<f32>,
    start: usize,
    pitch: usize,
    first: usize,
    tokens: usize,
    #[comptime] tile: Tile,
) {
    let share = comptime!(tile.share());
    let top = UNIT_POS as usize / tile.wide;
    let left = UNIT_POS as usize % tile.wide;
    #[unroll]
    for r in 0..tile.down {
        let token = first + top + r * tile.tall;
        if token < tokens {
            let factor = Vector::<f32, N>::new(factors[r]);
            #[unroll]
            for s in 0..share {
                let d = left + s * tile.wide;
                if within(d, tile) {
                    target[start + token * pitch + d] = Vector::<A, N>::cast_from(results[r * share + s] * factor);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// WebGPU promises 16 KiB and 256 units.
    #[test]
    fn least_devices_have_a_tile() {
        for head_dim in (2..=256).step_by(2) {
            let vector = super::super::vector(head_dim);
            for pass in [Pass::Forward, Pass::Backward] {
                let tile = Tile::largest(head_dim / vector, vector, pass, 16_384, 256).expect("a tile");
                assert!(tile.bytes(vector, pass) <= 16_384 && tile.share() * tile.wide >= tile.dim, "{tile:?}");
            }
        }
        assert_eq!(
            Tile::largest(16, 4, Pass::Forward, 16_384, 256).map(|tile| (tile.rows(), tile.cols())),
            Some((16, 16))
        );
        assert_eq!(Tile::largest(16, 4, Pass::Backward, 1_000, 256), None);
    }
}
