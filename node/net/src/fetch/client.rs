//! Asks one peer for something over `/starling/fetch/8`, and believes nothing about the answer but its hash.

use super::wire::{
    ANSWER_HEAD_BYTES, DATA_MANIFEST_BYTES_MAX, FetchRefusal, FetchRequest, FetchWireError, HELD_BYTES_MAX,
    PIECE_VALUES_BYTES_MAX, RECORDS_BYTES_MAX, SHARD_PIECE_BYTES, SNAPSHOT_BYTES_MAX, START_BYTES_MAX,
    UPDATE_PIECE_BYTES, decode_answer,
};
use crate::standing::Rank;
use starling_protocol::limits::{
    CANDIDATE_BYTES_MAX, PARAMETERS_MAX, PATH_BYTES_MAX, RUN_SPEC_BYTES_MAX, SCHEMA_BYTES_MAX, STATE_CHUNK_BYTES,
};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout, timeout_at};

/// Bytes of a payload that count as progress.
const PROGRESS_BYTES: usize = 64 * 1024;
/// Requests that are sent on one stream before the first of them is answered.
pub const REQUESTS_AT_ONCE: usize = 8;

/// The least rate of an answer in bytes a second. A stranger must send as fast as a line that keeps up with rounds of
/// the smallest model. Members and joiners need a quarter of that, since a slow one of them is no attack.
const PACE_OF_STRANGERS: u64 = 128 << 10;
const PACE_OF_KNOWN: u64 = 32 << 10;
/// The same on each of many streams, which share the asker's line.
const PACE_OF_MANY: u64 = 16 << 10;

/// The longest pause of a fellow before its answer and between its bytes.
const FELLOWS_PAUSE: Duration = Duration::from_secs(4);

/// The longest waits of an asker.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For the head of an answer: the peer may have to wait for its turn and for its disk.
    pub head: Duration,
    /// For each 64 KiB of a payload, and for the rest of it.
    pub progress: Duration,
    /// The least bytes a second, after a first time of `progress`.
    pub pace: u64,
}

impl Default for Patience {
    fn default() -> Self {
        Self { head: Duration::from_secs(30), progress: Duration::from_secs(10), pace: PACE_OF_KNOWN }
    }
}

impl Patience {
    /// The patience with one request to a peer of this rank.
    pub fn with(rank: Rank) -> Self {
        let pace = if rank == Rank::Stranger { PACE_OF_STRANGERS } else { PACE_OF_KNOWN };
        Self { pace, ..Self::default() }
    }

    /// The patience with each of many streams to many peers.
    pub fn with_many() -> Self {
        Self { pace: PACE_OF_MANY, ..Self::default() }
    }

    /// The same with a peer that need not have anything, so that others may be asked at once.
    pub fn with_fellow() -> Self {
        Self { head: FELLOWS_PAUSE, progress: FELLOWS_PAUSE, ..Self::with_many() }
    }

    /// The time in which so many bytes of a payload must have come.
    fn payload(&self, bytes: u64) -> Duration {
        self.progress.saturating_add(Duration::from_secs(bytes / self.pace.max(1)))
    }

    /// The time for so many bytes in several answers.
    pub fn in_all(&self, bytes: u64) -> Duration {
        self.head.saturating_add(self.payload(bytes))
    }
}

/// The length that an answer may have. Checked before anything is allocated for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    AtMost(u64),
    /// For a payload of known length: a state chunk, an update.
    Exactly(u64),
}

impl Expect {
    /// The limit when the asker knows nothing more. For an update it is absurdly high: pass its length instead.
    pub fn of(request: &FetchRequest) -> Self {
        Self::AtMost(match request {
            FetchRequest::Spec => RUN_SPEC_BYTES_MAX as u64,
            FetchRequest::StateChunk(_) => STATE_CHUNK_BYTES as u64,
            FetchRequest::Records { .. } => RECORDS_BYTES_MAX,
            FetchRequest::Update { .. } | FetchRequest::UpdateByDigest(_) => 2 * PARAMETERS_MAX,
            FetchRequest::Candidate(_) => CANDIDATE_BYTES_MAX as u64,
            FetchRequest::DataManifest(_) => DATA_MANIFEST_BYTES_MAX,
            FetchRequest::ShardPiece { .. } => SHARD_PIECE_BYTES,
            FetchRequest::Path { .. } => PATH_BYTES_MAX as u64,
            FetchRequest::ChunksHeld(_) => HELD_BYTES_MAX as u64,
            FetchRequest::UpdatePieces(_) => PIECE_VALUES_BYTES_MAX,
            FetchRequest::UpdatePiece { .. } => UPDATE_PIECE_BYTES,
            FetchRequest::Start { .. } => START_BYTES_MAX,
            FetchRequest::Beginning => SNAPSHOT_BYTES_MAX as u64,
            FetchRequest::Schema => SCHEMA_BYTES_MAX as u64,
        })
    }

    /// The most bytes that may come.
    pub fn most(self) -> u64 {
        match self {
            Self::AtMost(bytes) | Self::Exactly(bytes) => bytes,
        }
    }

    fn admits(self, len: u64) -> bool {
        match self {
            Self::AtMost(max) => len <= max,
            Self::Exactly(exact) => len == exact,
        }
    }
}

