//! Serves `/starling/fetch/3`: state chunks, records, updates and data by hash or number.
//!
//! What is served is decided by a [`FetchSource`]; here is what keeps a greedy or slow peer from hurting:
//! so many streams a peer and in all ([`Books`]), so many requests read from disk at once, few large answers at once
//! ([`Turns`]), and a deadline for each piece of an answer, so that nobody holds an answer in our memory by not reading it.
//! Strangers have half of all of these, and members the rest. Requests of strangers at one address, and the answers to them,
//! have a budget ([`Standing::charge_fetch`]).

use super::pace::{Pace, Slowness};
use super::turns::{Turn, Turns};
use super::wire::{ANSWER_HEAD_BYTES, FetchRefusal, FetchRequest, FetchWireError, encode_answer};
use crate::net::books::{Books, Shares};
use crate::net::budget::Cost;
use crate::net::standing::{Rank, Standing};
use starling_protocol::NodeId;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// Streams that peers may have open. A downloader has four at each source.
pub const STREAMS: Shares = Shares { total: 64, per_known: 8, strangers: 32, per_stranger: 4, per_address: 16 };
/// Requests that are looked up and sent at the same time, and of them those of strangers.
const SERVING_AT_ONCE: (usize, usize) = (16, 8);
/// Of them, requests whose answers may be as large as the model.
const LARGE_AT_ONCE: (usize, usize) = (2, 1);
/// Requests that are looked up at the same time, each on a thread of its own, and of them those of strangers.
const LOOKED_UP_AT_ONCE: (usize, usize) = (16, 2);
/// How long a stream for which there is no place waits for one, before it is ended.
const SECOND_LOOK: Duration = Duration::from_millis(200);
/// Answers are written in pieces of this size.
const PIECE_BYTES: usize = 64 * 1024;
/// Longest that one waits for what a stranger's address has spent.
const PIECE_WAIT_MAX: Duration = Duration::from_millis(50);

/// How long the server waits.
#[derive(Clone, Copy, Debug)]
pub struct ServerPatience {
    /// For a request's turn, before the peer is told that we are busy.
    pub turn: Duration,
    /// For the next request on a stream.
    pub idle: Duration,
    /// For the rest of a begun request, and for each piece of an answer to be taken.
    pub piece: Duration,
    /// For a stranger's address to have earned what it has spent, before the stranger is told that we are busy.
    pub budget: Duration,
    /// With those who take an answer slowly while others wait for a turn.
    pub slowness: Slowness,
}

