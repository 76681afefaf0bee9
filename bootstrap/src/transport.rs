//! The transports of a node: TCP with TLS and yamux, QUIC, and relayed circuits, with name resolution; all dials pass
//! the [`Gate`].
//!
//! Every path is encrypted and authenticated by the node's key; there is no plain-text fallback.

use crate::doors::Doors;
use crate::gate::{Gate, GuardedTransport};
use crate::mux::arrivals::{Arrivals, Pace};
use crate::uplink::Uplink;
use crate::{mux, tls};
use libp2p::core::muxing::{StreamMuxer, StreamMuxerBox};
use libp2p::core::transport::Boxed;
use libp2p::core::transport::timeout::TransportTimeout;
use libp2p::core::upgrade::Version;
use libp2p::core::{ConnectedPoint, Transport};
use libp2p::identity::Keypair;
use libp2p::{PeerId, dns, quic, relay, tcp};
use std::io;
use std::time::Duration;

/// A machine that is up answers sooner, to the first packet or to one of the two that the system sends after 1 and 3 s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);
/// The time from the first byte of a connection to the end of its handshakes. It is shorter than the ten seconds that
/// libp2p's autonat takes for a test; otherwise the answer for an address where nobody accepts would come too late.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(8);
/// A connection has ended if sent data was not acknowledged for so long.
#[cfg(any(target_os = "linux", target_os = "android"))]
const UNHEARD: Duration = Duration::from_secs(8);
/// Bytes of one connection that the system may hold unsent: more than one write has.
#[cfg(any(target_os = "linux", target_os = "android"))]
const UNSENT_BYTES: u32 = 128 << 10;
/// QUIC's windows. libp2p sets them for all connections alike, so a stranger may fill them too: unread data is in this
/// node's memory. A stream's window is the content of a line of 84 Mbit/s over 100 ms. A connection's window has room
/// for one stream that waits, beside the rest.
const QUIC_STREAM_WINDOW_BYTES: u32 = 1 << 20;
const QUIC_CONNECTION_WINDOW_BYTES: u32 = 2 << 20;

type Connections = Boxed<(PeerId, StreamMuxerBox)>;

/// The reason why the transports could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TransportFailed {
    #[error(transparent)]
    Tls(#[from] tls::Failed),
    #[error("name resolution could not be set up: {}", starling_words::of(.0))]
    Names(#[from] io::Error),
}

/// The transport of a node, and the behaviour of its relayed part.
pub fn build(
    keypair: &Keypair,
    gate: Gate,
    uplink: &Uplink,
) -> Result<(Connections, relay::client::Behaviour), TransportFailed> {
    let security = tls::Upgrade::new(keypair)?;
    let (of_tcp, of_relays) = (gate.doors().clone(), gate.doors().clone());
    let paced = (gate.doors().clone(), Pace::default());
    let uplink = uplink.clone();
    let tcp = tcp::tokio::Transport::new(tcp::Config::default().nodelay(true));
    let tcp = TransportTimeout::with_outgoing_timeout(tcp, CONNECT_TIMEOUT)
        .map(move |stream, _| {
            limit_unsent(&stream.0);
            limit_unheard(&stream.0);
            uplink.over(stream)
        })
        .upgrade(Version::V1Lazy)
        .authenticate(security.clone())
        .multiplex_ext(move |peer, endpoint| mux::Upgrade::new(*peer, endpoint, of_tcp))
        .timeout(HANDSHAKE_TIMEOUT)
        .map(at_a_pace(paced.clone()));

    let mut config = quic::Config::new(keypair);
    config.max_concurrent_stream_limit = mux::STREAMS_MAX as u32;
    config.max_stream_data = QUIC_STREAM_WINDOW_BYTES;
    config.max_connection_data = QUIC_CONNECTION_WINDOW_BYTES;
    let quic = quic::tokio::Transport::new(config).map(at_a_pace(paced.clone()));

    let direct = tcp.or_transport(quic).map(|either, _| either.into_inner()).boxed();
    let named = with_names(GuardedTransport::new(direct, gate))?;

    let (relayed, behaviour) = relay::client::new(keypair.public().to_peer_id());
    let relayed = relayed
        .upgrade(Version::V1Lazy)
        .authenticate(security)
        .multiplex_ext(move |peer, endpoint| mux::Upgrade::new(*peer, endpoint, of_relays))
        .timeout(HANDSHAKE_TIMEOUT)
        .map(at_a_pace(paced));
    let all = relayed.or_transport(named).map(|either, _| either.into_inner()).boxed();
    Ok((all, behaviour))
}

/// Limits the rate of strangers' streams ([`Arrivals`]) on any transport.
fn at_a_pace<M>(
    paced: (Doors, Pace),
) -> impl FnOnce((PeerId, M), ConnectedPoint) -> (PeerId, StreamMuxerBox) + Clone + Send + Unpin + 'static
where
    M: StreamMuxer + Send + Unpin + 'static,
    M::Substream: Send + 'static,
    M::Error: std::error::Error + Send + Sync + 'static,
{
    move |(peer, muxer), endpoint| (peer, StreamMuxerBox::new(Arrivals::new(muxer, peer, &endpoint, paced)))
}

/// Limits the bytes that the system holds unsent. They delay everything that is written later on any stream of the
/// connection. With the system's buffers of megabytes a vote, or the window update that the peer's own bulk data waits
/// for, is delayed by a third of a second on a link of 100 Mbit/s. Bytes in flight are not limited by this, so long fat
/// links stay full.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn limit_unsent(stream: &tokio::net::TcpStream) {
    if let Err(error) = socket2::SockRef::from(stream).set_tcp_notsent_lowat(UNSENT_BYTES) {
        // The connection works without the limit, only slower.
        tracing::debug!(%error, "the system does not limit unsent bytes");
    }
}

/// Limits the time without an acknowledgement (RFC 5482). The system repeats unacknowledged data after intervals that
/// double, for a quarter of an hour: after an outage of 20 s a connection would be silent for up to 13 s more. A
/// connection that has ended is dialed anew, every few seconds. There is always data to acknowledge, since both ends
/// send pings.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn limit_unheard(stream: &tokio::net::TcpStream) {
    if let Err(error) = socket2::SockRef::from(stream).set_tcp_user_timeout(Some(UNHEARD)) {
        tracing::debug!(%error, "the system does not end connections that are not heard of; unanswered pings do, later");
    }
}

/// Other systems have no such options, or none that are accessible.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn limit_unsent(_: &tokio::net::TcpStream) {}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn limit_unheard(_: &tokio::net::TcpStream) {}

/// Name resolution by the system's settings; a machine without a resolver configuration can still dial numbers.
fn with_names(inner: GuardedTransport<(PeerId, StreamMuxerBox)>) -> io::Result<Connections> {
    // Tested with an empty transport first: on an error the real one would be lost.
    match dns::tokio::Transport::system(()).map(drop) {
        Ok(()) => Ok(dns::tokio::Transport::system(inner)?.boxed()),
        Err(error) => {
            let why = starling_words::of(&error);
            tracing::warn!("no name server is configured ({why}): addresses with names cannot be dialed");
            Ok(inner.boxed())
        }
    }
}
