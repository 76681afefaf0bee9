//! What the rest of the node holds of the network.

use super::bulk::BulkStream;
use super::fetch::{self, Check, Downloader, Expect, FetchError, FetchRequest, OpenFetch, Patience};
use super::peers::PeerStatus;
use super::reason::DownReason;
use super::sessions::{Guests, Sessions};
use super::standing::{Rank, Standing};
use super::traffic::{Class, Counters, Metered, Traffic};
use super::{BULK_PROTOCOL, FETCH_PROTOCOL, PAIR_PROTOCOL};
use libp2p::{Multiaddr, StreamProtocol};
use rand::seq::SliceRandom;
use starling_bootstrap::addresses::PeerAddress;
use starling_bootstrap::discovery::dialer::Trouble;
use starling_bootstrap::identity;
use starling_bootstrap::streams::{Control, Lane, OpenError};
use starling_protocol::NodeId;
use starling_protocol::limits::CONTROL_BYTES_MAX;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::compat::FuturesAsyncReadCompatExt;

/// Orders to the swarm's task that wait; filled by the node's tasks, which wait when it is full.
pub(super) const COMMANDS_CAP: usize = 64;

/// Orders to the swarm's task.
pub(super) enum Command {
    Connect(PeerAddress),
    Refuse(NodeId),
    Admit(NodeId),
    Status(oneshot::Sender<NetStatus>),
    Shutdown(oneshot::Sender<()>),
}

/// How the network stands.
#[derive(Clone, Debug, Default)]
pub struct NetStatus {
    pub peers: Vec<PeerStatus>,
    /// Who should be connected and is not, and why.
    pub troubles: Vec<Trouble>,
}

/// The network's other end; cheap to clone.
#[derive(Clone)]
pub struct NetHandle {
    pub(super) me: NodeId,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) streams: Control,
    pub(super) sessions: Sessions,
    pub(super) guests: Guests,
    pub(super) traffic: Traffic,
    pub(super) standing: Standing,
    pub(super) addresses: watch::Receiver<Vec<Multiaddr>>,
}

impl NetHandle {
    pub fn me(&self) -> NodeId {
        self.me
    }

    /// Queues a control message. Messages to one peer arrive in order. One that is too long, or to a peer that is not
    /// up, is counted and dropped; those queued when a session ends are lost with it, and its end is told.
    pub fn send_control(&self, peer: NodeId, bytes: Vec<u8>) {
        let lost = if bytes.len() > CONTROL_BYTES_MAX {
            Some("too_long")
        } else if self.sessions.send(&peer, bytes) {
            None
        } else {
            Some("not_up")
        };
        if let Some(reason) = lost {
            tracing::debug!(peer = %peer.short(), reason, "control message not sent");
            metrics::counter!("starling_control_unsent_total", "reason" => reason).increment(1);
        }
    }

    /// Peers with whom control messages can be exchanged, by ascending id.
    pub fn peers(&self) -> Vec<NodeId> {
        self.sessions.up()
    }

    /// Whom to ask for what anybody may have: connected peers, members first, a few strangers last and by lot, so that no choice
    /// of ids brings any to the front.
    pub fn sources(&self) -> Vec<NodeId> {
        self.standing.as_sources(self.shuffled())
    }

    /// Peers with whom control messages can be exchanged, by lot.
    pub fn shuffled(&self) -> Vec<NodeId> {
        let mut peers = self.peers();
        peers.shuffle(&mut rand::rng());
        peers
    }

    /// These, of whom one said that they have it, in the order in which to ask them.
    pub fn as_sources(&self, peers: Vec<NodeId>) -> Vec<NodeId> {
        self.standing.as_sources(peers)
    }

    /// Whether the peer is neither a member nor an admitted joiner, and the user has not named it.
    pub fn is_stranger(&self, peer: &NodeId) -> bool {
        self.standing.rank(peer) == Rank::Stranger
    }

    /// Who is a member of the flock, and who an admitted joiner, from now on: for these places are kept, and they are heard
    /// first. Everybody else is a stranger, but for the peers that the user named. At most [`MEMBERS_MAX`] and
    /// [`INVITED_MAX`](super::INVITED_MAX) count.
    ///
    /// [`MEMBERS_MAX`]: starling_protocol::limits::MEMBERS_MAX
    pub fn set_standing(&self, members: Vec<NodeId>, invited: Vec<NodeId>) {
        self.standing.set(members, invited);
    }

    /// Opens a bulk stream to a connected peer. It reaches the peer with its first bytes.
    ///
    /// # Errors
    /// When there is no connection, or it breaks meanwhile.
    pub async fn open_bulk(&self, peer: NodeId) -> Result<BulkStream, OpenError> {
        self.open(peer, BULK_PROTOCOL).await
    }

    /// Opens a stream for an exchange of two, in the lane of bulk data and counted as such.
    ///
    /// # Errors
    /// As [`NetHandle::open_bulk`].
    pub async fn open_pair(&self, peer: NodeId) -> Result<BulkStream, OpenError> {
        self.open(peer, PAIR_PROTOCOL).await
    }

