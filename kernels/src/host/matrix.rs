//! Strided views of f32 buffers and their product: the one place that calls the GEMM.

use gemm::{Parallelism, gemm};
use std::marker::PhantomData;

/// A read-only matrix inside a buffer.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    data: *const f32,
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
    buffer: PhantomData<&'a [f32]>,
}

/// A matrix that is written.
pub struct MatrixMut<'a> {
    data: *mut f32,
    rows: usize,
    cols: usize,
    row_stride: usize,
    buffer: PhantomData<&'a mut [f32]>,
}

/// One past the last element that a row-major view touches.
fn extent(rows: usize, cols: usize, row_stride: usize) -> usize {
    if rows == 0 || cols == 0 { 0 } else { (rows - 1) * row_stride + cols }
}

impl<'a> Matrix<'a> {
    /// Rows of `cols` adjacent elements, `row_stride` apart.
    ///
    /// # Panics
    /// If the view leaves the buffer.
    pub fn new(data: &'a [f32], rows: usize, cols: usize, row_stride: usize) -> Self {
        assert!(extent(rows, cols, row_stride) <= data.len(), "a {rows}x{cols} view leaves its buffer");
        Self { data: data.as_ptr(), rows, cols, row_stride, col_stride: 1, buffer: PhantomData }
    }

    /// Rows without gaps.
    pub fn dense(data: &'a [f32], rows: usize, cols: usize) -> Self {
        Self::new(data, rows, cols, cols)
    }

    /// The transposed view.
    pub fn t(self) -> Self {
        Self { rows: self.cols, cols: self.rows, row_stride: self.col_stride, col_stride: self.row_stride, ..self }
    }

    /// `rows` rows from row `first` on.
    fn row_panel(self, first: usize, rows: usize) -> Self {
        assert!(rows > 0 && first + rows <= self.rows, "{rows} rows from {first} on are not in {}", self.rows);
        // An empty view keeps its pointer: nothing of it is read.
        let skipped = if self.cols == 0 { 0 } else { first * self.row_stride };
        // SAFETY: the view has the row, and so its first element.
        Self { data: unsafe { self.data.add(skipped) }, rows, ..self }
    }

    /// The columns from column `first` on.
    fn column_panel(self, first: usize) -> Self {
        let view = self.t().row_panel(first, self.cols - first);
        view.t()
    }
}

impl<'a> MatrixMut<'a> {
    /// Rows of `cols` adjacent elements, `row_stride` apart.
    ///
    /// # Panics
    /// If the view leaves the buffer.
    pub fn new(data: &'a mut [f32], rows: usize, cols: usize, row_stride: usize) -> Self {
        assert!(extent(rows, cols, row_stride) <= data.len(), "a {rows}x{cols} view leaves its buffer");
        Self { data: data.as_mut_ptr(), rows, cols, row_stride, buffer: PhantomData }
    }

    /// Rows without gaps.
    pub fn dense(data: &'a mut [f32], rows: usize, cols: usize) -> Self {
        Self::new(data, rows, cols, cols)
    }
}

/// Whether a product replaces the destination's old content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Into {
    /// The product replaces it.
    Replace,
    /// The product is added to it.
    Add,
}

