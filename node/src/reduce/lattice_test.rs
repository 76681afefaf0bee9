use super::super::harness::{Flock, Pipes, RUN, Wire, runtime};
use super::known::Known;
use super::*;
use crate::reduce::error::PeerFault;
use crate::reduce::opening;
use crate::reduce::stream::fill_frame;
use proptest::prelude::*;
use starling_protocol::codec;
use starling_protocol::frame::{FRAME_HEADER_BYTES, FrameKind, FrameScope};
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::message::Awaited;
use starling_protocol::run::Codec;
use starling_protocol::update;
use starling_protocol::update::lattice::{Lattice, encode_row_sum};
use tokio::io::AsyncWriteExt;

const CODECS: [Codec; 4] = [Codec::Bf16, Codec::Int8, Codec::Int4, Codec::TopK { k: 64 }];

/// The ways of a flock's chunks.
fn ways(flock: &Flock) -> Lattice {
    let ids: Vec<_> = flock.members.iter().map(|member| member.member).collect();
    Lattice::new(&flock.grid, &ids, update::chunks(flock.deltas[0].len())).expect("it makes a result")
}

async fn all_end_with(flock: &Flock, attempt: u32, expected: &[u8]) {
    for result in flock.run(attempt, None).await {
        assert!(result.unwrap() == expected);
    }
}

#[test]
fn flocks_in_rows_give_the_specified_bytes() {
    runtime().block_on(async {
        for codec in CODECS {
            for (rows, n) in [(2, 6), (2, 7), (3, 9)] {
                for elements in [300, 5 * CHUNK_ELEMENTS + 5] {
                    // Pipes far smaller than a frame: a member may not rely on the transport's buffers.
                    let flock = Flock::in_rows(rows, codec, n, elements, 4096);
                    all_end_with(&flock, 0, &flock.specified()).await;
                }
            }
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10))]
    #[test]
    fn some_of_the_members_give_the_specified_bytes(
        rows in 2usize..4,
        gone in prop::collection::btree_set(0usize..12, 0..6),
        elements in 1usize..9 * CHUNK_ELEMENTS,
        room in 64usize..100_000,
    ) {
        runtime().block_on(async {
            let whole = Flock::in_rows(rows, Codec::Int4, 12, elements, room);
            let here: Vec<usize> = (0..12).filter(|place| !gone.contains(place)).collect();
            let flock = whole.among(&here);
            let ids: Vec<_> = flock.members.iter().map(|member| member.member).collect();
            if update::lattice::makes_a_result(&flock.grid, &ids) {
                all_end_with(&flock, 0, &flock.specified()).await;
            } else {
                let result = flock.start(0, 0, None).await;
                assert!(matches!(result, Err(ReduceError::Members(_))));
            }
        });
    }
}

#[test]
fn an_heir_and_its_relay_do_the_work_of_a_member_that_is_gone() {
    runtime().block_on(async {
        let flock = Flock::in_rows(2, Codec::Int8, 8, 12 * CHUNK_ELEMENTS + 9, 4096).without(1);
        assert!(ways(&flock).passes_on());
        all_end_with(&flock, 0, &flock.specified()).await;
    });
}

/// The others end or fail, and the next attempt gives for each chunk the sum over those that are left, or over all.
#[test]
fn after_a_death_at_any_moment_the_others_go_on_with_what_they_have() {
    runtime().block_on(async {
        for codec in [Codec::Int8, Codec::Int4] {
            let mut flock = Flock::in_rows(2, codec, 6, 7 * CHUNK_ELEMENTS + 77, 2048);
            let (sent, of_all) = flock.bytes_sent(0).await;
            for (victim, all) in sent.into_iter().enumerate() {
                for after in (0..all).step_by(all / 7 + 1) {
                    flock.seq += 1;
                    for (_, result) in flock.with_a_death(victim, after, 0).await {
                        assert!(result.is_err() || result.is_ok_and(|update| update == of_all));
                    }
                    let left = flock.without(victim);
                    let of_left = left.specified();
                    let (_, update) = left.bytes_sent(1).await;
                    let sums = [flock.payloads(&of_all), flock.payloads(&of_left)];
                    for (chunk, payload) in flock.payloads(&update).into_iter().enumerate() {
                        assert!(sums.iter().any(|sums| sums[chunk] == payload), "{victim} at {after}: chunk {chunk}");
                    }
                }
            }
        }
    });
}

