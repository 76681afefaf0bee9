//! The handle by which the rest of the node uses the network.

use super::bulk::BulkStream;
use super::contacts::Contacts;
use super::fetch::{self, Check, Downloader, Expect, FetchError, FetchRequest, OpenFetch, Patience};
use super::names::PeerNames;
use super::peers::PeerStatus;
use super::reason::DownReason;
use super::sessions::{Guests, Sessions};
use super::standing::{Rank, Standing};
use super::tally::FetchTally;
use super::traffic::{Class, Counters, Metered, Traffic};
use super::unreached::{Unreached, UnreachedPeer};
use super::{BULK_PROTOCOL, FETCH_PROTOCOL, PAIR_PROTOCOL};
use libp2p::{Multiaddr, StreamProtocol};
use rand::seq::SliceRandom;
use starling_bootstrap::addresses::PeerAddress;
use starling_bootstrap::discovery::dialer::Trouble;
use starling_bootstrap::identity;
use starling_bootstrap::streams::{Control, Lane, OpenError};
use starling_bootstrap::uplink::Uplink;
use starling_protocol::NodeId;
use starling_protocol::limits::CONTROL_BYTES_MAX;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::compat::FuturesAsyncReadCompatExt;

/// Orders that wait for the swarm's task. The node's tasks fill the queue, and wait when it is full.
pub(super) const COMMANDS_CAP: usize = 64;

/// Orders to the swarm's task.
pub(super) enum Command {
    Connect(PeerAddress),
    Refuse(NodeId),
    Admit(NodeId),
    Status(oneshot::Sender<NetStatus>),
    Shutdown(oneshot::Sender<()>),
}

/// The state of the network.
#[derive(Clone, Debug, Default)]
pub struct NetStatus {
    pub peers: Vec<PeerStatus>,
    /// Peers that should be connected and are not, with the reasons.
    pub troubles: Vec<Trouble>,
    /// Addresses of the connected members and joiners, each one's best first.
    pub members: Vec<PeerAddress>,
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
    pub(super) uplink: Uplink,
    pub(super) standing: Standing,
    pub(super) fetched: FetchTally,
    pub(super) names: PeerNames,
    pub(super) unreached: Unreached,
    pub(super) addresses: watch::Receiver<Vec<Multiaddr>>,
}

impl NetHandle {
    pub fn me(&self) -> NodeId {
        self.me
    }

    /// Queues a control message. Messages to one peer arrive in order. A message that is too long, or whose peer is not
    /// up, is counted and dropped. Messages that are queued when a session ends are lost, and the node is told of the
    /// end.
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

    /// Peers that are dialed and do not answer, with the reasons and the counts.
    pub fn unreached(&self) -> Vec<UnreachedPeer> {
        self.unreached.list(tokio::time::Instant::now())
    }

    /// Peers with whom control messages can be exchanged, by ascending id.
    pub fn peers(&self) -> Vec<NodeId> {
        self.sessions.up()
    }

    /// The peers to ask for what any peer may have: connected peers, members first, a few strangers last. The order is
    /// random otherwise, so that no choice of ids brings a peer to the front.
    pub fn sources(&self) -> Vec<NodeId> {
        self.standing.as_sources(self.shuffled())
    }

    /// Peers with which control messages can be exchanged, in random order.
    pub fn shuffled(&self) -> Vec<NodeId> {
        let mut peers = self.peers();
        peers.shuffle(&mut rand::rng());
        peers
    }

    /// Returns `peers`, which are said to have the same thing, in the order in which to ask them.
    pub fn as_sources(&self, peers: Vec<NodeId>) -> Vec<NodeId> {
        self.standing.as_sources(peers)
    }

    /// Whether the peer is neither a member nor an admitted joiner, and the user has not named it.
    pub fn is_stranger(&self, peer: &NodeId) -> bool {
        self.standing.rank(peer) == Rank::Stranger
    }

    /// Sets the members of the flock and the admitted joiners. Places are kept for them, and they are heard first.
    /// Every other peer is a stranger, except those that the user named. At most [`MEMBERS_MAX`] and
    /// [`INVITED_MAX`](super::INVITED_MAX) count.
    ///
    /// [`MEMBERS_MAX`]: starling_protocol::limits::MEMBERS_MAX
    pub fn set_standing(&self, members: Vec<NodeId>, invited: Vec<NodeId>) {
        self.standing.set(members, invited);
    }

    /// Sets the members with which this node is to be connected, apart from all that may connect with it; `None`: every
    /// node that it meets.
    pub fn set_contacts(&self, contacts: Option<Contacts>) {
        self.standing.set_contacts(contacts);
    }

