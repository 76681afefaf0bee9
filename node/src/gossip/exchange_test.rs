//! Two members on pipes that may be cut, changed or stopped, and a partner that sends arbitrary bytes.

use super::*;
use crate::net::BulkStream;
use crate::reduce::harness::{RUN, Wire, relay, runtime};
use futures::future::BoxFuture;
use starling_protocol::engine::io::AttemptKey;
use starling_protocol::frame::{FrameHeader, FrameKind, FrameScope};
use starling_protocol::run::Codec;
use starling_protocol::{Digest, NodeId, update};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(20);
/// Long enough for anything that does not wait for the clock.
const MOMENT: Duration = Duration::from_millis(50);
const ELEMENTS: usize = 40_000;
/// A pipe that holds less than a frame.
const ROOM: usize = 1024;

fn id(n: u8) -> NodeId {
    NodeId([n; 32])
}

fn key(exchange: u32) -> PairKey {
    PairKey { place: Place { lineage: Digest([2; 32]), base: Digest([3; 32]), round: 7 }, exchange }
}

fn values(n: u8, elements: usize) -> Vec<f32> {
    (0..elements).map(|e| ((e * (2 * usize::from(n) + 3) % 1999) as f32 - 999.0) * 1e-5).collect()
}

/// The destination of one member's streams.
enum Way {
    /// To the other's router.
    To(NodeId, PairRouter, Option<Wire>),
    /// Into the test's hands.
    Hand(Mutex<Option<DuplexStream>>),
    Nowhere,
}

impl PairLinks for Way {
    fn open(&self, to: NodeId) -> BoxFuture<'static, io::Result<BulkStream>> {
        let opened = match self {
            Self::To(me, router, wire) => {
                assert!(*me < to, "the smaller id opens");
                let (near, far) = tokio::io::duplex(ROOM);
                let (relayed, out) = tokio::io::duplex(ROOM);
                tokio::spawn(relay(far, relayed, *wire, None));
                router.route(*me, BulkStream::new(out));
                Ok(BulkStream::new(near))
            }
            Self::Hand(stream) => {
                stream.lock().unwrap().take().map(BulkStream::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
            }
            Self::Nowhere => Err(io::ErrorKind::NotConnected.into()),
        };
        Box::pin(async move { opened })
    }
}

fn member(me: NodeId, links: Way) -> Exchanger {
    let router = PairRouter::new(RUN);
    router.begin(key(1).place);
    Exchanger { run: RUN, me, codec: Codec::Int8, links: Arc::new(links), router }
}

/// Members 1 and 2; the bytes of the first one meet `wire`.
fn two(wire: Option<Wire>) -> (Exchanger, Exchanger) {
    let second = member(id(2), Way::Nowhere);
    (member(id(1), Way::To(id(1), second.router.clone(), wire)), second)
}

/// Member 2, whose partner is the test: the end of a stream that member 1 has opened.
fn opened_by_hand(victim: &Exchanger) -> DuplexStream {
    let (mine, theirs) = tokio::io::duplex(1 << 20);
    victim.router.route(id(1), BulkStream::new(theirs));
    mine
}

fn scope(exchange: u32) -> FrameScope {
    let PairKey { place, exchange } = key(exchange);
    let attempt = AttemptKey { lineage: place.lineage, seq: place.round, attempt: exchange, set: place.base };
    FrameScope { run: RUN, key: attempt, codec: Codec::Int8, elements: ELEMENTS }
}

fn frames(kind: FrameKind, scope: &FrameScope, values: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (chunk, values) in values.chunks(starling_protocol::limits::CHUNK_ELEMENTS).enumerate() {
        let mut payload = Vec::new();
        starling_protocol::codec::encode(scope.codec, values, &mut payload).unwrap();
        bytes.extend(FrameHeader::new(scope, kind, chunk, &payload).encode());
        bytes.extend(payload);
    }
    bytes
}

