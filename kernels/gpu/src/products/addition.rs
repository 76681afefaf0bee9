//! Additions of an f32 result, for products whose own kernel does not add.

use super::product::Precision;
use crate::launches::count;
use cubecl::prelude::*;
use cubecl::server::Handle;
use half::bf16;

const UNITS: u32 = 256;

#[cube(launch_unchecked)]
fn add_into<E: Float, N: Size>(
    result: &Array<Vector<f32, N>>,
    sum: &mut Array<Vector<E, N>>,
    vectors: u32,
    tally: &mut Array<Atomic<u32>>,
) {
    count(tally);
    let at = ABSOLUTE_POS;
    if at < vectors as usize {
        sum[at] = Vector::cast_from(result[at] + Vector::cast_from(sum[at]));
    }
}

/// The grid of so many units, within 65,535 cubes to a dimension.
fn grid(units: usize) -> CubeCount {
    let cubes = units.div_ceil(UNITS as usize) as u32;
    let rows = cubes.div_ceil(65_535);
    CubeCount::Static(cubes.div_ceil(rows), rows, 1)
}

/// `sum = sum + result`. `result` is f32, `sum` of `element`; each has `length` elements. One counted launch.
pub fn add<R: Runtime>(
    client: &ComputeClient<R>,
    element: Precision,
    length: usize,
    (result, sum): (&Handle, &Handle),
    tally: &Handle,
) {
    match element {
        Precision::F32 => launch::<R, f32>(client, length, (result, sum), tally),
        Precision::Bf16 => launch::<R, bf16>(client, length, (result, sum), tally),
    }
}

fn launch<R: Runtime, E: Float>(
    client: &ComputeClient<R>,
    length: usize,
    (result, sum): (&Handle, &Handle),
    tally: &Handle,
) {
    let width = if length.is_multiple_of(4) { 4 } else { 1 };
    let vectors = length / width;
    let (grid, dim, count) = (grid(vectors), CubeDim::new_1d(UNITS), vectors as u32);
    // SAFETY: the caller's handles hold `length` elements, and the kernel tests its bounds.
    unsafe {
        let array = |handle: &Handle| ArrayArg::from_raw_parts(handle.clone(), vectors);
        let tally = ArrayArg::from_raw_parts(tally.clone(), 1);
        add_into::launch_unchecked::<E, R>(client, grid, dim, width, array(result), array(sum), count, tally);
    }
}
