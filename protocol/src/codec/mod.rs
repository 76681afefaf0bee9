//! Scalar codecs: the form of a vector of f32 on the wire (`docs/protocol/3-reduction.md` §3.1). These are the
//! specification; the fast versions of other crates write the same bytes and accept the same ones.
//!
//! All arithmetic is IEEE f32, each operation rounded to nearest even by itself, nothing fused:
//!
//! **bf16**: one bf16 an element, little endian, rounded to nearest even. Zeros keep their sign. Refused: infinities,
//! NaN, and values that would round to infinity.
//!
//! **int8**: blocks of [`INT8_BLOCK`] elements, the last one may be short. Payload: the scales of all blocks as bf16,
//! little endian, then one signed byte an element. For a block with largest magnitude `a`:
//! 1. `a` above `127 x 2^120` (or not finite): refused.
//! 2. `t = a / 127`; `s` = the smallest bf16 not below `t`.
//! 3. `s < 2^-100`: `s = 0` and every `q = 0`. Such a block is noise below what any later sum can show.
//! 4. otherwise `q = x / s`, rounded to the nearest integer, ties to even. `|q| <= 127` because `s >= a / 127`.
//!
//! **int4**: like int8 with blocks of [`INT4_BLOCK`] and 7 in place of 127. A block of m values is `h = ceil(m / 2)`
//! bytes: byte i holds value i in its low nibble and value `h + i` in its high one, both two's complement, 0 beyond the
//! end.
//!
//! A value decodes to `q * s`, exact in f32 (7 + 8 significant bits). A payload is *canonical* when its length is
//! right, each scale is 0 or from `2^-100` to `2^120`, a scale is 0 exactly when all its `q` are 0, and no `q` is -128
//! (-8). Only canonical payloads are accepted. So scales and values have one byte string, `pack(unpack(bytes)) ==
//! bytes`. The *quantiser* need not give the same bytes again: a block whose largest `|q|` is 126 is common and would
//! get a smaller scale.
//!
//! **top-k** ([`topk`], whose payloads have no fixed length): blocks of [`topk::TOPK_BLOCK`] elements, the last one may
//! be short, each by itself, one after another. A block of n elements has at most `ceil(k n / 4096)` entries:
//!
//! ```text
//! entries u16 | if there are any: low bf16 | high bf16 | bits, the lowest of a byte first, the last byte filled with 0
//! an entry:  gap / 2^r ones | a zero | gap mod 2^r, r bits, the lowest first | 1 if negative | 1 if of the high level
//! gap:       elements skipped since the entry before, or since the block's start
//! r:         floor(log2(floor(n / entries))) - 1, at least 0       (Rice 1971; Golomb 1966)
//! ```
//! An element with an entry decodes to plus or minus its level; the others decode to 0, and adding leaves them alone. A
//! decoder accepts only places within the block and levels from `2^-100` to `2^120`, with either `low < high` and
//! entries of both, or `low = high` and entries of the low one only. The encoder chooses the entries; this one keeps
//! those of the largest magnitude (of equal ones the first; none below `2^-100`), and finds the levels by two passes of
//! Lloyd's algorithm from the mean, in f64, in order, rounded to f32 and then to bf16.

mod bf16;
#[cfg(test)]
mod codec_test;
mod error;
mod int4;
mod int8;
mod scale;
pub mod topk;

pub use error::CodecError;
pub use int4::INT4_BLOCK;
pub use int8::INT8_BLOCK;

use crate::run::Codec;

/// Bytes of the payload that holds `elements` values; the most bytes, for a codec whose payloads have no fixed length.
pub const fn encoded_max(codec: Codec, elements: usize) -> usize {
    match codec {
        Codec::Bf16 => 2 * elements,
        Codec::Int8 => 2 * elements.div_ceil(INT8_BLOCK) + elements,
        Codec::Int4 => int4::encoded_len(elements),
        Codec::TopK { k } => topk::encoded_max(k as usize, elements),
    }
}

/// Appends the payload of `src` to `out`; after an error `out` is unchanged.
pub fn encode(codec: Codec, src: &[f32], out: &mut Vec<u8>) -> Result<(), CodecError> {
    let before = out.len();
    out.reserve(encoded_max(codec, src.len()));
    let result = match codec {
        Codec::Bf16 => bf16::encode(src, out),
        Codec::Int8 => int8::encode(src, out),
        Codec::Int4 => int4::encode(src, out),
        Codec::TopK { k } => topk::encode(k.into(), src, out),
    };
    if result.is_err() {
        out.truncate(before);
    }
    result
}

/// Reads a payload into `dst`, which is unchanged after an error.
pub fn decode(codec: Codec, bytes: &[u8], dst: &mut [f32]) -> Result<(), CodecError> {
    if let Codec::TopK { k } = codec {
        return topk::decode(k.into(), bytes, dst);
    }
    each(codec, bytes, dst, |d, value| *d = value)
}

/// Adds a payload's values to `dst`, one f32 addition an element; `dst` is unchanged after an error.
pub fn decode_add(codec: Codec, bytes: &[u8], dst: &mut [f32]) -> Result<(), CodecError> {
    each(codec, bytes, dst, |d, value| *d += value)
}

/// Checks that a payload of `elements` values is canonical.
pub fn check(codec: Codec, bytes: &[u8], elements: usize) -> Result<(), CodecError> {
    let expected = encoded_max(codec, elements);
    if codec.is_fixed() && bytes.len() != expected {
        return Err(CodecError::Length { elements, expected, actual: bytes.len() });
    }
    match codec {
        Codec::Bf16 => bf16::check(bytes),
        Codec::Int8 => int8::check(bytes, elements),
        Codec::Int4 => int4::check(bytes, elements),
        Codec::TopK { k } => topk::check(k.into(), bytes, elements),
    }
}

fn each(codec: Codec, bytes: &[u8], dst: &mut [f32], put: impl Fn(&mut f32, f32)) -> Result<(), CodecError> {
    check(codec, bytes, dst.len())?;
    match codec {
        Codec::Bf16 => bf16::each(bytes, dst, put),
        Codec::Int8 => int8::each(bytes, dst, put),
        Codec::Int4 => int4::each(bytes, dst, put),
        Codec::TopK { k } => topk::each(k.into(), bytes, dst, put)?,
    }
    Ok(())
}
