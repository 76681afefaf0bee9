//! The sum of two f32 in integer arithmetic, by the rules of IEEE 754-2019 for rounding to nearest even.
//!
//! Shading languages promise one of the two neighbours of a sum, and may take subnormals for zero. Integers are the
//! same everywhere, and a sum is bound by memory anyway.

use super::{MAGNITUDE, larger, smaller};
use cubecl::prelude::*;

const SIGN: u32 = 0x8000_0000;
/// Magnitude of infinity.
const INFINITE: u32 = 0x7f80_0000;
/// Makes a NaN a quiet one.
const QUIET: u32 = 0x0040_0000;
/// Bits below the last place: two for the rounding, and one that says whether anything below these is not 0.
const GUARD: u32 = 3;
/// Bits above a significand with its guard bits.
const HEADROOM: u32 = 32 - 24 - GUARD;

/// Bits of the sum of `x` and a finite `y`, both as bits. An infinity stays; a NaN becomes quiet.
#[cube]
pub(super) fn add(x: u32, y: u32) -> u32 {
    let mut a = x;
    let mut b = y;
    if (y & MAGNITUDE) > (x & MAGNITUDE) {
        a = y;
        b = x;
    }
    let mut sum = a;
    if (a & MAGNITUDE) < INFINITE {
        sum = add_finite(a, b);
    } else if (a & MAGNITUDE) > INFINITE {
        sum = a | QUIET;
    }
    sum
}

/// The same for finite values, the first of the greater magnitude.
#[cube]
fn add_finite(a: u32, b: u32) -> u32 {
    let wide = significand(b);
    let distance = smaller(exponent(a) - exponent(b), 31u32);
    let mut part = wide >> distance;
    if (part << distance) != wide {
        part |= 1;
    }
    let mut power = exponent(a);
    let mut total = significand(a);
    let opposed = ((a ^ b) & SIGN) != 0;
    if opposed {
        total -= part;
        let shift = smaller(total.leading_zeros() - HEADROOM, power - 1);
        total <<= shift;
        power -= shift;
    } else {
        total += part;
        if total.leading_zeros() < HEADROOM {
            total = (total >> 1) | (total & 1);
            power += 1;
        }
    }
    let mut sum = 0u32;
    if total == 0 {
        // The sum of two zeros of one sign keeps the sign; a sum that cancels to 0 is positive.
        if !opposed {
            sum = a & SIGN;
        }
    } else {
        sum = (a & SIGN) | smaller(rounded(total, power), INFINITE);
    }
    sum
}

/// Bits of a significand with guard bits. Its first bit adds one to the exponent; a subnormal has none, and power 1.
#[cube]
fn rounded(total: u32, power: u32) -> u32 {
    let mut kept = total >> GUARD;
    let rest = total & 7;
    if rest > 4 || (rest == 4 && (kept & 1) == 1) {
        kept += 1;
    }
    ((power - 1) << 23) + kept
}

/// Exponent as it is stored, but 1 for subnormals: they have the last place of the smallest normal numbers.
#[cube]
fn exponent(bits: u32) -> u32 {
    larger((bits >> 23) & 0xff, 1u32)
}

/// Significand and guard bits.
#[cube]
fn significand(bits: u32) -> u32 {
    let mut significand = bits & 0x007f_ffff;
    if (bits & INFINITE) != 0 {
        significand |= 0x0080_0000;
    }
    significand << GUARD
}
