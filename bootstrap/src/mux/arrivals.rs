//! A rate limit on streams that strangers open. Each stream costs a node some tenths of a millisecond, for whatever
//! purpose: its name is negotiated, it is passed to a task of its own, and a surplus one is ended again. So the next
//! stream is not taken before its address has earned it. Until then it waits, unnamed, among those that its connection
//! may have open, and costs nothing.

use crate::doors::Doors;
use crate::pace::{Accounts, Payer};
use crate::source::Source;
use libp2p::PeerId;
use libp2p::core::ConnectedPoint;
use libp2p::core::muxing::{StreamMuxer, StreamMuxerEvent};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::time::{Instant, Sleep, sleep};

/// Streams that strangers at one address open: a burst, and a second in the long run. Thirty newcomers behind one
/// router that find the flock together open some eight each, and few after that: large fetches use streams that stay
/// open.
const STREAMS_BURST: f64 = 256.0;
const STREAMS_PER_SECOND: f64 = 12.0;

/// The accounts of all connections, on any transport.
#[derive(Clone, Debug)]
pub struct Pace(Accounts);

impl Default for Pace {
    fn default() -> Self {
        Self(Accounts::new(STREAMS_BURST, STREAMS_PER_SECOND))
    }
}

/// `M`, which takes streams of strangers at a limited rate.
pub struct Arrivals<M> {
    inner: M,
    payer: Payer,
    wait: Option<Pin<Box<Sleep>>>,
}

impl<M> Arrivals<M> {
    pub fn new(inner: M, peer: PeerId, endpoint: &ConnectedPoint, (doors, pace): (Doors, Pace)) -> Self {
        let payer = Payer { peer, source: Source::of_connection(endpoint), doors, accounts: pace.0 };
        Self { inner, payer, wait: None }
    }
}

impl<M: StreamMuxer + Unpin> StreamMuxer for Arrivals<M> {
    type Substream = M::Substream;
    type Error = M::Error;

    fn poll_inbound(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Self::Substream, Self::Error>> {
        if let Some(wait) = &mut self.wait {
            // Open streams go on meanwhile: `poll` moves their bytes.
            ready!(wait.as_mut().poll(cx));
            self.wait = None;
        }
        let stream = ready!(Pin::new(&mut self.inner).poll_inbound(cx))?;
        if let Some(wait) = self.payer.pay(Instant::now()) {
            metrics::counter!("starling_streams_throttled_total").increment(1);
            self.wait = Some(Box::pin(sleep(wait)));
        }
        Poll::Ready(Ok(stream))
    }

    fn poll_outbound(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Self::Substream, Self::Error>> {
        Pin::new(&mut self.inner).poll_outbound(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Pin::new(&mut self.inner).poll_close(cx)
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<StreamMuxerEvent, Self::Error>> {
        Pin::new(&mut self.inner).poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::task::noop_waker;
    use std::time::Duration;

    /// A peer that has opened more streams than anybody will take.
    struct Eager;

    impl StreamMuxer for Eager {
        type Substream = futures::io::Cursor<Vec<u8>>;
        type Error = std::io::Error;

        fn poll_inbound(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<Self::Substream, Self::Error>> {
            Poll::Ready(Ok(futures::io::Cursor::default()))
        }

        fn poll_outbound(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<Self::Substream, Self::Error>> {
            Poll::Pending
        }

        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
            Poll::Ready(Ok(()))
        }

        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<StreamMuxerEvent, Self::Error>> {
            Poll::Pending
        }
    }

    const MANY: usize = 10_000;

    fn taken(arrivals: &mut Arrivals<Eager>) -> usize {
        let waker = noop_waker();
        let mut cx = Context::from_waker(&waker);
        (0..MANY).take_while(|_| Pin::new(&mut *arrivals).poll_inbound(&mut cx).is_ready()).count()
    }

    /// Before, a new stream cost its address nothing, and one address opened some ninety a second at each node.
    #[tokio::test]
    async fn streams_of_strangers_at_one_address_are_taken_at_a_pace() {
        let (doors, pace) = (Doors::default(), Pace::default());
        let connect = |peer, ip: &str| {
            let address = format!("/ip4/{ip}/tcp/5").parse().unwrap();
            let endpoint = ConnectedPoint::Listener {
                local_addr: "/ip4/45.9.9.9/tcp/5".parse().unwrap(),
                send_back_addr: address,
            };
            Arrivals::new(Eager, peer, &endpoint, (doors.clone(), pace.clone()))
        };
        let known = PeerId::random();
        doors.name(known);
        let together: usize = (0..8).map(|_| taken(&mut connect(PeerId::random(), "45.2.0.1"))).sum();
        // The last stream of each connection may go into debt, and a moment has passed.
        assert!((STREAMS_BURST as usize..STREAMS_BURST as usize + 100).contains(&together), "{together}");
        assert!(taken(&mut connect(PeerId::random(), "45.2.0.2")) >= STREAMS_BURST as usize, "others have their own");
        assert_eq!(taken(&mut connect(known, "45.2.0.1")), MANY, "a known peer does not wait");
        assert_eq!(taken(&mut connect(PeerId::random(), "127.0.0.1")), MANY);
        let mut late = connect(PeerId::random(), "45.2.0.2");
        taken(&mut late);
        let next = std::future::poll_fn(|cx| Pin::new(&mut late).poll_inbound(cx));
        assert!(tokio::time::timeout(Duration::from_secs(10), next).await.is_ok(), "it goes on when it is earned");
    }
}
