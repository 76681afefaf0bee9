//! The reasons why a peer could not be reached, in plain words.

use crate::addresses::{self, Scope};
use crate::cause::{chain_has, root_kind};
use crate::gate::Forbidden;
use libp2p::core::transport::TransportError;
use libp2p::swarm::DialError;
use libp2p::{Multiaddr, PeerId};
use std::error::Error;
use std::fmt;
use std::io;

/// The reason why an address did not lead to the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    Refused,
    TimedOut,
    Unreachable,
    WrongPeer {
        found: PeerId,
    },
    Ourselves,
    NoSuchName,
    Forbidden,
    Unsupported,
    Denied(String),
    NoAddress,
    /// A relay has connected both peers, and no packets of theirs got through directly.
    NoDirectWay,
    Broken,
    /// The version that the peer says it speaks.
    OtherVersion(String),
    Other(String),
}

impl Reason {
    /// The name for metric labels.
    pub fn name(&self) -> &'static str {
        match self {
            Reason::Refused => "refused",
            Reason::TimedOut => "timed_out",
            Reason::Unreachable => "unreachable",
            Reason::WrongPeer { .. } => "wrong_peer",
            Reason::Ourselves => "ourselves",
            Reason::NoSuchName => "no_such_name",
            Reason::Forbidden => "forbidden",
            Reason::Unsupported => "unsupported",
            Reason::Denied(_) => "denied",
            Reason::NoAddress => "no_address",
            Reason::NoDirectWay => "no_direct_way",
            Reason::Broken => "broken",
            Reason::OtherVersion(_) => "other_version",
            Reason::Other(_) => "other",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Refused => f.write_str("refused: the machine is there, but nothing listens on that port"),
            Reason::TimedOut => f.write_str("no answer: the machine is off, or a firewall drops the packets"),
            Reason::Unreachable => f.write_str("unreachable: there is no route to that network"),
            Reason::WrongPeer { found } => {
                write!(f, "that address belongs to another node ({found}): its list or ticket is out of date")
            }
            Reason::Ourselves => f.write_str("that address is this node itself"),
            Reason::NoSuchName => f.write_str("its name does not resolve: check the spelling and the name server"),
            Reason::Forbidden => {
                f.write_str("not tried: a stranger's address must not lead to this machine or its link")
            }
            Reason::Unsupported => f.write_str("malformed, or of a transport that is not spoken here"),
            Reason::Denied(why) => write!(f, "not allowed now: {why}"),
            Reason::NoAddress => f.write_str("no address of it is known yet"),
            Reason::NoDirectWay => f.write_str(
                "no direct way: routers on both sides let nothing in; forward a port on one of them, and name it with --advertise",
            ),
            Reason::Broken => {
                f.write_str(
                    "the connection broke in the handshake: both dialed at once, or it is no Starling node of this version",
                )
            }
            Reason::OtherVersion(theirs) => {
                let ours = crate::identification::IDENTIFY_PROTOCOL;
                write!(f, "it speaks `{theirs}` and this node `{ours}`: run the same release on both")
            }
            Reason::Other(text) => f.write_str(text),
        }
    }
}

/// The addresses that one failed dial tried, without `/p2p`, each with its reason. `None` stands for all of them.
pub fn of_dial(error: &DialError) -> Vec<(Option<Multiaddr>, Reason)> {
    let at = |address: &Multiaddr| Some(addresses::without_peer(address));
    match error {
        DialError::Transport(errors) => errors.iter().map(|(a, e)| (at(a), of_transport(a, e))).collect(),
        DialError::WrongPeerId { obtained, address } => vec![(at(address), Reason::WrongPeer { found: *obtained })],
        DialError::LocalPeerId { address } => vec![(at(address), Reason::Ourselves)],
        DialError::NoAddresses => vec![(None, Reason::NoAddress)],
        DialError::Denied { cause } => vec![(None, Reason::Denied(shown(cause)))],
        DialError::Aborted => vec![(None, Reason::Other("given up".into()))],
        DialError::DialPeerConditionFalse(_) => Vec::new(),
    }
}

/// The reason why a dial of this one address failed.
pub(crate) fn of_transport(address: &Multiaddr, error: &TransportError<io::Error>) -> Reason {
    let error = match error {
        TransportError::MultiaddrNotSupported(_) => return Reason::Unsupported,
        TransportError::Other(error) => error,
    };
    if chain_has::<Forbidden>(error) {
        return Reason::Forbidden;
    }
    match root_kind(error) {
        Some(io::ErrorKind::ConnectionRefused) => Reason::Refused,
        Some(io::ErrorKind::TimedOut) => Reason::TimedOut,
        Some(
            io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkDown
            | io::ErrorKind::AddrNotAvailable,
        ) => Reason::Unreachable,
        Some(
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::InvalidData,
        ) => Reason::Broken,
        _ => of_text(address, error),
    }
}

