//! Heads that were proven, and whose claims are looked at.

use super::chain::Place;
use super::clock::Moment;
use super::io::Proven;
use crate::{Digest, NodeId};
use std::collections::{BTreeMap, VecDeque};

/// Proven heads that are remembered, one of each lineage.
const PROVEN_MAX: usize = 16;
/// Lineages of other chains of the run that the user was told of.
const FOREIGN_MAX: usize = 16;

/// What this node knows of others' claims.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// Whose claim is being looked at, and to which record.
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

    /// Whether none is being looked at.
    pub fn are_settled(&self) -> bool {
        self.asked.is_empty()
    }

    /// A chain of this run that has nothing in common with this node's; whether the user is to be told.
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

    /// Going there has failed: it has to be proven anew.
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

    /// Whether who stands there holds this head, too.
    pub(super) fn is_held_at(&self, place: &Place) -> bool {
        Some(place.lineage) == self.ancestry.lineage() && Some(place.seq) >= self.ancestry.seq()
    }
}
