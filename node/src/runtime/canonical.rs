//! The state that all nodes share, to the bit: parameters and the outer optimizer's moments in host memory.
//!
//! The arithmetic is `protocol`'s (`outer`, `codec`, `state`); this module runs it in parallel over chunks,
//! without ever holding a decoded update or a second copy of the state.

use crate::coding::Coder;
use rayon::prelude::*;
use starling_protocol::Digest;
use starling_protocol::codec::CodecError;
use starling_protocol::digest::FloatHasher;
use starling_protocol::limits::{CHUNK_ELEMENTS, STATE_CHUNK_BYTES};
use starling_protocol::outer::{Rule, adamw};
use starling_protocol::record::Record;
use starling_protocol::run::Codec;
use starling_protocol::state::{self, Manifest, State, StateError};
use starling_protocol::update::{self, Layout};
use starling_store::LoadedState;
use std::ops::Range;

/// Elements of one chunk of the state.
const STATE_CHUNK_ELEMENTS: usize = STATE_CHUNK_BYTES / 4;
/// Chunks of the update that step one chunk of the state.
const UPDATE_CHUNKS: usize = STATE_CHUNK_ELEMENTS / CHUNK_ELEMENTS;
const _: () = assert!(STATE_CHUNK_ELEMENTS.is_multiple_of(CHUNK_ELEMENTS), "a state chunk holds whole update chunks");

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

