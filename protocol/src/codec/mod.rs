//! Scalar codecs: how a vector of f32 is written on the wire (`protocol.md` §10). These are the specification; the
//! fast versions of other crates write the same bytes and accept the same ones.
//!
//! All arithmetic is IEEE f32, each operation rounded to nearest even by itself, nothing fused:
//!
//! **bf16**: one bf16 an element, little endian, rounded to nearest even. Zeros keep their sign. Refused: infinities,
//! NaN, and what would round to infinity.
//!
//! **int8**: blocks of [`INT8_BLOCK`] elements, the last one may be short. Payload: the scales of all blocks as bf16,
//! little endian, then one signed byte an element. For a block with largest magnitude `a`:
//! 1. `a` above `127 x 2^120` (or not finite): refused.
//! 2. `t = a / 127`; `s` = the smallest bf16 not below `t`.
//! 3. `s < 2^-100`: `s = 0` and every `q = 0`. Such a block is noise below what any later sum can show.
//! 4. otherwise `q = x / s`, rounded to the nearest integer, ties to even. `|q| <= 127` because `s >= a / 127`.
//!
//! A value decodes to `q * s`, exact in f32 (7 + 8 significant bits). A payload is *canonical*, and alone accepted,
//! when its length is right, each scale is 0 or from `2^-100` to `2^120`, a scale is 0 exactly when all its `q` are 0,
//! and no `q` is -128. So scales and values have one byte string, `pack(unpack(bytes)) == bytes`. It is not asked that
//! the *quantiser* gives the same bytes again: a block whose largest `|q|` is 126 is common and would get a smaller
//! scale.

mod bf16;
#[cfg(test)]
mod codec_test;
mod int8;

pub use int8::INT8_BLOCK;

use crate::run::Codec;

/// Why a vector cannot be encoded, or a payload is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    #[error("{elements} elements take {expected} bytes, not {actual}: the two sides disagree about the chunk")]
    Length { elements: usize, expected: usize, actual: usize },
    #[error("element {index} is not finite: training diverged, or the sender lies")]
    NotFinite { index: usize },
    #[error("element {index} is too large for the codec: training diverged")]
    TooLarge { index: usize },
    #[error("block {block} has scale {bits:#06x}, which no encoder writes")]
    BadScale { block: usize, bits: u16 },
    #[error("block {block} has scale {bits:#06x}, but a scale is 0 exactly when all its values are")]
    ZeroBlock { block: usize, bits: u16 },
    #[error("element {index} is -128, which no encoder writes")]
    BadQuant { index: usize },
}

impl CodecError {
    /// A short constant name of the reason: the label of a counter.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Length { .. } => "length",
            Self::NotFinite { .. } => "not_finite",
            Self::TooLarge { .. } => "too_large",
            Self::BadScale { .. } => "bad_scale",
            Self::ZeroBlock { .. } => "zero_block",
            Self::BadQuant { .. } => "bad_quant",
        }
    }
}

/// Bytes of the payload that holds `elements` values.
pub const fn encoded_len(codec: Codec, elements: usize) -> usize {
    match codec {
        Codec::Bf16 => 2 * elements,
        Codec::Int8 => 2 * elements.div_ceil(INT8_BLOCK) + elements,
    }
}

/// Appends the payload of `src` to `out`; after an error `out` is as it was.
pub fn encode(codec: Codec, src: &[f32], out: &mut Vec<u8>) -> Result<(), CodecError> {
    let before = out.len();
    out.reserve(encoded_len(codec, src.len()));
    let result = match codec {
        Codec::Bf16 => bf16::encode(src, out),
        Codec::Int8 => int8::encode(src, out),
    };
    if result.is_err() {
        out.truncate(before);
    }
    result
}

/// Reads a payload into `dst`, which is as it was after an error.
pub fn decode(codec: Codec, bytes: &[u8], dst: &mut [f32]) -> Result<(), CodecError> {
    each(codec, bytes, dst, |d, value| *d = value)
}

/// Adds a payload's values to `dst`, one f32 addition an element; `dst` is as it was after an error.
pub fn decode_add(codec: Codec, bytes: &[u8], dst: &mut [f32]) -> Result<(), CodecError> {
    each(codec, bytes, dst, |d, value| *d += value)
}

/// Whether a payload of `elements` values is canonical, and if not, why.
pub fn check(codec: Codec, bytes: &[u8], elements: usize) -> Result<(), CodecError> {
    let expected = encoded_len(codec, elements);
    if bytes.len() != expected {
        return Err(CodecError::Length { elements, expected, actual: bytes.len() });
    }
    match codec {
        Codec::Bf16 => bf16::check(bytes),
        Codec::Int8 => int8::check(bytes, elements),
    }
}

fn each(codec: Codec, bytes: &[u8], dst: &mut [f32], put: impl Fn(&mut f32, f32)) -> Result<(), CodecError> {
    check(codec, bytes, dst.len())?;
    match codec {
        Codec::Bf16 => bf16::each(bytes, dst, put),
        Codec::Int8 => int8::each(bytes, dst, put),
    }
    Ok(())
}
