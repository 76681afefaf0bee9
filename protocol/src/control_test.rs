use super::*;
use crate::wire::sample;
use proptest::prelude::*;

/// The fixed cost of a round, in microseconds: the bytes of two passes of int8 over an uplink, and four round trips.
fn cost(parameters: u64, uplink_mbit: u64, rtt_ms: u64, members: u64) -> u32 {
    let bits = 2 * 8 * parameters * (members - 1) / members;
    u32::try_from(bits / uplink_mbit + 4 * 1000 * rtt_ms).unwrap()
}

fn figures(step_us: u32, overhead_us: u32, members: u32) -> Figures {
    Figures { step_us, overhead_us, wire_us: 0, members }
}

/// The steps of each of `rounds` rounds from `start` on, with these figures.
fn course(figures: &Figures, start: u32, most: u32, rounds: usize) -> Vec<u32> {
    std::iter::successors(Some(start), |now| Some(figures.steps_after(*now, most))).take(rounds + 1).collect()
}

/// The best number of steps of all up to `most`, by trying each.
fn best(figures: &Figures, most: u32) -> f64 {
    (1..=most).map(|steps| figures.goodput(steps)).fold(0.0, f64::max)
}

fn measured(step_us: u32, overhead_us: u32) -> Measured {
    Measured { step_us, overhead_us, ..Measured::default() }
}

#[test]
fn over_the_grid_of_networks_it_settles_in_12_rounds_at_90_percent_of_the_best() {
    for uplink in [10, 100, 1000] {
        for rtt in [20, 200] {
            for members in [2, 4, 8, 16] {
                for (parameters, step_us) in [(1 << 20, 20_000), (10 << 20, 500_000), (30 << 20, 50_000)] {
                    let at = format!("{uplink} Mbit/s, {rtt} ms, {members} members, {parameters} parameters");
                    let seen = figures(step_us, cost(parameters, uplink, rtt, members), members as u32);
                    let course = course(&seen, 32, 4096, 12);
                    let settled = course[12];
                    assert_eq!(seen.steps_after(settled, 4096), settled, "{at}: {course:?}");
                    let share = seen.goodput(settled) / best(&seen, 4096);
                    assert!(share > 0.95, "{at}: {course:?}, {share}");
                }
            }
        }
    }
}

#[test]
fn a_line_that_drops_and_comes_back_is_followed_and_left_in_12_rounds() {
    let [wide, narrow] = [1000, 5].map(|mbit| figures(50_000, cost(10 << 20, mbit, 20, 4), 4));
    let before = *course(&wide, 32, 1024, 12).last().unwrap();
    let during = *course(&narrow, before, 1024, 12).last().unwrap();
    assert!(during > 4 * before, "{before} {during}");
    assert_eq!(course(&narrow, before, 1024, 13).last(), Some(&during));
    let after = *course(&wide, during, 1024, 12).last().unwrap();
    assert_eq!(wide.steps_after(after, 1024), after);
    assert!(after <= 2 * before, "{before} {after}: the margin may leave it one doubling above");
}

#[test]
fn noise_of_a_third_makes_it_turn_back_in_at_most_one_round_of_twenty() {
    let mut draws = 12345u64;
    let mut noise = || {
        draws = draws.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (draws >> 40) as f64 / f64::from(1 << 24) * 2.0 - 1.0
    };
    for cost_us in (50_000..20_000_000).step_by(371_000) {
        let (mut steps, mut last, mut turns) = (32, 0i64, 0);
        let mut kept = [0; OVERHEADS];
        for _ in 0..200 {
            let heard: Vec<Measured> =
                (0..4).map(|_| measured(80_000, (f64::from(cost_us) * (1.0 + noise() / 3.0)) as u32)).collect();
            kept = overheads(&kept, &heard);
            let next = Figures::of(&heard, &kept, heard.len(), 0).map_or(steps, |seen| seen.steps_after(steps, 1024));
            let moved = i64::from(next) - i64::from(steps);
            turns += i32::from(moved * last < 0);
            last = if moved == 0 { last } else { moved };
            steps = next;
        }
        assert!(turns <= 10, "{cost_us}: {turns} turns in 200 rounds");
    }
}

