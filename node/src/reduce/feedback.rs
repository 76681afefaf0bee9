//! Error feedback: what this node's payloads have left out so far, and adds to the next ones (`algorithms.md` §3.3).
//!
//! There are two residuals. *own* is what the node's contributions have not said: it offers `a = beta own + delta`, and
//! once a record has taken that in, `own = a - decoded(a)`. *sums* is what the node, as an owner, has not said of sums: it
//! sends `y = sum + left`, and then `left = y - decoded(y)`. A chunk that it owns no more goes, divided by its weight,
//! into its next contribution.
//!
//! Nothing changes before a record is committed (invariant I3), so an attempt that fails, or a SKIP, offers the same bytes
//! again. What was sent is not kept: payloads follow from what they were made of, and are made again when they count.
//! All of this is private: nobody else's bits depend on it but through what is sent.

use crate::coding::Coder;
use starling_kernels::codec::offered;
use starling_protocol::engine::io::AttemptKey;
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::record::Record;
use starling_protocol::run::Codec;
use starling_protocol::{NodeId, update};
use starling_store::{Store, StoreError};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Attempts of one record that may still be the one that is committed.
const STAGED_MAX: usize = 4;
/// A residual of sums goes into the node's own contribution only when that weighs at least so much: divided by less, it
/// would be larger than what is offered.
const FOLD_WEIGHT_MIN: f32 = 1.0 / 1024.0;
/// Name under which the store keeps the residuals of a fragment.
fn name(fragment: usize) -> String {
    if fragment == 0 { "residuals".to_owned() } else { format!("residuals-{fragment}") }
}

/// How much of a residual is offered again; `None` for codecs that do without.
fn decay(codec: Codec) -> Option<f32> {
    match codec {
        Codec::Bf16 | Codec::Int8 => None,
        Codec::Int4 => Some(1.0),
        // What waits for long is out of date: SparseLoCo, arXiv 2508.15706.
        Codec::TopK { .. } => Some(0.95),
    }
}

/// The residuals of one node, of the whole model or of one of its fragments.
#[derive(Default)]
pub struct Feedback {
    residuals: Mutex<Residuals>,
}

#[derive(Default)]
struct Residuals {
    /// One f32 for each element; empty for zeros.
    own: Vec<f32>,
    /// By chunk.
    sums: BTreeMap<usize, Vec<f32>>,
    staged: Vec<Staged>,
    /// What was committed and is not yet settled.
    due: Option<Staged>,
}

/// One attempt, should it be committed.
struct Staged {
    key: AttemptKey,
    terms: Terms,
    sums: BTreeMap<usize, Vec<f32>>,
}

/// What a node's payloads of one attempt are made of.
#[derive(Clone)]
pub(super) struct Terms {
    pub codec: Codec,
    pub weight: f32,
    /// Chunks that the node adds up, ascending.
    pub owned: Vec<usize>,
    pub delta: Arc<Vec<f32>>,
}

impl Feedback {
    /// All steps leave the residuals whole, but for one that panicked in the middle: they are then a little off.
    fn residuals(&self) -> MutexGuard<'_, Residuals> {
        self.residuals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Settles what a committed record has taken in: as much work as encoding and decoding the contribution once more.
    pub fn settle(&self) {
        self.residuals().settle();
    }

    /// The lineage stands on `record`. If that has taken in what this node sent in one of its attempts, the residuals
    /// follow, at the next [`Self::settle`]. If it cannot be known what was taken in, they are given up: lost is better
    /// than counted twice. `stepped` is whether the record has stepped what these residuals are of.
    pub fn stand_on(&self, record: &Record, me: &NodeId, stepped: bool) {
        let mut residuals = self.residuals();
        let set = record.set();
        let over = |s: &Staged| s.key.seq <= record.seq || s.key.lineage != record.lineage;
        let (over, ahead): (Vec<_>, Vec<_>) = std::mem::take(&mut residuals.staged).into_iter().partition(over);
        residuals.staged = ahead;
        let missed = over.iter().any(|s| s.key.seq < record.seq && s.key.lineage == record.lineage);
        let taken = over.into_iter().find(|s| s.key.seq == record.seq && s.key.set == set);
        let counts = stepped && record.contributors.iter().any(|c| c.member == *me);
        residuals.settle();
        match taken {
            Some(taken) if counts => residuals.due = Some(taken),
            _ if counts || missed => (residuals.own, residuals.sums) = Default::default(),
            _ => {}
        }
    }