/// The error of a fetch.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("no stream to the peer: {0}")]
    NoStream(String),
    #[error(transparent)]
    Refused(#[from] FetchRefusal),
    #[error("the peer sent something else than an answer: {0}")]
    Wire(#[from] FetchWireError),
    #[error("the peer announced {got} bytes where {expected:?} were expected")]
    Length { got: u64, expected: Expect },
    #[error("the peer did not answer in {0:?}")]
    NoAnswer(Duration),
    #[error("the answer made no progress: fewer than {PROGRESS_BYTES} bytes in {0:?}")]
    Stalled(Duration),
    #[error("the answer came too slowly: {got} bytes in {after:?}")]
    Slow { got: u64, after: Duration },
    #[error("the stream broke: {}", starling_words::of(.0))]
    Io(#[from] io::Error),
}

impl FetchError {
    /// Whether the stream can carry another request.
    pub fn stream_survives(&self) -> bool {
        matches!(self, Self::Refused(FetchRefusal::NotFound | FetchRefusal::Busy | FetchRefusal::Internal))
    }

    /// Whether the peer broke the protocol, as opposed to being slow, gone, or without the wanted bytes.
    pub fn is_violation(&self) -> bool {
        matches!(self, Self::Wire(_) | Self::Length { .. })
    }
}

/// Asks for one thing. After an error other than a refusal the stream is of no more use.
///
/// # Errors
/// [`FetchError`]; the payload's content is for the caller to check.
pub async fn request<S>(
    io: &mut S,
    request: &FetchRequest,
    expected: Expect,
    patience: Patience,
) -> Result<Vec<u8>, FetchError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let len = begin(io, request, expected, patience).await?;
    payload(io, len, patience, |_| ()).await
}

/// Asks for several things at once, so that all answers take one round trip; at most [`REQUESTS_AT_ONCE`] count. The
/// answers have the order of the requests. `begun` is called when the first one begins, and `came` with the bytes of
/// each piece. After any error the stream is of no more use.
///
/// # Errors
/// As [`request`]; the first one.
pub async fn request_all<S>(
    io: &mut S,
    requests: &[(FetchRequest, Expect)],
    patience: Patience,
    begun: impl FnOnce(),
    came: impl Fn(usize),
) -> Result<Vec<Vec<u8>>, FetchError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let requests = requests.get(..REQUESTS_AT_ONCE).unwrap_or(requests);
    let asked: Vec<u8> = requests.iter().flat_map(|(request, _)| request.encode()).collect();
    timeout(patience.head, send(io, &asked)).await.map_err(|_| FetchError::NoAnswer(patience.head))??;
    let (mut begun, mut answers) = (Some(begun), Vec::with_capacity(requests.len()));
    for (_, expected) in requests {
        let head = timeout(patience.head, answer_head(io)).await;
        let head = head.map_err(|_| FetchError::NoAnswer(patience.head))??;
        let len = announced(&head, *expected)?;
        if let Some(begun) = begun.take() {
            begun();
        }
        answers.push(payload(io, len, patience, &came).await?);
    }
    Ok(answers)
}

async fn send<S: AsyncWrite + Unpin>(io: &mut S, asked: &[u8]) -> io::Result<()> {
    io.write_all(asked).await?;
    io.flush().await
}

async fn answer_head<S: AsyncRead + Unpin>(io: &mut S) -> io::Result<[u8; ANSWER_HEAD_BYTES]> {
    let mut head = [0; ANSWER_HEAD_BYTES];
    io.read_exact(&mut head).await?;
    Ok(head)
}

/// The length of the answer with this head.
fn announced(head: &[u8; ANSWER_HEAD_BYTES], expected: Expect) -> Result<usize, FetchError> {
    let len = decode_answer(head)??;
    if !expected.admits(len) {
        return Err(FetchError::Length { got: len, expected });
    }
    usize::try_from(len).map_err(|_| FetchError::Length { got: len, expected })
}

/// Asks for one thing, and returns the length of the answer in bytes. [`payload`] is to follow.
///
/// # Errors
/// As [`request`].
pub async fn begin<S>(
    io: &mut S,
    request: &FetchRequest,
    expected: Expect,
    patience: Patience,
) -> Result<usize, FetchError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let exchange = async {
        send(io, &request.encode()).await?;
        answer_head(io).await
    };
    let head = timeout(patience.head, exchange).await.map_err(|_| FetchError::NoAnswer(patience.head))??;
    announced(&head, expected)
}

/// Reads an answer of this length. `came` is told the bytes of each piece as it comes.
///
/// # Errors
/// As [`request`].
pub async fn payload<S: AsyncRead + Unpin>(
    io: &mut S,
    len: usize,
    patience: Patience,
    came: impl Fn(usize),
) -> Result<Vec<u8>, FetchError> {
    // The buffer grows with the bytes that come, so that an announced length alone costs nothing.
    let mut payload = Vec::with_capacity(len.min(PROGRESS_BYTES));
    let began = Instant::now();
    while payload.len() < len {
        let target = len.min(payload.len() + PROGRESS_BYTES);
        let from = payload.len();
        payload.resize(target, 0);
        // Each piece has a deadline, so that a slow peer is found out long before the whole answer is due.
        let (stalled, due) = (Instant::now() + patience.progress, began + patience.payload(target as u64));
        let piece = timeout_at(stalled.min(due), io.read_exact(&mut payload[from..])).await;
        piece.map_err(|_| match due < stalled {
            true => FetchError::Slow { got: from as u64, after: began.elapsed() },
            false => FetchError::Stalled(patience.progress),
        })??;
        came(target - from);
    }
    Ok(payload)
}
