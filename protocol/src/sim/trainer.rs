//! Training with the real arithmetic on a few numbers: pseudo-gradients that follow from their inputs, the real codecs,
//! the real outer step and the real state root.

use crate::engine::io::Contribution;
use crate::outer::Rule;
use crate::record::Span;
use crate::ring::Ring;
use crate::run::{Codec, ExternalSpec, SyncMode, SyncSpec};
use crate::update::Fragments;
use crate::{Digest, NodeId, codec, state, update};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// Numbers of the model: more than one block of int8.
pub const ELEMENTS: usize = 272;
/// The last elements are of kind mean in a run with an external task: they begin inside a chunk.
const MEANS: u64 = 40;
/// Elements of a chunk here, at which fragments begin and end, too: whole chunks would be a million times the work.
const PART: usize = 32;

/// Chunks of a vector of so many elements.
pub fn chunks(elements: usize) -> usize {
    elements.div_ceil(PART)
}

/// The elements of a chunk; empty beyond the last.
pub fn elements_of(chunk: usize, elements: usize) -> Range<usize> {
    (chunk * PART).min(elements)..((chunk + 1) * PART).min(elements)
}

/// The payload of a chunk in an update of so many elements, whose codec has fixed lengths.
pub fn payload(codec: Codec, update: &[u8], chunk: usize, elements: usize) -> Option<&[u8]> {
    let bytes = |chunk: usize| codec::encoded_max(codec, elements_of(chunk, elements).len());
    let start: usize = (0..chunk).map(bytes).sum();
    update.get(start..start + bytes(chunk))
}

/// Reads an update; None if it has another length, or a payload is invalid.
fn decode(codec: Codec, update: &[u8], elements: usize) -> Option<Vec<f32>> {
    let (mut decoded, mut read) = (vec![0.0; elements], 0);
    for (chunk, decoded) in decoded.chunks_mut(PART).enumerate() {
        let payload = payload(codec, update, chunk, elements)?;
        codec::decode(codec, payload, decoded).ok()?;
        read += payload.len();
    }
    (read == update.len()).then_some(decoded)
}

/// The fragments of the model.
pub fn fragments(sync: &SyncSpec) -> Fragments {
    Fragments::new(sync.fragments, ELEMENTS, PART)
}

/// The canonical state.
#[derive(Debug)]
pub struct State {
    pub vectors: state::State,
    pub root: Digest,
}

fn schema() -> Digest {
    Digest::of("starling sim schema v1", &[])
}

/// An external task of as many elements, the last of which are of kind mean.
pub fn task() -> ExternalSpec {
    let parameters = ELEMENTS as u64;
    let (learned, frozen) = (parameters - MEANS, Digest::default());
    ExternalSpec { schema: schema(), frozen, parameters, learned, samples: 10_000, weight: 4 }
}

impl State {
    pub fn new(vectors: state::State) -> Rc<Self> {
        let manifest = vectors.manifest(schema());
        let root = manifest.map_or(Digest::default(), |manifest| state::root(&manifest));
        Rc::new(Self { vectors, root })
    }

    /// The state that every founder begins with.
    pub fn initial(mode: SyncMode) -> Rc<Self> {
        let theta = (0..ELEMENTS).map(|i| ((i * 37 % 101) as f32 - 50.0) / 100.0).collect();
        Self::new(state::State::initial(theta, mode))
    }

    /// The state after the outer step of a round with an update in a codec; None if the update is invalid or the state
    /// is lost.
    pub fn step(&self, sync: &SyncSpec, (round, codec): (u64, Codec), update: &[u8], rule: &Rule) -> Option<Rc<Self>> {
        let decoded = decode(codec, update, fragments(sync).of_round(round).len())?;
        self.step_by(sync, round, &decoded, rule)
    }

    /// The same with an update that was never encoded.
    pub fn step_by(&self, sync: &SyncSpec, round: u64, update: &[f32], rule: &Rule) -> Option<Rc<Self>> {
        let (mut vectors, range) = (self.vectors.clone(), fragments(sync).of_round(round));
        (range.len() == update.len() && rule.apply_at(&mut vectors, range.start, update)).then(|| Self::new(vectors))
    }

