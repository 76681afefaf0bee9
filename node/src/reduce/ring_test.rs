use super::super::harness::{Flock, Pipes, RUN, Tap, Wire, runtime};
use super::super::opening;
use super::super::word::{self, WordKind};
use super::*;
use proptest::prelude::*;
use starling_protocol::frame::FrameHeader;
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::ring::Half;
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
        let mut flock = Flock::new(EngineKind::Ring, Codec::Int8, 4, 9 * CHUNK_ELEMENTS + 77, 2048);
        let expected = flock.specified();
        let total = sent_bytes(&flock, 1);
        let frame = FRAME_HEADER_BYTES + 33 * 1024;
        let cuts = (0..total).step_by(frame / 2).chain([1, total - 1]);
        for cut in cuts {
            flock.seq += 1;
            let results = flock.run(0, Some((1, Wire::CutAfter(cut)))).await;
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
        let mut flock = Flock::new(EngineKind::Ring, Codec::Int8, 3, 4 * CHUNK_ELEMENTS, 1 << 20);
        let opening = opening::OPENING_BYTES;
        // In later attempts words come between the opening and the frames.
        for cut in [0, 1, opening, opening + 1, opening + 10, opening + 100] {
            for attempt in [0, 1] {
                flock.seq += 1;
                let results = flock.run(attempt, Some((1, Wire::CutAfter(cut)))).await;
                let error = results[1].as_ref().expect_err("its stream is cut");
                assert!(error.suspect().is_some() && error.refusal().is_none(), "cut at {cut}: {error}");
                assert!(results[2].is_err(), "the successor missed bytes, cut at {cut}");
            }
        }
    });
}

/// The bytes after each frame that a member sends.
fn frame_ends(flock: &Flock, position: usize) -> Vec<usize> {
    let elements = flock.deltas[0].len();
    let ring = Ring::new(flock.members.len(), update::chunks(elements));
    let mut at = vec![opening::OPENING_BYTES];
    for chunk in ring.hops(position).flat_map(|hop| ring.segment(hop.send)) {
        at.push(at[at.len() - 1] + FRAME_HEADER_BYTES + update::chunk_range(flock.codec, elements, chunk).len());
    }
    at
}

/// `docs/protocol/3-reduction.md` §3.4.3: after a death at any moment, chunks of which a survivor has the finished sum
/// keep it, and it is sent to those that lack it once each; the others go around the ring of the survivors.
async fn assert_a_death_is_repaired(mut flock: Flock, victim: usize, after: usize) {
    let case = format!("{}, {} members, {victim} dies after {after}", flock.codec, flock.members.len());
    let before = flock.specified();
    for (place, result) in flock.with_a_death(victim, after, 0).await {
        match result {
            Ok(update) => assert!(update == before, "{case}: {place} ends with another update"),
            Err(error) => assert!(error.suspect().is_some() && error.refusal().is_none(), "{case}: {error}"),
        }
    }
    let tap = Tap::default();
    flock.tap = Some(tap.clone());
    let rest = flock.without(victim);
    let finished: Vec<Vec<bool>> = rest.sums.iter().map(|sums| sums.finished()).collect();
    let (_, update) = rest.bytes_sent(1).await;
    let (frames, others) = (tap.frames(1), rest.members.len() - 1);
    let holders = |chunk: usize| finished.iter().filter(|sums| sums.get(chunk) == Some(&true)).count();
    let left: Vec<usize> = (0..update::chunks(rest.deltas[0].len())).filter(|chunk| holders(*chunk) == 0).collect();
    let mut anew = rest.specified_of(&left).into_iter();
    for chunk in 0..update::chunks(rest.deltas[0].len()) {
        let holders = holders(chunk);
        let kept = (holders > 0).then(|| rest.payloads(&before)[chunk].to_vec());
        let expected = kept.or_else(|| anew.next());
        assert!(Some(rest.payloads(&update)[chunk].to_vec()) == expected, "{case}: chunk {chunk}");
        let sent = |kind| frames.iter().filter(|frame| (frame.chunk, frame.kind) == (chunk, kind)).count();
        let hops = if holders > 0 { (0, others - holders + 1) } else { (others, others) };
        assert_eq!((sent(FrameKind::Contrib), sent(FrameKind::Reduced)), hops, "{case}: chunk {chunk}");
    }
}

#[test]
fn a_death_after_any_frame_is_repaired() {
    runtime().block_on(async {
        let flock = |codec, n| Flock::new(EngineKind::Ring, codec, n, 7 * CHUNK_ELEMENTS + 77, 2048);
        for n in 3..=6 {
            for victim in 0..n {
                // A member that dies before it sends anything cannot be reached either.
                for after in frame_ends(&flock(Codec::Int8, n), victim).into_iter().chain([0]) {
                    assert_a_death_is_repaired(flock(Codec::Int8, n), victim, after).await;
                }
            }
        }
        for after in frame_ends(&flock(Codec::Bf16, 4), 1) {
            assert_a_death_is_repaired(flock(Codec::Bf16, 4), 1, after + 1000).await;
        }
    });
}

