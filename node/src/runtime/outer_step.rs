//! The outer step: how an encoded update changes the state, chunk by chunk and on all cores.

use crate::coding::Coder;
use rayon::prelude::*;
use starling_protocol::Digest;
use starling_protocol::codec::CodecError;
use starling_protocol::digest::FloatHasher;
use starling_protocol::limits::{CHUNK_ELEMENTS, STATE_CHUNK_BYTES};
use starling_protocol::outer::{Rule, adamw};
use starling_protocol::run::Codec;
use starling_protocol::state::{self, State, StateError};
use starling_protocol::update::{self, Layout};
use std::ops::Range;

/// Elements of one chunk of the state.
pub const STATE_CHUNK_ELEMENTS: usize = STATE_CHUNK_BYTES / 4;
/// Chunks of the update that step one chunk of the state.
pub const UPDATE_CHUNKS: usize = STATE_CHUNK_ELEMENTS / CHUNK_ELEMENTS;
const _: () = assert!(STATE_CHUNK_ELEMENTS.is_multiple_of(CHUNK_ELEMENTS), "a state chunk holds whole update chunks");

/// How an update is applied (`protocol::outer`). It is known before the update is.
#[derive(Clone, Debug, PartialEq)]
pub struct OuterStep {
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

/// Buffers for one chunk of an update and the values that it steps, small enough for a core's cache: the state is read
/// once, and only digests are written.
pub struct Scratch {
    decoder: Decoder,
    vectors: Vec<Vec<f32>>,
}

/// A codec, and a buffer for decoded values.
struct Decoder {
    coder: Coder,
    decoded: Vec<f32>,
}

/// The places of an update's payloads, and the factor on their values.
pub struct Prepared {
    layout: Layout,
    pub scale: f32,
}

impl Decoder {
    fn new(codec: Codec) -> Self {
        Self { coder: Coder::new(codec), decoded: Vec::new() }
    }

    /// Decodes the payload of chunk `chunk` of an update, which has this many elements.
    fn decode(&mut self, payload: &[u8], chunk: usize, elements: usize) -> Result<&[f32], StepError> {
        self.decoded.resize(elements, 0.0);
        let decoded = self.coder.decode(payload, &mut self.decoded);
        decoded.map_err(|reason| StepError::Chunk { chunk, reason })?;
        Ok(&self.decoded)
    }
}

impl Prepared {
    /// The payload of a chunk of the update.
    pub fn payload<'a>(&self, update: &'a [u8], chunk: usize) -> &'a [u8] {
        &update[self.layout.range(chunk)]
    }
}

