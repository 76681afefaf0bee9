//! int8 in blocks with a bf16 scale each.

use super::bf16::widen;
use super::error::CodecError;
use super::scale;
use crate::mutation::{Mutation, mutated};

/// Elements that share a scale.
pub const INT8_BLOCK: usize = 256;

/// Values reach from -127 to 127.
const LEVELS: f32 = 127.0;

pub(super) fn encode(src: &[f32], out: &mut Vec<u8>) -> Result<(), CodecError> {
    let scales = out.len();
    let values = scales + 2 * src.len().div_ceil(INT8_BLOCK);
    out.resize(values, 0);
    for (block, x) in src.chunks(INT8_BLOCK).enumerate() {
        let bits = scale::of(x, LEVELS).map_err(|refusal| refusal.shifted(block * INT8_BLOCK))?;
        out[scales + 2 * block..][..2].copy_from_slice(&bits.to_le_bytes());
        let s = widen(bits);
        for x in x {
            let q = if bits == 0 { 0.0 } else { (x / s).round_ties_even() };
            out.push(q as i8 as u8);
        }
    }
    Ok(())
}

pub(super) fn check(bytes: &[u8], elements: usize) -> Result<(), CodecError> {
    let (scales, values) = split(bytes, elements);
    for (block, (s, q)) in scales.iter().zip(values.chunks(INT8_BLOCK)).enumerate() {
        let bits = u16::from_le_bytes(*s);
        if bits != 0 && !scale::is_lawful(bits) {
            return Err(CodecError::BadScale { block, bits });
        }
        if let Some(at) = q.iter().position(|q| *q as i8 == i8::MIN && !mutated!(Mutation::LowestInteger)) {
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
