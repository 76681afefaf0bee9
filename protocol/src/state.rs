//! The canonical state in chunks, their manifest, and its root (`protocol.md` §3).
//!
//! State is the parameters theta and the outer momentum m, each `elements` f32. Both are cut, each by itself, into
//! chunks of [`STATE_CHUNK_BYTES`] of little-endian f32, the last one short; chunks are numbered through theta, then
//! through m. The root is over schema digest, element count and the Merkle tree of the chunks' digests: a node is
//! the digest of its two children; a last child without sibling moves up as it is.

use crate::Digest;
use crate::digest::FloatHasher;
use crate::limits::{PARAMETERS_MAX, STATE_CHUNK_BYTES};
use std::ops::Range;

const CHUNK_FLOATS: usize = STATE_CHUNK_BYTES / 4;
const CHUNK_DOMAIN: &str = "starling state chunk v1";
const NODE_DOMAIN: &str = "starling state node v1";
const ROOT_DOMAIN: &str = "starling state root v1";
const MANIFEST_VERSION: u16 = 1;
const MANIFEST_HEADER: usize = 2 + 32 + 8;

/// Bytes of the largest manifest, that of a model of [`PARAMETERS_MAX`].
pub const MANIFEST_BYTES_MAX: usize = MANIFEST_HEADER + 32 * chunk_count(PARAMETERS_MAX);

/// Which vector a chunk is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Theta,
    Momentum,
}

/// Why a manifest or a chunk is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    #[error("manifest: version {theirs}, this program reads {MANIFEST_VERSION}")]
    Version { theirs: u16 },
    #[error("manifest: {elements} elements, must be between 1 and {PARAMETERS_MAX}")]
    Elements { elements: u64 },
    #[error("{what}: {bytes} bytes where {expected} are due")]
    Length { what: &'static str, bytes: usize, expected: usize },
    #[error("state has no chunk {index}: it has {count}")]
    NoSuchChunk { index: usize, count: usize },
    #[error("chunk {index} does not have the digest that the manifest names: fetch it from another peer")]
    Digest { index: usize },
    #[error("parameters ({theta}) and momentum ({momentum}) differ in length")]
    Halves { theta: usize, momentum: usize },
}

/// Names every chunk of a state. Together with a record's `state_root` it lets chunks be fetched from anyone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Digest of the model's schema: names, shapes and order of tensors.
    pub schema: Digest,
    /// Parameters of the model.
    pub elements: u64,
    /// Digests of theta's chunks, then of m's; [`chunk_count`] of them.
    pub chunks: Vec<Digest>,
}

/// Chunks of a state of `elements` parameters: those of theta and as many of m.
pub const fn chunk_count(elements: u64) -> usize {
    2 * elements.div_ceil(CHUNK_FLOATS as u64) as usize
}

/// Which vector chunk `index` is of, and which of its elements; none beyond the last chunk.
pub fn chunk_span(elements: u64, index: usize) -> Option<(Part, Range<usize>)> {
    let half = chunk_count(elements) / 2;
    let (part, index) = match index {
        i if i < half => (Part::Theta, i),
        i if i < 2 * half => (Part::Momentum, i - half),
        _ => return None,
    };
    let start = index * CHUNK_FLOATS;
    Some((part, start..(start + CHUNK_FLOATS).min(elements as usize)))
}

/// Digest of one chunk's bytes.
pub fn chunk_digest(bytes: &[u8]) -> Digest {
    Digest::of(CHUNK_DOMAIN, &[bytes])
}

/// Digest of the chunk that holds these floats; equals [`chunk_digest`] of their bytes. Chunks are independent, so a
/// caller may hash them on several threads and put the manifest together with [`Manifest::of_chunks`].
pub fn floats_digest(floats: &[f32]) -> Digest {
    Digest::of_floats(CHUNK_DOMAIN, floats)
}

/// [`floats_digest`] of a chunk of `elements` floats that come piece by piece.
pub fn chunk_hasher(elements: usize) -> FloatHasher {
    FloatHasher::new(CHUNK_DOMAIN, elements)
}

/// The floats of chunk `index` in a state; none beyond the last chunk or if the halves differ in length.
pub fn chunk_floats<'a>(theta: &'a [f32], momentum: &'a [f32], index: usize) -> Option<&'a [f32]> {
    let (part, range) = chunk_span(theta.len() as u64, index)?;
    match part {
        Part::Theta => theta.get(range),
        Part::Momentum => momentum.get(range),
    }
}

/// The bytes of chunk `index`.
pub fn chunk_bytes(theta: &[f32], momentum: &[f32], index: usize) -> Option<Vec<u8>> {
    let floats = chunk_floats(theta, momentum, index)?;
    Some(floats.iter().flat_map(|x| x.to_le_bytes()).collect())
}

