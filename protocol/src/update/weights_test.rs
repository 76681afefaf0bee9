use super::*;
use crate::codec;
use crate::limits::CHUNK_ELEMENTS;
use crate::outer::adamw::squares;
use proptest::prelude::*;

fn stated(tokens: u64, steps: u32, norm: f32) -> Stated {
    Stated { tokens, steps, norm }
}

#[test]
fn a_contribution_far_longer_than_the_others_is_cut_to_three_of_them() {
    let all = [stated(100, 10, 1.0), stated(100, 10, 1.25), stated(100, 10, 0.75), stated(100, 10, 1.25e6)];
    // The upper median of four is the third.
    assert_eq!(weights(&all), [0.25, 0.25, 0.25, (0.25 * (3.0 * 1.25 / 1.25e6)) as f32]);
    let pair = [stated(300, 10, 1.0), stated(100, 10, 1e9)];
    assert_eq!(weights(&pair), [0.75, 0.25], "of two nobody can tell which is too long");
    let lone = [stated(100, 10, 0.0), stated(100, 10, 7.0), stated(100, 10, 0.0)];
    assert_eq!(weights(&lone), [1.0 / 3.0; 3], "zeros say nothing of what is long");
    assert_eq!(weights(&[]), [0.0f32; 0]);
    assert_eq!(weights(&[stated(0, 1, 1.0)]), [0.0]);
}

#[test]
fn a_member_that_did_all_steps_is_not_cut_because_others_were_late() {
    let late = stated(10, 1, 1.0);
    let all = [stated(100, 10, 10.0), late, late, late];
    assert_eq!(weights(&all)[0], (100.0f64 / 130.0) as f32);
    // The late members are no reason to be longer than that.
    let all = [stated(100, 10, 60.0), late, late, late];
    assert_eq!(weights(&all)[0], (100.0f64 / 130.0 * 0.5) as f32);
    // A late member is measured by the others' lengths as they are, although those made more steps.
    let all = [stated(100, 10, 1.0), stated(100, 10, 1.0), stated(10, 1, 6.0)];
    assert_eq!(weights(&all)[2], (10.0f64 / 210.0 * 0.5) as f32);
}

/// Bits that every program has to compute.
#[test]
fn golden_weights() {
    let all = [
        stated(40_960, 10, 1.5),
        stated(36_864, 9, 1.3125),
        stated(4_096, 1, 0.3),
        stated(40_960, 10, 7.7e5),
        stated(20_480, 5, 4.9),
    ];
    let bits: Vec<u32> = weights(&all).iter().map(|weight| weight.to_bits()).collect();
    assert_eq!(bits, [0x3e92_4925, 0x3e83_a83b, 0x3cea_0ea1, 0x3660_1c7a, 0x3e06_5812]);
}

fn any_stated() -> impl Strategy<Value = Stated> {
    let norm = prop_oneof![Just(0.0f32), 1e-3f32..10.0, 1e3f32..1e9];
    (1u64..1 << 40, 1u32..100, norm).prop_map(|(tokens, steps, norm)| stated(tokens, steps, norm))
}

