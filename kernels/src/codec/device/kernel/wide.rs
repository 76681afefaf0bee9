//! Arithmetic of f64 in integers, for devices without f64: sums and means of magnitudes, rounded to nearest even by the
//! rules of IEEE 754-2019, so that a device finds exactly the levels of the specification.
//!
//! Values are 0 or normal, and never negative: magnitudes of f32 above 2^-100 and their sums.

use super::larger;
use cubecl::prelude::*;

/// Bits of an f64.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Wide {
    pub high: u32,
    pub low: u32,
}

/// High word of infinity: a bound that nothing exceeds.
pub(super) const INFINITE: u32 = 0x7ff0_0000;
/// The difference of the exponent biases of f64 and f32.
const BIAS: u32 = 1023 - 127;
/// The bit above a fraction, in the high word.
const HIDDEN: u32 = 1 << 20;
/// One in the exponent; halving subtracts it.
const OCTAVE: u32 = 1 << 20;
/// Bits that a sum has below its last place.
const GUARD: u32 = 10;

/// The value of an f32, given as the bits of its magnitude.
#[cube]
pub(super) fn wide(magnitude: u32) -> Wide {
    Wide { high: (magnitude >> 3) + comptime!(BIAS << 20), low: magnitude << 29 }
}

/// Whether `x` is greater than `y`.
#[cube]
pub(super) fn exceeds(x_high: u32, x_low: u32, y_high: u32, y_low: u32) -> bool {
    x_high > y_high || (x_high == y_high && x_low > y_low)
}

/// `x + y`.
#[cube]
pub(super) fn add(x_high: u32, x_low: u32, y_high: u32, y_low: u32) -> Wide {
    let mut a_high = x_high;
    let mut a_low = x_low;
    let mut b_high = y_high;
    let mut b_low = y_low;
    if exceeds(y_high, y_low, x_high, x_low) {
        a_high = y_high;
        a_low = y_low;
        b_high = x_high;
        b_low = x_low;
    }
    // Zero has no hidden bit.
    if b_high != 0 {
        let mut exponent = a_high >> 20;
        let part = shifted(significand_high(b_high, b_low), b_low << GUARD, exponent - (b_high >> 20));
        let mut low = (a_low << GUARD) + part.low;
        let mut high = significand_high(a_high, a_low) + part.high;
        if low < part.low {
            high += 1;
        }
        // The hidden bit of `a` is bit 62 of the two words; a sum that reaches bit 63 has one place more.
        if (high >> 31) != 0 {
            low = (low >> 1) | (high << 31) | (low & 1);
            high >>= 1;
            exponent += 1;
        }
        let rest = low & comptime!((1 << GUARD) - 1);
        let middle = comptime!(1u32 << (GUARD - 1));
        let kept = (low >> GUARD) | (high << comptime!(32 - GUARD));
        let up = rest > middle || (rest == middle && (kept & 1) == 1);
        let sum = packed(exponent, high >> GUARD, kept, up);
        a_high = sum.high;
        a_low = sum.low;
    }
    Wide { high: a_high, low: a_low }
}

/// The high word of a significand with guard bits.
#[cube]
fn significand_high(high: u32, low: u32) -> u32 {
    (((high & comptime!(HIDDEN - 1)) | HIDDEN) << GUARD) | (low >> comptime!(32 - GUARD))
}

/// Two words shifted right by `distance` places; the last bit is 1 if any bit was lost.
#[cube]
fn shifted(high: u32, low: u32, distance: u32) -> Wide {
    let mut to_high = high;
    let mut to_low = low;
    let mut lost = false;
    if distance >= 64 {
        to_high = 0u32;
        to_low = 0u32;
        lost = true;
    } else if distance >= 32 {
        let rest = distance - 32;
        to_high = 0u32;
        to_low = high >> rest;
        lost = low != 0 || (to_low << rest) != high;
    } else if distance > 0 {
        to_high = high >> distance;
        to_low = (low >> distance) | (high << (32 - distance));
        lost = ((low >> distance) << distance) != low;
    }
    if lost {
        to_low |= 1;
    }
    Wide { high: to_high, low: to_low }
}

/// The value with this exponent and significand, plus one in the last place if it is rounded up.
#[cube]
fn packed(exponent: u32, significand_high: u32, significand_low: u32, up: bool) -> Wide {
    let mut high = significand_high;
    let mut low = significand_low;
    if up {
        low += 1;
        if low == 0 {
            high += 1;
        }
    }
    // The hidden bit adds one to the exponent.
    Wide { high: ((exponent - 1) << 20) + high, low }
}

/// `x / count`, for a count from 1 to 4096: long division, bit by bit, to two bits below the last place.
#[cube]
pub(super) fn divide(x_high: u32, x_low: u32, count: u32) -> Wide {
    let divisor = larger(count, 1u32);
    // The rest of the significand, from the top of two words on.
    let mut high = (((x_high & comptime!(HIDDEN - 1)) | HIDDEN) << 11) | (x_low >> 21);
    let mut low = x_low << 11;
    let mut quotient_high = 0u32;
    let mut quotient_low = 0u32;
    let mut rest = 0u32;
    let mut steps = 0u32;
    // A quotient of 55 bits begins with at most 13 zeros.
    for _ in 0..68u32 {
        if quotient_high < comptime!(HIDDEN << 2) {
            rest = (rest << 1) | (high >> 31);
            high = (high << 1) | (low >> 31);
            low <<= 1;
            quotient_high = (quotient_high << 1) | (quotient_low >> 31);
            quotient_low <<= 1;
            if rest >= divisor {
                rest -= divisor;
                quotient_low |= 1;
            }
            steps += 1;
        }
    }
    let kept = (quotient_low >> 2) | (quotient_high << 30);
    let below = quotient_low & 3;
    let up = below == 3 || (below == 2 && (rest != 0 || (kept & 1) == 1));
    packed((x_high >> 20) + 55 - steps, quotient_high >> 2, kept, up)
}

/// `(x + y) / 2`.
#[cube]
pub(super) fn middle(x_high: u32, x_low: u32, y_high: u32, y_low: u32) -> Wide {
    let sum = add(x_high, x_low, y_high, y_low);
    Wide { high: sum.high - OCTAVE, low: sum.low }
}

/// Bits of the nearest f32.
#[cube]
pub(super) fn narrow(high: u32, low: u32) -> u32 {
    let kept = ((high - comptime!(BIAS << 20)) << 3) | (low >> 29);
    let rest = low & 0x1fff_ffff;
    let mut rounded = kept;
    if rest > 0x1000_0000 || (rest == 0x1000_0000 && (kept & 1) == 1) {
        rounded += 1;
    }
    rounded
}
