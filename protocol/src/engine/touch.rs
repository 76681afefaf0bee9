//! How a member knows of others whether they are there, and with whom it is to be connected.

use super::chain::ChainHead;
use super::ctx::Ctx;
use super::peer::Peer;
use crate::NodeId;
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
        let judged = self.votes() || self.is_voter(id);
        if !both || head.grid.are_neighbours(&self.me, id) || !judged && mutated!(Mutation::LearnersJudgeAll) {
            Touch::Direct
        } else if judged {
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
            !peer.said.left && peer.said.head.is_some() && !self.is_unheard(id, peer) && !self.is_down(id)
        })
    }

    /// Whether nothing was heard of a peer for too long. The neighbours of a member that is heard through others may say
    /// that it is there: then only the one that passed its words on is gone.
    pub fn is_unheard(&self, id: &NodeId, peer: &Peer) -> bool {
        self.is_silent(peer) && !(self.touch(id) == Touch::Passed && self.is_vouched_for(id))
    }

    /// Whether more than half of a member's neighbours, of those that this node hears, say that they do not reach it.
    pub fn is_down(&self, id: &NodeId) -> bool {
        // Mostly nobody says so, and then it does not matter how many are heard.
        if !self.is_named_down(id) {
            return false;
        }
        let (heard, down) = self.words_on(id);
        2 * down > heard || down > 0 && mutated!(Mutation::OneDownWord)
    }

    /// Whether more than half of them reach it.
    fn is_vouched_for(&self, id: &NodeId) -> bool {
        let (heard, down) = self.words_on(id);
        2 * down < heard && !mutated!(Mutation::NobodyVouches)
    }

    /// Whether any neighbour of a member that stands on this node's head says that it does not reach the member.
    fn is_named_down(&self, id: &NodeId) -> bool {
        let Some(head) = &self.head else { return false };
        let Some(place) = head.record.member_index(id) else { return false };
        self.named_down.contains(&place)
            && head.grid.around(id).any(|neighbour| self.says_down(neighbour, place) == Some(true))
    }

    /// The number of a member's neighbours that this node hears and that stand on its head, and how many of them say
    /// that they do not reach the member.
    fn words_on(&self, id: &NodeId) -> (usize, usize) {
        let Some(head) = &self.head else { return (0, 0) };
        let Some(place) = head.record.member_index(id) else { return (0, 0) };
        let (mut heard, mut down) = (0, 0);
        for neighbour in head.grid.around(id) {
            let here =
                |peer: &&Peer| !self.is_silent(peer) && (peer.link.connected || self.touch(neighbour) != Touch::Direct);
            let said = self.peers.get(neighbour).filter(here).and_then(|_| self.says_down(neighbour, place));
            heard += usize::from(said.is_some());
            down += usize::from(said == Some(true));
        }
        (heard, down)
    }

    /// The members that this node is to be connected with, by the newest record and the one before. None if that is
    /// every node that it meets: the flock is one row, or this node has no seat.
    pub fn contacts(&self) -> Option<BTreeSet<NodeId>> {
        self.has_contacts().then(|| self.near_records().flat_map(|past| past.grid.neighbours(&self.me)).collect())
    }

    /// Whether this node is to be connected with another, by the same rule.
    pub fn is_contact(&self, id: &NodeId) -> bool {
        !self.has_contacts() || self.near_records().any(|past| past.grid.are_neighbours(&self.me, id))
    }

    fn has_contacts(&self) -> bool {
        let seated = self.head.as_ref().filter(|head| head.grid.cell_of(&self.me).is_some());
        seated.is_some_and(|head| !head.grid.is_one_row()) && !mutated!(Mutation::ContactsAll)
    }

    fn near_records(&self) -> impl Iterator<Item = &ChainHead> {
        self.history.iter().rev().take(2)
    }
}
