//! Error feedback: what this node's payloads have left out so far, and adds to the next ones
//! (`docs/protocol/3-reduction.md` §3.5.6).
//!
//! There are two residuals. *own* is what the node's contributions have not said: it offers `a = beta own + delta`, and
//! once a record has taken that in, `own = a - decoded(a)`. *sums* is what the node, as an owner, has not said of sums: it
//! sends `y = sum + left`, and then `left = y - decoded(y)`. A chunk that it owns no more goes, divided by its weight,
//! into its next contribution.
//!
//! Nothing changes before a record is committed (invariant I3), so an attempt that fails, or a SKIP, offers the same bytes
//! again. What was sent is not kept: payloads follow from what they were made of, and are made again when they count.
//! All of this is private: nobody else's bits depend on it but through what is sent. It is on the disk, too ([`disk`]), for
//! when the node is killed.

pub(super) mod disk;
mod residuals;

use super::passed::Mark;
use crate::coding::Coder;
use disk::{Disk, lost};
use residuals::{Residuals, Staged, decay, locked};
use starling_kernels::codec::offered;
use starling_protocol::engine::io::AttemptKey;
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::outer::adamw::squares;
use starling_protocol::run::Codec;
use starling_protocol::update;
use starling_store::StoreError;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

pub(super) use residuals::Terms;

/// Attempts of one record that may still be the one that is committed.
const STAGED_MAX: usize = 4;

/// The residuals of one node, of the whole model or of one of its fragments.
#[derive(Default)]
pub struct Feedback {
    residuals: Mutex<Residuals>,
    /// Where they are kept; nowhere in some tests and benches.
    disk: Option<Disk>,
}

impl Feedback {
    /// The residuals that the disk holds, if they are those after `mark`, the last COMMIT that stepped what they are of
    /// with something of this node; otherwise none, as those of a node that has just come. What may still come true later
    /// is found again then.
    pub(super) fn restore(disk: Disk, mark: Option<&Mark>) -> Self {
        let mut residuals = Residuals::default();
        if let Some(held) = mark.and_then(|mark| disk.load(mark)) {
            residuals.take_up(held);
        }
        Self { residuals: Mutex::new(residuals), disk: Some(disk) }
    }

    /// Sum of the squares of all that is not said, once everything is settled.
    pub fn squares(&self) -> f64 {
        let mut residuals = self.residuals();
        self.settle_in(&mut residuals);
        let all = residuals.own.iter().chain(residuals.sums.values().flatten());
        all.map(|x| f64::from(*x) * f64::from(*x)).sum()
    }

    /// Whether these are those after a COMMIT, and not the zeros of a node that has just come.
    pub fn is_kept(&self) -> bool {
        self.residuals().mark.is_some()
    }