/// A member that writes these bytes after the opening of attempt 1, and stays.
async fn say(flock: &Flock, position: usize, bytes: &[u8]) {
    let (links, job) = (flock.pipes(position), flock.job(position, 1));
    let next = (position + 1) % job.members.len();
    let mut stream = links.open(job.members[next].member).await.unwrap();
    stream.write_all(&opening::encode(&RUN, &job.key)).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    std::future::pending::<()>().await;
}

#[test]
fn a_word_of_another_shape_is_refused() {
    runtime().block_on(async {
        // Four chunks and the flag: five bits, of which the others are surplus.
        let mut flock = Flock::new(EngineKind::Ring, Codec::Int8, 3, 4 * CHUNK_ELEMENTS, 1 << 16);
        let word = |bits: usize| word::encode(WordKind::Finished, &vec![true; bits]);
        let surplus = [&word(5)[..8], &[0b10_0000]].concat();
        let of_owners = word::encode(WordKind::There, &[true; 5]);
        let cases = [(surplus, "reduce_held"), (word(9), "reduce_word"), (word(0), "reduce_word")];
        for (bytes, reason) in cases.into_iter().chain([(of_owners, "reduce_word")]) {
            flock.seq += 1;
            let error = tokio::select! {
                result = flock.start(1, 1, None) => result.unwrap_err(),
                () = say(&flock, 0, &bytes) => unreachable!(),
            };
            assert_eq!((error.suspect(), error.refusal()), (Some(flock.members[0].member), Some(reason)), "{error}");
        }
    });
}

/// A member changes what another says of its sums. The other notices it when its own word comes back. Anybody may have
/// done that, so nobody is refused, and later attempts keep nothing.
#[test]
fn a_word_that_comes_back_changed_ends_the_attempt_and_all_keeping() {
    runtime().block_on(async {
        let flock = Flock::new(EngineKind::Ring, Codec::Int8, 3, 4 * CHUNK_ELEMENTS, 1 << 16);
        let word = |bit: bool| word::encode(WordKind::Finished, &[false, bit, false, false, false]);
        // Member 2 passes on another word of member 1 than it has heard.
        let lie = [word(false), word(true), word(false)].concat();
        // Words go from 2 to 0 to 1: member 0 says its own, then those of 2 and of 1.
        let (honest, liar) = (flock.start(1, 1, None), say(&flock, 2, &lie));
        let error = tokio::select! {
            result = honest => result.unwrap_err(),
            _ = futures::future::join(flock.start(0, 1, None), liar) => unreachable!(),
        };
        assert!(matches!(&error, ReduceError::Peer { fault: PeerFault::Garbled, .. }), "{error}");
        assert_eq!(error.refusal(), None);
        let (key, members, elements) = (flock.key(2), flock.stated(None), 4 * CHUNK_ELEMENTS);
        let beginning = Beginning { key, members: &members, codec: flock.codec, elements, longest: None };
        assert_eq!(Sheet::begin(&flock.sums[1], &beginning).word().first(), Some(&true), "it keeps nothing");
    });
}

#[test]
fn a_changed_byte_is_refused_wherever_it_is() {
    runtime().block_on(async {
        let mut flock = Flock::new(EngineKind::Ring, Codec::Int8, 3, 4 * CHUNK_ELEMENTS + 300, 2048);
        let total = sent_bytes(&flock, 0);
        let after_opening = opening::OPENING_BYTES;
        let heads = after_opening..after_opening + FRAME_HEADER_BYTES;
        for at in heads.chain((after_opening + FRAME_HEADER_BYTES..total).step_by(9973)) {
            flock.seq += 1;
            let results = flock.run(0, Some((0, Wire::Flip(at)))).await;
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
async fn play(flock: &Flock, position: usize, kinds: &[FrameKind], payload_of: impl Fn(usize) -> Vec<u8>) {
    let job = flock.job(position, 0);
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
        let mut flock = Flock::new(EngineKind::Ring, Codec::Int8, 3, 30 * CHUNK_ELEMENTS, 1024);
        let zeros = |_| vec![0; 2 * (CHUNK_ELEMENTS / 256) + CHUNK_ELEMENTS];
        let error = tokio::select! {
            result = flock.start(1, 0, None) => result.unwrap_err(),
            () = play(&flock, 0, &[FrameKind::Contrib, FrameKind::Reduced], zeros) => unreachable!(),
        };
        assert_eq!(error.refusal(), Some("reduce_early"), "{error}");
        flock.seq += 1;
        let error = tokio::select! {
            result = flock.start(1, 0, None) => result.unwrap_err(),
            () = play(&flock, 0, &[FrameKind::Reduced], zeros) => unreachable!(),
        };
        assert_eq!(error.refusal(), Some("reduce_order"), "{error}");
        // q = -128 in every element, a scale of one: no encoder writes that.
        let bad = |_| [[0x80, 0x3f].repeat(CHUNK_ELEMENTS / 256), vec![0x80; CHUNK_ELEMENTS]].concat();
        flock.seq += 1;
        let error = tokio::select! {
            result = flock.start(1, 0, None) => result.unwrap_err(),
            () = play(&flock, 0, &[FrameKind::Contrib], bad) => unreachable!(),
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
