//! An encoded update.

use starling_protocol::Digest;
use std::sync::Arc;

/// An encoded update and its digest.
#[derive(Clone, Debug)]
pub struct Update {
    pub digest: Digest,
    pub bytes: Arc<Vec<u8>>,
}
