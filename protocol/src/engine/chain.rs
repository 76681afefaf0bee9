//! Where this node stands, and where the others say that they stand.

use crate::Digest;
use crate::message::{Certificate, Head};
use crate::quorum::Quorum;
use crate::record::Record;
use std::cmp::Reverse;

/// A record that this node holds or held the state of, and what follows from it.
#[derive(Clone, Debug)]
pub(super) struct ChainHead {
    pub record: Record,
    pub digest: Digest,
    /// The record that made the state.
    pub base: Digest,
    /// Who decides on the next record.
    pub quorum: Quorum,
    /// The votes that decided this one; none for a genesis record.
    pub certificate: Option<Certificate>,
}

impl ChainHead {
    pub fn new(record: Record, certificate: Option<Certificate>) -> Self {
        let digest = record.digest();
        Self { base: record.base_or(digest), quorum: Quorum::after(&record, &digest), digest, record, certificate }
    }
}

/// A head as far as comparing goes.
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

    /// Whether a fork that stands there would win over another of the same record that stands at `other`, if as many went along.
    pub fn beats(&self, other: &Self) -> bool {
        (self.tokens, self.seq, Reverse(self.lineage)) > (other.tokens, other.seq, Reverse(other.lineage))
    }
}
