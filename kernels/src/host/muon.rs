//! Muon (Jordan et al. 2024) on one matrix: momentum, made orthogonal by five iterations of Newton and Schulz.

use super::matrix::{Into, Matrix, MatrixMut, matmul, symmetric};
use super::simd::{sum, vectorized};

/// The momentum of the gradient; the step looks ahead by it once more (Nesterov).
const MOMENTUM: f32 = 0.95;
/// The coefficients of the iteration. It takes every singular value near to 1, not to 1 itself.
const COEFFICIENTS: [f32; 3] = [3.4445, -4.7750, 2.0315];
const ITERATIONS: usize = 5;
/// The step's root mean square beside that of an AdamW step, so that both take rates of one size (Liu et al., arXiv
/// 2502.16982).
const SIZE: f32 = 0.2;
/// Keeps a gradient of zeros from a division by zero.
const TINY: f32 = 1e-7;

/// One step of `rows` x `theta.len() / rows`: `keep` is what weight decay leaves, `scale` the factor on the gradient.
pub fn step([lr, keep, scale]: [f32; 3], rows: usize, theta: &mut [f32], m: &mut [f32], gradient: &[f32]) {
    let cols = theta.len() / rows.max(1);
    let mut ahead = vec![0.0; theta.len()];
    for ((ahead, m), g) in ahead.iter_mut().zip(m).zip(gradient) {
        let g = scale * g;
        *m = MOMENTUM * *m + g;
        *ahead = g + MOMENTUM * *m;
    }
    orthogonalize(&mut ahead, rows, cols);
    let rate = lr * SIZE * (rows.max(cols) as f32).sqrt();
    for (theta, x) in theta.iter_mut().zip(&ahead) {
        *theta = *theta * keep - rate * x;
    }
}

/// Replaces a matrix by one with the same singular vectors whose singular values are near 1.
pub fn orthogonalize(x: &mut Vec<f32>, rows: usize, cols: usize) {
    let norm = vectorized(
        #[inline(always)]
        || sum(x, |x| x * x),
    )
    .sqrt();
    x.iter_mut().for_each(|value| *value /= norm + TINY);
    let [a, b, c] = COEFFICIENTS;
    let side = rows.min(cols);
    let (mut gram, mut poly, mut next) = (vec![0.0; side * side], vec![0.0; side * side], vec![0.0; x.len()]);
    for _ in 0..ITERATIONS {
        // The smaller of the two products of the matrix with itself: X X' of a wide one, X' X of a tall one.
        let view = Matrix::dense(x, rows, cols);
        let (left, right) = if rows <= cols { (view, view.t()) } else { (view.t(), view) };
        symmetric(&mut gram, side, Into::Replace, 1.0, left, right);
        poly.iter_mut().zip(&gram).for_each(|(poly, gram)| *poly = b * gram);
        let square = Matrix::dense(&gram, side, side);
        symmetric(&mut poly, side, Into::Add, c, square, square);
        next.iter_mut().zip(x.iter()).for_each(|(next, x)| *next = a * x);
        let poly = Matrix::dense(&poly, side, side);
        let (left, right) = if rows <= cols { (poly, view) } else { (view, poly) };
        matmul(MatrixMut::dense(&mut next, rows, cols), Into::Add, 1.0, left, right);
        std::mem::swap(x, &mut next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(rows: usize, cols: usize) -> Vec<f32> {
        (0..rows * cols).map(|i| ((i * 7919 + i * i * 31) % 2003) as f32 * 1e-3 - 1.0).collect()
    }

    /// `a * b` of row-major matrices, in f64.
    fn product(a: &[f64], b: &[f64], [rows, inner, cols]: [usize; 3]) -> Vec<f64> {
        let at = |i: usize, j: usize| (0..inner).map(|k| a[i * inner + k] * b[k * cols + j]).sum();
        (0..rows * cols).map(|place| at(place / cols, place % cols)).collect()
    }

    fn transposed(x: &[f64], rows: usize, cols: usize) -> Vec<f64> {
        (0..rows * cols).map(|place| x[place % rows * cols + place / rows]).collect()
    }

    /// The iteration as it is written down, for both shapes by X X'.
    fn reference(x: &[f32], rows: usize, cols: usize) -> Vec<f64> {
        let norm = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        let mut x: Vec<f64> = x.iter().map(|x| f64::from(*x) / norm).collect();
        let [a, b, c] = COEFFICIENTS.map(f64::from);
        for _ in 0..ITERATIONS {
            let gram = product(&x, &transposed(&x, rows, cols), [rows, cols, rows]);
            let square = product(&gram, &gram, [rows; 3]);
            let poly: Vec<f64> = gram.iter().zip(&square).map(|(gram, square)| b * gram + c * square).collect();
            let moved = product(&poly, &x, [rows, rows, cols]);
            x = x.iter().zip(&moved).map(|(x, moved)| a * x + moved).collect();
        }
        x
    }

    #[test]
    fn matrices_of_both_shapes_become_nearly_orthogonal() {
        for (rows, cols) in [(8, 8), (5, 12), (12, 5), (1, 6)] {
            let start = matrix(rows, cols);
            let mut x = start.clone();
            orthogonalize(&mut x, rows, cols);
            let wanted = reference(&start, rows, cols);
            let far = x.iter().zip(&wanted).map(|(x, y)| (f64::from(*x) - y).abs());
            assert!(far.fold(0.0, f64::max) < 1e-3, "{rows}x{cols}");
            // The squares of all singular values add up to the number of them, nearly.
            let squares: f32 = x.iter().map(|x| x * x).sum();
            let side = rows.min(cols) as f32;
            assert!(squares > 0.4 * side && squares < 1.5 * side, "{rows}x{cols}: {squares}");
        }
    }

    #[test]
    fn a_gradient_of_zeros_moves_nothing_but_by_decay() {
        let (mut theta, mut m) = (matrix(3, 4), vec![0.0; 12]);
        let before = theta.clone();
        step([0.1, 0.5, 1.0], 3, &mut theta, &mut m, &[0.0; 12]);
        assert!(theta.iter().zip(&before).all(|(after, before)| *after == before * 0.5));
    }

    #[test]
    fn a_step_has_the_size_of_an_adamw_step() {
        let (rows, cols) = (16, 48);
        let (mut theta, mut m) = (vec![0.0; rows * cols], vec![0.0; rows * cols]);
        step([0.01, 1.0, 1.0], rows, &mut theta, &mut m, &matrix(rows, cols));
        let size = (theta.iter().map(|x| x * x).sum::<f32>() / theta.len() as f32).sqrt();
        // AdamW's steps have some 0.2 to 0.4 of the rate.
        assert!(size > 0.001 && size < 0.004, "{size}");
    }
}