impl Default for ServerPatience {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            turn: seconds(5),
            idle: seconds(60),
            piece: seconds(20),
            budget: seconds(10),
            slowness: Slowness::default(),
        }
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
    #[error("it took the answer too slowly while others waited")]
    Slow,
    #[error("too many fetch streams are open")]
    TooManyStreams,
    #[error("it made way for a stream of somebody else")]
    GaveWay,
    #[error(transparent)]
    Malformed(#[from] FetchWireError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl ServeEnd {
    /// The label of `starling_refused_total`, for ends that are the peer's fault.
    fn refusal(&self) -> Option<&'static str> {
        match self {
            // That one stream made way for another is counted there.
            Self::Closed | Self::Idle | Self::Io(_) | Self::GaveWay => None,
            Self::Slow => Some("fetch_slow"),
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
    books: Books,
    standing: Standing,
    serving: Turns,
    large: Turns,
    looking_up: Turns,
}

impl FetchServer {
    pub fn new(source: Arc<dyn FetchSource>, patience: ServerPatience, standing: Standing) -> Self {
        Self {
            source,
            patience,
            books: Books::new(STREAMS, standing.clone()),
            standing,
            serving: Turns::new(SERVING_AT_ONCE),
            large: Turns::new(LARGE_AT_ONCE),
            looking_up: Turns::new(LOOKED_UP_AT_ONCE),
        }
    }

    /// Serves one stream until it ends, and says why it did.
    pub async fn serve<S: AsyncRead + AsyncWrite + Unpin>(&self, peer: NodeId, io: &mut S) -> ServeEnd {
        let mut slot = self.books.take(peer);
        if slot.is_none() {
            // A downloader begins where it has just ended another stream, whose end may not have been noticed yet.
            sleep(SECOND_LOOK).await;
            slot = self.books.take(peer);
        }
        let end = match slot {
            Some(slot) => tokio::select! {
                end = self.serve_requests(peer, io) => end,
                () = slot.ended() => ServeEnd::GaveWay,
            },
            None => ServeEnd::TooManyStreams,
        };
        if let Some(reason) = end.refusal() {
            metrics::counter!("starling_refused_total", "reason" => reason).increment(1);
            tracing::debug!(peer = %peer.short(), %end, "fetch stream ended");
        }
        end
    }

    async fn serve_requests<S: AsyncRead + AsyncWrite + Unpin>(&self, peer: NodeId, io: &mut S) -> ServeEnd {
        loop {
            let request = match self.read_request(io).await {
                Ok(request) => request,
                Err(ServeEnd::Malformed(error)) => {
                    // The peer may be gone already; the stream ends either way.
                    drop(self.write_answer(io, Err(FetchRefusal::BadRequest), (peer, None)).await);
                    return ServeEnd::Malformed(error);
                }
                Err(end) => return end,
            };
            let (answer, turn) = match self.has_budget(peer).await {
                true => self.answer(request, peer).await,
                false => (Err(FetchRefusal::Busy), None),
            };
            if let Err(refusal) = answer {
                metrics::counter!("starling_refused_total", "reason" => refusal.label()).increment(1);
            }
            if let Err(end) = self.write_answer(io, answer, (peer, turn.as_ref())).await {
                return end;
            }
        }
    }

    /// Whether one more request of the peer's may be served, once its address can pay for it. A peer that has to wait for long is told
    /// so, but not before its time, or it would ask again at once.
    async fn has_budget(&self, peer: NodeId) -> bool {
        let cost = Cost { messages: 1, bytes: 0 };
        let Some(wait) = self.standing.charge_fetch(&peer, cost, Instant::now()) else { return true };
        sleep(wait.min(self.patience.budget)).await;
        if wait > self.patience.budget {
            metrics::counter!("starling_refused_total", "reason" => "fetch_budget").increment(1);
        }
        wait <= self.patience.budget
    }

    /// The answer, and the turn that is held until it is written.
    async fn answer(&self, request: FetchRequest, peer: NodeId) -> (Result<Vec<u8>, FetchRefusal>, Option<Held>) {
        let Ok((turn, looking_up)) = timeout(self.patience.turn, self.turn(&request, self.books.rank(&peer))).await
        else {
            return (Err(FetchRefusal::Busy), None);
        };
        let (source, asked) = (Arc::clone(&self.source), request.clone());
        let serve = move || {
            // Held to the end of the work, also when whoever asked is gone.
            let _looking_up = looking_up;
            let began = std::time::Instant::now();
            let answer = source.serve(&asked);
            #[cfg(feature = "evil")]
            let answer = crate::evil::served(&asked, answer);
            (answer, began.elapsed())
        };
        let answer = match tokio::task::spawn_blocking(serve).await {
            Ok((answer, took)) => {
                if is_searched_for(&request) {
                    // Whoever is in debt waits before the next request.
                    let _ = self.standing.charge_fetch(&peer, Cost::of_search(took), Instant::now());
                }
                answer
            }
            Err(error) => {
                tracing::error!(%error, ?request, "looking up what a peer asked for failed");
                Err(FetchRefusal::Internal)
            }
        };
        (answer, Some(turn))
    }

    /// Leave to look it up and to send it, and to look it up now.
    async fn turn(&self, request: &FetchRequest, rank: Rank) -> (Held, Turn) {
        let large = if is_large(request) { Some(self.large.take(rank).await) } else { None };
        let held = Held { large, serving: self.serving.take(rank).await };
        (held, self.looking_up.take(rank).await)
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
            body.resize(len + FetchRequest::rest_len(kind, &body)?, 0);
            io.read_exact(&mut body[len..]).await?;
            Ok::<_, ServeEnd>(FetchRequest::decode_body(kind, &body)?)
        };
        timeout(self.patience.piece, rest).await.map_err(|_| ServeEnd::Stalled)?
    }

    async fn write_answer<S: AsyncWrite + Unpin>(
        &self,
        io: &mut S,
        answer: Result<Vec<u8>, FetchRefusal>,
        (peer, turn): (NodeId, Option<&Held>),
    ) -> Result<(), ServeEnd> {
        let head: [u8; ANSWER_HEAD_BYTES] =
            encode_answer(answer.as_ref().map(|bytes| bytes.len() as u64).map_err(|e| *e));
        let payload = answer.unwrap_or_default();
        let mut pace = Pace::new(self.patience.slowness, self.books.rank(&peer), Instant::now());
        for piece in [&head[..]].into_iter().chain(payload.chunks(PIECE_BYTES)) {
            self.write_in_time(io, piece, turn, &mut pace).await?;
            if let Some(wait) = self.standing.charge_fetch(&peer, Cost::of_bytes(piece.len()), Instant::now()) {
                // Debts that searches have made are paid before the next request.
                sleep(wait.min(PIECE_WAIT_MAX)).await;
            }
        }
        timeout(self.patience.piece, io.flush()).await.map_err(|_| ServeEnd::Stalled)??;
        Ok(())
    }

    async fn write_in_time<S: AsyncWrite + Unpin>(
        &self,
        io: &mut S,
        bytes: &[u8],
        turn: Option<&Held>,
        pace: &mut Pace,
    ) -> Result<(), ServeEnd> {
        let deadline = Instant::now() + self.patience.piece;
        let mut writing = std::pin::pin!(io.write_all(bytes));
        loop {
            let look = pace.look_at().min(deadline);
            let written = timeout_at(look, &mut writing).await;
            if let Ok(done) = written {
                pace.took(bytes.len());
                return Ok(done?);
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(ServeEnd::Stalled);
            }
            if pace.is_slow(now) && turn.is_some_and(Held::is_wanted) {
                return Err(ServeEnd::Slow);
            }
        }
    }
}

/// Whether the answer may be as large as the model.
fn is_large(request: &FetchRequest) -> bool {
    matches!(request, FetchRequest::Update { .. } | FetchRequest::UpdateByDigest(_))
}

/// Whether the answer is searched for in the chain, which may take long.
fn is_searched_for(request: &FetchRequest) -> bool {
    matches!(request, FetchRequest::Path { .. } | FetchRequest::Records { .. } | FetchRequest::SnapshotManifests)
}

/// Leave to look something up and send it.
struct Held {
    large: Option<Turn>,
    serving: Turn,
}

impl Held {
    /// Whether somebody waits to whom this turn would have to be left.
    fn is_wanted(&self) -> bool {
        self.serving.is_wanted() || self.large.as_ref().is_some_and(Turn::is_wanted)
    }
}
