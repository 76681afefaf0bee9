//! The gate: which addresses the node may dial, for whatever part of it, and which connections are kept.
//!
//! Addresses come from strangers: by DHT answers, identify, hole punching, requests to test reachability. libp2p dials
//! them from many places, so the rule is in the one place that all dials pass, a [`GuardedTransport`] below name
//! resolution. Private and public hosts may be dialed. This machine, the local link and the clouds' metadata services
//! may be dialed only when the user named the address or a peer on this machine told it. Loopback may also be dialed
//! while all connected peers are on this machine (`docs/reliability.md`, T10).

use crate::addresses::{self, Scope};
use crate::doors::Doors;
use crate::handshake::Handshake;
use libp2p::core::transport::{Boxed, DialOpts, ListenerId, TransportError, TransportEvent};
use libp2p::core::{ConnectedPoint, Transport};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, PeerId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tokio::time::Instant;

mod keeping;

pub use keeping::{Behaviour, Handler};

/// Addresses outside the public and private scopes that may be dialed; the oldest learned one makes room.
const PERMITS_MAX: usize = 1024;
/// Connections that are refused in one poll.
const REFUSED_AT_ONCE: usize = 32;

/// The rules, shared between the transport, the behaviours and discovery; cheap to clone.
#[derive(Clone, Default)]
pub struct Gate {
    rules: Arc<Mutex<Rules>>,
    doors: Doors,
}

#[derive(Default)]
struct Rules {
    /// Addresses without `/p2p`.
    permits: BTreeSet<Multiaddr>,
    order: VecDeque<Multiaddr>,
    /// The parts after a host name that the user wrote: its addresses are known only when it is resolved.
    named: BTreeSet<Multiaddr>,
    /// The peer that each connection leads to, and whether it is on this machine.
    open: BTreeMap<ConnectionId, (PeerId, bool)>,
}

impl Gate {
    fn rules(&self) -> MutexGuard<'_, Rules> {
        // No statement leaves the rules half-changed, so the content of a poisoned lock is still good.
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The records of addresses that connections come from.
    pub fn doors(&self) -> &Doors {
        &self.doors
    }

    /// Permits an address that a peer told, and that passed [`addresses::may_be_learned`]. A name's addresses are not
    /// permitted: its owner could make it any port of this machine.
    pub fn permit_learned(&self, address: &Multiaddr) {
        if addresses::scope(address) != Scope::Name {
            self.permit(address);
        }
    }

    /// Permits an address that the user wrote and, if it is a name, its addresses.
    pub fn permit(&self, address: &Multiaddr) {
        // The dial of a relayed address goes to the relay.
        let direct: Multiaddr = address.iter().take_while(|p| !matches!(p, Protocol::P2pCircuit)).collect();
        let bare = addresses::without_peer(&direct);
        let mut rules = self.rules();
        match addresses::scope(&bare) {
            Scope::Public | Scope::Private | Scope::Unusable => {}
            Scope::Name => {
                if rules.named.len() < PERMITS_MAX {
                    rules.named.insert(tail(&bare));
                }
            }
            Scope::Loopback | Scope::LinkLocal => {
                if rules.permits.insert(bare.clone()) {
                    rules.order.push_back(bare);
                }
                while rules.order.len() > PERMITS_MAX {
                    if let Some(oldest) = rules.order.pop_front() {
                        rules.permits.remove(&oldest);
                    }
                }
            }
        }
    }

    /// Whether the resolved address may be dialed now.
    pub fn allows(&self, address: &Multiaddr) -> bool {
        let bare = addresses::without_peer(address);
        match addresses::scope(&bare) {
            Scope::Public | Scope::Private | Scope::Name => true,
            Scope::Unusable => false,
            Scope::LinkLocal => self.rules().permits.contains(&bare),
            Scope::Loopback => {
                let rules = self.rules();
                rules.permits.contains(&bare) || rules.named.contains(&tail(&bare)) || rules.all_local()
            }
        }
    }

    /// Whether there are connections and all of them lead to this machine. Only then may strangers' loopback addresses
    /// be this machine's too.
    pub fn all_local(&self) -> bool {
        self.rules().all_local()
    }

    /// Whether the other end of this connection is on this machine.
    pub fn is_local(&self, connection: ConnectionId) -> bool {
        self.rules().open.get(&connection).is_some_and(|(_, local)| *local)
    }

    /// Whether the peer is connected, and all its connections are from this machine.
    pub fn is_local_peer(&self, peer: &PeerId) -> bool {
        let rules = self.rules();
        let mut of_peer = rules.open.values().filter(|(p, _)| p == peer).map(|(_, local)| *local).peekable();
        of_peer.peek().is_some() && of_peer.all(|local| local)
    }

    pub(crate) fn opened(&self, connection: ConnectionId, peer: PeerId, endpoint: &ConnectedPoint) {
        if endpoint.is_relayed() {
            // The address is the relay's, which has a connection of its own. The peer's own place is not known.
            return;
        }
        let local = addresses::scope(endpoint.get_remote_address()) == Scope::Loopback;
        self.rules().open.insert(connection, (peer, local));
    }

    pub(crate) fn closed(&self, connection: ConnectionId) {
        self.rules().open.remove(&connection);
    }
}

impl Rules {
    fn all_local(&self) -> bool {
        !self.open.is_empty() && self.open.values().all(|(_, local)| *local)
    }
}

/// The address without its host.
fn tail(address: &Multiaddr) -> Multiaddr {
    address.iter().skip(1).filter(|p| !matches!(p, Protocol::P2p(_))).collect()
}

/// A transport that dials only addresses that the gate allows, and passes on connections at the rate that the doors
/// admit.
pub struct GuardedTransport<O> {
    inner: Boxed<O>,
    gate: Gate,
}

