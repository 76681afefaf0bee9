//! Counts payload bytes by peer and by class.

use starling_protocol::NodeId;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Peers that are counted by name; traffic with later ones enters only the totals.
const PEERS_CAP: usize = 1024;

/// The content of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Control = 0,
    Bulk = 1,
    Fetch = 2,
}

impl Class {
    const ALL: [Self; 3] = [Self::Control, Self::Bulk, Self::Fetch];

    fn label(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Bulk => "bulk",
            Self::Fetch => "fetch",
        }
    }
}

/// Payload bytes of one class in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    pub sent: u64,
    pub received: u64,
}

/// Payload bytes with one peer, or with all. Framing below the streams (yamux, TLS, TCP) is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteCounts {
    pub control: Bytes,
    pub bulk: Bytes,
    pub fetch: Bytes,
}

impl ByteCounts {
    pub fn sent(&self) -> u64 {
        self.control.sent + self.bulk.sent + self.fetch.sent
    }

    pub fn received(&self) -> u64 {
        self.control.received + self.bulk.received + self.fetch.received
    }
}

/// All counts at one moment.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Payload bytes to and from all peers.
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub total: ByteCounts,
    pub peers: BTreeMap<NodeId, ByteCounts>,
}

#[derive(Default)]
struct Cell([[AtomicU64; 2]; 3]);

impl Cell {
    fn add(&self, class: Class, direction: usize, bytes: u64) {
        self.0[class as usize][direction].fetch_add(bytes, Ordering::Relaxed);
    }

    fn read(&self) -> ByteCounts {
        let bytes = |class: Class| {
            let [sent, received] = &self.0[class as usize];
            Bytes { sent: sent.load(Ordering::Relaxed), received: received.load(Ordering::Relaxed) }
        };
        ByteCounts { control: bytes(Class::Control), bulk: bytes(Class::Bulk), fetch: bytes(Class::Fetch) }
    }
}

const SENT: usize = 0;
const RECEIVED: usize = 1;

/// The counts of one network; cheap to clone.
#[derive(Clone)]
pub struct Traffic(Arc<Inner>);

struct Inner {
    total: Cell,
    peers: Mutex<BTreeMap<NodeId, Arc<Cell>>>,
    exported: [[metrics::Counter; 2]; 3],
}

impl Default for Traffic {
    fn default() -> Self {
        let exported = Class::ALL.map(|class| {
            ["sent", "received"]
                .map(|direction| metrics::counter!("starling_bytes_total", "class" => class.label(), "direction" => direction))
        });
        Self(Arc::new(Inner { total: Cell::default(), peers: Mutex::default(), exported }))
    }
}

impl Traffic {
    fn peers(&self) -> MutexGuard<'_, BTreeMap<NodeId, Arc<Cell>>> {
        self.0.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The meter for a stream of `class` with `peer`.
    pub fn meter(&self, peer: NodeId, class: Class) -> Meter {
        let mut peers = self.peers();
        let full = peers.len() >= PEERS_CAP && !peers.contains_key(&peer);
        let cell = (!full).then(|| Arc::clone(peers.entry(peer).or_default()));
        Meter { inner: Arc::clone(&self.0), peer: cell, class }
    }

    pub fn counters(&self) -> Counters {
        let peers = self.peers().iter().map(|(peer, cell)| (*peer, cell.read())).collect();
        let total = self.0.total.read();
        Counters { bytes_sent: total.sent(), bytes_received: total.received(), total, peers }
    }
}

/// Counts one stream's bytes.
#[derive(Clone)]
pub struct Meter {
    inner: Arc<Inner>,
    peer: Option<Arc<Cell>>,
    class: Class,
}

impl Meter {
    fn add(&self, direction: usize, bytes: usize) {
        let bytes = bytes as u64;
        self.inner.total.add(self.class, direction, bytes);
        if let Some(cell) = &self.peer {
            cell.add(self.class, direction, bytes);
        }
        self.inner.exported[self.class as usize][direction].increment(bytes);
    }
}

/// A byte stream whose bytes are counted.
pub struct Metered<S> {
    io: S,
    meter: Meter,
}

impl<S> Metered<S> {
    pub fn new(io: S, meter: Meter) -> Self {
        Self { io, meter }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let poll = Pin::new(&mut this.io).poll_read(cx, buf);
        this.meter.add(RECEIVED, buf.filled().len() - before);
        poll
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.io).poll_write(cx, buf);
        if let Poll::Ready(Ok(written)) = poll {
            this.meter.add(SENT, written);
        }
        poll
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn bytes_are_counted_by_peer_class_and_direction() {
        let traffic = Traffic::default();
        let (near, mut far) = tokio::io::duplex(64);
        let (a, b) = (NodeId([1; 32]), NodeId([2; 32]));
        let mut near = Metered::new(near, traffic.meter(a, Class::Bulk));
        near.write_all(b"twelve bytes").await.unwrap();
        far.write_all(b"four").await.unwrap();
        let mut four = [0; 4];
        near.read_exact(&mut four).await.unwrap();
        traffic.meter(b, Class::Control).add(SENT, 7);
        let counters = traffic.counters();
        assert_eq!(counters.peers[&a].bulk, Bytes { sent: 12, received: 4 });
        assert_eq!(counters.peers[&b].control, Bytes { sent: 7, received: 0 });
        assert_eq!((counters.bytes_sent, counters.bytes_received), (19, 4));
    }
}
