//! Compares device kernels with the specification: the same bytes, the same refusals, and the same decoded bits.
//!
//! The suite runs on each available device: the first graphics adapter, also a software one, and the first CUDA device
//! if the build has CUDA (`--features cuda`). A missing device prints SKIPPED and why. With `STARLING_REQUIRE_DEVICE`
//! set the suite fails without any device.

mod vectors;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use starling_kernels::DeviceChoice;
use starling_kernels::codec::device::{DeviceCodec, DeviceCodecError};
use starling_kernels::codec::{self as fast, CodecKind};
use starling_protocol::codec as scalar;
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::run::Codec;
use starling_protocol::update;
use vectors::{EXPONENTS, FIXED, bits, encode_scalar, said, ties, vectors};

/// Elements that the codec sends to a device at once; longer vectors take several batches.
const BATCH: usize = 1 << 22;

/// The available devices; prints a line on stderr for each missing one.
fn devices() -> Vec<DeviceCodec> {
    let mut found = Vec::new();
    for choice in [DeviceChoice::Wgpu(0), DeviceChoice::Cuda(0)] {
        match DeviceCodec::open(&choice) {
            Ok(device) => {
                eprintln!("the kernels run on {}", device.device());
                found.push(device);
            }
            Err(error) => eprintln!("SKIPPED: {choice}: {error}"),
        }
    }
    let required = std::env::var_os("STARLING_REQUIRE_DEVICE").is_some();
    assert!(!required || !found.is_empty(), "a device is required, and there is none");
    found
}

/// The codec's verdict on its input; a device that failed fails the test.
fn verdict<T>(result: Result<T, DeviceCodecError>) -> Result<T, String> {
    match result {
        Ok(done) => Ok(done),
        Err(DeviceCodecError::Codec(error)) => Err(format!("{error:?}")),
        Err(error) => panic!("the device failed: {error}"),
    }
}

fn encode(device: &DeviceCodec, kind: CodecKind, src: &[f32]) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0xa5; fast::encoded_len(kind, src.len())];
    verdict(device.encode(kind, src, &mut bytes)).map(|()| bytes)
}

/// A sequence of 32-bit words that look random (Steele, Lea, Flood: SplitMix, 2014).
fn words(seed: u64) -> impl Iterator<Item = u32> {
    (1u64..).map(move |i| {
        let mut z = seed.wrapping_add(i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 32) as u32
    })
}

/// Floats of any bits but NaN: a sum to which payloads are added may have become infinite.
fn any_floats(seed: u64, count: usize) -> Vec<f32> {
    words(seed).map(f32::from_bits).filter(|x| !x.is_nan()).take(count).collect()
}

/// Checks that the device accepts or refuses a payload as the specification does, and decodes it to the same bits.
fn check_payload(device: &DeviceCodec, codec: Codec, kind: CodecKind, bytes: &[u8], before: &[f32]) {
    let (mut a, mut b) = (before.to_vec(), before.to_vec());
    let specified = said(scalar::decode(codec, bytes, &mut a));
    assert_eq!(verdict(device.decode(kind, bytes, &mut b)), specified, "{kind:?}");
    assert!(bits(&a) == bits(&b), "{kind:?} decoded");
    let (mut a, mut b) = (before.to_vec(), before.to_vec());
    assert_eq!(said(scalar::decode_add(codec, bytes, &mut a)), specified, "{kind:?}");
    assert_eq!(verdict(device.decode_add(kind, bytes, &mut b)), specified, "{kind:?}");
    for (i, (a, b)) in a.iter().zip(&b).enumerate() {
        assert_eq!(a.to_bits(), b.to_bits(), "{kind:?}: {} + element {i}: {a} and {b}", before[i]);
    }
    assert!(specified.is_ok() || bits(&b) == bits(before), "{kind:?}: a refused payload leaves no trace");
}

#[test]
fn vectors_become_the_same_bytes_and_bits() {
    for device in devices() {
        let mut runner = TestRunner::new(ProptestConfig::with_cases(60));
        let run = runner.run(&(vectors(), any::<u64>()), |(src, seed)| {
            for (codec, kind) in FIXED {
                let bytes = encode_scalar(codec, &src);
                prop_assert_eq!(&encode(&device, kind, &src), &bytes, "{:?}", kind);
                if let Ok(bytes) = bytes {
                    check_payload(&device, codec, kind, &bytes, &any_floats(seed, src.len()));
                    check_payload(&device, codec, kind, &bytes, &src.iter().map(|x| -x).collect::<Vec<_>>());
                }
            }
            Ok(())
        });
        run.unwrap();
    }
}

