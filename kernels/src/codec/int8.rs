//! int8 in blocks of 256 with a bf16 scale each.
//!
//! The scale is the largest magnitude divided by 127, rounded up to bf16; a value is the nearest integer to
//! `x / scale`, ties to even. Integer times bf16 is exact in f32, so that every decoder gets the same bits however it
//! computes.

use super::error::{CodecError, check_length};
use super::scale::{self, ROUNDER, magnitude, widen};

/// Elements that share a scale.
pub const INT8_BLOCK: usize = 256;

/// Values reach from -127 to 127.
pub(super) const LEVELS: f32 = 127.0;

/// Bytes of a payload of `elements` values.
pub(super) const fn encoded_len(elements: usize) -> usize {
    2 * elements.div_ceil(INT8_BLOCK) + elements
}

/// Writes `src` into `dst` of [`encoded_len`] bytes: scales, then values.
///
/// Refuses a value that is not finite or is too large; `dst` then holds no payload.
pub fn int8_encode(src: &[f32], dst: &mut [u8]) -> Result<(), CodecError> {
    check_length(src.len(), encoded_len(src.len()), dst.len())?;
    let (scales, values) = dst.split_at_mut(2 * src.len().div_ceil(INT8_BLOCK));
    let refused = pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            let mut refused = None;
            let blocks = src.chunks(INT8_BLOCK).zip(values.chunks_mut(INT8_BLOCK));
            for (block, ((x, q), s)) in blocks.zip(scales.as_chunks_mut::<2>().0).enumerate() {
                match encode_block(x, q) {
                    Some(scale) => *s = scale.to_le_bytes(),
                    None => refused = refused.or(Some(block)),
                }
            }
            refused
        },
    );
    refused.map_or(Ok(()), |block| Err(refusal(src, block)))
}

/// Reads a payload into `dst`.
pub fn int8_decode(bytes: &[u8], dst: &mut [f32]) -> Result<(), CodecError> {
    let (scales, values) = check(bytes, dst.len())?;
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            let blocks = dst.chunks_mut(INT8_BLOCK).zip(values.chunks(INT8_BLOCK));
            for ((d, q), s) in blocks.zip(scales) {
                let s = widen(u16::from_le_bytes(*s));
                for (d, q) in d.iter_mut().zip(q) {
                    *d = f32::from(*q as i8) * s;
                }
            }
        },
    );
    Ok(())
}

/// Adds a payload's values to `dst`.
pub fn int8_decode_add(bytes: &[u8], dst: &mut [f32]) -> Result<(), CodecError> {
    let (scales, values) = check(bytes, dst.len())?;
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            let blocks = dst.chunks_mut(INT8_BLOCK).zip(values.chunks(INT8_BLOCK));
            for ((d, q), s) in blocks.zip(scales) {
                let s = widen(u16::from_le_bytes(*s));
                for (d, q) in d.iter_mut().zip(q) {
                    *d += f32::from(*q as i8) * s;
                }
            }
        },
    );
    Ok(())
}

/// Writes one block's values and returns its scale; `None` if it cannot be written.
#[inline(always)]
fn encode_block(x: &[f32], q: &mut [u8]) -> Option<u16> {
    let largest = x.iter().fold(0, |m, x| m.max(magnitude(*x)));
    let scale = scale::of(largest, LEVELS)?;
    if scale == 0 {
        q.fill(0);
    } else {
        let s = widen(scale);
        for (q, x) in q.iter_mut().zip(x) {
            *q = (*x / s + ROUNDER).to_bits() as u8;
        }
    }
    Some(scale)
}

/// Splits a payload into scales and values after checking all of it.
pub(super) fn check(bytes: &[u8], elements: usize) -> Result<(&[[u8; 2]], &[u8]), CodecError> {
    check_length(elements, encoded_len(elements), bytes.len())?;
    let (scales, values) = bytes.split_at(2 * elements.div_ceil(INT8_BLOCK));
    let scales = scales.as_chunks::<2>().0;
    let refused = pulp::Arch::new().dispatch(
        #[inline(always)]
        || scales.iter().zip(values.chunks(INT8_BLOCK)).position(|(s, q)| !accepts(u16::from_le_bytes(*s), q)),
    );
    match refused {
        None => Ok((scales, values)),
        Some(block) => Err(reason(scales, values, block)),
    }
}

/// Whether an encoder could have written this block.
#[inline(always)]
fn accepts(scale: u16, q: &[u8]) -> bool {
    let (mut any, mut lowest) = (0, 0);
    for q in q {
        any |= *q;
        lowest = lowest.min(*q as i8);
    }
    scale::fits(scale, any == 0) && lowest != i8::MIN
}

/// The reason why [`accepts`] refused the block.
#[cold]
fn reason(scales: &[[u8; 2]], values: &[u8], block: usize) -> CodecError {
    let bits = scales.get(block).map_or(0, |s| u16::from_le_bytes(*s));
    let q = values.chunks(INT8_BLOCK).nth(block).unwrap_or_default();
    if bits != 0 && !scale::is_lawful(bits) {
        return CodecError::BadScale { block, bits };
    }
    match q.iter().position(|q| *q as i8 == i8::MIN) {
        Some(at) => CodecError::BadQuant { index: block * INT8_BLOCK + at },
        None => CodecError::ZeroBlock { block, bits },
    }
}

/// Names the element that keeps `block` from being written.
#[cold]
fn refusal(src: &[f32], block: usize) -> CodecError {
    scale::refusal(src.chunks(INT8_BLOCK).nth(block).unwrap_or_default(), block * INT8_BLOCK)
}

