//! The connected peers, and the state of the one control session with each: a table without sockets or tasks.
//!
//! The node with the smaller id opens the control stream, so that there is one and not two. When it ends while the
//! connection stays, the opener tries again after a growing pause. A new stream from the opener replaces the old one,
//! since the other side may not have noticed its end yet.
//!
//! Two processes may have one key. The session is with one of them. The other one is a *guest*: it is heard on a stream
//! of its own connection, and disturbs nobody, until the node has decided between the two ([`super::guests`]).

use super::event::ROUND_TRIP_EVERY;
use super::reason::DownReason;
use super::session::EndSwitch;
use libp2p::Multiaddr;
use starling_bootstrap::process::Process;
use starling_protocol::NodeId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// First and longest pause before a control stream is opened again.
pub(super) const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Pause before a guest whose stream has ended is heard again.
pub(super) const GUEST_PAUSE: Duration = Duration::from_secs(1);

/// A connected peer, as shown to the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    pub node: NodeId,
    /// The address of the newest connection.
    pub address: Multiaddr,
    /// The peer's name for its program; empty until it has said.
    pub agent: String,
    /// Whether control messages can be exchanged.
    pub up: bool,
    pub round_trip: Option<Duration>,
}

/// Names the task of one control stream.
#[derive(Clone)]
pub(super) struct Task {
    pub peer: NodeId,
    /// The process that the stream leads to, of those with the peer's key.
    pub process: Process,
    pub serial: u64,
    pub end: EndSwitch,
}

/// The next step with a peer.
pub(super) enum Step<S> {
    /// Open a control stream to it.
    Open(Task),
    /// Answer the control stream that it has opened.
    Answer(Task, S),
    /// Hear a guest: on the stream that it has opened, or on a new one.
    Hear(Task, Option<S>),
}

struct Peer<S> {
    address: Multiaddr,
    agent: String,
    round_trip: Option<Duration>,
    /// When the node was told of it last.
    round_trip_told: Option<Instant>,
    connected: bool,
    /// It speaks the control protocol: a node, not a well-known peer.
    is_node: bool,
    /// The processes that have its key and a connection, and the one with the last or the next session.
    processes: BTreeSet<Process>,
    chosen: Option<Process>,
    session: Option<Task>,
    /// A newer stream of the same process that waits for the session's end.
    waiting: Option<(S, Process)>,
    guest: Option<Task>,
    /// The time at which a guest is heard again.
    guest_at: Option<Instant>,
    retry_at: Option<Instant>,
    failures: u32,
}

/// The table. `S` is a stream.
pub(super) struct PeerTable<S> {
    me: NodeId,
    peers: BTreeMap<NodeId, Peer<S>>,
    serial: u64,
}

impl<S> PeerTable<S> {
    pub fn new(me: NodeId) -> Self {
        Self { me, peers: BTreeMap::new(), serial: 0 }
    }

    pub fn connected(&mut self, node: NodeId, address: Multiaddr) {
        let peer = self.peers.entry(node).or_insert_with(|| Peer {
            address: address.clone(),
            agent: String::new(),
            round_trip: None,
            round_trip_told: None,
            connected: true,
            is_node: false,
            processes: BTreeSet::new(),
            chosen: None,
            session: None,
            waiting: None,
            guest: None,
            guest_at: None,
            retry_at: None,
            failures: 0,
        });
        (peer.address, peer.connected) = (address, true);
    }

    /// The peer's last connection is gone.
    pub fn disconnected(&mut self, node: &NodeId, why: String) {
        let Some(peer) = self.peers.get_mut(node) else { return };
        (peer.connected, peer.is_node, peer.waiting, peer.retry_at) = (false, false, None, None);
        peer.processes.clear();
        for task in [&peer.session, &peer.guest].into_iter().flatten() {
            task.end.end(DownReason::Lost(why.clone()));
        }
        if peer.is_idle() {
            self.peers.remove(node);
        }
    }

    /// A process with the peer's key has a connection.
    pub fn process_up(&mut self, node: &NodeId, process: Process) -> Option<Step<S>> {
        let peer = self.peers.get_mut(node)?;
        peer.processes.insert(process);
        self.open(node)
    }

