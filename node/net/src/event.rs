//! What the network tells the node.

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
    /// They cannot any more. What was under way is lost.
    PeerDown { peer: NodeId, reason: DownReason },
    /// A control message, as it came, and what it says if the network was given a way to check that. Only between the peer's
    /// `PeerUp` and `PeerDown`.
    Control { from: NodeId, bytes: Vec<u8>, opened: Option<Box<Opened>> },
    /// A peer sent what does not pass that check: its session ends, and it is left alone for a while.
    Refused { peer: NodeId, reason: String },
    /// While another process with this peer's key has the session, one more says this Hello on a connection of its own.
    /// Told about once a second until it has gone, or the handle's `admit` or `turn_away` was called.
    Duplicate { peer: NodeId, hello: Vec<u8> },
    /// A peer opened a bulk stream.
    Bulk { from: NodeId, stream: BulkStream },
    /// A peer opened a stream for an exchange of two.
    Pair { from: NodeId, stream: BulkStream },
    /// This node can be dialed at this address, `/p2p/...` included.
    Listening { address: Multiaddr },
    /// It could not listen any more where it did.
    ListenFailed { why: String },
    /// Others can probably reach this node here.
    ExternalAddress { address: Multiaddr },
    /// Nobody answered there, or somebody else did. It is tried again.
    DialFailed { address: Option<Multiaddr>, why: String },
    /// A direct connection to this peer came about with a relay's help.
    HolePunched { peer: NodeId },
    /// A relay has brought both together, and no direct connection came about: the two go on without each other, and try
    /// again after a while.
    NoDirectWay { peer: NodeId },
    /// How long a peer took to answer a ping; at most one in [`ROUND_TRIP_EVERY`] from each.
    RoundTrip { peer: NodeId, time: Duration },
    /// A peer that the user named is no node: it introduces others, and has no part in any run.
    Bystander { peer: NodeId },
    /// A peer runs a program that does not understand us.
    OtherVersion { peer: NodeId, theirs: String },
}