#[cfg(test)]
mod tests {
    use super::super::scale::{SCALE_MAX, SCALE_MIN};
    use super::*;
    use proptest::prelude::*;

    fn encoded(src: &[f32]) -> Result<Vec<u8>, CodecError> {
        let mut bytes = vec![0xaa; encoded_len(src.len())];
        int8_encode(src, &mut bytes).map(|()| bytes)
    }

    fn decoded(bytes: &[u8], elements: usize) -> Result<Vec<f32>, CodecError> {
        let mut values = vec![f32::NAN; elements];
        int8_decode(bytes, &mut values).map(|()| values)
    }

    #[test]
    fn known_bytes() {
        // Scale 1: 127 / 127; ties go to the even neighbour.
        let bytes = encoded(&[127.0, -127.0, 0.5, 1.5, -2.5, -0.0, 1e-30]).unwrap();
        assert_eq!(bytes, [0x80, 0x3f, 127, 129, 0, 2, 254, 0, 0]);
        assert_eq!(decoded(&bytes, 7).unwrap(), [127.0, -127.0, 0.0, 2.0, -2.0, 0.0, 0.0]);
    }

    #[test]
    fn the_scale_is_rounded_up() {
        // 1 / 127 = 0x3c010204 is not a bf16, so the scale is the next bf16 above, and 1.0 is 126.03 -> 126 scales.
        assert_eq!(encoded(&[1.0]).unwrap(), [0x02, 0x3c, 126]);
        for largest in [1.0f32, 3.7, 1e-20, 5e30] {
            let bytes = encoded(&[largest]).unwrap();
            let s = widen(u16::from_le_bytes([bytes[0], bytes[1]]));
            assert!(s * 127.0 >= largest && widen(u16::from_le_bytes([bytes[0], bytes[1]]) - 1) * 127.0 < largest);
        }
    }

    #[test]
    fn the_smallest_and_the_largest_scale() {
        let smallest = widen(SCALE_MIN);
        assert_eq!(smallest, 2f32.powi(-100));
        assert_eq!(encoded(&[smallest * 127.0]).unwrap()[2], 127);
        assert_eq!(encoded(&[f32::MIN_POSITIVE / 8.0, -1e-32]).unwrap(), [0; 4], "too small: zeros");
        let largest = 127.0 * 2f32.powi(120);
        assert_eq!(decoded(&encoded(&[-largest]).unwrap(), 1).unwrap(), [-largest]);
        assert_eq!(encoded(&[0.0, largest.next_up()]), Err(CodecError::TooLarge { index: 1 }));
    }

    #[test]
    fn refuses_what_is_not_finite() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut src = vec![1.0; 1000];
            src[700] = bad;
            assert_eq!(encoded(&src), Err(CodecError::NotFinite { index: 700 }));
        }
    }

    #[test]
    fn refuses_what_no_encoder_writes() {
        let src: Vec<f32> = (0..300).map(|i| i as f32 - 150.0).collect();
        let good = encoded(&src).unwrap();
        let with = |at: usize, bytes: &[u8]| {
            let mut bad = good.clone();
            bad[at..at + bytes.len()].copy_from_slice(bytes);
            let mut dst = vec![5.0; 300];
            let decoded = int8_decode(&bad, &mut dst);
            assert_eq!(int8_decode_add(&bad, &mut dst), decoded);
            assert!(decoded.is_ok() || dst.iter().all(|d| *d == 5.0), "a refused payload leaves no trace");
            decoded
        };
        assert_eq!(with(4 + 299, &[0x80]), Err(CodecError::BadQuant { index: 299 }));
        assert_eq!(with(2, &[0, 0]), Err(CodecError::ZeroBlock { block: 1, bits: 0 }));
        assert_eq!(with(4 + 256, &[0; 44]), Err(CodecError::ZeroBlock { block: 1, bits: 0x3f97 }));
        for bits in [0x8000u16, 0xbf80, 0x7f80, 0x7fc0, 0x0001, SCALE_MIN - 1, SCALE_MAX + 1] {
            assert_eq!(with(2, &bits.to_le_bytes()), Err(CodecError::BadScale { block: 1, bits }));
        }
        assert_eq!(with(2, &SCALE_MAX.to_le_bytes()), Ok(()));
        assert!(matches!(decoded(&good, 299), Err(CodecError::Length { expected: 303, actual: 304, .. })));
    }

    proptest! {
        #[test]
        fn errors_are_below_half_a_scale(src in prop::collection::vec(-1e6f32..1e6, 0..600)) {
            let bytes = encoded(&src).unwrap();
            let back = decoded(&bytes, src.len()).unwrap();
            for (block, (x, y)) in src.chunks(INT8_BLOCK).zip(back.chunks(INT8_BLOCK)).enumerate() {
                let s = widen(u16::from_le_bytes([bytes[2 * block], bytes[2 * block + 1]]));
                for (x, y) in x.iter().zip(y) {
                    prop_assert!((x - y).abs() <= s / 2.0);
                }
            }
            let mut sum = src.clone();
            int8_decode_add(&bytes, &mut sum).unwrap();
            for ((x, y), sum) in src.iter().zip(&back).zip(&sum) {
                prop_assert_eq!((x + y).to_bits(), sum.to_bits());
            }
        }

        #[test]
        fn any_bytes_are_refused_or_read_without_a_trace_of_infinity(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            for elements in [bytes.len().saturating_sub(2), bytes.len().saturating_sub(4)] {
                if let Ok(values) = decoded(&bytes, elements) {
                    prop_assert!(values.iter().all(|v| v.is_finite()));
                }
            }
        }
    }
}
