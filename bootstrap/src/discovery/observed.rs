//! The addresses at which peers see this node, before they have been tested.
//!
//! A stranger may claim any address, so an address counts when a peer that the user named claims it, or two other peers
//! do.

use crate::addresses::{self, Scope};
use libp2p::{Multiaddr, PeerId};
use std::collections::{BTreeMap, BTreeSet};

/// Addresses that are remembered.
const ADDRESSES_MAX: usize = 16;
/// Peers remembered for each address.
const WITNESSES_MAX: usize = 4;

/// The observed addresses and their observers.
#[derive(Debug, Default)]
pub struct Observed {
    seen: BTreeMap<Multiaddr, Witnesses>,
    /// The observer of the address that the swarm reports next.
    observer: Option<(PeerId, bool)>,
}

#[derive(Debug, Default)]
struct Witnesses {
    peers: BTreeSet<PeerId>,
    trusted: bool,
}

impl Observed {
    /// This peer identified itself; libp2p reports the address that it saw right after. `trusted`: the user named it.
    pub fn observer(&mut self, peer: PeerId, trusted: bool) {
        self.observer = Some((peer, trusted));
    }

    /// libp2p's report of the address that the last observer saw.
    pub fn saw(&mut self, address: &Multiaddr) {
        let Some((peer, trusted)) = self.observer else { return };
        let address = addresses::without_peer(address);
        if addresses::scope(&address) != Scope::Public || addresses::route(&address).is_none() {
            return;
        }
        if !self.seen.contains_key(&address) && self.seen.len() >= ADDRESSES_MAX {
            metrics::counter!("starling_refused_total", "reason" => "observed_address").increment(1);
            return;
        }
        let witnesses = self.seen.entry(address).or_default();
        witnesses.trusted |= trusted;
        if witnesses.peers.len() < WITNESSES_MAX {
            witnesses.peers.insert(peer);
        }
    }

    /// Addresses that may be told to other peers.
    pub fn trusted(&self) -> impl Iterator<Item = Multiaddr> + '_ {
        self.seen.iter().filter(|(_, w)| w.trusted || w.peers.len() >= 2).map(|(address, _)| address.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: usize) -> Multiaddr {
        format!("/ip4/198.51.100.7/tcp/{port}").parse().unwrap()
    }

    #[test]
    fn one_stranger_is_not_enough() {
        let mut observed = Observed::default();
        observed.saw(&address(1));
        observed.observer(PeerId::random(), false);
        observed.saw(&address(1));
        assert_eq!(observed.trusted().count(), 0);
        observed.observer(PeerId::random(), false);
        observed.saw(&address(1));
        assert_eq!(observed.trusted().collect::<Vec<_>>(), [address(1)]);
        observed.observer(PeerId::random(), true);
        observed.saw(&address(2));
        observed.saw(&"/ip4/192.168.1.9/tcp/1".parse().unwrap());
        assert_eq!(observed.trusted().count(), 2);
    }

    #[test]
    fn liars_fill_no_memory() {
        let mut observed = Observed::default();
        for port in 1..1000 {
            observed.observer(PeerId::random(), true);
            observed.saw(&address(port));
        }
        assert_eq!(observed.trusted().count(), ADDRESSES_MAX);
    }
}
