//! bf16: the upper half of an f32, rounded to nearest even.

use super::error::{CodecError, check_length};
use super::scale::{magnitude, nearest};

/// The largest magnitude that does not round to infinity.
pub(super) const LARGEST: u32 = 0x7f7f_7fff;
/// Magnitude of the smallest bf16 that is not finite.
const INFINITE: u16 = 0x7f80;

/// Bytes of a payload of `elements` values.
pub(super) const fn encoded_len(elements: usize) -> usize {
    2 * elements
}

/// Writes `src` as bf16, little-endian, into `dst` of 2 bytes an element.
///
/// Refuses a value that is not finite, or would not be after rounding; `dst` then holds no payload.
pub fn bf16_encode(src: &[f32], dst: &mut [u8]) -> Result<(), CodecError> {
    check_length(src.len(), encoded_len(src.len()), dst.len())?;
    let largest = pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            let mut largest = 0;
            for (out, x) in dst.as_chunks_mut::<2>().0.iter_mut().zip(src) {
                largest = largest.max(magnitude(*x));
                *out = nearest(*x).to_le_bytes();
            }
            largest
        },
    );
    if largest <= LARGEST { Ok(()) } else { Err(refusal(src)) }
}

/// Reads bf16 values into `dst`; refuses infinities and NaN.
pub fn bf16_decode(bytes: &[u8], dst: &mut [f32]) -> Result<(), CodecError> {
    check(bytes, dst.len())?;
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            for (d, b) in dst.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *d = widen(*b);
            }
        },
    );
    Ok(())
}

/// Adds bf16 values to `dst`; refuses infinities and NaN.
pub fn bf16_decode_add(bytes: &[u8], dst: &mut [f32]) -> Result<(), CodecError> {
    check(bytes, dst.len())?;
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            for (d, b) in dst.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *d += widen(*b);
            }
        },
    );
    Ok(())
}

#[inline(always)]
fn widen(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}

pub(super) fn check(bytes: &[u8], elements: usize) -> Result<(), CodecError> {
    check_length(elements, encoded_len(elements), bytes.len())?;
    let values = bytes.as_chunks::<2>().0;
    let largest = pulp::Arch::new().dispatch(
        #[inline(always)]
        || values.iter().fold(0, |m, b| m.max(u16::from_le_bytes(*b) & 0x7fff)),
    );
    if largest < INFINITE {
        return Ok(());
    }
    let index = values.iter().position(|b| u16::from_le_bytes(*b) & 0x7fff >= INFINITE).unwrap_or(0);
    Err(CodecError::NotFinite { index })
}

/// Names the first element that cannot be written.
#[cold]
pub(super) fn refusal(src: &[f32]) -> CodecError {
    let index = src.iter().position(|x| magnitude(*x) > LARGEST).unwrap_or(0);
    if src.get(index).is_some_and(|x| x.is_finite()) {
        CodecError::TooLarge { index }
    } else {
        CodecError::NotFinite { index }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_to_nearest_even() {
        // (f32 bits, bf16 bits): exact values, ties to even in both directions, a carry into the exponent, subnormals,
        // and signed zeros.
        for (bits, expected) in [
            (0x3f80_0000, 0x3f80),
            (0x3f80_8000, 0x3f80),
            (0x3f81_8000, 0x3f82),
            (0x3f80_8001, 0x3f81),
            (0x3fff_ffff, 0x4000),
            (0x0000_0001, 0x0000),
            (0x0000_8001, 0x0001),
            (0x8000_0000, 0x8000),
            (0x7f7f_7fff, 0x7f7f),
        ] {
            let mut out = [0; 2];
            bf16_encode(&[f32::from_bits(bits)], &mut out).unwrap();
            assert_eq!(u16::from_le_bytes(out), expected, "{bits:#x}");
        }
    }

    #[test]
    fn refuses_what_is_not_finite() {
        let mut out = vec![0; 200];
        for (bad, error) in [
            (f32::NAN, CodecError::NotFinite { index: 77 }),
            (f32::NEG_INFINITY, CodecError::NotFinite { index: 77 }),
            (-f32::MAX, CodecError::TooLarge { index: 77 }),
        ] {
            let mut src = vec![1.0; 100];
            src[77] = bad;
            assert_eq!(bf16_encode(&src, &mut out), Err(error));
        }
        let mut dst = vec![3.0f32; 100];
        let mut bytes = vec![0; 200];
        bytes[154..156].copy_from_slice(&0xff80u16.to_le_bytes());
        assert_eq!(bf16_decode_add(&bytes, &mut dst), Err(CodecError::NotFinite { index: 77 }));
        assert_eq!(bf16_decode(&bytes, &mut dst), Err(CodecError::NotFinite { index: 77 }));
        assert!(dst.iter().all(|d| *d == 3.0), "a refused payload leaves no trace");
        assert!(matches!(bf16_decode(&bytes[1..], &mut dst), Err(CodecError::Length { expected: 200, .. })));
    }

    #[test]
    fn decodes_and_adds() {
        let src: Vec<f32> = (0..300).map(|i| i as f32 / 4.0).collect();
        let mut bytes = vec![0; 600];
        bf16_encode(&src, &mut bytes).unwrap();
        let (mut once, mut twice) = (vec![0.0; 300], vec![0.0; 300]);
        bf16_decode(&bytes, &mut once).unwrap();
        bf16_decode(&bytes, &mut twice).unwrap();
        bf16_decode_add(&bytes, &mut twice).unwrap();
        assert!(once.iter().zip(&src).all(|(a, b)| (a - b).abs() <= b / 256.0));
        assert!(once.iter().zip(&twice).all(|(a, b)| *b == a + a));
    }
}
