//! A limit on the addresses that strangers can make the reachability test remember.
//!
//! Each peer that identifies itself says at which address it sees this node, and libp2p's autonat client keeps every
//! different answer for ever. This wrapper passes on the first [`CANDIDATES_MAX`] and drops the rest.

use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::swarm::behaviour::NewExternalAddrCandidate;
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId};
use std::collections::BTreeSet;
use std::task::{Context, Poll};

/// Addresses at which peers may have seen this node.
const CANDIDATES_MAX: usize = 64;

/// `B`, told of at most [`CANDIDATES_MAX`] candidate addresses.
pub struct Capped<B> {
    inner: B,
    seen: BTreeSet<Multiaddr>,
}

impl<B> Capped<B> {
    pub fn new(inner: B) -> Self {
        Self { inner, seen: BTreeSet::new() }
    }
}

impl<B: NetworkBehaviour> NetworkBehaviour for Capped<B> {
    type ConnectionHandler = B::ConnectionHandler;
    type ToSwarm = B::ToSwarm;

    fn handle_established_inbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
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
        self.inner.handle_established_outbound_connection(id, peer, address, role, port_use)
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        if let FromSwarm::NewExternalAddrCandidate(NewExternalAddrCandidate { addr }) = &event {
            if !self.seen.contains(*addr) && self.seen.len() >= CANDIDATES_MAX {
                metrics::counter!("starling_refused_total", "reason" => "observed_address").increment(1);
                return;
            }
            self.seen.insert((*addr).clone());
        }
        self.inner.on_swarm_event(event);
    }

    fn on_connection_handler_event(&mut self, peer: PeerId, id: ConnectionId, event: THandlerOutEvent<Self>) {
        self.inner.on_connection_handler_event(peer, id, event);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        self.inner.poll(cx)
    }
}
