//! What differs where trainers keep parameters of their own from one round to the next (Streaming DiLoCo, arXiv
//! 2501.18512): a COMMIT steps one fragment, and the next round's first inner steps may be done while a record is made.
//!
//! None of this is on the wire. What a member will be leased is a function of the parent and of the READYs in a set, so
//! it is known as soon as an attempt runs; that the record comes as foreseen is not, and what was done for another one is
//! dropped by the driver.

use super::Engine;
use super::io::Output;
use super::round::Training;
use super::succession::{self, SignedReady};
use crate::Digest;
use crate::record::Span;

impl Engine {
    /// An attempt with these contributions runs: lets the trainer begin what follows if it is committed.
    pub(super) fn go_ahead(&mut self, contributions: &[SignedReady]) {
        let steps = self.spec.sync.overlap;
        if steps == 0 || self.leaving.is_some() || self.cut.holds_training() {
            return;
        }
        let Some((round, head)) = self.round.as_ref().zip(self.head.as_ref()) else { return };
        let lease = succession::lease_after(&head.record, head.digest, &self.spec, contributions, &self.me);
        let sum = contributions.iter().try_fold(head.record.tokens, |sum, c| sum.checked_add(c.ready.tokens));
        let (Some(lease), Some(tokens)) = (lease, sum) else { return };
        let budget = &self.spec.budget;
        let spent = |limit: u64, used: u64| limit != 0 && used >= limit;
        if spent(budget.rounds, round.number) || spent(budget.tokens, tokens) {
            return;
        }
        let inner_steps = self.steps_of(&lease, self.spec.inner.steps);
        let (round, base) = (round.number.saturating_add(1), round.base);
        self.out.push(Output::Ahead { round, base, lease, inner_steps, tokens, steps: steps.min(inner_steps) });
    }

    /// Inner steps for a lease, of which a round has at most so many.
    pub(super) fn steps_of(&self, lease: &Span, most: u32) -> u32 {
        let per_step = self.spec.inner.samples(1).max(1);
        (lease.count / per_step).clamp(1, u64::from(most.max(1))) as u32
    }

    /// Has a contribution that a COMMIT left out made anew, for the fragment whose turn it is now: from the trainer's own
    /// parameters as they are, without any new step.
    pub(super) fn retake(&mut self) {
        let Some(round) = self.round.as_mut().filter(|round| round.training == Training::Due) else { return };
        round.training = Training::Done;
        let (round, base) = (round.number, round.base);
        self.out.push(Output::Retake { round, base });
    }

    /// The driver has made it; or it could not, and the lease is trained on anew.
    pub(super) fn retaken(&mut self, number: u64, base: Digest, made: Option<(Digest, u32)>) {
        let Some(round) = self.round.as_mut().filter(|r| (r.number, r.base) == (number, base)) else { return };
        let Some(held) = self.contribution.as_mut().filter(|held| held.base != base) else { return };
        if round.own.is_some() || round.training != Training::Done {
            return;
        }
        let Some((payload, norm_bits)) = made else {
            round.training = Training::Due;
            return self.discard();
        };
        held.base = base;
        held.ready = None;
        held.work.payload = payload;
        held.work.measured.norm_bits = norm_bits;
        self.offer();
    }

    /// The record that is committed has taken in what this node offered with a READY. If that was one of a process before
    /// this one, what this one has trained on the same lease is not what counts, and is dropped.
    pub(super) fn taken_in(&mut self, ready: Option<Digest>) {
        let held = self.contribution.as_ref().and_then(|held| held.ready.as_ref());
        if held.map(|signed| signed.digest) == ready {
            self.contribution = None;
        } else {
            self.discard();
        }
    }

    /// Drops the contribution: its samples may be trained on by others now, so nothing of it may come along in what this
    /// node contributes later.
    pub(super) fn discard(&mut self) {
        if self.contribution.take().is_some() && self.spec.sync.streams() {
            self.out.push(Output::StartOver);
        }
    }
}
