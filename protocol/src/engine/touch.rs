//! What a member tells of itself and of its neighbours, for those that hear it through others only.

use super::ctx::Ctx;
use super::liveness::fault;
use super::round::Round;
use crate::NodeId;
use crate::message::{Pulse, member_bits};
use crate::mutation::{Mutation, mutated};
use std::collections::BTreeSet;

/// How a node knows whether a member is there (`docs/protocol/8-deadlines.md` §8.2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Touch {
    /// By its own connection: they are neighbours, or one of them is no member.
    Direct,
    /// By Heads that neighbours pass on: one of them votes.
    Passed,
    /// Not at all. The voters see whether the member is there.
    Untold,
}

impl Ctx {
    pub fn touch(&self, id: &NodeId) -> Touch {
        let Some(head) = self.head.as_ref().filter(|head| !head.grid.is_one_row()) else { return Touch::Direct };
        let both = head.grid.cell_of(&self.me).is_some() && head.grid.cell_of(id).is_some();
        if !both || head.grid.are_neighbours(&self.me, id) {
            Touch::Direct
        } else if self.votes() || self.is_voter(id) || mutated!(Mutation::LearnersJudgeAll) {
            Touch::Passed
        } else {
            Touch::Untold
        }
    }

    /// Whether a member became a neighbour with the head, in a flock of several rows: both may still have to connect.
    pub fn is_new_neighbour(&self, id: &NodeId) -> bool {
        let rows = self.head.as_ref().is_some_and(|head| !head.grid.is_one_row());
        let parent = self.history.iter().nth_back(1).map(|parent| &parent.grid);
        rows && parent.is_some_and(|grid| !grid.are_neighbours(&self.me, id))
    }

    /// Whether a member that is heard through others is there, as far as this node knows.
    pub fn is_heard_of(&self, id: &NodeId) -> bool {
        self.peers.get(id).is_some_and(|peer| {
            !peer.said.left && peer.said.head.is_some() && !self.is_silent(peer) && !self.is_down(id)
        })
    }

    /// Whether more than half of a member's neighbours, of those that this node hears, say that they do not reach it.
    pub fn is_down(&self, id: &NodeId) -> bool {
        let Some(head) = &self.head else { return false };
        let Some(place) = head.record.member_index(id) else { return false };
        let (mut heard, mut down) = (0, 0);
        for neighbour in head.grid.neighbours(id) {
            let said = self.peers.get(&neighbour).and_then(|peer| peer.said.head.as_ref());
            if let Some(said) = said.filter(|said| said.record == head.digest) {
                heard += 1;
                down += usize::from(said.pulse.down.get(place / 8).is_some_and(|byte| byte >> (place % 8) & 1 == 1));
            }
        }
        2 * down > heard || down > 0 && mutated!(Mutation::OneDownWord)
    }

    /// The members that this node is to be connected with, by the newest record and the one before. None if that is
    /// every node that it meets: the flock is one row, or this node has no seat.
    pub fn contacts(&self) -> Option<BTreeSet<NodeId>> {
        let head = self.head.as_ref().filter(|head| head.grid.cell_of(&self.me).is_some())?;
        if head.grid.is_one_row() {
            return None;
        }
        let records = self.history.iter().rev().take(2);
        Some(records.flat_map(|past| past.grid.neighbours(&self.me)).collect())
    }

    /// The part of a Head that names this process, this moment, and the neighbours that this node does not reach.
    pub fn pulse(&self, round: Option<&Round>) -> Pulse {
        let (boot, incarnation, beat) = (self.identity.boot, self.identity.incarnation, self.now.micros());
        Pulse { boot, incarnation, beat, down: round.map(|round| self.down(round)).unwrap_or_default() }
    }

    /// The neighbours in the grid that this node does not reach, as a set of members. In a flock of one row each member
    /// judges of all others by itself, and the set is empty.
    pub fn down(&self, round: &Round) -> Vec<u8> {
        let head = &round.head;
        if head.grid.is_one_row() {
            return Vec::new();
        }
        let unreached = |id: &NodeId| matches!(self.fault(id, round), Some(fault::DOWN | fault::NEVER_MET));
        member_bits(head.grid.neighbours(&self.me).filter(unreached).filter_map(|id| head.record.member_index(&id)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::chain::ChainHead;
    use crate::record::Member;
    use crate::wire::sample;

    #[test]
    fn a_member_names_the_neighbours_that_it_does_not_reach_in_a_flock_of_rows_only() {
        let mut ctx = Ctx::sample();
        assert_eq!((ctx.pulse(Some(&ctx.sample_round())).down, ctx.pulse(None).boot), (Vec::new(), ctx.identity.boot));
        let mut record = ctx.head.as_ref().expect("a head").record.clone();
        let seat = record.next.members[0].clone();
        let others = (0x40..0x40 + 61).map(|fill| Member { id: sample::node(fill), ..seat.clone() });
        record.next.members.extend(others);
        record.next.members.sort_by_key(|member| member.id);
        crate::sample::seat(&mut record.next.members);
        ctx.stand_on(ChainHead::new(record, None));
        let mut round = ctx.sample_round();
        assert!(ctx.pulse(Some(&round)).down.is_empty(), "the round has just begun");
        round.began = Default::default();
        let down = crate::message::member_indices(&ctx.pulse(Some(&round)).down).count();
        let head = ctx.head.as_ref().expect("a head");
        let met = [16, 32].map(sample::node).into_iter().filter(|id| head.grid.are_neighbours(&ctx.me, id)).count();
        assert_eq!(down, head.grid.neighbours(&ctx.me).count() - met);
    }
}
