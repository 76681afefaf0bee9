use super::*;
use crate::fetch::wire::{ANSWER_HEAD_BYTES, REQUEST_HEAD_BYTES, encode_answer};
use crate::fetch::{Answer, FetchServer, FetchSource, ServerPatience};
use crate::standing::Standing;
use starling_protocol::Digest;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

/// The behaviour of one source.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    Honest,
    /// Has only items whose index is even.
    Half,
    /// Sends other bytes.
    Liar,
    /// Sends bytes of another length.
    LongLiar,
    /// Cannot be reached.
    Gone,
    /// Takes a request and hangs up.
    Mute,
    /// Takes a request and says nothing.
    Hold,
    /// Is busy the first few times.
    Busy,
}

fn content(index: usize) -> Vec<u8> {
    (0..5000 + index * 7).map(|i| (i * 31 + index) as u8).collect()
}

fn digest(bytes: &[u8]) -> Digest {
    Digest::of("starling test item", &[bytes])
}

struct Shelf {
    manner: Manner,
    items: usize,
    asked: AtomicUsize,
}

impl FetchSource for Shelf {
    fn serve(&self, request: &FetchRequest) -> Result<Answer, FetchRefusal> {
        let FetchRequest::StateChunk(wanted) = request else { return Err(FetchRefusal::BadRequest) };
        let index = (0..self.items).find(|i| digest(&content(*i)) == *wanted).ok_or(FetchRefusal::NotFound)?;
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        match self.manner {
            Manner::Half if index % 2 == 1 => Err(FetchRefusal::NotFound),
            Manner::Liar => Ok(vec![0; content(index).len()].into()),
            Manner::LongLiar => Ok(vec![0; content(index).len() + 1].into()),
            Manner::Busy if asked < 5 => Err(FetchRefusal::Busy),
            _ => Ok(content(index).into()),
        }
    }
}

fn id(number: usize) -> NodeId {
    NodeId([number as u8 + 1; 32])
}

type Got = (DownloadReport, BTreeMap<usize, Vec<u8>>);

async fn download(manners: &[Manner], items: usize) -> Result<Got, DownloadError> {
    download_to(manners, items, Duration::ZERO).await
}

/// The same with a taker that needs so long for each item.
async fn download_to(manners: &[Manner], items: usize, each: Duration) -> Result<Got, DownloadError> {
    let shelf = |manner: &Manner| Arc::new(Shelf { manner: *manner, items, asked: AtomicUsize::new(0) });
    let servers: Vec<_> = manners
        .iter()
        .map(|manner| (*manner, FetchServer::new(shelf(manner), ServerPatience::default(), Standing::default())))
        .collect();
    let open: OpenFetch = Arc::new(move |source| {
        let number = usize::from(source.0[0]) - 1;
        let (manner, server) = servers[number].clone();
        Box::pin(async move {
            let (near, mut far) = tokio::io::duplex(1500);
            match manner {
                Manner::Gone => return Err(FetchError::NoStream("gone".into())),
                Manner::Hold => {
                    tokio::spawn(async move { while far.read_u8().await.is_ok() {} });
                }
                Manner::Mute => {
                    tokio::spawn(async move { drop(far.read_u32().await) });
                }
                _ => {
                    tokio::spawn(async move { server.serve(id(99), &mut far).await });
                }
            }
            Ok(BulkStream::new(near))
        })
    });
    let check: Check = Arc::new(|item, bytes| bytes == content(item.index));
    let wanted = (0..items).map(|index| {
        let bytes = content(index);
        Item { index, parts: vec![(FetchRequest::StateChunk(digest(&bytes)), Expect::Exactly(bytes.len() as u64))] }
    });
    let strangers: Vec<_> = manners.iter().map(|manner| *manner == Manner::Hold).collect();
    let is_stranger: IsStranger = Arc::new(move |source: &NodeId| strangers[usize::from(source.0[0]) - 1]);
    let sources: Vec<_> = (0..manners.len()).map(id).collect();
    let (sender, mut receiver) = mpsc::channel(if each.is_zero() { 8 } else { 1 });
    let taken = tokio::spawn(async move {
        let mut got = BTreeMap::new();
        while let Some((index, bytes)) = receiver.recv().await {
            // The taker's own work.
            tokio::time::sleep(each).await;
            assert!(got.insert(index, bytes).is_none(), "each item comes once");
        }
        got
    });
    let report = Downloader::new(open, check, is_stranger).run(wanted.collect(), &sources, sender).await?;
    Ok((report, taken.await.unwrap()))
}

#[tokio::test]
async fn any_mix_with_one_honest_source_brings_everything() {
    use Manner::*;
    for manners in [
        &[Honest][..],
        &[Honest, Honest, Honest],
        &[Liar, Honest],
        &[LongLiar, Gone, Honest],
        &[Half, Busy],
        &[Mute, Honest],
        &[Gone, Half, Liar, Mute, Busy, Honest],
    ] {
        let (report, got) = download(manners, 40).await.unwrap();
        assert_eq!(got.len(), 40);
        assert!(got.iter().all(|(index, bytes)| *bytes == content(*index)));
        let liars = manners.iter().enumerate().filter(|(_, m)| matches!(m, Liar | LongLiar));
        let expected: Vec<_> = liars.map(|(number, _)| id(number)).collect();
        assert!(report.liars.iter().all(|liar| expected.contains(liar)));
        assert_eq!(report.bytes.values().sum::<u64>(), (0..40).map(|i| content(i).len() as u64).sum::<u64>());
    }
}

