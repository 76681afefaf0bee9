//! The reasons for which sessions end, and the count of refusals.

use super::options::Unfit;
use starling_bootstrap::discovery::reason::of_end;
use std::io;
use std::time::Duration;

/// Messages to one peer that wait to be written. A peer that lets it fill is cut off.
pub(super) const QUEUE_CAP: usize = 512;
/// If the peer's transport does not take a message in this time, the link is dead.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_secs(20);

/// The reason why a session ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DownReason {
    /// A peer that stops closes its connection without a word, which is no error; so the text says what was lost.
    #[error("{0}")]
    Lost(String),
    #[error("the peer opened a new control stream")]
    Replaced,
    #[error("another process with its key has taken its place")]
    Displaced,
    #[error("it did not take our messages for so long that {QUEUE_CAP} of them were waiting")]
    QueueFull,
    #[error("it took no bytes for {} s", WRITE_TIMEOUT.as_secs())]
    Stalled,
    /// `label` is the framing's name of the fault.
    #[error("{what}")]
    Frame { label: &'static str, what: String },
    #[error("refused here: {0}")]
    Refused(String),
    /// The peer's message does not pass the node's check.
    #[error("refused here: {}", .0.why)]
    Unfit(Unfit),
    #[error("it is no member, and sent more than even a member may")]
    Flood,
    #[error("this node is shutting down")]
    Shutdown,
}

impl DownReason {
    /// The end of a session whose stream failed.
    pub(super) fn of(error: &io::Error) -> Self {
        Self::Lost(of_end(error))
    }

    /// The label of `starling_peer_down_total`.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Lost(_) => "lost",
            Self::Replaced => "replaced",
            Self::Displaced => "displaced",
            Self::QueueFull => "control_queue_full",
            Self::Stalled => "stalled",
            Self::Frame { label, .. } => label,
            Self::Refused(_) => "refused",
            Self::Unfit(_) => "unfit",
            Self::Flood => "control_flood",
            Self::Shutdown => "shutdown",
        }
    }
}

/// Counts a refusal by its reason.
pub(super) fn refused(reason: &'static str) {
    metrics::counter!("starling_refused_total", "reason" => reason).increment(1);
}
