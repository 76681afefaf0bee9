//! Sizes of launches, and buffers as arguments of kernels.

use cubecl::Runtime;
use cubecl::prelude::{ArrayArg, ComputeClient, CubeCount, CubeDim};
use cubecl::server::{CubeCountSelection, Handle};

/// Units of a cube, in all kernels that do not say otherwise.
pub const UNITS: usize = 256;

/// Bytes that a unit reads at once.
const LINE_BYTES: usize = 16;

/// Elements that a unit reads at once: as many of `bytes` bytes each as fit into one access, where this divides all
/// `sizes`; else a half of it, and so on.
pub fn line(bytes: usize, sizes: &[usize]) -> usize {
    let mut line = (LINE_BYTES / bytes).max(1);
    while sizes.iter().any(|size| !size.is_multiple_of(line)) {
        line /= 2;
    }
    line
}

/// The shape of a launch of at least `cubes` cubes. Kernels must test their indices, since there may be more.
pub fn cubes<R: Runtime>(client: &ComputeClient<R>, cubes: usize) -> CubeCount {
    let cubes = u32::try_from(cubes.max(1)).unwrap_or(u32::MAX);
    CubeCountSelection::new(client, cubes).cube_count()
}

/// The shape of a launch of at least `units` units, [`UNITS`] a cube.
pub fn units<R: Runtime>(client: &ComputeClient<R>, units: usize) -> CubeCount {
    cubes(client, units.div_ceil(UNITS))
}

/// A cube of [`UNITS`] units.
pub fn dim() -> CubeDim {
    CubeDim::new_1d(UNITS as u32)
}

/// The first `len` elements of a buffer that has at least as many, as an argument of a kernel.
pub fn array<R: Runtime>(buffer: &Handle, len: usize) -> ArrayArg<R> {
    // SAFETY: callers give lengths that they allocated, and kernels test their indices.
    unsafe { ArrayArg::from_raw_parts(buffer.clone(), len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_divide_all_sizes() {
        assert_eq!(line(4, &[768, 2048]), 4);
        assert_eq!(line(2, &[768, 2048]), 8);
        assert_eq!(line(2, &[768, 100]), 4);
        assert_eq!(line(4, &[768, 17]), 1);
        assert_eq!(line(4, &[0]), 4);
        assert_eq!(line(8, &[6]), 2);
    }
}
