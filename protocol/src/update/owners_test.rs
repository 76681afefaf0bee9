use super::*;
use crate::limits::CHUNK_ELEMENTS;
use crate::update;
use proptest::prelude::*;

const CODECS: [Codec; 4] = [Codec::Bf16, Codec::Int8, Codec::Int4, Codec::TopK { k: 256 }];

proptest! {
    #[test]
    fn every_chunk_has_exactly_one_owner(kbps in prop::collection::vec(0u32..5_000_000, 1..40), chunks in 0usize..400) {
        let owners = Owners::new(&kbps, chunks);
        let mut next = 0;
        for place in 0..kbps.len() {
            for chunk in owners.chunks(place) {
                prop_assert_eq!((*chunk, owners.owner(*chunk)), (next, Some(place)));
                next += 1;
            }
        }
        prop_assert_eq!(next, chunks);
        prop_assert_eq!((owners.owner(chunks), owners.owner(usize::MAX)), (None, None));
        prop_assert_eq!(owners.members(), kbps.len());
        prop_assert!(owners.chunks(kbps.len()).is_empty());
    }

    #[test]
    fn only_chunks_of_those_who_are_gone_move(members in 2usize..20, gone in any::<u32>(), chunks in 0usize..300) {
        let flock: Vec<(NodeId, u32)> = (0..members).map(|n| (NodeId([n as u8 + 1; 32]), 0)).collect();
        let all: Vec<NodeId> = flock.iter().map(|(id, _)| *id).collect();
        let here: Vec<NodeId> = all.iter().enumerate().filter(|(n, _)| *n == 0 || gone >> n & 1 == 0).map(|(_, id)| *id).collect();
        let (whole, rest) = (Owners::among(&flock, &all, chunks), Owners::among(&flock, &here, chunks));
        prop_assert_eq!(&whole, &Owners::new(&vec![0; members], chunks));
        prop_assert_eq!(rest.members(), here.len());
        for chunk in 0..chunks {
            let before = all[whole.owner(chunk).unwrap()];
            let after = here[rest.owner(chunk).unwrap()];
            prop_assert!(before == after || !here.contains(&before));
            prop_assert!(rest.chunks(rest.owner(chunk).unwrap()).binary_search(&chunk).is_ok());
        }
        let owned: usize = (0..here.len()).map(|place| rest.chunks(place).len()).sum();
        prop_assert_eq!(owned, chunks);
    }

    #[test]
    fn the_slowest_is_done_as_early_as_bisection_finds(kbps in prop::collection::vec(10_000u32..10_000_000, 3..33)) {
        let mut fastest: Vec<f64> = kbps.iter().map(|b| f64::from(*b)).collect();
        fastest.sort_by(|a, b| b.total_cmp(a));
        let more = (fastest.len() - 2) as f64;
        // The closed form by itself: caps and added owners are made from it afterwards.
        let owned = |time: f64| fastest.iter().map(|b| ((time * b - 1.0) / more).max(0.0)).sum::<f64>();
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..200 {
            let middle = (low + high) / 2.0;
            if owned(middle) < 1.0 { low = middle } else { high = middle }
        }
        let shares = deal(&fastest);
        let alone = shares.iter().filter(|share| **share > 0.0 && **share != SHARE_ADDED).count();
        if alone >= OWNERS_MIN {
            for (share, b) in shares.iter().zip(&fastest).take(alone) {
                prop_assert!((share - (high * b - 1.0) / more).abs() < 1e-9);
            }
        }
        prop_assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        let owning = shares.iter().filter(|share| **share > 0.0).count();
        prop_assert!(owning >= 3.min(kbps.len() - 1));
    }

    #[test]
    fn nobody_owns_more_than_half(kbps in prop::collection::vec(1u32..u32::MAX, 3..20)) {
        let shares = shares(&kbps);
        prop_assert!(shares.iter().all(|share| (0.0..=SHARE_MAX + 1e-9).contains(share)), "{shares:?}");
        prop_assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
    }

    /// An owner adds in the members' order, however late a payload comes; here each member is late in turn.
    #[test]
    fn the_sum_is_that_of_the_weighted_values(
        members in 1usize..7,
        elements in 1usize..CHUNK_ELEMENTS + 300,
        tokens in prop::collection::vec(1u64..1_000_000, 7),
    ) {
        let total: u64 = tokens[..members].iter().sum();
        let weights: Vec<f32> = tokens[..members].iter().map(|t| update::weight(*t, total)).collect();
        let vectors: Vec<Vec<f32>> = (0..members).map(|m| vector(m, elements)).collect();
        let views: Vec<&[f32]> = vectors.iter().map(Vec::as_slice).collect();
        for codec in CODECS {
            let reduced = reduce(codec, &weights, &views).unwrap();
            let mut expect = vec![0.0f32; elements];
            for (weight, vector) in weights.iter().zip(&vectors) {
                let mut decoded = vec![0.0; elements];
                update::decode(codec, &update::encode(codec, vector).unwrap(), &mut decoded).unwrap();
                expect.iter_mut().zip(&decoded).for_each(|(e, d)| *e += weight * d);
            }
            prop_assert!(reduced == update::encode(codec, &expect).unwrap(), "{}", codec);
        }
    }
}

