//! int4 in blocks with a bf16 scale each, two values a byte: one of the block's first half and one of its second, so
//! that neighbours in memory stay neighbours in vector registers.

use super::bf16::widen;
use super::error::CodecError;
use super::scale;

/// Elements that share a scale: even, so that no byte belongs to two blocks.
pub const INT4_BLOCK: usize = 64;

/// Values reach from -7 to 7.
const LEVELS: f32 = 7.0;

/// Bytes of a payload of `elements` values.
pub(super) const fn encoded_len(elements: usize) -> usize {
    2 * elements.div_ceil(INT4_BLOCK) + elements.div_ceil(2)
}

pub(super) fn encode(src: &[f32], out: &mut Vec<u8>) -> Result<(), CodecError> {
    let scales = out.len();
    out.resize(scales + 2 * src.len().div_ceil(INT4_BLOCK), 0);
    for (block, x) in src.chunks(INT4_BLOCK).enumerate() {
        let bits = scale::of(x, LEVELS).map_err(|refusal| refusal.shifted(block * INT4_BLOCK))?;
        out[scales + 2 * block..][..2].copy_from_slice(&bits.to_le_bytes());
        let s = widen(bits);
        let nibble = |x: &f32| if bits == 0 { 0 } else { (x / s).round_ties_even() as i8 as u8 & 0xf };
        let (low, high) = x.split_at(x.len().div_ceil(2));
        out.extend(low.iter().enumerate().map(|(i, low)| nibble(low) | high.get(i).map_or(0, nibble) << 4));
    }
    Ok(())
}

pub(super) fn check(bytes: &[u8], elements: usize) -> Result<(), CodecError> {
    let (scales, values) = split(bytes, elements);
    for (block, (s, pairs)) in scales.iter().zip(values.chunks(INT4_BLOCK / 2)).enumerate() {
        let bits = u16::from_le_bytes(*s);
        if bits != 0 && !scale::is_lawful(bits) {
            return Err(CodecError::BadScale { block, bits });
        }
        if let Some(at) = pairs.iter().position(|pair| pair & 0xf == 8) {
            return Err(CodecError::BadQuant { index: block * INT4_BLOCK + at });
        }
        if let Some(at) = pairs.iter().position(|pair| pair >> 4 == 8) {
            return Err(CodecError::BadQuant { index: block * INT4_BLOCK + pairs.len() + at });
        }
        if (bits == 0) != pairs.iter().all(|pair| *pair == 0) {
            return Err(CodecError::ZeroBlock { block, bits });
        }
    }
    match values.last() {
        Some(last) if !elements.is_multiple_of(2) && last >> 4 != 0 => {
            Err(CodecError::Padding { block: scales.len() - 1 })
        }
        _ => Ok(()),
    }
}

pub(super) fn each(bytes: &[u8], dst: &mut [f32], put: impl Fn(&mut f32, f32)) {
    let (scales, values) = split(bytes, dst.len());
    for ((d, pairs), s) in dst.chunks_mut(INT4_BLOCK).zip(values.chunks(INT4_BLOCK / 2)).zip(scales) {
        let s = widen(u16::from_le_bytes(*s));
        let (low, high) = d.split_at_mut(pairs.len());
        for (d, pair) in low.iter_mut().zip(pairs) {
            // The nibble moves to the upper half, so that an arithmetic shift brings its sign along.
            put(d, f32::from((pair << 4) as i8 >> 4) * s);
        }
        for (d, pair) in high.iter_mut().zip(pairs) {
            put(d, f32::from(*pair as i8 >> 4) * s);
        }
    }
}

/// Scales and values of a payload whose length was checked.
fn split(bytes: &[u8], elements: usize) -> (&[[u8; 2]], &[u8]) {
    let (scales, values) = bytes.split_at(2 * elements.div_ceil(INT4_BLOCK));
    (scales.as_chunks::<2>().0, values)
}
