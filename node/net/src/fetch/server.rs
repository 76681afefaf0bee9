//! Serves `/starling/fetch/8`: state chunks, records, updates and data by hash or number.
//!
//! A [`FetchSource`] decides what is served. This module keeps a greedy or slow peer from hurting: limits on streams,
//! for a peer and in all ([`Books`]), a limit on requests that are looked up at once ([`Turns`]), and a deadline for
//! each piece of an answer. Turns end before the first byte is written, and large answers are read piece by piece as
//! they are taken ([`Answer`]). So a peer that reads slowly, or not at all, holds only its own stream, and nothing that
//! others wait for. Strangers have half of the streams, and members the rest. The streams, requests and answers of
//! strangers at one address have a budget of processor time ([`Standing::charge_fetch`]), and their answers one of this
//! node's memory ([`Standing::answers`]). A newcomer is sent the state before its address has to wait
//! ([`FetchSource::newcomer_bytes`]).

use super::answer::Answer;
use super::turns::{Turn, Turns};
use super::wire::{ANSWER_HEAD_BYTES, FetchRefusal, FetchRequest, FetchWireError, encode_answer};
use crate::books::{Books, Shares};
use crate::budget::{REQUEST_WORK, STREAM_WORK, sending, serving};
use crate::standing::{Rank, Standing};
use rustix::time::{ClockId, clock_gettime};
use starling_protocol::NodeId;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep, timeout};

/// Streams that peers may have open. A downloader has three at each source (`STREAMS_PER_SOURCE`).
pub const STREAMS: Shares = Shares { total: 64, per_known: 8, strangers: 32, per_stranger: 4, per_address: 16 };
/// Requests that are looked up at the same time, each on a thread of its own: those of all peers, and those of
/// strangers.
const LOOKED_UP_AT_ONCE: (usize, usize) = (16, 2);
/// The same for requests whose answers are read whole to be checked, and may be as large as the model.
const LARGE_AT_ONCE: (usize, usize) = (2, 1);
/// Pieces of files that are read at the same time: those for all peers, and those for strangers. Each reading thread
/// keeps some mebibytes of memory for itself, as long as it lives.
const READ_AT_ONCE: (usize, usize) = (16, 2);
/// The time that a stream without a place waits for one, before it is ended.
const SECOND_LOOK: Duration = Duration::from_millis(200);
/// Files are read in pieces of this size.
const PIECE_BYTES: usize = 64 * 1024;
/// Answers to a stranger are written in pieces of this size: the connection's muxer keeps ten for each stream whose
/// reader takes nothing.
const STRANGERS_PIECE_BYTES: usize = 16 * 1024;
/// Longest wait of a piece for the budget of a stranger's address. With it, an answer that has begun comes faster than
/// its asker's patience ends.
const PIECE_WAIT_MAX: Duration = Duration::from_millis(500);
/// The time that a stranger's request waits for the stranger to be admitted, where the answer depends on it, and the
/// pause between two looks.
const ADMITTED_WITHIN: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The longest waits of the server.
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
}

impl Default for ServerPatience {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { turn: seconds(5), idle: seconds(60), piece: seconds(20), budget: seconds(10) }
    }
}

/// The source of the things that can be fetched from this node. Called on a thread that may block.
pub trait FetchSource: Send + Sync + 'static {
    /// Answers `request`, in the layout of `wire`.
    ///
    /// # Errors
    /// The reason why there is no answer, which the peer is told.
    fn serve(&self, request: &FetchRequest) -> Result<Answer, FetchRefusal>;

    /// The same for a stranger: a peer that is no member, and of which this node does not know that the run admits it.
    ///
    /// # Errors
    /// As [`FetchSource::serve`].
    fn serve_stranger(&self, request: &FetchRequest) -> Result<Answer, FetchRefusal> {
        self.serve(request)
    }

    /// Whether strangers are answered otherwise. A newcomer says that the run admits it while it asks.
    fn minds_strangers(&self, _request: &FetchRequest) -> bool {
        false
    }

    /// Most bytes that a newcomer needs of one node before it can train: those of the state.
    fn newcomer_bytes(&self) -> u64 {
        0
    }
}

/// Serves nothing: for a node that has nothing yet, and for tests.
pub struct NothingToFetch;

impl FetchSource for NothingToFetch {
    fn serve(&self, _: &FetchRequest) -> Result<Answer, FetchRefusal> {
        Err(FetchRefusal::NotFound)
    }
}