#[test]
fn every_short_length_is_coded() {
    for device in devices() {
        let all: Vec<f32> = words(7).map(|w| (w as f32 / 2f32.powi(31) - 1.0) * 1e-3).take(530).collect();
        let lengths = (0..70).chain(120..135).chain(250..262).chain([383, 385, 447, 449, 511, 512, 513, 530]);
        for n in lengths {
            for (codec, kind) in FIXED {
                let bytes = encode_scalar(codec, &all[..n]).unwrap();
                assert_eq!(encode(&device, kind, &all[..n]).unwrap(), bytes, "{kind:?} {n}");
                check_payload(&device, codec, kind, &bytes, &all[530 - n..]);
            }
        }
    }
}

#[test]
fn every_tie_is_rounded_alike() {
    for device in devices() {
        for exponent in EXPONENTS {
            for (codec, kind, levels, block) in
                [(Codec::Int8, CodecKind::Int8, 127, 256), (Codec::Int4, CodecKind::Int4, 7, 64)]
            {
                let src = ties(levels, block, exponent);
                assert!(encode(&device, kind, &src) == encode_scalar(codec, &src), "{kind:?} 2^{exponent}");
            }
        }
    }
}

#[test]
fn every_bf16_is_rounded_and_read_alike() {
    for device in devices() {
        let finite: Vec<f32> = (0..=u16::MAX).map(|b| f32::from_bits(u32::from(b) << 16)).collect();
        let finite: Vec<f32> = finite.into_iter().filter(|x| x.is_finite()).collect();
        // Values at and next to each bf16, and at the middle between two.
        for low in [0u32, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
            let src: Vec<f32> = finite.iter().map(|x| f32::from_bits(x.to_bits() | low)).collect();
            let src: Vec<f32> = src.into_iter().filter(|x| x.abs().to_bits() <= 0x7f7f_7fff).collect();
            let bytes = encode_scalar(Codec::Bf16, &src).unwrap();
            assert!(encode(&device, CodecKind::Bf16, &src).unwrap() == bytes, "{low:#x}");
            check_payload(&device, Codec::Bf16, CodecKind::Bf16, &bytes, &any_floats(low.into(), src.len()));
        }
    }
}

/// All scales, each with all integers: in two batches, the second of which ends within a block.
#[test]
fn every_product_is_exact() {
    for device in devices() {
        let scales = (27u16 << 7)..=(247 << 7);
        let heads: Vec<u8> = scales.clone().flat_map(u16::to_le_bytes).collect();
        let mut int8 = heads.clone();
        scales.clone().for_each(|_| int8.extend((0..=255u8).map(|q| if q == 0x80 { 1 } else { q })));
        int8.truncate(int8.len() - 3);
        let elements = 256 * scales.clone().count() - 3;
        check_payload(&device, Codec::Int8, CodecKind::Int8, &int8, &any_floats(1, elements));
        let mut int4 = heads;
        let nibble = |i: u8| if i & 0xf == 8 { 1 } else { i & 0xf };
        scales.clone().for_each(|_| int4.extend((0..32u8).map(|i| nibble(i) | nibble(i / 2 + 3) << 4)));
        int4.truncate(int4.len() - 3);
        check_payload(&device, Codec::Int4, CodecKind::Int4, &int4, &any_floats(2, 64 * scales.count() - 6));
    }
}

/// Sums of every distance of exponents, and sums that cancel, overflow, are subnormal, or are ties.
#[test]
fn sums_are_rounded_alike() {
    for device in devices() {
        for seed in 0..4 {
            let mut random = words(seed);
            let mut word = || random.next().unwrap();
            let (mut before, mut added) = (Vec::new(), Vec::new());
            while added.len() < 1 << 19 {
                // A bf16 below infinity, seldom one of the ends.
                let value = match word() % 16 {
                    0 => (word() & 0x80ff) << 16,
                    1 => ((word() & 0x8000) | (0x7f7f - word() % 8)) << 16,
                    _ => ((word() & 0x8000) | (word() % 0x7f80)) << 16,
                };
                let exponent = (value >> 23 & 0xff) as i32 + (word() % 60) as i32 - 30;
                let near = (exponent.clamp(0, 254) as u32) << 23 | word() & 0x807f_ffff;
                let sum = match word() % 8 {
                    0 => value ^ 0x8000_0000,
                    1 => (value ^ 0x8000_0000).wrapping_add(word() % 9).wrapping_sub(4),
                    2 => near & 0xffff_0000 | (word() & 1) << (word() % 16),
                    3 => word(),
                    _ => near,
                };
                if !f32::from_bits(sum).is_nan() {
                    before.push(f32::from_bits(sum));
                    added.push(f32::from_bits(value));
                }
            }
            let bytes = encode_scalar(Codec::Bf16, &added).unwrap();
            check_payload(&device, Codec::Bf16, CodecKind::Bf16, &bytes, &before);
        }
    }
}

