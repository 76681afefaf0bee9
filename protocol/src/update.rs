//! The update D of a round: its layout, and the arithmetic that makes it.
//!
//! The model's parameters are cut into chunks of [`CHUNK_ELEMENTS`], the last one short. D is the chunks' codec
//! payloads in order, without headers. With a codec without fixed lengths, a table of the lengths stands before them
//! ([`Layout`]).
//!
//! [`reduce`] is the scalar statement of what a ring of nodes computes, [`owners::reduce`] of what owners compute, and
//! [`lattice::reduce`] of what a flock of several rows computes.
//! Engines that pipeline and vectorise give the same bytes.

mod fragments;
pub mod kept;
pub mod lattice;
mod layout;
pub mod owners;
mod weights;

pub use fragments::{Fragments, mix};
pub use layout::{Layout, assemble, chunk_elements, chunk_range, chunks, chunks_range, encoded_max, row_sum_bytes};
pub use weights::{CLIP, Stated, is_longer_than_stated, longest_row_sum, longest_sum, weights};

use crate::Digest;
use crate::codec::{self, CodecError};
use crate::digest::{ByteHasher, FloatHasher, Pieces};
use crate::limits::CHUNK_ELEMENTS;
use crate::ring::{Half, Ring};
use crate::run::Codec;

const CONTRIBUTION_DOMAIN: &str = "starling pseudo-gradient v1";

const _: () = assert!(CHUNK_ELEMENTS.is_multiple_of(codec::INT8_BLOCK), "a block never spans two chunks");

const DOMAIN: &str = "starling update v1";

/// Name of an update, as in a record's `update` field.
pub fn digest(update: &[u8]) -> Digest {
    Digest::of(DOMAIN, &[update])
}

/// The pieces of [`digest()`] of an update of so many bytes.
pub fn pieces(bytes: usize) -> Pieces {
    Pieces::of_bytes(DOMAIN, bytes)
}

/// [`digest()`] of an update of so many bytes that arrives piece by piece.
pub fn byte_hasher(bytes: u64) -> ByteHasher {
    ByteHasher::new(DOMAIN, bytes)
}

/// Name of a contribution, as in a READY's `payload` field: the digest of the unweighted pseudo-gradient as
/// little-endian f32.
pub fn contribution_digest(delta: &[f32]) -> Digest {
    Digest::of_floats(CONTRIBUTION_DOMAIN, delta)
}

/// [`contribution_digest`] of a pseudo-gradient of `elements` that arrives piece by piece.
pub fn contribution_hasher(elements: usize) -> FloatHasher {
    FloatHasher::new(CONTRIBUTION_DOMAIN, elements)
}

/// [`contribution_digest`] of a pseudo-gradient of `elements` whose pieces are hashed side by side.
pub fn contribution_pieces(elements: usize) -> Pieces {
    Pieces::of_floats(CONTRIBUTION_DOMAIN, elements)
}

/// Encodes a whole vector chunk by chunk: D of a group of one.
pub fn encode(codec: Codec, src: &[f32]) -> Result<Vec<u8>, CodecError> {
    let payload = |chunk: &[f32]| {
        let mut payload = Vec::new();
        codec::encode(codec, chunk, &mut payload).map(|()| payload)
    };
    let payloads: Result<Vec<_>, _> = src.chunks(CHUNK_ELEMENTS).map(payload).collect();
    Ok(assemble(codec, payloads?.iter().map(Vec::as_slice)))
}

/// Decodes D into `dst`, which fixes the expected length. After an error `dst` is partly written.
pub fn decode(codec: Codec, update: &[u8], dst: &mut [f32]) -> Result<(), CodecError> {
    let layout = Layout::of(codec, dst.len(), update)?;
    for (chunk, dst) in dst.chunks_mut(CHUNK_ELEMENTS).enumerate() {
        codec::decode(codec, &update[layout.range(chunk)], dst)?;
    }
    Ok(())
}

/// A share of tokens, divided in f64 and rounded to f32 once: a contribution's weight, unless it is clipped
/// ([`weights`]).
pub fn weight(tokens: u64, total: u64) -> f32 {
    if total == 0 { 0.0 } else { (tokens as f64 / total as f64) as f32 }
}

