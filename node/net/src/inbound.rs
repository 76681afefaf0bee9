//! Takes the bulk and fetch streams that peers open, and passes control streams on.

use super::books::{Books, Shares};
use super::bulk::BulkStream;
use super::event::NetEvent;
use super::fetch::FetchServer;
use super::queue::Teller;
use super::reason::refused;
use super::sessions::Sessions;
use super::standing::{Rank, Standing};
use super::traffic::{Class, Metered, Traffic};
use libp2p::{PeerId, Stream};
use starling_bootstrap::identity;
use starling_bootstrap::streams::{Incoming, IncomingStreams};
use starling_protocol::NodeId;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tokio_util::compat::FuturesAsyncReadCompatExt;

/// Bulk streams of all peers that wait to be looked at.
pub(super) const BULK_CAP: usize = 64;
/// Fetch streams that wait to be looked at.
pub(super) const FETCH_CAP: usize = 64;
/// Control streams that wait to be looked at.
pub(super) const CONTROL_CAP: usize = 128;

/// The node that opened a stream; streams of peers without an ed25519 key are dropped.
pub(super) fn sender(peer: &PeerId) -> Option<NodeId> {
    let node = identity::node_id(peer);
    if node.is_none() {
        refused("stream_of_other_key");
    }
    node
}

fn metered(stream: Stream, traffic: &Traffic, peer: NodeId, class: Class) -> BulkStream {
    BulkStream::new(Metered::new(stream.compat(), traffic.meter(peer, class)))
}

/// Bulk streams, or streams of pairs, that peers may have open here. Those of strangers are few, since the node keeps
/// them only until it knows that they are no members.
pub(super) const BULK_STREAMS: Shares =
    Shares { total: 512, per_known: 64, strangers: 32, per_stranger: 4, per_address: 16 };

/// Bulk streams of strangers, of both kinds, that wait for the node to learn that they are members: a newcomer may have
/// seen the record that admits it before this node has. Few, since unread bytes fill the stream's window.
const GRACE_STREAMS: Shares = Shares { total: 8, per_known: 1, strangers: 8, per_stranger: 1, per_address: 2 };
/// The longest wait of these streams, and the pause between two looks.
const GRACE: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The places of bulk streams.
#[derive(Clone)]
pub(super) struct BulkBooks {
    standing: Standing,
    open: Books,
    grace: Books,
}

impl BulkBooks {
    pub fn new(standing: Standing) -> Self {
        let (open, grace) = (Books::new(BULK_STREAMS, standing.clone()), Books::new(GRACE_STREAMS, standing.clone()));
        Self { standing, open, grace }
    }

    /// Separate places for another kind of streams. Strangers' streams of both kinds wait in the same places.
    pub fn another_kind(&self) -> Self {
        Self { open: Books::new(BULK_STREAMS, self.standing.clone()), ..self.clone() }
    }

    fn is_stranger(&self, peer: &NodeId) -> bool {
        // A node that has met no flock does not know its members.
        self.standing.speaks_as(peer) == Rank::Stranger
    }

    /// Returns when the peer is no stranger any more.
    ///
    /// # Errors
    /// The label of `starling_refused_total`: the peer has no part in the flock.
    async fn met(&self, peer: &NodeId) -> Result<(), &'static str> {
        let slot = self.grace.take(*peer).ok_or("bulk_of_stranger")?;
        let known = async {
            while self.is_stranger(peer) {
                sleep(LOOK_AGAIN).await;
            }
        };
        tokio::select! {
            known = timeout(GRACE, known) => known.map_err(|_| "bulk_of_stranger"),
            () = slot.ended() => Err("bulk_of_stranger"),
        }
    }
}

