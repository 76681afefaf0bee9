//! Records and run specifications: bytes that are kept, hashed and handed on.

use super::{WireError, binary};
use crate::Digest;
use crate::limits::{RECORD_BYTES_MAX, RUN_SPEC_BYTES_MAX};
use crate::record::Record;
use crate::run::RunSpec;

const RECORD_DOMAIN: &str = "starling record v1";
const SPEC_DOMAIN: &str = "starling run v1";

/// The one byte string of a record.
pub fn encode_record(record: &Record) -> Vec<u8> {
    let mut bytes = Vec::new();
    binary::append(record, &mut bytes);
    bytes
}

/// A record from outside bytes: canonical, at most [`RECORD_BYTES_MAX`] long, and of valid shape.
pub fn decode_record(bytes: &[u8]) -> Result<Record, WireError> {
    let record: Record = binary::decode::<_, RECORD_BYTES_MAX>("record", bytes)?;
    record.validate_shape().map_err(|error| WireError::Invalid { what: "record", detail: error.to_string() })?;
    Ok(record)
}

/// Digest of an encoded record; equals [`Record::digest`] of the record in it.
pub fn record_digest(bytes: &[u8]) -> Digest {
    Digest::of(RECORD_DOMAIN, &[bytes])
}

/// The one byte string of a run specification.
pub fn encode_spec(spec: &RunSpec) -> Vec<u8> {
    let mut bytes = Vec::new();
    binary::append(spec, &mut bytes);
    bytes
}

/// A run specification from outside bytes: canonical, at most [`RUN_SPEC_BYTES_MAX`] long, and valid.
pub fn decode_spec(bytes: &[u8]) -> Result<RunSpec, WireError> {
    let spec: RunSpec = binary::decode::<_, RUN_SPEC_BYTES_MAX>("run specification", bytes)?;
    spec.validate().map_err(|error| WireError::Invalid { what: "run specification", detail: error.to_string() })?;
    Ok(spec)
}

/// Digest of an encoded run specification; equals [`RunSpec::digest`] of the specification in it.
pub fn spec_digest(bytes: &[u8]) -> Digest {
    Digest::of(SPEC_DOMAIN, &[bytes])
}