    /// Writes the residuals of a fragment after the state of record `head`, in place of those on disk.
    ///
    /// # Errors
    /// The disk failed, or is full.
    pub fn save(&self, store: &Store, fragment: usize, head: &starling_protocol::Digest) -> Result<(), StoreError> {
        let mut residuals = self.residuals();
        residuals.settle();
        let Residuals { own, sums, .. } = &*residuals;
        if own.is_empty() && sums.is_empty() {
            return store.remove_private(&name(fragment));
        }
        let chunks: usize = sums.values().map(|left| 8 + 4 * left.len()).sum();
        let mut file = store.write_private(&name(fragment), (32 + 16 + 4 * own.len() + chunks) as u64)?;
        file.write(&head.0)?;
        file.write(&(own.len() as u64).to_le_bytes())?;
        file.write(&(sums.len() as u64).to_le_bytes())?;
        file.write_f32s(own)?;
        for (chunk, left) in sums {
            file.write(&(*chunk as u64).to_le_bytes())?;
            file.write_f32s(left)?;
        }
        file.commit()
    }

    /// The residuals on disk of a fragment if they are those after `head` of so many `elements`; otherwise none, as those of a node
    /// that has just come.
    ///
    /// # Errors
    /// What is on disk is damaged.
    pub fn restore(
        store: &Store,
        fragment: usize,
        head: &starling_protocol::Digest,
        elements: usize,
    ) -> Result<Self, StoreError> {
        let Some(mut file) = store.read_private(&name(fragment))? else { return Ok(Self::default()) };
        let (mut after, mut own_len, mut sums_len) = ([0; 32], [0; 8], [0; 8]);
        file.read(&mut after)?;
        file.read(&mut own_len)?;
        file.read(&mut sums_len)?;
        let (own_len, sums_len) = (u64::from_le_bytes(own_len), u64::from_le_bytes(sums_len));
        let fits = (own_len == 0 || own_len == elements as u64) && sums_len <= update::chunks(elements) as u64;
        if after != head.0 || !fits {
            return Ok(Self::default());
        }
        let mut own = vec![0.0; own_len as usize];
        file.read_f32s(&mut own)?;
        let mut sums = BTreeMap::new();
        for _ in 0..sums_len {
            let mut chunk = [0; 8];
            file.read(&mut chunk)?;
            let chunk = usize::try_from(u64::from_le_bytes(chunk)).unwrap_or(usize::MAX);
            let mut left = vec![0.0; update::chunk_elements(elements, chunk).len()];
            file.read_f32s(&mut left)?;
            sums.insert(chunk, left);
        }
        file.finish()?;
        Ok(Self { residuals: Mutex::new(Residuals { own, sums, ..Residuals::default() }) })
    }

    /// Begins an attempt. What is sent of a pseudo-gradient is the same in all attempts of a record, since an owner may have
    /// it from an earlier one: so the weight that folded residuals are divided by stays that of the first, and they count
    /// for a little more or less where members are gone.
    pub(super) fn join(self: &Arc<Self>, key: AttemptKey, mut terms: Terms) -> Share {
        if decay(terms.codec).is_none() {
            return Share { feedback: None, key, terms };
        }
        let mut residuals = self.residuals();
        residuals.settle();
        let same = |s: &&Staged| {
            (s.key.lineage, s.key.seq) == (key.lineage, key.seq) && Arc::ptr_eq(&s.terms.delta, &terms.delta)
        };
        if let Some(first) = residuals.staged.iter().find(same) {
            terms.weight = first.terms.weight;
        }
        residuals.staged.retain(|staged| staged.key != key);
        let surplus = (residuals.staged.len() + 1).saturating_sub(STAGED_MAX);
        residuals.staged.drain(..surplus);
        residuals.staged.push(Staged { key, terms: terms.clone(), sums: BTreeMap::new() });
        Share { feedback: Some(Arc::clone(self)), key, terms }
    }
}

