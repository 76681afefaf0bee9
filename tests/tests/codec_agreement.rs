//! Two implementations of one wire format on the CPU: protocol's scalar specification and kernels' codecs. They write
//! the same bytes, refuse the same vectors, accept the same payloads, and decode them to the same bits.

mod vectors;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use starling_kernels::codec::{self as fast, CodecKind, TopkScratch};
use starling_protocol::codec as scalar;
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::run::Codec;
use vectors::{EXPONENTS, FIXED, bits, encode_scalar, lengths, said, ties, vectors};

fn encode_fast(kind: CodecKind, src: &[f32]) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0xa5; fast::encoded_len(kind, src.len())];
    said(fast::encode(kind, src, &mut bytes)).map(|()| bytes)
}

/// Checks that both CPU implementations encode alike, and decode their payload alike.
fn check_vector(src: &[f32]) {
    for (codec, kind) in FIXED {
        let bytes = encode_scalar(codec, src);
        assert_eq!(encode_fast(kind, src), bytes, "{kind:?}");
        if let Ok(bytes) = bytes {
            check_payload(codec, kind, &bytes, src.len());
        }
    }
}

/// Checks that both CPU implementations accept or refuse a payload alike and decode it to the same bits; returns
/// whether they accepted it.
fn check_payload(codec: Codec, kind: CodecKind, bytes: &[u8], elements: usize) -> bool {
    let before: Vec<f32> = (0..elements).map(|i| i as f32 * 0.37 - 40.0).collect();
    let (mut a, mut b) = (before.clone(), before.clone());
    let verdict = said(scalar::decode(codec, bytes, &mut a));
    assert_eq!(said(fast::decode(kind, bytes, &mut b)), verdict, "{kind:?}");
    assert_eq!(said(fast::check(kind, bytes, elements)), verdict, "{kind:?}");
    assert_eq!(bits(&a), bits(&b), "{kind:?} decoded");
    if verdict.is_err() {
        assert_eq!(bits(&b), bits(&before), "{kind:?}: a refused payload leaves no trace");
    } else {
        assert!(b.iter().all(|v| v.is_finite()), "{kind:?}: what is accepted is finite");
    }
    let (mut a, mut b) = (before.clone(), before);
    assert_eq!(said(scalar::decode_add(codec, bytes, &mut a)), verdict, "{kind:?}");
    assert_eq!(said(fast::decode_add(kind, bytes, &mut b)), verdict, "{kind:?}");
    assert_eq!(bits(&a), bits(&b), "{kind:?} decoded and added");
    verdict.is_ok()
}

#[test]
fn cpu_codecs_write_the_specification() {
    let mut runner = TestRunner::new(ProptestConfig::with_cases(400));
    let run = runner.run(&vectors(), |src| {
        check_vector(&src);
        Ok(())
    });
    run.unwrap();
}

#[test]
fn cpu_codecs_round_every_tie_alike() {
    for exponent in EXPONENTS {
        for (codec, levels, block) in [(Codec::Int8, 127, 256), (Codec::Int4, 7, 64)] {
            let src = ties(levels, block, exponent);
            assert!(encode_scalar(codec, &src).is_ok(), "{codec:?} 2^{exponent}");
            check_vector(&src);
        }
    }
}

#[test]
fn cpu_codecs_refuse_the_same_vectors() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, (127.0 * 2f32.powi(120)).next_up()] {
        for (n, places) in [(1, vec![0]), (257, vec![256]), (1000, vec![300, 299, 700])] {
            let mut src = vec![0.5; n];
            for place in places {
                src[place] = bad;
            }
            assert!(encode_scalar(Codec::Int8, &src).is_err());
            check_vector(&src);
        }
    }
}

#[test]
fn hostile_bytes_get_the_same_answer() {
    let mut taken = [0, 0];
    let mut runner = TestRunner::new(ProptestConfig::with_cases(600));
    let edits = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0usize..4), 0..6);
    let cases = (lengths(), any::<u64>(), edits, -2isize..3);
    for round in 0..600 {
        let (elements, seed, edits, longer) = {
            use proptest::strategy::ValueTree;
            cases.new_tree(&mut runner).unwrap().current()
        };
        let src: Vec<f32> = (0..elements as u64).map(|i| ((i ^ seed) % 1009) as f32 - 500.0).collect();
        for (codec, kind) in FIXED {
            let mut bytes = encode_scalar(codec, &src).unwrap();
            for (place, byte, what) in &edits {
                if bytes.is_empty() {
                    continue;
                }
                // Half of the edits are in the scales, which random places would seldom hit.
                let within = if what % 2 == 0 { bytes.len() } else { (2 * elements.div_ceil(256)).max(1) };
                let at = place.index(within.min(bytes.len()));
                bytes[at] = [*byte, 0x80, 0, 0xff][*what];
            }
            if round % 10 == 0 {
                bytes.resize(bytes.len().saturating_add_signed(longer), 0);
            }
            taken[usize::from(check_payload(codec, kind, &bytes, elements))] += 1;
        }
    }
    assert!(taken[0] > 100 && taken[1] > 100, "both answers are seen: {taken:?}");
}