/// An outer step: an encoded update and how to apply it (`protocol::outer`).
pub struct OuterStep<'a> {
    pub update: &'a [u8],
    pub codec: Codec,
    pub rule: Rule,
    /// The elements that the step changes: whole chunks of the codec, or up to the end. The others stay.
    pub range: Range<usize>,
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
    #[error("the update makes chunk {chunk} of parameters or moments infinite or not a number; it was dropped")]
    NonFinite { chunk: usize },
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

    /// The manifest that the state will have after `step`; the state itself does not change. `known` is the manifest of
    /// the present state, if the caller has it: chunks that the step does not change need no hash then.
    pub fn speculate(&self, step: &OuterStep, known: Option<&Manifest>) -> Result<Manifest, StepError> {
        let prepared = step.prepare()?;
        let of_vector = self.elements().div_ceil(STATE_CHUNK_ELEMENTS);
        let vectors: Vec<&[f32]> = self.state.vectors().collect();
        let stepped: Vec<Vec<Digest>> = (0..of_vector)
            .into_par_iter()
            .map_init(
                || Scratch::new(step.codec, vectors.len()),
                |scratch, index| {
                    let range = index * STATE_CHUNK_ELEMENTS..((index + 1) * STATE_CHUNK_ELEMENTS).min(self.elements());
                    let stays = range.end <= step.range.start || range.start >= step.range.end;
                    if let Some(known) = known.filter(|_| stays) {
                        return Ok((0..vectors.len()).map(|n| known.chunks[n * of_vector + index]).collect());
                    }
                    let chunk: Vec<&[f32]> = vectors.iter().map(|vector| &vector[range.clone()]).collect();
                    scratch.digests_after((step, &prepared), index, &chunk)
                },
            )
            .collect::<Result<_, StepError>>()?;
        let of_vector = |n: usize| stepped.iter().map(|digests| digests[n]).collect();
        Ok(self.manifest_of((0..vectors.len()).map(of_vector).collect())?)
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
    pub fn apply(&mut self, step: &OuterStep) -> Result<(), StepError> {
        #[cfg(feature = "byzantine")]
        if crate::byzantine::applies_twice() {
            step.apply(&mut self.state)?;
        }
        step.apply(&mut self.state)
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

/// Buffers for one chunk of an update and the values that it steps, small enough for a core's cache: the state is read
/// once, and only digests are written.
struct Scratch {
    decoder: Decoder,
    vectors: Vec<Vec<f32>>,
}

/// A codec, and a buffer for decoded values.
struct Decoder {
    coder: Coder,
    decoded: Vec<f32>,
}

/// The values that all chunks of a step share.
struct Prepared {
    layout: Layout,
    /// The factor on the update.
    scale: f32,
}

impl Decoder {
    fn new(codec: Codec) -> Self {
        Self { coder: Coder::new(codec), decoded: Vec::new() }
    }

    /// Decodes chunk `chunk` of an update, which has this many elements.
    fn decode(&mut self, update: &[u8], layout: &Layout, chunk: usize, elements: usize) -> Result<&[f32], StepError> {
        self.decoded.resize(elements, 0.0);
        let decoded = self.coder.decode(&update[layout.range(chunk)], &mut self.decoded);
        decoded.map_err(|reason| StepError::Chunk { chunk, reason })?;
        Ok(&self.decoded)
    }
}

impl Scratch {
    fn new(codec: Codec, vectors: usize) -> Self {
        Self { decoder: Decoder::new(codec), vectors: vec![Vec::new(); vectors] }
    }

    /// Digests of state chunk `index` of each vector after `step`, computed from the present values.
    fn digests_after(
        &mut self,
        (step, prepared): (&OuterStep, &Prepared),
        index: usize,
        vectors: &[&[f32]],
    ) -> Result<Vec<Digest>, StepError> {
        let mut hashers: Vec<_> = vectors.iter().map(|chunk| state::chunk_hasher(chunk.len())).collect();
        let elements = vectors.first().map_or(0, |theta| theta.len());
        for (n, start) in (0..elements).step_by(CHUNK_ELEMENTS).enumerate() {
            let range = start..(start + CHUNK_ELEMENTS).min(elements);
            for (own, vector) in self.vectors.iter_mut().zip(vectors) {
                own.clear();
                own.extend_from_slice(&vector[range.clone()]);
            }
            let mut parts: Vec<&mut [f32]> = self.vectors.iter_mut().map(Vec::as_mut_slice).collect();
            if step.range.contains(&(index * STATE_CHUNK_ELEMENTS + start)) {
                step.apply_to_chunk(prepared, index * UPDATE_CHUNKS + n, &mut parts, &mut self.decoder)?;
            }
            for (hasher, own) in hashers.iter_mut().zip(&self.vectors) {
                hasher.put(own);
            }
        }
        Ok(hashers.into_iter().map(FloatHasher::finish).collect())
    }
}

impl OuterStep<'_> {
    /// Applies the step to a state in place.
    pub fn apply(&self, state: &mut State) -> Result<(), StepError> {
        let prepared = self.prepare()?;
        let State { theta, moments } = state;
        let theta = &mut theta[self.range.clone()];
        let mut chunks: Vec<Vec<&mut [f32]>> = theta.chunks_mut(CHUNK_ELEMENTS).map(|chunk| vec![chunk]).collect();
        for moment in moments {
            for (chunk, part) in chunks.iter_mut().zip(moment[self.range.clone()].chunks_mut(CHUNK_ELEMENTS)) {
                chunk.push(part);
            }
        }
        chunks.into_par_iter().enumerate().try_for_each_init(
            || Decoder::new(self.codec),
            |decoder, (chunk, mut parts)| {
                self.apply_to_chunk(&prepared, self.first_chunk() + chunk, &mut parts, decoder)
            },
        )
    }

    /// Reads the whole update once if the rule needs its norm.
    fn prepare(&self) -> Result<Prepared, StepError> {
        let elements = self.range.len();
        let layout = Layout::of(self.codec, elements, self.update).map_err(StepError::Layout)?;
        let squares = if self.rule.clips() { self.squares(&layout, elements)? } else { 0.0 };
        Ok(Prepared { layout, scale: self.rule.scale(squares) })
    }

    fn squares(&self, layout: &Layout, elements: usize) -> Result<f64, StepError> {
        let of_chunks: Vec<f64> = (0..update::chunks(elements))
            .into_par_iter()
            .map_init(
                || Decoder::new(self.codec),
                |decoder, chunk| {
                    let length = update::chunk_elements(elements, chunk).len();
                    decoder.decode(self.update, layout, chunk, length).map(adamw::squares)
                },
            )
            .collect::<Result<_, StepError>>()?;
        // The sum is over chunks in order, on any number of threads.
        Ok(of_chunks.iter().sum())
    }

    /// The model's chunks before those that this step changes.
    fn first_chunk(&self) -> usize {
        self.range.start / CHUNK_ELEMENTS
    }

    /// Steps one chunk. `chunk` counts the model's chunks of the codec's length; `parts` are the values to step, theta
    /// first.
    fn apply_to_chunk(
        &self,
        prepared: &Prepared,
        chunk: usize,
        parts: &mut [&mut [f32]],
        decoder: &mut Decoder,
    ) -> Result<(), StepError> {
        let Some((theta, moments)) = parts.split_first_mut() else { return Ok(()) };
        let decoded = decoder.decode(self.update, &prepared.layout, chunk - self.first_chunk(), theta.len())?;
        if !self.rule.step(prepared.scale, chunk * CHUNK_ELEMENTS, theta, moments, decoded) {
            return Err(StepError::NonFinite { chunk });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::sample_test::{genesis, spec};
    use starling_protocol::run::SyncMode;
    use starling_protocol::update::{self, Fragments};

    /// Two whole chunks of the state and a part, which ends in a part of an update's chunk.
    const ELEMENTS: usize = 2 * STATE_CHUNK_ELEMENTS + CHUNK_ELEMENTS + 77;

    fn canonical(mode: SyncMode) -> Canonical {
        let vector = |salt: usize| (0..ELEMENTS).map(|i| ((i * 7 + salt) % 1009) as f32 * 1e-3 - 0.5).collect();
        let record = genesis().record;
        let digest = record.digest();
        let mut state = State::initial(vector(1), mode);
        state.moments[0] = vector(500);
        Canonical { record, digest, base: digest, schema: Digest([3; 32]), state }
    }

    /// The first step of a run in this mode.
    fn rule(mode: SyncMode) -> Rule {
        let mut spec = spec();
        spec.sync.mode = mode;
        Rule::of(&spec, &genesis().record, 1)
    }

    fn delta() -> Vec<f32> {
        (0..ELEMENTS).map(|i| ((i * 31) % 2001) as f32 * 1e-5 - 1e-2).collect()
    }

    #[test]
    fn the_speculated_state_equals_the_applied_and_the_specified_state() {
        let codecs = [Codec::Int8, Codec::Bf16, Codec::Int4, Codec::TopK { k: 64 }];
        for (mode, codec) in SyncMode::ALL.iter().flat_map(|mode| codecs.map(|codec| (*mode, codec))) {
            let update = update::encode(codec, &delta()).expect("finite");
            let step = OuterStep { update: &update, codec, rule: rule(mode), range: 0..ELEMENTS };
            let mut canonical = canonical(mode);
            let before = canonical.manifest().expect("of a sound size");
            let speculated = canonical.speculate(&step, Some(&before)).expect("it applies");
            assert_eq!(canonical.manifest().expect("of a sound size"), before, "nothing has changed");
            let (mut specified, mut decoded) = (canonical.state.clone(), delta());
            update::decode(codec, &update, &mut decoded).expect("it decodes");
            assert!(step.rule.apply(&mut specified, &decoded));
            canonical.apply(&step).expect("it was speculated on");
            assert_eq!(canonical.manifest().expect("of a sound size"), speculated, "{mode}, {codec}");
            assert_eq!(specified.manifest(canonical.schema).expect("of a sound size"), speculated, "{mode}, {codec}");
            assert_ne!(speculated, before);
        }
        assert!(rule(SyncMode::EveryStep).clips() && rule(SyncMode::EveryStep).scale(100.0) < 1.0, "the norm counts");
    }

    #[test]
    fn a_fragment_steps_its_own_elements_and_what_stays_is_not_hashed_again() {
        let mut canonical = canonical(SyncMode::Rounds);
        let fragments = Fragments::new(3, ELEMENTS, CHUNK_ELEMENTS);
        for (codec, round) in [(Codec::Int8, 1), (Codec::TopK { k: 64 }, 2), (Codec::Bf16, 3)] {
            let range = fragments.of_round(round);
            let part = &delta()[range.clone()];
            let update = update::encode(codec, part).expect("finite");
            let step = OuterStep { update: &update, codec, rule: rule(SyncMode::Rounds), range: range.clone() };
            let before = canonical.manifest().expect("of a sound size");
            let speculated = canonical.speculate(&step, None).expect("it applies");
            assert_eq!(canonical.speculate(&step, Some(&before)).expect("it applies"), speculated);
            let (mut specified, mut decoded) = (canonical.state.clone(), part.to_vec());
            update::decode(codec, &update, &mut decoded).expect("it decodes");
            assert!(step.rule.apply_at(&mut specified, range.start, &decoded));
            let others = canonical.state.theta.clone();
            canonical.apply(&step).expect("it was speculated on");
            assert_eq!(canonical.manifest().expect("of a sound size"), speculated, "{codec}");
            assert_eq!(specified.manifest(canonical.schema).expect("of a sound size"), speculated, "{codec}");
            assert_eq!(canonical.state.theta[..range.start], others[..range.start]);
            assert_eq!(canonical.state.theta[range.end..], others[range.end..]);
            assert_ne!(canonical.state.theta[range.clone()], others[range]);
        }
    }

    #[test]
    fn updates_that_do_not_apply_are_refused() {
        for mode in SyncMode::ALL {
            let mut state = canonical(*mode);
            let good = update::encode(Codec::Int8, &delta()).expect("finite");
            let said = |state: &Canonical, update: &[u8]| {
                let (codec, rule, range) = (Codec::Int8, rule(*mode), 0..ELEMENTS);
                state.speculate(&OuterStep { update, codec, rule, range }, None).map(drop)
            };
            assert!(matches!(said(&state, &good[1..]), Err(StepError::Layout(_))));
            let mut bad = good.clone();
            // A scale that no encoder writes, in the second update chunk of the second state chunk.
            let chunk = UPDATE_CHUNKS + 1;
            bad[update::chunk_range(Codec::Int8, ELEMENTS, chunk)][..2].copy_from_slice(&[0xff, 0xff]);
            assert!(matches!(said(&state, &bad), Err(StepError::Chunk { chunk: found, .. }) if found == chunk));
            state.state.theta[3 * CHUNK_ELEMENTS] = f32::NAN;
            assert!(matches!(said(&state, &good), Err(StepError::NonFinite { chunk: 3 })));
        }
    }

    #[test]
    fn a_state_of_another_mode_is_not_stepped() {
        let update = update::encode(Codec::Bf16, &delta()).expect("finite");
        let rule = rule(SyncMode::EveryStep);
        let step = OuterStep { update: &update, codec: Codec::Bf16, rule, range: 0..ELEMENTS };
        assert!(matches!(canonical(SyncMode::Rounds).speculate(&step, None), Err(StepError::NonFinite { .. })));
    }
}
