//! yamux with limits of our own.
//!
//! libp2p's wrapper lets a connection's receive windows grow to 1 GiB and gives no way to say less; times 128
//! inbound connections that is the whole machine. This wrapper is the same thin layer over the
//! `yamux` crate, with the window and the number of streams bounded, and the queue of streams that nobody has
//! accepted yet as long as the number of streams.

use futures::{AsyncRead, AsyncWrite};
use libp2p::core::muxing::{StreamMuxer, StreamMuxerEvent};
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo};
use std::collections::VecDeque;
use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

/// Streams that may be open on one connection.
pub const STREAMS_MAX: usize = 64;
/// Bytes that a peer may have in flight to us on one connection, all streams together.
pub const RECEIVE_WINDOW_BYTES: usize = 64 << 20;
/// Bytes of a stream that travel as one piece: more than the largest bulk frame. yamux's own 16 KiB would cut each frame
/// into several, every one encrypted and handed to the system by itself.
const SEND_BYTES: usize = 80 << 10;

/// Makes muxers of connections.
#[derive(Clone, Debug)]
pub struct Upgrade(yamux::Config);

impl Default for Upgrade {
    fn default() -> Self {
        let mut config = yamux::Config::default();
        // In this order: the window has to hold yamux's 256 KiB for each stream at all times.
        config.set_max_num_streams(STREAMS_MAX);
        config.set_max_connection_receive_window(Some(RECEIVE_WINDOW_BYTES));
        config.set_split_send_size(SEND_BYTES);
        Self(config)
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
        ready(Ok(Muxer::new(connection, self.0, yamux::Mode::Server)))
    }
}

impl<C: AsyncRead + AsyncWrite + Send + Unpin + 'static> OutboundConnectionUpgrade<C> for Upgrade {
    type Output = Muxer<C>;
    type Error = io::Error;
    type Future = Ready<Result<Self::Output, io::Error>>;

    fn upgrade_outbound(self, connection: C, _: Self::Info) -> Self::Future {
        ready(Ok(Muxer::new(connection, self.0, yamux::Mode::Client)))
    }
}

/// One multiplexed connection.
pub struct Muxer<C> {
    connection: yamux::Connection<C>,
    /// Streams that arrived while nobody asked; more than [`STREAMS_MAX`] cannot be open.
    arrived: VecDeque<yamux::Stream>,
    /// Who asked for a stream last.
    waker: Option<Waker>,
}

impl<C: AsyncRead + AsyncWrite + Unpin + 'static> Muxer<C> {
    fn new(connection: C, config: yamux::Config, mode: yamux::Mode) -> Self {
        Self { connection: yamux::Connection::new(connection, config, mode), arrived: VecDeque::new(), waker: None }
    }

    fn poll_arrival(&mut self, cx: &mut Context<'_>) -> Poll<Result<yamux::Stream, io::Error>> {
        match ready!(self.connection.poll_next_inbound(cx)) {
            Some(stream) => Poll::Ready(stream.map_err(to_io)),
            None => Poll::Ready(Err(to_io(yamux::ConnectionError::Closed))),
        }
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin + 'static> StreamMuxer for Muxer<C> {
    type Substream = yamux::Stream;
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
        self.connection.poll_new_outbound(cx).map_err(to_io)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        self.connection.poll_close(cx).map_err(to_io)
    }

    /// yamux moves all its streams' data while it is asked for inbound streams, so it is asked here too.
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
        // There may be more where this came from.
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
    async fn pair() -> (Muxer<Compat>, Muxer<Compat>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let dial = tokio::net::TcpStream::connect(listener.local_addr().unwrap());
        let (a, b) = tokio::join!(dial, listener.accept());
        let upgrade = Upgrade::default();
        let client = upgrade.clone().upgrade_outbound(Compat(a.unwrap()), "/yamux/1.0.0").await.unwrap();
        let server = upgrade.upgrade_inbound(Compat(b.unwrap().0), "/yamux/1.0.0").await.unwrap();
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
            let (mut client, mut server) = pair().await;
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
}