/// A member stops when it has sent all but its sums: parts, and the sums of others, are not sent again. On a busy
/// machine `LINGER` may be over before the others have them; then another flock has a death.
#[test]
fn parts_and_sums_that_are_there_are_not_sent_again() {
    runtime().block_on(async {
        let victim = 7;
        let mut sent = Vec::new();
        for _ in 0..5 {
            let mut flock = Flock::in_rows(2, Codec::Int8, 8, 16 * CHUNK_ELEMENTS, 1 << 16);
            let (first, _) = flock.bytes_sent(0).await;
            let ways = ways(&flock);
            let sums: usize = (0..victim).map(|place| ways.cargo(victim, place).sums.len()).sum();
            let frame = FRAME_HEADER_BYTES + codec::encoded_max(Codec::Int8, CHUNK_ELEMENTS);
            flock.seq += 1;
            drop(flock.with_a_death(victim, first[victim] - sums * frame - 10, 0).await);
            let (second, _) = flock.without(victim).bytes_sent(1).await;
            let (all, more): (usize, usize) = (first.iter().sum(), second.iter().sum());
            if more * 2 < all {
                return;
            }
            sent.push((more, all));
        }
        panic!("bytes sent again, of those of one attempt: {sent:?}");
    });
}

#[test]
fn a_changed_byte_is_refused_wherever_it_is() {
    runtime().block_on(async {
        let mut flock = Flock::in_rows(2, Codec::Int8, 6, 4 * CHUNK_ELEMENTS + 300, 2048);
        for at in [opening::OPENING_BYTES + 3, opening::OPENING_BYTES + 60, opening::OPENING_BYTES + 500] {
            flock.seq += 1;
            let results = flock.run(0, Some((0, Wire::Flip(at)))).await;
            let refused = |result: &Result<Vec<u8>, ReduceError>| {
                result.as_ref().is_err_and(|error| {
                    error.suspect() == Some(flock.members[0].member) && error.refusal() == Some("reduce_frame")
                })
            };
            assert!(results.iter().any(refused), "byte {at}");
        }
    });
}

/// The first member sends its column mate, the second, a sum of its row with these values.
async fn lie(values: impl Fn(usize) -> f32) -> ReduceError {
    let flock = Flock::in_rows(2, Codec::Int8, 4, 4 * CHUNK_ELEMENTS, 1 << 16);
    let ways = ways(&flock);
    let due = ways.cargo(0, 1).row_sums;
    let (chunk, row) = due[0];
    assert_eq!(row, 0);
    let job = flock.job(0, 0);
    let scope = FrameScope { run: RUN, key: job.key, codec: job.codec, elements: job.delta.len() };
    let play = async {
        let links = Pipes { room: 1 << 22, ..flock.pipes(0) };
        let mut stream = links.open(flock.members[1].member).await.unwrap();
        stream.write_all(&opening::encode(&RUN, &job.key)).await.unwrap();
        let (mut payload, mut frame) = (Vec::new(), Vec::new());
        encode_row_sum(&(0..CHUNK_ELEMENTS).map(values).collect::<Vec<f32>>(), &mut payload);
        fill_frame(&mut frame, &scope, FrameKind::RowSum, chunk, &payload);
        stream.write_all(&frame).await.unwrap();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = play => unreachable!("it stays"),
        result = flock.start(1, 0, None) => result.expect_err("it refuses"),
    }
}

