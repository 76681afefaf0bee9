//! The source of a connection, by what it costs a peer to get another one; and a bounded memory of many sources.

use libp2p::Multiaddr;
use libp2p::core::ConnectedPoint;
use libp2p::multiaddr::Protocol;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

/// The source of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// This machine: not counted.
    Here,
    /// An address; for IPv6 its first 64 bits, since one subscriber has all of them.
    Address(IpAddr),
    /// Through a relay: all such connections count together, since any peer may be at the other end.
    Relay,
    /// Behind a name that this node has dialed: all such connections count together. The name's owner decides where it
    /// leads, and libp2p does not tell the address.
    Named,
}

impl Source {
    /// The source of a connection with this remote address. This machine's are loopback, and libp2p's channels within a
    /// process.
    pub fn of(address: &Multiaddr) -> Self {
        let mut source = Self::Named;
        for part in address.iter() {
            match part {
                Protocol::Ip4(ip) => source = Self::Address(IpAddr::V4(ip)),
                Protocol::Ip6(ip) => {
                    let mapped = ip.to_ipv4_mapped().map(IpAddr::V4);
                    source = Self::Address(mapped.unwrap_or_else(|| IpAddr::V6(subscriber(ip))));
                }
                Protocol::Memory(_) => source = Self::Here,
                Protocol::P2pCircuit => return Self::Relay,
                _ => {}
            }
        }
        match source {
            Self::Address(ip) if ip.is_loopback() => Self::Here,
            source => source,
        }
    }

    /// The same for an inbound connection. Its local address shows whether it is relayed: the remote one may be only
    /// the peer's id.
    pub fn of_inbound(local: &Multiaddr, remote: &Multiaddr) -> Self {
        match Self::of(local) {
            Self::Relay => Self::Relay,
            _ => Self::of(remote),
        }
    }

    /// The same for a connection of either direction.
    pub fn of_connection(endpoint: &ConnectedPoint) -> Self {
        match endpoint {
            ConnectedPoint::Listener { local_addr, send_back_addr } => Self::of_inbound(local_addr, send_back_addr),
            ConnectedPoint::Dialer { address, .. } => Self::of(address),
        }
    }
}

fn subscriber(ip: Ipv6Addr) -> Ipv6Addr {
    if ip.is_loopback() { ip } else { Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << 64)) }
}

/// A record for each of the sources met last, in a bounded number. Two generations make forgetting cheap, however fast
/// new sources come.
#[derive(Debug)]
pub struct Remembered<T> {
    young: BTreeMap<Source, T>,
    old: BTreeMap<Source, T>,
}

/// Sources in one generation.
const GENERATION: usize = 2048;

impl<T> Default for Remembered<T> {
    fn default() -> Self {
        Self { young: BTreeMap::new(), old: BTreeMap::new() }
    }
}

impl<T> Remembered<T> {
    /// The record of this source, created if there is none.
    pub fn of(&mut self, source: Source, new: impl FnOnce() -> T) -> &mut T {
        if !self.young.contains_key(&source) && self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        let old = &mut self.old;
        self.young.entry(source).or_insert_with(|| old.remove(&source).unwrap_or_else(new))
    }

    pub fn get(&self, source: &Source) -> Option<&T> {
        self.young.get(source).or_else(|| self.old.get(source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Source {
        Source::of(&text.parse().unwrap())
    }

    #[test]
    fn where_connections_come_from() {
        let v4 = Source::Address("45.2.0.9".parse().unwrap());
        assert_eq!(of("/ip4/45.2.0.9/tcp/5"), v4);
        assert_eq!(of("/ip4/45.2.0.9/udp/5/quic-v1"), v4, "QUIC counts like TCP");
        assert_eq!(of("/ip6/::ffff:45.2.0.9/tcp/5"), v4);
        let one = of("/ip6/2001:db8:1:2:3:4:5:6/udp/5/quic-v1");
        assert_eq!(one, of("/ip6/2001:db8:1:2::9/tcp/5"), "one subscriber");
        assert_ne!(one, of("/ip6/2001:db8:1:3::9/tcp/5"));
        for here in ["/ip4/127.0.0.1/tcp/5", "/ip6/::1/tcp/5", "/memory/1"] {
            assert_eq!(of(here), Source::Here, "{here}");
        }
        assert_eq!(of("/ip4/45.2.0.9/tcp/5/p2p-circuit"), Source::Relay);
        // Before, a peer reached by a name counted as this machine, and its actions were charged to nobody.
        for named in ["/dns4/flock.example.org/tcp/5", "/dns/localhost/udp/5/quic-v1", "/dnsaddr/example.org"] {
            assert_eq!(of(named), Source::Named, "{named}");
        }
    }

    #[test]
    fn the_memory_of_sources_is_bounded() {
        let mut known = Remembered::default();
        for n in 0..10 * GENERATION as u32 {
            *known.of(Source::Address(IpAddr::V4(n.into())), || n) = n;
        }
        assert!(known.young.len() + known.old.len() <= 2 * GENERATION);
        let last = Source::Address(IpAddr::V4((10 * GENERATION as u32 - 1).into()));
        assert!(known.get(&last).is_some());
        assert_eq!(known.get(&Source::Address(IpAddr::V4(0.into()))), None, "the oldest are forgotten");
    }
}
