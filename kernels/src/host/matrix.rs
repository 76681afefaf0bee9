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
    }
}
