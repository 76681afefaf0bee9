//! Scales: the bf16 by which a block's integers are multiplied, the largest magnitude divided by the largest integer,
//! rounded up. Integer times bf16 is exact in f32, so that every decoder gets the same bits however it computes.

use super::error::CodecError;

/// bf16 of 2^-100: the smallest scale. A block that would need a smaller one is written as zeros.
pub(super) const SCALE_MIN: u16 = 27 << 7;
/// bf16 of 2^120: the largest scale, chosen so that 127 times it is finite.
pub(super) const SCALE_MAX: u16 = 247 << 7;
/// Added to a float of magnitude below 2^22 this leaves the nearest integer, ties to even, in the low bits.
pub(super) const ROUNDER: f32 = 12_582_912.0;

/// Bits of the largest magnitude that can be written with integers up to `levels`.
pub(super) const fn largest(levels: f32) -> u32 {
    (levels * f32::from_bits((SCALE_MAX as u32) << 16)).to_bits()
}

/// The scale of a block whose largest magnitude has these bits: 0 for a block of zeros, `None` if there is none.
#[inline(always)]
pub(super) fn of(magnitude: u32, levels: f32) -> Option<u16> {
    if magnitude > largest(levels) {
        return None;
    }
    let quotient = (f32::from_bits(magnitude) / levels).to_bits();
    let scale = ((quotient + 0xffff) >> 16) as u16;
    Some(if scale < SCALE_MIN { 0 } else { scale })
}

/// Whether an encoder writes this scale; a block has scale 0 exactly if its values are zeros.
#[inline(always)]
pub(super) fn fits(scale: u16, zeros: bool) -> bool {
    if zeros { scale == 0 } else { is_lawful(scale) }
}

#[inline(always)]
pub(super) fn is_lawful(scale: u16) -> bool {
    (SCALE_MIN..=SCALE_MAX).contains(&scale)
}

/// Magnitude of a float as an integer: ordered like the magnitudes, infinities and NaN above all numbers.
#[inline(always)]
pub(super) fn magnitude(x: f32) -> u32 {
    x.to_bits() & 0x7fff_ffff
}

#[inline(always)]
pub(super) fn widen(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Nearest bf16, ties to even. The carry of the rounding runs into the exponent, as it should.
#[inline(always)]
pub(super) fn nearest(x: f32) -> u16 {
    let bits = x.to_bits();
    (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// Names the element that keeps a block, which starts at `start`, from being written.
#[cold]
pub(super) fn refusal(block: &[f32], start: usize) -> CodecError {
    match block.iter().position(|x| !x.is_finite()) {
        Some(at) => CodecError::NotFinite { index: start + at },
        None => {
            let largest = block.iter().map(|x| magnitude(*x)).max();
            let at = block.iter().position(|x| Some(magnitude(*x)) == largest).unwrap_or(0);
            CodecError::TooLarge { index: start + at }
        }
    }
}
