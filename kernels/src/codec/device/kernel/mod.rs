//! The kernels. Devices differ in operations that the specification fixes: a division may be off by some units in the
//! last place, a sum may be rounded in either direction, subnormals may be flushed, and products may be fused into
//! sums. So a kernel works on the bits of floats, as integers, and uses a float operation only if its result is exact
//! or corrected afterwards.

pub(super) mod decode;
pub(super) mod encode;
mod sum;
pub(super) mod topk;
mod wide;

use cubecl::prelude::*;

/// Units of a cube.
pub(in crate::codec::device) const UNITS: u32 = 64;
/// All bits of a float but its sign.
const MAGNITUDE: u32 = 0x7fff_ffff;

/// The word at `at`; 0 beyond the end.
#[cube]
fn load(input: &Array<u32>, at: usize) -> u32 {
    let mut x = 0u32;
    if at < input.len() {
        x = input[at];
    }
    x
}

#[cube]
fn larger(a: u32, b: u32) -> u32 {
    let mut larger = a;
    if b > a {
        larger = b;
    }
    larger
}

#[cube]
fn smaller(a: u32, b: u32) -> u32 {
    let mut smaller = a;
    if b < a {
        smaller = b;
    }
    smaller
}

/// The value of a bf16. A device may flush a subnormal one; any other is exact on every device.
#[cube]
fn widen(bits: u32) -> f32 {
    f32::reinterpret(bits << 16)
}
