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

const ALL: [Codec; 6] =
    [Codec::Bf16, Codec::Int8, Codec::Int4, Codec::TopK { k: 16 }, Codec::TopK { k: 64 }, Codec::TopK { k: 256 }];

/// The codec that the vectors name so.
fn named(name: &str) -> Codec {
    let fixed = ALL.into_iter().find(|codec| codec.is_fixed() && codec.name() == name);
    fixed.unwrap_or_else(|| Codec::TopK { k: name.strip_prefix("top-").unwrap().parse().unwrap() })
}

#[test]
fn agrees_with_the_vectors() {
    let mut cases = 0;
    for line in VECTORS.lines().filter(|line| !line.starts_with('#')) {
        cases += 1;
        let words: Vec<&str> = line.split(' ').collect();
        let codec = named(words[1]);
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
    assert!(cases > 90);
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
        prop_assert_eq!(payload.len(), encoded_max(Codec::Int8, src.len()));
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
        for codec in ALL {
            let mut payload = Vec::new();
            encode(codec, &src, &mut payload).unwrap();
            let (mut value, mut sum) = (vec![0.0; src.len()], vec![base; src.len()]);
            decode(codec, &payload, &mut value).unwrap();
            decode_add(codec, &payload, &mut sum).unwrap();
            prop_assert!(value.iter().zip(&sum).all(|(v, s)| (base + v).to_bits() == s.to_bits()), "{codec:?}");
        }
    }

    /// Accepted bytes have one form: their scales and values, written again, give the same bytes.
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
        for codec in ALL {
            let _ = decode(codec, &bytes, &mut dst);
        }
    }

    #[test]
    fn int4_is_within_half_a_step(src in prop::collection::vec(value(), 0..300)) {
        let mut payload = Vec::new();
        encode(Codec::Int4, &src, &mut payload).unwrap();
        prop_assert_eq!(payload.len(), encoded_max(Codec::Int4, src.len()));
        let mut back = vec![f32::NAN; src.len()];
        decode(Codec::Int4, &payload, &mut back).unwrap();
        for (block, (x, y)) in src.chunks(INT4_BLOCK).zip(back.chunks(INT4_BLOCK)).enumerate() {
            let scale = f64::from(bf16::widen(u16::from_le_bytes([payload[2 * block], payload[2 * block + 1]])));
            let largest = x.iter().fold(0.0, |m: f64, x| m.max(f64::from(x.abs())));
            prop_assert!(scale >= largest / 7.0 * (1.0 - 1e-7) || largest < 7.0 * 2f64.powi(-100));
            let step = if scale == 0.0 { 2.0 * largest } else { scale };
            for (x, y) in x.iter().zip(y) {
                prop_assert!((f64::from(*x) - f64::from(*y)).abs() <= 0.5000001 * step);
            }
        }
    }

    /// Entries are the largest of their block, keep their signs, and take the nearer level; the rest is 0.
    #[test]
    fn topk_keeps_the_largest(
        src in prop::collection::vec(prop_oneof![4 => -1.0f32..1.0, 1 => value(), 2 => Just(0.0f32)], 1..900),
        k in prop::sample::select(vec![16usize, 32, 64, 128, 256]),
    ) {
        let mut payload = Vec::new();
        topk::encode(k, &src, &mut payload).unwrap();
        prop_assert!(payload.len() <= topk::encoded_max(k, src.len()));
        let mut back = vec![f32::NAN; src.len()];
        topk::decode(k, &payload, &mut back).unwrap();
        let kept: Vec<usize> = (0..src.len()).filter(|i| back[*i] != 0.0).collect();
        let least = kept.iter().map(|i| src[*i].abs()).fold(f32::INFINITY, f32::min);
        let budget = topk::budget(k, src.len());
        let worth = src.iter().filter(|x| x.abs() >= 2f32.powi(-100)).count();
        prop_assert_eq!(kept.len(), budget.min(worth));
        let mut levels: Vec<f32> = kept.iter().map(|i| back[*i].abs()).collect();
        levels.sort_by(f32::total_cmp);
        levels.dedup();
        prop_assert!(levels.len() <= 2);
        for (i, x) in src.iter().enumerate() {
            if back[i] == 0.0 {
                prop_assert!(x.abs() <= least, "{i} was left out and is larger than one that was not");
            } else {
                prop_assert_eq!(x.is_sign_negative(), back[i].is_sign_negative());
                let nearest = levels.iter().map(|l| (x.abs() - l).abs()).fold(f32::INFINITY, f32::min);
                // Levels are rounded to bf16 after the entries were dealt.
                prop_assert!((x.abs() - back[i].abs()).abs() <= nearest + levels[levels.len() - 1] / 100.0);
            }
        }
    }

    /// One wrong bit, or a cut, gives another payload or none, never the same values: accepted bytes are canonical.
    #[test]
    fn topk_has_one_form(
        src in prop::collection::vec(prop_oneof![2 => -1.0f32..1.0, 3 => Just(0.0f32)], 1..600),
        k in prop::sample::select(vec![16usize, 32, 64, 128, 256]),
        bit in any::<prop::sample::Index>(),
    ) {
        let mut payload = Vec::new();
        topk::encode(k, &src, &mut payload).unwrap();
        let (mut one, mut other) = (vec![0.0; src.len()], vec![7.0; src.len()]);
        topk::decode(k, &payload, &mut one).unwrap();
        let bit = bit.index(8 * payload.len());
        let mut bent = payload.clone();
        bent[bit / 8] ^= 1 << (bit % 8);
        match topk::decode(k, &bent, &mut other) {
            Ok(()) => prop_assert_ne!(one, other),
            Err(_) => prop_assert!(other.iter().all(|x| *x == 7.0), "a refused payload leaves no trace"),
        }
        prop_assert!(topk::check(k, &payload[..payload.len() - 1], src.len()).is_err());
    }

    /// Entries that were read and are written again give the same bytes, whatever bytes a peer sends.
    #[test]
    fn accepted_topk_is_canonical(
        bytes in prop::collection::vec(any::<u8>(), 0..40),
        count in 0u16..12, low in 0x3f00u16..0x3f04, high in 0x3f00u16..0x3f04,
        elements in 1usize..400,
    ) {
        let mut payload: Vec<u8> = [count, low, high].iter().flat_map(|x| x.to_le_bytes()).collect();
        payload.truncate(if count == 0 { 2 } else { 6 });
        payload.extend_from_slice(&bytes);
        // Most of these bytes go on too long; they are cut where the block ends, if it does.
        for end in 2..=payload.len() {
            let mut values = vec![0.0; elements];
            if topk::decode(128, &payload[..end], &mut values).is_ok() {
                let mut again = Vec::new();
                topk::write(&values, &mut again);
                prop_assert_eq!(&again, &payload[..end]);
            }
        }
    }

    #[test]
    fn the_bound_of_topk_holds(k in prop::sample::select(vec![16usize, 32, 64, 128, 256]), n in 1usize..=topk::TOPK_BLOCK) {
        for count in 1..=topk::budget(k, n) {
            // The longest block: the unary parts are largest when the last entry stands at the end.
            let r = topk::rice(n, count);
            let bits = count * (r as usize + 3) + ((n - count) >> r);
            prop_assert!(6 + bits.div_ceil(8) <= topk::encoded_max(k, n));
        }
    }
}
