//! Newcomers that fetch one state at the same time, from a donor and from each other.

use super::client::{Expect, FetchError};
use super::desk::{DownloadError, DownloadReport, IsStranger, Item};
use super::downloader::{Check, Downloader, OpenFetch, Swarm};
use super::wire::encode_answer;
use super::{Answer, FetchRefusal, FetchRequest, FetchServer, FetchSource, ServerPatience, is_held};
use crate::BulkStream;
use crate::standing::Standing;
use starling_bootstrap::source::Source;
use starling_protocol::{Digest, NodeId};
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::{mpsc, watch};

const ROOT: Digest = Digest([7; 32]);
const CHUNK: usize = 4096;
const MIB: usize = 1 << 20;

fn id(number: usize) -> NodeId {
    NodeId([number as u8 + 1; 32])
}

fn content(index: usize) -> Vec<u8> {
    (0..CHUNK).map(|i| (i * 31 + index * 7) as u8).collect()
}

fn name(index: usize) -> Digest {
    let mut digest = [0; 32];
    digest[..8].copy_from_slice(&(index as u64).to_le_bytes());
    Digest(digest)
}

fn place(name: &Digest) -> usize {
    name.0[0] as usize + 256 * name.0[1] as usize
}

/// How a node answers those who fetch from it.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    /// Gives what it has; each chunk takes so many milliseconds.
    Honest(u64),
    /// Says that it has all, and sends other bytes.
    Liar,
    /// Says that it has all, and has nothing.
    Boaster,
    /// Answers the question what it has with too many bytes.
    Verbose,
    /// Is no joiner.
    Bystander,
    /// Takes requests and says nothing.
    Silent,
    /// Says that it has all, and begins answers that it does not end.
    Stalling,
    Gone,
}

/// A node's part of the state.
struct Shelf {
    manner: Manner,
    held: Mutex<Vec<u8>>,
    served: AtomicUsize,
}

impl Shelf {
    fn new(manner: Manner, chunks: usize, has: bool) -> Arc<Self> {
        let held = vec![if has { 0xff } else { 0 }; chunks.div_ceil(8)];
        Arc::new(Self { manner, held: Mutex::new(held), served: AtomicUsize::new(0) })
    }

    fn put(&self, place: usize) {
        self.held.lock().unwrap()[place / 8] |= 1 << (place % 8);
    }
}

struct Served(Arc<Shelf>);

impl FetchSource for Served {
    fn serve(&self, request: &FetchRequest) -> Result<Answer, FetchRefusal> {
        let (shelf, held) = (&self.0, self.0.held.lock().unwrap().clone());
        let FetchRequest::StateChunk(asked) = request else {
            assert_eq!(*request, FetchRequest::ChunksHeld(ROOT));
            return match shelf.manner {
                Manner::Honest(_) => Ok(held.into()),
                Manner::Verbose => Ok(vec![0xff; held.len() + 1].into()),
                Manner::Bystander => Err(FetchRefusal::NotFound),
                _ => Ok(vec![0xff; held.len()].into()),
            };
        };
        match shelf.manner {
            Manner::Honest(ms) if is_held(&held, place(asked)) => {
                // The time that its disk takes.
                std::thread::sleep(Duration::from_millis(ms));
                shelf.served.fetch_add(1, Ordering::Relaxed);
                Ok(content(place(asked)).into())
            }
            Manner::Liar => Ok(vec![0; CHUNK].into()),
            _ => Err(FetchRefusal::NotFound),
        }
    }
}

/// Nodes by number, which reach each other.
#[derive(Clone)]
struct World(Arc<Vec<(Manner, usize, FetchServer)>>);

impl World {
    fn of(shelves: &[Arc<Shelf>]) -> Self {
        let server = |shelf: &Arc<Shelf>| {
            let standing = Standing::default();
            (0..shelves.len()).for_each(|n| standing.came(id(n), Source::Address([45, 2, 0, n as u8].into())));
            standing.set(Vec::new(), Vec::new());
            let source = Arc::new(Served(Arc::clone(shelf)));
            let held = shelf.held.lock().unwrap().len();
            (shelf.manner, held, FetchServer::new(source, ServerPatience::default(), standing))
        };
        Self(Arc::new(shelves.iter().map(server).collect()))
    }

