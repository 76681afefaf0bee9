//! This node's contribution that no COMMIT has taken in yet, and its READY.
//!
//! *Merging* (`docs/protocol/7-merging.md` §7.4). The difference of a lineage that gave way is offered to the winner.
//! The driver keeps the difference and mixes it into a contribution when the engine says so. The engine knows its
//! lineage and tokens, and when it is this node's turn.

use super::conduct::Conduct;
use super::ctx::Ctx;
use super::io::{Merge, Notice, Output};
use super::newcomers::Newcomers;
use super::outbox::Out;
use super::round::{Own, Round, Training};
use super::statement;
use super::succession::{self, SignedReady};
use super::terms::Moved;
use crate::Digest;
use crate::difference::Difference;
use crate::message::{Message, Ready};
use crate::record::Measured;
use crate::run::RunSpec;
use crate::wire;
use std::collections::VecDeque;

/// The number of places (lineage, round, base) at which this start is remembered to have said READY. There may be as
/// many lineages without a COMMIT of their own, between which a node comes and goes.
const OFFERED_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Offer {
    /// READY may wait for newcomers.
    pub newcomers: Newcomers,
    contribution: Option<Contribution>,
    /// Places at which this start of the process has said READY, newest last.
    offered: VecDeque<Place>,
    /// The difference of a lineage that gave way, which the driver keeps until a member has merged it.
    difference: Option<Difference>,
}

type Place = (Digest, u64, Digest);

/// The trainer's work in a round.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub samples: u64,
    pub tokens: u64,
    pub steps: u32,
    pub loss_q16: u32,
    pub payload: Digest,
    pub measured: Measured,
}

/// Work that this node offers until a COMMIT takes it in, with the lease that it used.
#[derive(Clone, Debug)]
struct Contribution {
    start: u64,
    /// The record that made the state that it was trained from.
    base: Digest,
    work: Work,
    /// Set if a difference is mixed into the contribution.
    mixed: Option<Mixed>,
    /// The READY that offered the contribution last. There is one for each round, also over SKIPs.
    ready: Option<SignedReady>,
}

/// A contribution with a difference mixed into it, for one round only.
#[derive(Clone, Debug)]
struct Mixed {
    round: u64,
    base: Digest,
    merge: Merge,
    /// Its digest and its norm (bits of an f32), once the driver has made it.
    made: Option<(Digest, u32)>,
}

fn place(round: &Round) -> Place {
    (round.head.record.lineage, round.task.number, round.head.base)
}

impl Offer {
    pub fn new(spec: &RunSpec) -> Self {
        let newcomers = Newcomers::new(spec);
        Self { newcomers, contribution: None, offered: VecDeque::new(), difference: None }
    }

    /// Takes the finished inner steps of a round; false if this node does not await them.
    pub fn take(&mut self, round: &Round, (number, base): (u64, Digest), work: Work, ctx: &Ctx) -> bool {
        let awaited =
            round.part.training == Training::Running && (round.task.number, round.head.base) == (number, base);
        let lease = round.head.record.lease_of(&ctx.me).filter(|_| awaited && work.samples > 0);
        let Some(lease) = lease else { return false };
        self.contribution = Some(Contribution { start: lease.start, base, work, mixed: None, ready: None });
        true
    }

    /// Whether this start of the process has said READY in this round already, as before a lineage that came to
    /// nothing.
    pub fn is_repeated(&self, round: &Round) -> bool {
        self.offered.contains(&place(round))
    }

    /// Forgets its places, because the process counts as newly started.
    pub fn forget_places(&mut self) {
        self.offered.clear();
    }

    /// Says READY with the contribution at hand, if it used this round's lease. A contribution that a COMMIT left out
    /// is offered again, in place of a new one: its lease was kept for it. On another base the run's terms decide its
    /// fate.
    pub fn say(&mut self, round: &mut Round, conduct: &Conduct, ctx: &Ctx, out: &mut Out) {
        let Some(Contribution { start, base, work, mixed, ready: said }) = self.contribution.clone() else { return };
        let record = &round.head.record;
        let fits = succession::fits_lease(record, &ctx.me, (start, work.samples, work.steps));
        let moved = if base == round.head.base { Moved::Stands } else { ctx.terms.moved() };
        if !fits || moved == Moved::Dropped {
            return self.discard(ctx, out);
        }
        if round.part.ready.is_some() {
            return;
        }
        let own = |signed| Some(Own { signed, said_at: ctx.now, repeats: 0 });
        let place = place(round);
        if let Some(signed) = said.filter(|s| (s.ready.lineage, s.ready.round, s.ready.base) == place) {
            round.part.training = Training::Done;
            round.part.ready = own(signed);
            return;
        }
        if moved == Moved::Retaken {
            return round.retake(out);
        }
        let mixed = mixed.filter(|mixed| (mixed.round, mixed.base) == (round.task.number, round.head.base));
        round.part.training = Training::Done;
        if mixed.as_ref().is_some_and(|mixed| mixed.made.is_none()) {
            return;
        }
        if self.newcomers.keep_back(round, ctx) {
            return;
        }
        if let Some((newcomers, micros)) = self.newcomers.end() {
            out.notice(Notice::Waited { newcomers, micros });
        }
        let signed = sign(ready(start, &work, mixed.as_ref(), round, conduct, ctx), ctx);
        // Only a driver that reports impossible work fails here: the node sits the round out rather than send nonsense.
        let Some(signed) = signed else { return };
        if let Some(contribution) = &mut self.contribution {
            contribution.ready = Some(signed.clone());
        }
        round.part.ready = own(signed);
        self.offered.push_back(place);
        if self.offered.len() > OFFERED_MAX {
            self.offered.pop_front();
        }
        round.repeat_ready(&ctx.reachable_neighbours(), out);
    }

