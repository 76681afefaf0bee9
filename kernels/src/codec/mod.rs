//! Codecs at memory speed: how a vector of f32 is written on the wire.
//!
//! The scalar specification lives in the protocol crate, which this crate does not know; a test proves that the two
//! write the same bytes and accept the same ones. The code here is written so that it vectorises, and is dispatched at
//! run time to the widest instructions of the machine. Payloads carry no headers: their geometry is known beforehand.
//!
//! * [`CodecKind::Bf16`]: one little-endian bf16 an element, rounded to nearest even.
//! * [`CodecKind::Int8`]: blocks of [`INT8_BLOCK`] elements, the last one shorter; first the scales of all blocks as
//!   little-endian bf16, then one signed byte an element.
//! * [`CodecKind::Int4`]: the same with blocks of [`INT4_BLOCK`] and two values a byte.
//! * top-k, with functions of its own, since it needs scratch memory and its payloads have no fixed length: of each
//!   [`TOPK_BLOCK`] elements the k largest, as places, signs and one of two magnitudes.
//!
//! Decoders are strict and all-or-nothing: on an error the destination is as it was.

mod bf16;
mod bits;
mod error;
mod feedback;
mod int4;
mod int8;
mod scale;
mod topk;
mod vector;

pub use bf16::{bf16_decode, bf16_decode_add, bf16_encode};
pub use error::CodecError;
pub use feedback::{offered, settle};
pub use int4::{INT4_BLOCK, int4_decode, int4_decode_add, int4_encode};
pub use int8::{INT8_BLOCK, int8_decode, int8_decode_add, int8_encode};
pub use topk::{TOPK_BLOCK, TopkScratch, topk_check, topk_decode, topk_decode_add, topk_encode, topk_encoded_max};
pub use vector::{add_scaled, scale};

/// A codec whose payloads have a fixed length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodecKind {
    Bf16,
    Int8,
    Int4,
}

/// Bytes of the payload that holds `elements` values.
pub const fn encoded_len(kind: CodecKind, elements: usize) -> usize {
    match kind {
        CodecKind::Bf16 => bf16::encoded_len(elements),
        CodecKind::Int8 => int8::encoded_len(elements),
        CodecKind::Int4 => int4::encoded_len(elements),
    }
}

/// Writes `src` as `kind` into `dst`, which has exactly [`encoded_len`] bytes.
pub fn encode(kind: CodecKind, src: &[f32], dst: &mut [u8]) -> Result<(), CodecError> {
    match kind {
        CodecKind::Bf16 => bf16_encode(src, dst),
        CodecKind::Int8 => int8_encode(src, dst),
        CodecKind::Int4 => int4_encode(src, dst),
    }
}

/// Reads a payload of exactly [`encoded_len`] bytes into `dst`.
pub fn decode(kind: CodecKind, bytes: &[u8], dst: &mut [f32]) -> Result<(), CodecError> {
    match kind {
        CodecKind::Bf16 => bf16_decode(bytes, dst),
        CodecKind::Int8 => int8_decode(bytes, dst),
        CodecKind::Int4 => int4_decode(bytes, dst),
    }
}

/// Checks that an encoder of `elements` values could have written the payload: [`decode`] accepts exactly these.
pub fn check(kind: CodecKind, bytes: &[u8], elements: usize) -> Result<(), CodecError> {
    match kind {
        CodecKind::Bf16 => bf16::check(bytes, elements),
        CodecKind::Int8 => int8::check(bytes, elements).map(drop),
        CodecKind::Int4 => int4::check(bytes, elements).map(drop),
    }
}

/// Adds a payload's values to `dst`: one f32 addition an element, of exactly what [`decode`] yields.
pub fn decode_add(kind: CodecKind, bytes: &[u8], dst: &mut [f32]) -> Result<(), CodecError> {
    match kind {
        CodecKind::Bf16 => bf16_decode_add(bytes, dst),
        CodecKind::Int8 => int8_decode_add(bytes, dst),
        CodecKind::Int4 => int4_decode_add(bytes, dst),
    }
}
