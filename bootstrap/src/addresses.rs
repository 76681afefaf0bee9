//! Addresses of nodes: multiaddrs, the hosts that they lead to, and help for mistyped ones.
//!
//! Starling speaks TCP and QUIC, directly or through a relay, so these forms and no others are accepted:
//! `/ip4|ip6|dns|dns4|dns6/HOST/tcp/PORT`, `/.../udp/PORT/quic-v1`, `/dnsaddr/HOST`, each optionally followed by
//! `/p2p/PEER`, and `RELAY/p2p-circuit[/p2p/PEER]`.

use help::Purpose;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use std::net::{Ipv4Addr, Ipv6Addr};

mod help;
mod list;

pub use list::{BOOTSTRAP_MAX, BootstrapList, ListError};

/// Bytes of one encoded address; longer ones are refused from every source.
pub const ADDRESS_BYTES_MAX: usize = 256;
/// Characters of one address in text.
pub const ADDRESS_CHARS_MAX: usize = 512;

/// An address with the id of the node that it leads to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PeerAddress {
    pub peer: PeerId,
    /// The address without the trailing `/p2p/PEER`.
    pub address: Multiaddr,
}

impl PeerAddress {
    /// The whole address, `/p2p/PEER` included.
    pub fn full(&self) -> Multiaddr {
        with_peer(&self.address, &self.peer)
    }
}

impl std::fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.full().fmt(f)
    }
}

/// The reason why a text or an encoded address is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error("`{text}` is not an address: {help}")]
    Malformed { text: String, help: String },
    #[error(
        "`{text}` does not say which node it leads to: add /p2p/ and its id (a node prints its full addresses when it starts)"
    )]
    NoPeer { text: String },
    #[error("an address of {bytes} bytes is longer than the {ADDRESS_BYTES_MAX} allowed")]
    TooLong { bytes: usize },
}

/// The kind of host that an address leads to, as far as it can be told without asking a name server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    Public,
    /// A private network: RFC 1918, RFC 4193 and shared carrier space.
    Private,
    /// A name; its addresses are judged when it is dialed.
    Name,
    /// This machine.
    Loopback,
    /// The local link, and the clouds' metadata services, which have link-local addresses.
    LinkLocal,
    /// No host that can be dialed: unspecified, multicast, broadcast, reserved.
    Unusable,
}

impl Scope {
    /// The name for logs and metric labels.
    pub fn name(self) -> &'static str {
        match self {
            Scope::Public => "public",
            Scope::Private => "private",
            Scope::Name => "name",
            Scope::Loopback => "loopback",
            Scope::LinkLocal => "link_local",
            Scope::Unusable => "unusable",
        }
    }
}

/// The route of an address, the preferred one first. TCP + TLS + yamux moves bulk data faster than QUIC, and a relay is
/// for peers that cannot be reached otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Route {
    Tcp,
    Quic,
    Relayed,
}

/// Parses an address of one of the module's forms.
pub fn parse(text: &str) -> Result<Multiaddr, AddressError> {
    parse_for(text, Purpose::Any)
}

/// Parses an address of this machine to listen on, or a place on a relay.
pub fn parse_listen(text: &str) -> Result<Multiaddr, AddressError> {
    let address = parse_for(text, Purpose::Listen)?;
    if route(&address) == Some(Route::Relayed) {
        return Ok(address);
    }
    match help::for_listening(&address) {
        None => Ok(address),
        Some(help) => Err(AddressError::Malformed { text: crate::untrusted::printable(text.trim()), help }),
    }
}

fn parse_for(text: &str, purpose: Purpose) -> Result<Multiaddr, AddressError> {
    let text = text.trim();
    let shown = crate::untrusted::printable(text);
    let malformed = |help: String| AddressError::Malformed { text: shown.clone(), help };
    if text.len() > ADDRESS_CHARS_MAX {
        return Err(malformed(format!("it is longer than {ADDRESS_CHARS_MAX} characters")));
    }
    let address: Multiaddr = text.parse().map_err(|_| malformed(help::for_text(text, purpose)))?;
    check_length(&address)?;
    match route(&address) {
        Some(_) => Ok(address),
        None => Err(malformed(help::for_shape(&address))),
    }
}

/// Parses an address that must end in `/p2p/PEER`.
pub fn parse_with_peer(text: &str) -> Result<PeerAddress, AddressError> {
    split(&parse_for(text, Purpose::Peer)?)
}

/// Decodes the binary form, accepting only bytes that encode back to themselves.
pub fn decode(bytes: &[u8]) -> Result<Multiaddr, AddressError> {
    if bytes.len() > ADDRESS_BYTES_MAX {
        return Err(AddressError::TooLong { bytes: bytes.len() });
    }
    let refused = |help: &str| AddressError::Malformed { text: "(encoded)".into(), help: help.into() };
    let address = Multiaddr::try_from(bytes.to_vec()).map_err(|_| refused("these bytes are no multiaddr"))?;
    let again: Multiaddr = address.iter().collect();
    if again.as_ref() != bytes {
        return Err(refused("its encoding is not the canonical one"));
    }
    match route(&address) {
        Some(_) => Ok(address),
        None => Err(refused(&help::for_shape(&address))),
    }
}

/// Splits an address that ends in `/p2p/PEER`.
pub fn split(address: &Multiaddr) -> Result<PeerAddress, AddressError> {
    check_length(address)?;
    let mut bare = address.clone();
    match bare.pop() {
        Some(Protocol::P2p(peer)) if !bare.is_empty() => Ok(PeerAddress { peer, address: bare }),
        _ => Err(AddressError::NoPeer { text: crate::untrusted::printable(&address.to_string()) }),
    }
}