/// Before, two strangers had both copies of an item, until they were given up.
#[tokio::test]
async fn strangers_that_hold_items_keep_no_member_from_them() {
    use Manner::*;
    let loading = download(&[Hold, Hold, Hold, Honest], 4);
    let (report, got) = tokio::time::timeout(Duration::from_secs(9), loading).await.expect("at once").unwrap();
    assert_eq!((got.len(), report.bytes.len()), (4, 1));
}

/// The download ended when the last item was here, and dropped those for which there was no room yet.
#[tokio::test]
async fn a_slow_taker_gets_every_item() {
    use Manner::Honest;
    let (report, got) = download_to(&[Honest, Honest, Honest], 12, Duration::from_millis(5)).await.unwrap();
    assert_eq!(got.len(), 12);
    assert_eq!(report.bytes.values().sum::<u64>(), (0..12).map(|i| content(i).len() as u64).sum::<u64>());
}

#[tokio::test]
async fn failure_says_what_is_missing() {
    use Manner::*;
    assert!(matches!(download(&[Half, Gone], 4).await, Err(DownloadError::Missing { index: 1 | 3, .. })));
    assert!(matches!(download(&[Liar, LongLiar, Gone], 4).await, Err(DownloadError::NoSources { left: 4, .. })));
    assert!(matches!(download(&[], 1).await, Err(DownloadError::NoSources { sources: 0, .. })));
    let (report, got) = download(&[], 0).await.unwrap();
    assert_eq!((report, got.len()), (DownloadReport::default(), 0));
}

/// A source that notes what it is asked for, and answers when it is let.
#[derive(Clone)]
struct Held {
    asked: Arc<Mutex<Vec<usize>>>,
    let_go: Arc<Semaphore>,
    streams: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Held {
    async fn answer(self, mut far: tokio::io::DuplexStream) {
        let now = self.streams.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
        let mut request = [0; REQUEST_HEAD_BYTES + 32];
        while far.read_exact(&mut request).await.is_ok() {
            let names = |index: &usize| digest(&content(*index)).0 == request[REQUEST_HEAD_BYTES..];
            let index = (0..10).find(names).expect("an item of the test");
            self.asked.lock().unwrap().push(index);
            self.let_go.acquire().await.expect("it stays open").forget();
            let bytes = content(index);
            let head: [u8; ANSWER_HEAD_BYTES] = encode_answer(Ok(bytes.len() as u64));
            far.write_all(&[&head[..], &bytes].concat()).await.expect("it is read");
        }
        self.streams.fetch_sub(1, Ordering::Relaxed);
    }

    async fn until_asked_for(&self, items: usize) {
        while self.asked.lock().unwrap().len() < items {
            tokio::task::yield_now().await;
        }
    }
}

/// Before, the next update was begun when the last piece of the one before was here.
#[tokio::test]
async fn the_next_download_begins_while_the_last_items_of_the_first_are_on_their_way() {
    let (first, second) = (0..STREAMS_PER_SOURCE + 1, STREAMS_PER_SOURCE + 1..STREAMS_PER_SOURCE + 3);
    let count = || Arc::new(AtomicUsize::new(0));
    let source = Held { asked: Arc::default(), let_go: Arc::new(Semaphore::new(0)), streams: count(), most: count() };
    let opened = source.clone();
    let open: OpenFetch = Arc::new(move |_| {
        let source = opened.clone();
        Box::pin(async move {
            let (near, far) = tokio::io::duplex(64 << 10);
            tokio::spawn(source.answer(far));
            Ok(BulkStream::new(near))
        })
    });
    let check: Check = Arc::new(|item, bytes| bytes == content(item.index));
    let downloader = Downloader::new(open, check, Arc::new(|_| false)).within(Lanes::default());
    let items = |indices: std::ops::Range<usize>| -> Vec<Item> {
        let part = |bytes: &[u8]| (FetchRequest::StateChunk(digest(bytes)), Expect::Exactly(bytes.len() as u64));
        indices.map(|index| Item { index, parts: vec![part(&content(index))] }).collect()
    };
    let ((done, _came), (also_done, _also_came)) = (mpsc::channel(9), mpsc::channel(9));
    let sources = [id(0)];
    let letting = async {
        source.until_asked_for(STREAMS_PER_SOURCE).await;
        source.let_go.add_permits(2);
        source.until_asked_for(STREAMS_PER_SOURCE + 2).await;
        let mut last = source.asked.lock().unwrap()[STREAMS_PER_SOURCE..].to_vec();
        last.sort_unstable();
        assert_eq!(last, [first.end - 1, second.start], "the first has two items on their way");
        source.let_go.add_permits(9);
    };
    let all = async {
        let second = downloader.run(items(second.clone()), &sources, also_done);
        tokio::join!(downloader.run(items(first.clone()), &sources, done), second, letting)
    };
    let (first, second, ()) = tokio::time::timeout(Duration::from_secs(9), all).await.expect("nobody is in the way");
    assert!(first.is_ok() && second.is_ok());
    assert!(source.most.load(Ordering::Relaxed) <= STREAMS_PER_SOURCE, "no more streams than one download has");
}