#[test]
fn every_scale_gets_the_same_answer() {
    for bits in 0..=u16::MAX {
        for q in [0u8, 1, 0x80] {
            let [low, high] = bits.to_le_bytes();
            check_payload(Codec::Int8, CodecKind::Int8, &[low, high, q], 1);
        }
        check_payload(Codec::Bf16, CodecKind::Bf16, &bits.to_le_bytes(), 1);
        for q in [0u8, 1, 8, 0x10] {
            let [low, high] = bits.to_le_bytes();
            check_payload(Codec::Int4, CodecKind::Int4, &[low, high, q], 1);
            check_payload(Codec::Int4, CodecKind::Int4, &[low, high, q], 2);
        }
    }
}

/// Checks both implementations of top-k on one vector, and on its payload with a wrong bit or without its end.
fn check_topk(k: usize, src: &[f32], bend: usize) {
    let (mut specified, mut bytes) = (Vec::new(), vec![0xa5; 3]);
    let verdict = said(scalar::topk::encode(k, src, &mut specified));
    assert_eq!(said(fast::topk_encode(k, src, &mut TopkScratch::default(), &mut bytes)), verdict);
    if verdict.is_err() {
        return;
    }
    assert_eq!(bytes, specified, "k {k}");
    assert!(bytes.len() <= fast::topk_encoded_max(k, src.len()));
    check_topk_payload(k, &bytes, src.len());
    if !bytes.is_empty() {
        let at = bend % (8 * bytes.len());
        let mut bent = bytes.clone();
        bent[at / 8] ^= 1 << (at % 8);
        check_topk_payload(k, &bent, src.len());
        check_topk_payload(k, &bytes[..at / 8], src.len());
    }
}

fn check_topk_payload(k: usize, bytes: &[u8], elements: usize) {
    let before: Vec<f32> = (0..elements).map(|i| i as f32 * 0.37 - 40.0).collect();
    let (mut a, mut b) = (before.clone(), before.clone());
    let verdict = said(scalar::topk::decode(k, bytes, &mut a));
    assert_eq!(said(fast::topk_decode(k, bytes, &mut b)), verdict);
    assert_eq!(said(fast::topk_check(k, bytes, elements)), verdict);
    assert_eq!(bits(&a), bits(&b));
    let (mut a, mut b) = (before.clone(), before.clone());
    assert_eq!(said(scalar::topk::decode_add(k, bytes, &mut a)), verdict);
    assert_eq!(said(fast::topk_decode_add(k, bytes, &mut b)), verdict);
    assert_eq!(bits(&a), bits(&b));
    assert!(verdict.is_ok() || bits(&a) == bits(&before), "a refused payload leaves no trace");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn topk_agrees(
        src in vectors(),
        sparse in prop::collection::vec(prop_oneof![9 => Just(0.0f32), 1 => -3f32..3.0], 0..9000),
        k in prop::sample::select(vec![16usize, 32, 64, 128, 256]),
        bend in any::<usize>(),
    ) {
        check_topk(k, &src, bend);
        check_topk(k, &sparse, bend);
        // Many magnitudes are equal; an encoder keeps the first of these.
        let levelled: Vec<f32> = sparse.iter().map(|x| x.round()).collect();
        check_topk(k, &levelled, bend);
    }

    #[test]
    fn foreign_topk_gets_the_same_answer(
        bytes in prop::collection::vec(any::<u8>(), 0..60),
        count in 0u16..9, low in 0x3f00u16..0x3f03, high in 0x3f00u16..0x3f03,
        elements in 0usize..300,
    ) {
        let mut payload: Vec<u8> = [count, low, high].iter().flat_map(|x| x.to_le_bytes()).collect();
        payload.extend_from_slice(&bytes);
        for end in 0..=payload.len() {
            check_topk_payload(128, &payload[..end], elements);
        }
    }
}

#[test]
fn lengths_agree() {
    for n in (0..2000).chain([CHUNK_ELEMENTS - 1, CHUNK_ELEMENTS, CHUNK_ELEMENTS + 1, 123_456_789]) {
        for (codec, kind) in FIXED {
            assert_eq!(scalar::encoded_max(codec, n), fast::encoded_len(kind, n));
        }
    }
}
