//! The state that all nodes share, to the bit: parameters and outer momentum in host memory.
//!
//! The arithmetic is `protocol`'s (`outer`, `codec`, `state`); this module runs it in parallel over chunks,
//! without ever holding a decoded update or a second copy of the state.

use crate::coding::Coder;
use rayon::prelude::*;
use starling_protocol::codec::CodecError;
use starling_protocol::digest::FloatHasher;
use starling_protocol::limits::{CHUNK_ELEMENTS, STATE_CHUNK_BYTES};
use starling_protocol::record::Record;
use starling_protocol::run::Codec;
use starling_protocol::state::{self, Manifest, StateError};
use starling_protocol::update::Layout;
use starling_protocol::{Digest, outer};
use starling_store::LoadedState;

/// Elements of one chunk of the state.
const STATE_CHUNK_ELEMENTS: usize = STATE_CHUNK_BYTES / 4;
/// Chunks of the update that step one chunk of the state.
const UPDATE_CHUNKS: usize = STATE_CHUNK_ELEMENTS / CHUNK_ELEMENTS;
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
    #[error("the update is not one of this model: {0}; it was dropped")]
    Layout(CodecError),
    #[error("chunk {chunk} of the update does not decode: {reason}; it was dropped")]
    Chunk { chunk: usize, reason: CodecError },
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
        let layout = step.layout(self.elements())?;
        let stepped: Vec<(Digest, Digest)> = self
            .theta
            .par_chunks(STATE_CHUNK_ELEMENTS)
            .zip(self.momentum.par_chunks(STATE_CHUNK_ELEMENTS))
            .enumerate()
            .map_init(
                || Scratch::new(step.codec),
                |scratch, (index, (theta, momentum))| scratch.digests_after((step, &layout), index, theta, momentum),
            )
            .collect::<Result<_, StepError>>()?;
        let (mut chunks, momentum): (Vec<_>, Vec<_>) = stepped.into_iter().unzip();
        chunks.extend(momentum);
        Ok(Manifest::of_chunks(self.schema, self.theta.len() as u64, chunks)?)
    }

    /// Applies a step that [`Self::speculate`] has accepted. The record stays the one before until [`Self::stand_on`].
    ///
    /// # Errors
    /// The state is lost then.
    pub fn apply(&mut self, step: &OuterStep) -> Result<(), StepError> {
        step.apply(&mut self.theta, &mut self.momentum)
    }

    /// Takes the place of what was held.
    pub fn take(&mut self, loaded: LoadedState) {
        (self.theta, self.momentum) = (loaded.theta, loaded.momentum);
        self.stand_on(loaded.record);
    }

    /// Makes `record` the head; the state is its already.
    pub fn stand_on(&mut self, record: Record) {
        self.digest = record.digest();
        self.base = record.base_or(self.digest);
        self.record = record;
    }
}

/// Room for one chunk of an update and what it steps, small enough for a core's cache: the state is read once and
/// nothing but digests is written.
struct Scratch {
    decoder: Decoder,
    theta: Vec<f32>,
    momentum: Vec<f32>,
}

/// A codec, and room for what it decodes.
struct Decoder {
    coder: Coder,
    decoded: Vec<f32>,
}

impl Decoder {
    fn new(codec: Codec) -> Self {
        Self { coder: Coder::new(codec), decoded: Vec::new() }
    }
}

impl Scratch {
    fn new(codec: Codec) -> Self {
        Self { decoder: Decoder::new(codec), theta: Vec::new(), momentum: Vec::new() }
    }

    /// Digests of state chunk `index` of parameters and momentum after `step`.
    fn digests_after(
        &mut self,
        step: (&OuterStep, &Layout),
        index: usize,
        theta: &[f32],
        momentum: &[f32],
    ) -> Result<(Digest, Digest), StepError> {
        let mut hashers = [theta, momentum].map(|chunk| state::chunk_hasher(chunk.len()));
        let parts = theta.chunks(CHUNK_ELEMENTS).zip(momentum.chunks(CHUNK_ELEMENTS));
        for (n, (theta, momentum)) in parts.enumerate() {
            for (own, part) in [(&mut self.theta, theta), (&mut self.momentum, momentum)] {
                own.clear();
                own.extend_from_slice(part);
            }
            let chunk = index * UPDATE_CHUNKS + n;
            step.0.apply_to_chunk((step.1, chunk), &mut self.theta, &mut self.momentum, &mut self.decoder)?;
            hashers[0].put(&self.theta);
            hashers[1].put(&self.momentum);
        }
        let [theta, momentum] = hashers.map(FloatHasher::finish);
        Ok((theta, momentum))
    }
}

