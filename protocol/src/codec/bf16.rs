//! bf16: the upper half of an f32.

use super::error::CodecError;

pub(super) fn encode(src: &[f32], out: &mut Vec<u8>) -> Result<(), CodecError> {
    for (index, x) in src.iter().enumerate() {
        if !x.is_finite() {
            return Err(CodecError::NotFinite { index });
        }
        let rounded = nearest(*x);
        if !widen(rounded).is_finite() {
            return Err(CodecError::TooLarge { index });
        }
        out.extend_from_slice(&rounded.to_le_bytes());
    }
    Ok(())
}

pub(super) fn check(bytes: &[u8]) -> Result<(), CodecError> {
    let values = bytes.as_chunks::<2>().0;
    match values.iter().position(|b| !widen(u16::from_le_bytes(*b)).is_finite()) {
        Some(index) => Err(CodecError::NotFinite { index }),
        None => Ok(()),
    }
}

pub(super) fn each(bytes: &[u8], dst: &mut [f32], put: impl Fn(&mut f32, f32)) {
    for (d, b) in dst.iter_mut().zip(bytes.as_chunks::<2>().0) {
        put(d, widen(u16::from_le_bytes(*b)));
    }
}

/// The value of a bf16, exactly.
pub(super) fn widen(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Nearest bf16 of a finite value, ties to even; infinity when it lies beyond the largest.
pub(super) fn nearest(x: f32) -> u16 {
    let bits = x.to_bits();
    let (upper, lower) = ((bits >> 16) as u16, bits & 0xffff);
    // A carry out of the mantissa raises the exponent, which is the next value up, as it should be.
    let up = lower > 0x8000 || (lower == 0x8000 && upper & 1 == 1);
    upper + u16::from(up)
}

/// Smallest bf16 not below a finite value of positive sign.
pub(super) fn not_below(x: f32) -> u16 {
    let bits = x.to_bits();
    (bits >> 16) as u16 + u16::from(bits & 0xffff != 0)
}
