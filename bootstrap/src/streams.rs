//! Raw substreams, opened to connected peers and accepted from them by protocol name.
//!
//! Does what `libp2p-stream` does, with four differences that a data plane needs. Streams that arrive together wait in
//! a queue of known length instead of being dropped after the first. A stream that cannot be queued is counted. When
//! two connections join the same two peers, the caller says which one it wants ([`Lane`]), by an order that both ends
//! agree on, so that bulk data and control messages need not share one. Two processes with one key are told apart
//! ([`Process`]): a stream comes with the process that opened it, once that process has named itself, and can be opened
//! to one of them.
//!
//! Opening never dials: a stream to a peer without a direct connection fails at once. The content of a stream is not
//! bounded here, but by its user.

use crate::process::Process;
use libp2p::core::transport::PortUse;
use libp2p::core::{ConnectedPoint, Endpoint};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::derive_prelude::{ConnectionClosed, ConnectionEstablished};
use libp2p::swarm::{
    CloseConnection, ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, NotifyHandler, THandler,
    THandlerInEvent, THandlerOutEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId, Stream, StreamProtocol};
use std::collections::{BTreeMap, VecDeque};
use std::task::{Context, Poll};
use tokio::sync::{mpsc, oneshot};

mod acceptors;
mod handler;

use acceptors::{Acceptor, Acceptors};
use handler::Reply;

pub use acceptors::Incoming;
pub use handler::{Handler, Open, OpenError, Upgrade};

/// Requests for streams that the swarm has not looked at yet. All [`Control`]s fill the queue, and wait when it is
/// full.
const REQUESTS_CAP: usize = 256;

/// The connection that a stream should use when there are several to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// The first in the order that both ends share: for short, urgent messages.
    First,
    /// The last: for bulk data.
    Last,
}

/// The error when another part of this process accepts the protocol already.
#[derive(Debug, thiserror::Error)]
#[error("streams of {0} are accepted elsewhere in this process")]
pub struct AlreadyAccepted(pub StreamProtocol);

/// One request to open a stream.
#[derive(Debug)]
struct OpenRequest {
    peer: PeerId,
    protocol: StreamProtocol,
    lane: Lane,
    process: Option<Process>,
    reply: Reply,
}

/// Opens and accepts streams; cheap to clone.
#[derive(Clone)]
pub struct Control {
    requests: mpsc::Sender<OpenRequest>,
    acceptors: Acceptors,
}

impl Control {
    /// Opens a stream of `protocol` to a connected peer; with a `process`, to that one of the processes with its key.
    ///
    /// # Errors
    /// When there is no connection, when it breaks meanwhile, or when the peer does not speak the protocol. With lazy
    /// negotiation the last one shows on the stream's first read instead.
    pub async fn open(
        &self,
        peer: PeerId,
        protocol: StreamProtocol,
        lane: Lane,
        process: Option<Process>,
    ) -> Result<Stream, OpenError> {
        let (reply, answer) = oneshot::channel();
        let request = OpenRequest { peer, protocol, lane, process, reply };
        self.requests.send(request).await.map_err(|_| OpenError::Closed)?;
        answer.await.map_err(|_| OpenError::Closed)?
    }

    /// Accepts inbound streams of `protocol`; up to `capacity` of them wait to be taken, more are dropped.
    ///
    /// # Errors
    /// When the protocol is accepted already.
    pub fn accept(&self, protocol: StreamProtocol, capacity: usize) -> Result<IncomingStreams, AlreadyAccepted> {
        let mut acceptors = self.acceptors.lock();
        if acceptors.get(protocol.as_ref()).is_some_and(|a| !a.queue.is_closed()) {
            return Err(AlreadyAccepted(protocol));
        }
        let (queue, incoming) = mpsc::channel(capacity.max(1));
        acceptors.insert(protocol.as_ref().to_owned(), Acceptor { protocol, queue });
        Ok(IncomingStreams(incoming))
    }
}

/// Inbound streams of one protocol.
pub struct IncomingStreams(mpsc::Receiver<Incoming>);

impl IncomingStreams {
    /// The next stream with its opener; `None` when the swarm is gone.
    pub async fn next(&mut self) -> Option<Incoming> {
        self.0.recv().await
    }
}

/// One live direct connection, ordered by its dialer (the smaller id first), then by age. When two peers have dialed
/// each other at once through their routers, the one that speaks first counts as the dialer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Connection {
    dialed_by_larger: bool,
    serial: u64,
    id: ConnectionId,
    /// Known once the process has named itself.
    process: Option<Process>,
}

/// An event of the behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A process with the peer's key has its first connection.
    ProcessUp { peer: PeerId, process: Process },
    /// A process with the peer's key has lost its last connection.
    ProcessDown { peer: PeerId, process: Process },
}

/// The behaviour.
pub struct Behaviour {
    local: PeerId,
    control: Control,
    requests: mpsc::Receiver<OpenRequest>,
    connections: BTreeMap<PeerId, Vec<Connection>>,
    /// The number of connections so far, for their age.
    serial: u64,
    /// Events that the swarm has not taken yet: at most one of each kind for each connection.
    pending: VecDeque<ToSwarm<Event, Open>>,
}

