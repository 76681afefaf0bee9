//! Serves `/starling/fetch/2`: state chunks, records, updates and data by hash or number.
//!
//! What is served is decided by a [`FetchSource`]; here is what keeps a greedy or slow peer from hurting:
//! so many streams a peer and in all, so many requests read from disk at once, few large answers at once, and a
//! deadline for each piece of an answer, so that nobody holds an answer in our memory by not reading it.

use super::wire::{ANSWER_HEAD_BYTES, FetchRefusal, FetchRequest, FetchWireError, encode_answer};
use starling_protocol::NodeId;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Streams that one peer may have open.
pub const STREAMS_PER_PEER: usize = 8;
/// Streams that all peers together may have open.
pub const STREAMS_TOTAL: usize = 64;
/// Requests that are looked up and sent at the same time.
const SERVING_AT_ONCE: usize = 16;
/// Of them, requests whose answers may be as large as the model.
const LARGE_AT_ONCE: usize = 2;
/// Answers are written in pieces of this size.
const PIECE_BYTES: usize = 64 * 1024;

/// How long the server waits.
#[derive(Clone, Copy, Debug)]
pub struct ServerPatience {
    /// For a request's turn, before the peer is told that we are busy.
    pub turn: Duration,
    /// For the next request on a stream.
    pub idle: Duration,
    /// For the rest of a begun request, and for each piece of an answer to be taken.
    pub piece: Duration,
}

impl Default for ServerPatience {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { turn: seconds(5), idle: seconds(60), piece: seconds(20) }
    }
}

/// What can be fetched from this node. Called on a thread that may block.
pub trait FetchSource: Send + Sync + 'static {
    /// The payload that answers `request`, in the layout that `wire` says.
    ///
    /// # Errors
    /// Why there is none; the peer is told.
    fn serve(&self, request: &FetchRequest) -> Result<Vec<u8>, FetchRefusal>;
}

/// Serves nothing: for a node that has nothing yet, and for tests.
pub struct NothingToFetch;

impl FetchSource for NothingToFetch {
    fn serve(&self, _: &FetchRequest) -> Result<Vec<u8>, FetchRefusal> {
        Err(FetchRefusal::NotFound)
    }
}

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeEnd {
    #[error("the peer closed it")]
    Closed,
    #[error("no request for too long")]
    Idle,
    #[error("no progress for too long")]
    Stalled,
    #[error("too many fetch streams are open")]
    TooManyStreams,
    #[error(transparent)]
    Malformed(#[from] FetchWireError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl ServeEnd {
    /// The label of `starling_refused_total`, for ends that are the peer's fault.
    fn refusal(&self) -> Option<&'static str> {
        match self {
            Self::Closed | Self::Idle | Self::Io(_) => None,
            Self::Stalled => Some("fetch_stalled"),
            Self::TooManyStreams => Some("fetch_streams"),
            Self::Malformed(_) => Some("fetch_malformed"),
        }
    }
}

/// The server; cheap to clone.
#[derive(Clone)]
pub struct FetchServer {
    source: Arc<dyn FetchSource>,
    patience: ServerPatience,
    serving: Arc<Semaphore>,
    large: Arc<Semaphore>,
    streams: Arc<Mutex<BTreeMap<NodeId, usize>>>,
}

impl FetchServer {
    pub fn new(source: Arc<dyn FetchSource>, patience: ServerPatience) -> Self {
        Self {
            source,
            patience,
            serving: Arc::new(Semaphore::new(SERVING_AT_ONCE)),
            large: Arc::new(Semaphore::new(LARGE_AT_ONCE)),
            streams: Arc::default(),
        }
    }

    /// Serves one stream until it ends, and says why it did.
    pub async fn serve<S: AsyncRead + AsyncWrite + Unpin>(&self, peer: NodeId, io: &mut S) -> ServeEnd {
        let end = match StreamSlot::take(&self.streams, peer) {
            Some(_slot) => self.serve_requests(io).await,
            None => ServeEnd::TooManyStreams,
        };
        if let Some(reason) = end.refusal() {
            metrics::counter!("starling_refused_total", "reason" => reason).increment(1);
            tracing::debug!(peer = %peer.short(), %end, "fetch stream ended");
        }
        end
    }

