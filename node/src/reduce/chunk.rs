//! The arithmetic on one chunk, with one scratch buffer and no allocation a chunk.

use super::error::{ReduceError, own_fault};
use crate::coding::Coder;
use starling_protocol::codec::CodecError;
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::run::Codec;
use starling_protocol::update;
use std::sync::Arc;

/// Encodes, sums and checks chunks of one node's contribution.
pub(super) struct ChunkCoder {
    coder: Coder,
    weight: f32,
    delta: Arc<Vec<f32>>,
    sums: Vec<f32>,
}

impl ChunkCoder {
    pub fn new(codec: Codec, weight: f32, delta: Arc<Vec<f32>>) -> Self {
        Self { coder: Coder::new(codec), weight, delta, sums: vec![0.0; CHUNK_ELEMENTS] }
    }

    /// Puts this node's weighted part of `chunk` at the front of the scratch buffer and returns its length.
    fn load(&mut self, chunk: usize) -> usize {
        let mine = &self.delta[update::chunk_elements(self.delta.len(), chunk)];
        for (sum, x) in self.sums.iter_mut().zip(mine) {
            *sum = x * self.weight;
        }
        mine.len()
    }

    fn encode(&mut self, len: usize, out: &mut Vec<u8>) -> Result<(), CodecError> {
        self.coder.encode(&self.sums[..len], out)
    }

    /// Fills `out` with the payload of this node's part of `chunk`.
    ///
    /// # Errors
    /// [`ReduceError::OwnDelta`] when it cannot be encoded.
    pub fn own(&mut self, chunk: usize, out: &mut Vec<u8>) -> Result<(), ReduceError> {
        let len = self.load(chunk);
        self.encode(len, out).map_err(|source| own_fault(chunk, source))
    }

    /// Fills `out` with the payload of this node's part of `chunk` plus the values of `partial`.
    ///
    /// # Errors
    /// The outer one when the sum cannot be encoded; the inner one when `partial` is not canonical.
    pub fn add(
        &mut self,
        chunk: usize,
        partial: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Result<(), CodecError>, ReduceError> {
        let len = self.load(chunk);
        if let Err(error) = self.coder.decode_add(partial, &mut self.sums[..len]) {
            return Ok(Err(error));
        }
        match self.encode(len, out) {
            Ok(()) => Ok(Ok(())),
            Err(source) if self.own_is_finite(chunk) => Err(ReduceError::Sum { chunk, source }),
            Err(source) => Err(own_fault(chunk, source)),
        }
    }

    /// Whether a finished payload of `chunk` is canonical.
    pub fn check(&self, chunk: usize, payload: &[u8]) -> Result<(), CodecError> {
        let len = update::chunk_elements(self.delta.len(), chunk).len();
        self.coder.check(payload, len)
    }

    fn own_is_finite(&self, chunk: usize) -> bool {
        self.delta[update::chunk_elements(self.delta.len(), chunk)].iter().all(|x| x.is_finite())
    }
}
