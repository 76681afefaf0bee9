//! The kernels of the norms. Each team of units takes a row, and keeps it in registers between the sum and the result.

use crate::grid::UNITS;
use crate::launches::count;
use crate::team::{Team, across, team_sum};
use cubecl::prelude::*;

/// Most vectors of a row for one unit up to which loops are unrolled, and rows stay in registers.
const UNROLLED: usize = 16;

/// `width` is counted in vectors.
#[cube(launch_unchecked)]
pub fn norm_rows<A: Float, N: Size>(
    x: &Array<Vector<f32, N>>,
    gain: &Array<Vector<f32, N>>,
    copy: &mut Array<Vector<A, N>>,
    y: &mut Array<Vector<A, N>>,
    inverse: &mut Array<f32>,
    rows: usize,
    eps: f32,
    tally: &mut Array<Atomic<u32>>,
    #[comptime] width: usize,
    #[comptime] team: Team,
) {
    count(tally);
    let mut shared = SharedMemory::<f32>::new(UNITS);
    let lane = UNIT_POS as usize % team.lanes;
    let row = CUBE_POS * comptime!(team.slots()) + UNIT_POS as usize / team.lanes;
    // Units without a row must take part in the sums all the same.
    let inside = row < rows;
    let each = comptime!(team.each(width));
    let mut kept = Array::<Vector<f32, N>>::new(each);
    let mut squares = Vector::<f32, N>::new(0.0f32);
    #[unroll(each <= UNROLLED)]
    for i in 0..each {
        let column = i * team.lanes + lane;
        if inside && column < width {
            let at = row * width + column;
            let value = x[at];
            kept[i] = value;
            squares += value * value;
            copy[at] = Vector::cast_from(value);
        }
    }
    let square = team_sum(across::<N>(squares), &mut shared, team);
    let scale = 1.0f32 / (square / f32::cast_from(width * N::value()) + eps).sqrt();
    if inside && lane == 0 {
        inverse[row] = scale;
    }
    #[unroll(each <= UNROLLED)]
    for i in 0..each {
        let column = i * team.lanes + lane;
        if inside && column < width {
            let wide = kept[i] * Vector::new(scale) * gain[column];
            y[row * width + column] = Vector::cast_from(wide);
        }
    }
}

/// `width` is counted in vectors; `first` is the row of the first block's sums.
#[cube(launch_unchecked)]
pub fn norm_slopes<A: Float, N: Size>(
    x: &Array<Vector<A, N>>,
    gain: &Array<Vector<f32, N>>,
    inverse: &Array<f32>,
    dn: &Array<Vector<A, N>>,
    dx: &mut Array<Vector<f32, N>>,
    copy: &mut ComptimeOption<Array<Vector<A, N>>>,
    sums: &mut Array<Vector<f32, N>>,
    rows: usize,
    steps: usize,
    first: usize,
    tally: &mut Array<Atomic<u32>>,
    #[comptime] width: usize,
    #[comptime] team: Team,
    #[comptime] adds: bool,
) {
    count(tally);
    let mut shared = SharedMemory::<f32>::new(UNITS);
    let slots = comptime!(team.slots());
    let each = comptime!(team.each(width));
    let start = CUBE_POS * steps * slots;
    let mut shares = Array::<Vector<f32, N>>::new(each);
    #[unroll(each <= UNROLLED)]
    for i in 0..each {
        shares[i] = Vector::new(0.0f32);
    }
    for step in 0..steps {
        let row = start + step * slots + UNIT_POS as usize / team.lanes;
        turn_row::<A, N>(x, gain, inverse, dn, dx, copy, &mut shares, &mut shared, row, rows, width, team, adds);
    }
    // There may be more cubes than blocks.
    if start < rows {
        collect::<N>(&shares, sums, (first + CUBE_POS) * width, width, team);
    }
}

