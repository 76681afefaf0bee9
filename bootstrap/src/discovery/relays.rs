//! A place on a relay for a node that no peer can reach.
//!
//! A node waits for [`PATIENCE`] after it met its first relay. If all its addresses have failed the test from outside
//! by then, or got no answer, it asks relays among the peers that the user named to pass on connections. An inbound
//! connection proves nothing: a router lets in peers that the node has written to. There are no sockets here: this
//! module says where to listen.

use super::dialer::after;
use crate::addresses;
use libp2p::core::transport::ListenerId;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use starling_protocol::engine::io::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// Relays used at a time: a second one in case the first goes away.
const RELAYS_MAX: usize = 2;
/// Relays that are known.
const KNOWN_MAX: usize = 64;
/// The first test comes five seconds after the start, and is answered in a round trip when it succeeds.
const PATIENCE: Duration = Duration::from_secs(10);
/// A relay that has taken our place away, or gave none, is not asked again for so long.
const REST: Duration = Duration::from_secs(30);

/// The relays that this node has met.
#[derive(Debug, Default)]
pub struct Relays {
    known: BTreeMap<PeerId, Relay>,
    /// The time at which the first one was met.
    since: Option<Time>,
    /// An address of this node is known to be reached from outside.
    reached: bool,
}

/// A connected peer that relays.
#[derive(Debug)]
struct Relay {
    /// The address at which this node dialed it.
    address: Multiaddr,
    place: Option<ListenerId>,
    rests_until: Time,
}

impl Relays {
    /// Notes that this peer relays, and was reached at this address.
    pub fn known(&mut self, peer: PeerId, address: &Multiaddr, now: Time) {
        let fits = addresses::route(address).is_some_and(|route| route != addresses::Route::Relayed);
        if self.known.len() < KNOWN_MAX && fits {
            let relay = Relay { address: addresses::without_peer(address), place: None, rests_until: now };
            self.known.entry(peer).or_insert(relay);
            self.since.get_or_insert(now);
        }
    }

    /// The peer is gone, and with it this node's place.
    pub fn lost(&mut self, peer: &PeerId) {
        self.known.remove(peer);
    }

    /// An address of this node was reached from outside.
    pub fn reached(&mut self) {
        self.reached = true;
    }

    /// The relays to ask now, with addresses to listen on that end in `/p2p-circuit`. The caller reports the result of
    /// each.
    pub fn wanted(&self, now: Time) -> Vec<(PeerId, Multiaddr)> {
        let patient = self.since.is_none_or(|since| after(since, PATIENCE) > now);
        if self.reached || patient {
            return Vec::new();
        }
        let held = self.known.values().filter(|relay| relay.place.is_some()).count();
        let free = self.known.iter().filter(|(_, relay)| relay.place.is_none() && relay.rests_until <= now);
        let circuit = |(peer, relay): (&PeerId, &Relay)| {
            (*peer, addresses::with_peer(&relay.address, peer).with(Protocol::P2pCircuit))
        };
        free.map(circuit).take(RELAYS_MAX.saturating_sub(held)).collect()
    }

    /// The relay was asked for a place, or could not be.
    pub fn asked(&mut self, peer: &PeerId, place: Option<ListenerId>, now: Time) {
        if let Some(relay) = self.known.get_mut(peer) {
            (relay.place, relay.rests_until) = (place, after(now, REST));
        }
    }

    /// A listener has ended. Returns the relay whose place it was, if it was one.
    pub fn closed(&mut self, place: ListenerId, now: Time) -> Option<PeerId> {
        let (peer, relay) = self.known.iter_mut().find(|(_, relay)| relay.place == Some(place))?;
        (relay.place, relay.rests_until) = (None, after(now, REST));
        Some(*peer)
    }

    /// Relays with places that are held or asked for, and not needed any more; each is returned once.
    pub fn needless(&mut self) -> Vec<PeerId> {
        let held = self.known.iter_mut().filter(|_| self.reached);
        held.filter_map(|(peer, relay)| relay.place.take().map(|_| *peer)).collect()
    }

    /// Whether a place is held or asked for.
    pub fn has_place(&self) -> bool {
        self.known.values().any(|relay| relay.place.is_some())
    }

    /// The time to ask next.
    pub fn wake_at(&self) -> Option<Time> {
        let since = after(self.since?, PATIENCE);
        let held = self.known.values().filter(|relay| relay.place.is_some()).count();
        let free = self.known.values().filter(|relay| relay.place.is_none());
        let next = free.map(|relay| relay.rests_until.max(since)).min();
        next.filter(|_| !self.reached && held < RELAYS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER: Time = Time(10_000_000);

    fn met(count: usize) -> (Relays, Vec<PeerId>) {
        let mut relays = Relays::default();
        let peers: Vec<PeerId> = (0..count).map(|_| PeerId::random()).collect();
        peers.iter().for_each(|p| relays.known(*p, &"/ip4/192.0.2.7/tcp/7400".parse().unwrap(), Time(0)));
        (relays, peers)
    }

    #[test]
    fn a_node_not_reached_for_a_while_asks_two_relays_at_most() {
        let (mut relays, _) = met(3);
        assert!(relays.wanted(Time(LATER.0 - 1)).is_empty());
        assert_eq!(relays.wake_at(), Some(LATER));
        let wanted = relays.wanted(LATER);
        assert_eq!(wanted.len(), RELAYS_MAX);
        assert!(wanted.iter().all(|(_, a)| addresses::route(a) == Some(addresses::Route::Relayed)));
        for (peer, _) in &wanted {
            relays.asked(peer, Some(ListenerId::next()), LATER);
        }
        assert!(relays.wanted(LATER).is_empty() && relays.has_place(), "each is asked once");
        assert_eq!(relays.wake_at(), None);
        relays.lost(&wanted[0].0);
        assert_eq!(relays.wanted(LATER).len(), 1, "another takes its place");
    }

    #[test]
    fn a_relay_that_gives_no_place_rests() {
        let (mut relays, peers) = met(1);
        let place = ListenerId::next();
        relays.asked(&peers[0], Some(place), LATER);
        assert_eq!(relays.closed(ListenerId::next(), LATER), None);
        assert_eq!(relays.closed(place, LATER), Some(peers[0]));
        assert!(relays.wanted(LATER).is_empty());
        let again = relays.wake_at().unwrap();
        assert_eq!((again, relays.wanted(again).len()), (after(LATER, REST), 1));
        relays.asked(&peers[0], None, again);
        assert!(relays.wanted(again).is_empty());
    }

    #[test]
    fn a_node_that_is_reached_needs_no_relay() {
        let (mut relays, peers) = met(2);
        let place = ListenerId::next();
        relays.asked(&peers[0], Some(place), LATER);
        assert!(relays.needless().is_empty());
        relays.reached();
        assert_eq!((relays.needless(), relays.needless()), (vec![peers[0]], Vec::new()));
        assert!(relays.wanted(after(LATER, REST)).is_empty());
        assert_eq!(relays.wake_at(), None);
    }
}
