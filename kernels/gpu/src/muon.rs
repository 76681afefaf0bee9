//! Muon (Jordan et al. 2024) on the matrices of the layers, with the CPU's formulas: momentum, made orthogonal by five
//! iterations of Newton and Schulz. AdamW steps the rest.
//!
//! Matrices of one shape go through a pass together, so that a model of many layers has few launches. Their directions,
//! and the products of these, are of the type of activations: the iteration takes singular values near to 1 and not to
//! 1 itself, and bf16 does not change that.

use crate::grid::{array, cubes, dim, line, units};
use crate::launches::Tally;
use crate::muon_kernel::{
    ConstantsLaunch, PIECE, WorkLaunch, muon_apply, muon_direction, muon_momentum, muon_polynomial,
};
use crate::optimizer::{self, REPORT, Update, Vectors};
use crate::products::{Add, Form, Output, Product, Products};
use crate::sizes::{ALIGN, Layout};
use crate::team::Team;
use cubecl::prelude::*;
use cubecl::server::Handle;
use std::collections::BTreeMap;
use std::ops::Range;

const ITERATIONS: usize = 5;
/// The step's root mean square beside that of an AdamW step (Liu et al., arXiv 2502.16982).
const SIZE: f32 = 0.2;
/// Elements of scratch that a pass takes, unless one matrix takes more: 256 MiB in bf16.
const SCRATCH: usize = 1 << 27;

/// Matrices of one shape that are stepped at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pass {
    rows: usize,
    cols: usize,
    /// The first of them in the plan's list of places, and how many follow.
    first: usize,
    count: usize,
    /// Elements that a unit reads at once.
    line: usize,
}

impl Pass {
    const fn elements(&self) -> usize {
        self.rows * self.cols
    }

    /// Rows of the smaller of the two products of a matrix with itself.
    fn side(&self) -> usize {
        self.rows.min(self.cols)
    }

    const fn pieces(&self) -> usize {
        self.elements().div_ceil(PIECE)
    }
}

/// The passes of a step.
#[derive(Clone, Debug)]
pub struct Plan {
    passes: Vec<Pass>,
    /// The first element of each matrix on the device, in the order of the passes.
    pub starts: Vec<u32>,
    /// The elements that are AdamW's: the embedding, and what follows the matrices of the layers.
    rest: [Range<usize>; 2],
}

impl Plan {
    pub fn of(layout: &Layout) -> Self {
        Self::within(layout, SCRATCH)
    }

    /// The passes that take so many elements of scratch, unless one matrix takes more.
    fn within(layout: &Layout, scratch: usize) -> Self {
        let mut shapes: BTreeMap<[usize; 2], Vec<u32>> = BTreeMap::new();
        for matrix in layout.inner_matrices() {
            shapes.entry([matrix.rows, matrix.width]).or_default().push(matrix.device as u32);
        }
        let (mut passes, mut starts) = (Vec::new(), Vec::new());
        for ([rows, cols], all) in shapes {
            let one = 2 * (rows * cols + rows.min(cols).pow(2));
            // As many in each pass as in the others, so that scratch is no larger than it has to be.
            let least = all.len().div_ceil((scratch / one).max(1));
            for some in all.chunks(all.len().div_ceil(least)) {
                let sizes: Vec<usize> = some.iter().map(|start| *start as usize).chain([rows * cols]).collect();
                let line = line(size_of::<f32>(), &sizes);
                passes.push(Pass { rows, cols, first: starts.len(), count: some.len(), line });
                starts.extend_from_slice(some);
            }
        }
        let inner = layout.layers.first().map_or(layout.device, |layer| layer.qkv.device);
        let end = layout
            .layers
            .last()
            .map_or(inner, |layer| layer.down.device + layer.down.elements().next_multiple_of(ALIGN));
        Self { passes, starts, rest: [0..inner, end..layout.device] }
    }
}

