//! Asks one peer for something over `/starling/fetch/3`, believing nothing about the answer but its hash.

use super::wire::{
    ANSWER_HEAD_BYTES, DATA_MANIFEST_BYTES_MAX, FetchRefusal, FetchRequest, FetchWireError, RECORDS_BYTES_MAX,
    SHARD_PIECE_BYTES, SNAPSHOTS_BYTES_MAX, decode_answer,
};
use starling_protocol::limits::{
    CANDIDATE_BYTES_MAX, PARAMETERS_MAX, PATH_BYTES_MAX, RUN_SPEC_BYTES_MAX, STATE_CHUNK_BYTES,
};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// What counts as progress of a payload.
const PROGRESS_BYTES: usize = 64 * 1024;

/// How long an asker waits.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For the head of an answer: the peer may have to wait for its turn and for its disk.
    pub head: Duration,
    /// For each 64 KiB of a payload, and for the rest of it.
    pub progress: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { head: Duration::from_secs(30), progress: Duration::from_secs(10) }
    }
}

/// How long an answer may be. Checked before anything is allocated for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    AtMost(u64),
    /// For what has a known length: a state chunk, an update.
    Exactly(u64),
}

impl Expect {
    /// The limit that holds when the asker knows nothing more. For an update it is absurdly high: say its length.
    pub fn of(request: &FetchRequest) -> Self {
        Self::AtMost(match request {
            FetchRequest::Spec => RUN_SPEC_BYTES_MAX as u64,
            FetchRequest::SnapshotManifests => SNAPSHOTS_BYTES_MAX,
            FetchRequest::StateChunk(_) => STATE_CHUNK_BYTES as u64,
            FetchRequest::Records { .. } => RECORDS_BYTES_MAX,
            FetchRequest::Update { .. } | FetchRequest::UpdateByDigest(_) => 2 * PARAMETERS_MAX,
            FetchRequest::Candidate(_) => CANDIDATE_BYTES_MAX as u64,
            FetchRequest::DataManifest(_) => DATA_MANIFEST_BYTES_MAX,
            FetchRequest::ShardPiece { .. } => SHARD_PIECE_BYTES,
            FetchRequest::Path { .. } => PATH_BYTES_MAX as u64,
        })
    }

    fn admits(self, len: u64) -> bool {
        match self {
            Self::AtMost(max) => len <= max,
            Self::Exactly(exact) => len == exact,
        }
    }
}

/// Why something was not fetched.
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
    #[error("the stream broke: {0}")]
    Io(#[from] io::Error),
}

impl FetchError {
    /// Whether the stream can carry another request.
    pub fn stream_survives(&self) -> bool {
        matches!(self, Self::Refused(FetchRefusal::NotFound | FetchRefusal::Busy | FetchRefusal::Internal))
    }

    /// Whether the peer broke the protocol, as opposed to being slow, gone, or without what was asked for.
    pub fn is_violation(&self) -> bool {
        matches!(self, Self::Wire(_) | Self::Length { .. })
    }
}

/// Asks for one thing. On an error other than a refusal the stream is of no more use.
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
    let mut head = [0; ANSWER_HEAD_BYTES];
    let exchange = async {
        io.write_all(&request.encode()).await?;
        io.flush().await?;
        io.read_exact(&mut head).await
    };
    timeout(patience.head, exchange).await.map_err(|_| FetchError::NoAnswer(patience.head))??;
    let len = decode_answer(&head)??;
    if !expected.admits(len) {
        return Err(FetchError::Length { got: len, expected });
    }
    let len = usize::try_from(len).map_err(|_| FetchError::Length { got: len, expected })?;
    // Grows with what really comes, so that an announcement alone costs nothing.
    let mut payload = Vec::with_capacity(len.min(PROGRESS_BYTES));
    while payload.len() < len {
        let target = len.min(payload.len() + PROGRESS_BYTES);
        let from = payload.len();
        payload.resize(target, 0);
        let piece = timeout(patience.progress, io.read_exact(&mut payload[from..]));
        piece.await.map_err(|_| FetchError::Stalled(patience.progress))??;
    }
    Ok(payload)
}