    /// A process has no connection any more; its streams may notice that late.
    pub fn process_down(&mut self, node: &NodeId, process: Process) {
        let Some(peer) = self.peers.get_mut(node) else { return };
        peer.processes.remove(&process);
        for task in [&peer.session, &peer.guest].into_iter().flatten().filter(|task| task.process == process) {
            task.end.end(DownReason::Lost("its process has no connection any more".into()));
        }
    }

    /// Gives the guest the session's place. Returns the process whose connections are to be closed.
    pub fn admit(&mut self, node: &NodeId) -> Option<Process> {
        let peer = self.peers.get_mut(node)?;
        let (session, guest) = (peer.session.as_ref()?, peer.guest.as_ref()?);
        session.end.end(DownReason::Displaced);
        guest.end.end(DownReason::Displaced);
        let loser = session.process;
        (peer.chosen, peer.waiting) = (Some(guest.process), None);
        peer.processes.remove(&loser);
        Some(loser)
    }

    /// The peer said what it is. The second value: it is a node, and had not said so before.
    pub fn identified(&mut self, node: &NodeId, agent: String, is_node: bool) -> (Option<Step<S>>, bool) {
        let Some(peer) = self.peers.get_mut(node) else { return (None, false) };
        let is_new = is_node && !peer.is_node;
        (peer.agent, peer.is_node) = (agent, is_node);
        (self.open(node), is_new)
    }

    /// Notes a round-trip time. Returns whether to tell the node: only for nodes, and not every time.
    pub fn round_trip(&mut self, node: &NodeId, time: Duration, now: Instant) -> bool {
        let Some(peer) = self.peers.get_mut(node) else { return false };
        peer.round_trip = Some(time);
        let due = peer.is_node && peer.round_trip_told.is_none_or(|at| now.duration_since(at) >= ROUND_TRIP_EVERY);
        if due {
            peer.round_trip_told = Some(now);
        }
        due
    }