    /// Streams of this node's to the others.
    fn open(&self, me: usize) -> OpenFetch {
        let world = self.clone();
        Arc::new(move |peer| {
            let (manner, held, server) = world.0[usize::from(peer.0[0]) - 1].clone();
            Box::pin(async move {
                let (near, mut far) = tokio::io::duplex(64 << 10);
                match manner {
                    Manner::Gone => return Err(FetchError::NoStream("gone".into())),
                    Manner::Stalling => drop(tokio::spawn(stall(far, held))),
                    Manner::Silent => drop(tokio::spawn(async move { while far.read_u8().await.is_ok() {} })),
                    _ => drop(tokio::spawn(async move { server.serve(id(me), &mut far).await })),
                }
                Ok(BulkStream::new(near))
            })
        })
    }
}

/// Answers the question for chunks, and begins to answer all else.
async fn stall(mut far: DuplexStream, held: usize) {
    let mut asked = [0; 36];
    while far.read_exact(&mut asked).await.is_ok() {
        let answer = match asked[3] {
            11 => [&encode_answer(Ok(held as u64))[..], &vec![0xff; held]].concat(),
            _ => encode_answer(Ok(CHUNK as u64)).to_vec(),
        };
        if far.write_all(&answer).await.is_err() {
            break;
        }
    }
}

/// Joiner `me` downloads from node 0 and beside these fellows, of whom it is told after a moment, and serves what it has.
async fn join(
    world: World,
    me: usize,
    shelf: Arc<Shelf>,
    chunks: usize,
    fellows: Vec<NodeId>,
) -> Result<DownloadReport, DownloadError> {
    let check: Check = Arc::new(|item, bytes| bytes == content(item.index));
    let is_stranger: IsStranger = Arc::new(|_| true);
    let mut order: Vec<usize> = (0..chunks).collect();
    order.sort_by_key(|index| Digest::of("starling test order", &[&[me as u8], &index.to_le_bytes()]));
    let items = order.into_iter().map(|index| Item {
        index,
        parts: vec![(FetchRequest::StateChunk(name(index)), Expect::Exactly(CHUNK as u64))],
    });
    let (list, told) = watch::channel(Vec::new());
    let answer = Expect::Exactly(chunks.div_ceil(8) as u64);
    let question = FetchRequest::ChunksHeld(ROOT);
    let swarm = Swarm { fellows: told, question, answer, ask_every: Duration::from_secs(1) };
    let downloader = Downloader::new(world.open(me), check, is_stranger).beside(swarm);
    let (done, mut arrived) = mpsc::channel(8);
    let keep = async {
        list.send_replace(fellows);
        let mut got = BTreeMap::new();
        while let Some((index, bytes)) = arrived.recv().await {
            shelf.put(index);
            assert!(got.insert(index, bytes).is_none(), "each chunk comes once");
        }
        got
    };
    let donors = [id(0)];
    let (report, got) = tokio::join!(downloader.run(items.collect(), &donors, done), keep);
    let report = report?;
    assert!(got.len() == chunks && got.iter().all(|(index, bytes)| *bytes == content(*index)));
    Ok(report)
}

/// Each fetched everything from the donor, whose uplink they shared.
#[tokio::test]
async fn joiners_of_one_flock_fetch_most_of_the_state_from_each_other() {
    const CHUNKS: usize = 160;
    // The donor looks two requests of strangers up at a time: 80 chunks a second.
    let mut shelves = vec![Shelf::new(Manner::Honest(25), CHUNKS, true)];
    shelves.extend((0..3).map(|_| Shelf::new(Manner::Honest(0), CHUNKS, false)));
    let world = World::of(&shelves);
    let fellows = |me: usize| (1..4).filter(|n| *n != me).map(id).collect();
    let joins = (1..4).map(|me| join(world.clone(), me, Arc::clone(&shelves[me]), CHUNKS, fellows(me)));
    let reports = futures::future::try_join_all(joins).await.unwrap();
    let of_donor = shelves[0].served.load(Ordering::Relaxed);
    assert!(of_donor < 2 * CHUNKS, "the donor has sent {of_donor} chunks to three who need {CHUNKS} each");
    assert!(reports.iter().all(|report| report.of_fellows > 0 && report.liars.is_empty()), "{reports:?}");
}

