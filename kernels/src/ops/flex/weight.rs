//! Products with weights, spread over the team.

use super::context::{Context, floats};
use crate::host::matrix::{Into, Matrix, MatrixMut, matmul};
use crate::host::norm;
use crate::host::team::{Shared, with_scratch};
use burn_flex::FlexTensor;

/// The rows of one task of a product are a multiple of this, so that no task has a few rows only.
pub const GRAIN: usize = 32;

/// A weight: its elements and where they lie in the flat vector.
#[derive(Clone, Copy)]
pub struct Weight<'a> {
    pub data: &'a [f32],
    pub offset: usize,
}

impl<'a> Weight<'a> {
    pub fn of(tensor: &'a FlexTensor) -> Self {
        Self { data: floats(tensor), offset: tensor.layout().start_offset() }
    }

    /// As `[out, in]` with `width` inputs.
    pub fn matrix(&self, width: usize) -> Matrix<'a> {
        Matrix::dense(self.data, self.data.len() / width, width)
    }

    pub fn range(&self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.data.len()
    }
}

/// Adds `dy^T x` to the gradient of the weight that made `y` (`rows x out`) of `x` (`rows x in`).
pub fn add_gradient(context: &Context, gradients: &mut [f32], weight: Weight<'_>, dy: &[f32], x: &[f32], rows: usize) {
    if rows == 0 {
        return;
    }
    let (out, width) = (dy.len() / rows, x.len() / rows);
    let target = Shared::new(&mut gradients[weight.range()]);
    context.team.ranges(out, 8, 1, |_, range| {
        // SAFETY: the ranges of rows do not overlap.
        let part = unsafe { target.part(range.start * width..range.end * width) };
        let dy = Matrix::new(&dy[range.start..], rows, range.len(), out).t();
        matmul(MatrixMut::dense(part, range.len(), width), Into::Add, 1.0, dy, Matrix::dense(x, rows, width));
    });
}

/// One RMSNorm in front of a product, as the backward pass sees it.
pub struct Norm<'a> {
    pub x: &'a [f32],
    pub gain: Weight<'a>,
    pub inverse: &'a [f32],
}

impl Norm<'_> {
    /// Computes the normalised rows again.
    pub fn replay(&self, context: &Context, out: &mut [f32]) {
        let width = self.gain.data.len();
        let out = Shared::new(out);
        context.team.ranges(self.inverse.len(), GRAIN, 1, |_, range| {
            let columns = range.start * width..range.end * width;
            // SAFETY: the ranges of rows do not overlap.
            let part = unsafe { out.part(columns.clone()) };
            norm::replay(&self.x[columns], self.gain.data, &self.inverse[range], part);
        });
    }

    /// Gradients of a product behind the norm: `dx += norm'(dy * weight)`, and the gain's to `gradients`.
    pub fn backward(&self, context: &Context, gradients: &mut [f32], dy: &[f32], weight: Weight<'_>, dx: &mut [f32]) {
        let (width, rows) = (self.gain.data.len(), self.inverse.len());
        let out = weight.data.len() / width;
        let piece = context.team.piece(rows, GRAIN, 1);
        let mut gains = vec![0.0f32; rows.div_ceil(piece) * width];
        let (gain_parts, dx) = (Shared::new(&mut gains), Shared::new(dx));
        context.team.ranges(rows, GRAIN, 1, |part, range| {
            let columns = range.start * width..range.end * width;
            // SAFETY: the ranges of rows do not overlap, and each part has its own row of gains.
            let (dx, dgain) = unsafe { (dx.part(columns.clone()), gain_parts.part(part * width..(part + 1) * width)) };
            with_scratch(range.len() * width, |dn| {
                let dy = Matrix::dense(&dy[range.start * out..range.end * out], range.len(), out);
                matmul(MatrixMut::dense(dn, range.len(), width), Into::Replace, 1.0, dy, weight.matrix(width));
                norm::backward(&self.x[columns], self.gain.data, &self.inverse[range], dn, dx, dgain);
            });
        });
        let target = &mut gradients[self.gain.range()];
        for part in gains.chunks_exact(width) {
            target.iter_mut().zip(part).for_each(|(t, p)| *t += p);
        }
    }
}
