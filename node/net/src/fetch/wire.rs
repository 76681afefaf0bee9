//! The layout of `/starling/fetch/8`: the requests, and the head of the answer.
//!
//! All numbers are little-endian. One stream carries any number of requests, each answered before the next is read:
//!
//! ```text
//! request   magic u16 = 0x4653 ("SF") | version u8 = 2 | kind u8 | body, whose length the kind fixes, or its beginning
//! answer    magic u16 = 0x5246 ("FR") | version u8 = 2 | status u8 | payload length u64 | payload
//! ```
//!
//! Some kinds answer with lists; their layouts are here too. Everything else is bytes that the asker checks by hash.

use starling_protocol::Digest;
use starling_protocol::limits::{
    CONTROL_BYTES_MAX, LOCATOR_MAX, PARAMETERS_MAX, PATH_BYTES_MAX, PATH_LINKS_MAX, RECORD_BYTES_MAX,
};
use starling_protocol::state::{VECTORS, chunk_count};
use std::sync::Arc;

const REQUEST_MAGIC: u16 = 0x4653;
const ANSWER_MAGIC: u16 = 0x5246;
const VERSION: u8 = 2;

/// Bytes in front of a request's body.
pub const REQUEST_HEAD_BYTES: usize = 4;
/// Bytes of the longest request body.
pub const REQUEST_BODY_BYTES_MAX: usize = PATH_BODY_BYTES + LOCATOR_MAX * PLACE_BYTES;
/// Bytes of a request for a path: those before the records that the asker knows, and those of each such record.
const PATH_BODY_BYTES: usize = 9;
const PLACE_BYTES: usize = 40;
/// Bytes in front of an answer's payload.
pub const ANSWER_HEAD_BYTES: usize = 12;
/// Records in one answer.
pub const RECORDS_MAX: u16 = 256;
const _: () = assert!(PATH_LINKS_MAX <= RECORDS_MAX as usize && LOCATOR_MAX <= u8::MAX as usize);
/// Bytes of one answer with records: a part of a range of the largest flock's, and a whole range of a small flock's.
pub const RECORDS_BYTES_MAX: u64 = 4 << 20;
const _: () = assert!(2 + 8 + RECORD_BYTES_MAX as u64 + CONTROL_BYTES_MAX as u64 <= RECORDS_BYTES_MAX);
/// Bytes of one encoded snapshot manifest: that of the largest model and the most vectors of a state.
pub const SNAPSHOT_BYTES_MAX: usize = starling_protocol::state::MANIFEST_BYTES_MAX;
/// Bytes of one answer with a snapshot, the path to its record, and the records after it.
pub const START_BYTES_MAX: u64 = 16 + SNAPSHOT_BYTES_MAX as u64 + PATH_BYTES_MAX as u64 + RECORDS_BYTES_MAX;
/// Bytes of one answer that says which chunks of a state a node has: a bit for each chunk of the largest state.
pub const HELD_BYTES_MAX: usize = chunk_count(PARAMETERS_MAX, *VECTORS.end()).div_ceil(8);
/// Bytes of one piece of an update, and of the value of its subtree in the tree of the update's digest.
pub const UPDATE_PIECE_BYTES: u64 = 256 << 10;
const PIECE_VALUE_BYTES: u64 = 32;
/// Bytes of one answer with the values of an update's pieces: those of the largest update, of two bytes a parameter,
/// which is hashed behind its length.
pub const PIECE_VALUES_BYTES_MAX: u64 = PIECE_VALUE_BYTES * (8 + 2 * PARAMETERS_MAX).div_ceil(UPDATE_PIECE_BYTES);
/// Bytes of an encoded data manifest.
pub const DATA_MANIFEST_BYTES_MAX: u64 = 16 << 20;
/// Bytes of one piece of a data shard.
pub const SHARD_PIECE_BYTES: u64 = 1 << 20;

