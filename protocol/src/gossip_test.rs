use super::*;
use crate::update;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// The members that the first of seven meets in the first exchanges.
const GOLDEN: [Option<u8>; 8] = [Some(2), None, Some(5), Some(7), Some(2), Some(6), Some(7), Some(4)];

fn id(n: usize) -> NodeId {
    NodeId([n as u8 + 1; 32])
}

/// The members that each of `n` meets in the first exchanges of a round.
fn meetings(base: u8, exchanges: usize, n: usize) -> Vec<Vec<Option<usize>>> {
    let fresh = || Meetings::new(Digest([9; 32]), Digest([base; 32]), (0..n).rev().map(id));
    let mut of_each: Vec<Meetings> = (0..n).map(|_| fresh()).collect();
    let place = |id: NodeId| id.0[0] as usize - 1;
    let one = |_| of_each.iter_mut().enumerate().map(|(me, meetings)| meetings.next(&id(me)).map(place)).collect();
    (0..exchanges).map(one).collect()
}

proptest! {
    #[test]
    fn all_agree_on_who_meets_whom_and_meet_others_each_time(n in 1usize..40, base: u8) {
        let mut before = vec![None; n];
        for partners in meetings(base, 20, n) {
            for (me, with) in partners.iter().enumerate() {
                if let Some(other) = *with {
                    prop_assert_ne!(other, me);
                    prop_assert_eq!(partners[other], Some(me), "who is met meets");
                    prop_assert!(n < 3 || before[me] != Some(other), "another one each time");
                }
            }
            let alone = partners.iter().filter(|with| with.is_none()).count();
            prop_assert_eq!(alone, n % 2, "an odd one is left over");
            before = partners;
        }
    }

    #[test]
    fn in_time_everybody_meets_everybody(n in 2usize..10, base: u8) {
        let mut met = BTreeSet::new();
        for partners in meetings(base, 40 * n, n) {
            met.extend(partners.iter().enumerate().filter_map(|(me, with)| Some((me, (*with)?))));
        }
        prop_assert_eq!(met.len(), n * (n - 1));
    }

    #[test]
    fn both_of_a_pair_have_equal_means_to_the_bit(
        values in proptest::collection::vec((-1f32..1.0, -1f32..1.0, -1f32..1.0, -1f32..1.0), 1..600),
        momentum in -1f32..1.0,
    ) {
        // Stated values have been through the codec; kept values have not.
        let said = |pick: fn(&(f32, f32, f32, f32)) -> f32| {
            let exact: Vec<f32> = values.iter().map(pick).collect();
            let mut decoded = exact.clone();
            update::decode(Codec::Int8, &update::encode(Codec::Int8, &exact).unwrap(), &mut decoded).unwrap();
            (exact, decoded)
        };
        let ((_, change_a), (_, change_b)) = (said(|v| v.0), said(|v| v.1));
        let ((exact_a, drift_a), (exact_b, drift_b)) = (said(|v| v.2), said(|v| v.3));
        let a = Said { change: &change_a, drift: &drift_a };
        let b = Said { change: &change_b, drift: &drift_b };
        let rule = Rule::from(&GossipSpec::every(1));
        let meet = |start: &[f32], mine, theirs| {
            let (mut drift, mut moved) = (start.to_vec(), vec![momentum; start.len()]);
            assert!(rule.meet(&mut drift, &mut moved, mine, theirs));
            (drift, moved)
        };
        // From equal numbers both come to equal results, whichever counts itself first.
        let mine_first = meet(&exact_a, a, b);
        let theirs_first = meet(&exact_a, Said { drift: a.drift, ..b }, Said { drift: b.drift, ..a });
        prop_assert_eq!(&mine_first, &theirs_first);
        // A member keeps what rounding to the codec's grid loses: the pair's sum does not depend on it.
        let (of_a, of_b) = (mine_first.0, meet(&exact_b, b, a).0);
        for at in 0..values.len() {
            let before = exact_a[at] + exact_b[at];
            let learned = 0.7 * (change_a[at] + change_b[at]) + momentum;
            let after = of_a[at] + of_b[at];
            prop_assert!((after - before - learned).abs() < 1e-5, "{after} from {before} and {learned}");
        }
    }
}

#[test]
fn orders_are_dealt_anew_by_records_and_lineages() {
    let distinct: BTreeSet<Vec<Option<usize>>> = (0..20).map(|base| meetings(base, 1, 8).remove(0)).collect();
    assert!(distinct.len() > 10, "{} of 20 records", distinct.len());
    let of = |lineage| Meetings::new(Digest([lineage; 32]), Digest([1; 32]), (0..8).map(id)).next(&id(0));
    assert!((0..20).map(of).collect::<BTreeSet<_>>().len() > 3);
    let mut meetings = Meetings::new(Digest([1; 32]), Digest([1; 32]), [id(0), id(1), id(0)]);
    assert_eq!(meetings.next(&id(0)), Some(id(1)), "a name that stands twice is one member");
    assert_eq!(meetings.next(&id(2)), None, "no member");
    // Another program can check its own orders against these.
    let mut meetings = Meetings::new(Digest([1; 32]), Digest([2; 32]), (0..7).map(id));
    assert_eq!([(); 8].map(|()| meetings.next(&id(0)).map(|id| id.0[0])), GOLDEN);
}