#[test]
fn both_get_what_the_other_has_encoded() {
    runtime().block_on(async {
        for (exchange, elements) in [(1, 1), (1, ELEMENTS), (2, 1), (2, ELEMENTS), (3, 70_000)] {
            let (a, b) = two(None);
            let said: [Vec<f32>; 4] = [1, 2, 3, 4].map(|n| values(n, elements));
            let drift = |values| (exchange > 1).then_some(values);
            let of_a = Offer { change: &said[0], drift: drift(said[1].as_slice()) };
            let of_b = Offer { change: &said[2], drift: drift(said[3].as_slice()) };
            let both = async { tokio::join!(a.meet(key(exchange), id(2), of_a), b.meet(key(exchange), id(1), of_b)) };
            let (at_a, at_b) = timeout(PATIENCE, both).await.expect("pipes smaller than a frame do not stop it");
            let encoded = |offer: Offer| Theirs {
                change: update::encode(Codec::Int8, offer.change).unwrap(),
                drift: offer.drift.map(|drift| update::encode(Codec::Int8, drift).unwrap()),
            };
            assert_eq!((at_a.unwrap(), at_b.unwrap()), (encoded(of_b), encoded(of_a)));
        }
    });
}

#[test]
fn an_exchange_cut_or_changed_on_the_way_counts_for_nothing() {
    runtime().block_on(async {
        let change = values(1, ELEMENTS);
        let mine = Offer { change: &change, drift: None };
        let whole = 116 + frames(FrameKind::Change, &scope(1), &change).len();
        for at in [0, 50, 115, 116, 120, 195, 196, 5_000, whole / 2, whole - 1] {
            for wire in [Wire::CutAfter(at), Wire::Flip(at)] {
                let (a, b) = two(Some(wire));
                let opener = tokio::spawn({
                    let change = change.clone();
                    async move { a.meet(key(1), id(2), Offer { change: &change, drift: None }).await }
                });
                let met = timeout(MOMENT * 4, b.meet(key(1), id(1), mine)).await;
                match (wire, met) {
                    // The opening did not come, or named another exchange: no stream arrives, and the deadline ends it.
                    (_, Err(_)) => assert!(at < 116, "{wire:?}: it waits in vain"),
                    (Wire::Flip(115), Ok(Err(why))) => assert_eq!(why.reason(), "ahead", "the number's highest byte"),
                    (Wire::CutAfter(_), Ok(Err(why))) => assert_eq!((why.reason(), why.refusal()), ("lost", None)),
                    (Wire::Flip(_), Ok(Err(why))) => {
                        assert!(why.reason() == "refused" && why.refusal() == Some("pair_frame"), "{at}: {why}");
                    }
                    (wire, met) => panic!("{wire:?}: {met:?}"),
                }
                opener.abort();
            }
        }
    });
}

#[test]
fn a_partner_that_stalls_costs_the_deadline_and_no_more() {
    runtime().block_on(async {
        let change = values(1, ELEMENTS);
        for after in [10, 116, 150, 9_000] {
            let (a, b) = two(Some(Wire::StallAfter(after)));
            let mine = Offer { change: &change, drift: None };
            let both = async { tokio::join!(a.meet(key(1), id(2), mine), b.meet(key(1), id(1), mine)) };
            assert!(timeout(MOMENT, both).await.is_err(), "it waits until it is dropped");
            // Both go on, and meet in the next one.
            let (next, b) = (two(None).0, b);
            b.router.over(1);
            let links = Arc::new(Way::To(id(1), b.router.clone(), None));
            let a = Exchanger { links, ..next };
            let mine = Offer { change: &change, drift: Some(&change) };
            let both = async { tokio::join!(a.meet(key(2), id(2), mine), b.meet(key(2), id(1), mine)) };
            let (at_a, at_b) = timeout(PATIENCE, both).await.expect("it ends");
            assert!(at_a.is_ok() && at_b.is_ok(), "{at_a:?} {at_b:?}");
        }
    });
}

