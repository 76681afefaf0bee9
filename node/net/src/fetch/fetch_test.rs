//! Client and server against each other, and each against a hostile other side.

use super::answer::Answer;
use super::client::{Expect, FetchError, Patience};
use super::server::{FetchServer, FetchSource, NothingToFetch, STREAMS, ServeEnd, ServerPatience};
use super::wire::{ANSWER_HEAD_BYTES, FetchRefusal, FetchRequest, FetchWireError, decode_answer, encode_answer};
use crate::standing::{Rank, Standing};
use proptest::prelude::*;
use starling_bootstrap::source::Source;
use starling_protocol::NodeId;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};

const PEER: NodeId = NodeId([5; 32]);
const MEMBER: NodeId = NodeId([1; 32]);
const UPDATE: FetchRequest = FetchRequest::Update { seq: 4 };

/// Deadline for what happens at once, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(30);

/// Patience of the side that is to lose it.
const SHORT: Duration = Duration::from_millis(5);

fn patient(source: impl FetchSource) -> FetchServer {
    FetchServer::new(Arc::new(source), ServerPatience::default(), Standing::default())
}

async fn request(io: &mut DuplexStream, asked: &FetchRequest, expected: Expect) -> Result<Vec<u8>, FetchError> {
    super::client::request(io, asked, expected, Patience::default()).await
}

struct Updates(Vec<u8>);

impl FetchSource for Updates {
    fn serve(&self, request: &FetchRequest) -> Result<Answer, FetchRefusal> {
        match request {
            FetchRequest::Update { seq: 4 } => Ok(self.0.clone().into()),
            FetchRequest::Update { seq: 5 } => panic!("the disk broke"),
            FetchRequest::Spec => Ok(self.0.clone().into()),
            _ => Err(FetchRefusal::NotFound),
        }
    }
}

#[tokio::test]
async fn one_stream_serves_many_requests() {
    let update: Vec<u8> = (0..300_000u32).map(|i| i as u8).collect();
    let server = patient(Updates(update.clone()));
    let (mut near, mut far) = tokio::io::duplex(4096);
    let serving = tokio::spawn(async move { server.serve(PEER, &mut far).await });
    for _ in 0..2 {
        let got = request(&mut near, &UPDATE, Expect::Exactly(300_000)).await.unwrap();
        assert!(got == update);
        let refused = request(&mut near, &FetchRequest::Update { seq: 6 }, Expect::AtMost(10)).await.unwrap_err();
        assert!(matches!(refused, FetchError::Refused(FetchRefusal::NotFound)) && refused.stream_survives());
    }
    let failed = request(&mut near, &FetchRequest::Update { seq: 5 }, Expect::AtMost(10)).await.unwrap_err();
    assert!(matches!(failed, FetchError::Refused(FetchRefusal::Internal)));
    drop(near);
    assert!(matches!(serving.await.unwrap(), ServeEnd::Closed));
}

#[tokio::test]
async fn an_answer_of_another_length_is_refused_before_it_is_read() {
    let server = patient(Updates(vec![0; 1000]));
    for expected in [Expect::Exactly(999), Expect::AtMost(999)] {
        let (mut near, mut far) = tokio::io::duplex(4096);
        let server = server.clone();
        tokio::spawn(async move { server.serve(PEER, &mut far).await });
        let error = request(&mut near, &UPDATE, expected).await.unwrap_err();
        assert!(matches!(error, FetchError::Length { got: 1000, .. }) && error.is_violation());
    }
}

#[tokio::test]
async fn a_slow_or_broken_server_is_left() {
    let head = encode_answer(Ok(100_000)).to_vec();
    for (answer, closes) in [(Vec::new(), false), (head.clone(), false), (head.clone(), true), (vec![1; 12], false)] {
        let (mut near, mut far) = tokio::io::duplex(4096);
        let garbage = answer.first() == Some(&1);
        let empty = answer.is_empty();
        tokio::spawn(async move {
            far.write_all(&answer).await.unwrap();
            if !closes {
                std::future::pending::<()>().await;
            }
        });
        let patience = Patience { head: SHORT, progress: SHORT, ..Patience::default() };
        let got = super::client::request(&mut near, &UPDATE, Expect::Exactly(100_000), patience).await;
        match got.unwrap_err() {
            FetchError::NoAnswer(_) => assert!(empty),
            FetchError::Wire(FetchWireError::Magic(_)) => assert!(garbage),
            FetchError::Io(_) => assert!(closes),
            FetchError::Stalled(_) => assert!(!closes && !empty),
            other => panic!("{other}"),
        }
    }
}

