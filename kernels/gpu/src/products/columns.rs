//! The column-major view of row-major products, which BLAS libraries want.
//!
//! A row-major `X[r,c]` lies in memory as a column-major `X^T` of `c` rows and leading dimension `c`. So the library
//! computes `D^T = op(L) op(R)` where `L` is the buffer of `B` and `R` the buffer of `A`.

use super::product::Form;

/// A stored column-major matrix, and whether the product reads it transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    pub rows: usize,
    pub columns: usize,
    pub transposed: bool,
}

/// The column-major product. The leading dimension of each stored matrix is its number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns {
    /// The buffer of the row-major `B`.
    pub left: Stored,
    /// The buffer of the row-major `A`.
    pub right: Stored,
    /// The buffer of the row-major `D`.
    pub result: Stored,
}

impl Columns {
    pub fn of(form: Form, m: usize, n: usize, k: usize) -> Self {
        let stored = |rows, columns, transposed| Stored { rows, columns, transposed };
        let (left, right) = match form {
            Form::Forward => (stored(k, n, true), stored(k, m, false)),
            Form::Input => (stored(n, k, false), stored(k, m, false)),
            Form::Weight => (stored(n, k, false), stored(m, k, true)),
        };
        Self { left, right, result: stored(n, m, false) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(matrix: Stored, data: &[i64], row: usize, column: usize) -> i64 {
        let (row, column) = if matrix.transposed { (column, row) } else { (row, column) };
        assert!(row < matrix.rows && column < matrix.columns);
        data[column * matrix.rows + row]
    }

    fn by_columns(columns: Columns, k: usize, a: &[i64], b: &[i64]) -> Vec<i64> {
        let mut d = vec![0; columns.result.rows * columns.result.columns];
        for column in 0..columns.result.columns {
            for row in 0..columns.result.rows {
                d[column * columns.result.rows + row] =
                    (0..k).map(|p| element(columns.left, b, row, p) * element(columns.right, a, p, column)).sum();
            }
        }
        d
    }

    fn by_rows(form: Form, (m, n, k): (usize, usize, usize), a: &[i64], b: &[i64]) -> Vec<i64> {
        let mut d = vec![0; m * n];
        for i in 0..m {
            for j in 0..n {
                for p in 0..k {
                    d[i * n + j] += match form {
                        Form::Forward => a[i * k + p] * b[j * k + p],
                        Form::Input => a[i * k + p] * b[p * n + j],
                        Form::Weight => a[p * m + i] * b[p * n + j],
                    };
                }
            }
        }
        d
    }

    #[test]
    fn columns_compute_the_rows_definition() {
        for (m, n, k) in [(1, 1, 1), (1, 3, 5), (2, 3, 4), (7, 1, 2), (5, 6, 1), (4, 4, 4)] {
            let a: Vec<i64> = (0..m * k).map(|i| (i * i + 1) as i64 % 17 - 5).collect();
            let b: Vec<i64> = (0..n * k).map(|i| (i * 3 + 2) as i64 % 13 - 6).collect();
            for form in [Form::Forward, Form::Input, Form::Weight] {
                let columns = Columns::of(form, m, n, k);
                assert_eq!(by_columns(columns, k, &a, &b), by_rows(form, (m, n, k), &a, &b), "{form:?} {m} {n} {k}");
            }
        }
    }
}
