//! Vectors that all codecs must treat alike, and their treatment by the specification.

// Each test binary compiles this module for itself and uses a part of it.
#![allow(dead_code)]

use proptest::prelude::*;
use starling_kernels::codec::CodecKind;
use starling_protocol::codec as scalar;
use starling_protocol::run::Codec;

pub const FIXED: [(Codec, CodecKind); 3] =
    [(Codec::Bf16, CodecKind::Bf16), (Codec::Int8, CodecKind::Int8), (Codec::Int4, CodecKind::Int4)];

/// The result of an encoder or decoder, comparable across the crates: their errors have the same shape.
pub fn said<T, E: std::fmt::Debug>(result: Result<T, E>) -> Result<T, String> {
    result.map_err(|error| format!("{error:?}"))
}

pub fn encode_scalar(codec: Codec, src: &[f32]) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    said(scalar::encode(codec, src, &mut bytes)).map(|()| bytes)
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Lengths around the edges of blocks and of vector registers.
pub fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![
        Just(0usize),
        Just(1),
        Just(255),
        Just(256),
        Just(257),
        2usize..40,
        Just(511),
        Just(512),
        Just(513),
        500usize..3000,
    ]
}

/// One value: an ordinary one, a finite one of any bits, a subnormal, a zero of either sign, or a huge one.
fn values() -> impl Strategy<Value = f32> {
    prop_oneof![
        8 => -1e-3f32..1e-3,
        4 => -1e3f32..1e3,
        4 => any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |x| x.is_finite()),
        2 => (0u32..0x0080_0000, any::<bool>()).prop_map(|(m, s)| f32::from_bits(m | u32::from(s) << 31)),
        2 => prop_oneof![Just(0.0f32), Just(-0.0)],
        1 => prop_oneof![Just(f32::MAX), Just(f32::MIN), 1.6e38f32..1.8e38],
    ]
}

/// Vectors whose blocks have one magnitude each, or any mixture; a few hold values that no codec can write.
pub fn vectors() -> impl Strategy<Value = Vec<f32>> {
    let mixed = lengths().prop_flat_map(|n| prop::collection::vec(values(), n));
    let levelled = (lengths(), prop::collection::vec(-126i32..121, 12)).prop_flat_map(|(n, exponents)| {
        prop::collection::vec(-1f32..1.0, n).prop_map(move |mut v| {
            for (i, x) in v.iter_mut().enumerate() {
                *x *= 2f32.powi(exponents[i / 256 % exponents.len()]);
            }
            v
        })
    });
    let levelled = levelled.boxed();
    let spoiled = (levelled.clone(), any::<prop::sample::Index>(), 0usize..3).prop_map(|(mut v, at, which)| {
        if !v.is_empty() {
            let at = at.index(v.len());
            v[at] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][which];
        }
        v
    });
    prop_oneof![3 => mixed, 6 => levelled, 1 => spoiled]
}

/// For every significand of a scale: values at, just below and just above every tie between two integers, and largest
/// magnitudes at, just below and just above those that need that scale. `exponent` places the scales, integers go up to
/// `levels`, blocks have `block` elements.
pub fn ties(levels: u16, block: usize, exponent: i32) -> Vec<f32> {
    let mut vector = Vec::new();
    // The largest scale has one significand only: greater ones are refused.
    let significands = if exponent == 120 { 128..129u32 } else { 128..256 };
    for significand in significands {
        let scale = significand as f32 / 128.0 * 2f32.powi(exponent);
        let largest = scale * f32::from(levels);
        let mut near = Vec::new();
        for k in 0..levels {
            let tie = (f32::from(k) + 0.5) * scale;
            near.extend([tie, tie.next_down(), tie.next_up(), -tie, -tie.next_down(), -tie.next_up()]);
        }
        for chunk in near.chunks(block - 1) {
            vector.push(largest);
            vector.extend_from_slice(chunk);
            vector.resize(vector.len().next_multiple_of(block), 0.0);
        }
        for edge in [largest, largest.next_down(), -largest.next_up()] {
            // The edge of the largest scale is too large for an encoder.
            if edge.abs() <= f32::from(levels) * 2f32.powi(120) {
                vector.push(edge);
                vector.resize(vector.len().next_multiple_of(block), scale);
            }
        }
    }
    vector
}

/// Exponents from the smallest scale to the largest, and some between. Scales below 2^-100 are zeros.
pub const EXPONENTS: [i32; 8] = [-101, -100, -60, -14, 0, 20, 119, 120];
