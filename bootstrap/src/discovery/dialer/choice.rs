//! The choice of whom to dial in a flock that is too large for connections between all.

use super::contacts::Contacts;
use super::target::{State, Target, Wish};
use super::{Dialer, Reason, YIELD, after};
use libp2p::PeerId;
use starling_protocol::engine::io::Time;
use std::collections::{BTreeMap, BTreeSet};

/// Rounds of dials that fail before the known addresses of a contact count as none.
const FAILED_ROUNDS: u32 = 3;

impl Dialer {
    /// Sets whom to dial from now on; `None` for everybody that is found or wanted. Returns the peers that were
    /// contacts and are no more: they are dialed on unless the owner takes its wish back.
    pub fn set_contacts(&mut self, contacts: Option<Contacts>, now: Time) -> BTreeSet<PeerId> {
        let near = contacts.as_ref().map(|contacts| contacts.near.clone()).unwrap_or_default();
        let before = std::mem::replace(&mut self.contacts, contacts).unwrap_or_default().near;
        let idle: Vec<PeerId> = self
            .targets
            .iter()
            .filter(|(peer, target)| {
                target.wish == Wish::Candidate && target.state != State::Connected && !self.meets(peer)
            })
            .map(|(peer, _)| *peer)
            .collect();
        idle.iter().for_each(|peer| self.give_up(peer));
        for peer in &near {
            self.wish(*peer, Wish::Wanted, now);
        }
        self.changed = true;
        before.difference(&near).copied().collect()
    }

    /// Whether a peer that was merely found is dialed.
    pub(super) fn meets(&self, peer: &PeerId) -> bool {
        self.contacts.as_ref().is_none_or(|contacts| contacts.meets(peer))
    }

    /// Dials a peer for which there was no address until now.
    pub(super) fn go_on(&mut self, peer: &PeerId, now: Time) {
        let soon = if self.me > *peer { after(now, YIELD) } else { now };
        let lacked = |target: &&mut Target| matches!(target.trouble, Some((_, Reason::NoAddress)));
        if let Some(target) = self.targets.get_mut(peer).filter(lacked)
            && let State::Waiting(at) = target.state
        {
            self.changed = true;
            (target.trouble, target.rounds, target.state) = (None, 0, State::Waiting(at.min(soon)));
        }
    }

    /// Whether the owner has named contacts.
    pub fn has_contacts(&self) -> bool {
        self.contacts.is_some()
    }

    /// The contacts that are not connected, and whether no address leads to each.
    pub fn away(&self) -> BTreeMap<PeerId, bool> {
        let near = self.contacts.iter().flat_map(|contacts| &contacts.near);
        let away = near.filter_map(|peer| {
            let target = self.targets.get(peer).filter(|target| target.state != State::Connected)?;
            Some((*peer, self.book.known(peer).is_empty() || target.rounds >= FAILED_ROUNDS))
        });
        away.collect()
    }
}