impl<O> GuardedTransport<O> {
    pub fn new(inner: Boxed<O>, gate: Gate) -> Self {
        Self { inner, gate }
    }
}

impl<O> Transport for GuardedTransport<O> {
    type Output = O;
    type Error = io::Error;
    type ListenerUpgrade = Handshake<<Boxed<O> as Transport>::ListenerUpgrade>;
    type Dial = <Boxed<O> as Transport>::Dial;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<io::Error>> {
        self.inner.listen_on(id, address)
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.inner.remove_listener(id)
    }

    fn dial(&mut self, address: Multiaddr, options: DialOpts) -> Result<Self::Dial, TransportError<io::Error>> {
        if !self.gate.allows(&address) {
            let scope = addresses::scope(&address).name();
            metrics::counter!("starling_refused_total", "reason" => "dial_scope", "scope" => scope).increment(1);
            return Err(TransportError::Other(io::Error::new(io::ErrorKind::PermissionDenied, Forbidden)));
        }
        self.inner.dial(address, options)
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, Self::Error>> {
        // A flood must not keep the swarm from its other work: after so many refusals this is polled again.
        for _ in 0..REFUSED_AT_ONCE {
            let event = std::task::ready!(Pin::new(&mut self.inner).poll(cx));
            let doors = &self.gate.doors;
            let from = match &event {
                TransportEvent::Incoming { send_back_addr, .. } if !doors.open(send_back_addr, Instant::now()) => {
                    continue;
                }
                TransportEvent::Incoming { send_back_addr, .. } => send_back_addr.clone(),
                // No connection has arrived.
                _ => Multiaddr::empty(),
            };
            return Poll::Ready(event.map_upgrade(|handshake| doors.handshakes().begin(&from, handshake)));
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// The error of a forbidden dial.
#[derive(Debug, thiserror::Error)]
#[error("not dialed: a stranger's address must not lead to this machine or its link")]
pub struct Forbidden;

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Multiaddr {
        text.parse().unwrap()
    }

    fn connect(gate: &Gate, id: usize, remote: &str) {
        let endpoint =
            ConnectedPoint::Listener { local_addr: address("/ip4/127.0.0.1/tcp/1"), send_back_addr: address(remote) };
        gate.opened(ConnectionId::new_unchecked(id), PeerId::random(), &endpoint);
    }

    #[test]
    fn strangers_cannot_point_at_this_machine() {
        let gate = Gate::default();
        let ssh = address("/ip4/127.0.0.1/tcp/22");
        assert!(!gate.allows(&ssh));
        connect(&gate, 1, "/ip4/127.0.0.1/tcp/9");
        assert!(gate.allows(&ssh), "a flock of this machine alone finds itself");
        connect(&gate, 2, "/ip4/192.0.2.7/tcp/9");
        assert!(!gate.allows(&ssh));
        gate.closed(ConnectionId::new_unchecked(2));
        assert!(gate.allows(&ssh));
        for never in ["/ip4/169.254.169.254/tcp/80", "/ip4/0.0.0.0/tcp/22", "/ip4/255.255.255.255/udp/1/quic-v1"] {
            assert!(!gate.allows(&address(never)), "{never}");
        }
        assert!(gate.allows(&address("/ip4/10.0.0.1/tcp/7400")));
    }

    #[test]
    fn an_address_that_the_user_wrote_is_dialed() {
        let gate = Gate::default();
        let peer = PeerId::random();
        gate.permit(&address("/ip4/127.0.0.1/tcp/7400").with(Protocol::P2p(peer)));
        gate.permit(&address("/ip4/169.254.1.2/tcp/7400"));
        gate.permit(&address("/dns4/localhost/tcp/7500"));
        assert!(gate.allows(&address("/ip4/127.0.0.1/tcp/7400").with(Protocol::P2p(PeerId::random()))));
        assert!(gate.allows(&address("/ip4/169.254.1.2/tcp/7400")));
        assert!(gate.allows(&address("/ip4/127.0.0.1/tcp/7500")), "a name that resolves to loopback");
        assert!(!gate.allows(&address("/ip4/127.0.0.1/tcp/7401")));
        gate.permit(&address("/ip4/0.0.0.0/tcp/7400"));
        assert!(!gate.allows(&address("/ip4/0.0.0.0/tcp/7400")));
    }

    /// `/dns4/byzantine.example/tcp/22`, whose owner resolves it to 127.0.0.1.
    #[test]
    fn a_learned_name_leads_to_no_port_of_this_machine() {
        let gate = Gate::default();
        let relayed = format!("/dns4/byzantine.example/tcp/22/p2p/{}/p2p-circuit", PeerId::random());
        for name in
            ["/dns4/byzantine.example/tcp/22", "/dns/byzantine.example/tcp/22", "/dnsaddr/byzantine.example", &relayed]
        {
            gate.permit_learned(&address(name));
        }
        assert!(!gate.allows(&address("/ip4/127.0.0.1/tcp/22")));
        gate.permit_learned(&address("/ip4/127.0.0.1/tcp/7400"));
        assert!(gate.allows(&address("/ip4/127.0.0.1/tcp/7400")), "what a peer on this machine told");
    }

    #[test]
    fn permits_are_bounded() {
        let gate = Gate::default();
        for port in 1..=PERMITS_MAX + 10 {
            gate.permit(&address(&format!("/ip4/127.0.0.1/tcp/{port}")));
        }
        assert_eq!(gate.rules().permits.len(), PERMITS_MAX);
        assert!(!gate.allows(&address("/ip4/127.0.0.1/tcp/1")));
        assert!(gate.allows(&address(&format!("/ip4/127.0.0.1/tcp/{}", PERMITS_MAX + 10))));
    }
}
