//! The bytes that attempts after deaths send again and the sums that they keep, with both engines.

use super::ReduceError;
use super::harness::{Flock, Tap, Wire, runtime};
use super::opening::OPENING_BYTES;
use starling_protocol::frame::FRAME_HEADER_BYTES;
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::run::{Codec, EngineKind};
use starling_protocol::update;

const ENGINES: [EngineKind; 2] = [EngineKind::Ring, EngineKind::Owners];

/// Bytes of all frames of a reduction without a death: each chunk goes twice to all but one.
fn whole(flock: &Flock) -> usize {
    let elements = flock.deltas[0].len();
    let frames = update::encoded_max(flock.codec, elements) + update::chunks(elements) * FRAME_HEADER_BYTES;
    2 * (flock.members.len() - 1) * frames
}

/// Moments of a member's death, by the bytes that it has sent: this many, evenly over all that it sends.
fn moments(flock: &Flock, count: usize) -> Vec<usize> {
    let all = whole(flock) / flock.members.len();
    (0..count).map(|moment| (2 * moment + 1) * all / (2 * count)).collect()
}

/// Whether each chunk has the payload that one of these flocks makes. In a ring the member with which a sum begins depends on
/// the chunks that are kept beside it.
fn is_of_these(flock: &Flock, update: &[u8], these: &[&Flock]) -> bool {
    let these: Vec<Vec<u8>> = these.iter().flat_map(|other| other.specified_from_anywhere()).collect();
    let these: Vec<_> = these.iter().map(|other| flock.payloads(other)).collect();
    flock.payloads(update).iter().enumerate().all(|(chunk, payload)| these.iter().any(|other| other[chunk] == *payload))
}

/// After one death at a random moment at most 15 % of the reduction's bytes are sent again, in the mean.
#[test]
fn a_death_at_a_random_moment_costs_little() {
    runtime().block_on(async {
        for engine in ENGINES {
            for n in 4..=8 {
                let codec = if n % 2 == 0 { Codec::Int8 } else { Codec::Bf16 };
                let flock = || Flock::new(engine, codec, n, 11 * CHUNK_ELEMENTS + 300, 1 << 14);
                let (mut shares, mut ended) = (Vec::new(), 0);
                for (number, after) in moments(&flock(), 8).into_iter().enumerate() {
                    let (mut flock, tap) = (flock(), Tap::default());
                    flock.tap = Some(tap.clone());
                    let victim = number % n;
                    let results = flock.with_a_death(victim, after, 0).await;
                    // A survivor that has the update has a result, and there is no other attempt.
                    if results.iter().any(|(_, result)| result.is_ok()) {
                        ended += 1;
                        continue;
                    }
                    let rest = flock.without(victim);
                    let (_, update) = rest.bytes_sent(1).await;
                    assert!(is_of_these(&rest, &update, &[&flock, &rest]), "{engine:?}, {n} members, {after}");
                    shares.push(tap.again(1) as f64 / whole(&flock) as f64);
                }
                let mean = shares.iter().sum::<f64>() / shares.len() as f64;
                assert!(ended <= 4, "{engine:?}, {n} members: {ended} of 8 deaths came too late");
                assert!(mean <= 0.15, "{engine:?}, {n} members: {mean:.3} is sent again: {shares:.3?}");
            }
        }
    });
}

/// A second member dies in the attempt that follows the first death, early or late.
#[test]
fn one_death_after_another_keeps_what_is_finished() {
    runtime().block_on(async {
        for engine in ENGINES {
            let codec = if engine == EngineKind::Ring { Codec::Int8 } else { Codec::TopK { k: 64 } };
            for (first, second) in [(0.7, 0.1), (0.8, 0.3), (0.4, 0.4), (0.9, 0.0)] {
                let five = Flock::new(engine, codec, 5, 11 * CHUNK_ELEMENTS + 9, 2048);
                let at = |share: f64| (share * whole(&five) as f64 / 5.0) as usize;
                five.with_a_death(1, at(first), 0).await;
                let four = five.without(1);
                four.with_a_death(2, at(second), 1).await;
                let three = four.without(2);
                let (_, update) = three.bytes_sent(2).await;
                let these = [&five, &four, &three];
                assert!(is_of_these(&three, &update, &these), "{engine:?}: deaths at {first} and {second}");
            }
        }
    });
}

/// A member is left out of one attempt and is back in the next. Sums that were made without it are of no use then; those
/// made with it before are, and everybody ends with one version of each chunk.
#[test]
fn a_member_that_comes_back_finds_its_contribution_in_every_sum() {
    runtime().block_on(async {
        for engine in ENGINES {
            for (first, second) in [(0.6, 0.3), (0.75, 0.6), (0.9, 0.8)] {
                let five = Flock::new(engine, Codec::Int8, 5, 11 * CHUNK_ELEMENTS + 9, 2048);
                let at = |share: f64| (share * whole(&five) as f64 / 5.0) as usize;
                five.with_a_death(1, at(first), 0).await;
                let four = five.without(1);
                // Member 3 of the five.
                four.with_a_death(2, at(second), 1).await;
                let back = five.among(&[0, 1, 2, 4]);
                let (_, update) = back.bytes_sent(2).await;
                assert!(is_of_these(&back, &update, &[&five, &back]), "{engine:?}: deaths at {first} and {second}");
            }
        }
    });
}

/// The bytes of a member were refused: what it has contributed to is not kept without it.
#[test]
fn of_a_member_that_was_refused_nothing_is_kept() {
    runtime().block_on(async {
        for engine in ENGINES {
            let flock = Flock::new(engine, Codec::Int8, 4, 12 * CHUNK_ELEMENTS, 2048);
            // The last frame of each of its streams arrives changed.
            let links = if engine == EngineKind::Ring { 1 } else { 3 };
            let last = (whole(&flock) / 4) / links + OPENING_BYTES - 100;
            let results = flock.run(0, Some((1, Wire::Flip(last)))).await;
            let is_frame = |error: &ReduceError| error.refusal() == Some("reduce_frame");
            let refused = results.iter().filter_map(|result| result.as_ref().err()).any(is_frame);
            assert!(refused, "{engine:?}: somebody refuses it");
            let rest = flock.without(1);
            let (_, update) = rest.bytes_sent(1).await;
            assert!(update == rest.specified(), "{engine:?}: all is made anew");
        }
    });
}