/// A request of one node to another. The numbers are on the wire and never reused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchRequest {
    /// The encoded `RunSpec` (1).
    Spec,
    /// A chunk of the canonical state by its digest (3).
    StateChunk(Digest),
    /// Records from this sequence number on with their certificates, ascending, at most `max`: see [`encode_records`]
    /// (4).
    Records { from_seq: u64, max: u16 },
    /// The encoded update that ended in the record at this sequence number (5).
    Update { seq: u64 },
    /// The encoded data manifest with this digest (6).
    DataManifest(Digest),
    /// Piece `piece` of a data shard: [`SHARD_PIECE_BYTES`] bytes; the last piece has the rest (7).
    ShardPiece { shard: Digest, piece: u32 },
    /// The encoded candidate whose record has this digest, while it is undecided (8).
    Candidate(Digest),
    /// The encoded update with this digest, of a candidate or of a record (9).
    UpdateByDigest(Digest),
    /// The path to record number `to`, from the first of the `known` ones (number and digest) that is on the chain, or
    /// from its genesis: see [`encode_records`] (10). At most [`LOCATOR_MAX`] are named.
    Path { to: u64, known: Arc<[(u64, Digest)]> },
    /// The chunks that the node has of the state with this root: a bit for each place in the manifest, see [`is_held`].
    /// Or the pieces of the update with this digest: a bit for each (11).
    ChunksHeld(Digest),
    /// The values of the pieces of the update with this digest, by which each piece can be checked (12).
    UpdatePieces(Digest),
    /// Piece `piece` of the update with this digest (13).
    UpdatePiece { update: Digest, piece: u32 },
    /// All that a newcomer needs before the chunks of a state: the newest snapshot, the path to its record, and the
    /// records after it up to number `to`, see [`Start`] (14). `known` is that of a path.
    Start { to: u64, known: Arc<[(u64, Digest)]> },
    /// The encoded manifest of the state with which the run begins, if its specification names one (15).
    Beginning,
    /// The document of the tensors of the run's task, if it has one (16).
    Schema,
}

/// The reason why a request was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchRefusal {
    /// It is not here (any more). The numbers are on the wire.
    #[error("the peer does not have it")]
    NotFound = 1,
    /// Too many requests at once; ask again in a moment.
    #[error("the peer serves too many requests at the moment")]
    Busy = 2,
    /// The request does not make sense.
    #[error("the peer refused the request as malformed")]
    BadRequest = 3,
    /// The peer failed at reading it.
    #[error("the peer could not read it")]
    Internal = 4,
}

impl FetchRefusal {
    /// The label of `starling_refused_total`.
    pub fn label(self) -> &'static str {
        match self {
            Self::NotFound => "fetch_not_found",
            Self::Busy => "fetch_busy",
            Self::BadRequest => "fetch_bad_request",
            Self::Internal => "fetch_internal",
        }
    }
}