    /// Opens a bulk stream to a connected peer. It reaches the peer with its first bytes.
    ///
    /// # Errors
    /// When there is no connection, or it breaks meanwhile.
    pub async fn open_bulk(&self, peer: NodeId) -> Result<BulkStream, OpenError> {
        self.open(peer, BULK_PROTOCOL).await
    }

    /// Opens a stream for an exchange of a pair, in the lane of bulk data and counted as such.
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

    /// The same as [`NetHandle::fetch`]; `begun` is called when the answer begins, and `came` with the bytes of each piece of it.
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
        let bytes = fetch::payload(&mut stream, len, patience, came).await?;
        if matches!(request, FetchRequest::Update { .. }) {
            self.fetched.update(&peer, bytes.len() as u64);
        }
        Ok(bytes)
    }

    /// Fetches several updates from one peer over one stream, in one round trip ([`fetch::request_all`]). `begun` is
    /// called when the first answer begins, and `came` with the bytes of each piece.
    ///
    /// # Errors
    /// As [`NetHandle::fetch`]; all or nothing.
    pub async fn fetch_updates(
        &self,
        peer: NodeId,
        requests: &[(FetchRequest, Expect)],
        begun: impl FnOnce(),
        came: impl Fn(usize),
    ) -> Result<Vec<Vec<u8>>, FetchError> {
        let mut stream = self.open_fetch(peer).await?;
        let patience = Patience::with(self.standing.rank(&peer));
        let updates = fetch::request_all(&mut stream, requests, patience, begun, came).await?;
        updates.iter().for_each(|update| self.fetched.update(&peer, update.len() as u64));
        Ok(updates)
    }

    /// The bytes that peers have sent to a catch-up. Updates that were fetched from one peer are in it; the report of a
    /// download is for the caller to add.
    pub fn fetched(&self) -> &FetchTally {
        &self.fetched
    }

    /// Returns a downloader from many peers at once, which believes the verdicts of `check`.
    pub fn downloader(&self, check: Check) -> Downloader {
        let net = self.clone();
        let open: OpenFetch = Arc::new(move |peer| {
            let net = net.clone();
            Box::pin(async move { net.open_fetch(peer).await })
        });
        let standing = self.standing.clone();
        Downloader::new(open, check, Arc::new(move |peer| standing.rank(peer) == Rank::Stranger))
    }

    /// Ends the session with a peer when all queued messages are written, closes its connections, and accepts none from
    /// it for a while.
    pub fn refuse(&self, peer: NodeId, reason: &str) {
        self.sessions.refuse(&peer, DownReason::Refused(reason.to_owned()));
        // Orders pile up only when the swarm's task is far behind. Then the peer may come back once more, and is
        // refused once more.
        if self.commands.try_send(Command::Refuse(peer)).is_err() {
            tracing::debug!(peer = %peer.short(), "its connection stays open for now");
        }
    }

    /// Of two processes with this peer's key, gives the session's place to the one that waits.
    pub fn admit(&self, peer: NodeId) {
        // If the swarm's task is far behind, the process waits on, and is admitted the next time.
        if self.commands.try_send(Command::Admit(peer)).is_err() {
            tracing::debug!(peer = %peer.short(), "the second process with its key waits on");
        }
    }

    /// Of two processes with this peer's key, hands the waiting one the proof, if there is one, and closes its
    /// connections.
    pub fn turn_away(&self, peer: NodeId, proof: Option<Vec<u8>>) {
        self.guests.turn_away(&peer, proof);
    }

    /// Connects to one more peer, and keeps the connection.
    pub async fn connect(&self, peer: PeerAddress) {
        self.order(Command::Connect(peer)).await;
    }

    /// The state of the network; empty after its shutdown.
    pub async fn status(&self) -> NetStatus {
        let (reply, status) = oneshot::channel();
        self.order(Command::Status(reply)).await;
        status.await.unwrap_or_default()
    }

    /// The addresses at which peers may reach this node, best first, each ending in `/p2p/...`: listened, advertised,
    /// and observed by peers. For tickets.
    pub fn addresses(&self) -> Vec<Multiaddr> {
        self.addresses.borrow().clone()
    }

    /// Payload bytes so far.
    pub fn counters(&self) -> Counters {
        self.traffic.counters()
    }

    /// The name that a connected peer has given itself, fit to be shown.
    pub fn name_of(&self, peer: &NodeId) -> Option<String> {
        self.names.of(peer)
    }

    /// Ends a round of measuring. Returns the uplink's rate in kbit/s, by the fastest of the last rounds; 0 while it
    /// has held back nothing.
    pub fn end_uplink_round(&self) -> u32 {
        self.uplink.end_round()
    }

    /// Writes queued messages to the peers, closes all connections and ends the swarm's task. Returns within seconds.
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
