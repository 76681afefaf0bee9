//! Sizes of the cubes' work on tensor cores.

use super::layout::CHUNK;

/// Keys, or queries, that pass through shared memory at a time.
pub const COLS: usize = 64;

/// Pairs of a chunk.
pub const CHUNK_PAIRS: usize = CHUNK / 2;

/// The work of one cube of four planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tiling {
    /// Elements of a head's row: 32, 64 or 128.
    pub dim: usize,
    /// Blocks of 16 rows of each plane.
    pub depth: usize,
}

impl Tiling {
    /// Rows of a cube.
    pub const fn rows(&self) -> usize {
        64 * self.depth
    }

    /// Bytes of shared memory of the neediest kernel: two tiles of rows, and two stages of two tiles of columns.
    pub const fn bytes(&self) -> usize {
        let sums = 4 * COLS * size_of::<f32>();
        let barriers = 256;
        (2 * self.rows() + 4 * COLS) * self.dim * 2 + sums + barriers
    }

    /// Chunks of a head's row.
    pub const fn chunks(&self) -> usize {
        self.dim / CHUNK
    }

    /// Products along a head's row: blocks of 16 elements.
    pub const fn steps(&self) -> usize {
        self.dim / 16
    }
}
