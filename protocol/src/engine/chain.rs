//! Where this node stands, and where the others say that they stand.

use super::HISTORY_MAX;
use super::ctx::Ctx;
use crate::message::{Certificate, Head, Phase};
use crate::plant::{Plant, planted};
use crate::quorum::Quorum;
use crate::record::Record;
use crate::{Digest, NodeId};
use std::cmp::Reverse;
use std::sync::Arc;

/// A record that this node holds or held the state of, and what follows from it.
#[derive(Clone, Debug)]
pub(super) struct Standing {
    pub record: Record,
    pub digest: Digest,
    /// The record that made the state.
    pub base: Digest,
    /// Who decides on the next record.
    pub quorum: Quorum,
    /// The votes that decided this one; none for a genesis record.
    pub certificate: Option<Certificate>,
}

impl Standing {
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

impl Ctx {
    /// This record is the head now.
    pub fn stand_on(&mut self, standing: Standing) {
        let follows = self.history.back().is_none_or(|past| past.digest == standing.record.parent);
        if !follows {
            self.history.clear();
        }
        if self.history.len() >= HISTORY_MAX && !planted!(Plant::HoardHistory) {
            self.history.pop_front();
        }
        // Of the older ones only what tells them apart, and who decided, is needed.
        if let Some(past) = self.history.iter_mut().nth_back(1) {
            past.record.contributors = Vec::new();
            past.record.next.members = Vec::new();
        }
        self.history.push_back(standing.clone());
        self.head = Some(Arc::new(standing));
    }

    pub fn place(&self) -> Option<Place> {
        let head = self.head.as_ref()?;
        let Record { lineage, seq, tokens, .. } = head.record;
        Some(Place { lineage, seq, record: head.digest, tokens })
    }

    /// Heads of the peers that can be heard and whose claims are looked at, by ascending id.
    pub fn places(&self) -> impl Iterator<Item = (NodeId, Place)> + '_ {
        let open = self.peers.iter().filter(|(_, peer)| peer.present() && self.heeds_claims(peer));
        let heard = open.filter(|(_, peer)| self.spoke_lately(peer));
        let thawed = |head: &&Head| head.phase != Phase::Frozen;
        heard.filter_map(move |(id, peer)| Some((*id, Place::of(peer.head.as_ref().filter(thawed)?)?)))
    }
}
