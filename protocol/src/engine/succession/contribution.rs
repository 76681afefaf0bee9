//! A contribution as a record takes it in: its member, and its READY as signed.

use crate::message::Ready;
use crate::{Digest, NodeId};

/// A member's READY as it counts in an attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct SignedReady {
    pub member: NodeId,
    pub ready: Ready,
    /// Digest of the signed envelope.
    pub digest: Digest,
    /// The signed envelope as received.
    pub bytes: Vec<u8>,
}
