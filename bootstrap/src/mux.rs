//! yamux with limits of our own.
//!
//! libp2p's wrapper lets a connection's receive windows grow to 1 GiB and has no setting for less; times 128 inbound
//! connections that is the whole machine. This wrapper is the same thin layer over the `yamux` crate, with bounds: on
//! the window, on the number of streams, on the queue of streams that are not accepted yet (as long as the number of
//! streams), and on a stranger's unread bytes ([`hold`]).

use crate::doors::Doors;
use crate::source::Source;
use futures::{AsyncRead, AsyncWrite};
use hold::{Held, Hold, Substream};
use libp2p::PeerId;
use libp2p::core::ConnectedPoint;
use libp2p::core::muxing::{StreamMuxer, StreamMuxerEvent};
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo};
use std::collections::VecDeque;
use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

pub mod arrivals;
pub mod hold;

pub use hold::STREAMS_MAX;

/// Bytes that a peer may have in flight to this node on one connection, all streams together.
pub const RECEIVE_WINDOW_BYTES: usize = 64 << 20;
/// Bytes of a stream that travel as one piece: more than the largest bulk frame. yamux's own 16 KiB would split each
/// frame into several, each encrypted and passed to the system by itself.
const SEND_BYTES: usize = 80 << 10;

/// Makes the muxer of a connection.
#[derive(Clone, Debug)]
pub struct Upgrade {
    config: yamux::Config,
    hold: Option<Hold>,
}

impl Upgrade {
    /// The upgrade for a connection with this peer. Processes of this machine are no strangers.
    pub fn new(peer: PeerId, endpoint: &ConnectedPoint, doors: Doors) -> Self {
        let is_elsewhere = Source::of_connection(endpoint) != Source::Here;
        Self::with(is_elsewhere.then(|| Hold::new(peer, doors)))
    }

    fn with(hold: Option<Hold>) -> Self {
        let mut config = yamux::Config::default();
        // The order matters: the window has to hold yamux's 256 KiB for each stream at all times.
        config.set_max_num_streams(STREAMS_MAX);
        config.set_max_connection_receive_window(Some(RECEIVE_WINDOW_BYTES));
        config.set_split_send_size(SEND_BYTES);
        Self { config, hold }
    }
}

impl UpgradeInfo for Upgrade {
    type Info = &'static str;
    type InfoIter = std::iter::Once<Self::Info>;

    fn protocol_info(&self) -> Self::InfoIter {
        std::iter::once("/yamux/1.0.0")
    }
}

impl<C: AsyncRead + AsyncWrite + Send + Unpin + 'static> InboundConnectionUpgrade<C> for Upgrade {
    type Output = Muxer<C>;
    type Error = io::Error;
    type Future = Ready<Result<Self::Output, io::Error>>;

    fn upgrade_inbound(self, connection: C, _: Self::Info) -> Self::Future {
        ready(Ok(Muxer::new(connection, self, yamux::Mode::Server)))
    }
}

impl<C: AsyncRead + AsyncWrite + Send + Unpin + 'static> OutboundConnectionUpgrade<C> for Upgrade {
    type Output = Muxer<C>;
    type Error = io::Error;
    type Future = Ready<Result<Self::Output, io::Error>>;

    fn upgrade_outbound(self, connection: C, _: Self::Info) -> Self::Future {
        ready(Ok(Muxer::new(connection, self, yamux::Mode::Client)))
    }
}

/// One multiplexed connection.
pub struct Muxer<C> {
    connection: yamux::Connection<Held<C>>,
    hold: Option<Hold>,
    /// Streams that arrived and were not asked for yet; more than [`STREAMS_MAX`] cannot be open.
    arrived: VecDeque<Substream>,
    /// The waker of the last poll for a stream.
    waker: Option<Waker>,
}

