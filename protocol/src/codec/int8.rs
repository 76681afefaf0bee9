//! int8 in blocks with a bf16 scale each.

use super::CodecError;
use super::bf16::{not_below, widen};

/// Elements that share a scale.
pub const INT8_BLOCK: usize = 256;

/// bf16 of 2^-100.
const SCALE_MIN: u16 = (127 - 100) << 7;
/// bf16 of 2^120: 127 times it is finite in f32.
const SCALE_MAX: u16 = (127 + 120) << 7;

pub(super) fn encode(src: &[f32], out: &mut Vec<u8>) -> Result<(), CodecError> {
    let scales = out.len();
    let values = scales + 2 * src.len().div_ceil(INT8_BLOCK);
    out.resize(values, 0);
    for (block, x) in src.chunks(INT8_BLOCK).enumerate() {
        let scale = scale_of(x).map_err(|refusal| refusal.shifted(block * INT8_BLOCK))?;
        out[scales + 2 * block..][..2].copy_from_slice(&scale.to_le_bytes());
        let s = widen(scale);
        for x in x {
            let q = if scale == 0 { 0.0 } else { (x / s).round_ties_even() };
            out.push(q as i8 as u8);
        }
    }
    Ok(())
}

/// Scale of a block, 0 for a block that is written as zeros.
fn scale_of(x: &[f32]) -> Result<u16, CodecError> {
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
    if largest > 127.0 * widen(SCALE_MAX) {
        return Err(CodecError::TooLarge { index: place });
    }
    let scale = not_below(largest / 127.0);
    Ok(if scale < SCALE_MIN { 0 } else { scale })
}

impl CodecError {
    /// Turns an index within a block into one within the vector.
    fn shifted(self, by: usize) -> Self {
        match self {
            Self::NotFinite { index } => Self::NotFinite { index: by + index },
            Self::TooLarge { index } => Self::TooLarge { index: by + index },
            other => other,
        }
    }
}

pub(super) fn check(bytes: &[u8], elements: usize) -> Result<(), CodecError> {
    let (scales, values) = split(bytes, elements);
    for (block, (s, q)) in scales.iter().zip(values.chunks(INT8_BLOCK)).enumerate() {
        let bits = u16::from_le_bytes(*s);
        if bits != 0 && !(SCALE_MIN..=SCALE_MAX).contains(&bits) {
            return Err(CodecError::BadScale { block, bits });
        }
        if let Some(at) = q.iter().position(|q| *q as i8 == i8::MIN) {
            return Err(CodecError::BadQuant { index: block * INT8_BLOCK + at });
        }
        if (bits == 0) != q.iter().all(|q| *q == 0) {
            return Err(CodecError::ZeroBlock { block, bits });
        }
    }
    Ok(())
}

pub(super) fn each(bytes: &[u8], dst: &mut [f32], put: impl Fn(&mut f32, f32)) {
    let (scales, values) = split(bytes, dst.len());
    for ((d, q), s) in dst.chunks_mut(INT8_BLOCK).zip(values.chunks(INT8_BLOCK)).zip(scales) {
        let s = widen(u16::from_le_bytes(*s));
        for (d, q) in d.iter_mut().zip(q) {
            put(d, f32::from(*q as i8) * s);
        }
    }
}

/// Scales and values of a payload whose length was checked.
fn split(bytes: &[u8], elements: usize) -> (&[[u8; 2]], &[u8]) {
    let (scales, values) = bytes.split_at(2 * elements.div_ceil(INT8_BLOCK));
    (scales.as_chunks::<2>().0, values)
}
