//! Addresses in a few bytes, as tickets hold them: a tag, the host, the port, and the relay's key where there is one.
//!
//! ```text
//! u8 tag: bits 0 to 2 the host, bit 3 QUIC, bit 4 through a relay, bit 7 the last address of its peer
//! host: 0 IPv4 (4 bytes) | 1 IPv6 (16) | 2 dns | 3 dns4 | 4 dns6 | 5 dnsaddr (u8 n | n bytes of name)
//! u16 port, little-endian (none with dnsaddr) | 32 bytes: the relay's key (only through a relay)
//! ```

use crate::identity;
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use starling_protocol::NodeId;

const HOST: u8 = 0b0000_0111;
const QUIC: u8 = 0b0000_1000;
const RELAYED: u8 = 0b0001_0000;
const LAST: u8 = 0b1000_0000;

const IP4: u8 = 0;
const IP6: u8 = 1;
const DNS: u8 = 2;
const DNS4: u8 = 3;
const DNS6: u8 = 4;
const DNSADDR: u8 = 5;

/// Appends the address of a peer, without the `/p2p/PEER` at its end; `is_last` of this peer. Appends nothing and
/// returns `None` for an address that has no such form: of a relay with another kind of key, for example.
pub(super) fn put(bytes: &mut Vec<u8>, address: &Multiaddr, is_last: bool) -> Option<()> {
    let parts: Vec<Protocol<'_>> = address.iter().collect();
    let (direct, relay) = match parts.as_slice() {
        [direct @ .., Protocol::P2p(relay), Protocol::P2pCircuit] => (direct, Some(identity::node_id(relay)?)),
        direct => (direct, None),
    };
    let (host, port, quic) = match direct {
        [Protocol::Dnsaddr(name)] => (named(DNSADDR, name)?, None, 0),
        [host, Protocol::Tcp(port)] => (of_host(host)?, Some(*port), 0),
        [host, Protocol::Udp(port), Protocol::QuicV1] => (of_host(host)?, Some(*port), QUIC),
        _ => return None,
    };
    let (kind, host) = host;
    let last = if is_last { LAST } else { 0 };
    bytes.push(kind | quic | relay.map_or(0, |_| RELAYED) | last);
    bytes.extend_from_slice(&host);
    bytes.extend(port.iter().flat_map(|port| port.to_le_bytes()));
    bytes.extend(relay.iter().flat_map(|relay| relay.0));
    Some(())
}

/// The bytes that an address takes; `None` if it cannot be packed.
pub(super) fn length(address: &Multiaddr) -> Option<usize> {
    let mut bytes = Vec::new();
    put(&mut bytes, address, true).map(|()| bytes.len())
}

/// Takes an address off the bytes, and whether it is the last one of its peer.
pub(super) fn take(rest: &mut &[u8]) -> Option<(Multiaddr, bool)> {
    let [tag] = array(rest)?;
    if tag & !(HOST | QUIC | RELAYED | LAST) != 0 {
        return None;
    }
    let host = match tag & HOST {
        IP4 => Protocol::Ip4(array::<4>(rest)?.into()),
        IP6 => Protocol::Ip6(array::<16>(rest)?.into()),
        DNS => Protocol::Dns(name(rest)?.into()),
        DNS4 => Protocol::Dns4(name(rest)?.into()),
        DNS6 => Protocol::Dns6(name(rest)?.into()),
        DNSADDR if tag & QUIC == 0 => Protocol::Dnsaddr(name(rest)?.into()),
        _ => return None,
    };
    let has_port = !matches!(host, Protocol::Dnsaddr(_));
    let mut address = Multiaddr::empty().with(host);
    if has_port {
        let port = u16::from_le_bytes(array(rest)?);
        address = match tag & QUIC {
            0 => address.with(Protocol::Tcp(port)),
            _ => address.with(Protocol::Udp(port)).with(Protocol::QuicV1),
        };
    }
    if tag & RELAYED != 0 {
        let relay = identity::peer_id(&NodeId(array(rest)?));
        address = address.with(Protocol::P2p(relay)).with(Protocol::P2pCircuit);
    }
    Some((address, tag & LAST != 0))
}

