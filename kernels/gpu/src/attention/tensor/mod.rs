//! Attention on tensor cores: bf16 operands, sums in f32 that stay in registers, copies beside the products.

mod exponent;
mod forward;
mod fragment;
mod layout;
mod stage;
mod tiling;

use super::shape::Shape;
use cubecl::prelude::*;
use cubecl::server::Handle;
use layout::CHUNK;
use stage::UNITS;
use tiling::Tiling;

/// See [`super::forward`].
pub(super) fn forward<R: Runtime, A: Float>(
    client: &ComputeClient<R>,
    shape: Shape,
    qkv: &Handle,
    out: &Handle,
    lse: &Handle,
    tally: &Handle,
) {
    let tiling = Tiling { dim: shape.head_dim, depth: if shape.head_dim > 64 { 1 } else { 2 } };
    // SAFETY: the kernel tests its bounds, and the lengths are the buffers'.
    unsafe {
        forward::forward_kernel::launch_unchecked::<A, R>(
            client,
            CubeCount::Static(shape.heads as u32, shape.batch as u32, shape.tokens.div_ceil(tiling.rows()) as u32),
            CubeDim::new_1d(UNITS as u32),
            ArrayArg::from_raw_parts(qkv.clone(), shape.rows() * shape.width() / CHUNK),
            ArrayArg::from_raw_parts(out.clone(), shape.sums() * shape.head_dim / 2),
            ArrayArg::from_raw_parts(lse.clone(), shape.sums()),
            ArrayArg::from_raw_parts(tally.clone(), 1),
            shape.tokens,
            shape.heads,
            shape.kv_heads,
            1.0 / (shape.head_dim as f32).sqrt(),
            tiling,
        );
    }
}
