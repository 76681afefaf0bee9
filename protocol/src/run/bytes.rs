//! The bytes of a run specification, and the digest that names the run.

use super::RunSpec;
use crate::Digest;
use crate::limits::RUN_SPEC_BYTES_MAX;
use crate::wire::{WireError, binary};

const SPEC_DOMAIN: &str = "starling run v1";
const WHAT: &str = "run specification";
/// Stands before the root of the state with which a run begins, behind all other fields. Nothing does in a run that
/// begins as its seed says.
const BEGINNING: u8 = 1;

/// The one byte string of a run specification.
pub fn encode_spec(spec: &RunSpec) -> Vec<u8> {
    let mut bytes = binary::encode(spec);
    if let Some(root) = &spec.beginning {
        bytes.push(BEGINNING);
        bytes.extend_from_slice(&root.0);
    }
    bytes
}

/// Decodes a run specification from outside bytes: canonical, at most [`RUN_SPEC_BYTES_MAX`] long, and valid.
pub fn decode_spec(bytes: &[u8]) -> Result<RunSpec, WireError> {
    let (mut spec, rest) = binary::decode_front::<RunSpec, RUN_SPEC_BYTES_MAX>(WHAT, bytes)?;
    spec.beginning = beginning(rest)?;
    spec.validate().map_err(|error| WireError::Invalid { what: WHAT, detail: error.to_string() })?;
    Ok(spec)
}

/// Reads the bytes behind the budget.
fn beginning(rest: &[u8]) -> Result<Option<Digest>, WireError> {
    let root: Option<[u8; 32]> = match rest.split_first() {
        None => return Ok(None),
        Some((&BEGINNING, root)) => root.try_into().ok(),
        Some(_) => None,
    };
    root.map(|root| Some(Digest(root))).ok_or(WireError::Trailing { what: WHAT, bytes: rest.len() })
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