/// One row of the gradient: with `n = x * scale`, `dx = scale * (gain * dn - n * mean(gain * dn * n))`. The row's share
/// in the gradient of the gain, `dn * n`, goes to `shares`.
#[cube]
fn turn_row<A: Float, N: Size>(
    x: &Array<Vector<A, N>>,
    gain: &Array<Vector<f32, N>>,
    inverse: &Array<f32>,
    dn: &Array<Vector<A, N>>,
    dx: &mut Array<Vector<f32, N>>,
    copy: &mut ComptimeOption<Array<Vector<A, N>>>,
    shares: &mut Array<Vector<f32, N>>,
    shared: &mut SharedMemory<f32>,
    row: usize,
    rows: usize,
    #[comptime] width: usize,
    #[comptime] team: Team,
    #[comptime] adds: bool,
) {
    let lane = UNIT_POS as usize % team.lanes;
    let each = comptime!(team.each(width));
    let inside = row < rows;
    let mut scale = 0.0f32;
    if inside {
        scale = inverse[row];
    }
    let mut kept = Array::<Vector<A, N>>::new(each);
    let mut incoming = Array::<Vector<A, N>>::new(each);
    let mut products = Vector::<f32, N>::new(0.0f32);
    #[unroll(each <= UNROLLED)]
    for i in 0..each {
        let column = i * team.lanes + lane;
        if inside && column < width {
            let at = row * width + column;
            kept[i] = x[at];
            incoming[i] = dn[at];
            let share =
                Vector::<f32, N>::cast_from(kept[i]) * Vector::<f32, N>::cast_from(incoming[i]) * Vector::new(scale);
            shares[i] += share;
            products += share * gain[column];
        }
    }
    let total = team_sum(across::<N>(products), shared, team);
    let mean = total / f32::cast_from(width * N::value()) * scale;
    #[unroll(each <= UNROLLED)]
    for i in 0..each {
        let column = i * team.lanes + lane;
        if inside && column < width {
            let at = row * width + column;
            let outer = gain[column] * Vector::<f32, N>::cast_from(incoming[i]);
            let inner = Vector::<f32, N>::cast_from(kept[i]) * Vector::new(mean);
            let mut wide = (outer - inner) * Vector::new(scale);
            if comptime!(adds) {
                wide += dx[at];
            }
            dx[at] = wide;
            #[comptime]
            if let ComptimeOption::Some(copy) = copy {
                copy[at] = Vector::cast_from(wide);
            }
        }
    }
}

/// Adds the shares of the teams of a cube, one team after the other, and writes them from vector `to` on.
#[cube]
fn collect<N: Size>(
    shares: &Array<Vector<f32, N>>,
    sums: &mut Array<Vector<f32, N>>,
    to: usize,
    #[comptime] width: usize,
    #[comptime] team: Team,
) {
    let unit = UNIT_POS as usize;
    let lane = unit % team.lanes;
    let each = comptime!(team.each(width));
    if comptime!(team.slots() == 1) {
        #[unroll(each <= UNROLLED)]
        for i in 0..each {
            let column = i * team.lanes + lane;
            if column < width {
                sums[to + column] = shares[i];
            }
        }
    } else {
        let mut totals = SharedMemory::<Vector<f32, N>>::new(width);
        for slot in 0..comptime!(team.slots()) {
            if unit / team.lanes == slot {
                #[unroll(each <= UNROLLED)]
                for i in 0..each {
                    let column = i * team.lanes + lane;
                    if column < width {
                        let mut total = shares[i];
                        if slot > 0 {
                            total += totals[column];
                        }
                        totals[column] = total;
                    }
                }
            }
            sync_cube();
        }
        for column in range_stepped(unit, width, UNITS) {
            sums[to + column] = totals[column];
        }
    }
}

/// Each unit sums one element of one gain over the blocks.
#[cube(launch_unchecked)]
pub fn norm_gains(
    sums: &Array<f32>,
    offsets: &Array<u32>,
    gradient: &mut Array<f32>,
    norms: usize,
    blocks: usize,
    gradient_len: usize,
    tally: &mut Array<Atomic<u32>>,
    #[comptime] width: usize,
) {
    count(tally);
    let norm = ABSOLUTE_POS / width;
    let column = ABSOLUTE_POS % width;
    if norm < norms {
        let first = norm * blocks;
        let mut sum = 0.0f32;
        for block in 0..blocks {
            sum += sums[(first + block) * width + column];
        }
        let at = offsets[norm] as usize + column;
        if at < gradient_len {
            gradient[at] += sum;
        }
    }
}
