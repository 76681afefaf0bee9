use super::*;
use crate::reduce::{BulkRouter, RouterError};
use proptest::prelude::*;
use starling_protocol::Digest;
use starling_protocol::engine::io::Contribution;
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::run::Codec;
use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;

const RUN: Digest = Digest([1; 32]);

/// What happens to the bytes that one member sends.
#[derive(Clone, Copy, Debug)]
enum Wire {
    /// They end, with both sides of the stream, after so many.
    CutAfter(usize),
    /// The byte at this place arrives changed.
    Flip(usize),
    /// Everything after so many bytes is sent twice.
    RepeatFrom(usize),
}

/// Links of one member of an in-process ring.
#[derive(Clone)]
struct Pipes {
    me: NodeId,
    routers: Arc<BTreeMap<NodeId, BulkRouter>>,
    wire: Option<Wire>,
    /// Bytes of a pipe's buffer.
    room: usize,
}

impl RingLinks for Pipes {
    fn open(&self, to: NodeId) -> BoxFuture<'static, io::Result<BulkStream>> {
        let (near, far) = tokio::io::duplex(self.room);
        let far = match self.wire {
            None => far,
            Some(wire) => {
                let (relayed, out) = tokio::io::duplex(self.room);
                tokio::spawn(relay(far, relayed, wire));
                out
            }
        };
        self.routers[&to].route(self.me, BulkStream::new(far));
        Box::pin(async move { Ok(BulkStream::new(near)) })
    }

    fn accept(&self, key: AttemptKey, from: NodeId) -> BoxFuture<'static, Result<BulkStream, RouterError>> {
        let router = self.routers[&self.me].clone();
        Box::pin(async move { router.accept(key, from).await })
    }

    fn leave(&self, key: AttemptKey) {
        self.routers[&self.me].leave(key);
    }
}

async fn relay(mut from: tokio::io::DuplexStream, mut to: tokio::io::DuplexStream, wire: Wire) {
    let (mut passed, mut buffer) = (0, vec![0; 8192]);
    while let Ok(len @ 1..) = from.read(&mut buffer).await {
        let bytes = &mut buffer[..len];
        let result = match wire {
            Wire::CutAfter(end) if passed + len > end => return drop(to.write_all(&bytes[..end - passed]).await),
            Wire::Flip(at) if (passed..passed + len).contains(&at) => {
                bytes[at - passed] ^= 0x10;
                to.write_all(bytes).await
            }
            Wire::RepeatFrom(at) if passed + len > at => {
                let fresh = at.saturating_sub(passed);
                let twice = [&bytes[..], &bytes[fresh..]].concat();
                to.write_all(&twice).await
            }
            _ => to.write_all(bytes).await,
        };
        if result.is_err() {
            return;
        }
        passed += len;
    }
}

/// A ring of `deltas.len()` members that have trained on `100, 200, ...` tokens.
struct Flock {
    codec: Codec,
    members: Vec<Contribution>,
    deltas: Vec<Arc<Vec<f32>>>,
    routers: Arc<BTreeMap<NodeId, BulkRouter>>,
    room: usize,
}

impl Flock {
    fn new(codec: Codec, n: usize, elements: usize, room: usize) -> Self {
        let id = |i: usize| NodeId([i as u8 + 1; 32]);
        let member =
            |i: usize| Contribution { member: id(i), tokens: 100 * (i as u64 + 1), payload: Digest([i as u8; 32]) };
        let value = |i: usize, e: usize| ((e * (2 * i + 3) % 1999) as f32 - 999.0) * 1e-5 / (1 + e % 7) as f32;
        let routers = (0..n).map(|i| (id(i), BulkRouter::new(RUN))).collect();
        Self {
            codec,
            members: (0..n).map(member).collect(),
            deltas: (0..n).map(|i| Arc::new((0..elements).map(|e| value(i, e)).collect())).collect(),
            routers: Arc::new(routers),
            room,
        }
    }

    fn key(&self, attempt: u32) -> AttemptKey {
        AttemptKey { lineage: Digest([2; 32]), seq: 9, attempt, set: Digest([3; 32]) }
    }

    fn job(&self, position: usize, attempt: u32) -> ReduceJob {
        ReduceJob {
            run: RUN,
            key: self.key(attempt),
            codec: self.codec,
            members: self.members.clone(),
            me: self.members[position].member,
            delta: Arc::clone(&self.deltas[position]),
        }
    }