#[tokio::test]
async fn no_fellow_can_spoil_or_end_a_download() {
    use Manner::*;
    const CHUNKS: usize = 200;
    let manners = [Honest(2), Honest(0), Liar, Boaster, Verbose, Bystander, Silent, Gone, Stalling];
    let shelves: Vec<_> = manners.iter().map(|manner| Shelf::new(*manner, CHUNKS, *manner == Honest(2))).collect();
    let fellows = (2..manners.len()).map(id).collect();
    let joining = join(World::of(&shelves), 1, Arc::clone(&shelves[1]), CHUNKS, fellows);
    let report = tokio::time::timeout(Duration::from_secs(9), joining).await.expect("none is waited for").unwrap();
    assert_eq!((report.of_fellows, report.bytes.len()), (0, 1));
    assert!(report.liars.iter().all(|liar| [id(2), id(4)].contains(liar)), "{:?}", report.liars);
    assert!(report.liars.contains(&id(4)), "it was asked first what it has");
}

#[tokio::test]
async fn without_a_donor_that_has_it_fellows_are_not_waited_for() {
    for (donor, chunks) in [(Manner::Bystander, 9), (Manner::Gone, 9)] {
        let shelves = [
            Shelf::new(donor, chunks, true),
            Shelf::new(Manner::Honest(0), chunks, false),
            Shelf::new(Manner::Silent, chunks, true),
        ];
        let failed = join(World::of(&shelves), 1, Arc::clone(&shelves[1]), chunks, vec![id(2)]).await.unwrap_err();
        let expected = matches!(failed, DownloadError::Missing { sources: 1, .. }) && donor == Manner::Bystander
            || matches!(failed, DownloadError::NoSources { sources: 1, .. }) && donor == Manner::Gone;
        assert!(expected, "{failed}");
    }
}

/// Serves a state from a file, reading and checking each chunk as a store does.
struct State {
    file: tempfile::NamedTempFile,
    chunks: usize,
}

impl FetchSource for State {
    fn serve(&self, request: &FetchRequest) -> Result<Answer, FetchRefusal> {
        let FetchRequest::StateChunk(asked) = request else { return Err(FetchRefusal::NotFound) };
        let bytes = std::fs::read(self.file.path()).unwrap();
        assert_ne!(Digest::of("starling test state", &[&bytes]), *asked);
        let file = std::fs::File::open(self.file.path()).unwrap();
        Ok(Answer::File { file, len: MIB as u64 })
    }

    fn newcomer_bytes(&self) -> u64 {
        (self.chunks * MIB) as u64
    }
}

/// Three strangers from three addresses have the state of a 30M model from one node as fast as a line of 100 Mbit/s brings it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_donor_serves_three_newcomers_to_an_open_run_at_line_rate() {
    const CHUNKS: usize = 240;
    const LINE: f64 = 100e6 / 8.0;
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&(0..MIB).map(|i| (i / 5) as u8).collect::<Vec<_>>()).unwrap();
    let standing = Standing::default();
    (0..3).for_each(|n| standing.came(id(n), Source::Address([45, 2, 0, n as u8].into())));
    standing.set(Vec::new(), Vec::new());
    let server = FetchServer::new(Arc::new(State { file, chunks: CHUNKS }), ServerPatience::default(), standing);
    let began = Instant::now();
    let newcomer = async |me: usize| {
        let server = server.clone();
        let open: OpenFetch = Arc::new(move |_| {
            let server = server.clone();
            Box::pin(async move {
                let (near, mut far) = tokio::io::duplex(256 << 10);
                tokio::spawn(async move { server.serve(id(me), &mut far).await });
                Ok(BulkStream::new(near))
            })
        });
        let parts = |index| vec![(FetchRequest::StateChunk(name(index)), Expect::Exactly(MIB as u64))];
        let items = (0..CHUNKS).map(|index| Item { index, parts: parts(index) }).collect();
        let (done, mut arrived) = mpsc::channel(8);
        let check: Check = Arc::new(|_, bytes| bytes.len() == MIB);
        let downloader = Downloader::new(open, check, Arc::new(|_| true));
        let donors = [id(9)];
        let take = async { while arrived.recv().await.is_some() {} };
        tokio::join!(downloader.run(items, &donors, done), take).0.unwrap();
    };
    futures::future::join_all((0..3).map(newcomer)).await;
    let rate = (3 * CHUNKS * MIB) as f64 / began.elapsed().as_secs_f64();
    println!("{:.0} Mbit/s to three newcomers", rate * 8e-6);
    assert!(rate > LINE, "{:.0} Mbit/s to three newcomers", rate * 8e-6);
}
