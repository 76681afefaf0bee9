//! The bytes of a record, and the digest that names it.

use super::Record;
use crate::Digest;
use crate::limits::RECORD_BYTES_MAX;
use crate::wire::{WireError, binary};

const RECORD_DOMAIN: &str = "starling record v5";

/// The one byte string of a record.
pub fn encode_record(record: &Record) -> Vec<u8> {
    binary::encode(record)
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

impl Record {
    /// The record's name: digest of its encoding.
    pub fn digest(&self) -> Digest {
        record_digest(&encode_record(self))
    }
}