impl Behaviour {
    /// The behaviour for the swarm of `local`, whose process names itself to other peers if it has a name.
    pub fn new(local: PeerId, process: Option<Process>) -> Self {
        let (sender, requests) = mpsc::channel(REQUESTS_CAP);
        let acceptors = Acceptors::of(process);
        let control = Control { requests: sender, acceptors };
        Self { local, control, requests, connections: BTreeMap::new(), serial: 0, pending: VecDeque::new() }
    }

    /// A handle for tasks outside the swarm's.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Closes all connections to one of the processes with the peer's key.
    pub fn close(&mut self, peer: &PeerId, process: Process) {
        let connections = self.connections.get(peer).into_iter().flatten();
        for connection in connections.filter(|c| c.process == Some(process)) {
            let connection = CloseConnection::One(connection.id);
            self.pending.push_back(ToSwarm::CloseConnection { peer_id: *peer, connection });
        }
    }

    /// Accepts nothing on a relayed connection, which is only there to open a direct one.
    fn handler(&self, peer: PeerId, address: &Multiaddr) -> Handler {
        let relayed = address.iter().any(|part| part == Protocol::P2pCircuit);
        let acceptors = if relayed { Acceptors::default() } else { self.control.acceptors.clone() };
        Handler::new(peer, acceptors)
    }

    fn pick(&self, peer: &PeerId, lane: Lane, process: Option<Process>) -> Option<ConnectionId> {
        let mut fit = self.connections.get(peer)?.iter().filter(|c| process.is_none() || c.process == process);
        let connection = match lane {
            Lane::First => fit.next(),
            Lane::Last => fit.next_back(),
        };
        connection.map(|c| c.id)
    }

    fn has(&self, peer: &PeerId, process: Process) -> bool {
        self.connections.get(peer).into_iter().flatten().any(|c| c.process == Some(process))
    }

    fn on_process(&mut self, peer: PeerId, id: ConnectionId, process: Process) {
        let known = self.has(&peer, process);
        let connections = self.connections.get_mut(&peer).into_iter().flatten();
        let Some(connection) = connections.into_iter().find(|c| c.id == id) else { return };
        connection.process = Some(process);
        if !known {
            self.pending.push_back(ToSwarm::GenerateEvent(Event::ProcessUp { peer, process }));
        }
    }

    fn on_established(&mut self, event: &ConnectionEstablished<'_>) {
        if event.endpoint.is_relayed() {
            return;
        }
        let we_dialed = matches!(event.endpoint, ConnectedPoint::Dialer { role_override: Endpoint::Dialer, .. });
        let we_are_larger = self.local > event.peer_id;
        self.serial += 1;
        let connections = self.connections.entry(event.peer_id).or_default();
        let dialed_by_larger = we_dialed == we_are_larger;
        let (serial, id) = (self.serial, event.connection_id);
        connections.push(Connection { dialed_by_larger, serial, id, process: None });
        connections.sort_unstable();
    }

    fn on_closed(&mut self, event: &ConnectionClosed<'_>) {
        let (peer, id) = (event.peer_id, event.connection_id);
        let Some(connections) = self.connections.get_mut(&peer) else { return };
        let process = connections.iter().find(|c| c.id == id).and_then(|c| c.process);
        connections.retain(|c| c.id != id);
        if connections.is_empty() {
            self.connections.remove(&peer);
        }
        if let Some(process) = process.filter(|process| !self.has(&peer, *process)) {
            self.pending.push_back(ToSwarm::GenerateEvent(Event::ProcessDown { peer, process }));
        }
    }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = Event;

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        local: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.handler(peer, local))
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        address: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.handler(peer, address))
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        match event {
            FromSwarm::ConnectionEstablished(event) => self.on_established(&event),
            FromSwarm::ConnectionClosed(event) => self.on_closed(&event),
            _ => {}
        }
    }

    fn on_connection_handler_event(&mut self, peer: PeerId, id: ConnectionId, process: THandlerOutEvent<Self>) {
        self.on_process(peer, id, process);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        if let Some(next) = self.pending.pop_front() {
            return Poll::Ready(next);
        }
        // `control` holds a sender, so the channel never ends while the behaviour lives.
        while let Poll::Ready(Some(request)) = self.requests.poll_recv(cx) {
            let OpenRequest { peer, protocol, lane, process, reply } = request;
            match self.pick(&peer, lane, process) {
                Some(id) => {
                    let event = Open { protocol, reply };
                    return Poll::Ready(ToSwarm::NotifyHandler {
                        peer_id: peer,
                        handler: NotifyHandler::One(id),
                        event,
                    });
                }
                // The asker may have given up; then nobody needs the answer.
                None => drop(reply.send(Err(OpenError::NotConnected(peer)))),
            }
        }
        Poll::Pending
    }
}