#[test]
fn exchanges_fall_between_steps_at_equal_shares_of_leases() {
    let pairs = GossipSpec::every(10);
    assert_eq!([1, 10, 11, 40, 41].map(|steps| pairs.exchanges(steps)), [0, 0, 1, 3, 4]);
    // A member that is leased a quarter of the steps does a quarter of them between two exchanges.
    for (steps, due) in [(40, [10, 20, 30]), (10, [2, 5, 7]), (1, [1, 1, 1])] {
        assert_eq!([1, 2, 3].map(|exchange| pairs.due(exchange, 40, steps)), due, "{steps}");
    }
    assert_eq!(GossipSpec::every(1 << 20).due(u32::MAX, 1, u32::MAX), u32::MAX, "nothing wraps");
}

#[test]
fn an_exchange_follows_the_steps_and_closes_the_gap() {
    let rule = Rule::from(&GossipSpec::every(1));
    let (mut drift, mut momentum) = (vec![0.0f32], vec![0.0f32]);
    // Alone: seven tenths at once, and momentum carries on.
    assert!(rule.alone(&mut drift, &mut momentum, &[1.0]));
    assert_eq!((drift[0], momentum[0]), (0.7, 0.7));
    assert!(rule.alone(&mut drift, &mut momentum, &[0.0]));
    assert_eq!((drift[0], momentum[0]), (0.7 + 0.35, 0.35));
    // Apart by 2, learning nothing, at rest: both go to the middle.
    let (mut a, mut b) = ((vec![1.0f32], vec![0.0f32]), (vec![-1.0f32], vec![0.0f32]));
    let still = [0.0f32];
    let (said_a, said_b) = ([1.0f32], [-1.0f32]);
    assert!(rule.meet(
        &mut a.0,
        &mut a.1,
        Said { change: &still, drift: &said_a },
        Said { change: &still, drift: &said_b }
    ));
    assert!(rule.meet(
        &mut b.0,
        &mut b.1,
        Said { change: &still, drift: &said_b },
        Said { change: &still, drift: &said_a }
    ));
    assert_eq!((a.0[0], b.0[0]), (0.0, 0.0));
    let huge = [f32::MAX];
    assert!(!rule.alone(&mut [f32::MAX], &mut [f32::MAX], &huge), "what is out of range is told");
}

/// The largest distance between members after many exchanges, in which each has learned something else.
fn spread(spec: &GossipSpec, n: usize) -> f32 {
    let rule = Rule::from(spec);
    let (mut drift, mut momentum) = (vec![[0.0f32]; n], vec![[0.0f32]; n]);
    for (exchange, partners) in meetings(1, 300, n).into_iter().enumerate() {
        let learned = |n: usize| [((n * 7919 + exchange * 104_729) % 2001) as f32 / 1000.0 - 1.0];
        let before = drift.clone();
        for (me, with) in partners.into_iter().enumerate() {
            let mine = Said { change: &learned(me), drift: &before[me] };
            let finite = match with {
                Some(other) => {
                    let theirs = Said { change: &learned(other), drift: &before[other] };
                    rule.meet(&mut drift[me], &mut momentum[me], mine, theirs)
                }
                None => rule.alone(&mut drift[me], &mut momentum[me], mine.change),
            };
            if !finite {
                return f32::INFINITY;
            }
        }
    }
    let mean = drift.iter().map(|d| d[0]).sum::<f32>() / n as f32;
    drift.iter().map(|d| (d[0] - mean).abs()).fold(0.0, f32::max)
}

#[test]
fn members_stay_together_with_all_settings_that_a_run_may_have() {
    for n in [2, 3, 4, 5, 8, 16] {
        for (alpha, gamma) in
            [(0.5, 1.0), (0.0, 0.1), (0.0, GAMMA_MAX), (ALPHA_MAX, 0.61), (ALPHA_MAX, 1.0), (0.3, GAMMA_MAX)]
        {
            let spread = spread(&GossipSpec { alpha, gamma, ..GossipSpec::every(1) }, n);
            assert!(spread < 60.0, "{n} with alpha {alpha}, gamma {gamma}: {spread}");
        }
        if n > 4 {
            assert!(
                spread(&GossipSpec { gamma: 2.4, ..GossipSpec::every(1) }, n) > 1e6,
                "{n}: the theorem's bound is too wide"
            );
        }
    }
}

#[test]
fn a_codec_that_leaves_values_out_is_not_used_between_pairs() {
    for (of, is) in [
        (Codec::Bf16, Codec::Bf16),
        (Codec::Int8, Codec::Int8),
        (Codec::Int4, Codec::Int8),
        (Codec::TopK { k: 64 }, Codec::Int8),
    ] {
        assert_eq!(codec(of), is);
    }
}
