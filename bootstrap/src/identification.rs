//! The peers' statements about themselves, and about the address at which they see this node.
//!
//! When a peer saw this node at an address whose port the node does not listen on, libp2p's identify takes that for a
//! temporary port and puts the listening port in its place. Behind a router that is wrong: the router seldom maps the
//! listening port to the same number, and other peers have to send to the mapped one (RFC 4787, section 4). Here an
//! address counts as it was seen, if the connection came in or was dialed from the listening port. Other addresses do
//! not count.

use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::behaviour::ConnectionClosed;
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId, identify};
use std::collections::BTreeSet;
use std::task::{Context, Poll};

/// The protocol that `identify` announces; its number is the network version. Peers with another one are left alone.
pub const IDENTIFY_PROTOCOL: &str = "starling/3";

/// `identify`, with candidates for this node's address as peers saw them.
pub struct Behaviour {
    inner: identify::Behaviour,
    /// Direct connections whose near end is a port that this node listens on.
    telling: BTreeSet<ConnectionId>,
    /// The address that the last peer saw; the swarm is told right after that peer's identify event.
    seen: Option<Multiaddr>,
}

impl Behaviour {
    pub fn new(config: identify::Config) -> Self {
        Self { inner: identify::Behaviour::new(config), telling: BTreeSet::new(), seen: None }
    }

    fn note(&mut self, event: &identify::Event) {
        if let identify::Event::Received { connection_id, info, .. } = event
            && self.telling.contains(connection_id)
        {
            self.seen = Some(info.observed_addr.clone());
        }
    }
}

fn is_relayed(address: &Multiaddr) -> bool {
    address.iter().any(|part| part == Protocol::P2pCircuit)
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = <identify::Behaviour as NetworkBehaviour>::ConnectionHandler;
    type ToSwarm = identify::Event;

    fn handle_established_inbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        if !is_relayed(local) {
            self.telling.insert(id);
        }
        self.inner.handle_established_inbound_connection(id, peer, local, remote)
    }

    fn handle_established_outbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        address: &Multiaddr,
        role: Endpoint,
        port_use: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        if !is_relayed(address) && port_use == PortUse::Reuse {
            self.telling.insert(id);
        }
        self.inner.handle_established_outbound_connection(id, peer, address, role, port_use)
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        match &event {
            FromSwarm::ConnectionClosed(ConnectionClosed { connection_id, .. }) => {
                self.telling.remove(connection_id);
            }
            // Another behaviour may deny a connection that this one has seen.
            FromSwarm::DialFailure(failure) => drop(self.telling.remove(&failure.connection_id)),
            FromSwarm::ListenFailure(failure) => drop(self.telling.remove(&failure.connection_id)),
            _ => {}
        }
        self.inner.on_swarm_event(event);
    }

    fn on_connection_handler_event(&mut self, peer: PeerId, id: ConnectionId, event: THandlerOutEvent<Self>) {
        self.inner.on_connection_handler_event(peer, id, event);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        if let Some(address) = self.seen.take() {
            return Poll::Ready(ToSwarm::NewExternalAddrCandidate(address));
        }
        loop {
            match self.inner.poll(cx) {
                Poll::Ready(ToSwarm::NewExternalAddrCandidate(_)) => {}
                Poll::Ready(ToSwarm::GenerateEvent(event)) => {
                    self.note(&event);
                    return Poll::Ready(ToSwarm::GenerateEvent(event));
                }
                other => return other,
            }
        }
    }

    fn handle_pending_outbound_connection(
        &mut self,
        id: ConnectionId,
        peer: Option<PeerId>,
        addresses: &[Multiaddr],
        role: Endpoint,
    ) -> Result<Vec<Multiaddr>, ConnectionDenied> {
        self.inner.handle_pending_outbound_connection(id, peer, addresses, role)
    }
}