/// The result of member 2 with a partner that opens its stream well, sends these bytes, and stays.
async fn heard(exchange: u32, said: Vec<u8>) -> Result<Theirs, PairError> {
    let victim = member(id(2), Way::Nowhere);
    let mut hand = opened_by_hand(&victim);
    let opening = opening::encode(&RUN, &key(exchange));
    hand.write_all(&[&opening[..], &said].concat()).await.unwrap();
    let change = values(2, ELEMENTS);
    let mine = Offer { change: &change, drift: (exchange > 1).then_some(&change) };
    timeout(PATIENCE, victim.meet(key(exchange), id(1), mine)).await.expect("what is wrong is refused at once")
}

#[test]
fn a_partner_that_says_what_it_likes_is_refused_with_the_reason() {
    runtime().block_on(async {
        let fine = values(1, ELEMENTS);
        let sound = frames(FrameKind::Change, &scope(1), &fine);
        assert!(heard(1, sound.clone()).await.is_ok());
        let refused = async |exchange, said: Vec<u8>| {
            let why = heard(exchange, said).await.expect_err("it is refused");
            (why.reason(), why.refusal())
        };
        let frame = ("refused", Some("pair_frame"));
        assert_eq!(refused(1, vec![0xff; 4096]).await, frame, "garbage");
        for other in [
            FrameScope { run: Digest([9; 32]), ..scope(1) },
            FrameScope { key: AttemptKey { seq: 8, ..scope(1).key }, ..scope(1) },
            FrameScope { key: AttemptKey { set: Digest([9; 32]), ..scope(1).key }, ..scope(1) },
            FrameScope { key: AttemptKey { attempt: 2, ..scope(1).key }, ..scope(1) },
            FrameScope { codec: Codec::Bf16, ..scope(1) },
            FrameScope { elements: 100, ..scope(1) },
        ] {
            let said = frames(FrameKind::Change, &other, &fine[..other.elements]);
            assert_eq!(refused(1, said).await, frame, "{other:?}");
        }
        let order = ("refused", Some("pair_order"));
        assert_eq!(refused(1, frames(FrameKind::Contrib, &scope(1), &fine)).await, order, "of a reduction");
        assert_eq!(refused(1, frames(FrameKind::Drift, &scope(1), &fine)).await, order, "drift before the change");
        let first = 80 + update::encode(Codec::Int8, &fine[..32_768]).unwrap().len();
        assert_eq!(refused(1, [&sound[..first], &sound[..first]].concat()).await, order, "one chunk twice");
        let twice = [frames(FrameKind::Change, &scope(2), &fine), frames(FrameKind::Change, &scope(2), &fine)].concat();
        assert_eq!(refused(2, twice).await, order, "no drift");
        // A scale of zero over values that are not zero.
        let mut payload = update::encode(Codec::Int8, &fine[..32_768]).unwrap();
        payload[..2].fill(0);
        let header = FrameHeader::new(&scope(1), FrameKind::Change, 0, &payload).encode();
        assert_eq!(refused(1, [&header[..], &payload].concat()).await, ("refused", Some("pair_payload")));
        let far: Vec<f32> = fine.iter().map(|x| x * 100.0).collect();
        assert_eq!(refused(1, frames(FrameKind::Change, &scope(1), &far)).await, ("norm", Some("pair_norm")));
        let drifted = [frames(FrameKind::Change, &scope(2), &fine), frames(FrameKind::Drift, &scope(2), &far)].concat();
        assert_eq!(refused(2, drifted).await, ("norm", Some("pair_norm")), "drift counts, too");
    });
}

