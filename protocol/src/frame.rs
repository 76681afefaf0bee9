//! Headers of bulk data frames. A frame is one chunk of one half of a reduction: this header, then the codec payload.
//!
//! ```text
//!  0 magic u16 = 0x5357 | version u8 | kind u8 | codec u8 | flags u8 = 0 | header length u16 = 80
//!  8 run u64 | lineage u64 | seq u64                      first 8 bytes of the digests, as they stand
//! 32 set u64 | attempt u32 | chunk u32                    first 8 bytes of the attempt's set digest
//! 48 element offset u64 | element count u32 | payload length u32
//! 64 check 16                                             XXH3-128 of the payload, seed XXH3-64 of bytes 0..64
//! ```
//! Little endian, 80 bytes. The prefixes isolate attempts from one another; they are no signature. A frame is trusted
//! because of the authenticated connection that it comes by, and the sum because its digest is in the record. The check
//! guards against accidents between the codec and the connection. The sender of a frame makes its check, so a
//! cryptographic one, which takes as long as the encryption, would prove nothing more.

use crate::candidate::AttemptKey;
use crate::codec::encoded_max;
use crate::limits::{CHUNK_ELEMENTS, PARAMETERS_MAX, ROW_SUM_BYTES_MAX, TOPK_K_MAX};
use crate::run::Codec;
use crate::wire::number::numbered;
use crate::{Digest, update};
use xxhash_rust::xxh3;

/// Bytes of a header.
pub const FRAME_HEADER_BYTES: usize = 80;
/// Bytes of the largest payload of a codec: a full chunk in the widest one. Row sums are no codec's, and longer
/// ([`ROW_SUM_BYTES_MAX`]).
pub const FRAME_PAYLOAD_BYTES_MAX: usize = encoded_max(Codec::Bf16, CHUNK_ELEMENTS);

/// The top-k codec with the longest payloads: a header names the codec and not its k.
const TOPK_MOST: Codec = Codec::TopK { k: TOPK_K_MAX };

const MAGIC: u16 = 0x5357;
const VERSION: u8 = 1;
const CHECKED: usize = 64;

const _: () = assert!(PARAMETERS_MAX.div_ceil(CHUNK_ELEMENTS as u64) <= u32::MAX as u64, "a chunk's index fits in u32");
const _: () = assert!(encoded_max(Codec::Int8, CHUNK_ELEMENTS) <= FRAME_PAYLOAD_BYTES_MAX);
const _: () = assert!(encoded_max(TOPK_MOST, CHUNK_ELEMENTS) <= FRAME_PAYLOAD_BYTES_MAX);
const _: () = assert!(update::row_sum_bytes(CHUNK_ELEMENTS) == ROW_SUM_BYTES_MAX);

/// The content of a frame. The numbers are on the wire; 3 and 4 are kept for resent and audited chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// A partial sum of reduce-scatter.
    ///
    /// To an owner: the sender's own part.
    Contrib = 1,
    /// A finished sum.
    Reduced = 2,
    /// In gossip: what the sender has learned since the last exchange.
    Change = 5,
    /// In gossip: how far the sender's slow weights are from the state that the round began with.
    Drift = 6,
    /// In a flock of several rows: the sum over one row, as f32.
    RowSum = 7,
    /// There, too: a finished sum that the receiver has. Its length and check are in the header, and no payload
    /// follows.
    Known = 8,
}

numbered!(FrameKind, "kind of frame", {
    Contrib = "contrib", Reduced = "reduced", Change = "change", Drift = "drift", RowSum = "row_sum", Known = "known",
});

/// The reason why a frame is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("frame header: {bytes} bytes, {FRAME_HEADER_BYTES} are due")]
    Truncated { bytes: usize },
    #[error("frame header: not one of this protocol (magic {magic:#06x})")]
    Magic { magic: u16 },
    #[error("frame header: version {theirs}, this program speaks {VERSION}")]
    Version { theirs: u8 },
    #[error("frame header: {field} is {value}, which has no meaning")]
    Unknown { field: &'static str, value: u64 },
    #[error("frame header: {field} is {value}, must be {must}")]
    Geometry { field: &'static str, value: u64, must: u64 },
    #[error("frame belongs to another {what}")]
    Elsewhere { what: &'static str },
    #[error("frame of chunk {chunk}: its check does not fit its bytes")]
    Check { chunk: u32 },
}

impl FrameError {
    /// A short constant name of the reason: the label of a counter.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Truncated { .. } => "truncated",
            Self::Magic { .. } => "magic",
            Self::Version { .. } => "version",
            Self::Unknown { .. } => "unknown",
            Self::Geometry { .. } => "geometry",
            Self::Elsewhere { .. } => "elsewhere",
            Self::Check { .. } => "check",
        }
    }
}

