//! The node's network: one task owns the swarm, all other tasks use it through a [`NetHandle`].
//!
//! Four protocols, all over authenticated connections: control messages on one long-lived stream a peer ([`session`]),
//! bulk data on one stream for each attempt ([`bulk`]), the exchanges of pairs likewise, and fetching by hash or number
//! ([`fetch`]). Tensor data never goes through gossip, which carries addresses only ([`announce`]).
//!
//! The node tells the network its members and joiners ([`NetHandle::set_standing`]); every other peer is a stranger.
//! In a large flock it also tells the network with which members to be connected ([`NetHandle::set_contacts`]).
//! Strangers share a part of all places ([`books`]), may say little at a time ([`budget`]), and are heard after members
//! ([`queue`]).
//!
//! Every channel and table is bounded. Refusals are counted under `starling_refused_total` with their reason, payload
//! bytes under `starling_bytes_total` by class and direction.

mod acquaintances;
mod announce;
mod beacon;
mod books;
mod budget;
mod bulk;
mod contacts;
mod ear;
mod event;
pub mod fetch;
mod guests;
mod handle;
mod inbound;
mod names;
mod network;
mod options;
mod peers;
#[cfg(test)]
mod peers_test;
mod queue;
mod reason;
mod session;
mod sessions;
mod standing;
mod tally;
mod traffic;
mod unreached;

pub use bulk::BulkStream;
pub use contacts::Contacts;
pub use event::{NetEvent, ROUND_TRIP_EVERY};
pub use handle::{NetHandle, NetStatus};
pub use network::Network;
pub use options::{Checked, NetError, NetOptions, Unfit, Verify};
pub use peers::PeerStatus;
pub use queue::NetEvents;
pub use reason::DownReason;
pub use standing::INVITED_MAX;
pub use tally::{FetchTally, Fetched};
pub use traffic::{ByteCounts, Bytes, Counters};
pub use unreached::UnreachedPeer;

use libp2p::StreamProtocol;

// The names end in `limits::PROTOCOL_VERSION`: nodes of different versions have no stream in common.
/// Control messages.
pub const CONTROL_PROTOCOL: StreamProtocol = StreamProtocol::new("/starling/ctl/9");
/// Frames of one attempt's reduction.
pub const BULK_PROTOCOL: StreamProtocol = StreamProtocol::new("/starling/bulk/9");
/// The exchange of a pair of members between two records.
pub const PAIR_PROTOCOL: StreamProtocol = StreamProtocol::new("/starling/pair/9");
/// Requests by hash or number.
pub const FETCH_PROTOCOL: StreamProtocol = StreamProtocol::new("/starling/fetch/9");

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
