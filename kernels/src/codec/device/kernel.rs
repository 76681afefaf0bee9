//! The int8 encoder as a cubecl kernel: one cube a block, 64 units of four elements each.
//!
//! Devices differ in what the specification leaves no room for: division may be off by some units in the last place,
//! subnormals may be flushed, products may be fused into sums. So the kernel computes an estimate and then corrects it
//! with operations that are exact whatever the device does:
//!
//! * magnitudes are compared as integers, so that infinities, NaN and subnormals keep their order;
//! * a scale `s` has 8 significant bits and an integer `q` at most 7, so that `q * s` is exact in f32;
//! * for the integer `q` nearest to `x / s`, and its neighbours, `x - q * s` is exact as well: it is a multiple of the
//!   last place of `x` and at most 2 `s`. Comparing it with `s / 2` decides the rounding, ties included. No subnormal
//!   can matter, since `s` is at least 2^-100.
//!
//! The scalar rule rounds the f32 quotient `x / s` instead. Both agree: a quotient next to a tie is further from it than
//! half a last place, because `s` has so few bits. The bytes are therefore the same.

use super::super::int8::{INT8_BLOCK, LARGEST};
use super::super::scale::SCALE_MIN;
use cubecl::prelude::*;

/// Units of a cube.
pub(super) const UNITS: u32 = 64;
/// Elements of a unit: the bytes of one output word.
const PER_UNIT: usize = INT8_BLOCK / UNITS as usize;
/// Steps from [`UNITS`] partial results to one.
const HALVINGS: u32 = UNITS.ilog2();
/// What stands where a scale should, if a block cannot be encoded.
pub(super) const REFUSED: u16 = 0xffff;

/// Below this magnitude (2^-100) the scale is certainly under the smallest one.
const NEGLIGIBLE: u32 = 27 << 23;
const MAGNITUDE: u32 = 0x7fff_ffff;

/// `input`: the bits of the f32 elements. `scales`: one word a block, the bf16 or [`REFUSED`] in the low half, `tag` in
/// the high half. `values`: four elements a word, the first in the low byte; zeros beyond the last element.
///
/// The tag tells the host that this launch wrote the word: a launch that fails leaves old memory behind without a word.
#[cube(launch)]
pub(super) fn encode_blocks(input: &Array<u32>, scales: &mut Array<u32>, values: &mut Array<u32>, tag: u32) {
    let unit = UNIT_POS as usize;
    let word = CUBE_POS * UNITS as usize + unit;
    let first = word * PER_UNIT;
    let x0 = load(input, first);
    let x1 = load(input, first + 1);
    let x2 = load(input, first + 2);
    let x3 = load(input, first + 3);

    let low = larger(x0 & MAGNITUDE, x1 & MAGNITUDE);
    let high = larger(x2 & MAGNITUDE, x3 & MAGNITUDE);
    let mut shared = SharedMemory::<u32>::new(UNITS as usize);
    shared[unit] = larger(low, high);
    sync_cube();
    #[unroll]
    for halving in 0..HALVINGS {
        let stride = comptime!(UNITS as usize >> (halving + 1));
        if unit < stride {
            let own = shared[unit];
            let other = shared[unit + stride];
            shared[unit] = larger(own, other);
        }
        sync_cube();
    }

    let scale = scale_of(shared[0]);
    if word < values.len() {
        values[word] = quantize(x0, scale)
            | (quantize(x1, scale) << 8)
            | (quantize(x2, scale) << 16)
            | (quantize(x3, scale) << 24);
    }
    if unit == 0 && CUBE_POS < scales.len() {
        scales[CUBE_POS] = scale | (tag << 16);
    }
}

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

/// The smallest bf16 whose product with 127 is not below the largest magnitude; 0 if that is too small for a scale.
#[cube]
fn scale_of(largest: u32) -> u32 {
    let mut scale = 0u32;
    if largest > LARGEST {
        scale = REFUSED as u32;
    } else if largest >= NEGLIGIBLE {
        let magnitude = f32::reinterpret(largest);
        let estimate = (u32::reinterpret(magnitude * (1.0f32 / 127.0f32)) + 0xffff) >> 16;
        scale = estimate;
        if widen(estimate) * 127.0f32 < magnitude {
            scale = estimate + 1;
        } else if widen(estimate - 1) * 127.0f32 >= magnitude {
            scale = estimate - 1;
        }
        if scale < SCALE_MIN as u32 {
            scale = 0u32;
        }
    }
    scale
}

#[cube]
fn widen(bits: u32) -> f32 {
    f32::reinterpret(bits << 16)
}

/// The byte of one element.
#[cube]
fn quantize(bits: u32, scale: u32) -> u32 {
    let mut byte = 0u32;
    if scale != 0 && scale != REFUSED as u32 {
        let x = f32::reinterpret(bits);
        let s = widen(scale);
        let estimate = (x / s + 0.5f32).floor();
        let rest = x - estimate * s;
        let half = s * 0.5f32;
        let mut q = i32::cast_from(estimate);
        let odd = (q & 1) == 1;
        if rest > half || (rest == half && odd) {
            q += 1;
        } else if rest < -half || (rest == -half && odd) {
            q -= 1;
        }
        byte = u32::cast_from(q) & 0xff;
    }
    byte
}
