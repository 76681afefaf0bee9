//! The simulated trainer's own parameters, in runs that keep them from round to round: the steps that it makes ahead of
//! a record, those that it drops again, and the mixing after a commit.

use super::invariant::Observed;
use super::process::{Ahead, Own, Process, Training};
use super::trainer::{self, State};
use super::world::{Event, World};
use crate::engine::io::Input;
use crate::mutation::{Mutation, mutated};
use crate::record::Span;
use crate::{Digest, lease, update};
use std::rc::Rc;

impl Process {
    /// Notes that an inner step was done.
    pub fn stepped(&mut self, positions: Span) {
        if let Some(own) = &mut self.own {
            own.steps.push(positions);
        }
    }

    /// Resets the trainer's parameters to those of its last contribution.
    fn back(&mut self) {
        self.ahead = None;
        if let Some(own) = self.own.as_mut() {
            own.steps.truncate(own.offered);
        }
    }
}

impl World {
    pub(super) fn stop_training(&mut self, node: usize) {
        self.process(node, |process| {
            process.training = None;
            process.back();
        });
    }

    pub(super) fn start_over(&mut self, node: usize) {
        if !mutated!(Mutation::KeepOwn) {
            self.process(node, |process| (process.own, process.ahead) = (None, None));
        }
    }

    /// Starts the steps ahead for a lease that the engine foresees.
    pub(super) fn ahead(
        &mut self,
        node: usize,
        (round, base): (u64, Digest),
        lease: Span,
        [inner_steps, steps]: [u32; 2],
    ) {
        let same = |ahead: &Ahead| (ahead.round, ahead.base, ahead.lease) == (round, base, lease);
        let held = self.nodes[node].process.as_ref().and_then(|process| process.ahead.as_ref());
        if held.is_some_and(same) {
            return;
        }
        self.settle_ahead(node, None);
        let pace = self.nodes[node].step;
        let after = self.random.between(pace / 2, pace * 2);
        let mut started = None;
        self.process(node, |process| {
            let job = process.job();
            process.ahead = Some(Ahead { job, round, base, lease, inner_steps, steps, done: 0 });
            started = Some(job).filter(|_| !process.hung && process.own.is_some());
        });
        if let Some(job) = started {
            self.schedule_own(after, node, Event::AheadStep { job });
        }
    }

    pub(super) fn ahead_step(&mut self, node: usize, job: u64) {
        let (pace, unit) = (self.nodes[node].step, self.spec.inner.samples(1).max(1));
        let after = self.random.between(pace / 2, pace * 2);
        let Some(process) = self.nodes[node].process.as_mut().filter(|process| !process.hung) else { return };
        let Some(ahead) = process.ahead.as_mut().filter(|ahead| ahead.job == job) else { return };
        let before = |step| lease::positions_before(&ahead.lease, unit, ahead.inner_steps, step);
        let (start, end) = (before(ahead.done), before(ahead.done + 1));
        let positions = Span { start: ahead.lease.start + start, count: end - start };
        ahead.done += 1;
        let goes_on = ahead.done < ahead.steps;
        process.stepped(positions);
        if goes_on {
            self.schedule_own(after, node, Event::AheadStep { job });
        }
    }

    /// Settles steps done ahead: they count if they are of this round and lease, after a commit on the state from which
    /// they were foreseen; otherwise they are dropped. Returns how many steps count.
    pub(super) fn settle_ahead(&mut self, node: usize, wanted: Option<(u64, Span)>) -> u32 {
        let streams = self.spec.sync.streams();
        let Some(process) = self.nodes[node].process.as_mut().filter(|_| streams) else { return 0 };
        let before = process.before;
        let kept = process.ahead.take().filter(|ahead| {
            let same = wanted == Some((ahead.round, ahead.lease)) && before == Some(ahead.base);
            same || (mutated!(Mutation::KeepAhead) && wanted.is_some())
        });
        match &kept {
            Some(ahead) if ahead.done > 0 => self.marks.hit("steps ahead kept"),
            Some(_) => {}
            None => {
                let steps = process.own.as_ref().map_or(0, |own| own.steps.len() - own.offered);
                process.back();
                if steps > 0 {
                    self.marks.hit("steps ahead dropped");
                }
            }
        }
        if let Some(process) = self.nodes[node].process.as_mut().filter(|process| process.own.is_none()) {
            let theta = process.state.vectors.theta.clone();
            process.own = Some(Own { theta, steps: Vec::new(), offered: 0 });
        }
        kept.map_or(0, |ahead| ahead.done)
    }

    /// The contribution of a node after its inner steps: its progress, or the fragment of the round from its own
    /// parameters.
    pub(super) fn contribution(&mut self, node: usize, training: &Training, span: Span) -> Vec<f32> {
        let id = self.nodes[node].id;
        let Some(own) = self.nodes[node].process.as_mut().and_then(|process| process.own.as_mut()) else {
            return trainer::pseudo_gradient(&training.state, &training.state.vectors.theta, &id, span);
        };
        let moved = trainer::pseudo_gradient(&training.state, &own.theta, &id, span);
        own.theta.iter_mut().zip(moved).for_each(|(own, moved)| *own -= moved);
        self.fragment(training.round, &training.state, node)
    }

    /// A round's fragment of the canonical parameters minus the own ones.
    fn fragment(&self, round: u64, state: &State, node: usize) -> Vec<f32> {
        let range = trainer::fragments(&self.spec.sync).of_round(round);
        let own = self.nodes[node].process.as_ref().and_then(|process| process.own.as_ref());
        let own = own.map_or(&state.vectors.theta, |own| &own.theta);
        state.vectors.theta[range.clone()].iter().zip(&own[range]).map(|(theta, own)| theta - own).collect()
    }

    /// Offers again a contribution that a commit left out, for the fragment whose turn it is.
    pub(super) fn retaken(&mut self, node: usize, round: u64, base: Digest) {
        let at_hand = |process: &Process| {
            process.head.as_ref().is_some_and(|head| head.record.base_or(head.digest) == base) && process.own.is_some()
        };
        let process = self.nodes[node].process.as_ref().filter(|process| at_hand(process));
        let held = process.and_then(|process| Some((process.offer.clone()?, Rc::clone(&process.state))));
        let Some((mut offer, state)) = held else {
            return self.feed(node, Input::Retaken { round, base, made: None });
        };
        self.settle_ahead(node, None);
        self.marks.hit("fragment left out and another taken");
        let vector = self.fragment(round, &state, node);
        let (payload, norm_bits) = (update::contribution_digest(&vector), trainer::norm(&vector).to_bits());
        (offer.payload, offer.vector, offer.base) = (payload, Rc::new(vector), base);
        self.observe(&Observed::Trained { node, base, offer: &offer });
        self.process(node, |process| process.offer = Some(offer));
        self.feed(node, Input::Retaken { round, base, made: Some((payload, norm_bits)) });
    }

    /// Mixes a fragment that a commit has stepped into the trainer's own parameters.
    pub(super) fn mix_own(&mut self, node: usize, round: u64, after: &State) {
        let range = trainer::fragments(&self.spec.sync).of_round(round);
        let mixing = self.spec.sync.mixing as f32;
        self.process(node, |process| {
            process.before = process.head.as_ref().map(|head| head.record.base_or(head.digest));
            if let Some(own) = &mut process.own {
                update::mix(mixing, &mut own.theta[range.clone()], &after.vectors.theta[range]);
            }
        });
    }
}
