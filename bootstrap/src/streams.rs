//! Raw substreams, opened to connected peers and accepted from them by protocol name.
//!
//! Does what `libp2p-stream` does, with three differences that a data plane needs: streams that arrive together
//! wait in a queue of known length instead of being dropped after the first; a stream that cannot be queued is
//! counted; and when two connections join the same two peers, the caller says which one it wants ([`Lane`]), by an
//! order that both ends agree on, so that bulk data and control messages need not share one.
//!
//! Opening never dials: a stream to a peer without a connection fails at once. Nothing here bounds what a
//! stream carries; its user does.

use libp2p::core::transport::PortUse;
use libp2p::core::upgrade::{InboundUpgrade, OutboundUpgrade, UpgradeInfo};
use libp2p::core::{ConnectedPoint, Endpoint};
use libp2p::swarm::derive_prelude::{ConnectionClosed, ConnectionEstablished};
use libp2p::swarm::handler::{ConnectionEvent, DialUpgradeError, FullyNegotiatedInbound, FullyNegotiatedOutbound};
use libp2p::swarm::{
    ConnectionDenied, ConnectionHandler, ConnectionHandlerEvent, ConnectionId, FromSwarm, NetworkBehaviour,
    NotifyHandler, StreamUpgradeError, SubstreamProtocol, THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId, Stream, StreamProtocol};
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tokio::sync::{mpsc, oneshot};

/// Streams asked for that the swarm has not looked at yet; filled by all [`Control`]s, which wait when it is full.
const REQUESTS_CAP: usize = 256;
/// Streams being opened on one connection; more are refused as [`OpenError::Busy`].
const OPENING_CAP: usize = 64;

/// Which connection a stream should use when there are several to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// The first in the order that both ends share: for short, urgent messages.
    First,
    /// The last: for bulk data.
    Last,
}

/// Why a stream was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("no connection to {0}")]
    NotConnected(PeerId),
    #[error("too many streams to {0} are being opened already")]
    Busy(PeerId),
    #[error("the peer does not speak {0}")]
    Unsupported(StreamProtocol),
    #[error("the connection went away while the stream was being opened")]
    Closed,
    #[error("the peer did not answer while the stream was being opened")]
    Timeout,
    #[error("while the stream was being opened: {0}")]
    Io(#[from] std::io::Error),
}

/// Somebody accepts this protocol already.
#[derive(Debug, thiserror::Error)]
#[error("streams of {0} are accepted elsewhere in this process")]
pub struct AlreadyAccepted(pub StreamProtocol);

/// One request to open a stream.
#[derive(Debug)]
struct OpenRequest {
    peer: PeerId,
    protocol: StreamProtocol,
    lane: Lane,
    reply: Reply,
}

type Reply = oneshot::Sender<Result<Stream, OpenError>>;

/// Who accepts what. Shared between the behaviour, its handlers and the controls.
#[derive(Clone, Default)]
struct Acceptors(Arc<Mutex<BTreeMap<String, Acceptor>>>);

struct Acceptor {
    protocol: StreamProtocol,
    queue: mpsc::Sender<(PeerId, Stream)>,
}

impl Acceptors {
    /// The map is consistent between any two statements, so a poisoned lock is still good.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Acceptor>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn protocols(&self) -> Vec<StreamProtocol> {
        self.lock().values().filter(|a| !a.queue.is_closed()).map(|a| a.protocol.clone()).collect()
    }

    /// Queues an inbound stream or drops it, which resets it for the peer.
    fn deliver(&self, peer: PeerId, stream: Stream, protocol: &StreamProtocol) {
        let queue = self.lock().get(protocol.as_ref()).map(|a| a.queue.clone());
        let reason = match queue {
            None => "stream_not_accepted",
            Some(queue) => match queue.try_send((peer, stream)) {
                Ok(()) => return,
                Err(mpsc::error::TrySendError::Full(_)) => "streams_full",
                Err(mpsc::error::TrySendError::Closed(_)) => "stream_not_accepted",
            },
        };
        tracing::debug!(%peer, %protocol, reason, "inbound stream dropped");
        metrics::counter!("starling_refused_total", "reason" => reason).increment(1);
    }
}

/// Opens and accepts streams; cheap to clone.
#[derive(Clone)]
pub struct Control {
    requests: mpsc::Sender<OpenRequest>,
    acceptors: Acceptors,
}

impl Control {
    /// Opens a stream of `protocol` to a connected peer.
    ///
    /// # Errors
    /// When there is no connection, when it breaks meanwhile, or when the peer does not speak the protocol. With
    /// lazy negotiation the last shows on the stream's first read instead.
    pub async fn open(&self, peer: PeerId, protocol: StreamProtocol, lane: Lane) -> Result<Stream, OpenError> {
        let (reply, answer) = oneshot::channel();
        let request = OpenRequest { peer, protocol, lane, reply };
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
pub struct IncomingStreams(mpsc::Receiver<(PeerId, Stream)>);

impl IncomingStreams {
    /// The next stream and who opened it; `None` when the swarm is gone.
    pub async fn next(&mut self) -> Option<(PeerId, Stream)> {
        self.0.recv().await
    }
}

/// One live connection: first by who dialed it (the smaller id first), then by age.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Connection {
    dialed_by_larger: bool,
    serial: u64,
    id: ConnectionId,
}

/// The behaviour. Emits no events.
pub struct Behaviour {
    local: PeerId,
    control: Control,
    requests: mpsc::Receiver<OpenRequest>,
    connections: BTreeMap<PeerId, Vec<Connection>>,
    /// Counts connections: their age.
    serial: u64,
}

impl Behaviour {
    /// For the swarm of `local`.
    pub fn new(local: PeerId) -> Self {
        let (sender, requests) = mpsc::channel(REQUESTS_CAP);
        let control = Control { requests: sender, acceptors: Acceptors::default() };
        Self { local, control, requests, connections: BTreeMap::new(), serial: 0 }
    }

