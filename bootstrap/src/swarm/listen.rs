//! Listening, with plain words when it fails.
//!
//! libp2p binds TCP listeners with `SO_REUSEPORT`, so that dials can leave from the listening port. A second process
//! would then silently share the port and take half of the connections. So each port is tried without that option
//! first.

use crate::addresses;
use crate::cause::root_kind;
use crate::gate::Gate;
use libp2p::Multiaddr;
use libp2p::core::transport::TransportError;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::{NetworkBehaviour, Swarm};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};

/// The reason why this node cannot listen at an address.
#[derive(Debug, thiserror::Error)]
pub enum ListenFailed {
    #[error("{address} is in use: another process listens there; stop it, or choose another port with --listen")]
    InUse { address: Multiaddr },
    #[error(
        "{address} is not an address of this machine: choose one with --listen (0.0.0.0 is all of them), and name the outside address with --advertise"
    )]
    NotOurs { address: Multiaddr },
    #[error("this user may not listen on {address}: ports below 1024 are the system's; choose another with --listen")]
    Forbidden { address: Multiaddr },
    #[error("cannot listen on {address}: it has to be /ip4/HOST/tcp/PORT or /ip4/HOST/udp/PORT/quic-v1 (or ip6)")]
    Unsupported { address: Multiaddr },
    #[error("cannot listen on {address}: {reason}; choose another address with --listen")]
    Other { address: Multiaddr, reason: String },
}

/// Begins to listen on every address, or on none.
pub(super) fn listen<B: NetworkBehaviour>(
    swarm: &mut Swarm<B>,
    gate: &Gate,
    list: &[Multiaddr],
) -> Result<(), ListenFailed> {
    for address in list {
        // The relay of a relayed address has to be dialed, at any address.
        if !can_listen(address)? {
            gate.permit(address);
        }
    }
    for address in list {
        swarm.listen_on(address.clone()).map_err(|error| match error {
            TransportError::MultiaddrNotSupported(_) => ListenFailed::Unsupported { address: address.clone() },
            TransportError::Other(error) => explain(address, &error),
        })?;
    }
    Ok(())
}

/// Whether this machine itself listens at the address, which is false for a relayed one.
///
/// # Errors
/// The machine cannot listen there now.
pub fn can_listen(address: &Multiaddr) -> Result<bool, ListenFailed> {
    match socket_of(address)? {
        Some(socket) => probe(socket).map(|()| true).map_err(|error| explain(address, &error)),
        None => Ok(false),
    }
}

enum Socket {
    Tcp(SocketAddr),
    Udp(SocketAddr),
}

/// The socket of a direct address; `None` for a relayed one.
fn socket_of(address: &Multiaddr) -> Result<Option<Socket>, ListenFailed> {
    let unsupported = || ListenFailed::Unsupported { address: address.clone() };
    if addresses::route(address) == Some(addresses::Route::Relayed) {
        return Ok(None);
    }
    let parts: Vec<Protocol<'_>> = address.iter().collect();
    let ip = match parts.first() {
        Some(Protocol::Ip4(ip)) => IpAddr::V4(*ip),
        Some(Protocol::Ip6(ip)) => IpAddr::V6(*ip),
        _ => return Err(unsupported()),
    };
    match &parts[1..] {
        [Protocol::Tcp(port)] => Ok(Some(Socket::Tcp(SocketAddr::new(ip, *port)))),
        [Protocol::Udp(port), Protocol::QuicV1] => Ok(Some(Socket::Udp(SocketAddr::new(ip, *port)))),
        _ => Err(unsupported()),
    }
}

/// Binds the socket and drops it. Port 0 is never in use.
fn probe(socket: Socket) -> io::Result<()> {
    match socket {
        Socket::Tcp(at) if at.port() != 0 => TcpListener::bind(at).map(drop),
        Socket::Udp(at) if at.port() != 0 => UdpSocket::bind(at).map(drop),
        _ => Ok(()),
    }
}

fn explain(address: &Multiaddr, error: &io::Error) -> ListenFailed {
    let address = address.clone();
    match root_kind(error) {
        Some(io::ErrorKind::AddrInUse) => ListenFailed::InUse { address },
        Some(io::ErrorKind::AddrNotAvailable) => ListenFailed::NotOurs { address },
        Some(io::ErrorKind::PermissionDenied) => ListenFailed::Forbidden { address },
        _ => ListenFailed::Other { address, reason: starling_words::of(error) },
    }
}