/// The end of a stream.
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
    #[error("it made way for another peer's stream")]
    GaveWay,
    #[error(transparent)]
    Malformed(#[from] FetchWireError),
    #[error("the stream broke: {}", starling_words::of(.0))]
    Io(#[from] io::Error),
}

impl ServeEnd {
    /// The label of `starling_refused_total`, for ends that are the peer's fault.
    fn refusal(&self) -> Option<&'static str> {
        match self {
            // A stream that made way for another is counted in the books.
            Self::Closed | Self::Idle | Self::Io(_) | Self::GaveWay => None,
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
    looking_up: Turns,
    large: Turns,
    reading: Turns,
}

impl FetchServer {
    pub fn new(source: Arc<dyn FetchSource>, patience: ServerPatience, standing: Standing) -> Self {
        Self {
            source,
            patience,
            books: Books::new(STREAMS, standing.clone()),
            standing,
            looking_up: Turns::new(LOOKED_UP_AT_ONCE),
            large: Turns::new(LARGE_AT_ONCE),
            reading: Turns::new(READ_AT_ONCE),
        }
    }

    /// Serves one stream until it ends, and returns the reason.
    pub async fn serve<S: AsyncRead + AsyncWrite + Unpin>(&self, peer: NodeId, io: &mut S) -> ServeEnd {
        if self.books.rank(&peer) == Rank::Stranger {
            self.standing.grant_newcomers(serving(self.source.newcomer_bytes()));
        }
        // A stream without a place is charged as well: most of its cost is spent by now. Its first request waits until
        // it is paid.
        let _ = self.standing.charge_fetch(&peer, STREAM_WORK, Instant::now());
        let mut slot = self.books.take(peer);
        if slot.is_none() {
            // A downloader opens a stream where it has just ended another one, whose end may not have been noticed yet.
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
                    drop(self.write_answer(io, Err(FetchRefusal::BadRequest), peer).await);
                    return ServeEnd::Malformed(error);
                }
                Err(end) => return end,
            };
            // Held until the answer is written.
            let (answer, _room) = match self.has_budget(peer).await {
                true => {
                    self.admitted(&request, &peer).await;
                    self.answer(request, peer).await
                }
                false => (Err(FetchRefusal::Busy), None),
            };
            if let Err(refusal) = answer {
                metrics::counter!("starling_refused_total", "reason" => refusal.label()).increment(1);
            }
            if let Err(end) = self.write_answer(io, answer, peer).await {
                return end;
            }
        }
    }

    /// Returns whether one more request of the peer's may be served, once its address can pay for it. A peer whose wait
    /// is too long is told so, but only after waiting, or it would ask again at once.
    async fn has_budget(&self, peer: NodeId) -> bool {
        let Some(wait) = self.standing.charge_fetch(&peer, REQUEST_WORK, Instant::now()) else { return true };
        sleep(wait.min(self.patience.budget)).await;
        if wait > self.patience.budget {
            metrics::counter!("starling_refused_total", "reason" => "fetch_budget").increment(1);
        }
        wait <= self.patience.budget
    }

    /// Waits a moment for a stranger to be admitted, if the answer depends on it: its Join may be on its way. It holds
    /// up the stranger's own stream only.
    async fn admitted(&self, request: &FetchRequest, peer: &NodeId) {
        if !self.source.minds_strangers(request) {
            return;
        }
        let known = async {
            while self.books.rank(peer) == Rank::Stranger {
                sleep(LOOK_AGAIN).await;
            }
        };
        // A stranger stays one after that, and is answered as such.
        drop(timeout(ADMITTED_WITHIN, known).await);
    }

    /// Looks the answer up, and returns it with its room in the memory share of the peer's address.
    async fn answer(&self, request: FetchRequest, peer: NodeId) -> (Result<Answer, FetchRefusal>, Option<Room>) {
        let Ok((room, turns)) = timeout(self.patience.turn, self.turns(&request, &peer)).await else {
            return (Err(FetchRefusal::Busy), None);
        };
        let (source, standing, asked) = (Arc::clone(&self.source), self.standing.clone(), request.clone());
        let is_stranger = self.books.rank(&peer) == Rank::Stranger;
        let serve = move || {
            // Held to the end of the work and no longer, even when the asker is gone.
            let _turns = turns;
            let began = thread_time();
            let answer = if is_stranger { source.serve_stranger(&asked) } else { source.serve(&asked) };
            // The search, the read and the check are charged even if the peer does not take the answer. A peer in debt
            // waits before the pieces and before the next request.
            let _ = standing.charge_fetch(&peer, thread_time().saturating_sub(began), Instant::now());
            answer
        };
        let answer = tokio::task::spawn_blocking(serve).await.unwrap_or_else(|error| {
            tracing::error!(%error, ?request, "looking up what a peer asked for failed");
            Err(FetchRefusal::Internal)
        });
        (answer, room)
    }

    /// Waits for room for the answer, and for the turn to look it up.
    async fn turns(&self, request: &FetchRequest, peer: &NodeId) -> (Option<Room>, (Option<Turn>, Turn)) {
        let answers = if is_read_as_taken(request) { None } else { self.standing.answers(peer) };
        let room = match answers {
            // The semaphore is never closed; if it were, nobody would have to wait.
            Some(answers) => answers.acquire_owned().await.ok(),
            None => None,
        };
        let rank = self.books.rank(peer);
        let large = if is_large(request) { Some(self.large.take(rank).await) } else { None };
        (room, (large, self.looking_up.take(rank).await))
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
        answer: Result<Answer, FetchRefusal>,
        peer: NodeId,
    ) -> Result<(), ServeEnd> {
        let head: [u8; ANSWER_HEAD_BYTES] = encode_answer(answer.as_ref().map(Answer::length).map_err(|e| *e));
        self.write_piece(io, &head, peer).await?;
        match answer {
            Ok(Answer::Bytes(bytes)) => {
                for piece in bytes.chunks(PIECE_BYTES) {
                    self.pay_for(piece.len(), peer).await;
                    self.write_piece(io, piece, peer).await?;
                }
            }
            Ok(Answer::File { mut file, len }) => {
                let mut left = len;
                while left > 0 {
                    let size = usize::try_from(left).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
                    self.pay_for(size, peer).await;
                    let turn = self.reading.take(self.books.rank(&peer)).await;
                    let read = move || {
                        // Held to the end of the work.
                        let _turn = turn;
                        let mut piece = vec![0; size];
                        file.read_exact(&mut piece).map(|()| (file, piece))
                    };
                    let piece;
                    (file, piece) = tokio::task::spawn_blocking(read).await.map_err(io::Error::other)??;
                    self.write_piece(io, &piece, peer).await?;
                    left -= size as u64;
                }
            }
            Err(_) => {}
        }
        timeout(self.patience.piece, io.flush()).await.map_err(|_| ServeEnd::Stalled)??;
        Ok(())
    }

    /// Waits until a stranger's address can pay for so many bytes, or for as long as a piece may wait. Called before
    /// the bytes are read, so that none are in memory meanwhile.
    async fn pay_for(&self, bytes: usize, peer: NodeId) {
        if let Some(wait) = self.standing.charge_fetch(&peer, sending(bytes as u64), Instant::now()) {
            // Large debts are paid before the next request.
            sleep(wait.min(PIECE_WAIT_MAX)).await;
        }
    }

    async fn write_piece<S: AsyncWrite + Unpin>(&self, io: &mut S, piece: &[u8], peer: NodeId) -> Result<(), ServeEnd> {
        let size = if self.books.rank(&peer) == Rank::Stranger { STRANGERS_PIECE_BYTES } else { PIECE_BYTES };
        let write = async {
            for part in piece.chunks(size) {
                io.write_all(part).await?;
            }
            Ok::<_, io::Error>(())
        };
        timeout(self.patience.piece, write).await.map_err(|_| ServeEnd::Stalled)??;
        Ok(())
    }
}

/// Processor time of this thread so far: no peer pays for the waits on a busy machine.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Room for one answer in the share of this node's memory that a stranger's address has.
type Room = OwnedSemaphorePermit;

/// Whether the answer may be as large as the model.
fn is_whole(request: &FetchRequest) -> bool {
    matches!(request, FetchRequest::Update { .. } | FetchRequest::UpdateByDigest(_))
}

/// Whether bytes as large as the model may have to be read to look the answer up.
fn is_large(request: &FetchRequest) -> bool {
    is_whole(request) || matches!(request, FetchRequest::UpdatePieces(_) | FetchRequest::UpdatePiece { .. })
}

/// Whether the answer lies in a file, of which at most a piece is in memory at a time.
fn is_read_as_taken(request: &FetchRequest) -> bool {
    is_whole(request) || matches!(request, FetchRequest::StateChunk(_))
}