/// Takes so many bytes off.
pub(super) fn array<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(*head)
}

/// Appends a number in groups of seven bits, the lowest first; bit 7 says that another group follows.
pub(super) fn put_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Takes off a number that [`put_number`] wrote.
pub(super) fn take_number(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let [group] = array(rest)?;
        number |= u64::from(group & 0x7f) << shift;
        if group & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn of_host(host: &Protocol<'_>) -> Option<(u8, Vec<u8>)> {
    match host {
        Protocol::Ip4(ip) => Some((IP4, ip.octets().to_vec())),
        Protocol::Ip6(ip) => Some((IP6, ip.octets().to_vec())),
        Protocol::Dns(name) => named(DNS, name),
        Protocol::Dns4(name) => named(DNS4, name),
        Protocol::Dns6(name) => named(DNS6, name),
        _ => None,
    }
}

fn named(kind: u8, name: &str) -> Option<(u8, Vec<u8>)> {
    let length = u8::try_from(name.len()).ok().filter(|length| *length > 0)?;
    Some((kind, [&[length], name.as_bytes()].concat()))
}

fn name(rest: &mut &[u8]) -> Option<String> {
    let [length] = array(rest)?;
    let (name, tail) = rest.split_at_checked(usize::from(length)).filter(|(name, _)| !name.is_empty())?;
    *rest = tail;
    String::from_utf8(name.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: &str = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp";

    #[test]
    fn every_form_of_address_is_packed_and_comes_back() {
        let circuit = format!("/ip4/192.0.2.7/tcp/7400/p2p/{PEER}/p2p-circuit");
        let forms = [
            ("/ip4/192.0.2.7/tcp/7400", 7),
            ("/ip4/192.0.2.7/udp/7400/quic-v1", 7),
            ("/ip6/2001:db8::7/tcp/65535", 19),
            ("/dns/a.example/tcp/1", 13),
            ("/dns4/a.example/udp/1/quic-v1", 13),
            ("/dns6/a.example/tcp/1", 13),
            ("/dnsaddr/a.example", 11),
            (circuit.as_str(), 39),
        ];
        for (text, bytes) in forms {
            let address: Multiaddr = text.parse().unwrap();
            for is_last in [false, true] {
                let mut packed = Vec::new();
                put(&mut packed, &address, is_last).unwrap();
                assert_eq!((packed.len(), length(&address)), (bytes, Some(bytes)), "{text}");
                let mut rest = packed.as_slice();
                assert_eq!(take(&mut rest), Some((address.clone(), is_last)));
                assert!(rest.is_empty());
                for cut in 0..packed.len() {
                    assert_eq!(take(&mut &packed[..cut]), None, "{text} cut at {cut}");
                }
            }
        }
        let whole = format!("/ip4/192.0.2.7/tcp/1/p2p/{PEER}");
        for text in ["/ip4/192.0.2.7", "/ip4/192.0.2.7/udp/1", "/memory/7", whole.as_str()] {
            assert_eq!(length(&text.parse().unwrap()), None, "{text}");
        }
    }

    #[test]
    fn tags_that_mean_nothing_are_refused() {
        let mut bytes = [0; 64];
        bytes[1] = 1;
        bytes[2] = b'a';
        for tag in 0..=u8::MAX {
            bytes[0] = tag;
            let sound = tag & 0b0110_0000 == 0 && tag & HOST <= DNSADDR && tag & (HOST | QUIC) != DNSADDR | QUIC;
            assert_eq!(take(&mut &bytes[..]).is_some(), sound, "{tag:#010b}");
        }
    }

    #[test]
    fn numbers_come_back() {
        for number in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut bytes = Vec::new();
            put_number(&mut bytes, number);
            let mut rest = bytes.as_slice();
            assert_eq!(take_number(&mut rest), Some(number));
            assert!(rest.is_empty());
        }
        assert_eq!(take_number(&mut &[0x80; 20][..]), None);
    }
}
