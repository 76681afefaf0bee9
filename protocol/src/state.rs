//! The canonical state in chunks, their manifest, and its root (`docs/protocol/2-records.md` §2.8).
//!
//! The state is the parameters theta and the vectors that the outer optimizer keeps: the momentum m, or AdamW's m and v
//! (`outer`). Each of these vectors has `elements` f32 and is cut, by itself, into chunks of [`STATE_CHUNK_BYTES`] of
//! little-endian f32, the last one short; chunks are numbered through theta, then through m, then through v. The root
//! is over schema digest, element count, count of vectors and the Merkle tree of the chunks' digests: a node is the
//! digest of its two children; a last child without sibling moves up as it is.

use crate::Digest;
use crate::digest::{ByteHasher, FloatHasher};
use crate::limits::{PARAMETERS_MAX, STATE_CHUNK_BYTES};
use crate::mutation::{Mutation, mutated};
use crate::run::SyncMode;
use std::ops::Range;

const CHUNK_FLOATS: usize = STATE_CHUNK_BYTES / 4;
const CHUNK_DOMAIN: &str = "starling state chunk v1";
const NODE_DOMAIN: &str = "starling state node v1";
const ROOT_DOMAIN: &str = "starling state root v1";
const MANIFEST_VERSION: u16 = 2;
const MANIFEST_HEADER: usize = 2 + 32 + 8 + 1;

/// Fewest and most vectors of a state: theta and one moment, or two.
pub const VECTORS: std::ops::RangeInclusive<u8> = 2..=3;

/// Bytes of the largest manifest, that of a model of [`PARAMETERS_MAX`].
pub const MANIFEST_BYTES_MAX: usize = MANIFEST_HEADER + 32 * chunk_count(PARAMETERS_MAX, *VECTORS.end());

/// The vectors of a state, all of one length.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    pub theta: Vec<f32>,
    /// The vectors that the outer optimizer keeps, in the order of its formula: m, or m and v.
    pub moments: Vec<Vec<f32>>,
}

impl State {
    /// The state of these parameters and an optimizer that has seen nothing.
    pub fn initial(theta: Vec<f32>, mode: SyncMode) -> Self {
        let moments = (1..mode.vectors()).map(|_| vec![0.0; theta.len()]).collect();
        Self { theta, moments }
    }

    /// Elements of each vector.
    pub fn elements(&self) -> usize {
        self.theta.len()
    }

    /// Theta, then the moments.
    pub fn vectors(&self) -> impl Iterator<Item = &[f32]> {
        std::iter::once(&self.theta).chain(&self.moments).map(Vec::as_slice)
    }

    /// The manifest of this state.
    ///
    /// # Errors
    /// When the vectors differ in length, or are too many, too few, empty or too long.
    pub fn manifest(&self, schema: Digest) -> Result<Manifest, StateError> {
        let elements = self.theta.len();
        if let Some(other) = self.moments.iter().find(|moment| moment.len() != elements) {
            return Err(StateError::Lengths { theta: elements, other: other.len() });
        }
        let chunks = self.vectors().flat_map(|vector| vector.chunks(CHUNK_FLOATS)).map(floats_digest).collect();
        // More than 255 vectors are too many in any mode.
        let vectors = u8::try_from(1 + self.moments.len()).unwrap_or(u8::MAX);
        Manifest::of_chunks(schema, elements as u64, vectors, chunks)
    }

    /// The floats of chunk `index`; none beyond the last chunk, or if the vectors differ in length.
    pub fn chunk_floats(&self, index: usize) -> Option<&[f32]> {
        let vectors = u8::try_from(1 + self.moments.len()).ok()?;
        let (vector, range) = chunk_span(self.theta.len() as u64, vectors, index)?;
        self.vectors().nth(vector)?.get(range)
    }

    /// The bytes of chunk `index`.
    pub fn chunk_bytes(&self, index: usize) -> Option<Vec<u8>> {
        Some(self.chunk_floats(index)?.iter().flat_map(|x| x.to_le_bytes()).collect())
    }
}

/// The reason why a manifest or a chunk is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    #[error("manifest: version {theirs}, this program reads {MANIFEST_VERSION}")]
    Version { theirs: u16 },
    #[error("manifest: {elements} elements, must be between 1 and {PARAMETERS_MAX}")]
    Elements { elements: u64 },
    #[error("manifest: {vectors} vectors, must be {} to {}", VECTORS.start(), VECTORS.end())]
    Vectors { vectors: u8 },
    #[error("{what}: {bytes} bytes where {expected} are due")]
    Length { what: &'static str, bytes: usize, expected: usize },
    #[error("state has no chunk {index}: it has {count}")]
    NoSuchChunk { index: usize, count: usize },
    #[error("chunk {index} does not have the digest that the manifest names: fetch it from another peer")]
    Digest { index: usize },
    #[error("the vectors of a state differ in length: {theta} parameters, {other} in a moment")]
    Lengths { theta: usize, other: usize },
}

/// Names every chunk of a state. With it and a record's `state_root`, chunks can be fetched from any node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Digest of the model's schema: names, shapes and order of tensors.
    pub schema: Digest,
    /// Parameters of the model.
    pub elements: u64,
    /// Vectors of the state: theta and the moments of the run's outer optimizer ([`SyncMode::vectors`]).
    pub vectors: u8,
    /// Digests of theta's chunks, then of m's, then of v's; [`chunk_count`] of them.
    pub chunks: Vec<Digest>,
}

