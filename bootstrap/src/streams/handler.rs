//! One connection's side: opens streams, and passes on those that the other end opens.

use super::acceptors::{Acceptors, Incoming};
use crate::process::Process;
use libp2p::core::upgrade::{InboundUpgrade, OutboundUpgrade, UpgradeInfo};
use libp2p::swarm::handler::{
    ConnectionEvent, DialUpgradeError, FullyNegotiatedInbound, FullyNegotiatedOutbound, ProtocolsChange,
};
use libp2p::swarm::{ConnectionHandler, ConnectionHandlerEvent, StreamUpgradeError, SubstreamProtocol};
use libp2p::{PeerId, Stream, StreamProtocol};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};
use tokio::sync::oneshot;

/// Streams being opened on one connection; more are refused as [`OpenError::Busy`].
const OPENING_CAP: usize = 64;
/// Streams of one connection that wait until its other end has named its process; more are dropped.
const EARLY_CAP: usize = 16;

/// The reason why a stream was not opened.
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
    #[error("while the stream was being opened: {}", starling_words::of(.0))]
    Io(#[from] std::io::Error),
}

pub(super) type Reply = oneshot::Sender<Result<Stream, OpenError>>;

/// The order to a handler to open a stream.
#[derive(Debug)]
pub struct Open {
    pub(super) protocol: StreamProtocol,
    pub(super) reply: Reply,
}

/// One connection's side.
pub struct Handler {
    peer: PeerId,
    acceptors: Acceptors,
    queued: VecDeque<Open>,
    /// Streams passed to the connection and not yet negotiated.
    opening: usize,
    /// The process that the other end named, and whether the behaviour has been told.
    process: Option<Process>,
    told: bool,
    /// Streams that came before the process was named.
    early: Vec<(Stream, StreamProtocol)>,
}

impl Handler {
    pub(super) fn new(peer: PeerId, acceptors: Acceptors) -> Self {
        Self { peer, acceptors, queued: VecDeque::new(), opening: 0, process: None, told: false, early: Vec::new() }
    }

    fn accept(&mut self, stream: Stream, protocol: StreamProtocol) {
        let peer = self.peer;
        match self.process {
            Some(process) => self.acceptors.deliver(Incoming { peer, process, stream }, &protocol),
            None if self.early.len() < EARLY_CAP => self.early.push((stream, protocol)),
            None => metrics::counter!("starling_refused_total", "reason" => "streams_full").increment(1),
        }
    }

    /// All protocols are listed at once, so the first list holds the process if any does.
    fn on_protocols<'a>(&mut self, listed: impl Iterator<Item = &'a StreamProtocol>) {
        if self.process.is_none() {
            self.process = Some(Process::named(listed));
            for (stream, protocol) in std::mem::take(&mut self.early) {
                self.accept(stream, protocol);
            }
        }
    }
}

impl ConnectionHandler for Handler {
    type FromBehaviour = Open;
    type ToBehaviour = Process;
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
        // The connection polls again after each event, so no waker is kept.
        if let Some(process) = self.process.filter(|_| !self.told) {
            self.told = true;
            return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(process));
        }
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
            // An asker that gave up needs no answer.
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
                self.accept(stream, name);
            }
            ConnectionEvent::RemoteProtocolsChange(ProtocolsChange::Added(listed)) => self.on_protocols(listed),
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound { protocol: (stream, _), info }) => {
                self.opening = self.opening.saturating_sub(1);
                // If nobody waits for the stream any more, it is dropped, which resets it.
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

/// Negotiates names and passes the raw stream through.
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
