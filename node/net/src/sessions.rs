//! The control sessions that are up, the guests that wait, and the task that makes and runs a session.

use super::event::NetEvent;
use super::options::Verify;
use super::peers::Task;
use super::queue::{PeerSender, Teller};
use super::reason::{DownReason, QUEUE_CAP, refused};
use super::session::{self, EndSwitch, SessionLinks};
use super::standing::Standing;
use super::traffic::{Class, Metered, Traffic};
use super::{CONTROL_PROTOCOL, budget};
use libp2p::Stream;
use starling_bootstrap::identity;
use starling_bootstrap::process::Process;
use starling_bootstrap::streams::{Control, Lane};
use starling_protocol::NodeId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::compat::FuturesAsyncReadCompatExt;
use tokio_util::sync::CancellationToken;

/// The line to one peer.
struct Line {
    process: Process,
    queue: mpsc::Sender<Vec<u8>>,
    end: EndSwitch,
}

/// All lines; cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Sessions {
    open: Arc<Mutex<BTreeMap<NodeId, Line>>>,
    /// The node shuts down: sessions do not wait for it to hear of their ends.
    closing: CancellationToken,
}

impl Sessions {
    fn lines(&self) -> MutexGuard<'_, BTreeMap<NodeId, Line>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a message, and returns whether it could. A peer whose queue is full is cut off: it has not read for a
    /// long time.
    pub fn send(&self, peer: &NodeId, bytes: Vec<u8>) -> bool {
        let lines = self.lines();
        let Some(line) = lines.get(peer) else { return false };
        match line.queue.try_send(bytes) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Full(_)) => {
                line.end.end(DownReason::QueueFull);
                false
            }
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        }
    }

    /// Ends the session with a peer, if there is one, when all queued messages are written.
    pub fn refuse(&self, peer: &NodeId, reason: DownReason) {
        // Without its line the queue takes no more messages, and ends.
        if let Some(line) = self.lines().remove(peer) {
            line.end.end(reason);
        }
    }

    /// Peers with whom messages can be exchanged, by ascending id.
    pub fn up(&self) -> Vec<NodeId> {
        self.lines().keys().copied().collect()
    }

    pub fn is_up(&self, peer: &NodeId) -> bool {
        self.lines().contains_key(peer)
    }

    /// The process with the peer's key that has the session.
    pub fn process(&self, peer: &NodeId) -> Option<Process> {
        self.lines().get(peer).map(|line| line.process)
    }

    /// Takes all lines down. Queued messages are still written.
    pub fn close_all(&self) {
        self.closing.cancel();
        self.lines().clear();
    }
}

/// The refusal of a guest: a message for it, if there is one.
pub(super) type Refusal = Option<Vec<u8>>;

/// Guests that wait, at most one for each key; cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Guests(Arc<Mutex<BTreeMap<NodeId, mpsc::Sender<Refusal>>>>);

impl Guests {
    pub fn enter(&self, peer: NodeId) -> mpsc::Receiver<Refusal> {
        let (sender, receiver) = mpsc::channel(1);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(peer, sender);
        receiver
    }

    pub fn leave(&self, peer: &NodeId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(peer);
    }

    /// Hands the guest with this peer's key a message, if there is one, and closes its connections.
    pub fn turn_away(&self, peer: &NodeId, proof: Option<Vec<u8>>) {
        let guest = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(peer);
        // A guest that has gone meanwhile needs no answer.
        drop(guest.map(|guest| guest.try_send(proof)));
    }
}

/// A control stream whose bytes are counted.
pub(super) type ControlStream = Metered<tokio_util::compat::Compat<Stream>>;

/// The side that opens the stream of a session.
pub(super) enum Role {
    /// This node opens the stream.
    Open,
    /// The peer has opened it.
    Answer(Stream),
}

/// A session's task has ended.
pub(super) struct Ended {
    pub peer: NodeId,
    pub serial: u64,
    /// Whether messages could be exchanged.
    pub was_up: bool,
    /// The process of the peer's whose connections are to be closed.
    pub shut: Option<Process>,
    /// The peer's fault, if that ended the session.
    pub fault: Option<Fault>,
}

/// A fault for which a peer is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Its message does not pass the node's check.
    Unfit,
    /// It sent too much for too long. The next key from its address may do the same.
    Flood,
}

