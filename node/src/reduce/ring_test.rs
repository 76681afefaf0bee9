use super::super::harness::{Flock, Pipes, RUN, Wire, runtime};
use super::super::opening;
use super::*;
use proptest::prelude::*;
use starling_protocol::frame::FrameHeader;
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::run::{Codec, EngineKind};

/// Bytes that a member sends, opening included.
fn sent_bytes(flock: &Flock, position: usize) -> usize {
    let elements = flock.deltas[0].len();
    let ring = Ring::new(flock.members.len(), update::chunks(elements));
    let framed = |range: std::ops::Range<usize>| {
        (range.len() * FRAME_HEADER_BYTES + update::chunks_range(flock.codec, elements, range).len()) as u64
    };
    opening::OPENING_BYTES + ring.sent_bytes(position, framed) as usize
}

#[test]
fn every_small_ring_gives_the_specified_bytes() {
    runtime().block_on(async {
        for codec in [Codec::Int8, Codec::Bf16] {
            for n in 1..=6 {
                for elements in [1, 300, CHUNK_ELEMENTS, 3 * CHUNK_ELEMENTS + 5, 7 * CHUNK_ELEMENTS - 1] {
                    // Pipes far smaller than a frame: a member may not rely on the transport's buffers.
                    let flock = Flock::new(EngineKind::Ring, codec, n, elements, 4096);
                    let expected = flock.specified();
                    for result in flock.run(0, None).await {
                        assert!(result.unwrap() == expected, "{n} members, {elements} elements");
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
            let flock = Flock::new(EngineKind::Ring, Codec::Int8, n, elements, room);
            let expected = flock.specified();
            for result in flock.run(0, None).await {
                assert!(result.unwrap() == expected);
            }
        });
    }
}

/// A member withholds all bytes from some place on: the member after it is behind all others, at whatever hop that was.
#[test]
fn a_starved_member_is_furthest_behind() {
    runtime().block_on(async {
        // Many chunks; fewer chunks than members, so that some hops are empty.
        for elements in [9 * CHUNK_ELEMENTS + 77, 2 * CHUNK_ELEMENTS] {
            let mut flock = Flock::new(EngineKind::Ring, Codec::Int8, 4, elements, 1 << 20);
            for staller in 0..4 {
                let total = sent_bytes(&flock, staller);
                for after in (0..total).step_by(total / 13).chain([total - 1]) {
                    flock.seq += 1;
                    let progress = flock.standstill(staller, after).await;
                    let starved = (staller + 1) % 4;
                    let others = (0..4).filter(|n| *n != starved);
                    assert!(
                        others.clone().all(|n| progress[n].reached > progress[starved].reached),
                        "{staller} stops after {after} of {total}: {progress:?}"
                    );
                }
            }
        }
    });
}

#[test]
fn a_member_that_dies_anywhere_ends_the_attempt_for_all() {
    runtime().block_on(async {
        let flock = Flock::new(EngineKind::Ring, Codec::Int8, 4, 9 * CHUNK_ELEMENTS + 77, 2048);
        let expected = flock.specified();
        let total = sent_bytes(&flock, 1);
        let frame = FRAME_HEADER_BYTES + 33 * 1024;
        let cuts = (0..total).step_by(frame / 2).chain([1, total - 1]);
        for (attempt, cut) in cuts.enumerate() {
            let results = flock.run(attempt as u32, Some((1, Wire::CutAfter(cut)))).await;
            assert!(results[2].is_err(), "the successor missed bytes, cut at {cut} of {total}");
            for result in results {
                match result {
                    Ok(update) => assert!(update == expected),
                    Err(error) => assert!(error.suspect().is_some() && error.refusal().is_none(), "{error}"),
                }
            }
        }
    });
}

/// All bytes that a member can write before it waits for others are in the pipe, and lost with it. The member notices
/// all the same, while its successor waits for a stream that it has not heard of. Found by the lab (`quick/corrupt`).
#[test]
fn a_stream_that_is_lost_while_its_writer_waits_ends_the_attempt() {
    runtime().block_on(async {
        let flock = Flock::new(EngineKind::Ring, Codec::Int8, 3, 4 * CHUNK_ELEMENTS, 1 << 20);
        for (attempt, cut) in [0, 1, opening::OPENING_BYTES, opening::OPENING_BYTES + 100].into_iter().enumerate() {
            let results = flock.run(attempt as u32, Some((1, Wire::CutAfter(cut)))).await;
            let error = results[1].as_ref().expect_err("its stream is cut");
            assert!(error.suspect().is_some() && error.refusal().is_none(), "cut at {cut}: {error}");
            assert!(results[2].is_err(), "the successor missed bytes, cut at {cut}");
        }
    });
}

/// The byte at which each hop begins in a member's stream, and the end.
fn hop_bytes(flock: &Flock, position: usize) -> Vec<usize> {
    let elements = flock.deltas[0].len();
    let ring = Ring::new(flock.members.len(), update::chunks(elements));
    let framed = |range: std::ops::Range<usize>| {
        range.len() * FRAME_HEADER_BYTES + update::chunks_range(flock.codec, elements, range).len()
    };
    let mut at = vec![opening::OPENING_BYTES];
    for hop in ring.hops(position) {
        at.push(at[at.len() - 1] + framed(ring.segment(hop.send)));
    }
    at
}

/// A ring's sums are weighted for one set, so nothing of a failed attempt is of use: after a death at any hop of either
/// half, the next attempt costs a ring of the others, and not a byte more.
#[test]
fn a_death_at_any_hop_costs_one_ring_of_the_others() {
    runtime().block_on(async {
        for codec in [Codec::Int8, Codec::Bf16] {
            for victim in 0..4 {
                let ring = || Flock::new(EngineKind::Ring, codec, 4, 9 * CHUNK_ELEMENTS + 77, 2048);
                let hops = hop_bytes(&ring(), victim);
                assert_eq!(hops.last(), Some(&sent_bytes(&ring(), victim)));
                // Before anything, as each hop begins, and in the middle of each.
                let middles = hops.windows(2).map(|hop| (hop[0] + hop[1]) / 2);
                for after in hops[..hops.len() - 1].iter().copied().chain(middles).chain([0]) {
                    let flock = ring();
                    let expected = flock.specified();
                    for (place, result) in flock.with_a_death(victim, after, 0).await {
                        match result {
                            Ok(update) => assert!(update == expected, "{place} ends with another update"),
                            Err(error) => assert!(error.suspect().is_some() && error.refusal().is_none(), "{error}"),
                        }
                    }
                    let rest = flock.without(victim);
                    let oracle: Vec<usize> = (0..3).map(|place| sent_bytes(&rest, place)).collect();
                    assert_eq!(rest.bytes_sent(1).await, oracle, "{victim} died after {after}");
                }
            }
        }
    });
}

#[test]
fn a_changed_byte_is_refused_wherever_it_is() {
    runtime().block_on(async {
        let flock = Flock::new(EngineKind::Ring, Codec::Int8, 3, 4 * CHUNK_ELEMENTS + 300, 2048);
        let total = sent_bytes(&flock, 0);
        let after_opening = opening::OPENING_BYTES;
        let heads = after_opening..after_opening + FRAME_HEADER_BYTES;
        for (attempt, at) in heads.chain((after_opening + FRAME_HEADER_BYTES..total).step_by(9973)).enumerate() {
            let results = flock.run(attempt as u32, Some((0, Wire::Flip(at)))).await;
            let error = results[1].as_ref().unwrap_err();
            assert_eq!(error.suspect(), Some(flock.members[0].member));
            assert_eq!(error.refusal(), Some("reduce_frame"), "byte {at}: {error}");
        }
    });
}

#[test]
fn repeated_frames_are_refused() {
    runtime().block_on(async {
        let flock = Flock::new(EngineKind::Ring, Codec::Int8, 3, 6 * CHUNK_ELEMENTS, 1 << 20);
        let results = flock.run(0, Some((0, Wire::RepeatFrom(opening::OPENING_BYTES)))).await;
        let error = results[1].as_ref().unwrap_err();
        assert!(matches!(error.refusal(), Some("reduce_order" | "reduce_frame")), "{error}");
    });
}

/// A predecessor that plays both its halves at once, without waiting for anything.
async fn play(
    flock: &Flock,
    position: usize,
    attempt: u32,
    kinds: &[FrameKind],
    payload_of: impl Fn(usize) -> Vec<u8>,
) {
    let job = flock.job(position, attempt);
    let elements = job.delta.len();
    let scope = FrameScope { run: RUN, key: job.key, codec: job.codec, elements };
    let ring = Ring::new(job.members.len(), update::chunks(elements));
    let links = Pipes { room: 1 << 22, ..flock.pipes(position) };
    let mut stream = links.open(job.members[ring.next(position)].member).await.unwrap();
    stream.write_all(&opening::encode(&RUN, &job.key)).await.unwrap();
    for hop in ring.hops(position) {
        let kind = if hop.half == Half::ReduceScatter { FrameKind::Contrib } else { FrameKind::Reduced };
        for chunk in ring.segment(hop.send).filter(|_| kinds.contains(&kind)) {
            let payload = payload_of(chunk);
            let header = FrameHeader::new(&scope, kind, chunk, &payload);
            stream.write_all(&header.encode()).await.unwrap();
            stream.write_all(&payload).await.unwrap();
        }
    }
    // The stream stays open: the test is about the frames that were sent.
    std::future::pending::<()>().await;
}

#[test]
fn finished_sums_before_their_time_are_refused() {
    runtime().block_on(async {
        // The test reads nothing of what member 1 sends, so its own parts cannot have left when "finished" sums arrive.
        let flock = Flock::new(EngineKind::Ring, Codec::Int8, 3, 30 * CHUNK_ELEMENTS, 1024);
        let zeros = |_| vec![0; 2 * (CHUNK_ELEMENTS / 256) + CHUNK_ELEMENTS];
        let error = tokio::select! {
            result = flock.start(1, 0, None) => result.unwrap_err(),
            () = play(&flock, 0, 0, &[FrameKind::Contrib, FrameKind::Reduced], zeros) => unreachable!(),
        };
        assert_eq!(error.refusal(), Some("reduce_early"), "{error}");
        let error = tokio::select! {
            result = flock.start(1, 1, None) => result.unwrap_err(),
            () = play(&flock, 0, 1, &[FrameKind::Reduced], zeros) => unreachable!(),
        };
        assert_eq!(error.refusal(), Some("reduce_order"), "{error}");
        // q = -128 in every element, a scale of one: no encoder writes that.
        let bad = |_| [[0x80, 0x3f].repeat(CHUNK_ELEMENTS / 256), vec![0x80; CHUNK_ELEMENTS]].concat();
        let error = tokio::select! {
            result = flock.start(1, 2, None) => result.unwrap_err(),
            () = play(&flock, 0, 2, &[FrameKind::Contrib], bad) => unreachable!(),
        };
        assert_eq!(error.refusal(), Some("reduce_payload"), "{error}");
    });
}

#[test]
fn a_cancelled_attempt_leaves_nothing_for_the_next() {
    runtime().block_on(async {
        let flock = Flock::new(EngineKind::Ring, Codec::Int8, 3, 8 * CHUNK_ELEMENTS, 4096);
        flock.assert_cancelled_attempts_leave_nothing().await;
    });
}

#[test]
fn diverged_training_is_told_apart() {
    runtime().block_on(async {
        let mut flock = Flock::new(EngineKind::Ring, Codec::Int8, 2, CHUNK_ELEMENTS + 10, 4096);
        let mut bad = flock.deltas[1].to_vec();
        bad[CHUNK_ELEMENTS + 3] = f32::NAN;
        flock.deltas[1] = Arc::new(bad);
        let results = flock.run(0, None).await;
        match results[1].as_ref().unwrap_err() {
            ReduceError::OwnDelta { element, .. } => assert_eq!(*element, CHUNK_ELEMENTS + 3),
            other => panic!("{other}"),
        }
        assert!(matches!(results[0], Err(ReduceError::Peer { .. })));
        let alone = Flock { members: flock.members[1..].to_vec(), deltas: flock.deltas[1..].to_vec(), ..flock };
        assert!(matches!(alone.run(1, None).await[0], Err(ReduceError::OwnDelta { .. })));
    });
}

#[test]
fn a_ring_needs_me_and_everybody_once() {
    runtime().block_on(async {
        let flock = Flock::new(EngineKind::Ring, Codec::Int8, 2, 10, 64);
        let links = flock.pipes(0);
        let reducer = RingReducer::new(links);
        let mut twice = flock.job(0, 0);
        twice.members.push(twice.members[0].clone());
        let mut without = flock.job(0, 1);
        without.members.remove(0);
        for job in [twice, without] {
            assert!(matches!(reducer.run(job, Arc::new(|_| {})).await, Err(ReduceError::Members(_))));
        }
    });
}