/// The fault of bytes of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchWireError {
    #[error("not a fetch message: magic number {0:#06x}")]
    Magic(u16),
    #[error("fetch protocol version {0}; this node speaks {VERSION}")]
    Version(u8),
    #[error("unknown request kind {0}")]
    Kind(u8),
    #[error("unknown answer status {0}")]
    Status(u8),
    #[error("a refusal with {0} payload bytes")]
    RefusalPayload(u64),
    #[error("{0} records asked for, the limit is {RECORDS_MAX}")]
    TooManyRecords(u16),
    #[error("{what}: {got} is over the limit of {limit}")]
    TooMany { what: &'static str, got: u64, limit: u64 },
    #[error("{0}: the bytes end too early")]
    Truncated(&'static str),
    #[error("{0}: bytes are left over")]
    Trailing(&'static str),
}

impl FetchRequest {
    fn kind(&self) -> u8 {
        match self {
            Self::Spec => 1,
            Self::StateChunk(_) => 3,
            Self::Records { .. } => 4,
            Self::Update { .. } => 5,
            Self::DataManifest(_) => 6,
            Self::ShardPiece { .. } => 7,
            Self::Candidate(_) => 8,
            Self::UpdateByDigest(_) => 9,
            Self::Path { .. } => 10,
            Self::ChunksHeld(_) => 11,
            Self::UpdatePieces(_) => 12,
            Self::UpdatePiece { .. } => 13,
            Self::Start { .. } => 14,
            Self::Beginning => 15,
            Self::Schema => 16,
        }
    }

    /// The request's bytes, head included.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(REQUEST_HEAD_BYTES + REQUEST_BODY_BYTES_MAX);
        out.extend_from_slice(&REQUEST_MAGIC.to_le_bytes());
        out.extend_from_slice(&[VERSION, self.kind()]);
        match self {
            Self::Spec | Self::Beginning | Self::Schema => {}
            Self::StateChunk(digest)
            | Self::DataManifest(digest)
            | Self::Candidate(digest)
            | Self::UpdateByDigest(digest)
            | Self::ChunksHeld(digest)
            | Self::UpdatePieces(digest) => out.extend_from_slice(&digest.0),
            Self::Records { from_seq, max } => {
                out.extend_from_slice(&from_seq.to_le_bytes());
                out.extend_from_slice(&max.to_le_bytes());
            }
            Self::Update { seq } => out.extend_from_slice(&seq.to_le_bytes()),
            Self::ShardPiece { shard: of, piece } | Self::UpdatePiece { update: of, piece } => {
                out.extend_from_slice(&of.0);
                out.extend_from_slice(&piece.to_le_bytes());
            }
            Self::Path { to, known } | Self::Start { to, known } => {
                let known = known.get(..LOCATOR_MAX).unwrap_or(known);
                out.extend_from_slice(&to.to_le_bytes());
                out.push(known.len() as u8);
                for (seq, digest) in known {
                    out.extend_from_slice(&seq.to_le_bytes());
                    out.extend_from_slice(&digest.0);
                }
            }
        }
        out
    }

    /// Decodes the head: the kind, and the bytes of body that follow, or those of its beginning
    /// ([`FetchRequest::rest_len`]).
    ///
    /// # Errors
    /// [`FetchWireError`] unless the head is one of this version's.
    pub fn body_len(head: &[u8; REQUEST_HEAD_BYTES]) -> Result<(u8, usize), FetchWireError> {
        let [m0, m1, version, kind] = *head;
        check_head(REQUEST_MAGIC, u16::from_le_bytes([m0, m1]), version)?;
        let len = match kind {
            1 | 15 | 16 => 0,
            3 | 6 | 8 | 9 | 11 | 12 => 32,
            4 => 10,
            5 => 8,
            7 | 13 => 36,
            10 | 14 => PATH_BODY_BYTES,
            other => return Err(FetchWireError::Kind(other)),
        };
        Ok((kind, len))
    }

    /// Returns how many bytes follow the beginning of a body, whose length [`FetchRequest::body_len`] told.
    ///
    /// # Errors
    /// [`FetchWireError`] when the body announces more than a limit.
    pub fn rest_len(kind: u8, body: &[u8]) -> Result<usize, FetchWireError> {
        let count = body.get(PATH_BODY_BYTES - 1).filter(|_| matches!(kind, 10 | 14)).copied().unwrap_or(0);
        Ok(PLACE_BYTES * bounded("known records", usize::from(count), LOCATOR_MAX)?)
    }

    /// Decodes a kind and its whole body, whose length [`FetchRequest::body_len`] and [`FetchRequest::rest_len`] told.
    ///
    /// # Errors
    /// [`FetchWireError`] when the body does not fit the kind or asks for more than a limit.
    pub fn decode_body(kind: u8, body: &[u8]) -> Result<Self, FetchWireError> {
        let mut reader = Reader { bytes: body, what: "request" };
        let request = match kind {
            1 => Self::Spec,
            3 => Self::StateChunk(Digest(reader.array()?)),
            4 => Self::Records { from_seq: reader.u64()?, max: u16::from_le_bytes(reader.array()?) },
            5 => Self::Update { seq: reader.u64()? },
            6 => Self::DataManifest(Digest(reader.array()?)),
            7 => Self::ShardPiece { shard: Digest(reader.array()?), piece: reader.u32()? },
            8 => Self::Candidate(Digest(reader.array()?)),
            9 => Self::UpdateByDigest(Digest(reader.array()?)),
            10 => Self::Path { to: reader.u64()?, known: reader.places()? },
            11 => Self::ChunksHeld(Digest(reader.array()?)),
            12 => Self::UpdatePieces(Digest(reader.array()?)),
            13 => Self::UpdatePiece { update: Digest(reader.array()?), piece: reader.u32()? },
            14 => Self::Start { to: reader.u64()?, known: reader.places()? },
            15 => Self::Beginning,
            16 => Self::Schema,
            other => return Err(FetchWireError::Kind(other)),
        };
        reader.finish()?;
        match request {
            Self::Records { max, .. } if max > RECORDS_MAX => Err(FetchWireError::TooManyRecords(max)),
            request => Ok(request),
        }
    }
}

/// The head of an answer: the length of its payload, or the reason for its lack.
pub type AnswerHead = Result<u64, FetchRefusal>;

/// Encodes an answer's head.
pub fn encode_answer(head: AnswerHead) -> [u8; ANSWER_HEAD_BYTES] {
    let (status, len) = match head {
        Ok(len) => (0, len),
        Err(refusal) => (refusal as u8, 0),
    };
    let mut out = [0; ANSWER_HEAD_BYTES];
    out[..2].copy_from_slice(&ANSWER_MAGIC.to_le_bytes());
    out[2] = VERSION;
    out[3] = status;
    out[4..].copy_from_slice(&len.to_le_bytes());
    out
}

/// Decodes the head of an answer. The caller checks the length before it allocates.
///
/// # Errors
/// [`FetchWireError`] unless the head is one of this version's.
pub fn decode_answer(head: &[u8; ANSWER_HEAD_BYTES]) -> Result<AnswerHead, FetchWireError> {
    let [m0, m1, version, status, len @ ..] = *head;
    check_head(ANSWER_MAGIC, u16::from_le_bytes([m0, m1]), version)?;
    let len = u64::from_le_bytes(len);
    let refusal = match status {
        0 => return Ok(Ok(len)),
        1 => FetchRefusal::NotFound,
        2 => FetchRefusal::Busy,
        3 => FetchRefusal::BadRequest,
        4 => FetchRefusal::Internal,
        other => return Err(FetchWireError::Status(other)),
    };
    if len != 0 {
        return Err(FetchWireError::RefusalPayload(len));
    }
    Ok(Err(refusal))
}

fn check_head(expected: u16, magic: u16, version: u8) -> Result<(), FetchWireError> {
    if magic != expected {
        return Err(FetchWireError::Magic(magic));
    }
    if version != VERSION {
        return Err(FetchWireError::Version(version));
    }
    Ok(())
}

/// The answer to [`FetchRequest::Start`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// The number of the snapshot's record, and the encoded manifest.
    pub seq: u64,
    pub manifest: Vec<u8>,
    /// The path to that record, and the records after it: each a list of [`encode_records`].
    pub path: Vec<u8>,
    pub records: Vec<u8>,
}

