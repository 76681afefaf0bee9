//! Attention in f32 arithmetic for every device: tiles in shared memory, no plane operations.

mod forward;
mod keys;
mod queries;
mod tile;

use super::shape::Shape;
use super::tensors::{Backward, Forward, launch};
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

/// See [`super::forward`].
pub(super) fn forward<R: Runtime, A: Float>(
    client: &ComputeClient<R>,
    shape: Shape,
    Forward { qkv, out, lse }: Forward,
    tally: &Handle,
) -> Result<(), String> {
    let tile = tile_for(client, shape, Pass::Forward)?;
    let vector = vector(shape.head_dim);
    let (wide, narrow) = (shape.rows() * shape.width() / vector, shape.sums() * shape.head_dim / vector);
    launch!(
        forward::forward_kernel,
        client,
        (shape.cubes(shape.heads, tile.rows()), tile.units(), vector),
        [qkv => wide, out => narrow, lse => shape.sums()],
        tally,
        shape,
        tile
    );
    Ok(())
}

/// See [`super::backward`]; `dsum` is filled.
pub(super) fn backward<R: Runtime, A: Float>(
    client: &ComputeClient<R>,
    shape: Shape,
    Backward { forward: Forward { qkv, lse, .. }, dout, dsum, dqkv }: Backward,
    tally: &Handle,
) -> Result<(), String> {
    let tile = tile_for(client, shape, Pass::Backward)?;
    let vector = vector(shape.head_dim);
    let (wide, narrow, sums) =
        (shape.rows() * shape.width() / vector, shape.sums() * shape.head_dim / vector, shape.sums());
    macro_rules! gradient {
        ($kernel:path, $heads:expr) => {
            launch!(
                $kernel,
                client,
                (shape.cubes($heads, tile.rows()), tile.units(), vector),
                [qkv => wide, dout => narrow, lse => sums, dsum => sums, dqkv => wide],
                tally,
                shape,
                tile
            )
        };
    }
    gradient!(queries::queries_kernel, shape.heads);
    gradient!(keys::keys_kernel, shape.kv_heads);
    Ok(())
}
