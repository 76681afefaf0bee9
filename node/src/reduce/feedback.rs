//! Error feedback: the values that this node's payloads left out so far, which it adds to later payloads
//! (`docs/protocol/3-reduction.md` §3.5.6).
//!
//! A node has two residuals. *own* is what its contributions left out: the node offers `a = beta own + delta`, and once
//! a record has taken that in, `own = a - decoded(a)`. *sums* is what its sums left out, as an owner: the node sends `y
//! = sum + left`, and then `left = y - decoded(y)`. If it does not own a chunk any more, it divides that chunk's `left`
//! by its weight and adds it to its next contribution.
//!
//! Residuals change only when a record is committed (invariant I3), so an attempt that fails, or a SKIP, offers the
//! same bytes again. Sent payloads are not kept: they follow from their inputs, and are made again when a record takes
//! them in. Residuals are private: other nodes' bits depend on them only through what is sent. They are on the disk,
//! too ([`disk`]), for when the node is killed.

pub(super) mod disk;
mod residuals;

use super::passed::Mark;
use crate::coding::Coder;
use disk::{Disk, lost};
use rayon::prelude::*;
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

/// Attempts of one record that may still be the committed one.
const STAGED_MAX: usize = 4;

/// The residuals of one node, of the whole model or of one of its fragments.
#[derive(Default)]
pub struct Feedback {
    residuals: Mutex<Residuals>,
    /// The files that keep the residuals; none in some tests and benches.
    disk: Option<Disk>,
}

impl Feedback {
    /// Loads the residuals from the disk if they are those after `mark`, the last COMMIT that stepped their elements
    /// with something of this node. Otherwise they are zeros, as for a new node. Files of attempts that may still be
    /// committed are found again when they are.
    pub(super) fn restore(disk: Disk, mark: Option<&Mark>) -> Self {
        let mut residuals = Residuals::default();
        if let Some(held) = mark.and_then(|mark| disk.load(mark)) {
            residuals.take_up(held);
        }
        Self { residuals: Mutex::new(residuals), disk: Some(disk) }
    }

    /// Sum of the squares of all residuals, after settling.
    pub fn squares(&self) -> f64 {
        let mut residuals = self.residuals();
        self.settle_in(&mut residuals);
        let all = residuals.own.iter().chain(residuals.sums.values().flatten());
        all.map(|x| f64::from(*x) * f64::from(*x)).sum()
    }

    /// Whether these are the residuals after a COMMIT, and not the zeros of a new node.
    pub fn is_kept(&self) -> bool {
        self.residuals().mark.is_some()
    }

    fn residuals(&self) -> MutexGuard<'_, Residuals> {
        locked(&self.residuals)
    }

    /// Settles the residuals with the last committed record; as much work as encoding and decoding the contribution
    /// once more.
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

    /// Notes that the lineage has passed a record, which follows the one before. `mine` says whether the record stepped
    /// these residuals' elements with something of this node. If that something is an attempt of this node, or of an
    /// earlier process of it, the residuals follow at the next [`Self::settle`]. If the node cannot know what was taken
    /// in, it gives the residuals up: lost is better than counted twice.
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
            // The file on the disk already has everything settled that was due before.
            None if mine && on_disk => (residuals.due, residuals.recalled) = (None, Some(mark)),
            _ if mine || missed => self.forget_in(&mut residuals, "unknown", "a record took in an unknown attempt"),
            _ => {}
        }
    }

    /// Gives the residuals up if the next round has a codec that leaves nothing out: what the last contribution left out
    /// is lost, which is its rounding.
    pub(super) fn keep_for(&self, codec: Codec) {
        let mut residuals = self.residuals();
        let on_disk = self.disk.as_ref().is_some_and(|disk| !disk.is_empty());
        if !codec.feeds_back() && (on_disk || residuals.holds_something()) {
            residuals.staged.clear();
            residuals.give_up();
            residuals.stale = true;
        }
    }

    /// Gives the residuals up: the lineage goes on from a state that no records known to this node lead to.
    ///
    /// # Errors
    /// The files cannot be removed.
    pub fn forget(&self) -> Result<(), StoreError> {
        let mut residuals = self.residuals();
        residuals.staged.clear();
        self.forget_in(&mut residuals, "jump", "this node does not know the records that led to the flock's state");
        drop(residuals);
        self.disk.as_ref().map_or(Ok(()), Disk::clear)
    }

    fn forget_in(&self, residuals: &mut Residuals, reason: &'static str, why: &str) {
        // A codec that leaves nothing out has nothing to lose.
        let something = !residuals.own.is_empty() || self.disk.as_ref().is_some_and(|disk| !disk.is_empty());
        if something {
            lost(reason, why);
        }
        residuals.give_up();
    }

    /// Writes the residuals as they will be if this attempt is committed, beside the present ones. Meant for the
    /// background.
    pub fn stage(&self, key: &AttemptKey) {
        if let Some(disk) = &self.disk {
            unsaved(disk.stage(&self.residuals, key));
        }
    }

    /// Settles, and writes the present residuals unless the disk has them. Meant for the background.
    pub fn keep(&self) {
        self.settle();
        let Some(disk) = &self.disk else { return };
        if std::mem::take(&mut self.residuals().stale) {
            unsaved(disk.clear());
        }
        unsaved(disk.keep(&self.residuals));
    }

    /// The L2 norm that a READY states: that of the contribution with what earlier ones left out. None for codecs that
    /// leave nothing out; the norm is then that of the contribution.
    pub fn offered_norm(&self, codec: Codec, delta: &[f32]) -> Option<f64> {
        let decay = decay(codec)?;
        let mut residuals = self.residuals();
        self.settle_in(&mut residuals);
        let own = &residuals.own;
        let of_chunk = |offer: &mut Vec<f32>, chunk: usize| {
            let range = update::chunk_elements(delta.len(), chunk);
            let offer = &mut offer[..range.len()];
            match own.get(range.clone()) {
                Some(own) => offered(&delta[range], own, decay, offer),
                None => offer.copy_from_slice(&delta[range]),
            }
            squares(offer)
        };
        let chunks = (0..update::chunks(delta.len())).into_par_iter();
        let of_chunks: Vec<f64> = chunks.map_init(|| vec![0.0; CHUNK_ELEMENTS], of_chunk).collect();
        Some(of_chunks.iter().sum::<f64>().sqrt())
    }

    /// Begins an attempt. A pseudo-gradient is sent with the same bytes in all attempts of a record, since an owner may
    /// have it from an earlier one. So folded residuals are always divided by the weight in the first attempt, and
    /// count for a little more or less if members have gone since.
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
        tracing::warn!("the residuals of updates are not on the disk, and lost if this node is killed: {error}");
        metrics::counter!("starling_residuals_unsaved_total").increment(1);
    }
}

