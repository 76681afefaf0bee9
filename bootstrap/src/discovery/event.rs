//! The events of a node's network, in few words.

use super::reason::Reason;
use libp2p::gossipsub::MessageId;
use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, PeerId};
use std::time::Duration;

/// An event that the owner of the swarm may want to know or show.
#[derive(Debug)]
pub enum NetEvent {
    /// The node listens at this address, which ends in `/p2p/PEER`.
    Listening { address: Multiaddr },
    /// The node does not listen there any more.
    NotListening { address: Multiaddr, reason: Option<String> },
    /// Other peers can reach the node at this address: confirmed by a test, or given with `--advertise`.
    Reachable { address: Multiaddr },
    /// A direct connection was opened. `first`: there was none to this peer before; `punched`: it came about through a
    /// relay.
    Connected { peer: PeerId, connection: ConnectionId, address: Multiaddr, dialed: bool, first: bool, punched: bool },
    /// A relay has connected this node with the peer, and no direct connection came about.
    NoDirectWay { peer: PeerId },
    /// A direct connection was closed. `last`: there is none left to this peer.
    Disconnected { peer: PeerId, connection: ConnectionId, last: bool, why: String },
    /// The peer said what it is. `agent` and its node's name are fit to be shown.
    Identified { peer: PeerId, agent: String, name: Option<String> },
    /// The peer speaks another version of Starling's network protocols, or none; it is left alone for a while.
    OtherVersion { peer: PeerId, theirs: String },
    /// The DHT says that these new peers belong to the run; they will be dialed.
    Found { peers: Vec<PeerId> },
    /// A peer was not reached.
    DialFailed { peer: Option<PeerId>, failures: Vec<(Option<Multiaddr>, Reason)> },
    /// A gossip message that waits for [`super::Discovery::judge`].
    Gossip { id: MessageId, from: PeerId, author: PeerId, data: Vec<u8> },
    /// Round trip to the peer.
    RoundTrip { peer: PeerId, time: Duration },
}