#[test]
fn a_value_that_is_not_a_number_stays_so() {
    for device in devices() {
        for (_, kind) in FIXED {
            let mut sum = vec![1.0f32; 300];
            (sum[299], sum[0], sum[7]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
            let bytes = encode(&device, kind, &[1.0; 300]).unwrap();
            device.decode_add(kind, &bytes, &mut sum).unwrap();
            assert!(sum[299].is_nan() && sum[0] == f32::INFINITY && sum[7] == f32::NEG_INFINITY && sum[1] > 1.9);
        }
    }
}

#[test]
fn the_same_vectors_are_refused() {
    for device in devices() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -f32::MAX, (127.0 * 2f32.powi(120)).next_up()]
        {
            for (n, places) in
                [(1, vec![0]), (257, vec![256]), (1000, vec![300, 299, 700]), (BATCH + 9, vec![BATCH + 3])]
            {
                let mut src = vec![0.5; n];
                places.iter().for_each(|place| src[*place] = bad);
                for (codec, kind) in FIXED {
                    assert!(encode(&device, kind, &src) == encode_scalar(codec, &src), "{kind:?} {bad} {places:?}");
                }
            }
        }
    }
}

#[test]
fn the_same_payloads_are_refused() {
    for device in devices() {
        for seed in 0..200 {
            let mut random = words(seed);
            let mut word = || random.next().unwrap() as usize;
            let elements = 1 + word() % 700;
            let src: Vec<f32> = words(seed).map(|w| (w % 1009) as f32 - 500.0).take(elements).collect();
            for (codec, kind) in FIXED {
                let mut bytes = encode_scalar(codec, &src).unwrap();
                for _ in 0..word() % 4 {
                    let at = word() % bytes.len();
                    bytes[at] = [word() as u8, 0x80, 0, 0xff][word() % 4];
                }
                if word().is_multiple_of(10) {
                    bytes.truncate(bytes.len() - 1);
                }
                check_payload(&device, codec, kind, &bytes, &src);
            }
        }
    }
}

#[test]
fn an_update_is_written_in_chunks() {
    for device in devices() {
        // More than one batch, a short last chunk, and a short last block.
        let count = BATCH + 3 * CHUNK_ELEMENTS + 1077;
        let src: Vec<f32> = (0..count).map(|i| ((i * 7919) % 10_007) as f32 * 1e-6 - 0.005).collect();
        for ((codec, kind), levels) in FIXED.into_iter().zip([256.0, 127.0, 7.0]) {
            let mut bytes = vec![0; fast::encoded_len(kind, src.len())];
            device.encode_chunks(kind, &src, CHUNK_ELEMENTS, &mut bytes).unwrap();
            assert!(bytes == update::encode(codec, &src).unwrap(), "{kind:?}");
            let mut back = vec![0.0; src.len()];
            update::decode(codec, &bytes, &mut back).unwrap();
            assert!(src.iter().zip(&back).all(|(a, b)| (a - b).abs() <= 0.005 / levels), "{kind:?}");
            // The device reads the same vector as one payload, in batches.
            let bytes = encode(&device, kind, &src).unwrap();
            assert!(bytes == encode_scalar(codec, &src).unwrap(), "{kind:?}");
            check_payload(&device, codec, kind, &bytes, &src);
            let mut longer = vec![0; bytes.len() + 1];
            assert!(matches!(device.encode(kind, &src, &mut longer), Err(DeviceCodecError::Codec(_))));
        }
        let refused = device.encode_chunks(CodecKind::Int8, &src, 100, &mut []);
        assert!(matches!(refused, Err(DeviceCodecError::Chunk { chunk: 100, block: 256 })));
    }
}

/// Checks that the device encodes or refuses a vector as the specification does, and then decodes it alike.
fn check_topk(device: &DeviceCodec, k: usize, src: &[f32]) {
    let (mut specified, mut bytes) = (Vec::new(), vec![0xa5; 3]);
    let said = said(scalar::topk::encode(k, src, &mut specified));
    assert_eq!(verdict(device.topk_encode(k, src, &mut bytes)), said, "top-{k} of {}", src.len());
    if said.is_ok() {
        assert!(bytes == specified, "top-{k} of {} elements: {bytes:x?}, not {specified:x?}", src.len());
        check_topk_payload(device, k, &bytes, src);
        check_topk_payload(device, k, &bytes, &any_floats(k as u64, src.len()));
    }
}

