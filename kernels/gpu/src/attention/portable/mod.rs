//! Attention in f32 arithmetic for every device: tiles in shared memory, no plane operations.

mod forward;
mod keys;
mod queries;
mod tile;

use super::shape::Shape;
use cubecl::prelude::*;
use cubecl::server::Handle;
use tile::{Pass, Tile};

/// Elements that one access to memory moves.
pub(super) fn vector(head_dim: usize) -> usize {
    if head_dim.is_multiple_of(4) { 4 } else { 2 }
}

/// Whether some tiling fits the device's shared memory.
pub(super) fn fits<R: Runtime>(client: &ComputeClient<R>, shape: Shape) -> Result<(), String> {
    tile_for(client, shape, Pass::Forward).and(tile_for(client, shape, Pass::Backward)).map(|_| ())
}

fn tile_for<R: Runtime>(client: &ComputeClient<R>, shape: Shape, pass: Pass) -> Result<Tile, String> {
    let hardware = &client.properties().hardware;
    let vector = vector(shape.head_dim);
    let memory = hardware.max_shared_memory_size;
    Tile::largest(shape.head_dim / vector, vector, pass, memory, hardware.max_units_per_cube as usize)
        .ok_or_else(|| format!("{memory} bytes of shared memory are too few for heads of {}", shape.head_dim))
}

fn scale(shape: Shape) -> f32 {
    1.0 / (shape.head_dim as f32).sqrt()
}

/// One cube for each block of rows, head and sequence; blocks vary most slowly.
fn grid(shape: Shape, heads: usize, tile: Tile) -> CubeCount {
    CubeCount::Static(heads as u32, shape.batch as u32, shape.tokens.div_ceil(tile.rows()) as u32)
}

/// See [`super::forward`].
pub(super) fn forward<R: Runtime, A: Float>(
    client: &ComputeClient<R>,
    shape: Shape,
    qkv: &Handle,
    out: &Handle,
    lse: &Handle,
    tally: &Handle,
) -> Result<(), String> {
    let tile = tile_for(client, shape, Pass::Forward)?;
    let vector = vector(shape.head_dim);
    // SAFETY: the kernel tests its bounds, and the lengths are the buffers'.
    unsafe {
        forward::forward_kernel::launch_unchecked::<A, R>(
            client,
            grid(shape, shape.heads, tile),
            CubeDim::new_1d(tile.units() as u32),
            vector,
            ArrayArg::from_raw_parts(qkv.clone(), shape.rows() * shape.width() / vector),
            ArrayArg::from_raw_parts(out.clone(), shape.sums() * shape.head_dim / vector),
            ArrayArg::from_raw_parts(lse.clone(), shape.sums()),
            ArrayArg::from_raw_parts(tally.clone(), 1),
            shape.tokens,
            shape.heads,
            shape.kv_heads,
            scale(shape),
            tile,
        );
    }
    Ok(())
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
) -> Result<(), String> {
    let tile = tile_for(client, shape, Pass::Backward)?;
    let vector = vector(shape.head_dim);
    let (wide, narrow) = (shape.rows() * shape.width() / vector, shape.sums() * shape.head_dim / vector);
    macro_rules! launch {
        ($kernel:path, $heads:expr) => {{
            use $kernel as kernel;
            // SAFETY: the kernels test their bounds, and the lengths are the buffers'.
            unsafe {
                kernel::launch_unchecked::<A, R>(
                    client,
                    grid(shape, $heads, tile),
                    CubeDim::new_1d(tile.units() as u32),
                    vector,
                    ArrayArg::from_raw_parts(qkv.clone(), wide),
                    ArrayArg::from_raw_parts(dout.clone(), narrow),
                    ArrayArg::from_raw_parts(lse.clone(), shape.sums()),
                    ArrayArg::from_raw_parts(dsum.clone(), shape.sums()),
                    ArrayArg::from_raw_parts(dqkv.clone(), wide),
                    ArrayArg::from_raw_parts(tally.clone(), 1),
                    shape.tokens,
                    shape.heads,
                    shape.kv_heads,
                    scale(shape),
                    tile,
                );
            }
        }};
    }
    launch!(queries::queries_kernel, shape.heads);
    launch!(keys::keys_kernel, shape.kv_heads);
    Ok(())
}
