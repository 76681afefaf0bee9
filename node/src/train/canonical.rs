//! The state that all nodes share, to the bit: parameters and outer momentum in host memory.
//!
//! The arithmetic is `protocol`'s (`outer`, `codec`, `state`); this module runs it in parallel over chunks,
//! without ever holding a decoded update or a second copy of the state.

use rayon::prelude::*;
use starling_protocol::limits::{CHUNK_ELEMENTS, STATE_CHUNK_BYTES};
use starling_protocol::record::Record;
use starling_protocol::run::Codec;
use starling_protocol::state::{self, Manifest, StateError};
use starling_protocol::{Digest, outer, update};

/// Elements of one chunk of the state.
const STATE_CHUNK_ELEMENTS: usize = STATE_CHUNK_BYTES / 4;
const _: () = assert!(STATE_CHUNK_ELEMENTS.is_multiple_of(CHUNK_ELEMENTS), "a state chunk holds whole update chunks");

/// Parameters and outer momentum after `record`.
pub struct Canonical {
    pub record: Record,
    /// [`Record::digest`] of `record`.
    pub digest: Digest,
    /// The record that made the state: `record`, or one before it if it changes no state (a skip, a fork).
    pub base: Digest,
    /// Digest of the parameters' names and shapes.
    pub schema: Digest,
    pub theta: Vec<f32>,
    pub momentum: Vec<f32>,
}

/// An outer step: an encoded update and how to apply it (`protocol::outer`).
pub struct OuterStep<'a> {
    pub update: &'a [u8],
    pub codec: Codec,
    pub lr: f32,
    pub momentum: f32,
}

/// An update that does not decode. The engines have checked it chunk by chunk, so this is damage or a lie of a source.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    #[error("the update has {found} bytes where {expected} were expected; it was dropped")]
    Length { found: usize, expected: usize },
    #[error("chunk {chunk} of the update does not decode: {reason}; it was dropped")]
    Chunk { chunk: usize, reason: String },
    #[error(transparent)]
    State(#[from] StateError),
    #[error("the update makes parameter or momentum chunk {chunk} infinite or not a number; it was dropped")]
    NonFinite { chunk: usize },
}

impl Canonical {
    /// Elements of the model.
    pub fn elements(&self) -> usize {
        self.theta.len()
    }

    /// The manifest of the state as it is.
    pub fn manifest(&self) -> Result<Manifest, StateError> {
        let digests = |values: &[f32]| -> Vec<Digest> {
            values.par_chunks(STATE_CHUNK_ELEMENTS).map(state::floats_digest).collect()
        };
        let mut chunks = digests(&self.theta);
        chunks.extend(digests(&self.momentum));
        Manifest::of_chunks(self.schema, self.theta.len() as u64, chunks)
    }

    /// The manifest that the state will have after `step`; the state itself does not change.
    pub fn speculate(&self, step: &OuterStep) -> Result<Manifest, StepError> {
        step.check_length(self.elements())?;
        let stepped: Vec<(Digest, Digest)> = self
            .theta
            .par_chunks(STATE_CHUNK_ELEMENTS)
            .zip(self.momentum.par_chunks(STATE_CHUNK_ELEMENTS))
            .enumerate()
            .map(|(index, (theta, momentum))| {
                let (mut theta, mut momentum) = (theta.to_vec(), momentum.to_vec());
                step.apply_to_chunk(index, &mut theta, &mut momentum)?;
                Ok((state::floats_digest(&theta), state::floats_digest(&momentum)))
            })
            .collect::<Result<_, StepError>>()?;
        let (mut chunks, momentum): (Vec<_>, Vec<_>) = stepped.into_iter().unzip();
        chunks.extend(momentum);
        Ok(Manifest::of_chunks(self.schema, self.theta.len() as u64, chunks)?)
    }

    /// Applies a step that [`Self::speculate`] has accepted, and makes `record` the head.
    pub fn adopt(&mut self, step: &OuterStep, record: Record) -> Result<(), StepError> {
        step.apply(&mut self.theta, &mut self.momentum)?;
        self.stand_on(record);
        Ok(())
    }

    /// Makes `record` the head; the state is its already.
    pub fn stand_on(&mut self, record: Record) {
        self.digest = record.digest();
        self.base = record.base_or(self.digest);
        self.record = record;
    }
}

impl OuterStep<'_> {
    /// Applies the step to flat parameters and momentum of equal length.
    pub fn apply(&self, theta: &mut [f32], momentum: &mut [f32]) -> Result<(), StepError> {
        self.check_length(theta.len())?;
        theta
            .par_chunks_mut(STATE_CHUNK_ELEMENTS)
            .zip(momentum.par_chunks_mut(STATE_CHUNK_ELEMENTS))
            .enumerate()
            .try_for_each(|(index, (theta, momentum))| self.apply_to_chunk(index, theta, momentum))
    }

    fn check_length(&self, elements: usize) -> Result<(), StepError> {
        let expected = update::encoded_len(self.codec, elements);
        if self.update.len() != expected {
            return Err(StepError::Length { found: self.update.len(), expected });
        }
        Ok(())
    }

    /// `index` counts state chunks; `theta` and `momentum` are that chunk.
    fn apply_to_chunk(&self, index: usize, theta: &mut [f32], momentum: &mut [f32]) -> Result<(), StepError> {
        let mut decoded = vec![0f32; theta.len().min(CHUNK_ELEMENTS)];
        let first = index * (STATE_CHUNK_ELEMENTS / CHUNK_ELEMENTS);
        let elements = index * STATE_CHUNK_ELEMENTS + theta.len();
        for (n, (theta, momentum)) in
            theta.chunks_mut(CHUNK_ELEMENTS).zip(momentum.chunks_mut(CHUNK_ELEMENTS)).enumerate()
        {
            let chunk = first + n;
            let decoded = &mut decoded[..theta.len()];
            // Every chunk before this one is whole, so its place does not depend on the model's size.
            let range = update::chunk_range(self.codec, elements, chunk);
            decode(self.codec, &self.update[range], decoded).map_err(|reason| StepError::Chunk { chunk, reason })?;
            if !outer::nesterov(theta, momentum, decoded, self.lr, self.momentum) {
                return Err(StepError::NonFinite { chunk });
            }
        }
        Ok(())
    }
}

/// The fast decoder; `tests/` proves that it agrees with the specification.
fn decode(codec: Codec, bytes: &[u8], out: &mut [f32]) -> Result<(), String> {
    use starling_kernels::codec;
    match codec {
        Codec::Bf16 => codec::bf16_decode(bytes, out).map_err(|e| e.to_string()),
        Codec::Int8 => codec::int8_decode(bytes, out).map_err(|e| e.to_string()),
    }
}
