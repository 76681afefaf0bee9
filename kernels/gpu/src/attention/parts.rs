//! Places of a head's parts in the tensors.

use cubecl::prelude::*;

/// Offsets and distances of rows, in the vectors of which a head's row has `dim`; `sums` counts numbers.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Parts {
    /// The head's queries in the sequence's first row of `qkv`.
    pub queries: usize,
    /// The keys that the head meets.
    pub keys: usize,
    /// Their values.
    pub values: usize,
    /// From row to row of `qkv`.
    pub pitch: usize,
    /// The head's results in the sequence's first row of `out`.
    pub outs: usize,
    /// From row to row of `out`.
    pub out_pitch: usize,
    /// The head's first number in `[batch, heads, tokens]`.
    pub sums: usize,
}

/// Places of one head's parts of one sequence.
#[cube]
pub(super) fn parts(
    batch: usize,
    head: usize,
    tokens: usize,
    heads: usize,
    kv_heads: usize,
    #[comptime] dim: usize,
) -> Parts {
    let pitch = (heads + 2 * kv_heads) * dim;
    let start = batch * tokens * pitch;
    let keys = start + (heads + head / (heads / kv_heads)) * dim;
    Parts {
        queries: start + head * dim,
        keys,
        values: keys + kv_heads * dim,
        pitch,
        outs: (batch * tokens * heads + head) * dim,
        out_pitch: heads * dim,
        sums: (batch * heads + head) * tokens,
    }
}

/// An array of `count` equal numbers.
#[cube]
pub(super) fn filled(value: f32, #[comptime] count: usize) -> Array<f32> {
    let mut all = Array::<f32>::new(count);
    #[unroll]
    for i in 0..count {
        all[i] = value;
    }
    all
}

/// How many of `count` places are behind `place`: the same places from the last to the first.
#[cube]
pub(super) fn behind(count: u32, place: u32) -> u32 {
    count - 1 - place
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Queries, keys and values of all heads, and results, tile their tensors without gap or overlap.
    #[test]
    fn parts_tile_the_tensors() {
        for (batch, tokens, heads, kv_heads, dim) in [(2, 3, 4, 2, 5), (1, 1, 8, 1, 2), (3, 2, 3, 3, 4)] {
            let (mut wide, mut narrow, mut sums) = (Vec::new(), Vec::new(), Vec::new());
            for (b, h, t) in (0..batch * heads * tokens).map(|i| (i / heads / tokens, i / tokens % heads, i % tokens)) {
                let part = parts(b, h, tokens, heads, kv_heads, dim);
                wide.extend((0..dim).map(|d| part.queries + t * part.pitch + d));
                narrow.extend((0..dim).map(|d| part.outs + t * part.out_pitch + d));
                sums.push(part.sums + t);
                if h % (heads / kv_heads) == 0 {
                    wide.extend((0..dim).map(|d| part.keys + t * part.pitch + d));
                    wide.extend((0..dim).map(|d| part.values + t * part.pitch + d));
                }
            }
            wide.sort_unstable();
            narrow.sort_unstable();
            assert!(wide.into_iter().eq(0..batch * tokens * (heads + 2 * kv_heads) * dim));
            assert!(narrow.into_iter().eq(0..batch * tokens * heads * dim));
            assert!(sums.into_iter().eq(0..batch * tokens * heads));
        }
    }

    #[test]
    fn behind_reverses() {
        assert_eq!([0, 1, 2].map(|place| behind(3, place)), [2, 1, 0]);
    }
}