/// Chunks of a state of so many vectors of `elements` each.
pub const fn chunk_count(elements: u64, vectors: u8) -> usize {
    vectors as usize * elements.div_ceil(CHUNK_FLOATS as u64) as usize
}

/// The vector of chunk `index`, from 0, and the chunk's elements in it; None beyond the last chunk.
pub fn chunk_span(elements: u64, vectors: u8, index: usize) -> Option<(usize, Range<usize>)> {
    let of_vector = chunk_count(elements, 1);
    if of_vector == 0 || index >= chunk_count(elements, vectors) {
        return None;
    }
    let start = index % of_vector * CHUNK_FLOATS;
    Some((index / of_vector, start..(start + CHUNK_FLOATS).min(elements as usize)))
}

/// Digest of one chunk's bytes.
pub fn chunk_digest(bytes: &[u8]) -> Digest {
    Digest::of(CHUNK_DOMAIN, &[bytes])
}

/// [`chunk_digest`] of a chunk of so many bytes that arrives piece by piece.
pub fn byte_hasher(bytes: u64) -> ByteHasher {
    ByteHasher::new(CHUNK_DOMAIN, bytes)
}

/// Digest of the chunk that holds these floats; equals [`chunk_digest`] of their bytes. Chunks are independent, so a
/// caller may hash them on several threads and put the manifest together with [`Manifest::of_chunks`].
pub fn floats_digest(floats: &[f32]) -> Digest {
    Digest::of_floats(CHUNK_DOMAIN, floats)
}

/// [`floats_digest`] of a chunk of `elements` floats that arrive piece by piece.
pub fn chunk_hasher(elements: usize) -> FloatHasher {
    FloatHasher::new(CHUNK_DOMAIN, elements)
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
    Digest::of(
        ROOT_DOMAIN,
        &[
            &manifest.schema.0,
            &manifest.elements.to_le_bytes(),
            &[if mutated!(Mutation::RootWithoutKinds) { 2 } else { manifest.vectors }],
            &top.0,
        ],
    )
}

/// Checks sizes before anything is allocated by them.
fn check_sizes(elements: u64, vectors: u8) -> Result<(), StateError> {
    if elements == 0 || elements > PARAMETERS_MAX {
        return Err(StateError::Elements { elements });
    }
    if VECTORS.contains(&vectors) { Ok(()) } else { Err(StateError::Vectors { vectors }) }
}

impl Manifest {
    /// Makes a manifest from chunk digests made elsewhere; their count must fit the counts of elements and vectors.
    pub fn of_chunks(schema: Digest, elements: u64, vectors: u8, chunks: Vec<Digest>) -> Result<Self, StateError> {
        check_sizes(elements, vectors)?;
        let (bytes, expected) = (32 * chunks.len(), 32 * chunk_count(elements, vectors));
        if bytes != expected {
            return Err(StateError::Length { what: "chunk digests", bytes, expected });
        }
        Ok(Self { schema, elements, vectors, chunks })
    }

    /// `version u16 | schema 32 | elements u64 | vectors u8 | chunk digests 32 each`, little endian.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(MANIFEST_HEADER + 32 * self.chunks.len());
        bytes.extend_from_slice(&MANIFEST_VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.schema.0);
        bytes.extend_from_slice(&self.elements.to_le_bytes());
        bytes.push(self.vectors);
        for chunk in &self.chunks {
            bytes.extend_from_slice(&chunk.0);
        }
        bytes
    }

    /// Reads [`Manifest::encode`]'s bytes; the counts of elements and vectors fix their number.
    pub fn decode(bytes: &[u8]) -> Result<Self, StateError> {
        let truncated = StateError::Length { what: "manifest", bytes: bytes.len(), expected: MANIFEST_HEADER };
        let (version, rest) = bytes.split_first_chunk::<2>().ok_or(truncated)?;
        let theirs = u16::from_le_bytes(*version);
        if theirs != MANIFEST_VERSION {
            return Err(StateError::Version { theirs });
        }
        let (schema, rest) = rest.split_first_chunk::<32>().ok_or(truncated)?;
        let (elements, rest) = rest.split_first_chunk::<8>().ok_or(truncated)?;
        let (&vectors, rest) = rest.split_first().ok_or(truncated)?;
        let elements = u64::from_le_bytes(*elements);
        check_sizes(elements, vectors)?;
        let expected = MANIFEST_HEADER + 32 * chunk_count(elements, vectors);
        if bytes.len() != expected {
            return Err(StateError::Length { what: "manifest", bytes: bytes.len(), expected });
        }
        let chunks = rest.as_chunks::<32>().0.iter().map(|chunk| Digest(*chunk)).collect();
        Ok(Self { schema: Digest(*schema), elements, vectors, chunks })
    }

    /// Bytes of chunk `index`.
    pub fn chunk_len(&self, index: usize) -> Option<usize> {
        chunk_span(self.elements, self.vectors, index).map(|(_, range)| 4 * range.len())
    }

    /// Checks that `bytes` are chunk `index`: first the length, then the digest.
    pub fn check_chunk(&self, index: usize, bytes: &[u8]) -> Result<(), StateError> {
        let missing = StateError::NoSuchChunk { index, count: self.chunks.len() };
        let expected = self.chunk_len(index).ok_or(missing)?;
        if bytes.len() != expected {
            return Err(StateError::Length { what: "state chunk", bytes: bytes.len(), expected });
        }
        let digest = self.chunks.get(index).ok_or(missing)?;
        if chunk_digest(bytes) == *digest { Ok(()) } else { Err(StateError::Digest { index }) }
    }
}

#[cfg(test)]
#[path = "state_test.rs"]
mod tests;