/// Scales a pseudo-gradient by its weight, in f32.
pub fn apply_weight(weight: f32, delta: &mut [f32]) {
    for x in delta {
        *x *= weight;
    }
}

/// The update of a ring whose positions contribute `contributions`. These are weighted already and of equal length.
///
/// The partial sum of segment `g` starts as the encoded contribution of position `g + 1`; each position after it
/// decodes, adds its own in f32 and encodes again; position `g` comes last, and its encoding is final.
pub fn reduce(codec: Codec, contributions: &[&[f32]]) -> Result<Vec<u8>, CodecError> {
    let elements = contributions.first().map_or(0, |c| c.len());
    if let Some(other) = contributions.iter().find(|c| c.len() != elements) {
        return Err(CodecError::Length { elements, expected: 4 * elements, actual: 4 * other.len() });
    }
    let ring = Ring::new(contributions.len(), chunks(elements));
    let mut payloads = Vec::with_capacity(chunks(elements));
    for segment in 0..ring.positions() {
        for chunk in ring.segment(segment) {
            let range = chunk_elements(elements, chunk);
            let mut payload = Vec::new();
            let mut position = ring.next(segment);
            codec::encode(codec, &contributions[position][range.clone()], &mut payload)?;
            for _ in ring.hops(segment).filter(|hop| hop.half == Half::ReduceScatter) {
                position = ring.next(position);
                let mut sum = contributions[position][range.clone()].to_vec();
                codec::decode_add(codec, &payload, &mut sum)?;
                payload.clear();
                codec::encode(codec, &sum, &mut payload)?;
            }
            payloads.push(payload);
        }
    }
    Ok(assemble(codec, payloads.iter().map(Vec::as_slice)))
}

#[cfg(test)]
#[path = "update/noise_test.rs"]
mod noise_test;

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp(elements: usize, step: f32) -> Vec<f32> {
        (0..elements).map(|i| (i % 1000) as f32 * step - 300.0 * step).collect()
    }

    #[test]
    fn a_ring_of_one_encodes_its_own() {
        let delta = ramp(CHUNK_ELEMENTS + 300, 1e-5);
        for codec in [Codec::Bf16, Codec::Int8] {
            let update = encode(codec, &delta).unwrap();
            assert_eq!(update.len(), encoded_max(codec, delta.len()));
            assert_eq!(reduce(codec, &[&delta]).unwrap(), update);
            let mut back = vec![0.0; delta.len()];
            decode(codec, &update, &mut back).unwrap();
            assert!(delta.iter().zip(&back).all(|(a, b)| (a - b).abs() <= 700e-5 / 200.0));
            assert!(decode(codec, &update[1..], &mut back).is_err());
        }
    }

    #[test]
    fn a_ring_of_five_is_near_the_weighted_mean() {
        let tokens = [100u64, 200, 300, 0, 400];
        let elements = 7 * CHUNK_ELEMENTS + 13;
        let mut parts: Vec<Vec<f32>> = (0..5).map(|i| ramp(elements, 1e-4 * (i + 1) as f32)).collect();
        let mean: Vec<f64> = (0..elements)
            .map(|e| parts.iter().zip(tokens).map(|(p, t)| f64::from(p[e]) * t as f64 / 1000.0).sum())
            .collect();
        for (part, tokens) in parts.iter_mut().zip(tokens) {
            apply_weight(weight(tokens, 1000), part);
        }
        let views: Vec<&[f32]> = parts.iter().map(Vec::as_slice).collect();
        for codec in [Codec::Bf16, Codec::Int8] {
            let mut back = vec![0.0; elements];
            decode(codec, &reduce(codec, &views).unwrap(), &mut back).unwrap();
            let error = back.iter().zip(&mean).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
            assert!(error < 0.3 * 0.05, "{codec}: {error}");
        }
    }

    #[test]
    fn unequal_contributions_are_refused() {
        assert!(matches!(reduce(Codec::Int8, &[&[1.0], &[1.0, 2.0]]), Err(CodecError::Length { .. })));
    }

    #[test]
    fn a_contribution_is_named_by_its_little_endian_bytes() {
        let delta = ramp(70_000, 0.5);
        let bytes: Vec<u8> = delta.iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(contribution_digest(&delta), Digest::of("starling pseudo-gradient v1", &[&bytes]));
    }
}
