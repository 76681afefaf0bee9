//! Causal grouped-query attention over rows in which queries, keys and values lie side by side.
//!
//! A row of `qkv` is `heads` queries, then `kv_heads` keys, then `kv_heads` values, each `head_dim` wide. Heads are
//! read in place by stride; scores exist for one block of queries at a time and are computed again in the backward pass
//! (Dao et al., arXiv 2205.14135), so memory is linear in the length of a sequence.

use super::matrix::{Into, Matrix, MatrixMut, matmul};
use super::simd::{exp, max, sum, sum2, vectorized};
use super::team::with_scratch;

/// Queries handled at once: their scores against all keys stay in the second-level cache.
const BLOCK: usize = 64;

/// Sizes of one attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
}

impl Heads {
    /// Width of a row of queries, and of the output.
    pub fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of a row of keys.
    pub fn key_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Width of a row of queries, keys and values.
    pub fn row(&self) -> usize {
        self.query_width() + 2 * self.key_width()
    }

    /// Query heads that share a key.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    fn key(&self, kv_head: usize) -> usize {
        self.query_width() + kv_head * self.head_dim
    }

    fn value(&self, kv_head: usize) -> usize {
        self.key(kv_head) + self.key_width()
    }

    fn scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }
}

/// A head of a sequence in a buffer with rows of `stride`: `rows x head_dim` from column `column`.
fn head(data: &[f32], first: usize, rows: usize, stride: usize, column: usize, dim: usize) -> Matrix<'_> {
    Matrix::new(&data[first * stride + column..], rows, dim, stride)
}

fn head_mut(data: &mut [f32], first: usize, rows: usize, stride: usize, column: usize, dim: usize) -> MatrixMut<'_> {
    MatrixMut::new(&mut data[first * stride + column..], rows, dim, stride)
}

/// One key head of one sequence, for all query heads of its group.
///
/// `qkv` holds the sequence's rows; `out` is `group x rows x head_dim` and `log_sum` `group x rows`: the logarithms of
/// the sums of exponentials of the scores, which the backward pass needs.
pub fn forward(h: Heads, kv_head: usize, qkv: &[f32], out: &mut [f32], log_sum: &mut [f32]) {
    let (row, dim) = (h.row(), h.head_dim);
    let rows = qkv.len() / row;
    for (member, log_sum) in log_sum.chunks_exact_mut(rows).enumerate() {
        let column = (kv_head * h.group() + member) * dim;
        let out = &mut out[member * rows * dim..][..rows * dim];
        for first in (0..rows).step_by(BLOCK) {
            let block = BLOCK.min(rows - first);
            let keys = first + block;
            with_scratch(block * keys, |scores| {
                let q = head(qkv, first, block, row, column, dim);
                let k = head(qkv, 0, keys, row, h.key(kv_head), dim);
                matmul(MatrixMut::dense(scores, block, keys), Into::Replace, h.scale(), q, k.t());
                softmax(scores, first, keys, &mut log_sum[first..keys]);
                let v = head(qkv, 0, keys, row, h.value(kv_head), dim);
                let target = head_mut(out, first, block, dim, 0, dim);
                matmul(target, Into::Replace, 1.0, Matrix::dense(scores, block, keys), v);
            });
        }
    }
}

/// Causal softmax of rows of `width` scores; row `i` sees the first `first + i + 1` of them.
fn softmax(scores: &mut [f32], first: usize, width: usize, log_sum: &mut [f32]) {
    vectorized(
        #[inline(always)]
        || {
            for (i, (row, log_sum)) in scores.chunks_exact_mut(width).zip(log_sum).enumerate() {
                let (seen, hidden) = row.split_at_mut(first + i + 1);
                let top = max(seen);
                seen.iter_mut().for_each(|x| *x = exp(*x - top));
                let norm = sum(seen, |x| x);
                let factor = 1.0 / norm;
                seen.iter_mut().for_each(|x| *x *= factor);
                hidden.fill(0.0);
                *log_sum = top + norm.ln();
            }
        },
    );
}

/// The inputs of the backward pass of one key head of one sequence.
#[derive(Clone, Copy)]
pub struct Kept<'a> {
    /// The sequence's rows of queries, keys and values, after the rotation.
    pub qkv: &'a [f32],
    /// `group x rows`, from [`forward`].
    pub log_sum: &'a [f32],
    /// The output's gradient, rows of `query_width`.
    pub dout: &'a [f32],
    /// The output, as [`forward`] laid it out: rows of `query_width`.
    pub out: &'a [f32],
}

/// Gradients of one key head of one sequence: `dq` is `group x rows x head_dim`, `dk` and `dv` `rows x head_dim`.
pub fn backward(h: Heads, kv_head: usize, kept: Kept<'_>, dq: &mut [f32], dk: &mut [f32], dv: &mut [f32]) {
    let dim = h.head_dim;
    let rows = kept.qkv.len() / h.row();
    dk.fill(0.0);
    dv.fill(0.0);
    for member in 0..h.group() {
        let dq = &mut dq[member * rows * dim..][..rows * dim];
        for first in (0..rows).step_by(BLOCK) {
            let keys = (first + BLOCK).min(rows);
            with_scratch(2 * (keys - first) * keys, |scratch| {
                backward_block(h, kv_head, member, kept, first..keys, scratch, [dq, dk, dv]);
            });
        }
    }
}

fn backward_block(
    h: Heads,
    kv_head: usize,
    member: usize,
    kept: Kept<'_>,
    queries: std::ops::Range<usize>,
    scratch: &mut [f32],
    [dq, dk, dv]: [&mut [f32]; 3],
) {
    let (row, dim, width) = (h.row(), h.head_dim, h.query_width());
    let (first, keys, block) = (queries.start, queries.end, queries.len());
    let rows = kept.qkv.len() / row;
    let column = (kv_head * h.group() + member) * dim;
    let (p, dp) = scratch.split_at_mut(block * keys);
    let q = head(kept.qkv, first, block, row, column, dim);
    let k = head(kept.qkv, 0, keys, row, h.key(kv_head), dim);
    let v = head(kept.qkv, 0, keys, row, h.value(kv_head), dim);
    let dout = head(kept.dout, first, block, width, column, dim);
    matmul(MatrixMut::dense(p, block, keys), Into::Replace, h.scale(), q, k.t());
    matmul(MatrixMut::dense(dp, block, keys), Into::Replace, 1.0, dout, v.t());
    let log_sum = &kept.log_sum[member * rows + first..][..block];
    vectorized(
        #[inline(always)]
        || {
            for (i, ((p, dp), &log_sum)) in
                p.chunks_exact_mut(keys).zip(dp.chunks_exact_mut(keys)).zip(log_sum).enumerate()
            {
                let at = (first + i) * width + column;
                let delta = sum2(&kept.out[at..at + dim], &kept.dout[at..at + dim], |o, d| o * d);
                let seen = first + i + 1;
                for (p, dp) in p[..seen].iter_mut().zip(&mut dp[..seen]) {
                    *p = exp(*p - log_sum);
                    *dp = *p * (*dp - delta);
                }
                p[seen..].fill(0.0);
                dp[seen..].fill(0.0);
            }
        },
    );
    let (p, ds) = (Matrix::dense(p, block, keys), Matrix::dense(dp, block, keys));
    matmul(head_mut(dv, 0, keys, dim, 0, dim), Into::Add, 1.0, p.t(), dout);
    matmul(head_mut(dq, first, block, dim, 0, dim), Into::Replace, h.scale(), ds, k);
    matmul(head_mut(dk, 0, keys, dim, 0, dim), Into::Add, h.scale(), ds.t(), q);
}