/// Encodes a start: `seq u64 | length u32 | encoded manifest | length u32 | path | records`.
///
/// # Errors
/// When a part is longer than its limit.
pub fn encode_start(start: &Start) -> Result<Vec<u8>, FetchWireError> {
    let manifest = bounded(MANIFEST, start.manifest.len(), SNAPSHOT_BYTES_MAX)?;
    let path = bounded(PATH, start.path.len(), PATH_BYTES_MAX)?;
    let records = bounded(RECORDS, start.records.len(), RECORDS_BYTES_MAX as usize)?;
    let mut out = Vec::with_capacity(16 + manifest + path + records);
    out.extend_from_slice(&start.seq.to_le_bytes());
    out.extend_from_slice(&(manifest as u32).to_le_bytes());
    out.extend_from_slice(&start.manifest);
    out.extend_from_slice(&(path as u32).to_le_bytes());
    out.extend_from_slice(&start.path);
    out.extend_from_slice(&start.records);
    Ok(out)
}

/// The reverse of [`encode_start`]. The lists in it are for [`decode_records`] to check.
///
/// # Errors
/// [`FetchWireError`] for anything that `encode_start` would not have written.
pub fn decode_start(bytes: &[u8]) -> Result<Start, FetchWireError> {
    let mut reader = Reader { bytes, what: "start" };
    let seq = reader.u64()?;
    let len = bounded(MANIFEST, reader.u32()? as usize, SNAPSHOT_BYTES_MAX)?;
    let manifest = reader.take(len)?.to_vec();
    let len = bounded(PATH, reader.u32()? as usize, PATH_BYTES_MAX)?;
    let path = reader.take(len)?.to_vec();
    let len = bounded(RECORDS, reader.bytes.len(), RECORDS_BYTES_MAX as usize)?;
    let records = reader.take(len)?.to_vec();
    Ok(Start { seq, manifest, path, records })
}

