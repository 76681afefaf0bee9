//! Events that the network passes on to the node, for its user.

use super::SwarmTask;
use crate::event::NetEvent;
use crate::standing::Rank;
use starling_bootstrap::discovery::NetEvent as Found;
use starling_bootstrap::identity;
use tokio::time::Instant;

impl SwarmTask {
    /// Passes on events that a user may want to know. When the node is far behind, they are dropped instead of waited
    /// for: the swarm must go on.
    pub(super) fn tell(&mut self, event: Found) {
        if matches!(event, Found::Listening { .. } | Found::NotListening { .. } | Found::Reachable { .. }) {
            self.note_addresses();
        }
        let told = match event {
            Found::Listening { address } => NetEvent::Listening { address },
            Found::NotListening { address, reason: Some(why) } => {
                NetEvent::ListenFailed { why: format!("{address}: {why}") }
            }
            Found::Reachable { address } => NetEvent::ExternalAddress { address },
            Found::DialFailed { peer: Some(id), failures } => {
                let Some(peer) = identity::node_id(&id) else { return };
                if self.acquaintances.is_gone(&peer, &failures) {
                    self.tell_user(NetEvent::PeerGone { peer });
                }
                // Nobody misses the other addresses of a peer that is here.
                if self.swarm.is_connected(&id) {
                    return;
                }
                let who = (peer, self.office.standing.rank(&peer) > Rank::Stranger);
                let told = self.unreached.failed(who, &failures, &self.addresses.borrow(), Instant::now());
                let Some(told) = told else { return };
                told
            }
            Found::NoDirectWay { peer } => match identity::node_id(&peer) {
                Some(peer) => NetEvent::NoDirectWay { peer },
                None => return,
            },
            Found::OtherVersion { peer, theirs } => match identity::node_id(&peer) {
                Some(peer) => NetEvent::OtherVersion { peer, theirs },
                None => return,
            },
            _ => return,
        };
        self.tell_user(told);
    }

    pub(super) fn tell_user(&self, event: NetEvent) {
        if !self.office.teller.try_tell_all(event) {
            metrics::counter!("starling_net_events_dropped_total").increment(1);
        }
    }
}
