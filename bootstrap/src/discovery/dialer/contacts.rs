//! The members to be connected with, in a flock that is too large for all of them.

use libp2p::PeerId;
use std::collections::BTreeSet;

/// The dialed ones among the peers of the flock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contacts {
    /// Members to be connected at all times.
    pub near: BTreeSet<PeerId>,
    /// All other members: not dialed, and free to connect.
    pub far: BTreeSet<PeerId>,
    /// Whether strangers that are found are dialed.
    pub meets_strangers: bool,
}

impl Contacts {
    /// Whether a peer that was merely found is dialed.
    pub(super) fn meets(&self, peer: &PeerId) -> bool {
        self.near.contains(peer) || self.meets_strangers && !self.far.contains(peer)
    }
}