#[test]
fn an_opener_does_not_wait_for_a_member_that_is_not_there() {
    runtime().block_on(async {
        let change = values(1, 10);
        let mine = Offer { change: &change, drift: None };
        let alone = member(id(1), Way::Nowhere);
        let why = timeout(PATIENCE, alone.meet(key(1), id(2), mine)).await.expect("at once").unwrap_err();
        assert_eq!((why.reason(), why.refusal()), ("unreachable", None));
        // The partner has ended the exchange: its router drops the stream, and this member sees that at once.
        let (a, b) = two(None);
        b.router.over(1);
        let why = timeout(PATIENCE, a.meet(key(1), id(2), mine)).await.expect("at once").unwrap_err();
        assert_eq!(why.reason(), "lost");
        // A partner that reads all and sends nothing.
        let (far, near) = tokio::io::duplex(1 << 20);
        let greedy = member(id(1), Way::Hand(Mutex::new(Some(near))));
        assert!(timeout(MOMENT, greedy.meet(key(1), id(2), mine)).await.is_err());
        drop(far);
    });
}

#[test]
fn an_accepting_member_does_not_wait_for_a_partner_that_is_past_the_exchange() {
    runtime().block_on(async {
        let change = values(1, 10);
        let mine = Offer { change: &change, drift: None };
        let open = async |victim: &Exchanger, exchange: u32| {
            let mut hand = opened_by_hand(victim);
            hand.write_all(&opening::encode(&RUN, &key(exchange))).await.unwrap();
            hand
        };
        // The partner came to a later exchange before, or comes to it while this member waits.
        let victim = member(id(2), Way::Nowhere);
        let mut hand = open(&victim, 3).await;
        let waiting = async { victim.meet(key(1), id(1), mine).await };
        let why = timeout(PATIENCE, waiting).await.expect("it is seen").unwrap_err();
        assert_eq!(why.reason(), "ahead");
        victim.router.over(2);
        let theirs = frames(FrameKind::Change, &FrameScope { elements: 10, ..scope(3) }, &change);
        hand.write_all(&theirs).await.unwrap();
        let met = timeout(PATIENCE, victim.meet(key(3), id(1), mine)).await.expect("it is there");
        assert!(met.is_ok(), "parked until it was time: {met:?}");
        victim.router.over(3);
        // Late streams are dropped; those of another run are refused.
        let mut late = open(&victim, 3).await;
        assert_eq!(timeout(PATIENCE, late.read(&mut [0])).await.expect("at once").unwrap(), 0);
        let mut other = opened_by_hand(&victim);
        other.write_all(&opening::encode(&Digest([9; 32]), &key(4))).await.unwrap();
        assert_eq!(timeout(PATIENCE, other.read(&mut [0])).await.expect("at once").unwrap(), 0);
        // This node begins a new round: the exchanges that are over belong to the round before.
        victim.router.begin(Place { round: 8, ..key(1).place });
        let _parked = open(&victim, 1).await;
        victim.router.begin(key(1).place);
        let waits = timeout(MOMENT, victim.router.accept(key(5), id(3))).await;
        assert!(waits.is_err(), "nobody has come");
    });
}

#[test]
fn streams_that_wait_are_bounded_one_for_each_peer() {
    runtime().block_on(async {
        let victim = member(id(2), Way::Nowhere);
        let mut hands = Vec::new();
        for exchange in 1..=200 {
            let (mut mine, theirs) = tokio::io::duplex(ROOM);
            victim.router.route(id(1), BulkStream::new(theirs));
            // Some streams are dropped before their opening is written.
            let _ = mine.write_all(&opening::encode(&RUN, &key(exchange))).await;
            hands.push(mine);
            tokio::task::yield_now().await;
        }
        let mut newest = hands.pop().expect("200 were opened");
        for mut hand in hands {
            let ended = timeout(Duration::from_secs(20), hand.read(&mut [0])).await;
            ended.expect("all but the newest are let go of").ok();
        }
        assert!(timeout(MOMENT, newest.read(&mut [0])).await.is_err(), "the newest is parked");
    });
}
