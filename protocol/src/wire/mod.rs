//! Bytes of control messages, records and run specifications.
//!
//! The only module that knows bincode: fixed-width little-endian integers, `u64` counts, one byte for an option or a
//! bool, no field names. It closes what bincode leaves open: a size limit, counts checked before anything is allocated,
//! no trailing bytes, enums by written-down numbers, and equality of the re-encoding, so that one value has one byte
//! string. Signatures and digests are over bytes as received, never over a re-encoding.

pub(crate) mod binary;
pub mod bounded;
mod envelope;
#[cfg(test)]
mod golden_test;
#[cfg(test)]
mod hostile_test;
pub(crate) mod number;
#[cfg(test)]
mod property_test;
#[cfg(test)]
pub(crate) mod sample;

pub use crate::admission::{decode_revocation, decode_ticket, encode_revocation, encode_ticket};
pub use crate::amendment::{decode_amendment, encode_amendment};
pub use crate::candidate::{decode_candidate, encode_candidate};
pub use crate::certificate::{decode_certificate, encode_certificate};
pub use crate::engine::config::{decode_vote_state, encode_vote_state};
pub use crate::record::bytes::{decode_record, encode_record, record_digest};
pub use crate::run::bytes::{decode_spec, encode_spec, spec_digest};
pub use envelope::{Opened, check, claimed_sender, open, passed_on, seal};

use crate::NodeId;
use crate::run::RunSpec;

/// The reason why bytes were refused, or could not be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum WireError {
    #[error("{what}: {bytes} bytes, the limit is {limit}")]
    TooLong { what: &'static str, bytes: usize, limit: usize },
    #[error("{what}: ends after {bytes} bytes, at least {least} are needed")]
    Truncated { what: &'static str, bytes: usize, least: usize },
    #[error("peer speaks protocol version {theirs}, this program {ours}: run the same release on both")]
    Version { theirs: u16, ours: u16 },
    #[error("message of unknown kind {tag}")]
    UnknownTag { tag: u16 },
    #[error("{what}: malformed: {detail}")]
    Malformed { what: &'static str, detail: String },
    #[error("{what}: {bytes} bytes follow the end")]
    Trailing { what: &'static str, bytes: usize },
    #[error("{what}: not in canonical form")]
    NotCanonical { what: &'static str },
    #[error("{what}: {detail}")]
    Invalid { what: &'static str, detail: String },
    #[error("a message of {claimed} came from another peer")]
    Sender { claimed: NodeId },
    #[error("signature does not belong to {sender} and this run")]
    BadSignature { sender: NodeId },
    /// A well-signed `Hello` of another run. [`RunSpec::differences`] names the keys.
    #[error("{sender} trains another run, \"{}\"", spec.name)]
    OtherRun { sender: NodeId, spec: Box<RunSpec> },
}

impl WireError {
    /// A short constant name of the reason: the label of a counter.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::TooLong { .. } => "too_long",
            Self::Truncated { .. } => "truncated",
            Self::Version { .. } => "version",
            Self::UnknownTag { .. } => "unknown_tag",
            Self::Malformed { .. } => "malformed",
            Self::Trailing { .. } => "trailing",
            Self::NotCanonical { .. } => "not_canonical",
            Self::Invalid { .. } => "invalid",
            Self::Sender { .. } => "sender",
            Self::BadSignature { .. } => "bad_signature",
            Self::OtherRun { .. } => "other_run",
        }
    }
}

/// A rule of its type that a decoded value breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    #[error("{what} are not in ascending order of member id without repeats")]
    NotAscending { what: &'static str },
    #[error("{what}: {count}, the limit is {limit}")]
    TooMany { what: &'static str, count: usize, limit: usize },
    #[error("{what} is empty")]
    Empty { what: &'static str },
    #[error("{what} is {value}, must be {must}")]
    OutOfRange { what: &'static str, value: u64, must: &'static str },
    #[error("{what} must {must}")]
    Rule { what: &'static str, must: &'static str },
}

/// Checks a list that is ordered by ascending, distinct member id and holds at most `limit` entries.
pub(crate) fn check_ascending<T>(
    what: &'static str,
    items: &[T],
    limit: usize,
    key: impl Fn(&T) -> NodeId,
) -> Result<(), ShapeError> {
    if items.len() > limit {
        return Err(ShapeError::TooMany { what, count: items.len(), limit });
    }
    if !items.windows(2).all(|pair| key(&pair[0]) < key(&pair[1])) {
        return Err(ShapeError::NotAscending { what });
    }
    Ok(())
}
