//! Why an exchange failed.

use crate::reduce::PeerFault;
use starling_protocol::codec::CodecError;

/// Why an exchange came to nothing, so that this member goes on alone.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    #[error("it cannot be reached: {}", starling_words::of(.0))]
    Unreachable(std::io::Error),
    #[error("it is at a later exchange")]
    Ahead,
    #[error("this node has left the exchange")]
    Left,
    #[error("it let this node down earlier in the round")]
    Avoided,
    #[error("it took longer than {seconds:.0} s")]
    Late { seconds: f64 },
    #[error(transparent)]
    Peer(#[from] PeerFault),
    #[error("its vectors are {times:.0} times as long as this node's: it cannot have trained like this")]
    Norm { times: f64 },
    #[error("this node's own parameters cannot be sent: {0}")]
    Own(CodecError),
}

impl PairError {
    /// The label of `starling_gossip_total`, also used in events.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unreachable(_) => "unreachable",
            Self::Ahead => "ahead",
            Self::Left => "left",
            Self::Avoided => "avoided",
            Self::Late { .. } => "late",
            Self::Peer(PeerFault::Lost(_)) => "lost",
            Self::Peer(_) => "refused",
            Self::Norm { .. } => "norm",
            Self::Own(_) => "own",
        }
    }

    /// The label of `starling_refused_total` when the partner broke the protocol.
    pub fn refusal(&self) -> Option<&'static str> {
        match self {
            Self::Peer(PeerFault::Frame(_)) => Some("pair_frame"),
            Self::Peer(PeerFault::OutOfOrder { .. }) => Some("pair_order"),
            Self::Peer(PeerFault::Payload { .. }) => Some("pair_payload"),
            Self::Norm { .. } => Some("pair_norm"),
            _ => None,
        }
    }
}