impl Residuals {
    fn settle(&mut self) {
        let Some(Staged { terms, sums, .. }) = self.due.take() else { return };
        let elements = terms.delta.len();
        let (mut coder, mut payload) = (Coder::new(terms.codec), Vec::new());
        let (mut offer, mut said) = (Vec::new(), vec![0.0; CHUNK_ELEMENTS]);
        self.own.resize(elements, 0.0);
        for chunk in 0..update::chunks(elements) {
            self.offer(&terms, chunk, &mut offer);
            let said = &mut said[..offer.len()];
            // It was encoded and decoded once; if it cannot be now, it was not sent.
            if coder.encode(&offer, &mut payload).and_then(|()| coder.decode(&payload, said)).is_err() {
                return;
            }
            let own = &mut self.own[update::chunk_elements(elements, chunk)];
            for ((e, a), said) in own.iter_mut().zip(&offer).zip(said) {
                *e = *a - *said;
            }
            if self.folded(&terms, chunk).is_some() {
                self.sums.remove(&chunk);
            }
        }
        self.sums.extend(sums);
    }

    /// What the contribution to `chunk` shall say, before it is encoded.
    fn offer(&self, terms: &Terms, chunk: usize, out: &mut Vec<f32>) {
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

    /// What was left of sums of `chunk`, if it goes into the contribution.
    fn folded(&self, terms: &Terms, chunk: usize) -> Option<&Vec<f32>> {
        if terms.owned.binary_search(&chunk).is_ok() || terms.weight < FOLD_WEIGHT_MIN {
            return None;
        }
        self.sums.get(&chunk)
    }
}

/// The feedback of one attempt.
pub(super) struct Share {
    feedback: Option<Arc<Feedback>>,
    key: AttemptKey,
    terms: Terms,
}

impl Share {
    /// Puts what the contribution to `chunk` shall say into `out`.
    pub fn offer(&self, chunk: usize, out: &mut Vec<f32>) {
        match &self.feedback {
            Some(feedback) => feedback.residuals().offer(&self.terms, chunk, out),
            None => {
                out.clear();
                out.extend_from_slice(&self.terms.delta[update::chunk_elements(self.terms.delta.len(), chunk)]);
            }
        }
    }

    /// Adds to the sum of `chunk`, which this node owns, what was left of earlier ones.
    pub fn mend(&self, chunk: usize, sum: &mut [f32]) {
        let Some(feedback) = &self.feedback else { return };
        if let Some(left) = feedback.residuals().sums.get(&chunk) {
            for (sum, left) in sum.iter_mut().zip(left) {
                *sum += left;
            }
        }
    }

    /// Notes what the payload of a mended sum leaves out: for when it counts.
    pub fn stage(&self, chunk: usize, sum: &[f32], payload: &[u8], coder: &Coder) {
        let Some(feedback) = &self.feedback else { return };
        let mut left = vec![0.0; sum.len()];
        if coder.decode(payload, &mut left).is_err() {
            return;
        }
        for (left, sum) in left.iter_mut().zip(sum) {
            *left = sum - *left;
        }
        let mut residuals = feedback.residuals();
        if let Some(staged) = residuals.staged.iter_mut().find(|staged| staged.key == self.key) {
            staged.sums.insert(chunk, left);
        }
    }
}

#[cfg(test)]
#[path = "feedback_test.rs"]
mod tests;