    /// Forgets the READY said before, and its difference: they do not count any more.
    pub fn forget_ready(&mut self) {
        if let Some(contribution) = &mut self.contribution {
            (contribution.ready, contribution.mixed) = (None, None);
        }
    }

    /// Says READY once more, as a new start. The READY before does not count any more. The new one merges nothing.
    pub fn say_anew(&mut self, round: &mut Round, conduct: &Conduct, ctx: &Ctx, out: &mut Out) {
        self.forget_ready();
        round.part.ready = None;
        self.say(round, conduct, ctx, out);
    }

    /// Takes the fragment whose turn it is from the driver. If the driver could not make it, the lease is trained on
    /// anew. Returns whether there is a contribution to offer.
    pub fn retaken(
        &mut self,
        round: &mut Round,
        (number, base): (u64, Digest),
        made: Option<(Digest, u32)>,
        (ctx, out): (&Ctx, &mut Out),
    ) -> bool {
        let asked = (round.task.number, round.head.base) == (number, base);
        let Some(held) = self.contribution.as_mut().filter(|held| asked && held.base != base) else { return false };
        if round.part.ready.is_some() || round.part.training != Training::Done {
            return false;
        }
        let Some((payload, norm_bits)) = made else {
            round.part.training = Training::Due;
            self.discard(ctx, out);
            return false;
        };
        (held.base, held.ready) = (base, None);
        (held.work.payload, held.work.measured.norm_bits) = (payload, norm_bits);
        true
    }

    /// Drops the contribution: the committed record has taken in what this node offered with the READY `ready`. If that
    /// was a READY of a process before this one, this process's own work on the same lease does not count.
    pub fn taken_in(&mut self, ready: Option<Digest>, ctx: &Ctx, out: &mut Out) {
        let held = self.contribution.as_ref().and_then(|held| held.ready.as_ref());
        if held.map(|signed| signed.digest) == ready {
            self.contribution = None;
        } else {
            self.discard(ctx, out);
        }
    }

    /// Drops the contribution. Other members may train on its samples now, so no part of it may enter this node's later
    /// contributions.
    pub fn discard(&mut self, ctx: &Ctx, out: &mut Out) {
        if self.contribution.take().is_some() && ctx.terms.own_parameters {
            out.push(Output::StartOver);
        }
    }

    /// Drops everything made from the state before, because the state has been replaced.
    pub fn start_over(&mut self, ctx: &Ctx, out: &mut Out) {
        self.contribution = None;
        if ctx.terms.own_parameters {
            out.push(Output::StartOver);
        }
    }

    /// Holds the driver's difference, in place of any before. It is of no use where gradients or fragments are
    /// averaged.
    pub fn hold_difference(&mut self, difference: Difference, ctx: &Ctx, out: &mut Out) {
        if !ctx.terms.merges {
            return out.push(Output::DropDifference { lineage: difference.lineage });
        }
        self.difference = Some(difference);
        self.heed_merged(ctx, out);
    }

    /// Drops the difference if the head's state contains it by now.
    pub fn heed_merged(&mut self, ctx: &Ctx, out: &mut Out) {
        let Some(record) = ctx.head.as_ref().map(|head| &head.record) else { return };
        let settled = |held: &mut Difference| record.lineage != held.lineage && record.has_merged(&held.lineage);
        if let Some(Difference { lineage, .. }) = self.difference.take_if(settled) {
            out.push(Output::DropDifference { lineage });
        }
    }

