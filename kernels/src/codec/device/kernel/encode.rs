//! Dense encoders: cubes of 64 units, each of which has the elements of one or two words of values.
//!
//! bf16 is rounded as an integer. The integers of int8 and int4 need a division, whose rounding differs between
//! devices. So the kernel computes an estimate and then corrects it with operations that are exact on every device:
//!
//! * magnitudes are compared as integers, so that infinities, NaN and subnormals keep their order;
//! * a scale `s` has 8 significant bits and an integer `q` at most 7, so that `q * s` is exact in f32;
//! * for the integer `q` nearest to `x / s`, and its neighbours, `x - q * s` is exact as well: it is a multiple of the
//!   last place of `x` and at most 2 `s`. Comparing it with `s / 2` decides the rounding, ties included. No subnormal
//!   can matter, since `s` is at least 2^-100.
//!
//! The scalar rule rounds the f32 quotient `x / s` instead. Both agree: a quotient next to a tie is further from it
//! than half a last place, because `s` has so few bits. The bytes are therefore the same.
//!
//! Arguments of all encoders: `input` holds the bits of the f32 elements. `heads` takes one word a block: in its low
//! half the scale (0 for bf16) or [`REFUSED`], in its high half `tag`. The tag tells the host that this launch wrote
//! the word: a launch that fails reports nothing and leaves the old memory. `values` takes the payload's bytes, the
//! first of a word in its low byte, zeros beyond the end.

use super::super::super::bf16::LARGEST as BF16_LARGEST;
use super::super::super::scale::{SCALE_MIN, largest as largest_for};
use super::super::super::{INT4_BLOCK, int4, int8};
use super::{MAGNITUDE, UNITS, larger, load, smaller, widen};
use cubecl::prelude::*;

/// Elements that share a word of heads where the codec has no blocks: those of a cube.
pub(in crate::codec::device) const BF16_BLOCK: usize = UNITS as usize * PER_UNIT;
/// Takes the place of the scale of a block that cannot be encoded.
pub(in crate::codec::device) const REFUSED: u16 = 0xffff;

/// Elements of a unit in bf16 and int8.
const PER_UNIT: usize = 4;
/// Units of an int4 block. The word of a unit has four elements of the block's first half and four of its second.
const INT4_UNITS: u32 = INT4_BLOCK as u32 / 8;
/// Below this magnitude (2^-100) the scale is certainly under the smallest one.
const NEGLIGIBLE: u32 = 27 << 23;

#[cube(launch)]
pub(in crate::codec::device) fn encode_bf16(
    input: &Array<u32>,
    heads: &mut Array<u32>,
    values: &mut Array<u32>,
    tag: u32,
) {
    let unit = CUBE_POS * UNITS as usize + UNIT_POS as usize;
    let first = unit * PER_UNIT;
    let x0 = load(input, first);
    let x1 = load(input, first + 1);
    let x2 = load(input, first + 2);
    let x3 = load(input, first + 3);
    if 2 * unit < values.len() {
        values[2 * unit] = nearest(x0) | (nearest(x1) << 16);
    }
    if 2 * unit + 1 < values.len() {
        values[2 * unit + 1] = nearest(x2) | (nearest(x3) << 16);
    }
    let largest = largest_of(largest_of_four(x0, x1, x2, x3), UNITS);
    if UNIT_POS == 0 && CUBE_POS < heads.len() {
        let mut head = 0u32;
        if largest > BF16_LARGEST {
            head = REFUSED as u32;
        }
        heads[CUBE_POS] = head | (tag << 16);
    }
}

/// One cube a block.
#[cube(launch)]
pub(in crate::codec::device) fn encode_int8(
    input: &Array<u32>,
    heads: &mut Array<u32>,
    values: &mut Array<u32>,
    tag: u32,
) {
    let word = CUBE_POS * UNITS as usize + UNIT_POS as usize;
    let first = word * PER_UNIT;
    let x0 = load(input, first);
    let x1 = load(input, first + 1);
    let x2 = load(input, first + 2);
    let x3 = load(input, first + 3);
    let largest = largest_of(largest_of_four(x0, x1, x2, x3), UNITS);
    let scale = scale_of(largest, int8::LEVELS);
    if word < values.len() {
        values[word] = quantize(x0, scale)
            | (quantize(x1, scale) << 8)
            | (quantize(x2, scale) << 16)
            | (quantize(x3, scale) << 24);
    }
    if UNIT_POS == 0 && CUBE_POS < heads.len() {
        heads[CUBE_POS] = scale | (tag << 16);
    }
}

