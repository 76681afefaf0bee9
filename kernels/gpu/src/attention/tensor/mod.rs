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
use super::tensors::{Backward, Forward, launch};
use cubecl::ir::features::MmaConfig;
use cubecl::ir::{ElemType, FloatKind, StorageType};
use cubecl::prelude::*;
use cubecl::server::Handle;
use layout::CHUNK;
use stage::UNITS;
use tiling::Tiling;

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
    Forward { qkv, out, lse }: Forward,
    tally: &Handle,
) {
    let tiling = Tiling { dim: shape.head_dim, depth: depth(shape) };
    let (wide, pairs) = (shape.rows() * shape.width() / CHUNK, shape.sums() * shape.head_dim / 2);
    launch!(
        forward::forward_kernel,
        client,
        (shape.cubes(shape.heads, tiling.rows()), UNITS),
        [qkv => wide, out => pairs, lse => shape.sums()],
        tally,
        shape,
        tiling
    );
}

/// See [`super::backward`]; `dsum` is filled.
pub(super) fn backward<R: Runtime, A: Float>(
    client: &ComputeClient<R>,
    shape: Shape,
    Backward { forward: Forward { qkv, lse, .. }, dout, dsum, dqkv }: Backward,
    tally: &Handle,
) {
    let (wide, narrow) = (shape.rows() * shape.width(), shape.sums() * shape.head_dim);
    macro_rules! gradient {
        ($kernel:path, $heads:expr, $depth:expr) => {{
            let tiling = Tiling { dim: shape.head_dim, depth: $depth };
            launch!(
                $kernel,
                client,
                (shape.cubes($heads, tiling.rows()), UNITS),
                [
                    qkv => wide / CHUNK,
                    dout => narrow / CHUNK,
                    lse => shape.sums(),
                    dsum => shape.sums(),
                    dqkv => wide / 2,
                ],
                tally,
                shape,
                tiling
            )
        }};
    }
    gradient!(queries::queries_kernel, shape.heads, depth(shape));
    gradient!(keys::keys_kernel, shape.kv_heads, 1);
}