impl OuterStep<'_> {
    /// Applies the step to flat parameters and momentum of equal length.
    pub fn apply(&self, theta: &mut [f32], momentum: &mut [f32]) -> Result<(), StepError> {
        let layout = self.layout(theta.len())?;
        theta
            .par_chunks_mut(STATE_CHUNK_ELEMENTS)
            .zip(momentum.par_chunks_mut(STATE_CHUNK_ELEMENTS))
            .enumerate()
            .try_for_each_init(
                || Decoder::new(self.codec),
                |decoder, (index, (theta, momentum))| {
                    let mut parts =
                        theta.chunks_mut(CHUNK_ELEMENTS).zip(momentum.chunks_mut(CHUNK_ELEMENTS)).enumerate();
                    parts.try_for_each(|(n, (theta, momentum))| {
                        self.apply_to_chunk((&layout, index * UPDATE_CHUNKS + n), theta, momentum, decoder)
                    })
                },
            )
    }

    fn layout(&self, elements: usize) -> Result<Layout, StepError> {
        Layout::of(self.codec, elements, self.update).map_err(StepError::Layout)
    }

    /// `chunk` counts chunks of the update, whose layout is given; `theta` and `momentum` are what it steps.
    fn apply_to_chunk(
        &self,
        (layout, chunk): (&Layout, usize),
        theta: &mut [f32],
        momentum: &mut [f32],
        decoder: &mut Decoder,
    ) -> Result<(), StepError> {
        let Decoder { coder, decoded } = decoder;
        decoded.resize(theta.len(), 0.0);
        let refused = |reason| StepError::Chunk { chunk, reason };
        coder.decode(&self.update[layout.range(chunk)], decoded).map_err(refused)?;
        if !outer::nesterov(theta, momentum, decoded, self.lr, self.momentum) {
            return Err(StepError::NonFinite { chunk });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::sample_test::genesis;
    use starling_protocol::update;

    /// Two whole chunks of the state and a part, which ends in a part of an update's chunk.
    const ELEMENTS: usize = 2 * STATE_CHUNK_ELEMENTS + CHUNK_ELEMENTS + 77;

    fn canonical() -> Canonical {
        let vector = |salt: usize| (0..ELEMENTS).map(|i| ((i * 7 + salt) % 1009) as f32 * 1e-3 - 0.5).collect();
        let record = genesis().record;
        let digest = record.digest();
        let (theta, momentum) = (vector(1), vector(500));
        Canonical { record, digest, base: digest, schema: Digest([3; 32]), theta, momentum }
    }

    fn delta() -> Vec<f32> {
        (0..ELEMENTS).map(|i| ((i * 31) % 2001) as f32 * 1e-6 - 1e-3).collect()
    }

    #[test]
    fn what_is_speculated_is_what_is_applied_and_what_is_specified() {
        for codec in [Codec::Int8, Codec::Bf16, Codec::Int4, Codec::TopK { k: 64 }] {
            let update = update::encode(codec, &delta()).expect("finite");
            let step = OuterStep { update: &update, codec, lr: 0.7, momentum: 0.9 };
            let mut state = canonical();
            let before = state.manifest().expect("of a sound size");
            let speculated = state.speculate(&step).expect("it applies");
            assert_eq!(state.manifest().expect("of a sound size"), before, "nothing has changed");
            let (mut theta, mut momentum, mut decoded) = (state.theta.clone(), state.momentum.clone(), delta());
            update::decode(codec, &update, &mut decoded).expect("it decodes");
            assert!(outer::nesterov(&mut theta, &mut momentum, &decoded, 0.7, 0.9));
            state.apply(&step).expect("it was speculated on");
            assert_eq!(state.manifest().expect("of a sound size"), speculated);
            assert_eq!(state::manifest_of(state.schema, &theta, &momentum).expect("of a sound size"), speculated);
        }
    }

    #[test]
    fn updates_that_do_not_apply_are_refused() {
        let mut state = canonical();
        let good = update::encode(Codec::Int8, &delta()).expect("finite");
        let said = |state: &Canonical, update: &[u8]| {
            state.speculate(&OuterStep { update, codec: Codec::Int8, lr: 0.7, momentum: 0.9 }).map(drop)
        };
        assert!(matches!(said(&state, &good[1..]), Err(StepError::Layout(_))));
        let mut bad = good.clone();
        // A scale that no encoder writes, in the second chunk of the second chunk of the state.
        let chunk = UPDATE_CHUNKS + 1;
        bad[update::chunk_range(Codec::Int8, ELEMENTS, chunk)][..2].copy_from_slice(&[0xff, 0xff]);
        assert!(matches!(said(&state, &bad), Err(StepError::Chunk { chunk: found, .. }) if found == chunk));
        state.momentum[3 * CHUNK_ELEMENTS] = f32::MAX;
        state.theta[3 * CHUNK_ELEMENTS] = f32::NAN;
        assert!(matches!(said(&state, &good), Err(StepError::NonFinite { chunk: 3 })));
    }
}
