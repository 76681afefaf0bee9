//! This node's head, and the heads that other nodes claim.

use crate::Digest;
use crate::grid::Grid;
use crate::message::{Certificate, Head};
use crate::quorum::Quorum;
use crate::record::Record;
use std::cmp::Reverse;
use std::sync::Arc;

/// A record whose state this node holds or held, and what follows from the record.
#[derive(Clone, Debug)]
pub(super) struct ChainHead {
    pub record: Record,
    pub digest: Digest,
    /// The record that made the state.
    pub base: Digest,
    /// The voters that decide on the next record.
    pub quorum: Quorum,
    /// The cells of the members of the next round.
    pub grid: Arc<Grid>,
    /// The votes that decided this one; none for a genesis record.
    pub certificate: Option<Certificate>,
}

impl ChainHead {
    pub fn new(record: Record, certificate: Option<Certificate>) -> Self {
        let digest = record.digest();
        let (base, quorum, grid) = (record.base_or(digest), Quorum::after(&record), Arc::new(record.grid()));
        Self { base, quorum, grid, digest, record, certificate }
    }
}

/// The part of a head by which heads are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub lineage: Digest,
    pub seq: u64,
    pub record: Digest,
    pub tokens: u64,
}

impl Place {
    pub fn of(head: &Head) -> Option<Self> {
        let Head { lineage, seq, record, tokens, .. } = *head;
        (lineage != Digest::default()).then_some(Self { lineage, seq, record, tokens })
    }

    /// Whether a fork with this head wins over a fork of the same record with the head `other`, if as many voters went
    /// along with each.
    pub fn beats(&self, other: &Self) -> bool {
        (self.tokens, self.seq, Reverse(self.lineage)) > (other.tokens, other.seq, Reverse(other.lineage))
    }
}