/// Hands bulk streams of peers that are up to the node, as the event that `told` makes of them. Streams of guests and
/// of strangers are not handed over. Nothing here waits, so that no stranger's stream blocks a member's.
pub(super) async fn take_bulk(
    mut incoming: IncomingStreams,
    sessions: Sessions,
    traffic: Traffic,
    (teller, books): (Teller, BulkBooks),
    told: fn(NodeId, BulkStream) -> NetEvent,
) {
    let pass = move |from: NodeId, stream: BulkStream, books: &BulkBooks| {
        let Some(slot) = books.open.take(from) else { return refused("bulk_streams") };
        if !teller.try_tell(&from, told(from, stream.with_slot(slot))) {
            refused("bulk_not_looked_at");
        }
    };
    while let Some(Incoming { peer, process, stream }) = incoming.next().await {
        let Some(from) = sender(&peer) else { continue };
        if sessions.process(&from) != Some(process) {
            refused("bulk_without_session");
            continue;
        }
        let stream = metered(stream, &traffic, from, Class::Bulk);
        if !books.is_stranger(&from) {
            pass(from, stream, &books);
            continue;
        }
        let (books, pass) = (books.clone(), pass.clone());
        // Bounded: the task ends at once where no place is free to wait in.
        tokio::spawn(async move {
            match books.met(&from).await {
                Ok(()) => pass(from, stream, &books),
                Err(reason) => refused(reason),
            }
        });
    }
}

/// Serves fetch streams, each in a task of its own.
pub(super) async fn take_fetch(mut incoming: IncomingStreams, server: FetchServer, traffic: Traffic) {
    while let Some(Incoming { peer, stream, .. }) = incoming.next().await {
        let Some(from) = sender(&peer) else { continue };
        let mut stream = metered(stream, &traffic, from, Class::Fetch);
        let server = server.clone();
        // Bounded: the server soon ends streams beyond its limits, and a connection has a limited number.
        tokio::spawn(async move { server.serve(from, &mut stream).await });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_bootstrap::source::Source;

    fn id(n: u8) -> NodeId {
        NodeId([n; 32])
    }

    fn known(members: &[u8]) -> (BulkBooks, Standing) {
        let standing = Standing::default();
        (0..100).for_each(|n| standing.came(id(n), Source::Address([45, 2, 0, n / 10].into())));
        standing.set(members.iter().copied().map(id).collect(), Vec::new());
        (BulkBooks::new(standing.clone()), standing)
    }

    #[tokio::test]
    async fn streams_of_strangers_are_refused_at_once_but_for_a_few_that_wait() {
        let (books, _) = known(&[1]);
        assert!(!books.is_stranger(&id(1)) && books.is_stranger(&id(2)));
        let pair = books.another_kind();
        let wait = |books: &BulkBooks, n| {
            let books = books.clone();
            tokio::spawn(async move { books.met(&id(n)).await })
        };
        let waiting = [wait(&books, 2), wait(&pair, 3)];
        tokio::task::yield_now().await;
        for n in [2, 3, 4] {
            assert_eq!(books.met(&id(n)).await, Err("bulk_of_stranger"), "its address has all that it may");
        }
        let others: Vec<_> = (1..20).map(|n| wait(&books, 10 + 3 * n)).collect();
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        let stay = others.iter().chain(&waiting).filter(|task| !task.is_finished()).count();
        assert!(stay <= GRACE_STREAMS.strangers, "{stay}");
        others.iter().chain(&waiting).for_each(|task| task.abort());
    }

    #[tokio::test]
    async fn a_newcomer_that_this_node_has_not_heard_of_yet_is_waited_for() {
        let (books, standing) = known(&[1]);
        let newcomer = tokio::spawn({
            let books = books.clone();
            async move { books.met(&id(2)).await }
        });
        tokio::task::yield_now().await;
        assert!(!newcomer.is_finished());
        standing.set(vec![id(1), id(2)], Vec::new());
        assert_eq!(newcomer.await.unwrap(), Ok(()));
        // To a node that has met no flock nobody is a stranger.
        assert!(!BulkBooks::new(Standing::default()).is_stranger(&id(9)));
    }
}
