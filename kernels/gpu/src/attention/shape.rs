//! Sizes of an attention.

use crate::sizes::Sizes;
use cubecl::prelude::CubeCount;

/// Sizes of one attention layer's call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Sequences.
    pub batch: usize,
    /// Tokens of each sequence.
    pub tokens: usize,
    /// Heads of the queries.
    pub heads: usize,
    /// Heads of the keys and of the values; a divisor of `heads`.
    pub kv_heads: usize,
    /// Elements of one head's vector.
    pub head_dim: usize,
}

impl Shape {
    /// The attention of `batch` sequences of a model.
    pub fn of(sizes: &Sizes, batch: usize) -> Self {
        let Sizes { tokens, heads, kv_heads, .. } = *sizes;
        Self { batch, tokens, heads, kv_heads, head_dim: sizes.head_dim() }
    }

    /// Elements of a row of `qkv`.
    pub fn width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Rows: tokens of all sequences.
    pub fn rows(&self) -> usize {
        self.batch * self.tokens
    }

    /// Elements of `lse` and of the backward pass's scratch.
    pub fn sums(&self) -> usize {
        self.rows() * self.heads
    }

    /// The factor of scores.
    pub fn scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    /// One cube for each block of `rows` tokens, head (of `heads`) and sequence; blocks vary most slowly.
    pub(super) fn cubes(&self, heads: usize, rows: usize) -> CubeCount {
        CubeCount::Static(heads as u32, self.batch as u32, self.tokens.div_ceil(rows) as u32)
    }

    /// Whether the kernels can count it.
    pub fn sound(&self) -> Result<(), String> {
        let Shape { batch, tokens, heads, kv_heads, head_dim } = *self;
        if [batch, tokens, heads, kv_heads, head_dim].contains(&0) {
            return Err(format!("attention of no size: {self:?}"));
        }
        if heads % kv_heads != 0 || head_dim % 2 != 0 {
            return Err(format!("heads do not divide into groups, or the head's dimension is odd: {self:?}"));
        }
        // Offsets are 32 bits wide, and the grids' y and z axes end at 65,535.
        if self.rows() * self.width() > u32::MAX as usize || batch > 65_535 || tokens > 4 * 65_535 {
            return Err(format!("attention too large: {self:?}"));
        }
        Ok(())
    }
}