/// Some layers of libp2p pass on only the text of an error.
fn of_text(address: &Multiaddr, error: &io::Error) -> Reason {
    let text = error.to_string();
    let lower = text.to_lowercase();
    if lower.contains("refused") {
        Reason::Refused
    } else if lower.contains("timeout") || lower.contains("timed out") {
        Reason::TimedOut
    } else if lower.contains("unreachable") {
        Reason::Unreachable
    } else if addresses::scope(address) == Scope::Name {
        Reason::NoSuchName
    } else if ["eof", "reset", "closed", "negotiat", "handshake"].iter().any(|word| lower.contains(word)) {
        Reason::Broken
    } else {
        Reason::Other(crate::untrusted::printable(&starling_words::of(error)))
    }
}

/// The words for a connection that the other side has ended.
pub const CLOSED: &str = "it has closed the connection";

/// Why a connection ended. A peer that stops, or whose process is killed, closes its connections without a word of
/// TLS or of a stream's end: that is no error.
pub fn of_end(error: &io::Error) -> String {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, TimedOut, UnexpectedEof};
    let text = error.to_string().to_lowercase();
    match root_kind(error) {
        Some(UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe) => CLOSED.to_owned(),
        Some(TimedOut) => "the connection was lost: no answer in time".to_owned(),
        // QUIC passes on only the text.
        _ if text.contains("timed out") => "the connection was lost: no answer in time".to_owned(),
        _ if ["closed", "reset", "eof"].iter().any(|word| text.contains(word)) => CLOSED.to_owned(),
        _ => format!("the connection was lost: {}", crate::untrusted::printable(&starling_words::of(error))),
    }
}

fn shown(error: &dyn Error) -> String {
    // The outer text of a denial says only that it is one.
    let cause = error.source().map_or_else(|| error.to_string(), |source| source.to_string());
    crate::untrusted::printable(&cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("layer")]
    struct Layer(#[source] io::Error);

    fn wrapped(kind: io::ErrorKind) -> io::Error {
        io::Error::other(Layer(io::Error::other(Layer(io::Error::new(kind, "inside")))))
    }

    #[test]
    fn the_innermost_error_decides() {
        let a: Multiaddr = "/ip4/192.0.2.7/tcp/1".parse().unwrap();
        let of = |kind| of_transport(&a, &TransportError::Other(wrapped(kind)));
        assert_eq!(of(io::ErrorKind::ConnectionRefused), Reason::Refused);
        assert_eq!(of(io::ErrorKind::TimedOut), Reason::TimedOut);
        assert_eq!(of(io::ErrorKind::HostUnreachable), Reason::Unreachable);
        assert_eq!(of(io::ErrorKind::UnexpectedEof), Reason::Broken);
        assert_eq!(of(io::ErrorKind::InvalidData), Reason::Broken);
        // When two peers dial each other at one moment, both take themselves for the client.
        let both = TransportError::Other(io::Error::other("Multiple dial errors occurred:\n - Handshake failed"));
        assert_eq!(of_transport(&a, &both), Reason::Broken);
        let forbidden = io::Error::new(io::ErrorKind::PermissionDenied, Forbidden);
        let nested = io::Error::other(Layer(forbidden));
        assert_eq!(of_transport(&a, &TransportError::Other(nested)), Reason::Forbidden);
        assert_eq!(of_transport(&a, &TransportError::MultiaddrNotSupported(a.clone())), Reason::Unsupported);
        let named: Multiaddr = "/dns4/no.example/tcp/1".parse().unwrap();
        let unresolved = TransportError::Other(io::Error::other("no records found"));
        assert_eq!(of_transport(&named, &unresolved), Reason::NoSuchName);
        let odd = TransportError::Other(io::Error::other("odd\x1b[2J"));
        assert_eq!(of_transport(&a, &odd), Reason::Other("odd?[2J".into()));
    }

    #[test]
    fn the_end_of_a_peer_is_no_error() {
        let eof = wrapped(io::ErrorKind::UnexpectedEof);
        for ended in [eof, wrapped(io::ErrorKind::ConnectionReset), io::Error::other("closed by peer: 0")] {
            assert_eq!(of_end(&ended), CLOSED, "{ended:?}");
        }
        assert_eq!(of_end(&wrapped(io::ErrorKind::TimedOut)), "the connection was lost: no answer in time");
        assert_eq!(of_end(&io::Error::other("odd\x1b[2J")), "the connection was lost: odd?[2J");
    }

    #[test]
    fn wrong_peers_are_named() {
        let (found, address) = (PeerId::random(), "/ip4/192.0.2.7/tcp/1".parse::<Multiaddr>().unwrap());
        let error = DialError::WrongPeerId { obtained: found, address: address.clone() };
        let reasons = of_dial(&error);
        assert_eq!(reasons, [(Some(address), Reason::WrongPeer { found })]);
        assert!(reasons[0].1.to_string().starts_with("that address belongs to another node"));
    }
}