    /// The same state with one bit flipped.
    pub fn damaged(&self) -> Rc<Self> {
        let mut vectors = self.vectors.clone();
        if let Some(first) = vectors.theta.first_mut() {
            *first = f32::from_bits(first.to_bits() ^ 1);
        }
        Self::new(vectors)
    }
}

/// The change of parameters that some samples cause, from a state: the same for every node that trains on the same.
pub fn pseudo_gradient(base: &State, theta: &[f32], member: &NodeId, span: Span) -> Vec<f32> {
    let mut hasher = blake3::Hasher::new_derive_key("starling sim gradient v1");
    hasher.update(&base.root.0).update(&member.0).update(&span.start.to_le_bytes()).update(&span.count.to_le_bytes());
    let mut bytes = [0; 2 * ELEMENTS];
    hasher.finalize_xof().fill(&mut bytes);
    let number = |pair: &[u8; 2]| f32::from(i16::from_le_bytes(*pair)) / 32_768.0;
    let noise = bytes.as_chunks::<2>().0.iter().map(number);
    noise.zip(theta).map(|(noise, theta)| 0.05 * theta + 0.01 * noise).collect()
}

pub fn norm(delta: &[f32]) -> f32 {
    delta.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt() as f32
}

/// The result of a ring over these contributions, by their vectors in ring order.
pub fn reduce(codec: Codec, members: &[Contribution], vectors: &[Rc<Vec<f32>>]) -> Option<Vec<u8>> {
    let weighted = weighted(members, vectors);
    let ring = Ring::new(weighted.len(), chunks(weighted.first().map_or(0, Vec::len)));
    let sums: Option<Vec<Vec<u8>>> =
        (0..ring.chunks()).map(|chunk| summed(codec, &weighted, chunk, ring.owner(chunk)?)).collect();
    Some(sums?.concat())
}

/// The encoded sum of a chunk that goes around a ring once, of contributions that are weighted, and that the member at
/// position `last` finishes.
pub fn summed(codec: Codec, weighted: &[Vec<f32>], chunk: usize, last: usize) -> Option<Vec<u8>> {
    let range = elements_of(chunk, weighted.first()?.len());
    let positions = (1..=weighted.len()).map(|step| (last + step) % weighted.len());
    let views: Option<Vec<&[f32]>> = positions.map(|position| weighted.get(position)?.get(range.clone())).collect();
    update::reduce(codec, &views?).ok()
}

/// The encoded sum of a chunk in a flock of several rows, by the rows and weights of the contributions: each is
/// encoded, the decoded ones are added up row by row in the members' order, and the rows in theirs.
pub fn crossed(codec: Codec, members: &[(usize, f32, Rc<Vec<f32>>)], chunk: usize) -> Option<Vec<u8>> {
    let range = elements_of(chunk, members.first()?.2.len());
    let mut rows: BTreeMap<usize, Vec<f32>> = BTreeMap::new();
    for (row, weight, vector) in members {
        let (mut payload, mut part) = (Vec::new(), vec![0.0f32; range.len()]);
        codec::encode(codec, vector.get(range.clone())?, &mut payload).ok()?;
        codec::decode(codec, &payload, &mut part).ok()?;
        let sum = rows.entry(*row).or_insert_with(|| vec![0.0; range.len()]);
        sum.iter_mut().zip(part).for_each(|(sum, x)| *sum += x * weight);
    }
    let mut rows = rows.into_values();
    let mut all = rows.next()?;
    for row in rows {
        all.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
    let mut payload = Vec::new();
    codec::encode(codec, &all, &mut payload).ok().map(|()| payload)
}

/// The weighted sum without any encoding.
pub fn sum(members: &[Contribution], vectors: &[Rc<Vec<f32>>]) -> Vec<f32> {
    let mut sum = vec![0.0; vectors.first().map_or(0, |vector| vector.len())];
    for part in weighted(members, vectors) {
        for (sum, x) in sum.iter_mut().zip(part) {
            *sum += x;
        }
    }
    sum
}

/// Each contribution times its weight.
pub fn weighted(members: &[Contribution], vectors: &[Rc<Vec<f32>>]) -> Vec<Vec<f32>> {
    let part = |(weight, vector): (f32, &Rc<Vec<f32>>)| {
        let mut part = vector.as_ref().clone();
        update::apply_weight(weight, &mut part);
        part
    };
    Contribution::weights(members).into_iter().zip(vectors).map(part).collect()
}
