//! A place on a relay for a node that nobody can reach.
//!
//! When a test says that an address of ours cannot be reached, and none is known that can, the node asks the peers
//! that the user named, and that relay, to pass on connections. No sockets here: it says where to listen.

use crate::addresses;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use std::collections::{BTreeMap, BTreeSet};

/// Relays used at a time: a second for when the first goes away.
const RELAYS_MAX: usize = 2;
/// Relays that are known.
const KNOWN_MAX: usize = 64;

/// What is known of relays.
#[derive(Debug, Default)]
pub struct Relays {
    /// Connected peers that relay, with the address at which we dialed them.
    known: BTreeMap<PeerId, Multiaddr>,
    asked: BTreeSet<PeerId>,
    /// Addresses of ours that were tested and not reached.
    unreached: bool,
    reached: bool,
}

impl Relays {
    /// This peer relays, and we reached it there.
    pub fn known(&mut self, peer: PeerId, address: &Multiaddr) {
        if self.known.len() < KNOWN_MAX && addresses::route(address).is_some() {
            self.known.insert(peer, addresses::without_peer(address));
        }
    }

    /// The peer is gone, and with it our place.
    pub fn lost(&mut self, peer: &PeerId) {
        self.known.remove(peer);
        self.asked.remove(peer);
    }

    /// A test of one of our addresses came back.
    pub fn tested(&mut self, reached: bool) {
        self.reached |= reached;
        self.unreached |= !reached;
    }

    /// Where to listen now: addresses that end in `/p2p-circuit`, each given once until its relay is lost.
    pub fn wanted(&mut self) -> Vec<Multiaddr> {
        let mut wanted = Vec::new();
        if self.reached || !self.unreached {
            return wanted;
        }
        for (peer, address) in &self.known {
            if self.asked.len() >= RELAYS_MAX {
                break;
            }
            if self.asked.insert(*peer) {
                wanted.push(addresses::with_peer(address, peer).with(Protocol::P2pCircuit));
            }
        }
        wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_unreachable_ask_and_of_two_at_most() {
        let mut relays = Relays::default();
        let address: Multiaddr = "/ip4/192.0.2.7/tcp/7400".parse().unwrap();
        let peers: Vec<PeerId> = (0..3).map(|_| PeerId::random()).collect();
        peers.iter().for_each(|p| relays.known(*p, &address));
        assert!(relays.wanted().is_empty());
        relays.tested(false);
        let wanted = relays.wanted();
        assert_eq!(wanted.len(), RELAYS_MAX);
        assert!(wanted.iter().all(|a| addresses::route(a) == Some(addresses::Route::Relayed)));
        assert!(relays.wanted().is_empty(), "each is asked once");
        peers.iter().for_each(|p| relays.lost(p));
        relays.known(peers[0], &address);
        assert_eq!(relays.wanted().len(), 1);
        relays.tested(true);
        relays.lost(&peers[0]);
        relays.known(peers[0], &address);
        assert!(relays.wanted().is_empty());
    }
}
