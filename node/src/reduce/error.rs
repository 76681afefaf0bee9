//! Why a reduction failed, and which member caused it.

use starling_protocol::NodeId;
use starling_protocol::codec::CodecError;
use starling_protocol::frame::{FrameError, FrameKind};
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::run::Codec;

/// Why an attempt's reduction cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ReduceError {
    #[error("the attempt's members do not make a reduction: {0}")]
    Members(&'static str),
    #[error("{codec} does not go around a ring: the run needs sync.engine = \"owners\"")]
    Unsuited { codec: Codec },
    #[error(
        "this node's own pseudo-gradient cannot be sent (element {element}: {source}): its training diverged; lower \
         the inner learning rate or turn on clipping"
    )]
    OwnDelta { element: usize, source: CodecError },
    #[error("the sum of chunk {chunk} is out of the codec's range ({source}): some member's training diverged")]
    Sum { chunk: usize, source: CodecError },
    #[error("{fault} (peer {})", suspect.short())]
    Peer { suspect: NodeId, fault: PeerFault },
    #[error("a later attempt has begun, or the record is decided")]
    Over,
    #[error("the reduction's task ended by itself: {0}")]
    Task(String),
}

impl ReduceError {
    /// The member that seems to be the cause. A peer that is merely [`PeerFault::Lost`] may itself be a victim of
    /// another.
    pub fn suspect(&self) -> Option<NodeId> {
        match self {
            Self::Peer { suspect, .. } => Some(*suspect),
            _ => None,
        }
    }

    /// The label of `starling_refused_total` when a peer broke the protocol.
    pub fn refusal(&self) -> Option<&'static str> {
        match self {
            Self::Peer { fault, .. } => fault.refusal(),
            _ => None,
        }
    }
}

/// This node's part of `chunk` cannot be encoded.
pub(super) fn own_fault(chunk: usize, source: CodecError) -> ReduceError {
    let inside = match source {
        CodecError::NotFinite { index } | CodecError::TooLarge { index } => index,
        _ => 0,
    };
    ReduceError::OwnDelta { element: chunk * CHUNK_ELEMENTS + inside, source }
}

/// The fault of another member.
#[derive(Debug, thiserror::Error)]
pub enum PeerFault {
    #[error("no stream to the member: {0}")]
    Unreachable(String),
    #[error("no stream from the member: {0}")]
    Silent(super::RouterError),
    #[error("the stream to or from the member ended early: {}", starling_words::of(.0))]
    Lost(std::io::Error),
    #[error("a frame was refused: {0}")]
    Frame(#[from] FrameError),
    #[error("a {got} frame of chunk {got_chunk} came where a {expected} frame of chunk {expected_chunk} was due")]
    OutOfOrder { expected: FrameKind, expected_chunk: usize, got: FrameKind, got_chunk: u32 },
    #[error("the finished sum of chunk {chunk} came before our part of it had left")]
    Early { chunk: usize },
    #[error("the payload of chunk {chunk} was refused: {source}")]
    Payload { chunk: usize, source: CodecError },
    #[error("with chunk {chunk} its parts are {norm:.3} long, while its READY states {stated:.3} for all of them")]
    Norm { chunk: usize, norm: f64, stated: f32 },
    #[error("with chunk {chunk} its sums are {norm:.3} long, while the parts can be {most:.3} at most together")]
    Sum { chunk: usize, norm: f64, most: f32 },
    #[error(
        "with chunk {chunk} the sums that it passes on are {norm:.3} long, while the parts can be {most:.3} at most \
         together, or more by attempts that this node has not begun"
    )]
    PassedOn { chunk: usize, norm: f64, most: f32 },
    #[error("it says that it has parts or sums that there are not")]
    Held,
    #[error("it writes another word about sums than the one that is due")]
    Word,
    #[error("the word about this node's sums came back changed")]
    Garbled,
}

impl PeerFault {
    fn refusal(&self) -> Option<&'static str> {
        match self {
            // Any member may have changed a word that went all the way around.
            Self::Unreachable(_) | Self::Silent(_) | Self::Lost(_) | Self::Garbled => None,
            // Its owner may have made it so long that only this node finds that too much.
            Self::PassedOn { .. } => None,
            Self::Frame(_) => Some("reduce_frame"),
            Self::OutOfOrder { .. } => Some("reduce_order"),
            Self::Early { .. } => Some("reduce_early"),
            Self::Payload { .. } => Some("reduce_payload"),
            Self::Norm { .. } => Some("reduce_norm"),
            Self::Sum { .. } => Some("reduce_sum"),
            Self::Held => Some("reduce_held"),
            Self::Word => Some("reduce_word"),
        }
    }
}
