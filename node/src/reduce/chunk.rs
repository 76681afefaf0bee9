//! The arithmetic on one chunk. One scratch buffer, no allocation a chunk.

use super::error::ReduceError;
use starling_kernels::codec as fast;
use starling_protocol::codec::CodecError;
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::run::Codec;
use starling_protocol::update;
use std::sync::Arc;

/// Encodes, sums and checks chunks of one node's contribution.
pub(super) struct ChunkCoder {
    kind: fast::CodecKind,
    weight: f32,
    delta: Arc<Vec<f32>>,
    sums: Vec<f32>,
}

impl ChunkCoder {
    pub fn new(codec: Codec, weight: f32, delta: Arc<Vec<f32>>) -> Self {
        let kind = match codec {
            Codec::Bf16 => fast::CodecKind::Bf16,
            Codec::Int8 => fast::CodecKind::Int8,
            Codec::Int4 => fast::CodecKind::Int4,
        };
        Self { kind, weight, delta, sums: vec![0.0; CHUNK_ELEMENTS] }
    }

    /// Puts my weighted part of `chunk` at the front of the scratch buffer and returns how long it is.
    fn load(&mut self, chunk: usize) -> usize {
        let mine = &self.delta[update::chunk_elements(self.delta.len(), chunk)];
        for (sum, x) in self.sums.iter_mut().zip(mine) {
            *sum = x * self.weight;
        }
        mine.len()
    }

    fn encode(&self, len: usize, out: &mut [u8]) -> Result<(), CodecError> {
        fast::encode(self.kind, &self.sums[..len], out).map_err(as_specified)
    }

    /// Fills `out` with the payload of my own part of `chunk`.
    ///
    /// # Errors
    /// [`ReduceError::OwnDelta`] when it cannot be encoded.
    pub fn own(&mut self, chunk: usize, out: &mut [u8]) -> Result<(), ReduceError> {
        let len = self.load(chunk);
        self.encode(len, out).map_err(|source| self.own_fault(chunk, source))
    }

    /// Fills `out` with the payload of my part of `chunk` plus what `partial` holds.
    ///
    /// # Errors
    /// The outer one when the sum cannot be encoded; the inner one when `partial` is not canonical.
    pub fn add(&mut self, chunk: usize, partial: &[u8], out: &mut [u8]) -> Result<Result<(), CodecError>, ReduceError> {
        let len = self.load(chunk);
        if let Err(error) = fast::decode_add(self.kind, partial, &mut self.sums[..len]) {
            return Ok(Err(as_specified(error)));
        }
        match self.encode(len, out) {
            Ok(()) => Ok(Ok(())),
            Err(source) if self.own_is_finite(chunk) => Err(ReduceError::Sum { chunk, source }),
            Err(source) => Err(self.own_fault(chunk, source)),
        }
    }

    /// Whether a finished payload of `chunk` is canonical.
    pub fn check(&self, chunk: usize, payload: &[u8]) -> Result<(), CodecError> {
        let len = update::chunk_elements(self.delta.len(), chunk).len();
        fast::check(self.kind, payload, len).map_err(as_specified)
    }

    fn own_is_finite(&self, chunk: usize) -> bool {
        self.delta[update::chunk_elements(self.delta.len(), chunk)].iter().all(|x| x.is_finite())
    }

    fn own_fault(&self, chunk: usize, source: CodecError) -> ReduceError {
        let start = update::chunk_elements(self.delta.len(), chunk).start;
        let inside = match source {
            CodecError::NotFinite { index } | CodecError::TooLarge { index } => index,
            _ => 0,
        };
        ReduceError::OwnDelta { element: start + inside, source }
    }
}

/// The same error in the specification's words.
fn as_specified(error: fast::CodecError) -> CodecError {
    match error {
        fast::CodecError::Length { elements, expected, actual } => CodecError::Length { elements, expected, actual },
        fast::CodecError::NotFinite { index } => CodecError::NotFinite { index },
        fast::CodecError::TooLarge { index } => CodecError::TooLarge { index },
        fast::CodecError::BadScale { block, bits } => CodecError::BadScale { block, bits },
        fast::CodecError::ZeroBlock { block, bits } => CodecError::ZeroBlock { block, bits },
        fast::CodecError::BadQuant { index } => CodecError::BadQuant { index },
        fast::CodecError::Padding { block } => CodecError::Padding { block },
        fast::CodecError::Truncated { block } => CodecError::Truncated { block },
        fast::CodecError::Trailing { bytes } => CodecError::Trailing { bytes },
        fast::CodecError::TooMany { block, entries } => CodecError::TooMany { block, entries },
        fast::CodecError::BadPlace { block, place } => CodecError::BadPlace { block, place },
    }
}
