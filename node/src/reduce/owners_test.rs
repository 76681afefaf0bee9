use super::super::harness::{Flock, Kill, Pipes, RUN, Wire, runtime};
use super::*;
use proptest::prelude::*;
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::run::{Codec, EngineKind};

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
                    // Pipes far smaller than a frame: nobody may rely on the transport's buffers.
                    let flock = flock(codec, n, elements, 4096);
                    let expected = flock.expected();
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
            let expected = flock.expected();
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
        let expected = flock.expected();
        for result in flock.run(0, None).await {
            assert!(result.unwrap() == expected);
        }
    });
}

/// How long an attempt of pipes may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Bytes that a member sends to all others, openings included.
fn sent_bytes(flock: &Flock, position: usize) -> usize {
    let (n, elements) = (flock.members.len(), flock.deltas[0].len());
    let owners = Owners::new(&vec![0; n], update::chunks(elements));
    let segment = |place: usize| -> usize {
        owners.segment(place).map(|chunk| 80 + update::chunk_range(flock.codec, elements, chunk).len()).sum()
    };
    let parts: usize = (0..n).filter(|place| *place != position).map(segment).sum();
    parts + (n - 1) * (segment(position) + opening::OPENING_BYTES)
}

/// One member dies when it has sent so much. Everybody else's result.
async fn with_a_death(
    flock: &Flock,
    victim: usize,
    after: usize,
    attempt: u32,
) -> Vec<(usize, Result<Vec<u8>, ReduceError>)> {
    let kill = Kill { after, sent: Arc::default(), now: Arc::default() };
    let others: Vec<usize> = (0..flock.members.len()).filter(|place| *place != victim).collect();
    // A process that was gone before the attempt began cannot be reached either.
    let dead = (after == 0).then(|| flock.members[victim].member);
    let start = |place: &usize| tokio::spawn(flock.start_on(Pipes { dead, ..flock.pipes(*place) }, *place, attempt));
    let running: Vec<_> = others.iter().map(start).collect();
    if after > 0 {
        let death = Arc::clone(&kill.now);
        let part = flock.start_on(Pipes { kill: Some(kill), ..flock.pipes(victim) }, victim, attempt);
        tokio::select! {
            () = death.notified() => {}
            _ = part => {}
        }
    }
    let mut results = Vec::new();
    for (place, running) in others.into_iter().zip(running) {
        let ended = tokio::time::timeout(PATIENCE, running).await;
        results.push((place, ended.expect("an attempt with a dead member ends").unwrap()));
    }
    results
}

#[test]
fn whoever_dies_whenever_is_named_or_the_update_is_complete() {
    runtime().block_on(async {
        let flock = flock(Codec::Int4, 4, 9 * CHUNK_ELEMENTS + 77, 2048);
        let expected = flock.expected();
        let (mut attempt, mut complete) = (0, 0);
        for victim in 0..4 {
            let (member, total) = (flock.members[victim].member, sent_bytes(&flock, victim));
            // Before anything, in the middle of each frame and of openings, and after the last byte but one.
            let moments = (0..total).step_by(total / 23).chain([1, 100, total - 1]);
            for after in moments {
                attempt += 1;
                let results = with_a_death(&flock, victim, after, attempt).await;
                let named = |result: &Result<Vec<u8>, ReduceError>| {
                    result.as_ref().is_err_and(|error| error.suspect() == Some(member) && error.refusal().is_none())
                };
                for (_, result) in &results {
                    match result {
                        Ok(update) => {
                            assert!(*update == expected);
                            complete += 1;
                        }
                        // Who has all from the dead and waits for one who has not is let down by that one.
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
        let flock = flock(Codec::TopK { k: 64 }, 3, 4 * CHUNK_ELEMENTS + 300, 2048);
        let after_opening = opening::OPENING_BYTES;
        let heads = after_opening..after_opening + FRAME_HEADER_BYTES;
        for (attempt, at) in heads.chain([after_opening + 90, after_opening + 500]).enumerate() {
            let results = flock.run(attempt as u32, Some((0, Wire::Flip(at)))).await;
            let error = results[1].as_ref().unwrap_err();
            assert_eq!(error.suspect(), Some(flock.members[0].member));
            assert_eq!(error.refusal(), Some("reduce_frame"), "byte {at}: {error}");
        }
        let results = flock.run(1000, Some((0, Wire::RepeatFrom(after_opening)))).await;
        let error = results[1].as_ref().unwrap_err();
        assert!(matches!(error.refusal(), Some("reduce_order" | "reduce_frame")), "{error}");
    });
}

/// A member that sends to another what it likes, without waiting for anybody, and stays.
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
fn what_is_not_due_or_not_canonical_is_refused() {
    runtime().block_on(async {
        // Nobody reads what member 1 sends, so its parts cannot all have left when "finished" sums come.
        let flock = flock(Codec::Int8, 2, 30 * CHUNK_ELEMENTS, 1024);
        let zeros = |_: usize| vec![0; 2 * (CHUNK_ELEMENTS / 256) + CHUNK_ELEMENTS];
        let owners = Owners::new(&[0; 2], 30);
        let parts = owners.segment(1).map(|chunk| (FrameKind::Contrib, chunk));
        let sums = owners.segment(0).map(|chunk| (FrameKind::Reduced, chunk));
        let refused = async |attempt: u32, frames: Vec<(FrameKind, usize)>, payload: &dyn Fn(usize) -> Vec<u8>| {
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
        let expected = flock.expected();
        for attempt in 0..4 {
            // Members 0 and 1 begin; member 2 never does; the attempt is dropped in its middle.
            let (a, b) = (flock.start(0, 2 * attempt, None), flock.start(1, 2 * attempt, None));
            let some_time = async {
                for _ in 0..50 * attempt {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                biased;
                _ = futures::future::join(a, b) => unreachable!("two of three cannot end"),
                () = some_time => {}
            }
            for result in flock.run(2 * attempt + 1, None).await {
                assert!(result.unwrap() == expected);
            }
        }
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