/// The manifest of a state.
pub fn manifest_of(schema: Digest, theta: &[f32], momentum: &[f32]) -> Result<Manifest, StateError> {
    if theta.len() != momentum.len() {
        return Err(StateError::Halves { theta: theta.len(), momentum: momentum.len() });
    }
    let chunks = theta.chunks(CHUNK_FLOATS).chain(momentum.chunks(CHUNK_FLOATS)).map(floats_digest).collect();
    Manifest::of_chunks(schema, theta.len() as u64, chunks)
}

/// The root that a record's `state_root` holds.
pub fn root(manifest: &Manifest) -> Digest {
    let mut level = manifest.chunks.clone();
    while level.len() > 1 {
        level = level
            .chunks(2)
            .map(|pair| match pair {
                [left, right] => Digest::of(NODE_DOMAIN, &[&left.0, &right.0]),
                _ => pair[0],
            })
            .collect();
    }
    let top = level.first().copied().unwrap_or_default();
    Digest::of(ROOT_DOMAIN, &[&manifest.schema.0, &manifest.elements.to_le_bytes(), &top.0])
}

impl Manifest {
    /// From chunk digests made elsewhere; their count must fit `elements`.
    pub fn of_chunks(schema: Digest, elements: u64, chunks: Vec<Digest>) -> Result<Self, StateError> {
        if elements == 0 || elements > PARAMETERS_MAX {
            return Err(StateError::Elements { elements });
        }
        let (bytes, expected) = (32 * chunks.len(), 32 * chunk_count(elements));
        if bytes != expected {
            return Err(StateError::Length { what: "chunk digests", bytes, expected });
        }
        Ok(Self { schema, elements, chunks })
    }

    /// `version u16 | schema 32 | elements u64 | chunk digests 32 each`, little endian.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(MANIFEST_HEADER + 32 * self.chunks.len());
        bytes.extend_from_slice(&MANIFEST_VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.schema.0);
        bytes.extend_from_slice(&self.elements.to_le_bytes());
        for chunk in &self.chunks {
            bytes.extend_from_slice(&chunk.0);
        }
        bytes
    }

    /// Reads [`Manifest::encode`]'s bytes; the element count fixes their number.
    pub fn decode(bytes: &[u8]) -> Result<Self, StateError> {
        let truncated = StateError::Length { what: "manifest", bytes: bytes.len(), expected: MANIFEST_HEADER };
        let (version, rest) = bytes.split_first_chunk::<2>().ok_or(truncated)?;
        let theirs = u16::from_le_bytes(*version);
        if theirs != MANIFEST_VERSION {
            return Err(StateError::Version { theirs });
        }
        let (schema, rest) = rest.split_first_chunk::<32>().ok_or(truncated)?;
        let (elements, rest) = rest.split_first_chunk::<8>().ok_or(truncated)?;
        let elements = u64::from_le_bytes(*elements);
        if elements == 0 || elements > PARAMETERS_MAX {
            return Err(StateError::Elements { elements });
        }
        let expected = MANIFEST_HEADER + 32 * chunk_count(elements);
        if bytes.len() != expected {
            return Err(StateError::Length { what: "manifest", bytes: bytes.len(), expected });
        }
        let chunks = rest.as_chunks::<32>().0.iter().map(|chunk| Digest(*chunk)).collect();
        Ok(Self { schema: Digest(*schema), elements, chunks })
    }

    /// Bytes of chunk `index`.
    pub fn chunk_len(&self, index: usize) -> Option<usize> {
        chunk_span(self.elements, index).map(|(_, range)| 4 * range.len())
    }

    /// Whether `bytes` are chunk `index`: its length, then its digest.
    pub fn check_chunk(&self, index: usize, bytes: &[u8]) -> Result<(), StateError> {
        let missing = StateError::NoSuchChunk { index, count: self.chunks.len() };
        let expected = self.chunk_len(index).ok_or(missing)?;
        if bytes.len() != expected {
            return Err(StateError::Length { what: "state chunk", bytes: bytes.len(), expected });
        }
        let digest = self.chunks.get(index).ok_or(missing)?;
        if chunk_digest(bytes) == *digest { Ok(()) } else { Err(StateError::Digest { index }) }
    }

    /// Checks `bytes` and writes them to where chunk `index` belongs.
    pub fn place_chunk(
        &self,
        index: usize,
        bytes: &[u8],
        theta: &mut [f32],
        momentum: &mut [f32],
    ) -> Result<(), StateError> {
        self.check_chunk(index, bytes)?;
        let halves = StateError::Halves { theta: theta.len(), momentum: momentum.len() };
        let missing = StateError::NoSuchChunk { index, count: self.chunks.len() };
        let (part, range) = chunk_span(self.elements, index).ok_or(missing)?;
        let vector = match part {
            Part::Theta => theta,
            Part::Momentum => momentum,
        };
        let floats = vector.get_mut(range).ok_or(halves)?;
        for (float, bytes) in floats.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *float = f32::from_le_bytes(*bytes);
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "state_test.rs"]
mod tests;