#[cfg(test)]
impl Feedback {
    /// The values that the payload of a sum has left out in an attempt.
    pub fn staged_sum(&self, key: &AttemptKey, chunk: usize) -> Option<Vec<f32>> {
        let residuals = self.residuals();
        let staged = residuals.staged.iter().find(|staged| staged.key == *key);
        staged.and_then(|staged| staged.sums.get(&chunk)).cloned()
    }
}

/// The feedback of one attempt.
pub(super) struct Share {
    feedback: Option<Arc<Feedback>>,
    key: AttemptKey,
    terms: Terms,
}

impl Share {
    /// Fills `out` with the values that the contribution to `chunk` offers.
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

    /// Adds this node's residual of `chunk`, which it owns, to the chunk's sum.
    pub fn mend(&self, chunk: usize, sum: &mut [f32]) {
        let Some(feedback) = &self.feedback else { return };
        if let Some(left) = feedback.residuals().sums.get(&chunk) {
            for (sum, left) in sum.iter_mut().zip(left) {
                *sum += left;
            }
        }
    }

    /// Stages what the payload of a mended sum leaves out, in case the attempt is committed.
    pub fn stage(&self, chunk: usize, sum: &[f32], payload: &[u8], coder: &Coder) {
        let Some(feedback) = &self.feedback else { return };
        let mut left = vec![0.0; sum.len()];
        if coder.decode(payload, &mut left).is_err() {
            return;
        }
        for (left, sum) in left.iter_mut().zip(sum) {
            *left = sum - *left;
        }
        self.stage_left(&mut feedback.residuals(), chunk, left);
    }

    /// Stages what the payload of a sum left out in a former attempt, since this attempt keeps that sum; false if it is
    /// not known any more.
    pub fn keep(&self, chunk: usize, former: &AttemptKey) -> bool {
        let Some(feedback) = &self.feedback else { return true };
        let mut residuals = feedback.residuals();
        let staged = residuals.staged.iter().find(|staged| staged.key == *former);
        let Some(left) = staged.and_then(|staged| staged.sums.get(&chunk)).cloned() else { return false };
        self.stage_left(&mut residuals, chunk, left)
    }

    /// Stages the residual of a sum; false if this attempt has been given up.
    fn stage_left(&self, residuals: &mut Residuals, chunk: usize, left: Vec<f32>) -> bool {
        let staged = residuals.staged.iter_mut().find(|staged| staged.key == self.key);
        staged.map(|staged| staged.sums.insert(chunk, left)).is_some()
    }
}

#[cfg(test)]
mod alone_test;
#[cfg(test)]
mod disk_kill_test;
#[cfg(test)]
#[path = "feedback_test.rs"]
mod tests;
