//! Offering what a lineage that gave way has learned (`docs/protocol/7-merging.md` §7.4).
//!
//! The driver keeps the difference and mixes it into a contribution when the engine says so; the engine knows its name,
//! its tokens and when it is this node's turn.

use super::Engine;
use super::io::{Merge, Notice, Output};
use super::round::{Round, Training};
use super::succession::merging;
use crate::difference::Difference;
use crate::{Digest, NodeId};

/// A contribution with a difference mixed into it, which stands for one round.
#[derive(Clone, Debug)]
pub(super) struct Mixed {
    round: u64,
    base: Digest,
    pub merge: Merge,
    /// Its digest and its norm (bits of an f32), once the driver has made it.
    pub made: Option<(Digest, u32)>,
}

impl Engine {
    /// The driver holds this difference, in place of any before. Where gradients or fragments are averaged it is of no use.
    pub(super) fn hold_difference(&mut self, difference: Difference) {
        if !self.spec.sync.merges() {
            return self.out.push(Output::DropDifference { lineage: difference.lineage });
        }
        self.difference = Some(difference);
        self.heed_merged();
    }

    /// Drops what is in the state of the head by now.
    pub(super) fn heed_merged(&mut self) {
        let Some((held, head)) = self.difference.as_ref().zip(self.head.as_ref()) else { return };
        let lineage = held.lineage;
        if head.record.lineage != lineage && head.record.has_merged(&lineage) {
            self.difference = None;
            self.out.push(Output::DropDifference { lineage });
        }
    }

    /// Tells of the lineages that a record has taken in.
    pub(super) fn tell_merged(&mut self, before: &[Digest], merged: &[Digest], round: u64) {
        let new = merged.iter().filter(|lineage| before.binary_search(lineage).is_err());
        for lineage in new.copied().collect::<Vec<_>>() {
            self.notice(Notice::Merged { lineage, round });
        }
    }

    /// Has the difference mixed into the contribution just trained if this is the round for it; whether it did. The
    /// voters of the lineage that gave way take turns, so that two hardly ever offer the same.
    pub(super) fn mix(&mut self) -> bool {
        let Some((round, head)) = self.round.as_mut().zip(self.head.as_ref()) else { return false };
        let Some((held, work)) = self.difference.zip(self.contribution.as_mut()) else { return false };
        let limits = head.record.merge_limits();
        let tokens = limits.weigh(&held);
        let turn = round.number.checked_rem(held.of.into()) == Some(held.place.into());
        let known = limits.norm_bits > 0 && tokens > 0 && limits.tokens > 0;
        let votes = head.quorum.has(&self.me, self.voice.incarnation);
        if !turn || !known || !votes || head.record.has_merged(&held.lineage) || self.leaving.is_some() {
            return false;
        }
        let merge = Merge { lineage: held.lineage, tokens, norm_bits: limits.norm_bits };
        let (number, base) = (round.number, round.base);
        work.mixed = Some(Mixed { round: number, base, merge, made: None });
        round.training = Training::Done;
        let tokens = work.work.tokens;
        self.out.push(Output::Merge { round: number, base, tokens, merge });
        true
    }

    /// The driver has mixed, or could not: without a difference that is whole there is none.
    pub(super) fn mixed(&mut self, round: u64, base: Digest, made: Option<(Digest, u32)>) {
        let asked = |mixed: &&mut Mixed| (mixed.round, mixed.base, mixed.made) == (round, base, None);
        let Some(work) = self.contribution.as_mut() else { return };
        let Some(mixed) = work.mixed.as_mut().filter(asked) else { return };
        mixed.made = made;
        if made.is_none() {
            work.mixed = None;
            self.difference = None;
        }
        self.offer();
    }

    /// Those of some members whose READY merges what that of another of them merges, too, and goes before it.
    pub(super) fn rivals<'a>(&'a self, round: &'a Round, members: impl Iterator<Item = &'a NodeId>) -> Vec<NodeId> {
        let merging = members.filter_map(|id| Some((*id, self.ready_of(id, round)?.ready.merges?)));
        merging::rivals(&round.parent, merging)
    }

    /// Says READY anew, without what it merges, when another's READY merges the same and goes before it.
    pub(super) fn give_way_to_rival(&mut self) {
        let Some(round) = &self.round else { return };
        if round.own.as_ref().is_none_or(|own| own.signed.ready.merges.is_none()) {
            return;
        }
        let present = round.members.iter().filter(|id| **id == self.me || self.is_present(id));
        if self.rivals(round, present).contains(&self.me) {
            self.renew();
            self.offer_anew();
        }
    }
}

impl Mixed {
    /// Whether it was made for this round, and from this state.
    pub fn is_for(&self, round: u64, base: &Digest) -> bool {
        self.round == round && self.base == *base
    }
}