#[test]
fn a_boast_and_a_single_bad_round_move_nothing() {
    let honest = [measured(50_000, 400_000), measured(50_000, 420_000), measured(51_000, 410_000)];
    for lie in [0, 1, u32::MAX] {
        let kept = overheads(&[400_000; OVERHEADS], &[honest[0], honest[1], measured(lie, lie)]);
        assert!([400_000, 420_000].contains(&kept[0]), "{lie}: {kept:?}");
    }
    let kept = overheads(&[400_000; OVERHEADS], &[measured(50_000, 30_000_000); 3]);
    let seen = Figures::of(&honest, &kept, 3, 0).unwrap();
    assert_eq!((kept[0], seen.overhead_us), (30_000_000, 400_000), "one round in which somebody died");
    assert_eq!(overheads(&kept, &[measured(50_000, 0)]), kept, "nobody measured");
}

#[test]
fn without_figures_nothing_changes() {
    let known = [400_000; OVERHEADS];
    assert_eq!(Figures::of(&[measured(50_000, 1)], &known, 1, 1), None, "one contributor averages with nobody");
    assert_eq!(Figures::of(&[measured(0, 1); 2], &known, 2, 1), None, "of no step it is known how long it takes");
    assert_eq!(Figures::of(&[measured(50_000, 1); 2], &[1, 1, 0], 2, 1), None, "two rounds are not enough");
    let mut spec = sample::spec();
    let before = NextRound { inner_steps: 48, overheads: known, ..sample::record().next };
    let next =
        |spec: &RunSpec, measured: &[Measured]| Choice::after(spec, &before, measured, measured.len()).inner_steps;
    assert_eq!(next(&spec, &[measured(1, 1); 4]), spec.inner.steps, "fixed by the run");
    spec.sync.gap_max = 512;
    assert_eq!(next(&spec, &[measured(1, 1)]), 48);
    assert_eq!(next(&spec, &[measured(1_000, 9_000_000); 4]), 96);
}

/// A flock of `members` with 30M parameters, whose rounds cost `cost_ms` beside the bytes on a line of `kbps`.
struct Line {
    kbps: u32,
    cost_ms: u32,
    members: usize,
}

impl Line {
    fn room(rungs: &[Codec]) -> Room {
        Room { steps: 512, rungs: rungs.to_vec(), elements: 30 << 20 }
    }

    /// The choices of so many rounds from one on, where members state what the line gives.
    fn course(&self, room: &Room, mut now: Choice, rounds: usize) -> Vec<Choice> {
        let mut all = vec![now];
        for _ in 0..rounds {
            let others = (self.members - 1) as f64 / self.members as f64;
            let wire_us = 16.0 * room.bytes(now.codec) as f64 * others * 1000.0 / f64::from(self.kbps);
            let overhead_us = self.cost_ms * 1000 + wire_us as u32;
            let stated = Measured { step_us: 50_000, overhead_us, upload_kbps: self.kbps, ..Measured::default() };
            now.overheads = overheads(&now.overheads, &vec![stated; self.members]);
            now = now.moved(room, &vec![stated; self.members], self.members);
            all.push(now);
        }
        all
    }
}

const BEGINNING: Choice = Choice { inner_steps: 30, codec: Codec::Int8, overheads: [0; OVERHEADS] };
const BOTH: [Codec; 2] = [Codec::Int8, Codec::Int4];

#[test]
fn a_line_that_binds_gets_the_coarser_codec_and_one_that_does_not_the_finer() {
    let room = Line::room(&BOTH);
    let narrow = Line { kbps: 100_000, cost_ms: 300, members: 4 };
    let course = narrow.course(&room, BEGINNING, 12);
    assert_eq!(course[3].codec, Codec::Int4, "three rounds are known: {course:?}");
    assert_eq!((course[3].overheads, course[2].codec), ([0; OVERHEADS], Codec::Int8));
    assert!(course[3..].iter().all(|choice| choice.codec == Codec::Int4), "{course:?}");
    let held: Vec<u32> = course[3..6].iter().map(|choice| choice.inner_steps).collect();
    assert_eq!(held, [60; 3], "nothing changes until three rounds with the new codec are known");
    let settled = course[12];
    let wide = Line { kbps: 10_000_000, cost_ms: 900, members: 4 };
    let back = wide.course(&room, settled, 8);
    assert!(back.iter().any(|choice| choice.codec == Codec::Int8), "{back:?}");
    assert_eq!(back[8].codec, Codec::Int8, "{back:?}");
    let free = wide.course(&room, BEGINNING, 12);
    assert!(free.iter().all(|choice| choice.codec == Codec::Int8), "bytes are not what costs there: {free:?}");
    let named = narrow.course(&Line::room(&BOTH[..1]), BEGINNING, 12);
    assert!(named.iter().all(|choice| choice.codec == Codec::Int8), "the run file names it");
}