proptest! {
    /// Clipping gives nobody more, takes nothing from others, and gives the same bits in any order of the contributors.
    #[test]
    fn weights_are_shares_or_less(all in prop::collection::vec(any_stated(), 1..12), turn in 0usize..12) {
        let found = weights(&all);
        let total: u64 = all.iter().map(|s| s.tokens).sum();
        for (weight, s) in found.iter().zip(&all) {
            let share = crate::update::weight(s.tokens, total);
            prop_assert!((0.0..=share).contains(weight));
            prop_assert!(s.norm > 0.0 || *weight == share);
        }
        let (mut all, mut turned) = (all, found);
        let turn = turn % all.len();
        all.rotate_left(turn);
        turned.rotate_left(turn);
        prop_assert_eq!(weights(&all), turned);
    }

    /// One liar among three or more equal members moves the mean by three of their shares at most, whatever it states.
    #[test]
    fn one_liar_moves_the_mean_by_three_shares(honest in 2usize..9, norm in 1e-6f32..1e30, steps in 1u32..50) {
        let mut all = vec![stated(100, 10, 1.0); honest];
        all.push(stated(100, steps, norm));
        let reference = f64::from(steps).max(10.0) / 10.0;
        let moved = f64::from(weights(&all)[honest]) * f64::from(norm);
        prop_assert!(moved <= (CLIP + 1e-6) * reference / (honest + 1) as f64);
        prop_assert!(weights(&all)[..honest].iter().all(|weight| *weight == crate::update::weight(1, honest as u64 + 1)));
    }

    /// A part from an honest member is never refused for its length, with any codec.
    #[test]
    fn an_encoded_vector_is_never_much_longer_than_the_original(
        seed in any::<u64>(),
        tail in 1u32..6,
        size in -90i32..90,
        elements in 1usize..2 * CHUNK_ELEMENTS / 8,
    ) {
        // Values of very different sizes, so that blocks have large and small ones.
        let mut state = seed | 1;
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as f64 / f64::from(1u32 << 30) - 1.0
        };
        let value = |x: f64| (x.powi(2 * tail as i32 - 1) * f64::from(size).exp2()) as f32;
        let vector: Vec<f32> = (0..elements).map(|_| value(draw())).collect();
        assert_fits(&vector);
    }
}

fn assert_fits(vector: &[f32]) {
    let norm = |values: &[f32]| values.chunks(CHUNK_ELEMENTS).map(squares).sum::<f64>();
    let stated = norm(vector).sqrt() as f32;
    for codec in [Codec::Bf16, Codec::Int8, Codec::Int4, Codec::TopK { k: 41 }] {
        let (mut payload, mut decoded) = (Vec::new(), vec![0.0; vector.len()]);
        codec::encode(codec, vector, &mut payload).unwrap();
        codec::decode(codec, &payload, &mut decoded).unwrap();
        let squares = norm(&decoded);
        assert!(!is_longer_than_stated(codec, squares, stated), "{codec}: {} of {stated}", squares.sqrt());
    }
}

/// The sum of parts that are each as long as stated is never longer than that, once it is encoded.
#[test]
fn sums_of_what_was_stated_are_not_refused() {
    let parts: Vec<Vec<f32>> =
        (1..4u32).map(|n| (0..3000u32).map(|i| (i * n % 257) as f32 * 0.01 + 1.0).collect()).collect();
    let norm = |values: &[f32]| values.chunks(CHUNK_ELEMENTS).map(squares).sum::<f64>().sqrt();
    let all: Vec<Stated> = parts.iter().zip(1..).map(|(part, n)| stated(100 * n, 10, norm(part) as f32)).collect();
    let weights = weights(&all);
    for codec in [Codec::Bf16, Codec::Int8] {
        let views: Vec<&[f32]> = parts.iter().map(Vec::as_slice).collect();
        let update = crate::update::owners::reduce(codec, &weights, &views).unwrap();
        let mut sum = vec![0.0; 3000];
        crate::update::decode(codec, &update, &mut sum).unwrap();
        let most = longest_sum(codec, &all, &weights).unwrap();
        assert!(!is_longer_than_stated(codec, norm(&sum).powi(2), most));
        assert!(is_longer_than_stated(codec, (2.0 * norm(&sum)).powi(2), most));
    }
    assert_eq!(longest_sum(Codec::Int4, &all, &weights), None);
}

/// Blocks in which every value rounds away from zero as far as it can.
#[test]
fn the_worst_blocks_are_not_refused_and_lies_are() {
    for (levels, size) in [(127.0f32, 256), (7.0, 64)] {
        for k in 0..levels as u32 {
            let mut block = vec![k as f32 + 0.501; size];
            block[0] = levels;
            assert_fits(&block.repeat(8));
        }
    }
    assert_fits(&[1e-40; 300]);
    assert_fits(&[0.0; 300]);
    for codec in [Codec::Bf16, Codec::Int8, Codec::Int4, Codec::TopK { k: 41 }] {
        assert!(is_longer_than_stated(codec, 4.5, 1.0));
        assert!(is_longer_than_stated(codec, 1e-20, 0.0));
        assert!(!is_longer_than_stated(codec, 1.0, 1.0));
    }
}
