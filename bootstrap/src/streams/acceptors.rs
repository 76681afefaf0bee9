//! The protocols whose streams this process accepts, and the queues that the streams wait in.

use crate::process::Process;
use libp2p::{PeerId, Stream, StreamProtocol};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// A stream that a peer opened.
pub struct Incoming {
    pub peer: PeerId,
    /// The one of the processes with its key.
    pub process: Process,
    pub stream: Stream,
}

/// The accepted protocols. Shared between the behaviour, its handlers and the controls.
#[derive(Clone, Default)]
pub(super) struct Acceptors {
    accepted: Arc<Mutex<BTreeMap<String, Acceptor>>>,
    /// The name of this process, listed among the protocols.
    pub me: Option<Process>,
}

pub(super) struct Acceptor {
    pub protocol: StreamProtocol,
    pub queue: mpsc::Sender<Incoming>,
}

impl Acceptors {
    /// The map is consistent between any two statements, so the content of a poisoned lock is still good.
    pub fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Acceptor>> {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The acceptors of this process, which accepts nothing yet.
    pub fn of(process: Option<Process>) -> Self {
        Self { me: process, ..Self::default() }
    }

    pub fn protocols(&self) -> Vec<StreamProtocol> {
        let accepted = self.lock();
        let open = accepted.values().filter(|a| !a.queue.is_closed()).map(|a| a.protocol.clone());
        open.chain(self.me.map(Process::protocol)).collect()
    }

    /// Queues an inbound stream or drops it, which resets it for the peer.
    pub fn deliver(&self, incoming: Incoming, protocol: &StreamProtocol) {
        let peer = incoming.peer;
        let queue = self.lock().get(protocol.as_ref()).map(|a| a.queue.clone());
        let reason = match queue {
            None => "stream_not_accepted",
            Some(queue) => match queue.try_send(incoming) {
                Ok(()) => return,
                Err(mpsc::error::TrySendError::Full(_)) => "streams_full",
                Err(mpsc::error::TrySendError::Closed(_)) => "stream_not_accepted",
            },
        };
        tracing::debug!(%peer, %protocol, reason, "inbound stream dropped");
        metrics::counter!("starling_refused_total", "reason" => reason).increment(1);
    }
}
