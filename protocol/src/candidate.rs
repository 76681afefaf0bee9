//! Names of attempts at a round, and the results that attempts may end in.

use crate::Digest;
use crate::limits::{CANDIDATE_BYTES_MAX, MEMBERS_MAX, READY_BYTES_MAX};
use crate::record::Record;
use crate::wire::{WireError, binary, bounded};
use serde::{Deserialize, Serialize};

/// Names one attempt at one round. Bulk data of an attempt carries it and is never mixed with another's
/// (`docs/protocol/4-agreement.md` §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AttemptKey {
    pub lineage: Digest,
    pub seq: u64,
    pub attempt: u32,
    /// Digest of the attempt's members and of the READY of each: an opaque name, never recomputed outside the engine.
    pub set: Digest,
}

/// A result of an attempt that may be decided: its record, and the READYs from which the record follows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    pub key: AttemptKey,
    pub record: Record,
    /// Signed READY envelopes of the record's contributors, in their order.
    #[serde(deserialize_with = "bounded::blobs::<_, MEMBERS_MAX, READY_BYTES_MAX>")]
    pub readys: Vec<Vec<u8>>,
}

/// The one byte string of a candidate.
pub fn encode_candidate(candidate: &Candidate) -> Vec<u8> {
    binary::encode(candidate)
}

/// Decodes a candidate from outside bytes: canonical, at most [`CANDIDATE_BYTES_MAX`] long, and its record of valid
/// shape.
pub fn decode_candidate(bytes: &[u8]) -> Result<Candidate, WireError> {
    let candidate: Candidate = binary::decode::<_, CANDIDATE_BYTES_MAX>("candidate", bytes)?;
    let shape = candidate.record.validate_shape();
    shape.map_err(|error| WireError::Invalid { what: "candidate", detail: error.to_string() })?;
    Ok(candidate)
}