/// `out = alpha * a * b`, or `out += alpha * a * b`, on the calling thread.
///
/// # Panics
/// If the shapes do not fit.
pub fn matmul(out: MatrixMut<'_>, into: Into, alpha: f32, a: Matrix<'_>, b: Matrix<'_>) {
    assert!(
        out.rows == a.rows && out.cols == b.cols && a.cols == b.rows,
        "{}x{} * {}x{} does not make {}x{}",
        a.rows,
        a.cols,
        b.rows,
        b.cols,
        out.rows,
        out.cols
    );
    // SAFETY: the constructors checked that every element of the three views lies in its buffer, the lifetimes keep
    // the buffers borrowed (the output exclusively), and the shapes fit.
    unsafe {
        gemm(
            out.rows,
            out.cols,
            a.cols,
            out.data,
            1,
            out.row_stride as isize,
            into == Into::Add,
            a.data,
            a.col_stride as isize,
            a.row_stride as isize,
            b.data,
            b.col_stride as isize,
            b.row_stride as isize,
            1.0,
            alpha,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

/// Rows of a panel of `symmetric`: enough for a product to run at full speed.
const PANEL: usize = 64;

/// `matmul` where the result is known to be symmetric: the entries on and above the diagonal's panels are computed, and
/// the others copied.
///
/// # Panics
/// If the shapes do not fit, or `out` is no square.
pub fn symmetric(out: &mut [f32], side: usize, into: Into, alpha: f32, a: Matrix<'_>, b: Matrix<'_>) {
    assert!(
        out.len() == side * side && a.rows == side && b.cols == side && a.cols == b.rows,
        "{}x{} * {}x{} does not make a square of {side}",
        a.rows,
        a.cols,
        b.rows,
        b.cols
    );
    for first in (0..side).step_by(PANEL) {
        let rows = PANEL.min(side - first);
        let panel = MatrixMut::new(&mut out[first * side + first..], rows, side - first, side);
        matmul(panel, into, alpha, a.row_panel(first, rows), b.column_panel(first));
        for row in first..first + rows {
            for col in first + rows..side {
                out[col * side + row] = out[row * side + col];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn products_of_strided_views(m in 1usize..40, n in 1usize..40, k in 1usize..40, gap in 0usize..5, add: bool) {
            let a: Vec<f32> = (0..m * (k + gap)).map(|i| (i * 31 % 17) as f32 - 8.0).collect();
            let b: Vec<f32> = (0..n * (k + gap)).map(|i| (i * 29 % 13) as f32 - 6.0).collect();
            let mut out = vec![2.0f32; m * (n + gap)];
            let into = if add { Into::Add } else { Into::Replace };
            matmul(
                MatrixMut::new(&mut out, m, n, n + gap),
                into,
                0.5,
                Matrix::new(&a, m, k, k + gap),
                Matrix::new(&b, n, k, k + gap).t(),
            );
            for i in 0..m {
                for j in 0..n + gap {
                    let got = out[i * (n + gap) + j];
                    if j >= n {
                        // The last row of the buffer has its gap too, and the product may touch no gap.
                        prop_assert_eq!(got, 2.0);
                        continue;
                    }
                    let dot: f32 = (0..k).map(|l| a[i * (k + gap) + l] * b[j * (k + gap) + l]).sum();
                    prop_assert_eq!(got, 0.5 * dot + if add { 2.0 } else { 0.0 });
                }
            }
        }

        /// The product of a matrix with its transpose, whichever of the two comes first, beside the whole product.
        #[test]
        fn symmetric_products_are_the_whole_ones(side in 1usize..200, k in 1usize..70, tall: bool, add: bool) {
            let a: Vec<f32> = (0..side * k).map(|i| ((i * 7919 + i * i * 31) % 2003) as f32 * 1e-3 - 1.0).collect();
            let view = if tall { Matrix::dense(&a, k, side).t() } else { Matrix::dense(&a, side, k) };
            let into = if add { Into::Add } else { Into::Replace };
            let (mut whole, mut half) = (vec![2.0f32; side * side], vec![2.0f32; side * side]);
            matmul(MatrixMut::dense(&mut whole, side, side), into, 0.5, view, view.t());
            symmetric(&mut half, side, into, 0.5, view, view.t());
            for (place, (whole, got)) in whole.iter().zip(&half).enumerate() {
                prop_assert!((whole - got).abs() <= 1e-4 * (1.0 + whole.abs()), "entry {place}: {whole} and {got}");
                prop_assert_eq!(*got, half[place % side * side + place / side]);
            }
        }
    }
}
