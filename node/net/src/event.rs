//! The events that the network tells the node.

use super::bulk::BulkStream;
use super::reason::DownReason;
use libp2p::Multiaddr;
use starling_protocol::NodeId;
use starling_protocol::wire::Opened;
use std::time::Duration;

/// A peer's round-trip time is told at most this often.
pub const ROUND_TRIP_EVERY: Duration = Duration::from_secs(10);

/// Something that happened on the network.
#[derive(Debug)]
pub enum NetEvent {
    /// Control messages can be sent to this peer and received from it.
    PeerUp { peer: NodeId },
    /// Control messages cannot be exchanged any more. Those under way are lost.
    PeerDown { peer: NodeId, reason: DownReason },
    /// After `PeerDown`: nothing listens any more at the address of the peer's last connection, so its process has ended.
    PeerGone { peer: NodeId },
    /// A control message as it came, and its content if the network was given a check that opens it. Comes only between
    /// the peer's `PeerUp` and `PeerDown`.
    Control { from: NodeId, bytes: Vec<u8>, opened: Option<Box<Opened>> },
    /// A peer's message does not pass that check: its session ends, and the node leaves it alone for a while.
    Refused { peer: NodeId, reason: String },
    /// Another process with this peer's key has the session, and one more says this Hello on a connection of its own.
    /// Told about once a second until that process has gone, or the handle's `admit` or `turn_away` was called.
    Duplicate { peer: NodeId, hello: Vec<u8> },
    /// A peer opened a bulk stream.
    Bulk { from: NodeId, stream: BulkStream },
    /// A peer opened a stream for an exchange of a pair.
    Pair { from: NodeId, stream: BulkStream },
    /// This node can be dialed at this address, `/p2p/...` included.
    Listening { address: Multiaddr },
    /// The node cannot listen any more at an address where it did.
    ListenFailed { why: String },
    /// Other peers can probably reach this node at this address.
    ExternalAddress { address: Multiaddr },
    /// This peer did not answer there, or another one did. The dial is tried again. Told once until the peer has been
    /// here, and counted after that ([`NetHandle::unreached`](super::NetHandle::unreached)).
    DialFailed { peer: NodeId, address: Option<Multiaddr>, why: String },
    /// A direct connection to this peer came about with a relay's help.
    HolePunched { peer: NodeId },
    /// A relay has brought both peers together, and no direct connection came about. The two go on without each other,
    /// and try again after a while.
    NoDirectWay { peer: NodeId },
    /// The time that a peer took to answer a ping; told at most once in [`ROUND_TRIP_EVERY`] for each peer.
    RoundTrip { peer: NodeId, time: Duration },
    /// A peer that the user named is no node: it introduces peers to each other, and has no part in any run.
    Bystander { peer: NodeId },
    /// A peer runs a program that does not understand us.
    OtherVersion { peer: NodeId, theirs: String },
}
