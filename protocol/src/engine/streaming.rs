//! The variant in which trainers keep parameters of their own from one round to the next (Streaming DiLoCo, arXiv
//! 2501.18512): a COMMIT steps one fragment, and the next round's first inner steps may be done while a record is made.
//!
//! None of this is on the wire. A member's next lease is a function of the parent and of the READYs in a set, so the
//! member knows it as soon as an attempt runs. Whether the record comes as foreseen is not known; the driver drops
//! steps that were done for another record.

use super::ctx::Ctx;
use super::io::Output;
use super::outbox::Out;
use super::round::{Round, Training};
use super::succession::{self, SignedReady, amending};
use crate::lease;
use crate::record::{Done, Span};

impl Round {
    /// Lets the trainer begin the next round's steps, for the case that the attempt with these contributions is
    /// committed.
    pub fn go_ahead(&self, contributions: &[SignedReady], ctx: &Ctx, out: &mut Out) {
        let steps = ctx.terms.ahead;
        // A trainer that a user brings hears of the lease in any case, to read ahead.
        let is_told = steps > 0 || ctx.spec.task.is_some();
        // Steps for a round under other terms would have to be done by these.
        let amends = amending::chosen(&self.head.record, &ctx.spec, contributions).is_some();
        if !is_told || amends || ctx.leaving.is_some() || self.quorum_loss.holds_training() {
            return;
        }
        let head = &self.head;
        let next = succession::lease_after(&head.record, head.digest, &ctx.spec, contributions, &ctx.me);
        let sum = contributions.iter().try_fold(head.record.tokens, |sum, c| sum.checked_add(c.ready.tokens));
        let (Some((lease, most)), Some(tokens)) = (next, sum) else { return };
        if ctx.is_spent(self.task.number, tokens) {
            return;
        }
        let inner_steps = ctx.steps_of(&lease, most);
        let (round, base) = (self.task.number.saturating_add(1), self.head.base);
        let done = Done { tokens, steps: head.record.steps.saturating_add(head.record.next.inner_steps.into()) };
        out.push(Output::Ahead { round, base, lease, inner_steps, done, steps: steps.min(inner_steps) });
    }

    /// Has a contribution that a COMMIT left out made anew, for the fragment whose turn it is now: from the trainer's
    /// own parameters as they are, without any new step.
    pub fn retake(&mut self, out: &mut Out) {
        if self.part.training == Training::Due {
            self.part.training = Training::Done;
            out.push(Output::Retake { round: self.task.number, base: self.head.base });
        }
    }
}

impl Ctx {
    /// Inner steps for a lease in a round of `inner_steps`.
    pub fn steps_of(&self, lease: &Span, inner_steps: u32) -> u32 {
        lease::steps(lease.count / self.spec.inner.samples(1).max(1), inner_steps)
    }
}