/// Memory of a step beside the vectors. Each buffer is for the pass that needs most of it, of `count` matrices with
/// elements of activations' type `A`.
#[derive(Debug)]
pub struct Scratch<T> {
    /// The matrices on their way to be orthogonal: A `[count, rows, cols]`.
    from: T,
    to: T,
    /// Products of a matrix with itself, and the squares of these: A `[count, side, side]`.
    gram: T,
    square: T,
    /// Parts of the matrices' sums of squares: f32 `[count, pieces]`.
    sums: T,
}

impl<T> Scratch<T> {
    /// Asks `take` for each buffer by its bytes; an activation has `activation` of them.
    pub fn of(plan: &Plan, activation: usize, take: &mut dyn FnMut(u64) -> T) -> Self {
        let most = |size: fn(&Pass) -> usize| plan.passes.iter().map(|pass| pass.count * size(pass)).max();
        let mut of = |bytes: usize, size| take((bytes * most(size).unwrap_or(0)).max(bytes) as u64);
        Self {
            from: of(activation, Pass::elements),
            to: of(activation, Pass::elements),
            gram: of(activation, |pass| pass.side().pow(2)),
            square: of(activation, |pass| pass.side().pow(2)),
            sums: of(size_of::<f32>(), Pass::pieces),
        }
    }
}

/// A device's means for steps of Muon.
pub struct Muon<'a, R: Runtime> {
    pub client: &'a ComputeClient<R>,
    pub plan: &'a Plan,
    /// [`Plan::starts`] on the device: u32.
    pub starts: &'a Handle,
    pub scratch: &'a Scratch<Handle>,
    pub products: &'a Products<R>,
    /// The scratch of products.
    pub workspace: &'a Handle,
}

