//! Who is connected, and the state of the one control session with each: a table without sockets or tasks.
//!
//! Of two nodes the one with the smaller id opens the control stream, so that there is one and not two. When it ends
//! while the connection stays, the opener tries again after a growing pause. A new stream from the opener replaces
//! the old one, whose end the other side may not have noticed yet.

use super::event::ROUND_TRIP_EVERY;
use super::session::{DownReason, EndSwitch};
use libp2p::Multiaddr;
use starling_protocol::NodeId;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// First and longest pause before a control stream is opened again.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// A connected peer, as others may want to see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    pub node: NodeId,
    /// Where the newest connection leads.
    pub address: Multiaddr,
    /// What its program calls itself; empty until it has said.
    pub agent: String,
    /// Whether control messages can be exchanged.
    pub up: bool,
    pub round_trip: Option<Duration>,
}

/// What is to be done about a peer.
pub(super) enum Step<S> {
    /// Open a control stream to it.
    Open { peer: NodeId, serial: u64, end: EndSwitch },
    /// Answer the one that it has opened.
    Answer { peer: NodeId, serial: u64, end: EndSwitch, stream: S },
}

struct Peer<S> {
    address: Multiaddr,
    agent: String,
    round_trip: Option<Duration>,
    /// When it was told last.
    round_trip_told: Option<Instant>,
    connected: bool,
    /// It speaks the control protocol: a node, not a well-known peer.
    is_node: bool,
    session: Option<(u64, EndSwitch)>,
    /// A newer stream that waits for the session's end.
    waiting: Option<S>,
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
            session: None,
            waiting: None,
            retry_at: None,
            failures: 0,
        });
        (peer.address, peer.connected) = (address, true);
    }

    /// The last connection is gone.
    pub fn disconnected(&mut self, node: &NodeId, why: String) {
        let Some(peer) = self.peers.get_mut(node) else { return };
        (peer.connected, peer.is_node, peer.waiting, peer.retry_at) = (false, false, None, None);
        match &peer.session {
            Some((_, end)) => end.end(DownReason::Lost(why)),
            None => drop(self.peers.remove(node)),
        }
    }

    /// The peer said what it is. Whether it is a node that had not said so before.
    pub fn identified(&mut self, node: &NodeId, agent: String, is_node: bool) -> (Option<Step<S>>, bool) {
        let Some(peer) = self.peers.get_mut(node) else { return (None, false) };
        let is_new = is_node && !peer.is_node;
        (peer.agent, peer.is_node) = (agent, is_node);
        (self.open(node), is_new)
    }

    /// A measured round-trip time; whether it is to be told: not each one, and only those of nodes.
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
    /// Why it is dropped: the label of `starling_refused_total`.
    pub fn incoming(&mut self, node: &NodeId, stream: S) -> Result<Option<Step<S>>, &'static str> {
        if self.me < *node {
            return Err("control_not_its_turn");
        }
        let peer = self.peers.get_mut(node).ok_or("control_not_connected")?;
        if let Some((_, end)) = &peer.session {
            end.end(DownReason::Replaced);
            peer.waiting = Some(stream);
            return Ok(None);
        }
        Ok(self.answer(node, stream))
    }

    /// A session's task has ended.
    pub fn ended(&mut self, node: &NodeId, serial: u64, was_up: bool, now: Instant) -> Option<Step<S>> {
        let peer = self.peers.get_mut(node)?;
        if peer.session.as_ref().is_none_or(|(current, _)| *current != serial) {
            return None;
        }
        peer.session = None;
        if !peer.connected {
            self.peers.remove(node);
            return None;
        }
        peer.failures = if was_up { 0 } else { peer.failures.saturating_add(1) };
        if let Some(stream) = peer.waiting.take() {
            return self.answer(node, stream);
        }
        let pause = PAUSE_MIN.saturating_mul(1 << peer.failures.min(8)).min(PAUSE_MAX);
        peer.retry_at = Some(now + pause);
        None
    }

    /// Streams that are due to be opened again.
    pub fn due(&mut self, now: Instant) -> Vec<Step<S>> {
        let is_due = |peer: &Peer<S>| peer.retry_at.is_some_and(|at| at <= now);
        let due: Vec<NodeId> = self.peers.iter().filter(|(_, peer)| is_due(peer)).map(|(node, _)| *node).collect();
        due.iter()
            .filter_map(|node| {
                self.peers.get_mut(node)?.retry_at = None;
                self.open(node)
            })
            .collect()
    }

    /// When to call [`PeerTable::due`] next.
    pub fn wake_at(&self) -> Option<Instant> {
        self.peers.values().filter_map(|peer| peer.retry_at).min()
    }

    /// Sessions whose tasks have not ended.
    pub fn sessions(&self) -> usize {
        self.peers.values().filter(|peer| peer.session.is_some()).count()
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

    fn open(&mut self, node: &NodeId) -> Option<Step<S>> {
        let peer = self.peers.get_mut(node)?;
        let may =
            self.me < *node && peer.connected && peer.is_node && peer.session.is_none() && peer.retry_at.is_none();
        if !may {
            return None;
        }
        self.serial += 1;
        let (serial, end) = (self.serial, EndSwitch::default());
        peer.session = Some((serial, end.clone()));
        Some(Step::Open { peer: *node, serial, end })
    }

    fn answer(&mut self, node: &NodeId, stream: S) -> Option<Step<S>> {
        let peer = self.peers.get_mut(node)?;
        self.serial += 1;
        let (serial, end) = (self.serial, EndSwitch::default());
        peer.session = Some((serial, end.clone()));
        Some(Step::Answer { peer: *node, serial, end, stream })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: NodeId = NodeId([1; 32]);
    const LARGE: NodeId = NodeId([9; 32]);

    fn table(me: NodeId, other: NodeId) -> PeerTable<&'static str> {
        let mut table = PeerTable::new(me);
        table.connected(other, "/ip4/127.0.0.1/tcp/1".parse().unwrap());
        table
    }

    fn serial<S>(step: Option<Step<S>>) -> u64 {
        match step {
            Some(Step::Open { serial, .. } | Step::Answer { serial, .. }) => serial,
            None => panic!("nothing to do"),
        }
    }

    #[test]
    fn the_smaller_id_opens_once_the_other_is_known_to_be_a_node() {
        let mut small = table(SMALL, LARGE);
        assert!(small.identified(&LARGE, "well-known".into(), false).0.is_none());
        let (step, is_new) = small.identified(&LARGE, "node".into(), true);
        assert!(matches!(step, Some(Step::Open { peer: LARGE, .. })) && is_new);
        let (again, is_new) = small.identified(&LARGE, "node".into(), true);
        assert!(again.is_none() && !is_new, "one session is enough");
        assert_eq!(small.incoming(&LARGE, "stream").err(), Some("control_not_its_turn"));
        let mut large = table(LARGE, SMALL);
        assert!(large.identified(&SMALL, "node".into(), true).0.is_none());
        assert!(matches!(large.incoming(&SMALL, "stream"), Ok(Some(Step::Answer { stream: "stream", .. }))));
        assert_eq!(large.incoming(&NodeId([2; 32]), "stream").err(), Some("control_not_connected"));
    }

    #[test]
    fn an_ended_session_is_opened_again_after_growing_pauses() {
        let mut table = table(SMALL, LARGE);
        let mut now = Instant::now();
        let mut current = serial(table.identified(&LARGE, "node".into(), true).0);
        for pause in [400, 800, 1600, 3200, 6400, 10_000, 10_000] {
            assert!(table.ended(&LARGE, current, false, now).is_none());
            assert_eq!(table.wake_at(), Some(now + Duration::from_millis(pause)));
            assert!(table.due(now).is_empty());
            now += Duration::from_millis(pause);
            current = serial(table.due(now).pop());
        }
        // One that worked is followed by a short pause.
        table.ended(&LARGE, current, true, now);
        assert_eq!(table.wake_at(), Some(now + PAUSE_MIN));
        assert!(table.ended(&LARGE, current, true, now).is_none(), "an end counts once");
    }

    #[test]
    fn round_trip_times_of_nodes_are_told_now_and_then() {
        let mut table = table(SMALL, LARGE);
        let (now, time) = (Instant::now(), Duration::from_millis(3));
        assert!(!table.round_trip(&LARGE, time, now), "not known to be a node yet");
        let _ = table.identified(&LARGE, "node".into(), true);
        assert!(table.round_trip(&LARGE, time, now));
        assert!(!table.round_trip(&LARGE, time, now + ROUND_TRIP_EVERY / 2));
        assert!(table.round_trip(&LARGE, time, now + ROUND_TRIP_EVERY));
        assert!(!table.round_trip(&SMALL, time, now), "nobody");
    }

    #[test]
    fn a_new_stream_replaces_the_old_one() {
        let mut table = table(LARGE, SMALL);
        let first = serial(table.incoming(&SMALL, "one").unwrap());
        assert!(table.incoming(&SMALL, "two").unwrap().is_none());
        assert!(table.incoming(&SMALL, "three").unwrap().is_none());
        let step = table.ended(&SMALL, first, true, Instant::now());
        assert!(matches!(&step, Some(Step::Answer { stream: "three", .. })));
        assert!(table.ended(&SMALL, first, true, Instant::now()).is_none());
        assert_eq!(table.sessions(), 1);
    }

    #[test]
    fn a_lost_peer_is_forgotten_when_its_session_has_ended() {
        let mut table = table(SMALL, LARGE);
        let current = serial(table.identified(&LARGE, "node".into(), true).0);
        table.disconnected(&LARGE, "reset".into());
        assert!(table.status(|_| true).is_empty());
        assert_eq!(table.sessions(), 1);
        assert!(table.ended(&LARGE, current, true, Instant::now()).is_none());
        assert!(table.peers.is_empty() && table.wake_at().is_none());
        // Connected anew before the old session's end was noticed: the new one follows it.
        table.connected(LARGE, "/ip4/127.0.0.1/tcp/1".parse().unwrap());
        let current = serial(table.identified(&LARGE, "node".into(), true).0);
        table.disconnected(&LARGE, "reset".into());
        table.connected(LARGE, "/ip4/127.0.0.1/tcp/1".parse().unwrap());
        assert!(table.identified(&LARGE, "node".into(), true).0.is_none());
        let now = Instant::now();
        assert!(table.ended(&LARGE, current, true, now).is_none());
        assert!(matches!(table.due(now + PAUSE_MIN).pop(), Some(Step::Open { .. })));
    }
}
