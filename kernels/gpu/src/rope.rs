//! Rotary position embedding (Su et al., arXiv 2104.09864), with the halves paired: element `i` of a head turns with
//! element `i + dim / 2`.

use crate::grid::{array, dim, line, units};
use crate::launches::count;
use cubecl::Runtime;
use cubecl::prelude::*;
use cubecl::server::Handle;

/// Sizes of the rows of queries, keys and values.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Query heads.
    pub heads: usize,
    /// Key heads, and as many value heads.
    pub kv_heads: usize,
    /// Width of a head; even.
    pub dim: usize,
}

/// The direction of the turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    Forward,
    /// The transposed turn, for gradients.
    Backward,
}

/// Cosines and sines of all positions, each f32 `[positions, dim / 2]`.
#[derive(Clone, Debug)]
pub struct Tables {
    pub cos: Handle,
    pub sin: Handle,
    pub positions: usize,
}

/// The numbers of [`Tables`]: cosines, then sines. Angles are computed in f64.
pub fn tables(positions: usize, dim: usize, theta: f64) -> [Vec<f32>; 2] {
    let half = dim / 2;
    let angle = |at: usize| (at / half) as f64 * theta.powf(-2.0 * (at % half) as f64 / dim as f64);
    [f64::cos, f64::sin].map(|of: fn(f64) -> f64| (0..positions * half).map(|at| of(angle(at)) as f32).collect())
}

/// Turns queries and keys of `qkv` (`A`, `[rows, (heads + 2 kv_heads) * dim]`) in place; row `r` has the position
/// `r % tokens`, and `tokens` is at most the number of positions of the tables. Values stay as they are. One launch.
pub fn rotate<R: Runtime, A: Float>(
    client: &ComputeClient<R>,
    qkv: &Handle,
    tables: &Tables,
    heads: Heads,
    [rows, tokens]: [usize; 2],
    turn: Turn,
    tally: &Handle,
) {
    let half = heads.dim / 2;
    let n = line(size_of::<A>(), &[half]);
    let turned = heads.heads + heads.kv_heads;
    let stride = (turned + heads.kv_heads) * heads.dim;
    let vectors = half / n;
    let table = tables.positions * half;
    // SAFETY: the kernel leaves out rows beyond the last, and positions are below `tokens`.
    unsafe {
        rope_pairs::launch_unchecked::<A, R>(
            client,
            units(client, rows * turned * vectors),
            dim(),
            n,
            array(qkv, rows * stride),
            array(&tables.cos, table),
            array(&tables.sin, table),
            rows,
            tokens,
            if turn == Turn::Forward { 1.0 } else { -1.0 },
            array(tally, 1),
            turned,
            stride / n,
            vectors,
        );
    }
}

/// Each unit turns one vector of pairs. `stride` and `half` are counted in vectors.
#[cube(launch_unchecked)]
fn rope_pairs<A: Float, N: Size>(
    qkv: &mut Array<Vector<A, N>>,
    cos: &Array<Vector<f32, N>>,
    sin: &Array<Vector<f32, N>>,
    rows: usize,
    tokens: usize,
    sign: f32,
    tally: &mut Array<Atomic<u32>>,
    #[comptime] turned: usize,
    #[comptime] stride: usize,
    #[comptime] half: usize,
) {
    count(tally);
    let pair = ABSOLUTE_POS % half;
    let head = ABSOLUTE_POS / half % turned;
    let row = ABSOLUTE_POS / comptime!(half * turned);
    if row < rows {
        let at = row * stride + head * comptime!(2 * half) + pair;
        let angle = row % tokens * half + pair;
        let (c, s) = (cos[angle], sin[angle] * Vector::new(sign));
        let low = Vector::<f32, N>::cast_from(qkv[at]);
        let high = Vector::<f32, N>::cast_from(qkv[at + half]);
        qkv[at] = Vector::cast_from(low * c - high * s);
        qkv[at + half] = Vector::cast_from(high * c + low * s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::{Trial, close, noise};

    fn reference(qkv: &[f32], heads: Heads, tokens: usize, sign: f64) -> Vec<f64> {
        let half = heads.dim / 2;
        let stride = (heads.heads + 2 * heads.kv_heads) * heads.dim;
        let mut out: Vec<f64> = qkv.iter().map(|&v| f64::from(v)).collect();
        for (row, out) in out.chunks_mut(stride).enumerate() {
            for head in out[..(heads.heads + heads.kv_heads) * heads.dim].chunks_mut(heads.dim) {
                for i in 0..half {
                    let angle = angle(row % tokens, i, heads.dim);
                    let (c, s) = (f64::from(angle.cos() as f32), sign * f64::from(angle.sin() as f32));
                    let (low, high) = (head[i], head[i + half]);
                    (head[i], head[i + half]) = (low * c - high * s, high * c + low * s);
                }
            }
        }
        out
    }

    fn angle(position: usize, pair: usize, dim: usize) -> f64 {
        position as f64 * 10_000f64.powf(-2.0 * pair as f64 / dim as f64)
    }

    #[test]
    fn queries_and_keys_turn_and_turn_back() {
        let trial = Trial::new();
        let mut launches = 0;
        for (heads, kv_heads, dim) in [(4, 4, 16), (12, 4, 64), (8, 1, 96), (2, 1, 6), (1, 1, 20)] {
            let heads = Heads { heads, kv_heads, dim };
            for (rows, tokens) in [(1, 1), (34, 17), (200, 100)] {
                let positions = 100;
                let entries = (0..positions * dim / 2).map(|i| angle(i / (dim / 2), i % (dim / 2), dim));
                let tables = Tables {
                    cos: trial.floats(&entries.clone().map(|a| a.cos() as f32).collect::<Vec<_>>()),
                    sin: trial.floats(&entries.map(|a| a.sin() as f32).collect::<Vec<_>>()),
                    positions,
                };
                let values = noise(rows * (heads.heads + 2 * kv_heads) * dim, rows as u64);
                let qkv = trial.floats(&values);
                let size = [rows, tokens];
                rotate::<_, f32>(&trial.client, &qkv, &tables, heads, size, Turn::Forward, &trial.tally);
                close("turned", &trial.read(&qkv), &reference(&values, heads, tokens, 1.0), 1e-6);
                rotate::<_, f32>(&trial.client, &qkv, &tables, heads, size, Turn::Backward, &trial.tally);
                let back: Vec<f64> = values.iter().map(|&v| f64::from(v)).collect();
                close("turned back", &trial.read(&qkv), &back, 1e-6);
                launches += 2;
            }
        }
        assert_eq!(trial.ran(), launches);
    }
}
