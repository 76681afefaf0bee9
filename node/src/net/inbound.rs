//! Takes bulk and fetch streams that peers open, and passes control streams on.

use super::books::{Books, Shares};
use super::bulk::BulkStream;
use super::event::NetEvent;
use super::fetch::FetchServer;
use super::queue::Teller;
use super::sessions::Sessions;
use super::traffic::{Class, Metered, Traffic};
use libp2p::{PeerId, Stream};
use starling_bootstrap::identity;
use starling_bootstrap::streams::{Incoming, IncomingStreams};
use starling_protocol::NodeId;
use tokio_util::compat::FuturesAsyncReadCompatExt;

/// Bulk streams that wait to be looked at, from all peers.
pub(super) const BULK_CAP: usize = 64;
/// Fetch streams that wait to be looked at.
pub(super) const FETCH_CAP: usize = 64;
/// Control streams that wait to be looked at.
pub(super) const CONTROL_CAP: usize = 128;

/// Who a stream is from; streams of peers without an ed25519 key are dropped.
pub(super) fn sender(peer: &PeerId) -> Option<NodeId> {
    let node = identity::node_id(peer);
    if node.is_none() {
        refused("stream_of_other_key");
    }
    node
}

pub(super) fn refused(reason: &'static str) {
    metrics::counter!("starling_refused_total", "reason" => reason).increment(1);
}

fn metered(stream: Stream, traffic: &Traffic, peer: NodeId, class: Class) -> BulkStream {
    BulkStream::new(Metered::new(stream.compat(), traffic.meter(peer, class)))
}

/// Bulk streams, or streams of pairs, that peers may have open here: those of strangers are few, since the node keeps them only
/// until it knows better.
pub(super) const BULK_STREAMS: Shares =
    Shares { total: 512, per_known: 64, strangers: 32, per_stranger: 4, per_address: 16 };

/// Hands bulk streams of peers that are up to the node, as the event that `told` makes of them; not those of a second
/// process with a peer's key. Nothing here waits, so that no stranger's stream stands in a member's way.
pub(super) async fn take_bulk(
    mut incoming: IncomingStreams,
    sessions: Sessions,
    traffic: Traffic,
    (teller, books): (Teller, Books),
    told: fn(NodeId, BulkStream) -> NetEvent,
) {
    while let Some(Incoming { peer, process, stream }) = incoming.next().await {
        let Some(from) = sender(&peer) else { continue };
        if sessions.process(&from) != Some(process) {
            refused("bulk_without_session");
            continue;
        }
        let Some(slot) = books.take(from) else {
            refused("bulk_streams");
            continue;
        };
        let stream = metered(stream, &traffic, from, Class::Bulk).with_slot(slot);
        if !teller.try_tell(&from, told(from, stream)) {
            refused("bulk_not_looked_at");
        }
    }
}

/// Serves fetch streams, each in a task of its own.
pub(super) async fn take_fetch(mut incoming: IncomingStreams, server: FetchServer, traffic: Traffic) {
    while let Some(Incoming { peer, stream, .. }) = incoming.next().await {
        let Some(from) = sender(&peer) else { continue };
        let mut stream = metered(stream, &traffic, from, Class::Fetch);
        let server = server.clone();
        // Bounded: the server ends streams beyond its limits within a moment, and a connection has so many.
        tokio::spawn(async move { server.serve(from, &mut stream).await });
    }
}
