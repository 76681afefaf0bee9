//! Scales, the factors of a block's integers. A scale is a bf16, so that integer times scale is exact in f32.

use super::bf16::{not_below, widen};
use super::error::CodecError;
use crate::mutation::{Mutation, mutated};

/// bf16 of 2^-100. A block that would need a smaller scale is noise below what any later sum can show; it is written as
/// zeros.
pub(super) const SCALE_MIN: u16 = (127 - 100) << 7;
/// bf16 of 2^120: 127 times it is finite in f32.
pub(super) const SCALE_MAX: u16 = (127 + 120) << 7;

/// Whether an encoder writes this scale for a block that is not all zeros.
pub(super) fn is_lawful(bits: u16) -> bool {
    (SCALE_MIN..=SCALE_MAX).contains(&bits) || mutated!(Mutation::AnyScale)
}

/// Scale of a block whose integers reach from `-levels` to `levels`; 0 for a block that is written as zeros. Indices in
/// errors count from the block's start.
pub(super) fn of(x: &[f32], levels: f32) -> Result<u16, CodecError> {
    let mut largest = 0.0f32;
    let mut place = 0;
    for (index, x) in x.iter().enumerate() {
        if !x.is_finite() {
            return Err(CodecError::NotFinite { index });
        }
        if x.abs() > largest {
            (largest, place) = (x.abs(), index);
        }
    }
    if largest > levels * widen(SCALE_MAX) {
        return Err(CodecError::TooLarge { index: place });
    }
    let scale = not_below(largest / levels);
    Ok(if scale < SCALE_MIN { 0 } else { scale })
}