    /// The peer opened a control stream.
    ///
    /// # Errors
    /// The reason why it is dropped: the label of `starling_refused_total`.
    pub fn incoming(&mut self, node: &NodeId, process: Process, stream: S) -> Result<Option<Step<S>>, &'static str> {
        if self.me < *node {
            return Err("control_not_its_turn");
        }
        let peer = self.peers.get_mut(node).ok_or("control_not_connected")?;
        match &peer.session {
            None => Ok(self.answer(node, process, stream)),
            Some(session) if session.process == process => {
                session.end.end(DownReason::Replaced);
                peer.waiting = Some((stream, process));
                Ok(None)
            }
            Some(_) if peer.guest.is_some() => Err("control_of_guest"),
            Some(_) => Ok(self.hear(node, process, Some(stream))),
        }
    }

    /// A session's task has ended.
    pub fn ended(&mut self, node: &NodeId, serial: u64, was_up: bool, now: Instant) -> Option<Step<S>> {
        let peer = self.peers.get_mut(node)?;
        let is = |task: &Option<Task>| task.as_ref().is_some_and(|task| task.serial == serial);
        let was_guest = is(&peer.guest);
        if was_guest {
            (peer.guest, peer.guest_at) = (None, Some(now + GUEST_PAUSE));
        } else if is(&peer.session) {
            peer.session = None;
        } else {
            return None;
        }
        if !peer.connected && peer.is_idle() {
            self.peers.remove(node);
            return None;
        }
        if was_guest || !peer.connected {
            return None;
        }
        if let Some(guest) = &peer.guest {
            // The session is over: the guest may have the next one.
            guest.end.end(DownReason::Displaced);
        }
        peer.failures = if was_up { 0 } else { peer.failures.saturating_add(1) };
        if let Some((stream, process)) = peer.waiting.take() {
            return self.answer(node, process, stream);
        }
        let pause = PAUSE_MIN.saturating_mul(1 << peer.failures.min(8)).min(PAUSE_MAX);
        peer.retry_at = Some(now + pause);
        None
    }

    /// Streams that are due to be opened again, for sessions or guests.
    pub fn due(&mut self, now: Instant) -> Vec<Step<S>> {
        let of = |at: fn(&Peer<S>) -> Option<Instant>| -> Vec<NodeId> {
            let due = self.peers.iter().filter(|(_, peer)| at(peer).is_some_and(|at| at <= now));
            due.map(|(node, _)| *node).collect()
        };
        let (retries, guests) = (of(|peer| peer.retry_at), of(|peer| peer.guest_at));
        let mut steps = Vec::new();
        for node in retries {
            if let Some(peer) = self.peers.get_mut(&node) {
                peer.retry_at = None;
                steps.extend(self.open(&node));
            }
        }
        for node in guests {
            if let Some(peer) = self.peers.get_mut(&node) {
                peer.guest_at = None;
                steps.extend(self.open(&node));
            }
        }
        steps
    }

    /// The time to call [`PeerTable::due`] next.
    pub fn wake_at(&self) -> Option<Instant> {
        self.peers.values().flat_map(|peer| [peer.retry_at, peer.guest_at]).flatten().min()
    }

    /// Whether the task of a session with the peer has not ended.
    pub fn has_session(&self, node: &NodeId) -> bool {
        self.peers.get(node).is_some_and(|peer| peer.session.is_some())
    }

    /// Sessions whose tasks have not ended.
    pub fn sessions(&self) -> usize {
        self.peers.values().filter(|peer| peer.session.is_some()).count()
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    /// All connected peers that speak as nodes.
    pub fn nodes(&self) -> Vec<NodeId> {
        self.peers.iter().filter(|(_, peer)| peer.connected && peer.is_node).map(|(node, _)| *node).collect()
    }

    /// All peers that are connected.
    pub fn status(&self, is_up: impl Fn(&NodeId) -> bool) -> Vec<PeerStatus> {
        let connected = self.peers.iter().filter(|(_, peer)| peer.connected);
        let status = |(node, peer): (&NodeId, &Peer<S>)| PeerStatus {
            node: *node,
            address: peer.address.clone(),
            agent: peer.agent.clone(),
            up: is_up(node),
            round_trip: peer.round_trip,
        };
        connected.map(status).collect()
    }

    /// Opens the missing stream, if this node is its opener: the session's, or the one on which a guest is heard.
    fn open(&mut self, node: &NodeId) -> Option<Step<S>> {
        let peer = self.peers.get_mut(node).filter(|peer| self.me < *node && peer.connected && peer.is_node)?;
        let Some(session) = &peer.session else {
            let chosen = peer.chosen.filter(|process| peer.processes.contains(process));
            let process = chosen.or(peer.processes.first().copied()).filter(|_| peer.retry_at.is_none())?;
            let task = self.task(node, process);
            let peer = self.peers.get_mut(node)?;
            (peer.chosen, peer.session) = (Some(process), Some(task.clone()));
            // A process that was there before the session began was no guest yet.
            peer.guest_at = Some(Instant::now() + GUEST_PAUSE).filter(|_| peer.processes.len() > 1);
            return Some(Step::Open(task));
        };
        let other = peer.processes.iter().find(|process| **process != session.process).copied();
        let process = other.filter(|_| peer.guest.is_none() && peer.guest_at.is_none())?;
        self.hear(node, process, None)
    }

    fn answer(&mut self, node: &NodeId, process: Process, stream: S) -> Option<Step<S>> {
        let task = self.task(node, process);
        let peer = self.peers.get_mut(node)?;
        (peer.chosen, peer.session) = (Some(process), Some(task.clone()));
        Some(Step::Answer(task, stream))
    }

    fn hear(&mut self, node: &NodeId, process: Process, stream: Option<S>) -> Option<Step<S>> {
        let task = self.task(node, process);
        self.peers.get_mut(node)?.guest = Some(task.clone());
        Some(Step::Hear(task, stream))
    }

    fn task(&mut self, node: &NodeId, process: Process) -> Task {
        self.serial += 1;
        Task { peer: *node, process, serial: self.serial, end: EndSwitch::default() }
    }
}

impl<S> Peer<S> {
    /// Whether the peer has neither session nor guest.
    fn is_idle(&self) -> bool {
        self.session.is_none() && self.guest.is_none()
    }
}
