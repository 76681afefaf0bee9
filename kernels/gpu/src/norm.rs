//! RMSNorm (Zhang and Sennrich, arXiv 1910.07467): `y = gain * x / sqrt(mean(x^2) + eps)`, row by row.
//!
//! In the backward pass each cube takes a block of neighbouring rows and leaves one row of sums for the gradient of the
//! gain, since sums over all rows by atomic additions would have no fixed order.

use crate::grid::{array, cubes, dim, line, units};
use crate::norm_kernel::{norm_gains, norm_rows, norm_slopes};
use crate::team::Team;
use cubecl::Runtime;
use cubecl::prelude::*;
use cubecl::server::Handle;

/// Most blocks of rows in the backward pass: two for each multiprocessor of an H100, roughly.
const BLOCKS: usize = 256;

/// The backward pass's use of the buffer that receives the gradient of the inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Into {
    /// The buffer holds the gradient of the residual stream, which is added.
    Add,
    Replace,
}

/// The buffers that receive the gradient of the inputs: `[rows, width]`.
#[derive(Clone, Copy, Debug)]
pub struct Slopes<'a> {
    /// f32.
    pub dx: &'a Handle,
    /// `A`, for products. None if they read `dx`.
    pub copy: Option<&'a Handle>,
    pub into: Into,
}

/// The norm's constants, the same for all rows.
#[derive(Clone, Copy, Debug)]
pub struct Gain<'a> {
    /// f32 `[width]`.
    pub gain: &'a Handle,
    pub eps: f32,
}

/// Writes `y` (`A`, `[rows, width]`), the inverse norms (f32, `[rows]`) of `x` (f32, `[rows, width]`), and a copy of `x`
/// for the backward pass (`A`). One launch.
pub fn forward<R: Runtime, A: Float>(
    client: &ComputeClient<R>,
    x: &Handle,
    Gain { gain, eps }: Gain<'_>,
    [copy, y, inverse]: [&Handle; 3],
    [rows, width]: [usize; 2],
    tally: &Handle,
) {
    let (n, team) = shape::<R, A>(client, width);
    let len = rows * width;
    // SAFETY: the kernel leaves out rows beyond the last and columns beyond the width.
    unsafe {
        norm_rows::launch_unchecked::<A, R>(
            client,
            cubes(client, rows.div_ceil(team.slots())),
            dim(),
            n,
            array(x, len),
            array(gain, width),
            array(copy, len),
            array(y, len),
            array(inverse, rows),
            rows,
            eps,
            array(tally, 1),
            width / n,
            team,
        );
    }
}

/// Blocks of rows of the backward pass: rows of sums that it leaves for one norm.
pub fn blocks<R: Runtime, A: Float>(client: &ComputeClient<R>, [rows, width]: [usize; 2]) -> usize {
    let (_, team) = shape::<R, A>(client, width);
    rows.div_ceil(steps(team, rows) * team.slots())
}

/// Most blocks of any batch with at most `rows` rows; for the size of a buffer of sums.
pub fn blocks_max(rows: usize) -> usize {
    rows.min(BLOCKS)
}

/// The sums for the gains of all norms: f32 `[norms, blocks, width]`, with [`blocks`] of the batch.
#[derive(Clone, Copy, Debug)]
pub struct Sums<'a> {
    pub sums: &'a Handle,
    pub norms: usize,
}

/// The gradient of the inputs `x`, given the gradient `dn` of the outputs (`A`, `[rows, width]` each) and the inverse
/// norms: it replaces `dx` (f32) or is added to it, and `copy` (`A`) receives the result. The share of norm number `norm`
/// in `sums` receives the sums for the gain. One launch.
pub fn backward<R: Runtime, A: Float>(
    client: &ComputeClient<R>,
    [x, gain, inverse, dn]: [&Handle; 4],
    Slopes { dx, copy, into }: Slopes<'_>,
    (sums, norm): (Sums<'_>, usize),
    [rows, width]: [usize; 2],
    tally: &Handle,
) {
    let (n, team) = shape::<R, A>(client, width);
    let (len, blocks) = (rows * width, blocks::<R, A>(client, [rows, width]));
    // SAFETY: as in the forward pass; a block writes its own row of sums only.
    unsafe {
        norm_slopes::launch_unchecked::<A, R>(
            client,
            cubes(client, blocks),
            dim(),
            n,
            array(x, len),
            array(gain, width),
            array(inverse, rows),
            array(dn, len),
            array(dx, len),
            copy.map(|copy| array(copy, len)).into(),
            array(sums.sums, sums.norms * blocks * width),
            rows,
            steps(team, rows),
            norm * blocks,
            array(tally, 1),
            width / n,
            team,
            into == Into::Add,
        );
    }
}

/// Adds the sums of all norms to the flat gradient (f32, at least `gradient_len` elements). `offsets` (u32) holds the
/// place of each norm's gain in it. `size` is that of the batch. One launch.
pub fn gains<R: Runtime, A: Float>(
    client: &ComputeClient<R>,
    sums: Sums<'_>,
    offsets: &Handle,
    (gradient, gradient_len): (&Handle, usize),
    size: [usize; 2],
    tally: &Handle,
) {
    let (width, blocks) = (size[1], blocks::<R, A>(client, size));
    // SAFETY: the kernel tests its indices against the lengths.
    unsafe {
        norm_gains::launch_unchecked::<R>(
            client,
            units(client, sums.norms * width),
            dim(),
            array(sums.sums, sums.norms * blocks * width),
            array(offsets, sums.norms),
            array(gradient, gradient_len),
            sums.norms,
            blocks,
            gradient_len,
            array(tally, 1),
            width,
        );
    }
}

/// Elements of a vector, and the teams that take the rows.
fn shape<R: Runtime, A: Float>(client: &ComputeClient<R>, width: usize) -> (usize, Team) {
    let n = line(size_of::<A>(), &[width]);
    (n, Team::of(client, width / n))
}

/// Rows that each team of a block takes, one after the other.
fn steps(team: Team, rows: usize) -> usize {
    rows.div_ceil(team.slots() * BLOCKS).max(1)
}
