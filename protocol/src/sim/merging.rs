//! Differences of lineages that give way: kept on the disk of a node that leaves one, and mixed into a contribution
//! when the engine says so.

use super::MS;
use super::disk::Kept;
use super::invariant::Observed;
use super::process::Mixed;
use super::trainer::{self, State};
use super::world::{Event, World};
use crate::Digest;
use crate::difference::{self, Mix, Origin};
use crate::engine::io::{Input, Merge};
use crate::run::SyncMode;
use crate::update;
use std::rc::Rc;

impl World {
    /// Keeps the difference of a lineage that a node is about to leave for another, if there is one to keep.
    pub(super) fn keep_difference(&mut self, node: usize) {
        if !self.spec.sync.merges() {
            return;
        }
        let (me, disk) = (self.nodes[node].id, &mut self.nodes[node].disk);
        let Some((last, state)) = disk.head().cloned().zip(disk.state.clone()) else { return };
        let base = disk.base.take_if(|(record, _)| record.lineage == last.record.lineage);
        let fork = base.as_ref().map(|(record, _)| record.as_ref());
        let Ok((difference, origin)) = difference::of_lineage(&last.record, fork, &me) else { return };
        let from = match (origin, &base) {
            (Origin::Fork, Some((_, state))) => Rc::clone(state),
            _ => State::initial(SyncMode::Rounds),
        };
        let mut vector = from.vectors.theta.clone();
        let norm = difference::subtract(&mut vector, &state.vectors.theta).sqrt();
        let newer = |kept: &Kept| {
            let (known, new) = (&kept.difference, &difference);
            known.lineage == new.lineage || known.tokens < new.tokens
        };
        if disk.difference.as_ref().is_none_or(newer) {
            disk.difference = Some(Kept { difference, vector: Rc::new(vector), norm });
        }
    }

    /// Tells a node's program which difference its disk holds.
    pub(super) fn tell_difference(&mut self, node: usize) {
        if let Some(difference) = self.nodes[node].disk.difference.as_ref().map(|kept| kept.difference) {
            self.feed(node, Input::Difference { difference });
        }
    }

    pub(super) fn drop_difference(&mut self, node: usize, lineage: &Digest) {
        self.nodes[node].disk.difference.take_if(|kept| kept.difference.lineage == *lineage);
    }

    pub(super) fn mix(&mut self, node: usize, (round, base): (u64, Digest), tokens: u64, merge: Merge) {
        let after = self.random.between(1, 400) * MS;
        self.schedule_own(after, node, Event::Mixed { round, base, tokens, merge });
    }

    pub(super) fn mixed(&mut self, node: usize, (round, base): (u64, Digest), tokens: u64, merge: Merge) {
        let kept = self.nodes[node].disk.difference.clone().filter(|kept| kept.difference.lineage == merge.lineage);
        let offer = self.nodes[node].process.as_ref().and_then(|process| process.offer.clone());
        let Some((kept, offer)) = kept.zip(offer) else {
            return self.feed(node, Input::Mixed { round, base, made: None });
        };
        let mut vector = offer.vector.as_ref().clone();
        Mix::new(tokens, merge.tokens, kept.norm, merge.norm_bits).apply(&mut vector, &kept.vector);
        let payload = update::contribution_digest(&vector);
        let made = Some((payload, trainer::norm(&vector).to_bits()));
        let mixed = Mixed { payload, vector: Rc::new(vector) };
        self.observe(&Observed::Mixed { node, base, offer: &offer, merge: &merge, mixed: &mixed });
        self.process(node, |process| process.mixed = Some(mixed));
        self.feed(node, Input::Mixed { round, base, made });
    }
}