    /// Has the difference mixed into the contribution just trained if it is this node's turn; returns whether it did.
    /// The voters of the lineage that gave way take turns, so that two of them hardly ever offer the same.
    pub fn mix(&mut self, round: &mut Round, ctx: &Ctx, out: &mut Out) -> bool {
        let Some((held, work)) = self.difference.zip(self.contribution.as_mut()) else { return false };
        let record = &round.head.record;
        let limits = record.merge_limits();
        let tokens = limits.weigh(&held);
        let turn = round.task.number.checked_rem(held.of.into()) == Some(held.place.into());
        let known = limits.norm_bits > 0 && tokens > 0 && limits.tokens > 0;
        if !turn || !known || !ctx.votes() || record.has_merged(&held.lineage) || ctx.leaving.is_some() {
            return false;
        }
        let merge = Merge { lineage: held.lineage, tokens, norm_bits: limits.norm_bits };
        let (number, base) = (round.task.number, round.head.base);
        work.mixed = Some(Mixed { round: number, base, merge, made: None });
        round.part.training = Training::Done;
        out.push(Output::Merge { round: number, base, tokens: work.work.tokens, merge });
        true
    }

    /// Takes the driver's mix. If there is none, the difference was not complete and is gone. Returns whether the mix
    /// was asked for.
    pub fn mixed(&mut self, round: u64, base: Digest, made: Option<(Digest, u32)>) -> bool {
        let asked = |mixed: &&mut Mixed| (mixed.round, mixed.base, mixed.made) == (round, base, None);
        let Some(work) = self.contribution.as_mut() else { return false };
        let Some(mixed) = work.mixed.as_mut().filter(asked) else { return false };
        mixed.made = made;
        if made.is_none() {
            (work.mixed, self.difference) = (None, None);
        }
        true
    }
}

/// The READY that offers this work.
fn ready(start: u64, work: &Work, mixed: Option<&Mixed>, round: &Round, conduct: &Conduct, ctx: &Ctx) -> Ready {
    let merge = mixed.map(|mixed| mixed.merge);
    let own = (work.payload, work.measured.norm_bits);
    let (payload, norm_bits) = mixed.and_then(|mixed| mixed.made).unwrap_or(own);
    Ready {
        lineage: round.head.record.lineage,
        round: round.task.number,
        base: round.head.base,
        state_root: round.head.record.state_root,
        boot: ctx.identity.boot,
        start,
        samples: work.samples,
        tokens: work.tokens,
        steps: work.steps,
        loss_q16: work.loss_q16,
        payload,
        measured: Measured { norm_bits, ..work.measured },
        statements: statement::statements(ctx, conduct, round),
        leave: ctx.leaving.is_some(),
        merges: merge.map(|merge| merge.lineage),
        merged_tokens: merge.map_or(0, |merge| merge.tokens),
        rtts: statement::rtts(ctx, round),
        amends: ctx.amendment().cloned().map(Box::new),
    }
}

fn sign(ready: Ready, ctx: &Ctx) -> Option<SignedReady> {
    let bytes = wire::seal(ctx.signer.as_ref(), &ctx.run, &Message::Ready(ready.clone())).ok()?;
    let digest = wire::open(ctx.verifier.as_ref(), &ctx.run, &bytes).ok()?.digest;
    Some(SignedReady { member: ctx.me, ready, digest, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::sample;

    fn work(samples: u64) -> Work {
        let (payload, measured) = (sample::digest(0xaa), sample::measured());
        Work { samples, tokens: samples * 128, steps: 30, loss_q16: 1, payload, measured }
    }

    #[test]
    fn one_ready_is_said_in_a_round_and_again_when_it_is_entered_anew() {
        let (ctx, mut out, conduct) = (Ctx::sample(), Out::default(), Conduct::default());
        let mut offer = Offer::new(&ctx.spec);
        let mut round = ctx.sample_round();
        let here = (round.task.number, round.head.base);
        assert!(!offer.take(&round, here, work(240), &ctx), "nobody trains");
        round.part.training = Training::Running;
        assert!(!offer.take(&round, (here.0 + 1, here.1), work(240), &ctx));
        assert!(offer.take(&round, here, work(240), &ctx) && !offer.is_repeated(&round));
        offer.say(&mut round, &conduct, &ctx, &mut out);
        let said = round.part.ready.as_ref().unwrap().signed.clone();
        assert_eq!((out.outputs.len(), round.part.training), (2, Training::Done), "to both others");
        let mut again = ctx.sample_round();
        offer.say(&mut again, &conduct, &ctx, &mut out);
        assert_eq!(again.part.ready.as_ref().map(|own| &own.signed), Some(&said));
        assert!(offer.is_repeated(&again) && out.outputs.len() == 2);
    }

    #[test]
    fn work_beyond_the_lease_is_dropped() {
        let (ctx, mut out) = (Ctx::sample(), Out::default());
        let mut offer = Offer::new(&ctx.spec);
        let mut round = ctx.sample_round();
        round.part.training = Training::Running;
        assert!(offer.take(&round, (round.task.number, round.head.base), work(241), &ctx));
        offer.say(&mut round, &Conduct::default(), &ctx, &mut out);
        assert!(round.part.ready.is_none() && offer.contribution.is_none() && out.outputs.is_empty());
    }
}
