use super::super::harness::{Flock, Pipes, RUN, Tap, Wire, runtime};
use super::*;
use crate::reduce::linger::LINGER;
use crate::reduce::opening;
use crate::reduce::stream::fill_frame;
use proptest::prelude::*;
use starling_protocol::NodeId;
use starling_protocol::frame::FrameScope;
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::outer::adamw::squares;
use starling_protocol::run::{Codec, EngineKind};
use starling_protocol::update;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::io::AsyncWriteExt;

const CODECS: [Codec; 4] = [Codec::Bf16, Codec::Int8, Codec::Int4, Codec::TopK { k: 64 }];

fn flock(codec: Codec, n: usize, elements: usize, room: usize) -> Flock {
    Flock::new(EngineKind::Owners, codec, n, elements, room)
}

#[test]
fn every_small_flock_gives_the_specified_bytes() {
    runtime().block_on(async {
        for codec in CODECS {
            for n in 1..=6 {
                for elements in [1, 300, CHUNK_ELEMENTS, 3 * CHUNK_ELEMENTS + 5, 7 * CHUNK_ELEMENTS - 1] {
                    // Pipes far smaller than a frame: a member may not rely on the transport's buffers.
                    let flock = flock(codec, n, elements, 4096);
                    let expected = flock.specified();
                    for result in flock.run(0, None).await {
                        assert!(result.unwrap() == expected, "{codec}, {n} members, {elements} elements");
                    }
                }
            }
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn any_length_gives_the_specified_bytes(n in 1usize..=6, elements in 1usize..6 * CHUNK_ELEMENTS, room in 64usize..100_000) {
        runtime().block_on(async {
            let flock = flock(Codec::Int4, n, elements, room);
            let expected = flock.specified();
            for result in flock.run(0, None).await {
                assert!(result.unwrap() == expected);
            }
        });
    }
}

#[test]
fn more_chunks_than_the_window_flow_through_tiny_pipes() {
    runtime().block_on(async {
        // Each owns 80 chunks, of which 64 may be begun.
        let flock = flock(Codec::Int4, 2, 160 * CHUNK_ELEMENTS, 1 << 14);
        let expected = flock.specified();
        for result in flock.run(0, None).await {
            assert!(result.unwrap() == expected);
        }
    });
}

/// Bytes of the frames of these chunks.
fn frames_bytes(flock: &Flock, chunks: &[usize]) -> usize {
    let elements = flock.deltas[0].len();
    chunks.iter().map(|chunk| 80 + update::chunk_range(flock.codec, elements, *chunk).len()).sum()
}

/// Bytes that a member sends to all others, openings included.
fn sent_bytes(flock: &Flock, position: usize) -> usize {
    let (n, owners) = (flock.members.len(), flock.owners());
    let segment = |place: usize| frames_bytes(flock, owners.chunks(place));
    let parts: usize = (0..n).filter(|place| *place != position).map(segment).sum();
    parts + (n - 1) * (segment(position) + opening::OPENING_BYTES)
}

#[test]
fn a_member_that_dies_at_any_moment_is_named_or_the_update_is_complete() {
    runtime().block_on(async {
        let mut flock = flock(Codec::Int4, 4, 9 * CHUNK_ELEMENTS + 77, 2048);
        let expected = flock.specified();
        let mut complete = 0;
        for victim in 0..4 {
            let (member, total) = (flock.members[victim].member, sent_bytes(&flock, victim));
            // Before anything, in the middle of each frame and of openings, and after the last byte but one.
            let moments = (0..total).step_by(total / 23).chain([1, 100, total - 1]);
            for after in moments {
                // A record of its own, so that no parts are kept from an attempt before.
                flock.seq += 1;
                let results = flock.with_a_death(victim, after, 0).await;
                let named = |result: &Result<Vec<u8>, ReduceError>| {
                    result.as_ref().is_err_and(|error| error.suspect() == Some(member) && error.refusal().is_none())
                };
                for (_, result) in &results {
                    match result {
                        Ok(update) => {
                            assert!(*update == expected);
                            complete += 1;
                        }
                        // A member that has all from the dead one, and waits for one that has not, suspects that one.
                        Err(error) => assert!(
                            named(result)
                                || results.iter().any(|(place, other)| {
                                    error.suspect() == Some(flock.members[*place].member) && named(other)
                                }),
                            "{victim} died after {after} of {total}: {error}"
                        ),
                    }
                }
                assert!(after > total - 3000 || results.iter().any(|(_, result)| named(result)), "nobody noticed");
            }
        }
        assert!(complete > 0, "those who had everything ended with the update");
    });
}

#[test]
fn a_changed_byte_is_refused_wherever_it_is() {
    runtime().block_on(async {
        let mut flock = flock(Codec::TopK { k: 64 }, 3, 4 * CHUNK_ELEMENTS + 300, 2048);
        let after_opening = opening::OPENING_BYTES;
        let heads = after_opening..after_opening + FRAME_HEADER_BYTES;
        for at in heads.chain([after_opening + 90, after_opening + 500]) {
            flock.seq += 1;
            let results = flock.run(0, Some((0, Wire::Flip(at)))).await;
            let error = results[1].as_ref().unwrap_err();
            assert_eq!(error.suspect(), Some(flock.members[0].member));
            assert_eq!(error.refusal(), Some("reduce_frame"), "byte {at}: {error}");
        }
        flock.seq += 1;
        let results = flock.run(0, Some((0, Wire::RepeatFrom(after_opening)))).await;
        let error = results[1].as_ref().unwrap_err();
        assert!(matches!(error.refusal(), Some("reduce_order" | "reduce_frame")), "{error}");
    });
}

/// A member that sends arbitrary frames to another, without waiting for anything, and stays.
async fn play(flock: &Flock, attempt: u32, frames: &[(FrameKind, usize)], payload: impl Fn(usize) -> Vec<u8>) {
    let job = flock.job(0, attempt);
    let scope = FrameScope { run: RUN, key: job.key, codec: job.codec, elements: job.delta.len() };
    let links = Pipes { room: 1 << 22, ..flock.pipes(0) };
    let mut stream = links.open(job.members[1].member).await.unwrap();
    stream.write_all(&opening::encode(&RUN, &job.key)).await.unwrap();
    let mut frame = Vec::new();
    for (kind, chunk) in frames {
        fill_frame(&mut frame, &scope, *kind, *chunk, &payload(*chunk));
        stream.write_all(&frame).await.unwrap();
    }
    std::future::pending::<()>().await;
}

#[test]
fn a_frame_that_is_not_due_or_not_canonical_is_refused() {
    runtime().block_on(async {
        // The test reads nothing of what member 1 sends, so its parts cannot all have left when "finished" sums arrive.
        let flock = flock(Codec::Int8, 2, 30 * CHUNK_ELEMENTS, 1024);
        let zeros = |_: usize| vec![0; 2 * (CHUNK_ELEMENTS / 256) + CHUNK_ELEMENTS];
        let owners = flock.owners();
        let parts = owners.chunks(1).iter().map(|chunk| (FrameKind::Contrib, *chunk));
        let sums = owners.chunks(0).iter().map(|chunk| (FrameKind::Reduced, *chunk));
        let refused = async |attempt: u32, frames: Vec<(FrameKind, usize)>, payload: &dyn Fn(usize) -> Vec<u8>| {
            flock.parts[1].forget();
            flock.sums[1].forget();
            let error = tokio::select! {
                result = flock.start(1, attempt, None) => result.unwrap_err(),
                () = play(&flock, attempt, &frames, payload) => unreachable!(),
            };
            assert_eq!(error.suspect(), Some(flock.members[0].member));
            error.refusal()
        };
        assert_eq!(refused(0, parts.clone().chain(sums.clone()).collect(), &zeros).await, Some("reduce_early"));
        assert_eq!(refused(1, sums.collect(), &zeros).await, Some("reduce_order"));
        // q = -128 in every element, a scale of one: no encoder writes that.
        let bad = |_: usize| [[0x80, 0x3f].repeat(CHUNK_ELEMENTS / 256), vec![0x80; CHUNK_ELEMENTS]].concat();
        assert_eq!(refused(2, parts.collect(), &bad).await, Some("reduce_payload"));
    });
}

#[test]
fn a_cancelled_attempt_leaves_nothing_for_the_next() {
    runtime().block_on(async {
        let flock = flock(Codec::Int4, 3, 8 * CHUNK_ELEMENTS, 4096);
        flock.assert_cancelled_attempts_leave_nothing().await;
    });
}

#[test]
fn diverged_training_is_told_apart() {
    runtime().block_on(async {
        let mut flock = flock(Codec::Int4, 2, CHUNK_ELEMENTS + 10, 4096);
        let mut bad = flock.deltas[1].to_vec();
        bad[CHUNK_ELEMENTS + 3] = f32::NAN;
        flock.deltas[1] = Arc::new(bad);
        let results = flock.run(0, None).await;
        match results[1].as_ref().unwrap_err() {
            ReduceError::OwnDelta { element, .. } => assert_eq!(*element, CHUNK_ELEMENTS + 3),
            other => panic!("{other}"),
        }
        assert!(matches!(results[0], Err(ReduceError::Peer { .. })));
        let mut without = flock.job(0, 1);
        without.members.remove(0);
        let alone = OwnersReducer::new(flock.pipes(0)).run(without, Arc::new(|_| {})).await;
        assert!(matches!(alone, Err(ReduceError::Members(_))));
    });
}

/// A member that claims to have every part already, and more.
#[test]
fn a_member_that_claims_parts_of_chunks_that_do_not_exist_is_refused() {
    runtime().block_on(async {
        let flock = flock(Codec::Int8, 2, 30 * CHUNK_ELEMENTS, 1024);
        let (liar, honest) = (flock.pipes(0), flock.start(1, 1, None));
        let answer = async {
            let mut stream = liar.accept(flock.key(1), flock.members[1].member).await.unwrap();
            // Member 0 owns 15 chunks, so the last bit is surplus.
            stream.write_all(&[0xff, 0xff]).await.unwrap();
            std::future::pending::<()>().await;
        };
        let error = tokio::select! {
            result = honest => result.unwrap_err(),
            () = answer => unreachable!(),
        };
        assert_eq!((error.suspect(), error.refusal()), (Some(flock.members[0].member), Some("reduce_held")));
    });
}

/// The words about sums: a member that says it has a sum of this attempt or of a later one; an owner that leaves out a
/// sum that nobody claims to have, and one whose word has another shape.
#[test]
fn words_about_sums_that_cannot_be_are_refused() {
    runtime().block_on(async {
        let mut flock = flock(Codec::Int8, 2, 2 * CHUNK_ELEMENTS, 1 << 20);
        let zeros = vec![0; 2 * (CHUNK_ELEMENTS / 256) + CHUNK_ELEMENTS];
        let answer = async {
            let mut stream = flock.pipes(0).accept(flock.key(1), flock.members[1].member).await.unwrap();
            // No parts, and the sum of chunk 1 from attempt 1 itself.
            stream.write_all(&[0, 2]).await.unwrap();
            std::future::pending::<()>().await;
        };
        let error = tokio::select! {
            result = flock.start(1, 1, None) => result.unwrap_err(),
            () = answer => unreachable!(),
        };
        assert_eq!(error.refusal(), Some("reduce_held"), "{error}");
        let word = |bits: &[bool]| word::encode(WordKind::There, bits);
        let cases = [
            (word(&[true]), "reduce_held"),
            ([&word(&[false])[..8], &[0b10]].concat(), "reduce_held"),
            (word(&[false; 9]), "reduce_word"),
            (word::encode(WordKind::Finished, &[false]), "reduce_word"),
        ];
        for (bytes, reason) in cases {
            flock.seq += 1;
            let (job, mut frame) = (flock.job(0, 1), Vec::new());
            let scope = FrameScope { run: RUN, key: job.key, codec: job.codec, elements: job.delta.len() };
            fill_frame(&mut frame, &scope, FrameKind::Contrib, 1, &zeros);
            let lie = async {
                let mut stream = flock.pipes(0).open(job.members[1].member).await.unwrap();
                let opening = opening::encode(&RUN, &job.key);
                stream.write_all(&[&opening[..], &frame, &bytes].concat()).await.unwrap();
                std::future::pending::<()>().await;
            };
            let error = tokio::select! {
                result = flock.start(1, 1, None) => result.unwrap_err(),
                () = lie => unreachable!(),
            };
            assert_eq!((error.suspect(), error.refusal()), (Some(flock.members[0].member), Some(reason)), "{error}");
        }
    });
}

/// Waits until the survivors have from each other all parts that an owner can have, or until no more arrive: an attempt
/// that has failed takes nothing after `LINGER`.
async fn wait_for_parts(flock: &Flock, victim: usize) {
    let owners = flock.owners();
    let places: Vec<usize> = (0..flock.members.len()).filter(|place| *place != victim).collect();
    let missing = |owner: usize, from: usize| {
        let get = |chunk: &usize| flock.parts[owner].get(&flock.key(0), &flock.members[from], *chunk);
        owner != from && owners.chunks(owner).iter().any(|chunk| get(chunk).is_none())
    };
    let over = tokio::time::Instant::now() + 3 * LINGER;
    let lacks = || places.iter().any(|owner| places.iter().any(|from| missing(*owner, *from)));
    while lacks() && tokio::time::Instant::now() < over {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A member dies when it has sent so many bytes, and the others make another attempt. `docs/protocol/3-reduction.md`
/// §3.5.5: what the survivors' chunks need leaves once, in the first attempt or in the second, also what was on its way
/// when the first one failed. A sum that its owner has finished stays as it is. All other sums are made of the parts of
/// the survivors. `wait` begins the second attempt only when they have each other's parts. Returns the number of sums
/// that were kept.
async fn assert_a_death_is_repaired(mut flock: Flock, victim: usize, after: usize, wait: bool) -> usize {
    let case = format!("{}, {} members, {victim} dies after {after}", flock.codec, flock.members.len());
    let (tap, before) = (Tap::default(), flock.specified());
    flock.tap = Some(tap.clone());
    let results = flock.with_a_death(victim, after, 0).await;
    if wait {
        wait_for_parts(&flock, victim).await;
    }
    let rest = flock.without(victim);
    let owners = rest.owners();
    let owner = |chunk: usize| owners.owner(chunk).expect("each chunk has an owner");
    let made = |chunk: &usize| rest.sums[owner(*chunk)].made(&rest.members[owner(*chunk)].member, *chunk);
    let chunks = 0..update::chunks(rest.deltas[0].len());
    let finished: Vec<usize> = chunks.clone().filter(made).collect();
    let ((_, update), anew) = (rest.bytes_sent(1).await, rest.specified());
    for chunk in chunks {
        let payload = rest.payloads(&update)[chunk];
        // An owner may finish a sum after the look at it, and before the next attempt begins.
        let kept = payload == rest.payloads(&before)[chunk];
        let fresh = !finished.contains(&chunk) && payload == rest.payloads(&anew)[chunk];
        assert!(kept || fresh, "{case}: chunk {chunk}");
    }
    // A member that has ended with the update has nothing for another attempt.
    if results.iter().any(|(_, result)| result.is_ok()) {
        return finished.len();
    }
    let (dead, of_dead) = (flock.members[victim].member, flock.owners().chunks(victim).to_vec());
    let mut left = BTreeSet::new();
    for frame in tap.frames(0).into_iter().chain(tap.frames(1)) {
        if ![frame.from, frame.to].contains(&dead) && !of_dead.contains(&frame.chunk) {
            let once = left.insert((frame.from, frame.to, frame.kind as u8, frame.chunk));
            assert!(once, "{case}: {frame:?} has left before");
        }
    }
    finished.len()
}

#[test]
fn after_a_death_only_what_is_missing_is_sent_again() {
    runtime().block_on(async {
        let mut kept = 0;
        for (codec, n) in [(Codec::Int4, 4), (Codec::Int8, 4), (Codec::TopK { k: 64 }, 3), (Codec::Bf16, 6)] {
            let flock = || flock(codec, n, 9 * CHUNK_ELEMENTS + 77, 2048);
            for victim in 0..n {
                let total = sent_bytes(&flock(), victim);
                for (number, after) in (0..total).step_by(total / 5).chain([total - 1]).enumerate() {
                    kept += assert_a_death_is_repaired(flock(), victim, after, number % 2 == 0).await;
                }
            }
        }
        assert!(kept > 0, "some sums were finished");
    });
}

/// A flock in which a member has died, its survivors, and the sums that the first of them has finished. On a busy
/// machine `LINGER` may be over before it has finished one; then another flock has a death.
async fn with_finished_sums() -> (Flock, Flock, Vec<usize>) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        let flock = flock(Codec::Int4, 3, 6 * CHUNK_ELEMENTS, 2048);
        // Member 1 dies in the middle of its sums, so the others have its parts, and neither has all sums.
        flock.with_a_death(1, sent_bytes(&flock, 1) - 3 * frames_bytes(&flock, &[0]) - 100, 0).await;
        let (rest, over) = (flock.without(1), tokio::time::Instant::now() + 3 * LINGER);
        let (owned, me) = (rest.owners().chunks(0).to_vec(), rest.members[0].member);
        let made = || owned.iter().copied().filter(|chunk| rest.sums[0].made(&me, *chunk)).collect::<Vec<usize>>();
        while made().is_empty() && tokio::time::Instant::now() < over {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let made = made();
        if !made.is_empty() {
            return (flock, rest, made);
        }
        assert!(tokio::time::Instant::now() < deadline, "it finishes no sum");
    }
}

/// The residual of a sum is kept with it: an owner that keeps all of its sums has the residuals of the attempt before.
#[test]
fn residuals_of_kept_sums_are_kept() {
    runtime().block_on(async {
        let (flock, rest, made) = with_finished_sums().await;
        let former: Vec<_> = made.iter().map(|chunk| rest.feedback[0].staged_sum(&flock.key(0), *chunk)).collect();
        rest.bytes_sent(1).await;
        let now: Vec<_> = made.iter().map(|chunk| rest.feedback[0].staged_sum(&rest.key(1), *chunk)).collect();
        assert!(former == now && former.iter().all(Option::is_some));
    });
}

/// One member withholds all bytes from some place of each stream on. Among the things that the others wait for, the
/// first that depends on nothing else is due from that member.
#[test]
fn the_member_that_withholds_is_the_one_waited_for() {
    runtime().block_on(async {
        let mut flock = flock(Codec::Int8, 4, 9 * CHUNK_ELEMENTS + 77, 1 << 14);
        for staller in 0..4 {
            let total = sent_bytes(&flock, staller) / 3;
            for after in (0..total).step_by(total / 9) {
                flock.seq += 1;
                let waits: Vec<_> = flock.standstill(staller, after).await.iter().filter_map(|r| r.awaits).collect();
                let first = waits.iter().map(|awaits| awaits.what).min().expect("somebody waits");
                let from = waits.iter().filter(|awaits| awaits.what == first).map(|awaits| awaits.from);
                let from: BTreeSet<NodeId> = from.collect();
                let expected = BTreeSet::from([flock.members[staller].member]);
                assert_eq!(from, expected, "{staller} stops after {after} of {total}: {waits:?}");
            }
        }
    });
}

/// A contribution a million times as long as the others counts for three of them if its READY says so. If its READY
/// states the others' length, each owner that gets a part of it refuses that, and names the member.
#[test]
fn a_contribution_that_is_far_too_long_is_cut_or_refused() {
    runtime().block_on(async {
        for codec in CODECS {
            let mut flock = flock(codec, 4, 5 * CHUNK_ELEMENTS + 300, 1 << 14);
            let honest = flock.stated(None)[3].stated.norm;
            flock.deltas[2] = Arc::new(flock.deltas[2].iter().map(|x| x * 1e6).collect());
            let expected = flock.specified();
            for result in flock.run(0, None).await {
                assert!(result.unwrap() == expected, "{codec}");
            }
            let mut moved = vec![0.0; flock.deltas[0].len()];
            update::decode(codec, &expected, &mut moved).unwrap();
            let norm = moved.chunks(CHUNK_ELEMENTS).map(squares).sum::<f64>().sqrt();
            // Tokens are 100 to 400, so its share is 0.3.
            assert!(norm < f64::from(honest) * 2.02 * (0.7 + 3.0 * 0.3), "{codec}: {norm}, others {honest}");
            (flock.lie, flock.seq) = (Some((2, 1e-6)), flock.seq + 1);
            for (place, result) in flock.run(0, None).await.into_iter().enumerate().filter(|(place, _)| *place != 2) {
                let error = result.unwrap_err();
                assert_eq!(error.suspect(), Some(flock.members[2].member), "{codec}, member {place}: {error}");
                assert_eq!(error.refusal(), Some("reduce_norm"), "{codec}, member {place}: {error}");
            }
        }
    });
}