    fn residuals(&self) -> MutexGuard<'_, Residuals> {
        locked(&self.residuals)
    }

    /// Settles what a committed record has taken in: as much work as encoding and decoding the contribution once more.
    pub fn settle(&self) {
        self.settle_in(&mut self.residuals());
    }

    fn settle_in(&self, residuals: &mut Residuals) {
        residuals.settle();
        let Some(mark) = residuals.recalled.take() else { return };
        match self.disk.as_ref().and_then(|disk| disk.load(&mark)) {
            Some(held) => residuals.take_up(held),
            None => residuals.give_up(),
        }
    }

    /// The lineage has passed a record, which follows the one before; `mine` is whether it stepped what these residuals are
    /// of, with something of this node. If that is what this node, or a process of it before this one, sent in one of its
    /// attempts, the residuals follow, at the next [`Self::settle`]. If it cannot be known what was taken in, they are
    /// given up: lost is better than counted twice.
    pub fn pass(&self, mark: Mark, mine: bool) {
        let Mark { lineage, seq, set } = mark;
        let mut residuals = self.residuals();
        let over = |s: &Staged| s.key.seq <= seq || s.key.lineage != lineage;
        let (over, ahead): (Vec<_>, Vec<_>) = std::mem::take(&mut residuals.staged).into_iter().partition(over);
        residuals.staged = ahead;
        let missed = over.iter().any(|s| s.key.seq < seq && s.key.lineage == lineage);
        let taken = over.into_iter().find(|s| s.key.seq == seq && s.key.set == set);
        let on_disk = self.disk.as_ref().is_some_and(|disk| disk.has(&mark));
        match taken {
            Some(taken) if mine => {
                self.settle_in(&mut residuals);
                residuals.due = Some(taken);
            }
            // Whatever was to be settled before is in what the disk holds.
            None if mine && on_disk => (residuals.due, residuals.recalled) = (None, Some(mark)),
            _ if mine || missed => self.forget_in(&mut residuals, "unknown", "a record took in what it did not keep"),
            _ => {}
        }
    }

    /// The lineage goes on from a state that does not follow the one before by records that this node knows.
    ///
    /// # Errors
    /// What the disk holds cannot be removed.
    pub fn forget(&self) -> Result<(), StoreError> {
        let mut residuals = self.residuals();
        residuals.staged.clear();
        self.forget_in(&mut residuals, "jump", "it does not know the records that led to the flock's state");
        drop(residuals);
        self.disk.as_ref().map_or(Ok(()), Disk::clear)
    }

    fn forget_in(&self, residuals: &mut Residuals, reason: &'static str, why: &str) {
        // With codecs that leave out nothing there is nothing to lose.
        let something = !residuals.own.is_empty() || self.disk.as_ref().is_some_and(|disk| !disk.is_empty());
        if something {
            lost(reason, why);
        }
        residuals.give_up();
    }

    /// Writes what will be true should this attempt be committed, beside what is true now. Meant for the background.
    pub fn stage(&self, key: &AttemptKey) {
        if let Some(disk) = &self.disk {
            unsaved(disk.stage(&self.residuals, key));
        }
    }

    /// Settles, and writes what is true now, if it is not on the disk yet. Meant for the background.
    pub fn keep(&self) {
        self.settle();
        if let Some(disk) = &self.disk {
            unsaved(disk.keep(&self.residuals));
        }
    }

    /// The L2 norm of what a contribution offers, with what earlier ones left out; none for codecs that leave out nothing:
    /// then it is that of the contribution. What a READY states.
    pub fn offered_norm(&self, codec: Codec, delta: &[f32]) -> Option<f64> {
        let decay = decay(codec)?;
        let mut residuals = self.residuals();
        self.settle_in(&mut residuals);
        let mut offer = vec![0.0; CHUNK_ELEMENTS];
        let mut of_chunk = |chunk: usize| {
            let range = update::chunk_elements(delta.len(), chunk);
            let offer = &mut offer[..range.len()];
            match residuals.own.get(range.clone()) {
                Some(own) => offered(&delta[range], own, decay, offer),
                None => offer.copy_from_slice(&delta[range]),
            }
            squares(offer)
        };
        Some((0..update::chunks(delta.len())).map(&mut of_chunk).sum::<f64>().sqrt())
    }

    /// Begins an attempt. What is sent of a pseudo-gradient is the same in all attempts of a record, since an owner may have
    /// it from an earlier one: so the weight that folded residuals are divided by stays that of the first, and they count
    /// for a little more or less where members are gone.
    pub(super) fn join(self: &Arc<Self>, key: AttemptKey, mut terms: Terms) -> Share {
        if decay(terms.codec).is_none() {
            return Share { feedback: None, key, terms };
        }
        let mut residuals = self.residuals();
        self.settle_in(&mut residuals);
        let same = |s: &&Staged| {
            (s.key.lineage, s.key.seq) == (key.lineage, key.seq) && Arc::ptr_eq(&s.terms.delta, &terms.delta)
        };
        match residuals.staged.iter().find(same) {
            Some(first) => (terms.weight, terms.scale) = (first.terms.weight, first.terms.scale),
            None => terms.scale = residuals.scale(&terms),
        }
        residuals.staged.retain(|staged| staged.key != key);
        let surplus = (residuals.staged.len() + 1).saturating_sub(STAGED_MAX);
        residuals.staged.drain(..surplus);
        residuals.staged.push(Staged { key, terms: terms.clone(), sums: BTreeMap::new() });
        Share { feedback: Some(Arc::clone(self)), key, terms }
    }
}

fn unsaved(result: Result<(), StoreError>) {
    if let Err(error) = result {
        tracing::warn!("what updates left out is not on the disk, and lost if this node is killed: {error}");
        metrics::counter!("starling_residuals_unsaved_total").increment(1);
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
            Some(feedback) => {
                feedback.residuals().offer(&self.terms, chunk, out);
                update::apply_weight(self.terms.scale, out);
            }
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
mod alone_test;
#[cfg(test)]
mod disk_kill_test;
#[cfg(test)]
#[path = "feedback_test.rs"]
mod tests;