/// Before, each piece of the answer came in time, and the whole would have taken for ever.
#[tokio::test]
async fn a_server_that_trickles_is_left() {
    let (mut near, mut far) = tokio::io::duplex(1 << 20);
    tokio::spawn(async move {
        far.write_all(&encode_answer(Ok(1 << 30))).await.unwrap();
        while far.write_all(&[0; 64 << 10]).await.is_ok() {
            // The slow server.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let patience = Patience { head: Duration::from_secs(9), progress: Duration::from_millis(200), pace: u64::MAX };
    let asked = super::client::request(&mut near, &UPDATE, Expect::Exactly(1 << 30), patience);
    let got = tokio::time::timeout(Duration::from_secs(20), asked).await.expect("long before its end");
    // On a busy machine not even one piece may be done in time.
    assert!(matches!(got.unwrap_err(), FetchError::Slow { .. } | FetchError::Stalled(_)));
    let stranger = Patience::with(Rank::Stranger);
    assert_eq!(stranger.in_all(16 << 20), Duration::from_secs(30 + 10 + 128));
    assert!(Patience::with(Rank::Invited).in_all(16 << 20) > stranger.in_all(16 << 20));
    let fellow = Patience::with_fellow();
    assert!(fellow.head.max(fellow.progress) < Duration::from_secs(5), "others have it as well");
}

#[tokio::test]
async fn a_slow_or_greedy_client_is_left() {
    let source = Arc::new(Updates(vec![0; 1 << 20]));
    let piece_first = ServerPatience { piece: SHORT, ..ServerPatience::default() };
    let server = FetchServer::new(Arc::clone(&source) as Arc<dyn FetchSource>, piece_first, Standing::default());
    // The peer sends half a request.
    let (mut near, mut far) = tokio::io::duplex(64);
    near.write_all(&UPDATE.encode()[..5]).await.unwrap();
    assert!(matches!(server.serve(PEER, &mut far).await, ServeEnd::Stalled));
    // The peer asks for a megabyte and does not read it.
    let (mut near, mut far) = tokio::io::duplex(64);
    near.write_all(&UPDATE.encode()).await.unwrap();
    assert!(matches!(server.serve(PEER, &mut far).await, ServeEnd::Stalled));
    // The peer asks for nothing.
    let server =
        FetchServer::new(source, ServerPatience { idle: SHORT, ..ServerPatience::default() }, Standing::default());
    let (_near, mut far) = tokio::io::duplex(64);
    assert!(matches!(server.serve(PEER, &mut far).await, ServeEnd::Idle));
}

#[tokio::test]
async fn streams_of_one_peer_are_few() {
    let server = patient(NothingToFetch);
    let mut open = Vec::new();
    for _ in 0..STREAMS.per_stranger {
        let (mut near, mut far) = tokio::io::duplex(64);
        let server = server.clone();
        let serving = tokio::spawn(async move { server.serve(PEER, &mut far).await });
        // An answer means that the stream is in the books.
        assert!(request(&mut near, &UPDATE, Expect::AtMost(1)).await.is_err());
        open.push((near, serving));
    }
    let (_near, mut far) = tokio::io::duplex(64);
    assert!(matches!(server.serve(PEER, &mut far).await, ServeEnd::TooManyStreams));
    // Streams that end make room again.
    for (near, serving) in open {
        drop(near);
        assert!(matches!(serving.await.unwrap(), ServeEnd::Closed));
    }
    let (near, mut far) = tokio::io::duplex(64);
    drop(near);
    assert!(matches!(server.serve(PEER, &mut far).await, ServeEnd::Closed));
}

/// A reader that asks for something, holds its stream open and takes nothing more.
fn holds(server: &FetchServer, peer: NodeId, asked: &FetchRequest) -> tokio::task::JoinHandle<ServeEnd> {
    let (server, asked) = (server.clone(), asked.encode());
    tokio::spawn(async move {
        let (mut near, mut far) = tokio::io::duplex(64);
        near.write_all(&asked).await.unwrap();
        server.serve(peer, &mut far).await
    })
}

/// Serves what lies in a file, and counts how often.
struct OnDisk {
    file: tempfile::NamedTempFile,
    opened: AtomicUsize,
}

impl OnDisk {
    fn new(bytes: &[u8]) -> Arc<Self> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        Arc::new(Self { file, opened: AtomicUsize::new(0) })
    }
}

impl FetchSource for OnDisk {
    fn serve(&self, _: &FetchRequest) -> Result<Answer, FetchRefusal> {
        let file = self.file.reopen().unwrap();
        let len = file.metadata().unwrap().len();
        self.opened.fetch_add(1, Ordering::SeqCst);
        Ok(Answer::File { file, len })
    }
}

/// Waits until `count` is at least `least`.
async fn reaches(count: &AtomicUsize, least: usize) {
    let reached = async {
        while count.load(Ordering::SeqCst) < least {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(DEADLINE, reached).await.expect("so many are served");
}

/// Peers at three addresses, each with all the streams that it may have, and a newcomer at a fourth address.
fn crowd() -> (Standing, Vec<NodeId>, NodeId) {
    let standing = Standing::default();
    standing.set(vec![MEMBER], Vec::new());
    let peers: Vec<NodeId> = (10..22).map(|n| NodeId([n; 32])).collect();
    let address = |n: u8| Source::Address([45, 2, 0, n].into());
    peers.iter().zip(0u8..).for_each(|(peer, n)| standing.came(*peer, address(n % 3)));
    let newcomer = NodeId([99; 32]);
    standing.came(newcomer, address(9));
    (standing, peers, newcomer)
}

/// Before, readers that took nothing held the turns in which answers were sent. A newcomer waited 2 s for each of those
/// before it, and was told that the node is busy.
#[tokio::test]
async fn strangers_that_read_nothing_are_waited_for_by_nobody() {
    let update: Vec<u8> = (0..1 << 20).map(|at: u32| (at / 7) as u8).collect();
    let (standing, peers, newcomer) = crowd();
    let source = OnDisk::new(&update);
    let patience = ServerPatience { piece: 2 * DEADLINE, ..ServerPatience::default() };
    let server = FetchServer::new(Arc::clone(&source) as Arc<dyn FetchSource>, patience, standing);
    let held = peers.iter().flat_map(|peer| (0..4).map(|_| holds(&server, *peer, &UPDATE)));
    let held: Vec<_> = held.collect();
    reaches(&source.opened, STREAMS.strangers).await;
    for peer in [newcomer, MEMBER] {
        let (server, (mut near, mut far)) = (server.clone(), tokio::io::duplex(4096));
        tokio::spawn(async move { server.serve(peer, &mut far).await });
        for _ in 0..10 {
            let asked = request(&mut near, &UPDATE, Expect::Exactly(1 << 20));
            assert!(tokio::time::timeout(DEADLINE, asked).await.expect("before they are given up").unwrap() == update);
        }
    }
    assert!(
        held.iter().filter(|task| !task.is_finished()).count() >= STREAMS.strangers - 1,
        "they were there all the time"
    );
    held.into_iter().for_each(|task| task.abort());
}

/// Answers that are in memory until they are taken are limited for each address; others do not wait for them.
#[tokio::test]
async fn an_address_holds_few_answers_in_memory() {
    let (standing, peers, newcomer) = crowd();
    let room = standing.answers(&peers[0]).expect("it is a stranger").available_permits();
    assert!(room <= 4, "{room} mebibytes");
    let patience = ServerPatience { turn: Duration::from_millis(300), ..ServerPatience::default() };
    let server = FetchServer::new(Arc::new(Updates(vec![7; 1000])), patience, standing.clone());
    let of_one = peers.iter().filter(|peer| standing.source(peer) == standing.source(&peers[0]));
    let asked = of_one.flat_map(|peer| {
        let server = &server;
        (0..4).map(move |_| async move {
            let (mut near, mut far) = tokio::io::duplex(64);
            let (server, peer) = (server.clone(), *peer);
            tokio::spawn(async move { server.serve(peer, &mut far).await });
            near.write_all(&FetchRequest::Spec.encode()).await.unwrap();
            let mut head = [0; ANSWER_HEAD_BYTES];
            near.read_exact(&mut head).await.unwrap();
            // The stream stays open, and its answer is not read.
            (near, decode_answer(&head).unwrap())
        })
    });
    let answers = futures::future::join_all(asked).await;
    let held = answers.iter().filter(|(_, answer)| answer.is_ok()).count();
    let busy = answers.iter().filter(|(_, answer)| *answer == Err(FetchRefusal::Busy)).count();
    assert!((1..=room).contains(&held) && held + busy == answers.len(), "{held} of {}", answers.len());
    let (mut near, mut far) = tokio::io::duplex(4096);
    tokio::spawn(async move { server.serve(newcomer, &mut far).await });
    assert!(request(&mut near, &FetchRequest::Spec, Expect::Exactly(1000)).await.is_ok());
}

/// Notes how many requests are looked up at once.
#[derive(Default)]
struct Crowded {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl FetchSource for Crowded {
    fn serve(&self, _: &FetchRequest) -> Result<Answer, FetchRefusal> {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        // The disk.
        std::thread::sleep(Duration::from_millis(20));
        self.now.fetch_sub(1, Ordering::SeqCst);
        Err(FetchRefusal::NotFound)
    }
}

#[tokio::test]
async fn at_most_two_requests_of_strangers_are_looked_up_at_once() {
    let source = Arc::new(Crowded::default());
    let server =
        FetchServer::new(Arc::clone(&source) as Arc<dyn FetchSource>, ServerPatience::default(), Standing::default());
    let asked = (0..8).map(|n| {
        let server = server.clone();
        async move {
            let (mut near, mut far) = tokio::io::duplex(4096);
            tokio::spawn(async move { server.serve(NodeId([n; 32]), &mut far).await });
            let refused = request(&mut near, &FetchRequest::Spec, Expect::AtMost(1)).await.unwrap_err();
            assert!(matches!(refused, FetchError::Refused(FetchRefusal::NotFound)));
        }
    });
    futures::future::join_all(asked).await;
    assert!(source.most.load(Ordering::SeqCst) <= 2);
}

#[tokio::test]
async fn an_address_that_has_spent_its_budget_waits_and_is_told() {
    let standing = Standing::default();
    let (member, stranger, other) = (NodeId([1; 32]), NodeId([2; 32]), NodeId([3; 32]));
    let address = |n: u8| Source::Address([45, 2, 0, n].into());
    [(member, 1), (stranger, 1), (other, 2)].into_iter().for_each(|(peer, n)| standing.came(peer, address(n)));
    standing.set(vec![member], Vec::new());
    let _ = standing.charge_fetch(&stranger, Duration::from_secs(9), tokio::time::Instant::now());
    let patience = ServerPatience { budget: SHORT, ..ServerPatience::default() };
    let server = FetchServer::new(Arc::new(Updates(vec![7; 100])), patience, standing);
    for (peer, served) in [(member, true), (stranger, false), (other, true)] {
        let (mut near, mut far) = tokio::io::duplex(4096);
        let server = server.clone();
        tokio::spawn(async move { server.serve(peer, &mut far).await });
        match request(&mut near, &UPDATE, Expect::Exactly(100)).await {
            Ok(_) => assert!(served),
            Err(error) => assert!(!served && matches!(error, FetchError::Refused(FetchRefusal::Busy)), "{error}"),
        }
    }
}

/// A server with hardly any patience for its strangers, which are of one address.
fn of_stranger(source: impl FetchSource) -> (FetchServer, NodeId) {
    let (standing, stranger) = (Standing::default(), NodeId([2; 32]));
    standing.came(stranger, Source::Address([45, 2, 0, 1].into()));
    standing.set(vec![MEMBER], Vec::new());
    let patience = ServerPatience { budget: SHORT, ..ServerPatience::default() };
    (FetchServer::new(Arc::new(source), patience, standing), stranger)
}

async fn asks_once(server: &FetchServer, peer: NodeId, asked: &FetchRequest) -> Result<Vec<u8>, FetchError> {
    let (mut near, mut far) = tokio::io::duplex(4096);
    let server = server.clone();
    tokio::spawn(async move { server.serve(peer, &mut far).await });
    request(&mut near, asked, Expect::AtMost(1 << 20)).await
}

/// Before, a new stream cost its address nothing.
#[tokio::test]
async fn streams_that_ask_nothing_are_paid_for() {
    let (server, stranger) = of_stranger(Updates(vec![7; 100]));
    for _ in 0..2000 {
        let (near, mut far) = tokio::io::duplex(64);
        drop(near);
        server.serve(stranger, &mut far).await;
    }
    let refused = asks_once(&server, stranger, &UPDATE).await;
    assert!(matches!(refused, Err(FetchError::Refused(FetchRefusal::Busy))));
    assert!(asks_once(&server, MEMBER, &UPDATE).await.is_ok());
}

/// Before, a mebibyte counted as two thirds of a millisecond; it takes three.
#[tokio::test]
async fn bytes_that_are_served_are_charged() {
    let (server, stranger) = of_stranger(Updates(vec![7; 1 << 20]));
    let mut served = 0;
    while served < 200 && asks_once(&server, stranger, &UPDATE).await.is_ok() {
        served += 1;
    }
    // The address has earned some pieces while it waited.
    assert!((10..100).contains(&served), "{served} MiB");
}

/// A source that takes long to find an answer, by working or by waiting for a disk.
struct Searched {
    works: bool,
}

impl FetchSource for Searched {
    fn serve(&self, _: &FetchRequest) -> Result<Answer, FetchRefusal> {
        let began = std::time::Instant::now();
        while began.elapsed() < Duration::from_millis(40) {
            if self.works { std::hint::spin_loop() } else { std::thread::sleep(Duration::from_millis(40)) }
        }
        Err(FetchRefusal::NotFound)
    }
}

/// Before, the time on a clock was charged. On a busy machine, or with a slow disk, that is many times the processor's.
#[tokio::test]
async fn a_lookup_is_charged_by_the_time_of_the_processor() {
    for works in [true, false] {
        let (server, stranger) = of_stranger(Searched { works });
        let mut busy = false;
        for _ in 0..30 {
            let refused = asks_once(&server, stranger, &UPDATE).await.unwrap_err();
            busy |= matches!(refused, FetchError::Refused(FetchRefusal::Busy));
        }
        assert_eq!(busy, works);
    }
}

/// Asks once, and notes the sizes of the pieces that it is sent.
struct Taken {
    asked: std::io::Cursor<Vec<u8>>,
    most: usize,
}

impl AsyncRead for Taken {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.asked).poll_read(cx, into)
    }
}

impl AsyncWrite for Taken {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        self.most = self.most.max(bytes.len());
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A muxer keeps ten pieces for each stream whose reader takes nothing. Before, 16 streams of an address held 10 MiB.
#[tokio::test]
async fn strangers_are_sent_short_pieces() {
    for (peer, most) in [(MEMBER, 64 << 10), (NodeId([2; 32]), 16 << 10)] {
        let (server, _) = of_stranger(Updates(vec![7; 1 << 20]));
        let mut io = Taken { asked: std::io::Cursor::new(UPDATE.encode()), most: 0 };
        assert!(matches!(server.serve(peer, &mut io).await, ServeEnd::Closed));
        assert_eq!(io.most, most);
    }
}

proptest! {
    #[test]
    fn garbage_ends_the_stream_with_an_answer(bytes in proptest::collection::vec(any::<u8>(), 4..200)) {
        prop_assume!(bytes[..2] != [0x53, 0x46]);
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let server = patient(NothingToFetch);
            let (mut near, mut far) = tokio::io::duplex(1024);
            near.write_all(&bytes).await.unwrap();
            let end = server.serve(PEER, &mut far).await;
            assert!(matches!(end, ServeEnd::Malformed(FetchWireError::Magic(_))));
            drop(far);
            let mut answer = Vec::new();
            near.read_to_end(&mut answer).await.unwrap();
            assert_eq!(answer, encode_answer(Err(FetchRefusal::BadRequest)));
        });
    }
}
