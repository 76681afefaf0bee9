//! The state that all nodes share, to the bit: parameters and the outer optimizer's moments in host memory.
//!
//! The arithmetic is `protocol`'s (`outer`, `codec`, `state`); this module runs it in parallel over chunks,
//! without ever holding a decoded update or a second copy of the state.

use super::outer_step::{OuterStep, STATE_CHUNK_ELEMENTS, Scratch, StepError};
use rayon::prelude::*;
use starling_protocol::Digest;
use starling_protocol::record::Record;
use starling_protocol::state::{self, Manifest, State, StateError};
use starling_store::LoadedState;
use std::ops::Range;

/// The state after `record`.
pub struct Canonical {
    pub record: Record,
    /// [`Record::digest`] of `record`.
    pub digest: Digest,
    /// The record that made the state: `record`, or an earlier one if `record` changes no state (SKIP, FORK).
    pub base: Digest,
    /// Digest of the parameters' names and shapes.
    pub schema: Digest,
    pub state: State,
}

/// The parts of a state after a step that are known before it is computed.
#[derive(Clone, Copy, Default)]
pub struct Known<'a> {
    /// The manifest of the present state: chunks that the step does not change need no hash then.
    pub present: Option<&'a Manifest>,
    /// The digests of each vector's chunk after the step, by chunk; may be shorter than the state.
    pub stepped: &'a [Option<Vec<Digest>>],
}

impl Canonical {
    /// Elements of the model.
    pub fn elements(&self) -> usize {
        self.state.elements()
    }

    /// The manifest of the present state.
    pub fn manifest(&self) -> Result<Manifest, StateError> {
        let digests = |values: &[f32]| -> Vec<Digest> {
            values.par_chunks(STATE_CHUNK_ELEMENTS).map(state::floats_digest).collect()
        };
        self.manifest_of(self.state.vectors().map(digests).collect())
    }

    /// Chunks of each vector of the state.
    pub fn chunks(&self) -> usize {
        self.elements().div_ceil(STATE_CHUNK_ELEMENTS)
    }

    /// The elements of a chunk of each vector.
    fn range(&self, chunk: usize) -> Range<usize> {
        chunk * STATE_CHUNK_ELEMENTS..((chunk + 1) * STATE_CHUNK_ELEMENTS).min(self.elements())
    }

    /// The manifest that the state will have after `step` with this update; the state itself does not change.
    pub fn speculate(&self, step: &OuterStep, update: &[u8], known: Known<'_>) -> Result<Manifest, StepError> {
        let prepared = step.prepare(update)?;
        let (of_vector, vectors) = (self.chunks(), self.state.vectors().count());
        let stepped: Vec<Vec<Digest>> = (0..of_vector)
            .into_par_iter()
            .map_init(
                || step.scratch(vectors),
                |scratch, chunk| {
                    if let Some(Some(stepped)) = known.stepped.get(chunk) {
                        return Ok(stepped.clone());
                    }
                    if let Some(present) = known.present.filter(|_| step.chunks_of(chunk).is_empty()) {
                        return Ok((0..vectors).map(|n| present.chunks[n * of_vector + chunk]).collect());
                    }
                    let payload = |chunk| prepared.payload(update, chunk);
                    self.stepped_chunk(step, prepared.scale, chunk, payload, scratch)
                },
            )
            .collect::<Result<_, StepError>>()?;
        let of_vector = |n: usize| stepped.iter().map(|digests| digests[n]).collect();
        Ok(self.manifest_of((0..vectors).map(of_vector).collect())?)
    }

    /// The digests of each vector's chunk after the step: [`OuterStep::digests`].
    pub fn stepped_chunk<'p>(
        &self,
        step: &OuterStep,
        scale: f32,
        chunk: usize,
        payload: impl Fn(usize) -> &'p [u8],
        scratch: &mut Scratch,
    ) -> Result<Vec<Digest>, StepError> {
        let values: Vec<&[f32]> = self.state.vectors().map(|vector| &vector[self.range(chunk)]).collect();
        step.digests(scale, (chunk, &values), payload, scratch)
    }

    /// The manifest of each vector's chunks.
    fn manifest_of(&self, chunks: Vec<Vec<Digest>>) -> Result<Manifest, StateError> {
        let vectors = u8::try_from(chunks.len()).unwrap_or(u8::MAX);
        Manifest::of_chunks(self.schema, self.elements() as u64, vectors, chunks.concat())
    }

    /// Applies a step that [`Self::speculate`] has accepted. The record stays the earlier one until [`Self::stand_on`].
    ///
    /// # Errors
    /// The step failed; the state is lost then.
    pub fn apply(&mut self, step: &OuterStep, update: &[u8]) -> Result<(), StepError> {
        #[cfg(feature = "byzantine")]
        if crate::byzantine::applies_twice() {
            step.apply(update, &mut self.state)?;
        }
        step.apply(update, &mut self.state)
    }

    /// Replaces the state by a loaded one.
    pub fn take(&mut self, loaded: LoadedState) {
        self.state = loaded.state;
        #[cfg(feature = "byzantine")]
        crate::byzantine::caught_up(&mut self.state.theta);
        self.stand_on(loaded.record);
    }

    /// Makes `record` the head; the state already belongs to it.
    pub fn stand_on(&mut self, record: Record) {
        self.digest = record.digest();
        self.base = record.base_or(self.digest);
        self.record = record;
    }
}

#[cfg(test)]
#[path = "canonical_test.rs"]
mod tests;
