//! Records and run specifications: bytes that are kept, hashed and handed on.

use super::{WireError, binary};
use crate::Digest;
use crate::admission::{Revocation, Ticket};
use crate::engine::{Candidate, Register, io::AttemptKey};
use crate::limits::{CANDIDATE_BYTES_MAX, CONTROL_BYTES_MAX, MEMBERS_MAX, READY_BYTES_MAX, RECORD_BYTES_MAX};
use crate::limits::{RUN_SPEC_BYTES_MAX, TICKET_BYTES_MAX};
use crate::message::Certificate;
use crate::record::Record;
use crate::run::RunSpec;
use crate::wire::bounded;
use serde::{Deserialize, Serialize};

const RECORD_DOMAIN: &str = "starling record v3";
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

/// The one byte string of a certificate.
pub fn encode_certificate(certificate: &Certificate) -> Vec<u8> {
    let mut bytes = Vec::new();
    binary::append(certificate, &mut bytes);
    bytes
}

/// A certificate from outside bytes: canonical, at most [`CONTROL_BYTES_MAX`] long. Whether it proves anything is for
/// [`crate::certificate::verify`].
pub fn decode_certificate(bytes: &[u8]) -> Result<Certificate, WireError> {
    binary::decode::<_, CONTROL_BYTES_MAX>("certificate", bytes)
}

/// The one byte string of a vote register.
pub fn encode_register(register: &Register) -> Vec<u8> {
    let mut bytes = Vec::new();
    binary::append(register, &mut bytes);
    bytes
}

/// A vote register from the disk.
pub fn decode_register(bytes: &[u8]) -> Result<Register, WireError> {
    binary::decode::<_, CONTROL_BYTES_MAX>("vote register", bytes)
}

/// The one byte string of an admission ticket.
pub fn encode_ticket(ticket: &Ticket) -> Vec<u8> {
    let mut bytes = Vec::new();
    binary::append(ticket, &mut bytes);
    bytes
}

/// An admission ticket from outside bytes. Whether it admits anybody is for [`crate::admission`].
pub fn decode_ticket(bytes: &[u8]) -> Result<Ticket, WireError> {
    binary::decode::<_, TICKET_BYTES_MAX>("ticket", bytes)
}

/// The one byte string of a revocation.
pub fn encode_revocation(revocation: &Revocation) -> Vec<u8> {
    let mut bytes = Vec::new();
    binary::append(revocation, &mut bytes);
    bytes
}

/// A revocation from outside bytes, no longer than a ticket. Whether it is the creator's is for
/// [`Revocation::verify`].
pub fn decode_revocation(bytes: &[u8]) -> Result<Revocation, WireError> {
    binary::decode::<_, TICKET_BYTES_MAX>("revocation", bytes)
}

#[derive(Serialize, Deserialize)]
struct CandidateBytes {
    key: AttemptKey,
    record: Record,
    #[serde(deserialize_with = "bounded::blobs::<_, MEMBERS_MAX, READY_BYTES_MAX>")]
    readys: Vec<Vec<u8>>,
}

/// The one byte string of a candidate.
pub fn encode_candidate(candidate: &Candidate) -> Vec<u8> {
    let Candidate { key, record, readys } = candidate.clone();
    let mut bytes = Vec::new();
    binary::append(&CandidateBytes { key, record, readys }, &mut bytes);
    bytes
}

/// A candidate from outside bytes: canonical, at most [`CANDIDATE_BYTES_MAX`] long, and its record of valid shape.
pub fn decode_candidate(bytes: &[u8]) -> Result<Candidate, WireError> {
    let CandidateBytes { key, record, readys } = binary::decode::<_, CANDIDATE_BYTES_MAX>("candidate", bytes)?;
    record.validate_shape().map_err(|error| WireError::Invalid { what: "candidate", detail: error.to_string() })?;
    Ok(Candidate { key, record, readys })
}