impl<C: AsyncRead + AsyncWrite + Unpin + 'static> Muxer<C> {
    fn new(connection: C, upgrade: Upgrade, mode: yamux::Mode) -> Self {
        let Upgrade { config, hold } = upgrade;
        let connection = yamux::Connection::new(Held::new(connection, hold.clone()), config, mode);
        Self { connection, hold, arrived: VecDeque::new(), waker: None }
    }

    fn poll_arrival(&mut self, cx: &mut Context<'_>) -> Poll<Result<Substream, io::Error>> {
        match ready!(self.connection.poll_next_inbound(cx)) {
            Some(stream) => Poll::Ready(stream.map(|s| Substream::new(s, self.hold.clone())).map_err(to_io)),
            None => Poll::Ready(Err(to_io(yamux::ConnectionError::Closed))),
        }
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin + 'static> StreamMuxer for Muxer<C> {
    type Substream = Substream;
    type Error = io::Error;

    fn poll_inbound(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Self::Substream, io::Error>> {
        if let Some(stream) = self.arrived.pop_front() {
            return Poll::Ready(Ok(stream));
        }
        if let Poll::Ready(arrival) = self.poll_arrival(cx) {
            return Poll::Ready(arrival);
        }
        self.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn poll_outbound(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Self::Substream, io::Error>> {
        let stream = ready!(self.connection.poll_new_outbound(cx)).map_err(to_io)?;
        Poll::Ready(Ok(Substream::new(stream, self.hold.clone())))
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        self.connection.poll_close(cx).map_err(to_io)
    }

    /// yamux moves the data of all its streams while it is polled for inbound streams, so it is polled here too.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<StreamMuxerEvent, io::Error>> {
        let stream = ready!(self.poll_arrival(cx))?;
        if self.arrived.len() < STREAMS_MAX {
            self.arrived.push_back(stream);
            if let Some(waker) = self.waker.take() {
                waker.wake();
            }
        } else {
            metrics::counter!("starling_refused_total", "reason" => "streams_full").increment(1);
        }
        // There may be more arrivals.
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

fn to_io(error: yamux::ConnectionError) -> io::Error {
    match error {
        yamux::ConnectionError::Io(error) => error,
        other => io::Error::other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{AsyncReadExt, AsyncWriteExt};
    use libp2p::core::muxing::StreamMuxerExt;

    /// Two ends of a TCP connection, each behind a muxer that a task of its own drives.
    async fn pair(of_server: Option<Hold>) -> (Muxer<Compat>, Muxer<Compat>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let dial = tokio::net::TcpStream::connect(listener.local_addr().unwrap());
        let (a, b) = tokio::join!(dial, listener.accept());
        let client = Upgrade::with(None).upgrade_outbound(Compat(a.unwrap()), "/yamux/1.0.0").await.unwrap();
        let server = Upgrade::with(of_server).upgrade_inbound(Compat(b.unwrap().0), "/yamux/1.0.0").await.unwrap();
        (client, server)
    }

    /// tokio's stream as a futures stream.
    struct Compat(tokio::net::TcpStream);

    impl AsyncRead for Compat {
        fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &mut [u8]) -> Poll<io::Result<usize>> {
            let mut buffer = tokio::io::ReadBuf::new(bytes);
            let polled = tokio::io::AsyncRead::poll_read(Pin::new(&mut self.0), cx, &mut buffer);
            polled.map_ok(|()| buffer.filled().len())
        }
    }

    impl AsyncWrite for Compat {
        fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            tokio::io::AsyncWrite::poll_write(Pin::new(&mut self.0), cx, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            tokio::io::AsyncWrite::poll_flush(Pin::new(&mut self.0), cx)
        }

        fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            tokio::io::AsyncWrite::poll_shutdown(Pin::new(&mut self.0), cx)
        }
    }

    #[test]
    fn streams_carry_data_both_ways_and_survive_a_late_acceptor() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut client, mut server) = pair(None).await;
            let mut streams = Vec::new();
            for n in 0..8u8 {
                let mut stream = std::future::poll_fn(|cx| client.poll_outbound_unpin(cx)).await.unwrap();
                stream.write_all(&[n; 1000]).await.unwrap();
                stream.flush().await.unwrap();
                streams.push(stream);
            }
            tokio::spawn(std::future::poll_fn(move |cx| client.poll_unpin(cx).map(|_| ())));
            let mut arrived = Vec::new();
            while arrived.len() < 8 {
                arrived.push(std::future::poll_fn(|cx| server.poll_inbound_unpin(cx)).await.unwrap());
            }
            tokio::spawn(std::future::poll_fn(move |cx| server.poll_unpin(cx).map(|_| ())));
            for (n, stream) in arrived.iter_mut().enumerate() {
                let mut bytes = [0u8; 1000];
                stream.read_exact(&mut bytes).await.unwrap();
                assert_eq!(bytes, [n as u8; 1000]);
                stream.write_all(b"ok").await.unwrap();
                stream.flush().await.unwrap();
            }
            for stream in &mut streams {
                let mut bytes = [0u8; 2];
                stream.read_exact(&mut bytes).await.unwrap();
            }
        });
    }

    const EACH: usize = 200 << 10;

    /// Sixteen streams with 200 KiB each, in pieces of this size, to a server that has accepted them and read nothing.
    async fn unread_streams(hold: Hold, piece: usize) -> Vec<Substream> {
        let (mut client, mut server) = pair(Some(hold)).await;
        let mut streams = Vec::new();
        for _ in 0..16 {
            streams.push(std::future::poll_fn(|cx| client.poll_outbound_unpin(cx)).await.unwrap());
        }
        tokio::spawn(std::future::poll_fn(move |cx| client.poll_unpin(cx).map(|_| ())));
        for mut stream in streams {
            tokio::spawn(async move {
                for _ in 0..EACH / piece {
                    stream.write_all(&vec![7; piece]).await?;
                    stream.flush().await?;
                }
                stream.close().await?;
                // Waits until the other side has read all of it.
                stream.read(&mut [0]).await
            });
        }
        let mut arrived = Vec::new();
        while arrived.len() < 16 {
            let more = std::future::poll_fn(|cx| match server.poll_inbound_unpin(cx) {
                Poll::Ready(stream) => Poll::Ready(Some(stream.unwrap())),
                Poll::Pending if server.hold.as_ref().is_some_and(|hold| hold.state().1) => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            });
            let Some(more) = more.await else { break };
            arrived.push(more);
        }
        tokio::spawn(std::future::poll_fn(move |cx| {
            // Further streams are dropped.
            while let Poll::Ready(stream) = server.poll_inbound_unpin(cx) {
                if stream.is_err() {
                    return Poll::Ready(());
                }
            }
            Poll::Pending
        }));
        arrived
    }

    async fn until(what: impl Fn() -> bool) {
        let holds = async {
            while !what() {
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(20), holds).await.expect("it comes about in time");
    }

    /// Before, streams that nobody reads held 256 KiB each: 16 MiB on one connection.
    #[tokio::test]
    async fn the_unread_bytes_of_a_stranger_are_bounded_and_come_when_they_are_read() {
        for piece in [64 << 10, 20] {
            let hold = Hold::new(PeerId::random(), Doors::default());
            let mut streams = unread_streams(hold.clone(), piece).await;
            until(|| hold.state().1).await;
            let (unread, _) = hold.state();
            assert!(unread <= hold::UNREAD_MAX && unread > hold::UNREAD_MAX / 4, "{unread} bytes");
            assert!(!streams.is_empty());
            let mut stream = streams.remove(0);
            // The other streams are dropped, and make room.
            drop(streams);
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).await.unwrap();
            assert_eq!(bytes.len(), EACH / piece * piece);
            assert!(hold.state().0 <= hold::UNREAD_MAX);
        }
    }

    #[tokio::test]
    async fn a_known_peer_is_not_held_back() {
        let (peer, doors) = (PeerId::random(), Doors::default());
        doors.name(peer);
        let hold = Hold::new(peer, doors);
        let streams = unread_streams(hold.clone(), 64 << 10).await;
        until(|| hold.state().0 > 2 << 20).await;
        assert!(!hold.state().1 && streams.len() == 16);
        drop(streams);
        until(|| hold.state().0 == 0).await;
    }
}