    /// A handle for tasks outside the swarm's.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    fn handler(&self, peer: PeerId) -> Handler {
        Handler { peer, acceptors: self.control.acceptors.clone(), queued: VecDeque::new(), opening: 0 }
    }

    fn pick(&self, peer: &PeerId, lane: Lane) -> Option<ConnectionId> {
        let connections = self.connections.get(peer)?;
        let connection = match lane {
            Lane::First => connections.first(),
            Lane::Last => connections.last(),
        };
        connection.map(|c| c.id)
    }

    fn on_established(&mut self, event: &ConnectionEstablished<'_>) {
        let we_dialed = matches!(event.endpoint, ConnectedPoint::Dialer { .. });
        let we_are_larger = self.local > event.peer_id;
        self.serial += 1;
        let connections = self.connections.entry(event.peer_id).or_default();
        let dialed_by_larger = we_dialed == we_are_larger;
        connections.push(Connection { dialed_by_larger, serial: self.serial, id: event.connection_id });
        connections.sort_unstable();
    }

    fn on_closed(&mut self, event: &ConnectionClosed<'_>) {
        if let Some(connections) = self.connections.get_mut(&event.peer_id) {
            connections.retain(|c| c.id != event.connection_id);
            if connections.is_empty() {
                self.connections.remove(&event.peer_id);
            }
        }
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
        Ok(self.handler(peer))
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.handler(peer))
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        match event {
            FromSwarm::ConnectionEstablished(event) => self.on_established(&event),
            FromSwarm::ConnectionClosed(event) => self.on_closed(&event),
            _ => {}
        }
    }

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: THandlerOutEvent<Self>) {
        match event {}
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        // `control` holds a sender, so the channel never ends while the behaviour lives.
        while let Poll::Ready(Some(request)) = self.requests.poll_recv(cx) {
            let OpenRequest { peer, protocol, lane, reply } = request;
            match self.pick(&peer, lane) {
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

/// What a handler is told: open this.
#[derive(Debug)]
pub struct Open {
    protocol: StreamProtocol,
    reply: Reply,
}

/// One connection's side.
pub struct Handler {
    peer: PeerId,
    acceptors: Acceptors,
    queued: VecDeque<Open>,
    /// Handed to the connection, not yet negotiated.
    opening: usize,
}

impl ConnectionHandler for Handler {
    type FromBehaviour = Open;
    type ToBehaviour = Infallible;
    type InboundProtocol = Upgrade;
    type OutboundProtocol = Upgrade;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = Open;

    fn listen_protocol(&self) -> SubstreamProtocol<Self::InboundProtocol> {
        SubstreamProtocol::new(Upgrade(self.acceptors.protocols()), ())
    }

    fn poll(
        &mut self,
        _: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<Self::OutboundProtocol, Self::OutboundOpenInfo, Self::ToBehaviour>> {
        // The connection polls again after each behaviour event, so no waker is kept.
        match self.queued.pop_front() {
            Some(open) => {
                self.opening += 1;
                let protocol = SubstreamProtocol::new(Upgrade(vec![open.protocol.clone()]), open);
                Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest { protocol })
            }
            None => Poll::Pending,
        }
    }

    fn on_behaviour_event(&mut self, open: Open) {
        if self.queued.len() + self.opening >= OPENING_CAP {
            // Whoever gave up needs no answer.
            drop(open.reply.send(Err(OpenError::Busy(self.peer))));
            return;
        }
        self.queued.push_back(open);
    }

    fn on_connection_event(
        &mut self,
        event: ConnectionEvent<
            Self::InboundProtocol,
            Self::OutboundProtocol,
            Self::InboundOpenInfo,
            Self::OutboundOpenInfo,
        >,
    ) {
        match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound { protocol: (stream, name), .. }) => {
                self.acceptors.deliver(self.peer, stream, &name);
            }
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound { protocol: (stream, _), info }) => {
                self.opening = self.opening.saturating_sub(1);
                // A stream that nobody waits for any more is reset by being dropped.
                drop(info.reply.send(Ok(stream)));
            }
            ConnectionEvent::DialUpgradeError(DialUpgradeError { info, error }) => {
                self.opening = self.opening.saturating_sub(1);
                let error = match error {
                    StreamUpgradeError::Timeout => OpenError::Timeout,
                    StreamUpgradeError::NegotiationFailed => OpenError::Unsupported(info.protocol),
                    StreamUpgradeError::Io(error) => OpenError::Io(error),
                    StreamUpgradeError::Apply(never) => match never {},
                };
                drop(info.reply.send(Err(error)));
            }
            _ => {}
        }
    }
}

/// Negotiates names and hands the raw stream through.
pub struct Upgrade(Vec<StreamProtocol>);

impl UpgradeInfo for Upgrade {
    type Info = StreamProtocol;
    type InfoIter = std::vec::IntoIter<StreamProtocol>;

    fn protocol_info(&self) -> Self::InfoIter {
        self.0.clone().into_iter()
    }
}

impl InboundUpgrade<Stream> for Upgrade {
    type Output = (Stream, StreamProtocol);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Self::Error>>;

    fn upgrade_inbound(self, stream: Stream, name: Self::Info) -> Self::Future {
        ready(Ok((stream, name)))
    }
}

impl OutboundUpgrade<Stream> for Upgrade {
    type Output = (Stream, StreamProtocol);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Self::Error>>;

    fn upgrade_outbound(self, stream: Stream, name: Self::Info) -> Self::Future {
        ready(Ok((stream, name)))
    }
}