    async fn serve_requests<S: AsyncRead + AsyncWrite + Unpin>(&self, io: &mut S) -> ServeEnd {
        loop {
            let request = match self.read_request(io).await {
                Ok(request) => request,
                Err(ServeEnd::Malformed(error)) => {
                    // The peer may be gone already; the stream ends either way.
                    drop(self.write_answer(io, Err(FetchRefusal::BadRequest)).await);
                    return ServeEnd::Malformed(error);
                }
                Err(end) => return end,
            };
            let (answer, _turn) = self.answer(request).await;
            if let Err(refusal) = answer {
                metrics::counter!("starling_refused_total", "reason" => refusal.label()).increment(1);
            }
            if let Err(end) = self.write_answer(io, answer).await {
                return end;
            }
        }
    }

    /// The answer, and the turn that is held until it is written.
    async fn answer(&self, request: FetchRequest) -> (Result<Vec<u8>, FetchRefusal>, Option<Turn>) {
        let Ok(Some(turn)) = timeout(self.patience.turn, self.turn(&request)).await else {
            return (Err(FetchRefusal::Busy), None);
        };
        let source = Arc::clone(&self.source);
        let serve = move || {
            let answer = source.serve(&request);
            #[cfg(feature = "evil")]
            let answer = crate::evil::served(&request, answer);
            answer
        };
        let answer = match tokio::task::spawn_blocking(serve).await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::error!(%error, ?request, "looking up what a peer asked for failed");
                Err(FetchRefusal::Internal)
            }
        };
        (answer, Some(turn))
    }

    async fn turn(&self, request: &FetchRequest) -> Option<Turn> {
        let large = match request {
            FetchRequest::Update { .. } | FetchRequest::UpdateByDigest(_) => {
                Some(Arc::clone(&self.large).acquire_owned().await.ok()?)
            }
            _ => None,
        };
        Some(Turn { _large: large, _serving: Arc::clone(&self.serving).acquire_owned().await.ok()? })
    }

    async fn read_request<S: AsyncRead + Unpin>(&self, io: &mut S) -> Result<FetchRequest, ServeEnd> {
        let mut head = [0; super::wire::REQUEST_HEAD_BYTES];
        let first = timeout(self.patience.idle, io.read(&mut head[..1])).await.map_err(|_| ServeEnd::Idle)??;
        if first == 0 {
            return Err(ServeEnd::Closed);
        }
        let rest = async {
            io.read_exact(&mut head[1..]).await?;
            let (kind, len) = FetchRequest::body_len(&head)?;
            let mut body = vec![0; len];
            io.read_exact(&mut body).await?;
            Ok::<_, ServeEnd>(FetchRequest::decode_body(kind, &body)?)
        };
        timeout(self.patience.piece, rest).await.map_err(|_| ServeEnd::Stalled)?
    }

    async fn write_answer<S: AsyncWrite + Unpin>(
        &self,
        io: &mut S,
        answer: Result<Vec<u8>, FetchRefusal>,
    ) -> Result<(), ServeEnd> {
        let head: [u8; ANSWER_HEAD_BYTES] =
            encode_answer(answer.as_ref().map(|bytes| bytes.len() as u64).map_err(|e| *e));
        let payload = answer.unwrap_or_default();
        self.write_in_time(io, &head).await?;
        for piece in payload.chunks(PIECE_BYTES) {
            self.write_in_time(io, piece).await?;
        }
        timeout(self.patience.piece, io.flush()).await.map_err(|_| ServeEnd::Stalled)??;
        Ok(())
    }

    async fn write_in_time<S: AsyncWrite + Unpin>(&self, io: &mut S, bytes: &[u8]) -> Result<(), ServeEnd> {
        Ok(timeout(self.patience.piece, io.write_all(bytes)).await.map_err(|_| ServeEnd::Stalled)??)
    }
}

/// Leave to look something up and send it.
struct Turn {
    _large: Option<OwnedSemaphorePermit>,
    _serving: OwnedSemaphorePermit,
}

/// One open stream in the books.
struct StreamSlot {
    streams: Arc<Mutex<BTreeMap<NodeId, usize>>>,
    peer: NodeId,
}

fn lock(streams: &Mutex<BTreeMap<NodeId, usize>>) -> MutexGuard<'_, BTreeMap<NodeId, usize>> {
    streams.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StreamSlot {
    fn take(streams: &Arc<Mutex<BTreeMap<NodeId, usize>>>, peer: NodeId) -> Option<Self> {
        let mut open = lock(streams);
        let total: usize = open.values().sum();
        let of_peer = open.get(&peer).copied().unwrap_or(0);
        if total >= STREAMS_TOTAL || of_peer >= STREAMS_PER_PEER {
            return None;
        }
        open.insert(peer, of_peer + 1);
        Some(Self { streams: Arc::clone(streams), peer })
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        let mut open = lock(&self.streams);
        match open.get_mut(&self.peer) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(open.remove(&self.peer)),
        }
    }
}