/// The fields that all frames of one reduction have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameScope {
    pub run: Digest,
    pub key: AttemptKey,
    pub codec: Codec,
    /// Elements of the whole update.
    pub elements: usize,
}

/// A frame's header, without the fields that follow from others or are constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    pub kind: FrameKind,
    /// [`Codec::number`]: k is not in a frame.
    pub codec: u8,
    pub run: [u8; 8],
    pub lineage: [u8; 8],
    pub seq: u64,
    pub set: [u8; 8],
    pub attempt: u32,
    pub chunk: u32,
    /// Elements of the chunk, `1 ..= CHUNK_ELEMENTS`.
    pub elements: u32,
    /// Bytes of the payload, which follows unless the receiver has it.
    pub payload: u32,
    pub check: [u8; 16],
}

impl FrameHeader {
    /// The header of chunk `chunk` with this payload.
    pub fn new(scope: &FrameScope, kind: FrameKind, chunk: usize, payload: &[u8]) -> Self {
        let mut header = Self {
            kind,
            codec: scope.codec.number(),
            run: prefix(&scope.run),
            lineage: prefix(&scope.key.lineage),
            seq: scope.key.seq,
            set: prefix(&scope.key.set),
            attempt: scope.key.attempt,
            chunk: chunk as u32,
            elements: update::chunk_elements(scope.elements, chunk).len() as u32,
            payload: payload.len() as u32,
            check: [0; 16],
        };
        header.check = header.check_of(payload);
        header
    }

    /// Bytes of the payload that follows.
    pub fn payload_len(&self) -> usize {
        if self.kind == FrameKind::Known { 0 } else { self.payload as usize }
    }

    /// First element of the chunk.
    pub fn element_offset(&self) -> u64 {
        u64::from(self.chunk) * CHUNK_ELEMENTS as u64
    }

    pub fn encode(&self) -> [u8; FRAME_HEADER_BYTES] {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        bytes[..CHECKED].copy_from_slice(&self.checked_bytes());
        bytes[CHECKED..].copy_from_slice(&self.check);
        bytes
    }

    /// Reads a header and checks all that the header alone can show. After this, [`FrameHeader::payload_len`] is at
    /// most [`FRAME_PAYLOAD_BYTES_MAX`], or for a row sum [`ROW_SUM_BYTES_MAX`], and may be allocated.
    pub fn decode(bytes: &[u8]) -> Result<Self, FrameError> {
        let truncated = FrameError::Truncated { bytes: bytes.len() };
        let bytes: &[u8; FRAME_HEADER_BYTES] = bytes.try_into().map_err(|_| truncated)?;
        let magic = u16::from_le_bytes(field(bytes, 0));
        if magic != MAGIC {
            return Err(FrameError::Magic { magic });
        }
        if bytes[2] != VERSION {
            return Err(FrameError::Version { theirs: bytes[2] });
        }
        let unknown = |field, value: u8| FrameError::Unknown { field, value: value.into() };
        let kind = FrameKind::from_number(bytes[3]).ok_or(unknown("kind", bytes[3]))?;
        let codec = widest(bytes[4]).ok_or(unknown("codec", bytes[4]))?;
        let header = Self {
            kind,
            codec: bytes[4],
            run: field(bytes, 8),
            lineage: field(bytes, 16),
            seq: u64::from_le_bytes(field(bytes, 24)),
            set: field(bytes, 32),
            attempt: u32::from_le_bytes(field(bytes, 40)),
            chunk: u32::from_le_bytes(field(bytes, 44)),
            elements: u32::from_le_bytes(field(bytes, 56)),
            payload: u32::from_le_bytes(field(bytes, 60)),
            check: field(bytes, 64),
        };
        header.check_geometry(bytes)?;
        header.check_length(codec)?;
        Ok(header)
    }

