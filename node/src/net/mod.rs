//! The node's network: one task owns the swarm, everything else talks to it through a [`NetHandle`].
//!
//! Three protocols, all over authenticated connections: control messages on one long-lived stream a peer
//! ([`session`]), bulk data on a stream of its own for each attempt ([`bulk`]), and fetching by hash or number
//! ([`fetch`]). Tensor data never goes through gossip, which carries addresses only ([`announce`]).
//!
//! Every channel and table is bounded. What is refused is counted under `starling_refused_total` with its reason;
//! payload bytes under `starling_bytes_total` by class and direction.

mod acquaintances;
mod announce;
mod beacon;
mod bulk;
mod event;
pub mod fetch;
mod handle;
mod inbound;
mod network;
mod options;
mod peers;
mod session;
mod sessions;
mod traffic;

pub use bulk::BulkStream;
pub use event::NetEvent;
pub use handle::{NetHandle, NetStatus};
pub use network::Network;
pub use options::{NetError, NetOptions};
pub use peers::PeerStatus;
pub use session::DownReason;
pub use traffic::{ByteCounts, Bytes, Counters};

use libp2p::StreamProtocol;

/// Control messages.
pub const CONTROL_PROTOCOL: StreamProtocol = StreamProtocol::new("/starling/ctl/1");
/// Frames of one attempt's reduction.
pub const BULK_PROTOCOL: StreamProtocol = StreamProtocol::new("/starling/bulk/1");
/// Requests by hash or number.
pub const FETCH_PROTOCOL: StreamProtocol = StreamProtocol::new("/starling/fetch/1");
