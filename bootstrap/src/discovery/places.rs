//! The peers that this peer relays for, counted for its operator.

use libp2p::{PeerId, relay};
use std::collections::BTreeSet;

/// Peers that hold a place here. The relay bounds them.
#[derive(Debug, Default)]
pub struct Places {
    held: BTreeSet<PeerId>,
}

impl Places {
    /// Notes an event of the relay.
    pub fn note(&mut self, event: &relay::Event) {
        match event {
            relay::Event::ReservationReqAccepted { src_peer_id, .. } => {
                self.held.insert(*src_peer_id);
            }
            relay::Event::ReservationTimedOut { src_peer_id } => {
                self.held.remove(src_peer_id);
            }
            relay::Event::ReservationReqDenied { .. } => refused("relay_reservation"),
            relay::Event::CircuitReqDenied { .. } => refused("relay_circuit"),
            relay::Event::CircuitReqAccepted { .. } => metrics::gauge!("starling_relay_circuits").increment(1.0),
            relay::Event::CircuitClosed { .. } => metrics::gauge!("starling_relay_circuits").decrement(1.0),
            // The end of a reservation is reported for every connection that ends, whether it held one or not.
            _ => {}
        }
        self.show();
    }

    /// The peer's last connection is closed, and its place with it.
    pub fn left(&mut self, peer: &PeerId) {
        self.held.remove(peer);
        self.show();
    }

    fn show(&self) {
        metrics::gauge!("starling_relay_reservations").set(self.held.len() as f64);
    }
}

fn refused(reason: &'static str) {
    metrics::counter!("starling_refused_total", "reason" => reason).increment(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_held_until_it_times_out_or_its_peer_leaves() {
        let mut places = Places::default();
        let [a, b] = [PeerId::random(), PeerId::random()];
        for (peer, renewed) in [(a, false), (a, true), (b, false)] {
            places.note(&relay::Event::ReservationReqAccepted { src_peer_id: peer, renewed });
        }
        assert_eq!(places.held, BTreeSet::from([a, b]));
        places.note(&relay::Event::ReservationClosed { src_peer_id: a });
        assert!(places.held.contains(&a), "another connection of that peer has ended");
        places.note(&relay::Event::ReservationTimedOut { src_peer_id: a });
        places.left(&b);
        assert!(places.held.is_empty());
    }
}
