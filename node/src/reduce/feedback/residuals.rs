//! The residuals themselves: the values that payloads left out, and their arithmetic.

use crate::coding::Coder;
use crate::reduce::passed::Mark;
use starling_kernels::codec::offered;
use starling_protocol::engine::io::AttemptKey;
use starling_protocol::outer::adamw::squares;
use starling_protocol::run::Codec;
use starling_protocol::update;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Least weight of a contribution that takes in a residual of sums: divided by a smaller weight, the residual would be
/// larger than the offer.
const FOLD_WEIGHT_MIN: f32 = 1.0 / 1024.0;

/// The share of a residual that is offered again; `None` for codecs without residuals.
pub(super) fn decay(codec: Codec) -> Option<f32> {
    match codec {
        Codec::Bf16 | Codec::Int8 => None,
        Codec::Int4 => Some(1.0),
        // Old residuals are out of date: SparseLoCo, arXiv 2508.15706.
        Codec::TopK { .. } => Some(0.95),
    }
}

/// Residuals as a file holds them: those after the COMMIT of the mark.
pub(in crate::reduce) struct Held {
    pub mark: Mark,
    pub own: Vec<f32>,
    pub sums: BTreeMap<usize, Vec<f32>>,
}

#[derive(Default)]
pub(super) struct Residuals {
    /// One f32 for each element; empty for zeros.
    pub own: Vec<f32>,
    /// Residuals of sums, by chunk.
    pub sums: BTreeMap<usize, Vec<f32>>,
    pub staged: Vec<Staged>,
    /// The committed attempt that is not settled yet. `recalled` is the mark of one that an earlier process has written
    /// to the disk.
    pub due: Option<Staged>,
    pub recalled: Option<Mark>,
    /// The COMMIT after which `own` and `sums` are true; none while they are zeros.
    pub mark: Option<Mark>,
    /// Whether files of given up residuals are still on the disk.
    pub stale: bool,
}

/// Every step leaves the residuals whole. If one panicked in the middle, they are a little off.
pub(super) fn locked(residuals: &Mutex<Residuals>) -> MutexGuard<'_, Residuals> {
    residuals.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The residuals of one attempt, for the case that it is committed.
pub(super) struct Staged {
    pub key: AttemptKey,
    pub terms: Terms,
    pub sums: BTreeMap<usize, Vec<f32>>,
}

/// The inputs from which a node's payloads of one attempt follow.
#[derive(Clone)]
pub(in crate::reduce) struct Terms {
    pub codec: Codec,
    pub weight: f32,
    /// The norm of the contribution that the READY states.
    pub norm: f32,
    /// The factor on the offer, which is found when the first attempt begins.
    pub scale: f32,
    /// Chunks that the node adds up, ascending.
    pub owned: Vec<usize>,
    pub delta: Arc<Vec<f32>>,
}

/// The source of a file's values.
#[derive(Clone, Copy)]
pub(super) enum Source {
    /// The residuals of an attempt, if it is committed.
    Staged(AttemptKey),
    /// The residuals after this COMMIT.
    Settled(Mark),
}

/// Buffers for one chunk.
#[derive(Default)]
pub(super) struct Desk {
    pub offer: Vec<f32>,
    pub payload: Vec<u8>,
    /// What the payload leaves out of the offer.
    pub left: Vec<f32>,
}

impl Residuals {
    pub fn take_up(&mut self, held: Held) {
        (self.own, self.sums, self.mark) = (held.own, held.sums, Some(held.mark));
    }

    pub fn give_up(&mut self) {
        (self.own, self.sums, self.mark) = Default::default();
        (self.due, self.recalled) = (None, None);
    }

    /// Whether there are residuals, or will be.
    pub fn holds_something(&self) -> bool {
        !self.own.is_empty() || !self.staged.is_empty() || self.due.is_some() || self.recalled.is_some()
    }

    pub fn settle(&mut self) {
        let Some(Staged { key, terms, sums }) = self.due.take() else { return };
        let elements = terms.delta.len();
        let (mut coder, mut desk) = (Coder::new(terms.codec), Desk::default());
        self.own.resize(elements, 0.0);
        for chunk in 0..update::chunks(elements) {
            // The chunk was encoded and decoded before; if that fails now, it was not sent.
            if !self.leave_out(&terms, chunk, &mut coder, &mut desk) {
                return self.give_up();
            }
            self.own[update::chunk_elements(elements, chunk)].copy_from_slice(&desk.left);
            if self.folded(&terms, chunk).is_some() {
                self.sums.remove(&chunk);
            }
        }
        self.sums.extend(sums);
        self.mark = Some(key.into());
    }