fn vector(member: usize, elements: usize) -> Vec<f32> {
    (0..elements).map(|e| ((e * (2 * member + 3) % 1999) as f32 - 999.0) * 1e-5 / (1 + e % 7) as f32).collect()
}

#[test]
fn unmeasured_members_own_alike() {
    for members in 1..9 {
        for chunks in [0, 1, members, 3 * members + 2] {
            let owners = Owners::new(&vec![0; members], chunks);
            let lengths: Vec<usize> = (0..members).map(|place| owners.chunks(place).len()).collect();
            assert!(lengths.iter().all(|l| *l == chunks / members || *l == chunks.div_ceil(members)), "{lengths:?}");
            assert_eq!(lengths.iter().sum::<usize>(), chunks);
        }
    }
    assert_eq!(Owners::new(&[], 0).owner(0), None);
    // Unknown bandwidths count as the median of the known, the smaller of two middle ones.
    assert_eq!(Owners::new(&[1000, 0, 10], 30), Owners::new(&[1000, 10, 10], 30));
    assert_eq!(Owners::new(&[1000, 0, 10, 400, 0], 30), Owners::new(&[1000, 400, 10, 400, 400], 30));
}

#[test]
fn two_own_in_proportion_and_slow_ones_nothing() {
    assert_eq!(Owners::new(&[300, 100], 40).chunks(0), (0..30).collect::<Vec<_>>());
    // xi = S (3 + 2) / 3000 for three members of 1000 each: the fourth, at 100, is slower by its own contribution
    // alone.
    let owners = Owners::new(&[1000, 1000, 100, 1000], 30);
    assert_eq!([0, 1, 2, 3].map(|place| owners.chunks(place).len()), [10, 10, 0, 10]);
    // The fastest member would own all; it may own half, and two more are owners.
    let owners = Owners::new(&[1_000_000, 10, 10, 10], 16);
    assert_eq!([0, 1, 2, 3].map(|place| owners.chunks(place).len()), [8, 4, 4, 0]);
}

#[test]
fn the_chunks_of_a_dead_owner_are_spread_over_the_others() {
    let flock: Vec<(NodeId, u32)> = (1..=5).map(|fill| (NodeId([fill; 32]), 0)).collect();
    let here: Vec<NodeId> = [1, 2, 4, 5].map(|fill| NodeId([fill; 32])).to_vec();
    let owners = Owners::among(&flock, &here, 1000);
    let moved = [0, 1, 2, 3].map(|place| owners.chunks(place).iter().filter(|c| (400..600).contains(*c)).count());
    assert_eq!(moved.iter().sum::<usize>(), 200);
    assert!(moved.iter().all(|count| (30..75).contains(count)), "{moved:?}");
    // A golden value for other implementations.
    assert_eq!((400..412).map(|chunk| owners.owner(chunk).unwrap()).collect::<Vec<_>>(), HEIRS);
    // A contributor that is not expected owns only chunks that move; without contributors nobody owns anything.
    let stranger = [NodeId([9; 32])];
    assert_eq!(Owners::among(&flock, &stranger, 7).chunks(0).len(), 7);
    assert_eq!(Owners::among(&flock, &[], 7).owner(0), None);
    assert_eq!(Owners::among(&[], &here, 7).members(), 4);
}

const HEIRS: [usize; 12] = [0, 2, 3, 0, 0, 3, 2, 1, 0, 1, 0, 1];

#[test]
fn members_stand_by_id_and_once() {
    let ids = |fills: &[u8]| -> Vec<NodeId> { fills.iter().map(|fill| NodeId([*fill; 32])).collect() };
    assert_eq!(order(ids(&[3, 1, 2, 1])), ids(&[1, 2, 3]));
}

#[test]
fn a_payload_that_is_not_canonical_names_its_member() {
    let good = update::encode(Codec::Int8, &[1.0, -1.0]).unwrap();
    let bad = [0x80, 0x3f, 0x80, 0x00];
    let (place, error) = sum(Codec::Int8, &[(0.5, &good), (0.5, &bad)], 2).unwrap_err();
    assert_eq!((place, error.reason()), (1, "bad_quant"));
    assert!(matches!(reduce(Codec::Int8, &[0.5, 0.5], &[&[1.0], &[1.0, 2.0]]), Err(CodecError::Length { .. })));
}

/// As text, so that another implementation can be checked against it.
#[test]
fn golden_sum() {
    let (a, b): (Vec<f32>, Vec<f32>) = ((0..6).map(|i| i as f32 * 0.25 - 0.5).collect(), vec![0.125; 6]);
    let hex = |codec| data_encoding::HEXLOWER.encode(&reduce(codec, &[0.25, 0.75], &[&a, &b]).unwrap());
    assert_eq!([Codec::Bf16, Codec::Int4, Codec::TopK { k: 1024 }].map(hex), GOLDEN);
}

const GOLDEN: [&str; 3] = ["00bd003dc03d203e603e903e", "263d4f6172", "080000000200c03d403e7102"];
