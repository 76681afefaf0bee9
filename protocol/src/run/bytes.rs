//! The bytes of a run specification, and the digest that names the run.

use super::RunSpec;
use crate::Digest;
use crate::limits::RUN_SPEC_BYTES_MAX;
use crate::wire::{WireError, binary};

const SPEC_DOMAIN: &str = "starling run v1";

/// The one byte string of a run specification.
pub fn encode_spec(spec: &RunSpec) -> Vec<u8> {
    binary::encode(spec)
}

/// Decodes a run specification from outside bytes: canonical, at most [`RUN_SPEC_BYTES_MAX`] long, and valid.
pub fn decode_spec(bytes: &[u8]) -> Result<RunSpec, WireError> {
    let spec: RunSpec = binary::decode::<_, RUN_SPEC_BYTES_MAX>("run specification", bytes)?;
    spec.validate().map_err(|error| WireError::Invalid { what: "run specification", detail: error.to_string() })?;
    Ok(spec)
}

/// Digest of an encoded run specification; equals [`RunSpec::digest`] of the specification in it.
pub fn spec_digest(bytes: &[u8]) -> Digest {
    Digest::of(SPEC_DOMAIN, &[bytes])
}

impl RunSpec {
    /// The run's name among machines: the digest of its encoding.
    pub fn digest(&self) -> Digest {
        spec_digest(&encode_spec(self))
    }
}
