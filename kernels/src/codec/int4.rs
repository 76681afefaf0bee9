//! int4 in blocks of 64 with a bf16 scale each, two values a byte: one of the block's first half and one of its second,
//! so that neighbours in memory stay neighbours in vector registers.

use super::error::{CodecError, check_length};
use super::scale::{self, ROUNDER, magnitude, widen};

/// Elements that share a scale.
pub const INT4_BLOCK: usize = 64;

/// Values reach from -7 to 7.
pub(super) const LEVELS: f32 = 7.0;

/// Bytes of a payload of `elements` values.
pub(super) const fn encoded_len(elements: usize) -> usize {
    2 * elements.div_ceil(INT4_BLOCK) + elements.div_ceil(2)
}

/// Writes `src` into `dst` of [`encoded_len`] bytes: scales, then values.
///
/// Refuses a value that is not finite or is too large; `dst` then holds no payload.
pub fn int4_encode(src: &[f32], dst: &mut [u8]) -> Result<(), CodecError> {
    check_length(src.len(), encoded_len(src.len()), dst.len())?;
    let (scales, values) = dst.split_at_mut(2 * src.len().div_ceil(INT4_BLOCK));
    let refused = pulp::Arch::new().dispatch(Encode { src, scales: scales.as_chunks_mut().0, values });
    refused.map_or(Ok(()), |block| {
        let start = block * INT4_BLOCK;
        Err(scale::refusal(src.chunks(INT4_BLOCK).nth(block).unwrap_or_default(), start))
    })
}

/// A struct instead of a closure: the compiler does not inline closures of this size into the function that has the
/// wide instructions.
struct Encode<'a> {
    src: &'a [f32],
    scales: &'a mut [[u8; 2]],
    values: &'a mut [u8],
}

impl pulp::NullaryFnOnce for Encode<'_> {
    /// The first block that cannot be written.
    type Output = Option<usize>;

    #[inline(always)]
    fn call(self) -> Option<usize> {
        let mut refused = None;
        let blocks = self.src.chunks(INT4_BLOCK).zip(self.values.chunks_mut(INT4_BLOCK / 2));
        for (block, ((x, q), s)) in blocks.zip(self.scales).enumerate() {
            match encode_block(x, q) {
                Some(scale) => *s = scale.to_le_bytes(),
                None => refused = refused.or(Some(block)),
            }
        }
        refused
    }
}

/// Writes one block's values and returns its scale; `None` if it cannot be written.
#[inline(always)]
fn encode_block(x: &[f32], q: &mut [u8]) -> Option<u16> {
    let largest = x.iter().fold(0, |m, x| m.max(magnitude(*x)));
    let scale = scale::of(largest, LEVELS)?;
    if scale == 0 {
        q.fill(0);
        return Some(0);
    }
    let s = widen(scale);
    let (low, high) = x.split_at(q.len());
    for (q, x) in q.iter_mut().zip(low) {
        *q = (*x / s + ROUNDER).to_bits() as u8 & 0xf;
    }
    for (q, x) in q.iter_mut().zip(high) {
        *q |= ((*x / s + ROUNDER).to_bits() as u8) << 4;
    }
    Some(scale)
}

/// Reads a payload into `dst`.
pub fn int4_decode(bytes: &[u8], dst: &mut [f32]) -> Result<(), CodecError> {
    each(
        bytes,
        dst,
        #[inline(always)]
        |d, value| *d = value,
    )
}

/// Adds a payload's values to `dst`.
pub fn int4_decode_add(bytes: &[u8], dst: &mut [f32]) -> Result<(), CodecError> {
    each(
        bytes,
        dst,
        #[inline(always)]
        |d, value| *d += value,
    )
}

#[inline(always)]
fn each(bytes: &[u8], dst: &mut [f32], put: impl Fn(&mut f32, f32)) -> Result<(), CodecError> {
    let (scales, values) = check(bytes, dst.len())?;
    pulp::Arch::new().dispatch(Decode { scales, values, dst, put });
    Ok(())
}

struct Decode<'a, F> {
    scales: &'a [[u8; 2]],
    values: &'a [u8],
    dst: &'a mut [f32],
    put: F,
}

impl<F: Fn(&mut f32, f32)> pulp::NullaryFnOnce for Decode<'_, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let blocks = self.dst.chunks_mut(INT4_BLOCK).zip(self.values.chunks(INT4_BLOCK / 2));
        for ((d, q), s) in blocks.zip(self.scales) {
            let s = widen(u16::from_le_bytes(*s));
            let (low, high) = d.split_at_mut(q.len());
            for (d, q) in low.iter_mut().zip(q) {
                // The nibble moves to the upper half, so that an arithmetic shift brings its sign along.
                (self.put)(d, f32::from((*q << 4) as i8 >> 4) * s);
            }
            for (d, q) in high.iter_mut().zip(q) {
                (self.put)(d, f32::from(*q as i8 >> 4) * s);
            }
        }
    }
}

/// Splits a payload into scales and values after checking all of it.
pub(super) fn check(bytes: &[u8], elements: usize) -> Result<(&[[u8; 2]], &[u8]), CodecError> {
    check_length(elements, encoded_len(elements), bytes.len())?;
    let (scales, values) = bytes.split_at(2 * elements.div_ceil(INT4_BLOCK));
    let scales = scales.as_chunks::<2>().0;
    let refused = pulp::Arch::new().dispatch(
        #[inline(always)]
        || scales.iter().zip(values.chunks(INT4_BLOCK / 2)).position(|(s, q)| !accepts(u16::from_le_bytes(*s), q)),
    );
    if let Some(block) = refused {
        return Err(reason(scales, values, block));
    }
    match values.last() {
        Some(last) if !elements.is_multiple_of(2) && last >> 4 != 0 => {
            Err(CodecError::Padding { block: scales.len() - 1 })
        }
        _ => Ok((scales, values)),
    }
}

/// Whether an encoder could have written this block.
#[inline(always)]
fn accepts(scale: u16, q: &[u8]) -> bool {
    let (mut any, mut lowest) = (0u8, false);
    for q in q {
        any |= *q;
        lowest |= (*q & 0xf0 == 0x80) | (*q & 0xf == 8);
    }
    scale::fits(scale, any == 0) && !lowest
}

/// The reason why [`accepts`] refused the block.
#[cold]
fn reason(scales: &[[u8; 2]], values: &[u8], block: usize) -> CodecError {
    let bits = scales.get(block).map_or(0, |s| u16::from_le_bytes(*s));
    let q = values.chunks(INT4_BLOCK / 2).nth(block).unwrap_or_default();
    if bits != 0 && !scale::is_lawful(bits) {
        return CodecError::BadScale { block, bits };
    }
    if let Some(at) = q.iter().position(|q| q & 0xf == 8) {
        return CodecError::BadQuant { index: block * INT4_BLOCK + at };
    }
    match q.iter().position(|q| q >> 4 == 8) {
        Some(at) => CodecError::BadQuant { index: block * INT4_BLOCK + q.len() + at },
        None => CodecError::ZeroBlock { block, bits },
    }
}
