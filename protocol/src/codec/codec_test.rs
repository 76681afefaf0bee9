//! The codecs against vectors computed elsewhere, and by property.

use super::*;
use data_encoding::HEXLOWER;
use proptest::prelude::*;

const VECTORS: &str = include_str!("../../vectors/codec.txt");

fn bytes(hex: &str) -> Vec<u8> {
    if hex == "-" { Vec::new() } else { HEXLOWER.decode(hex.as_bytes()).unwrap() }
}

fn floats(hex: &str) -> Vec<f32> {
    bytes(hex).as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

#[test]
fn agrees_with_the_vectors() {
    let mut cases = 0;
    for line in VECTORS.lines().filter(|line| !line.starts_with('#')) {
        cases += 1;
        let words: Vec<&str> = line.split(' ').collect();
        let codec: Codec = words[1].parse().unwrap();
        match words[0] {
            "encode" => {
                let (src, payload) = (floats(words[2]), bytes(words[3]));
                let mut out = vec![7];
                encode(codec, &src, &mut out).unwrap();
                assert_eq!(HEXLOWER.encode(&out[1..]), HEXLOWER.encode(&payload));
                check(codec, &payload, src.len()).unwrap();
            }
            "refuse-encode" => {
                let mut out = vec![7];
                let error = encode(codec, &floats(words[2]), &mut out).unwrap_err();
                assert_eq!((error.reason(), out), (words[3], vec![7]), "{line}");
            }
            "refuse-decode" => {
                let mut dst = vec![5.0; words[2].parse().unwrap()];
                let error = decode_add(codec, &bytes(words[3]), &mut dst).unwrap_err();
                assert_eq!(error.reason(), words[4], "{line}");
                assert_eq!(decode(codec, &bytes(words[3]), &mut dst), Err(error));
                assert!(dst.iter().all(|d| *d == 5.0), "a refused payload leaves no trace");
            }
            other => panic!("unknown case {other}"),
        }
    }
    assert!(cases > 50);
}

/// Floats of every exponent that encodes, and zeros.
fn value() -> impl Strategy<Value = f32> {
    let wide = (-126i32..118, any::<u32>())
        .prop_map(|(exponent, bits)| f32::from_bits((bits & 0x807f_ffff) | (((exponent + 127) as u32) << 23)));
    prop_oneof![3 => -1.0f32..1.0, 2 => wide, 1 => Just(0.0f32)]
}

proptest! {
    #[test]
    fn int8_is_within_half_a_step(src in prop::collection::vec(value(), 0..600)) {
        let mut payload = Vec::new();
        encode(Codec::Int8, &src, &mut payload).unwrap();
        prop_assert_eq!(payload.len(), encoded_len(Codec::Int8, src.len()));
        let mut back = vec![f32::NAN; src.len()];
        decode(Codec::Int8, &payload, &mut back).unwrap();
        for (block, (x, y)) in src.chunks(INT8_BLOCK).zip(back.chunks(INT8_BLOCK)).enumerate() {
            let scale = f64::from(bf16::widen(u16::from_le_bytes([payload[2 * block], payload[2 * block + 1]])));
            let largest = x.iter().fold(0.0, |m: f64, x| m.max(f64::from(x.abs())));
            prop_assert!(scale >= largest / 127.0 * (1.0 - 1e-7) || largest < 127.0 * 2f64.powi(-100));
            let step = if scale == 0.0 { 2.0 * largest } else { scale };
            for (x, y) in x.iter().zip(y) {
                prop_assert!((f64::from(*x) - f64::from(*y)).abs() <= 0.5000001 * step);
            }
        }
    }

    #[test]
    fn bf16_is_idempotent_and_near(src in prop::collection::vec(value(), 0..300)) {
        let (mut payload, mut again) = (Vec::new(), Vec::new());
        encode(Codec::Bf16, &src, &mut payload).unwrap();
        let mut back = vec![f32::NAN; src.len()];
        decode(Codec::Bf16, &payload, &mut back).unwrap();
        encode(Codec::Bf16, &back, &mut again).unwrap();
        prop_assert_eq!(&payload, &again);
        prop_assert!(src.iter().zip(&back).all(|(x, y)| (x - y).abs() <= x.abs() / 256.0));
    }

    #[test]
    fn decode_add_adds_what_decode_yields(src in prop::collection::vec(-1.0f32..1.0, 1..300), base in -2.0f32..2.0) {
        for codec in [Codec::Bf16, Codec::Int8] {
            let mut payload = Vec::new();
            encode(codec, &src, &mut payload).unwrap();
            let (mut value, mut sum) = (vec![0.0; src.len()], vec![base; src.len()]);
            decode(codec, &payload, &mut value).unwrap();
            decode_add(codec, &payload, &mut sum).unwrap();
            prop_assert!(value.iter().zip(&sum).all(|(v, s)| (base + v).to_bits() == s.to_bits()));
        }
    }

    /// Whatever is accepted has one byte string: scales and values written down again are the same bytes.
    #[test]
    fn accepted_bytes_are_canonical(
        scales in prop::collection::vec(prop_oneof![Just(0u16), any::<u16>(), 0x3000u16..0x4000], 2),
        values in prop::collection::vec(prop_oneof![4 => Just(0u8), 1 => any::<u8>()], INT8_BLOCK + 3),
    ) {
        let mut payload: Vec<u8> = scales.iter().flat_map(|s| s.to_le_bytes()).collect();
        payload.extend_from_slice(&values);
        let mut out = vec![0.0; values.len()];
        if decode(Codec::Int8, &payload, &mut out).is_ok() {
            prop_assert!(out.iter().all(|x| x.is_finite()));
            for (block, x) in out.chunks(INT8_BLOCK).enumerate() {
                let s = bf16::widen(scales[block]);
                prop_assert_eq!(s == 0.0, x.iter().all(|x| *x == 0.0));
                for (x, q) in x.iter().zip(&values[block * INT8_BLOCK..]) {
                    prop_assert!(s == 0.0 || (x / s) as i8 as u8 == *q);
                }
            }
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..700), elements in 0usize..700) {
        let mut dst = vec![0.0; elements];
        for codec in [Codec::Bf16, Codec::Int8] {
            let _ = decode(codec, &bytes, &mut dst);
        }
    }
}