impl OuterStep {
    /// Applies the step with this update to a state in place.
    pub fn apply(&self, update: &[u8], state: &mut State) -> Result<(), StepError> {
        let prepared = self.prepare(update)?;
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
                let payload = prepared.payload(update, chunk);
                self.apply_to_chunk(prepared.scale, self.first_chunk() + chunk, &mut parts, (payload, decoder))
            },
        )
    }

    /// Reads the update's table, and the whole update if the rule needs its norm.
    pub fn prepare(&self, update: &[u8]) -> Result<Prepared, StepError> {
        let elements = self.range.len();
        let layout = Layout::of(self.codec, elements, update).map_err(StepError::Layout)?;
        let mut prepared = Prepared { layout, scale: self.rule.scale(0.0) };
        if self.rule.clips() {
            prepared.scale = self.rule.scale(self.squares(&prepared, update)?);
        }
        Ok(prepared)
    }

    fn squares(&self, prepared: &Prepared, update: &[u8]) -> Result<f64, StepError> {
        let elements = self.range.len();
        let of_chunks: Vec<f64> = (0..update::chunks(elements))
            .into_par_iter()
            .map_init(
                || Decoder::new(self.codec),
                |decoder, chunk| {
                    let length = update::chunk_elements(elements, chunk).len();
                    decoder.decode(prepared.payload(update, chunk), chunk, length).map(adamw::squares)
                },
            )
            .collect::<Result<_, StepError>>()?;
        // The sum is over chunks in order, on any number of threads.
        Ok(of_chunks.iter().sum())
    }

    /// Buffers for [`Self::digests`].
    pub fn scratch(&self, vectors: usize) -> Scratch {
        Scratch { decoder: Decoder::new(self.codec), vectors: vec![Vec::new(); vectors] }
    }

    /// Digests of chunk `index` of each of the state's vectors after the step, computed from the values that the chunk
    /// has now. `payload` has the payloads of the update's chunks in [`Self::chunks_of`].
    pub fn digests<'p>(
        &self,
        scale: f32,
        (index, vectors): (usize, &[&[f32]]),
        payload: impl Fn(usize) -> &'p [u8],
        scratch: &mut Scratch,
    ) -> Result<Vec<Digest>, StepError> {
        let mut hashers: Vec<_> = vectors.iter().map(|chunk| state::chunk_hasher(chunk.len())).collect();
        let elements = vectors.first().map_or(0, |theta| theta.len());
        for (n, start) in (0..elements).step_by(CHUNK_ELEMENTS).enumerate() {
            let range = start..(start + CHUNK_ELEMENTS).min(elements);
            for (own, vector) in scratch.vectors.iter_mut().zip(vectors) {
                own.clear();
                own.extend_from_slice(&vector[range.clone()]);
            }
            let mut parts: Vec<&mut [f32]> = scratch.vectors.iter_mut().map(Vec::as_mut_slice).collect();
            if self.range.contains(&(index * STATE_CHUNK_ELEMENTS + start)) {
                let chunk = index * UPDATE_CHUNKS + n;
                let payload = payload(chunk - self.first_chunk());
                self.apply_to_chunk(scale, chunk, &mut parts, (payload, &mut scratch.decoder))?;
            }
            for (hasher, own) in hashers.iter_mut().zip(&scratch.vectors) {
                hasher.put(own);
            }
        }
        Ok(hashers.into_iter().map(FloatHasher::finish).collect())
    }

    /// The update's chunks that step chunk `index` of the state.
    pub fn chunks_of(&self, index: usize) -> Range<usize> {
        let within = |element: usize| element.clamp(self.range.start, self.range.end) - self.range.start;
        let (start, end) = (within(index * STATE_CHUNK_ELEMENTS), within((index + 1) * STATE_CHUNK_ELEMENTS));
        start.div_ceil(CHUNK_ELEMENTS)..end.div_ceil(CHUNK_ELEMENTS)
    }

    /// The bytes of the payloads of [`Self::chunks_of`], in an update whose codec has a fixed length.
    pub fn bytes_of(&self, index: usize) -> Range<usize> {
        update::chunks_range(self.codec, self.range.len(), self.chunks_of(index))
    }

    /// The bytes of the payload of one of the update's chunks, likewise.
    pub fn bytes_of_payload(&self, chunk: usize) -> Range<usize> {
        update::chunk_range(self.codec, self.range.len(), chunk)
    }

    /// The bytes of the update, likewise.
    pub fn bytes(&self) -> usize {
        update::encoded_max(self.codec, self.range.len())
    }

    /// The model's chunks before those that this step changes.
    fn first_chunk(&self) -> usize {
        self.range.start / CHUNK_ELEMENTS
    }

    /// Steps one chunk. `chunk` counts the model's chunks of the codec's length; `parts` are the values to step, theta
    /// first.
    fn apply_to_chunk(
        &self,
        scale: f32,
        chunk: usize,
        parts: &mut [&mut [f32]],
        (payload, decoder): (&[u8], &mut Decoder),
    ) -> Result<(), StepError> {
        let Some((theta, moments)) = parts.split_first_mut() else { return Ok(()) };
        let decoded = decoder.decode(payload, chunk - self.first_chunk(), theta.len())?;
        if !self.rule.step(scale, chunk * CHUNK_ELEMENTS, theta, moments, decoded) {
            return Err(StepError::NonFinite { chunk });
        }
        Ok(())
    }
}
