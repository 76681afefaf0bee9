//! Sizes of the cubes' work on tensor cores.

use super::layout::CHUNK;
use cubecl::prelude::*;

/// Keys, or queries, that pass through shared memory at a time.
pub const COLS: usize = 64;

/// What one cube of four planes computes.
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

    /// Chunks of a head's row.
    pub const fn chunks(&self) -> usize {
        self.dim / CHUNK
    }

    /// Products along a head's row: blocks of 16 elements.
    pub const fn steps(&self) -> usize {
        self.dim / 16
    }
}

/// How many of `count` places are behind `place`: the same places from the last to the first.
#[cube]
pub fn behind(count: u32, place: u32) -> u32 {
    count - 1 - place
}
