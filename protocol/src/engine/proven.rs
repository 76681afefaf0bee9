//! Proven heads, and the peers whose claims are looked at.

use super::chain::Place;
use super::clock::Moment;
use super::io::Proven;
use crate::{Digest, NodeId};
use std::collections::{BTreeMap, VecDeque};

/// The number of proven heads that are remembered, one of each lineage.
const PROVEN_MAX: usize = 16;
/// The number of lineages of other chains of the run that are remembered, because the user was told of them.
const FOREIGN_MAX: usize = 16;

/// This node's knowledge of others' claims.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// Peers whose claims are being looked at, with the claimed heads.
    pub asked: BTreeMap<NodeId, Place>,
    /// Oldest first, one of each lineage.
    pub held: VecDeque<Held>,
    pub foreign: VecDeque<Digest>,
}

#[derive(Debug)]
pub(super) struct Held {
    pub at: Moment,
    pub by: NodeId,
    pub proven: Proven,
}

impl Claims {
    pub fn of(&self, lineage: &Digest) -> Option<&Held> {
        self.held.iter().find(|held| held.proven.ancestry.lineage() == Some(*lineage))
    }

    pub fn hold(&mut self, held: Held) {
        let lineage = held.proven.ancestry.lineage();
        self.held.retain(|before| before.proven.ancestry.lineage() != lineage);
        if self.held.len() >= PROVEN_MAX {
            self.held.pop_front();
        }
        self.held.push_back(held);
    }

    /// Whether no claim is being looked at.
    pub fn are_settled(&self) -> bool {
        self.asked.is_empty()
    }

    /// Notes a chain of this run that has nothing in common with this node's; returns whether the user is to be told.
    pub fn meet_foreign(&mut self, lineage: Digest) -> bool {
        let new = !self.foreign.contains(&lineage);
        if new {
            if self.foreign.len() >= FOREIGN_MAX {
                self.foreign.pop_front();
            }
            self.foreign.push_back(lineage);
        }
        new
    }

    /// Forgets a head after a failed catch-up to it: it has to be proven anew.
    pub fn forget(&mut self, record: &Digest) {
        self.held.retain(|held| held.proven.record != *record);
    }
}

impl Proven {
    pub(super) fn place(&self) -> Place {
        let Self { record, tokens, ancestry, voters: _ } = self;
        let (lineage, seq) = (ancestry.lineage().unwrap_or_default(), ancestry.seq().unwrap_or_default());
        Place { lineage, seq, record: *record, tokens: *tokens }
    }

    /// Whether a peer with the head `place` holds this head, too.
    pub(super) fn is_held_at(&self, place: &Place) -> bool {
        Some(place.lineage) == self.ancestry.lineage() && Some(place.seq) >= self.ancestry.seq()
    }
}