/// Eight units a block.
#[cube(launch)]
pub(in crate::codec::device) fn encode_int4(
    input: &Array<u32>,
    heads: &mut Array<u32>,
    values: &mut Array<u32>,
    tag: u32,
) {
    let word = CUBE_POS * UNITS as usize + UNIT_POS as usize;
    let block = word / INT4_UNITS as usize;
    let start = block * INT4_BLOCK;
    let mut members = 0usize;
    if start < input.len() {
        members = smaller((input.len() - start) as u32, INT4_BLOCK as u32) as usize;
    }
    // Byte i holds the elements i and half + i.
    let half = members.div_ceil(2);
    let first = 4 * (word % INT4_UNITS as usize);
    let mut own = Array::<u32>::new(8usize);
    let mut largest = 0u32;
    #[unroll]
    for i in 0..4usize {
        let at = first + i;
        let mut low = 0u32;
        let mut high = 0u32;
        if at < half {
            low = load(input, start + at);
        }
        if half + at < members {
            high = load(input, start + half + at);
        }
        largest = larger(largest, larger(low & MAGNITUDE, high & MAGNITUDE));
        own[i] = low;
        own[i + 4] = high;
    }
    let scale = scale_of(largest_of(largest, INT4_UNITS), int4::LEVELS);
    let mut packed = 0u32;
    #[unroll]
    for i in 0..4usize {
        let low = quantize(own[i], scale) & 0xf;
        let high = quantize(own[i + 4], scale) & 0xf;
        packed |= (low | (high << 4)) << comptime!(8 * i as u32);
    }
    if word < values.len() {
        values[word] = packed;
    }
    if first == 0 && block < heads.len() {
        heads[block] = scale | (tag << 16);
    }
}

/// Nearest bf16, ties to even. The carry of the rounding runs into the exponent, as it should.
#[cube]
pub(super) fn nearest(bits: u32) -> u32 {
    (bits + 0x7fff + ((bits >> 16) & 1)) >> 16
}

#[cube]
fn largest_of_four(x0: u32, x1: u32, x2: u32, x3: u32) -> u32 {
    let low = larger(x0 & MAGNITUDE, x1 & MAGNITUDE);
    let high = larger(x2 & MAGNITUDE, x3 & MAGNITUDE);
    larger(low, high)
}

/// The largest of the values of the units in this unit's `group` (a power of two).
#[cube]
fn largest_of(own: u32, #[comptime] group: u32) -> u32 {
    let unit = UNIT_POS as usize;
    let place = unit % comptime!(group as usize);
    let mut shared = SharedMemory::<u32>::new(UNITS as usize);
    shared[unit] = own;
    sync_cube();
    #[unroll]
    for halving in 0..comptime!(group.ilog2()) {
        let stride = comptime!(group as usize >> (halving + 1));
        if place < stride {
            let own = shared[unit];
            let other = shared[unit + stride];
            shared[unit] = larger(own, other);
        }
        sync_cube();
    }
    shared[unit - place]
}

/// The smallest bf16 whose product with `levels` is not below the largest magnitude; 0 if that bf16 is too small for a
/// scale.
#[cube]
fn scale_of(largest: u32, #[comptime] levels: f32) -> u32 {
    let mut scale = 0u32;
    if largest > comptime!(largest_for(levels)) {
        scale = REFUSED as u32;
    } else if largest >= NEGLIGIBLE {
        let magnitude = f32::reinterpret(largest);
        let estimate = (u32::reinterpret(magnitude * comptime!(1.0 / levels)) + 0xffff) >> 16;
        scale = estimate;
        if widen(estimate) * levels < magnitude {
            scale = estimate + 1;
        } else if widen(estimate - 1) * levels >= magnitude {
            scale = estimate - 1;
        }
        if scale < SCALE_MIN as u32 {
            scale = 0u32;
        }
    }
    scale
}

/// The integer of one element, in the low byte.
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
