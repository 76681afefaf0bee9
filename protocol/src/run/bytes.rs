//! The bytes of a run specification, and the digest that names the run.

use super::{ExternalSpec, RunSpec};
use crate::Digest;
use crate::limits::RUN_SPEC_BYTES_MAX;
use crate::wire::{WireError, binary};

const SPEC_DOMAIN: &str = "starling run v1";
const WHAT: &str = "run specification";
/// Stands before the root of the state with which a run begins, behind all other fields. Nothing does in a run that
/// begins as its seed says.
const BEGINNING: u8 = 1;
/// Stands before the external task, behind the beginning that such a run has.
const TASK: u8 = 2;

/// The one byte string of a run specification.
pub fn encode_spec(spec: &RunSpec) -> Vec<u8> {
    let mut bytes = binary::encode(spec);
    if let Some(root) = &spec.beginning {
        bytes.push(BEGINNING);
        bytes.extend_from_slice(&root.0);
    }
    if let Some(task) = &spec.task {
        bytes.push(TASK);
        binary::append(task, &mut bytes);
    }
    bytes
}

/// Decodes a run specification from outside bytes: canonical, at most [`RUN_SPEC_BYTES_MAX`] long, and valid.
pub fn decode_spec(bytes: &[u8]) -> Result<RunSpec, WireError> {
    let (mut spec, rest) = binary::decode_front::<RunSpec, RUN_SPEC_BYTES_MAX>(WHAT, bytes)?;
    (spec.beginning, spec.task) = behind(rest)?;
    spec.validate().map_err(|error| WireError::Invalid { what: WHAT, detail: error.to_string() })?;
    Ok(spec)
}

/// Reads the bytes behind the budget.
fn behind(rest: &[u8]) -> Result<(Option<Digest>, Option<ExternalSpec>), WireError> {
    let wrong = || WireError::Trailing { what: WHAT, bytes: rest.len() };
    let Some((&BEGINNING, behind)) = rest.split_first() else {
        return if rest.is_empty() { Ok((None, None)) } else { Err(wrong()) };
    };
    let (root, behind) = behind.split_first_chunk::<32>().ok_or_else(wrong)?;
    let task = match behind.split_first() {
        None => None,
        Some((&TASK, task)) => Some(binary::decode::<ExternalSpec, RUN_SPEC_BYTES_MAX>(WHAT, task)?),
        Some(_) => return Err(wrong()),
    };
    Ok((Some(Digest(*root)), task))
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