    async fn open(&self, peer: NodeId, protocol: StreamProtocol) -> Result<BulkStream, OpenError> {
        let process = self.sessions.process(&peer);
        let stream = self.streams.open(identity::peer_id(&peer), protocol, Lane::Last, process).await?;
        Ok(BulkStream::new(Metered::new(stream.compat(), self.traffic.meter(peer, Class::Bulk))))
    }

    /// Opens a stream for any number of fetch requests to a connected peer.
    ///
    /// # Errors
    /// [`FetchError::NoStream`] when there is no connection, or it breaks meanwhile.
    pub async fn open_fetch(&self, peer: NodeId) -> Result<BulkStream, FetchError> {
        let process = self.sessions.process(&peer);
        let opened = self.streams.open(identity::peer_id(&peer), FETCH_PROTOCOL, Lane::Last, process).await;
        let stream = opened.map_err(|error| FetchError::NoStream(error.to_string()))?;
        Ok(BulkStream::new(Metered::new(stream.compat(), self.traffic.meter(peer, Class::Fetch))))
    }

    /// Fetches one thing from one peer. For many things from many peers there is [`NetHandle::downloader`].
    ///
    /// # Errors
    /// [`FetchError`]; what the bytes say is for the caller to check.
    pub async fn fetch(&self, peer: NodeId, request: FetchRequest, expected: Expect) -> Result<Vec<u8>, FetchError> {
        self.fetch_telling(peer, request, expected, || (), |_| ()).await
    }

    /// The same; `begun` is called when the answer begins, and `came` with the bytes of each piece of it.
    ///
    /// # Errors
    /// As [`NetHandle::fetch`].
    pub async fn fetch_telling(
        &self,
        peer: NodeId,
        request: FetchRequest,
        expected: Expect,
        begun: impl FnOnce(),
        came: impl Fn(usize),
    ) -> Result<Vec<u8>, FetchError> {
        let mut stream = self.open_fetch(peer).await?;
        let patience = Patience::with(self.standing.rank(&peer));
        let len = fetch::begin(&mut stream, &request, expected, patience).await?;
        begun();
        fetch::payload(&mut stream, len, patience, came).await
    }

    /// Downloads from many peers at once, believing what `check` says.
    pub fn downloader(&self, check: Check) -> Downloader {
        let net = self.clone();
        let open: OpenFetch = Arc::new(move |peer| {
            let net = net.clone();
            Box::pin(async move { net.open_fetch(peer).await })
        });
        let standing = self.standing.clone();
        Downloader::new(open, check, Arc::new(move |peer| standing.rank(peer) == Rank::Stranger))
    }

    /// Ends the session with a peer when all that is queued is written, closes its connections, and takes none from it for a
    /// while.
    pub fn refuse(&self, peer: NodeId, reason: &str) {
        self.sessions.refuse(&peer, DownReason::Refused(reason.to_owned()));
        // Orders pile up only when the swarm's task is far behind. Then the peer may come back once more, to be
        // refused once more.
        if self.commands.try_send(Command::Refuse(peer)).is_err() {
            tracing::debug!(peer = %peer.short(), "its connection stays open for now");
        }
    }

    /// Of two processes with this peer's key the one that waits takes the place of the one that has the session.
    pub fn admit(&self, peer: NodeId) {
        // It waits on, and is admitted the next time, should the swarm's task be far behind.
        if self.commands.try_send(Command::Admit(peer)).is_err() {
            tracing::debug!(peer = %peer.short(), "the second process with its key waits on");
        }
    }

    /// Of two processes with this peer's key the one that waits is handed the proof, if there is one, and its connections
    /// are closed.
    pub fn turn_away(&self, peer: NodeId, proof: Option<Vec<u8>>) {
        self.guests.turn_away(&peer, proof);
    }

    /// Connects to one more peer, and stays connected.
    pub async fn connect(&self, peer: PeerAddress) {
        self.order(Command::Connect(peer)).await;
    }

    /// How the network stands; empty after its shutdown.
    pub async fn status(&self) -> NetStatus {
        let (reply, status) = oneshot::channel();
        self.order(Command::Status(reply)).await;
        status.await.unwrap_or_default()
    }

    /// Where others may reach this node, best first, each ending in `/p2p/...`: listened, advertised, and observed by
    /// peers. For tickets.
    pub fn addresses(&self) -> Vec<Multiaddr> {
        self.addresses.borrow().clone()
    }

    /// Payload bytes so far.
    pub fn counters(&self) -> Counters {
        self.traffic.counters()
    }

    /// Ends a round of measuring: what the uplink can do in kbit/s, by the fastest of the last rounds; 0 while it has held
    /// back nothing.
    pub fn end_uplink_round(&self) -> u32 {
        self.traffic.uplink().end_round()
    }

    /// Writes what is queued to the peers, closes all connections and ends the swarm's task. Returns within seconds.
    pub async fn shutdown(&self) {
        let (reply, done) = oneshot::channel();
        self.order(Command::Shutdown(reply)).await;
        // An error means that the task is gone already.
        drop(done.await);
    }

    /// A network that is gone takes no orders, and needs none.
    async fn order(&self, command: Command) {
        drop(self.commands.send(command).await);
    }
}