fn check_topk_payload(device: &DeviceCodec, k: usize, bytes: &[u8], before: &[f32]) {
    let (mut a, mut b) = (before.to_vec(), before.to_vec());
    let specified = said(scalar::topk::decode(k, bytes, &mut a));
    assert_eq!(verdict(device.topk_decode(k, bytes, &mut b)), specified);
    assert!(bits(&a) == bits(&b), "top-{k} decoded");
    let (mut a, mut b) = (before.to_vec(), before.to_vec());
    assert_eq!(said(scalar::topk::decode_add(k, bytes, &mut a)), specified);
    assert_eq!(verdict(device.topk_decode_add(k, bytes, &mut b)), specified);
    assert!(bits(&a) == bits(&b), "top-{k} decoded and added");
    assert!(specified.is_ok() || bits(&b) == bits(before), "a refused payload leaves no trace");
}

/// Checks vectors of any values, sparse vectors, and vectors with many equal magnitudes, of which the first are kept.
#[test]
fn the_same_largest_are_kept() {
    for device in devices() {
        let mut runner = TestRunner::new(ProptestConfig::with_cases(60));
        let sparse = prop::collection::vec(prop_oneof![9 => Just(0.0f32), 1 => -3f32..3.0], 0..9000);
        let run =
            runner.run(&(vectors(), sparse, prop::sample::select(vec![1usize, 16, 64, 256])), |(any, sparse, k)| {
                check_topk(&device, k, &any);
                check_topk(&device, k, &sparse);
                check_topk(&device, k, &sparse.iter().map(|x| x.round()).collect::<Vec<_>>());
                Ok(())
            });
        run.unwrap();
    }
}

/// Magnitudes so far apart that their sums in f64 are rounded, in each direction: levels are the same to the last bit.
#[test]
fn levels_are_the_same_means() {
    for device in devices() {
        for (seed, spread) in (0..12).zip([0u32, 1, 3, 8, 20, 28, 30, 34, 45, 60, 100, 220]) {
            let mut random = words(seed);
            let mut word = || random.next().unwrap();
            let lowest = 127 + 40 - spread.min(140);
            let src: Vec<f32> = (0..12 * 4096 + 1777)
                .map(|i| {
                    let exponent = (lowest + word() % (spread + 1)).min(246);
                    // Some blocks have values with few bits, so that sums meet ties.
                    let fraction = word() & if (i / 4096) % 3 == 0 { 0x0070_0003 } else { 0x007f_ffff };
                    f32::from_bits((word() & 0x8000_0000) | exponent << 23 | fraction)
                })
                .collect();
            for k in [1, 16, 256, 4096] {
                check_topk(&device, k, &src);
            }
        }
    }
}

#[test]
fn every_short_block_is_coded() {
    for device in devices() {
        for n in (0..40).chain([255, 256, 257, 1000, 4095, 4096, 4097, 8191, 8192, 8193]) {
            let src: Vec<f32> = words(n as u64).map(|w| f32::from_bits(w & 0xbfff_ffff)).take(n).collect();
            for k in [0, 16, 100, 4096, 5000] {
                check_topk(&device, k, &src);
            }
            check_topk(&device, 64, &vec![-0.0; n]);
            check_topk(&device, 64, &vec![f32::from_bits(0x007f_ffff); n]);
            // The smallest level and just below it; the largest, and above it.
            check_topk(&device, 64, &vec![2f32.powi(-100); n]);
            check_topk(&device, 64, &vec![2f32.powi(-100).next_down(); n]);
            check_topk(&device, 64, &vec![-(2f32.powi(120)); n]);
            check_topk(&device, 64, &vec![2f32.powi(120).next_up(); n]);
        }
    }
}

#[test]
fn topk_takes_several_batches() {
    for device in devices() {
        let mut src: Vec<f32> = words(5).map(|w| (w as f32 / 2f32.powi(31) - 1.0) * 1e-3).take(BATCH + 5000).collect();
        check_topk(&device, 64, &src);
        src[BATCH + 4100] = f32::NAN;
        check_topk(&device, 64, &src);
    }
}

#[test]
fn the_same_topk_payloads_are_refused() {
    for device in devices() {
        for seed in 0..300 {
            let mut random = words(seed);
            let mut word = || random.next().unwrap() as usize;
            let k = [16, 64, 256][word() % 3];
            let src: Vec<f32> = words(seed).map(|w| w as f32 - 2e9).take(1 + word() % 9000).collect();
            let mut bytes = Vec::new();
            scalar::topk::encode(k, &src, &mut bytes).unwrap();
            let at = word() % (8 * bytes.len());
            check_topk_payload(&device, k, &bytes[..at / 8], &src);
            bytes[at / 8] ^= 1 << (at % 8);
            check_topk_payload(&device, k, &bytes, &src);
        }
    }
}
