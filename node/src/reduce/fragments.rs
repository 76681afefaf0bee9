//! Error feedback where fragments of the model take turns: each has residuals of its own, which wait for its next turn.

use super::Feedback;
use starling_protocol::record::Record;
use starling_protocol::update::Fragments;
use starling_protocol::{Digest, NodeId};
use starling_store::{Store, StoreError};
use std::sync::Arc;

/// The residuals of all fragments.
pub struct FragmentFeedback {
    fragments: Fragments,
    of: Vec<Arc<Feedback>>,
}

impl FragmentFeedback {
    /// As those of a node that has just come.
    pub fn new(fragments: Fragments) -> Self {
        Self { fragments, of: (0..fragments.count()).map(|_| Arc::default()).collect() }
    }

    /// That of the fragment whose turn a round is.
    pub fn of_round(&self, round: u64) -> Arc<Feedback> {
        Arc::clone(&self.of[self.fragments.turn(round)])
    }

    /// The lineage stands on `record` ([`Feedback::stand_on`]).
    pub fn stand_on(&self, record: &Record, me: &NodeId) {
        let stepped = record.changes_state().then(|| self.fragments.turn(record.round));
        for (index, feedback) in self.of.iter().enumerate() {
            feedback.stand_on(record, me, stepped == Some(index));
        }
    }

    /// Settles what a committed record has taken in.
    pub fn settle(&self) {
        self.of.iter().for_each(|feedback| feedback.settle());
    }

    /// Writes all residuals ([`Feedback::save`]).
    ///
    /// # Errors
    /// The disk failed, or is full.
    pub fn save(&self, store: &Store, head: &Digest) -> Result<(), StoreError> {
        self.of.iter().enumerate().try_for_each(|(index, feedback)| feedback.save(store, index, head))
    }

    /// The residuals on disk ([`Feedback::restore`]).
    ///
    /// # Errors
    /// What is on disk is damaged.
    pub fn restore(store: &Store, head: &Digest, fragments: Fragments) -> Result<Self, StoreError> {
        let restored = |index: usize| Feedback::restore(store, index, head, fragments.range(index).len()).map(Arc::new);
        Ok(Self { fragments, of: (0..fragments.count()).map(restored).collect::<Result<_, _>>()? })
    }
}
