//! Attention on tensor cores: bf16 operands, sums in f32 that stay in registers, copies beside the products.

mod exponent;
mod forward;
mod fragment;
mod keys;
mod layout;
mod product;
mod queries;
mod stage;
mod tiling;

use super::shape::Shape;
use cubecl::ir::features::MmaConfig;
use cubecl::ir::{ElemType, FloatKind, StorageType};
use cubecl::prelude::*;
use cubecl::server::Handle;
use layout::CHUNK;
use stage::UNITS;
use tiling::Tiling;

/// One cube for each block of rows, head and sequence; blocks vary most slowly.
fn grid(shape: Shape, heads: usize, tiling: Tiling) -> CubeCount {
    CubeCount::Static(heads as u32, shape.batch as u32, shape.tokens.div_ceil(tiling.rows()) as u32)
}

fn scale(shape: Shape) -> f32 {
    1.0 / (shape.head_dim as f32).sqrt()
}

/// Planes of long heads hold fewer rows, lest registers run out.
fn depth(shape: Shape) -> usize {
    if shape.head_dim > 64 { 1 } else { 2 }
}

/// Whether the device offers all that the kernels use.
pub(super) fn fits<R: Runtime, A: Float>(client: &ComputeClient<R>, shape: Shape) -> Result<(), String> {
    let bf16: StorageType = ElemType::Float(FloatKind::BF16).into();
    let f32: StorageType = ElemType::Float(FloatKind::F32).into();
    if A::as_type_native().map(|ty| ty.storage_type()) != Some(bf16) {
        return Err("tensor cores need activations in bf16".into());
    }
    if ![32, 64, 128].contains(&shape.head_dim) {
        return Err(format!("tensor cores need heads of 32, 64 or 128 elements, not {}", shape.head_dim));
    }
    let properties = client.properties();
    let hardware = &properties.hardware;
    let product = MmaConfig { a_type: bf16, b_type: bf16, cd_type: f32, m: 16, n: 8, k: 16 };
    let matmul = &properties.features.matmul;
    let offered = matmul.mma.contains(&product) && matmul.ldmatrix.contains(&bf16) && properties.features.copy_async;
    if !offered || (hardware.plane_size_min, hardware.plane_size_max) != (32, 32) {
        return Err("the device lacks products of bf16 with known registers, or asynchronous copies".into());
    }
    let bytes = Tiling { dim: shape.head_dim, depth: depth(shape) }.bytes();
    if bytes > hardware.max_shared_memory_size {
        return Err(format!("tensor cores need {bytes} bytes of shared memory for heads of {}", shape.head_dim));
    }
    Ok(())
}

/// See [`super::forward`].
pub(super) fn forward<R: Runtime, A: Float>(
    client: &ComputeClient<R>,
    shape: Shape,
    qkv: &Handle,
    out: &Handle,
    lse: &Handle,
    tally: &Handle,
) {
    let tiling = Tiling { dim: shape.head_dim, depth: depth(shape) };
    // SAFETY: the kernel tests its bounds, and the lengths are the buffers'.
    unsafe {
        forward::forward_kernel::launch_unchecked::<A, R>(
            client,
            grid(shape, shape.heads, tiling),
            CubeDim::new_1d(UNITS as u32),
            ArrayArg::from_raw_parts(qkv.clone(), shape.rows() * shape.width() / CHUNK),
            ArrayArg::from_raw_parts(out.clone(), shape.sums() * shape.head_dim / 2),
            ArrayArg::from_raw_parts(lse.clone(), shape.sums()),
            ArrayArg::from_raw_parts(tally.clone(), 1),
            shape.tokens,
            shape.heads,
            shape.kv_heads,
            scale(shape),
            tiling,
        );
    }
}

/// See [`super::backward`]; `dsum` is filled.
#[allow(clippy::too_many_arguments)]
pub(super) fn backward<R: Runtime, A: Float>(
    client: &ComputeClient<R>,
    shape: Shape,
    qkv: &Handle,
    dout: &Handle,
    lse: &Handle,
    dsum: &Handle,
    dqkv: &Handle,
    tally: &Handle,
) {
    macro_rules! launch {
        ($kernel:path, $heads:expr, $depth:expr) => {{
            use $kernel as kernel;
            let tiling = Tiling { dim: shape.head_dim, depth: $depth };
            // SAFETY: the kernels test their bounds, and the lengths are the buffers'.
            unsafe {
                kernel::launch_unchecked::<A, R>(
                    client,
                    grid(shape, $heads, tiling),
                    CubeDim::new_1d(UNITS as u32),
                    ArrayArg::from_raw_parts(qkv.clone(), shape.rows() * shape.width() / CHUNK),
                    ArrayArg::from_raw_parts(dout.clone(), shape.sums() * shape.head_dim / CHUNK),
                    ArrayArg::from_raw_parts(lse.clone(), shape.sums()),
                    ArrayArg::from_raw_parts(dsum.clone(), shape.sums()),
                    ArrayArg::from_raw_parts(dqkv.clone(), shape.rows() * shape.width() / 2),
                    ArrayArg::from_raw_parts(tally.clone(), 1),
                    shape.tokens,
                    shape.heads,
                    shape.kv_heads,
                    scale(shape),
                    tiling,
                );
            }
        }};
    }
    launch!(queries::queries_kernel, shape.heads, depth(shape));
    launch!(keys::keys_kernel, shape.kv_heads, 1);
}
