//! The node's network: one task owns the swarm, everything else talks to it through a [`NetHandle`].
//!
//! Four protocols, all over authenticated connections: control messages on one long-lived stream a peer
//! ([`session`]), bulk data on a stream of its own for each attempt ([`bulk`]), likewise what a pair exchanges, and
//! fetching by hash or number ([`fetch`]). Tensor data never goes through gossip, which carries addresses only ([`announce`]).
//!
//! Every channel and table is bounded. What is refused is counted under `starling_refused_total` with its reason;
//! payload bytes under `starling_bytes_total` by class and direction.

mod acquaintances;
mod announce;
mod beacon;
mod bulk;
mod event;
pub mod fetch;
mod guests;
mod handle;
mod inbound;
mod network;
mod options;
mod peers;
#[cfg(test)]
mod peers_test;
mod session;
mod sessions;
mod traffic;
mod uplink;

pub use bulk::BulkStream;
pub use event::{NetEvent, ROUND_TRIP_EVERY};
pub use handle::{NetHandle, NetStatus};
pub use network::Network;
pub use options::{NetError, NetOptions};
pub use peers::PeerStatus;
pub use session::DownReason;
pub use traffic::{ByteCounts, Bytes, Counters};

use libp2p::StreamProtocol;

// The names end in `limits::PROTOCOL_VERSION`: nodes of different versions have no stream in common.
/// Control messages.
pub const CONTROL_PROTOCOL: StreamProtocol = StreamProtocol::new("/starling/ctl/2");
/// Frames of one attempt's reduction.
pub const BULK_PROTOCOL: StreamProtocol = StreamProtocol::new("/starling/bulk/2");
/// What two members exchange between two records.
pub const PAIR_PROTOCOL: StreamProtocol = StreamProtocol::new("/starling/pair/2");
/// Requests by hash or number.
pub const FETCH_PROTOCOL: StreamProtocol = StreamProtocol::new("/starling/fetch/2");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_protocols_name_the_protocol_version() {
        let version = format!("/{}", starling_protocol::limits::PROTOCOL_VERSION);
        for name in [CONTROL_PROTOCOL, BULK_PROTOCOL, PAIR_PROTOCOL, FETCH_PROTOCOL] {
            assert!(name.as_ref().ends_with(&version), "{name}");
        }
    }
}