#[test]
fn only_a_majority_can_call_lines_slow_and_an_unknown_line_is_fast() {
    let of = |lines: &[u32]| {
        let stated: Vec<Measured> =
            lines.iter().map(|kbps| Measured { upload_kbps: *kbps, ..measured(50_000, 8_000_000) }).collect();
        Figures::of(&stated, &[8_000_000; OVERHEADS], lines.len(), 30 << 20).map(|figures| figures.wire_us)
    };
    let honest = of(&[100_000; 5]);
    assert_eq!(of(&[1, 1, 100_000, 100_000, 100_000]), honest, "slander of two of five");
    assert_eq!(of(&[100_000, 100_000, 100_000, u32::MAX, u32::MAX]), honest, "boasts of two of five");
    assert_eq!(of(&[100_000, 100_000, 100_000, 0, 0]), honest);
    assert_eq!(of(&[0, 0, 0]), Some(0), "lines that hold nothing back");
    assert_eq!(of(&[1, 1, 1]), Some(8_000_000), "no more than the whole cost");
}

proptest! {
    /// Any statements: a codec of the room, one rung further at most, and then nothing of the costs is kept.
    #[test]
    fn the_codec_moves_by_one_rung(
        stated in prop::collection::vec((any::<u32>(), any::<u32>(), any::<u32>()), 1..6),
        rungs in 1usize..=3, at in 0usize..3, steps in 1u32..512, elements in 1usize..1 << 36, known in any::<[u32; OVERHEADS]>(),
    ) {
        let room = Room { steps: 512, rungs: Codec::RUNGS[..rungs].to_vec(), elements };
        let now = Choice { inner_steps: steps, codec: Codec::RUNGS[at.min(rungs - 1)], overheads: known };
        let stated: Vec<Measured> = stated
            .iter()
            .map(|(step_us, overhead_us, upload_kbps)| Measured {
                step_us: *step_us, overhead_us: *overhead_us, upload_kbps: *upload_kbps, ..Measured::default()
            })
            .collect();
        let next = now.moved(&room, &stated, stated.len());
        let rung = |codec: Codec| room.rungs.iter().position(|rung| *rung == codec);
        let (from, to) = (rung(now.codec).unwrap(), rung(next.codec).unwrap());
        prop_assert!(from.abs_diff(to) <= 1);
        prop_assert_eq!(next.overheads, if from == to { known } else { [0; OVERHEADS] });
        prop_assert!((1..=512).contains(&next.inner_steps));
    }

    /// Any figures: one doubling or halving at most, within the bounds, and never to a predicted loss.
    #[test]
    fn it_moves_by_one_rung_within_its_bounds(
        step_us in 1u32.., overhead_us in 1u32.., members in 2u32..1024, now in 1u32..1 << 20, most in 1u32..1 << 20,
    ) {
        let seen = figures(step_us, overhead_us, members);
        let next = seen.steps_after(now, most);
        prop_assert!((1..=most).contains(&next));
        prop_assert!(next == now.min(most) || next == now / 2 || next == now * 2);
        prop_assert!(now > most || seen.goodput(next) >= seen.goodput(now));
        let goodput = seen.goodput(now);
        prop_assert!(goodput > 0.0 && goodput <= 1.0);
    }
}

/// The steps after 100,000 drawn histories, as one digest: every machine computes these bits.
#[test]
fn drawn_histories_have_this_digest() {
    let mut draws = 7u64;
    let mut draw = |most: u64| {
        draws = draws.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((u128::from(draws) * u128::from(most)) >> 64) as u32
    };
    let mut hasher = Vec::new();
    for _ in 0..100_000 {
        let sizes = [draw(31), draw(31)].map(|bits| 1 << (1 + bits));
        let seen = figures(1 + draw(sizes[0]), 1 + draw(sizes[1]), 2 + draw(64));
        let start = 1 + draw(1024);
        hasher.extend(course(&seen, start, 1024, 8).iter().flat_map(|steps| steps.to_le_bytes()));
    }
    assert_eq!(crate::Digest::of("histories", &[&hasher]).to_string(), DIGEST);
}

const DIGEST: &str = "410d3865da18e16f68c98c7dd792394cf7ed06e01e0fbc4b53457c12116489aa";