fn check_length(address: &Multiaddr) -> Result<(), AddressError> {
    match address.len() {
        bytes if bytes > ADDRESS_BYTES_MAX => Err(AddressError::TooLong { bytes }),
        _ => Ok(()),
    }
}

/// `address` with `/p2p/PEER` at its end, in place of any former ending.
pub fn with_peer(address: &Multiaddr, peer: &PeerId) -> Multiaddr {
    without_peer(address).with(Protocol::P2p(*peer))
}

/// `address` without a trailing `/p2p/...`.
pub fn without_peer(address: &Multiaddr) -> Multiaddr {
    let mut bare = address.clone();
    if matches!(bare.iter().last(), Some(Protocol::P2p(_))) {
        bare.pop();
    }
    bare
}

/// The route of the address; `None` when it has none of the forms that Starling speaks.
pub fn route(address: &Multiaddr) -> Option<Route> {
    use Protocol::{Dns, Dns4, Dns6, Dnsaddr, Ip4, Ip6, P2p, P2pCircuit, QuicV1, Tcp, Udp};
    let parts: Vec<Protocol<'_>> = address.iter().collect();
    if let Some(at) = parts.iter().position(|p| matches!(p, P2pCircuit)) {
        let tail_fits = matches!(parts.get(at + 1..)?, [] | [P2p(_)]);
        let relay: Multiaddr = parts.get(..at)?.iter().cloned().collect();
        let relay_fits =
            matches!(relay.iter().last(), Some(P2p(_))) && matches!(route(&relay), Some(Route::Tcp | Route::Quic));
        return (tail_fits && relay_fits).then_some(Route::Relayed);
    }
    let direct = match parts.as_slice() {
        [direct @ .., P2p(_)] => direct,
        direct => direct,
    };
    match direct {
        [Ip4(_) | Ip6(_) | Dns(_) | Dns4(_) | Dns6(_), Tcp(_)] | [Dnsaddr(_)] => Some(Route::Tcp),
        [Ip4(_) | Ip6(_) | Dns(_) | Dns4(_) | Dns6(_), Udp(_), QuicV1] => Some(Route::Quic),
        _ => None,
    }
}

/// The scope of the address's first host. A relayed address has the relay's scope, since the relay gets dialed.
pub fn scope(address: &Multiaddr) -> Scope {
    match address.iter().next() {
        Some(Protocol::Ip4(ip)) => scope_of_ip4(ip),
        Some(Protocol::Ip6(ip)) => scope_of_ip6(ip),
        Some(Protocol::Dns(_) | Protocol::Dns4(_) | Protocol::Dns6(_) | Protocol::Dnsaddr(_)) => Scope::Name,
        _ => Scope::Unusable,
    }
}

fn scope_of_ip4(ip: Ipv4Addr) -> Scope {
    let [a, b, c, d] = ip.octets();
    match (a, b, c, d) {
        (127, ..) => Scope::Loopback,
        // 0.0.0.0/8 is "this host"; 240/4 is reserved and holds the broadcast address.
        (0, ..) | (224..=255, ..) => Scope::Unusable,
        // 100.100.100.200 and 168.63.129.16 are metadata services outside 169.254/16.
        (169, 254, ..) | (100, 100, 100, 200) | (168, 63, 129, 16) => Scope::LinkLocal,
        (10, ..) | (172, 16..=31, ..) | (192, 168, ..) | (100, 64..=127, ..) => Scope::Private,
        _ => Scope::Public,
    }
}

/// IPv6 forms that embed an IPv4 address are judged by that address.
fn scope_of_ip6(ip: Ipv6Addr) -> Scope {
    if let Some(v4) = ip.to_ipv4_mapped() {
        return scope_of_ip4(v4);
    }
    let s = ip.segments();
    match s {
        _ if ip.is_loopback() => Scope::Loopback,
        _ if ip.is_unspecified() || ip.is_multicast() => Scope::Unusable,
        // Embedded IPv4: the deprecated ::a.b.c.d, NAT64's 64:ff9b::/96 and 6to4's 2002::/16.
        [0, 0, 0, 0, 0, 0, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
            let [[a, b], [c, d]] = [high.to_be_bytes(), low.to_be_bytes()];
            scope_of_ip4(Ipv4Addr::new(a, b, c, d))
        }
        // The metadata service of one cloud has an address in the cloud's private space.
        [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254] => Scope::LinkLocal,
        [0xfe80..=0xfebf, ..] => Scope::LinkLocal,
        [0xfc00..=0xfdff, ..] => Scope::Private,
        _ => Scope::Public,
    }
}

/// Whether an address that a peer told us may be dialed: `teller_is_local` when that peer is itself on this machine's
/// loopback. A public peer must not send us to our own services (`docs/reliability.md`, T10).
pub fn may_be_learned(address: &Multiaddr, teller_is_local: bool) -> bool {
    let port_is_set = !address.iter().any(|p| matches!(p, Protocol::Tcp(0) | Protocol::Udp(0)));
    let scope_is_fit = match scope(address) {
        Scope::Public | Scope::Private | Scope::Name => true,
        Scope::Loopback => teller_is_local,
        Scope::LinkLocal | Scope::Unusable => false,
    };
    port_is_set && scope_is_fit && route(address).is_some() && address.len() <= ADDRESS_BYTES_MAX
}

/// Sorts addresses by their use to other peers: wide scopes first, then TCP before QUIC before relays.
pub fn sort_for_sharing(addresses: &mut [Multiaddr]) {
    addresses.sort_by_cached_key(|a| (route(a) == Some(Route::Relayed), scope(a), route(a), a.to_vec()));
}

#[cfg(test)]
mod addresses_test;