    /// Checks that a payload of this codec and so many elements can have the stated length.
    fn check_length(&self, codec: Codec) -> Result<(), FrameError> {
        let plain = self.kind == FrameKind::RowSum;
        let elements = self.elements as usize;
        let most = if plain { update::row_sum_bytes(elements) } else { encoded_max(codec, elements) };
        let (most, value) = (most as u64, u64::from(self.payload));
        let must = if plain || codec.is_fixed() { most } else { value.min(most) };
        if value == must { Ok(()) } else { Err(FrameError::Geometry { field: "payload length", value, must }) }
    }

    fn check_geometry(&self, bytes: &[u8; FRAME_HEADER_BYTES]) -> Result<(), FrameError> {
        let equal = |field, value: u64, must: u64| {
            if value == must { Ok(()) } else { Err(FrameError::Geometry { field, value, must }) }
        };
        equal("flags", bytes[5].into(), 0)?;
        equal("header length", u16::from_le_bytes(field(bytes, 6)).into(), FRAME_HEADER_BYTES as u64)?;
        equal("element offset", u64::from_le_bytes(field(bytes, 48)), self.element_offset())?;
        let elements = u64::from(self.elements);
        equal("element count", elements, elements.clamp(1, CHUNK_ELEMENTS as u64))?;
        let last = PARAMETERS_MAX - elements;
        equal("element offset", self.element_offset(), self.element_offset().min(last))
    }

    /// Checks that the frame belongs to this reduction and that its chunk has the right size there.
    pub fn belongs_to(&self, scope: &FrameScope) -> Result<(), FrameError> {
        let same = |what, holds: bool| if holds { Ok(()) } else { Err(FrameError::Elsewhere { what }) };
        same("run", self.run == prefix(&scope.run))?;
        same("lineage", self.lineage == prefix(&scope.key.lineage))?;
        same("record", self.seq == scope.key.seq)?;
        same("attempt", self.attempt == scope.key.attempt && self.set == prefix(&scope.key.set))?;
        same("codec", self.codec == scope.codec.number())?;
        self.check_length(scope.codec)?;
        let must = update::chunk_elements(scope.elements, self.chunk as usize).len() as u64;
        let value = u64::from(self.elements);
        if value == must { Ok(()) } else { Err(FrameError::Geometry { field: "element count", value, must }) }
    }

    /// Checks that the payload is the one that the header was made for.
    pub fn check_payload(&self, payload: &[u8]) -> Result<(), FrameError> {
        let (value, must) = (payload.len() as u64, u64::from(self.payload));
        if value != must {
            return Err(FrameError::Geometry { field: "payload length", value, must });
        }
        if self.check_of(payload) == self.check { Ok(()) } else { Err(FrameError::Check { chunk: self.chunk }) }
    }

    fn check_of(&self, payload: &[u8]) -> [u8; 16] {
        let seed = xxh3::xxh3_64(&self.checked_bytes());
        xxh3::xxh3_128_with_seed(payload, seed).to_le_bytes()
    }

    fn checked_bytes(&self) -> [u8; CHECKED] {
        let mut bytes = [0; CHECKED];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(&MAGIC.to_le_bytes());
        put(&[VERSION, self.kind.number(), self.codec, 0]);
        put(&(FRAME_HEADER_BYTES as u16).to_le_bytes());
        put(&self.run);
        put(&self.lineage);
        put(&self.seq.to_le_bytes());
        put(&self.set);
        put(&self.attempt.to_le_bytes());
        put(&self.chunk.to_le_bytes());
        put(&self.element_offset().to_le_bytes());
        put(&self.elements.to_le_bytes());
        put(&self.payload.to_le_bytes());
        bytes
    }
}

/// The `N` bytes at `at`, which the caller knows to be there.
fn field<const N: usize, const M: usize>(bytes: &[u8; M], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}

/// The codec of a number; for top-k, the one with the longest payloads.
fn widest(number: u8) -> Option<Codec> {
    [Codec::Bf16, Codec::Int8, Codec::Int4, TOPK_MOST].into_iter().find(|codec| codec.number() == number)
}

fn prefix(digest: &Digest) -> [u8; 8] {
    field(&digest.0, 0)
}

#[cfg(test)]
#[path = "frame_test.rs"]
mod tests;