#[test]
fn a_false_sum_of_a_row_is_refused() {
    runtime().block_on(async {
        let nan = lie(|i| if i == 9 { f32::NAN } else { 0.0 }).await;
        assert!(matches!(nan, ReduceError::Peer { fault: PeerFault::Payload { .. }, .. }), "{nan}");
        let long = lie(|_| 1.0).await;
        assert!(matches!(long, ReduceError::Peer { fault: PeerFault::Sum { .. }, .. }), "{long}");
        assert_eq!(long.refusal(), Some("reduce_sum"));
    });
}

/// The first member passes on to its row mate, the third, sums of the second that are too long. The third has not begun
/// the attempt before.
async fn pass_on_too_much() -> ReduceError {
    let flock = Flock::in_rows(2, Codec::Int8, 4, 4 * CHUNK_ELEMENTS, 1 << 16);
    let ways = ways(&flock);
    let (gives, takes) = (ways.cargo(0, 2), ways.cargo(2, 0));
    assert!(gives.sums.iter().any(|chunk| ways.owner(*chunk) == Some(1)));
    let job = flock.job(0, 1);
    let scope = FrameScope { run: RUN, key: job.key, codec: job.codec, elements: job.delta.len() };
    let play = async {
        let links = Pipes { room: 1 << 22, ..flock.pipes(0) };
        let mut taken = links.accept(job.key, flock.members[2].member).await.unwrap();
        let mut known = Known::nothing(takes.parts.len(), takes.row_sums.len(), takes.sums.len());
        known.parts.fill(true);
        known.write(&mut taken).await.unwrap();
        let mut stream = links.open(flock.members[2].member).await.unwrap();
        stream.write_all(&opening::encode(&RUN, &job.key)).await.unwrap();
        stream.flush().await.unwrap();
        Known::read(&mut stream, (gives.parts.len(), gives.row_sums.len(), gives.sums.len())).await.unwrap();
        let parts = gives.parts.iter().map(|chunk| (FrameKind::Contrib, *chunk, 0.0));
        let sums = gives.sums.iter().map(|chunk| {
            let long = if ways.owner(*chunk) == Some(0) { 0.0 } else { 1e6 };
            (FrameKind::Reduced, *chunk, long)
        });
        for (kind, chunk, value) in parts.chain(sums) {
            let (mut payload, mut frame) = (Vec::new(), Vec::new());
            codec::encode(Codec::Int8, &vec![value; CHUNK_ELEMENTS], &mut payload).unwrap();
            fill_frame(&mut frame, &scope, kind, chunk, &payload);
            stream.write_all(&frame).await.unwrap();
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = play => unreachable!("it stays"),
        result = flock.start(2, 1, None) => result.expect_err("it leaves the attempt"),
    }
}

#[test]
fn who_has_not_begun_all_attempts_accuses_nobody_of_what_is_passed_on() {
    runtime().block_on(async {
        let error = pass_on_too_much().await;
        assert!(matches!(error, ReduceError::Peer { fault: PeerFault::PassedOn { .. }, .. }), "{error}");
        assert_eq!(error.refusal(), None);
    });
}

/// A member that stops in the middle is what the others wait for, directly or over others.
#[test]
fn those_that_wait_say_for_whom() {
    runtime().block_on(async {
        let flock = Flock::in_rows(2, Codec::Int8, 6, 6 * CHUNK_ELEMENTS, 1 << 16);
        let reports = flock.standstill(0, opening::OPENING_BYTES + 20).await;
        let awaits: Vec<_> = reports.iter().filter_map(|report| report.awaits).collect();
        let of_it = awaits.iter().filter(|awaits| awaits.from == flock.members[0].member);
        let kinds: Vec<Awaited> = of_it.map(|awaits| awaits.what).collect();
        assert!(kinds.contains(&Awaited::Part), "its row waits for parts");
        let column = reports[1].awaits.expect("it waits").what;
        assert!(matches!(column, Awaited::RowSum | Awaited::Sum), "its column mate waits for a sum: {column}");
    });
}