/// The parts of a start.
const MANIFEST: &str = "bytes of a snapshot manifest";
const PATH: &str = "bytes of a path";
const RECORDS: &str = "bytes of records";

/// Whether an answer to [`FetchRequest::ChunksHeld`] has the chunk at this place: bit `place % 8`, from the lowest, of byte
/// `place / 8`. Bits beyond the last chunk mean nothing.
pub fn is_held(held: &[u8], place: usize) -> bool {
    held.get(place / 8).is_some_and(|byte| byte >> (place % 8) & 1 == 1)
}

/// An encoded record and the encoded certificate that decided it; the certificate is empty where there is none.
pub type Link = (Vec<u8>, Vec<u8>);

/// Encodes records: `count u16`, then for each: `length u32 | encoded record | length u32 | encoded certificate`. A
/// path has the same layout; its stones have an empty certificate.
///
/// # Errors
/// When there are more than [`RECORDS_MAX`], or a record or certificate is longer than its limit.
pub fn encode_records(links: &[Link]) -> Result<Vec<u8>, FetchWireError> {
    let count = bounded("records", links.len(), usize::from(RECORDS_MAX))?;
    let mut out = (count as u16).to_le_bytes().to_vec();
    for (record, certificate) in links {
        let len = bounded("bytes of a record", record.len(), RECORD_BYTES_MAX)?;
        out.extend_from_slice(&(len as u32).to_le_bytes());
        out.extend_from_slice(record);
        let len = bounded("bytes of a certificate", certificate.len(), CONTROL_BYTES_MAX)?;
        out.extend_from_slice(&(len as u32).to_le_bytes());
        out.extend_from_slice(certificate);
    }
    Ok(out)
}

/// The reverse of [`encode_records`].
///
/// # Errors
/// [`FetchWireError`] for anything that `encode_records` would not have written.
pub fn decode_records(bytes: &[u8]) -> Result<Vec<Link>, FetchWireError> {
    let mut reader = Reader { bytes, what: "record list" };
    let count = bounded("records", usize::from(u16::from_le_bytes(reader.array()?)), usize::from(RECORDS_MAX))?;
    let mut links = Vec::with_capacity(count);
    for _ in 0..count {
        let len = bounded("bytes of a record", reader.u32()? as usize, RECORD_BYTES_MAX)?;
        let record = reader.take(len)?.to_vec();
        let len = bounded("bytes of a certificate", reader.u32()? as usize, CONTROL_BYTES_MAX)?;
        links.push((record, reader.take(len)?.to_vec()));
    }
    reader.finish()?;
    Ok(links)
}

fn bounded(what: &'static str, got: usize, limit: usize) -> Result<usize, FetchWireError> {
    if got > limit {
        return Err(FetchWireError::TooMany { what, got: got as u64, limit: limit as u64 });
    }
    Ok(got)
}

/// Reads fixed-size values off a slice.
struct Reader<'a> {
    bytes: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], FetchWireError> {
        let (taken, rest) = self.bytes.split_at_checked(len).ok_or(FetchWireError::Truncated(self.what))?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FetchWireError> {
        let (taken, rest) = self.bytes.split_first_chunk().ok_or(FetchWireError::Truncated(self.what))?;
        self.bytes = rest;
        Ok(*taken)
    }

    fn u32(&mut self) -> Result<u32, FetchWireError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, FetchWireError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn places(&mut self) -> Result<Arc<[(u64, Digest)]>, FetchWireError> {
        let [count] = self.array()?;
        let count = bounded("known records", usize::from(count), LOCATOR_MAX)?;
        (0..count).map(|_| Ok((self.u64()?, Digest(self.array()?)))).collect()
    }

    fn finish(self) -> Result<(), FetchWireError> {
        if self.bytes.is_empty() { Ok(()) } else { Err(FetchWireError::Trailing(self.what)) }
    }
}

#[cfg(test)]
#[path = "wire_test.rs"]
mod tests;
