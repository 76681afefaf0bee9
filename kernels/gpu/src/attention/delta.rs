//! Sums of `dout * out` over each head's row, which the softmax's gradient subtracts.

use super::shape::Shape;
use super::tensors::{Backward, Forward};
use crate::launches::count;
use cubecl::prelude::*;
use cubecl::server::Handle;

/// Units that share a row.
const SHARERS: usize = 8;
/// Rows of a cube.
const ROWS: usize = 16;

/// Writes `dsum`, `[batch, heads, tokens]`: one launch.
pub(super) fn rows<R: Runtime, A: Float>(
    client: &ComputeClient<R>,
    shape: Shape,
    Backward { forward: Forward { out, .. }, dout, dsum, .. }: Backward,
    tally: &Handle,
) {
    let Shape { tokens, heads, head_dim, .. } = shape;
    let vector = vector::<R, A>(client, head_dim);
    let vectors = shape.rows() * heads * head_dim / vector;
    // SAFETY: the kernel tests its bounds, and the lengths are the buffers'.
    unsafe {
        delta_kernel::launch_unchecked::<A, R>(
            client,
            shape.cubes(heads, ROWS),
            CubeDim::new_1d((SHARERS * ROWS) as u32),
            vector,
            ArrayArg::from_raw_parts(out.clone(), vectors),
            ArrayArg::from_raw_parts(dout.clone(), vectors),
            ArrayArg::from_raw_parts(dsum.clone(), shape.sums()),
            ArrayArg::from_raw_parts(tally.clone(), 1),
            tokens,
            heads,
            head_dim / vector,
        );
    }
}

/// Elements that one access moves: 16 bytes where the row and the device allow.
fn vector<R: Runtime, A: Float>(client: &ComputeClient<R>, head_dim: usize) -> usize {
    let narrow = A::as_type_native().is_some_and(|ty| ty.storage_type().size() == 2);
    let wide = narrow && head_dim.is_multiple_of(8) && client.properties().hardware.max_vector_size >= 8;
    if wide { 8 } else { super::portable::vector(head_dim) }
}

/// A cube sums [`ROWS`] tokens of one head; [`SHARERS`] units add up parts of a row, and the first of them the parts.
#[cube(launch_unchecked)]
fn delta_kernel<A: Float, N: Size>(
    out: &Array<Vector<A, N>>,
    dout: &Array<Vector<A, N>>,
    dsum: &mut Array<f32>,
    tally: &mut Array<Atomic<u32>>,
    tokens: usize,
    heads: usize,
    #[comptime] dim: usize,
) {
    count(tally);
    let mut parts = SharedMemory::<f32>::new(comptime!(ROWS * (SHARERS + 1)));
    let head = CUBE_POS_X as usize;
    let batch = CUBE_POS_Y as usize;
    let row = UNIT_POS as usize / SHARERS;
    let part = UNIT_POS as usize % SHARERS;
    let token = CUBE_POS_Z as usize * ROWS + row;
    let mut sum = 0.0f32;
    if token < tokens {
        let start = ((batch * tokens + token) * heads + head) * dim;
        let mut d = part;
        while d < dim {
            let left = Vector::<f32, N>::cast_from(out[start + d]);
            let right = Vector::<f32, N>::cast_from(dout[start + d]);
            #[unroll]
            for n in 0..N::value() {
                sum += left[n] * right[n];
            }
            d += SHARERS;
        }
    }
    parts[row * (SHARERS + 1) + part] = sum;
    sync_cube();
    if part == 0 && token < tokens {
        let mut total = 0.0f32;
        for i in 0..SHARERS {
            total += parts[row * (SHARERS + 1) + i];
        }
        dsum[(batch * heads + head) * tokens + token] = total;
    }
}
