//! The control sessions that work right now, the guests that wait, and the task that makes and runs a session.

use super::event::NetEvent;
use super::options::Verify;
use super::peers::Task;
use super::queue::{Teller, Voice};
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

/// A line to one peer.
struct Line {
    process: Process,
    queue: mpsc::Sender<Vec<u8>>,
    end: EndSwitch,
}

/// All lines; cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Sessions {
    open: Arc<Mutex<BTreeMap<NodeId, Line>>>,
    /// The node shuts down: nobody waits for it to hear of ends.
    closing: CancellationToken,
}

impl Sessions {
    fn lines(&self) -> MutexGuard<'_, BTreeMap<NodeId, Line>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a message; whether it was. A peer whose queue is full is cut off: it has not read for a long time.
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

    /// Ends the session with a peer, if there is one, when all that is queued is written.
    pub fn refuse(&self, peer: &NodeId, reason: DownReason) {
        // Without its line the queue takes no more, and ends.
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

    /// The process that messages are exchanged with, of those that have the peer's key.
    pub fn process(&self, peer: &NodeId) -> Option<Process> {
        self.lines().get(peer).map(|line| line.process)
    }

    /// Takes all lines down. What is queued on them is still written.
    pub fn close_all(&self) {
        self.closing.cancel();
        self.lines().clear();
    }
}

/// What turns a guest away: a message for it, if there is one.
pub(super) type Refusal = Option<Vec<u8>>;

/// Guests that wait, at most one of a key; cheap to clone.
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
        // One that has gone meanwhile needs no answer.
        drop(guest.map(|guest| guest.try_send(proof)));
    }
}

/// A control stream whose bytes are counted.
pub(super) type ControlStream = Metered<tokio_util::compat::Compat<Stream>>;

/// How a session comes about.
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
    /// The connections of this process of the peer's are to be closed.
    pub shut: Option<Process>,
    /// What the peer has done, if that is why.
    pub fault: Option<Fault>,
}

/// What a peer is left alone for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It sent what does not pass the node's check.
    Unfit,
    /// It sent too much for too long: so may the next key from there.
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

/// What session tasks share.
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
        // When nobody listens any more, the network is gone.
        drop(self.ended.send(Ended { peer, serial, was_up, shut: None, fault }).await);
    }

    /// The control stream, opened and answered; none if it does not come about.
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

    /// Why the session ended; none if it did not come up at all.
    async fn carry(&self, task: Task, io: ControlStream) -> Option<DownReason> {
        let Task { peer, process, end, .. } = task;
        if let Some(wait) = self.standing.charge(&peer, budget::SESSION, Instant::now()) {
            // Sessions that come and go cost their address, or who floods would begin anew each time.
            tokio::select! {
                _ = end.ended() => return None,
                () = tokio::time::sleep(wait) => {}
            }
        }
        let (queue, queued) = mpsc::channel(QUEUE_CAP);
        let mut voice = self.teller.voice(peer);
        // The line is there before anybody hears of it, so that the first answer finds it.
        self.sessions.lines().insert(peer, Line { process, queue, end: end.clone() });
        if voice.tell(NetEvent::PeerUp { peer }).await.is_err() {
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
        let reason = session::carry(io, links, &mut voice).await;
        self.sessions.lines().remove(&peer);
        metrics::counter!("starling_peer_down_total", "reason" => reason.label()).increment(1);
        tracing::debug!(peer = %peer.short(), %reason, "control session ended");
        tokio::select! {
            () = self.tell_end(&mut voice, peer, &reason) => {}
            () = self.sessions.closing.cancelled() => {}
        }
        Some(reason)
    }

    async fn tell_end(&self, voice: &mut Voice, peer: NodeId, reason: &DownReason) {
        match reason {
            DownReason::Unfit(unfit) => {
                refused(unfit.label);
                // When nobody listens any more, nobody needs to know.
                drop(voice.tell(NetEvent::Refused { peer, reason: unfit.why.clone() }).await);
            }
            DownReason::Flood => refused("control_flood"),
            _ => {}
        }
        drop(voice.end(NetEvent::PeerDown { peer, reason: reason.clone() }).await);
    }
}
