//! Keeps idle connections to chosen peers open, and refuses excluded peers.
//!
//! libp2p closes a connection that has no open stream for a while. Connections to bootstrap peers and members of the
//! flock must stay, so they are marked here; those of other peers go when idle.

use super::Gate;
use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::core::upgrade::DeniedUpgrade;
use libp2p::swarm::behaviour::{ConnectionClosed, ConnectionEstablished};
use libp2p::swarm::handler::ConnectionEvent;
use libp2p::swarm::{
    ConnectionDenied, ConnectionHandler, ConnectionHandlerEvent, ConnectionId, FromSwarm, NetworkBehaviour,
    NotifyHandler, SubstreamProtocol, THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;
use std::task::{Context, Poll, Waker};

/// Peers that may be kept or excluded at a time; further ones are ignored and counted.
const PEERS_MAX: usize = 4096;

/// The behaviour behind [`Gate`]. Emits no events.
pub struct Behaviour {
    gate: Gate,
    kept: BTreeSet<PeerId>,
    excluded: BTreeSet<PeerId>,
    connections: BTreeMap<PeerId, BTreeSet<ConnectionId>>,
    orders: VecDeque<(PeerId, ConnectionId, bool)>,
    waker: Option<Waker>,
}

/// The error of a denied connection of an excluded peer.
#[derive(Debug, thiserror::Error)]
#[error("this peer is not wanted here")]
pub struct Excluded;

impl Behaviour {
    pub fn new(gate: Gate) -> Self {
        Self {
            gate,
            kept: BTreeSet::new(),
            excluded: BTreeSet::new(),
            connections: BTreeMap::new(),
            orders: VecDeque::new(),
            waker: None,
        }
    }

    /// The rules for dials and addresses.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Sets whether connections to `peer`, present and future, stay open when idle.
    pub fn keep(&mut self, peer: PeerId, keep: bool) {
        let changed = match keep {
            true if self.kept.len() >= PEERS_MAX => false,
            true => self.kept.insert(peer),
            false => self.kept.remove(&peer),
        };
        if changed {
            for connection in self.connections.get(&peer).into_iter().flatten() {
                self.orders.push_back((peer, *connection, keep));
            }
            if let Some(waker) = self.waker.take() {
                waker.wake();
            }
        }
    }

    /// Sets whether new connections of `peer` are refused.
    pub fn exclude(&mut self, peer: PeerId, exclude: bool) {
        match exclude {
            true if self.excluded.len() >= PEERS_MAX => {}
            true => drop(self.excluded.insert(peer)),
            false => drop(self.excluded.remove(&peer)),
        }
    }

    fn admit(&self, peer: &PeerId) -> Result<Handler, ConnectionDenied> {
        if self.excluded.contains(peer) {
            metrics::counter!("starling_refused_total", "reason" => "peer_excluded").increment(1);
            return Err(ConnectionDenied::new(Excluded));
        }
        Ok(Handler { keep: self.kept.contains(peer) })
    }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = Infallible;

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.admit(&peer)
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.admit(&peer)
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        match event {
            FromSwarm::ConnectionEstablished(ConnectionEstablished { peer_id, connection_id, endpoint, .. }) => {
                self.gate.opened(connection_id, peer_id, endpoint);
                self.connections.entry(peer_id).or_default().insert(connection_id);
            }
            FromSwarm::ConnectionClosed(ConnectionClosed { peer_id, connection_id, .. }) => {
                self.gate.closed(connection_id);
                if let Some(of_peer) = self.connections.get_mut(&peer_id) {
                    of_peer.remove(&connection_id);
                    if of_peer.is_empty() {
                        self.connections.remove(&peer_id);
                    }
                }
            }
            _ => {}
        }
    }

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: THandlerOutEvent<Self>) {
        match event {}
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        match self.orders.pop_front() {
            Some((peer_id, connection, event)) => {
                Poll::Ready(ToSwarm::NotifyHandler { peer_id, handler: NotifyHandler::One(connection), event })
            }
            None => {
                self.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// One connection's side: says whether it is kept, and speaks no protocol.
pub struct Handler {
    keep: bool,
}

impl ConnectionHandler for Handler {
    type FromBehaviour = bool;
    type ToBehaviour = Infallible;
    type InboundProtocol = DeniedUpgrade;
    type OutboundProtocol = DeniedUpgrade;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = ();

    fn listen_protocol(&self) -> SubstreamProtocol<Self::InboundProtocol> {
        SubstreamProtocol::new(DeniedUpgrade, ())
    }

    fn connection_keep_alive(&self) -> bool {
        self.keep
    }

    fn on_behaviour_event(&mut self, keep: bool) {
        self.keep = keep;
    }

    fn poll(
        &mut self,
        _: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<Self::OutboundProtocol, (), Self::ToBehaviour>> {
        Poll::Pending
    }

    fn on_connection_event(&mut self, _: ConnectionEvent<Self::InboundProtocol, Self::OutboundProtocol>) {}
}