    /// Puts what a contribution to `chunk` leaves out on the desk; false if the offer cannot be encoded.
    fn leave_out(&self, terms: &Terms, chunk: usize, coder: &mut Coder, desk: &mut Desk) -> bool {
        self.offer(terms, chunk, &mut desk.offer);
        desk.left.clone_from(&desk.offer);
        update::apply_weight(terms.scale, &mut desk.left);
        let coded = coder.encode(&desk.left, &mut desk.payload);
        if coded.and_then(|()| coder.decode(&desk.payload, &mut desk.left)).is_err() {
            return false;
        }
        for (left, offer) in desk.left.iter_mut().zip(&desk.offer) {
            *left = *offer - *left;
        }
        true
    }

    /// The factor that shortens an offer to the norm that its READY states. Folded residuals, or changes since, may
    /// make the offer longer, and owners refuse that. The rest is left out, and offered again.
    pub fn scale(&self, terms: &Terms) -> f32 {
        let mut offer = Vec::new();
        let mut of_chunk = |chunk: usize| {
            self.offer(terms, chunk, &mut offer);
            squares(&offer)
        };
        let norm = (0..update::chunks(terms.delta.len())).map(&mut of_chunk).sum::<f64>().sqrt();
        let stated = f64::from(terms.norm);
        // The tolerance covers the rounding of the stated norm. Values that are not numbers are found when they are
        // encoded.
        if norm > stated * (1.0 + f64::from(f32::EPSILON)) { (stated / norm) as f32 } else { 1.0 }
    }

    /// The values that the contribution to `chunk` offers, before they are encoded.
    pub fn offer(&self, terms: &Terms, chunk: usize, out: &mut Vec<f32>) {
        let range = update::chunk_elements(terms.delta.len(), chunk);
        let delta = &terms.delta[range.clone()];
        out.resize(delta.len(), 0.0);
        match (self.own.get(range), decay(terms.codec)) {
            (Some(own), Some(decay)) => offered(delta, own, decay, out),
            _ => out.copy_from_slice(delta),
        }
        if let Some(left) = self.folded(terms, chunk) {
            for (a, left) in out.iter_mut().zip(left) {
                *a += left / terms.weight;
            }
        }
    }

    /// The residual of the sums of `chunk`, if the contribution takes it in.
    fn folded(&self, terms: &Terms, chunk: usize) -> Option<&Vec<f32>> {
        if terms.owned.binary_search(&chunk).is_ok() || terms.weight < FOLD_WEIGHT_MIN {
            return None;
        }
        self.sums.get(&chunk)
    }

    /// A staged attempt, or the committed one that is not settled, if all its sums are there.
    fn staged_as(&self, key: &AttemptKey) -> Option<&Staged> {
        let complete = |staged: &&Staged| staged.sums.len() == staged.terms.owned.len();
        self.staged.iter().chain(&self.due).find(|staged| staged.key == *key).filter(complete)
    }

    /// The chunks with a residual of sums in the source, ascending; none if the source is gone.
    pub fn chunks_of(&self, source: Source) -> Option<Vec<usize>> {
        match source {
            Source::Settled(mark) => (self.mark == Some(mark)).then(|| self.sums.keys().copied().collect()),
            Source::Staged(key) => {
                let staged = self.staged_as(&key)?;
                let kept = self.sums.keys().filter(|chunk| self.folded(&staged.terms, **chunk).is_none());
                let mut chunks: Vec<usize> = kept.chain(staged.sums.keys()).copied().collect();
                chunks.sort_unstable();
                chunks.dedup();
                Some(chunks)
            }
        }
    }

    /// Puts the source's own residual of a chunk on the desk; false if the source is gone.
    pub fn own_of(&self, source: Source, elements: usize, chunk: usize, desk: &mut Desk) -> bool {
        match source {
            Source::Settled(mark) => {
                let own = self.own.get(update::chunk_elements(elements, chunk));
                desk.left.clear();
                desk.left.extend_from_slice(own.unwrap_or_default());
                self.mark == Some(mark) && own.is_some()
            }
            Source::Staged(key) => self.staged_as(&key).is_some_and(|staged| {
                let mut coder = Coder::new(staged.terms.codec);
                self.leave_out(&staged.terms, chunk, &mut coder, desk)
            }),
        }
    }

    pub fn sum_of(&self, source: Source, chunk: usize) -> Option<Vec<f32>> {
        match source {
            Source::Settled(mark) => self.sums.get(&chunk).filter(|_| self.mark == Some(mark)).cloned(),
            Source::Staged(key) => self.staged_as(&key)?.sums.get(&chunk).or_else(|| self.sums.get(&chunk)).cloned(),
        }
    }
}