    fn start(
        &self,
        position: usize,
        attempt: u32,
        wire: Option<Wire>,
    ) -> BoxFuture<'static, Result<Vec<u8>, ReduceError>> {
        let me = self.members[position].member;
        let links = Pipes { me, routers: Arc::clone(&self.routers), wire, room: self.room };
        RingReducer::new(links).run(self.job(position, attempt), Arc::new(|_| {}))
    }

    /// Everybody's result; the bytes that `bad.0` sends meet `bad.1`.
    async fn run(&self, attempt: u32, bad: Option<(usize, Wire)>) -> Vec<Result<Vec<u8>, ReduceError>> {
        let wire = |i| bad.filter(|(at, _)| *at == i).map(|(_, wire)| wire);
        let tasks: Vec<_> = (0..self.members.len()).map(|i| tokio::spawn(self.start(i, attempt, wire(i)))).collect();
        let mut results = Vec::new();
        for task in tasks {
            results.push(task.await.unwrap());
        }
        results
    }

    /// What the specification says.
    fn expected(&self) -> Vec<u8> {
        let total: u64 = self.members.iter().map(|m| m.tokens).sum();
        let weighted: Vec<Vec<f32>> = self
            .deltas
            .iter()
            .zip(&self.members)
            .map(|(delta, member)| {
                let mut delta = delta.to_vec();
                update::apply_weight(update::weight(member.tokens, total), &mut delta);
                delta
            })
            .collect();
        let views: Vec<&[f32]> = weighted.iter().map(Vec::as_slice).collect();
        update::reduce(self.codec, &views).unwrap()
    }

    /// Bytes that a member sends, opening included.
    fn sent_bytes(&self, position: usize) -> usize {
        let elements = self.deltas[0].len();
        let ring = Ring::new(self.members.len(), update::chunks(elements));
        let framed = |range: std::ops::Range<usize>| {
            (range.len() * FRAME_HEADER_BYTES + update::chunks_range(self.codec, elements, range).len()) as u64
        };
        opening::OPENING_BYTES + ring.sent_bytes(position, framed) as usize
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn every_small_ring_gives_the_specified_bytes() {
    runtime().block_on(async {
        for codec in [Codec::Int8, Codec::Bf16] {
            for n in 1..=6 {
                for elements in [1, 300, CHUNK_ELEMENTS, 3 * CHUNK_ELEMENTS + 5, 7 * CHUNK_ELEMENTS - 1] {
                    // Pipes far smaller than a frame: nobody may rely on the transport's buffers.
                    let flock = Flock::new(codec, n, elements, 4096);
                    let expected = flock.expected();
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
            let flock = Flock::new(Codec::Int8, n, elements, room);
            let expected = flock.expected();
            for result in flock.run(0, None).await {
                assert!(result.unwrap() == expected);
            }
        });
    }
}

#[test]
fn progress_counts_both_directions() {
    runtime().block_on(async {
        let flock = Flock::new(Codec::Int8, 3, 5 * CHUNK_ELEMENTS, 4096);
        let told = Arc::new(Mutex::new(0));
        let links = Pipes { me: flock.members[0].member, routers: Arc::clone(&flock.routers), wire: None, room: 4096 };
        let report: ProgressFn = Arc::new({
            let told = Arc::clone(&told);
            move |bytes| *told.lock().unwrap() = bytes
        });
        let mine = RingReducer::new(links).run(flock.job(0, 0), report);
        let (mine, b, c) = tokio::join!(mine, flock.start(1, 0, None), flock.start(2, 0, None));
        assert!(mine.is_ok() && b.is_ok() && c.is_ok());
        let both = flock.sent_bytes(0) + flock.sent_bytes(2) - 2 * opening::OPENING_BYTES;
        assert_eq!(*told.lock().unwrap(), both as u64);
    });
}

#[test]
fn a_member_that_dies_anywhere_ends_the_attempt_for_all() {
    runtime().block_on(async {
        let flock = Flock::new(Codec::Int8, 4, 9 * CHUNK_ELEMENTS + 77, 2048);
        let expected = flock.expected();
        let total = flock.sent_bytes(1);
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

#[test]
fn a_changed_byte_is_refused_wherever_it_is() {
    runtime().block_on(async {
        let flock = Flock::new(Codec::Int8, 3, 4 * CHUNK_ELEMENTS + 300, 2048);
        let total = flock.sent_bytes(0);
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
        let flock = Flock::new(Codec::Int8, 3, 6 * CHUNK_ELEMENTS, 1 << 20);
        let results = flock.run(0, Some((0, Wire::RepeatFrom(opening::OPENING_BYTES)))).await;
        let error = results[1].as_ref().unwrap_err();
        assert!(matches!(error.refusal(), Some("reduce_order" | "reduce_frame")), "{error}");
    });
}

/// A predecessor that plays both its halves at once, without waiting for anybody.
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
    let links = Pipes { me: job.me, routers: Arc::clone(&flock.routers), wire: None, room: 1 << 22 };
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
    // Stays open: only what was sent shall count.
    std::future::pending::<()>().await;
}

#[test]
fn finished_sums_before_their_time_are_refused() {
    runtime().block_on(async {
        // Nobody reads what member 1 sends, so its own parts cannot have left when "finished" sums come.
        let flock = Flock::new(Codec::Int8, 3, 30 * CHUNK_ELEMENTS, 1024);
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
        let flock = Flock::new(Codec::Int8, 3, 8 * CHUNK_ELEMENTS, 4096);
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
        let mut flock = Flock::new(Codec::Int8, 2, CHUNK_ELEMENTS + 10, 4096);
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
        let flock = Flock::new(Codec::Int8, 2, 10, 64);
        let links = Pipes { me: flock.members[0].member, routers: Arc::clone(&flock.routers), wire: None, room: 64 };
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