impl<R: Runtime> Muon<'_, R> {
    /// Updates parameters and moments, as [`optimizer::step`] does, which steps what Muon leaves. The second moment of
    /// the matrices is neither read nor written.
    ///
    /// # Errors
    /// Those of the products.
    pub fn step<A: Float>(&self, vectors: Vectors<'_>, update: &Update, tally: &Tally) -> Result<(), String> {
        for range in self.plan.rest.iter().filter(|range| !range.is_empty()) {
            let at = |handle: &Handle, bytes: usize| handle.clone().offset_start((bytes * range.start) as u64);
            let [master, m, v, gradient] =
                [vectors.master, vectors.m, vectors.v, vectors.gradient].map(|handle| at(handle, size_of::<f32>()));
            let copy = vectors.copy.map(|copy| at(copy, size_of::<A>()));
            let decayed = vectors.decayed.clamp(range.start, range.end) - range.start;
            let (copy, len) = (copy.as_ref(), range.len());
            let part = Vectors { master: &master, m: &m, v: &v, gradient: &gradient, copy, len, decayed };
            optimizer::step::<R, A>(self.client, part, update, tally.report(), tally.of(1));
        }
        for pass in &self.plan.passes {
            self.direct::<A>(pass, &vectors, update, tally);
            let direction = self.orthogonalize::<A>(pass, tally)?;
            self.apply::<A>(pass, direction, &vectors, update, tally);
        }
        Ok(())
    }

    /// Moves the first moments, and writes the directions, each with a norm of 1, into [`Scratch::from`]. Two launches.
    fn direct<A: Float>(&self, pass: &Pass, vectors: &Vectors<'_>, update: &Update, tally: &Tally) {
        let Vectors { m, gradient, len, .. } = *vectors;
        let (client, sums, team) = (self.client, pass.count * pass.pieces(), Team::whole(self.client));
        // SAFETY: the kernels test their places against the work's.
        unsafe {
            muon_momentum::launch_unchecked::<R>(
                client,
                cubes(client, sums),
                dim(),
                pass.line,
                array(gradient, len),
                array(m, len),
                array(self.starts, self.plan.starts.len()),
                array(&self.scratch.sums, sums),
                array(tally.report(), REPORT),
                work(pass),
                constants(pass, update),
                array(tally.of(1), 1),
                team,
            );
            muon_direction::launch_unchecked::<A, R>(
                client,
                cubes(client, sums),
                dim(),
                pass.line,
                array(gradient, len),
                array(m, len),
                array(self.starts, self.plan.starts.len()),
                array(&self.scratch.sums, sums),
                array(&self.scratch.from, pass.count * pass.elements()),
                array(tally.report(), REPORT),
                work(pass),
                constants(pass, update),
                array(tally.of(1), 1),
                team,
            );
        }
    }

    /// Takes the singular values of all matrices of a pass near to 1. Returns where they are then.
    fn orthogonalize<A: Float>(&self, pass: &Pass, tally: &Tally) -> Result<&Handle, String> {
        let Scratch { from, to, gram, square, .. } = self.scratch;
        let (Pass { rows, cols, count, .. }, side) = (*pass, pass.side());
        let (wide, mut turned) = (rows <= cols, [from, to]);
        let multiply = |form: Form, [m, n, k]: [usize; 3], [a, b, d]: [&Handle; 3]| {
            let product = Product { form, count, m, n, k, output: Output::Activation, add: Add::None };
            let counted = tally.of(self.products.launches(&product));
            self.products.run(self.client, &product, a, b, d, self.workspace, counted)
        };
        for _ in 0..ITERATIONS {
            let [x, next] = turned;
            let (form, inner) = if wide { (Form::Forward, cols) } else { (Form::Weight, rows) };
            multiply(form, [side, side, inner], [x, x, gram])?;
            multiply(Form::Input, [side; 3], [gram, gram, square])?;
            self.polynomial::<A>(count, side, tally);
            let (a, b) = if wide { (square, x) } else { (x, square) };
            multiply(Form::Input, [rows, cols, side], [a, b, next])?;
            turned = [next, x];
        }
        Ok(turned[0])
    }

    /// Replaces [`Scratch::square`] by the factor of an iteration. One launch.
    fn polynomial<A: Float>(&self, count: usize, side: usize, tally: &Tally) {
        let (n, len) = (line(size_of::<A>(), &[side]), count * side * side);
        // SAFETY: the kernel tests its indices against the length.
        unsafe {
            muon_polynomial::launch_unchecked::<A, R>(
                self.client,
                units(self.client, len / n),
                dim(),
                n,
                array(&self.scratch.gram, len),
                array(&self.scratch.square, len),
                side,
                len / n,
                array(tally.of(1), 1),
            );
        }
    }

    /// Steps the parameters. One launch.
    fn apply<A: Float>(&self, pass: &Pass, way: &Handle, vectors: &Vectors<'_>, update: &Update, tally: &Tally) {
        let Vectors { master, copy, len, .. } = *vectors;
        // SAFETY: the kernel tests its places against the work's.
        unsafe {
            muon_apply::launch_unchecked::<A, R>(
                self.client,
                cubes(self.client, pass.count * pass.pieces()),
                dim(),
                pass.line,
                array(master, len),
                copy.map(|copy| array(copy, len)).into(),
                array(self.starts, self.plan.starts.len()),
                array(way, pass.count * pass.elements()),
                array(tally.report(), REPORT),
                work(pass),
                constants(pass, update),
                array(tally.of(1), 1),
            );
        }
    }
}

fn work<R: Runtime>(pass: &Pass) -> WorkLaunch<R> {
    WorkLaunch::new(pass.first, pass.count, pass.pieces(), pass.elements() / pass.line)
}

fn constants<R: Runtime>(pass: &Pass, update: &Update) -> ConstantsLaunch<R> {
    let rate = update.lr as f32 * SIZE * (pass.rows.max(pass.cols) as f32).sqrt();
    ConstantsLaunch::new(rate, (1.0 - update.lr * update.weight_decay) as f32, update.clip as f32)
}

#[cfg(test)]
#[path = "muon_test.rs"]
mod tests;