impl Fault {
    fn of(reason: &DownReason) -> Option<Self> {
        match reason {
            DownReason::Unfit(_) => Some(Self::Unfit),
            DownReason::Flood => Some(Self::Flood),
            _ => None,
        }
    }
}

/// The parts that session tasks share.
#[derive(Clone)]
pub(super) struct SessionOffice {
    pub streams: Control,
    pub sessions: Sessions,
    pub guests: Guests,
    pub traffic: Traffic,
    pub teller: Teller,
    pub standing: Standing,
    pub verify: Option<Verify>,
    pub ended: mpsc::Sender<Ended>,
}

impl SessionOffice {
    /// Makes a session, runs it, and reports its end.
    pub async fn run(self, task: Task, role: Role) {
        let (peer, serial) = (task.peer, task.serial);
        let reason = match self.stream(&task, role).await {
            Some(io) => self.carry(task, io).await,
            None => None,
        };
        let (was_up, fault) = (reason.is_some(), reason.as_ref().and_then(Fault::of));
        // When nobody receives, the network is gone.
        drop(self.ended.send(Ended { peer, serial, was_up, shut: None, fault }).await);
    }

    /// Opens or answers the control stream; none if that fails.
    pub async fn stream(&self, task: &Task, role: Role) -> Option<ControlStream> {
        let (peer, process) = (task.peer, task.process);
        let opened = self.open_or_answer(peer, process, role).await.inspect_err(|why| {
            tracing::debug!(peer = %peer.short(), why, "no control stream");
            metrics::counter!("starling_control_open_failed_total").increment(1);
        });
        opened.ok()
    }

    async fn open_or_answer(&self, peer: NodeId, process: Process, role: Role) -> Result<ControlStream, String> {
        let meter = self.traffic.meter(peer, Class::Control);
        match role {
            Role::Open => {
                let id = identity::peer_id(&peer);
                let opened = self.streams.open(id, CONTROL_PROTOCOL, Lane::First, Some(process)).await;
                let mut io = Metered::new(opened.map_err(|e| e.to_string())?.compat(), meter);
                session::offer(&mut io).await.map_err(|e| e.to_string())?;
                Ok(io)
            }
            Role::Answer(stream) => {
                let mut io = Metered::new(stream.compat(), meter);
                session::answer(&mut io).await.map_err(|e| e.to_string())?;
                Ok(io)
            }
        }
    }

    /// Runs the session and returns why it ended; none if it did not come up at all.
    async fn carry(&self, task: Task, io: ControlStream) -> Option<DownReason> {
        let Task { peer, process, end, .. } = task;
        if let Some(wait) = self.standing.charge(&peer, budget::SESSION, Instant::now()) {
            // A new session costs its address; otherwise a peer that floods would begin afresh each time.
            tokio::select! {
                _ = end.ended() => return None,
                () = tokio::time::sleep(wait) => {}
            }
        }
        let (queue, queued) = mpsc::channel(QUEUE_CAP);
        let mut sender = self.teller.sender(peer);
        // The line is there before the node hears of it, so that the node's first answer finds it.
        self.sessions.lines().insert(peer, Line { process, queue, end: end.clone() });
        if sender.tell(NetEvent::PeerUp { peer }).await.is_err() {
            self.sessions.lines().remove(&peer);
            return None;
        }
        let links = SessionLinks {
            peer,
            queue: queued,
            standing: self.standing.clone(),
            verify: self.verify.clone(),
            closing: self.sessions.closing.clone(),
            end,
            deadlines: session::DEADLINES,
        };
        let reason = session::carry(io, links, &mut sender).await;
        self.sessions.lines().remove(&peer);
        metrics::counter!("starling_peer_down_total", "reason" => reason.label()).increment(1);
        tracing::debug!(peer = %peer.short(), %reason, "control session ended");
        tokio::select! {
            () = self.tell_end(&mut sender, peer, &reason) => {}
            () = self.sessions.closing.cancelled() => {}
        }
        Some(reason)
    }

    async fn tell_end(&self, sender: &mut PeerSender, peer: NodeId, reason: &DownReason) {
        match reason {
            DownReason::Unfit(unfit) => {
                refused(unfit.label);
                // When nobody receives, nobody needs to know.
                drop(sender.tell(NetEvent::Refused { peer, reason: unfit.why.clone() }).await);
            }
            DownReason::Flood => refused("control_flood"),
            _ => {}
        }
        drop(sender.end(NetEvent::PeerDown { peer, reason: reason.clone() }).await);
    }
}
