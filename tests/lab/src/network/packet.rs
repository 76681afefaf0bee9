//! The parts of an IPv4 packet that the switch reads, and its few changes to packets.

use std::net::Ipv4Addr;

/// Bytes of an IPv4 header without options.
const HEADER: usize = 20;
/// Protocol numbers.
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
/// TCP flags.
const RST: u8 = 4;
const ACK: u8 = 16;
/// Bytes of a TCP header without options.
const TCP_HEADER: usize = 20;

/// Offsets and fields of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub source: Ipv4Addr,
    pub destination: Ipv4Addr,
    pub protocol: u8,
    /// Offset of the payload of IP.
    pub payload: usize,
    /// Whether this is the first fragment; others have no ports.
    pub first_fragment: bool,
}

impl Layout {
    /// The layout; `None` without a whole IPv4 header.
    pub fn of(packet: &[u8]) -> Option<Self> {
        if packet.len() < HEADER || packet[0] >> 4 != 4 {
            return None;
        }
        let payload = usize::from(packet[0] & 15) * 4;
        if payload < HEADER || payload > packet.len() {
            return None;
        }
        let address = |at: usize| Ipv4Addr::new(packet[at], packet[at + 1], packet[at + 2], packet[at + 3]);
        let offset = u16::from_be_bytes([packet[6], packet[7]]) & 0x1fff;
        Some(Self {
            source: address(12),
            destination: address(16),
            protocol: packet[9],
            payload,
            first_fragment: offset == 0,
        })
    }

    /// Source and destination port, if the packet has them.
    pub fn ports(&self, packet: &[u8]) -> Option<(u16, u16)> {
        let has_ports = self.first_fragment && matches!(self.protocol, TCP | UDP);
        let at = self.payload;
        (has_ports && packet.len() >= at + 4).then(|| (be(packet, at), be(packet, at + 2)))
    }

    /// Offset of the checksum over the transport's header and data.
    fn checksum_at(&self, packet: &[u8]) -> Option<usize> {
        let at = match self.protocol {
            TCP => self.payload + 16,
            UDP => self.payload + 6,
            _ => return None,
        };
        (self.first_fragment && at + 2 <= packet.len()).then_some(at)
    }
}

/// One end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct End {
    pub address: Ipv4Addr,
    pub port: u16,
}

/// Writes another source (or destination) into the packet and corrects its checksums.
pub fn rewrite(packet: &mut [u8], layout: &Layout, source: bool, end: End) {
    let address_at = if source { 12 } else { 16 };
    packet[address_at..address_at + 4].copy_from_slice(&end.address.octets());
    if layout.ports(packet).is_some() {
        let port_at = layout.payload + if source { 0 } else { 2 };
        packet[port_at..port_at + 2].copy_from_slice(&end.port.to_be_bytes());
    }
    seal(packet, layout);
}

/// Flips one bit of the data of TCP or UDP and corrects the checksum, so that the packet gets past the kernel to the
/// program. `false` if the packet has no data.
pub fn corrupt(packet: &mut [u8], layout: &Layout, draw: u64) -> bool {
    let data = match layout.protocol {
        TCP if packet.len() > layout.payload + 12 => layout.payload + usize::from(packet[layout.payload + 12] >> 4) * 4,
        UDP => layout.payload + 8,
        _ => return false,
    };
    if !layout.first_fragment || data >= packet.len() {
        return false;
    }
    let bits = (packet.len() - data) as u64 * 8;
    let bit = draw % bits;
    packet[data + (bit / 8) as usize] ^= 1 << (bit % 8);
    seal(packet, layout);
    true
}

/// The two packets that end a TCP connection at its two ends, made from a packet between them. `None` if it is not TCP,
/// or is itself the end of a connection.
pub fn resets(packet: &[u8], layout: &Layout) -> Option<(Vec<u8>, Vec<u8>)> {
    let tcp = layout.payload;
    if layout.protocol != TCP || !layout.first_fragment || packet.len() < tcp + TCP_HEADER {
        return None;
    }
    let flags = packet[tcp + 13];
    // An end that has not acknowledged anything yet is not connected.
    if flags & RST != 0 || flags & ACK == 0 {
        return None;
    }
    let (sequence, acknowledged) = (&packet[tcp + 4..tcp + 8], &packet[tcp + 8..tcp + 12]);
    let mut forward = bare(packet, layout, sequence);
    let mut backward = bare(packet, layout, acknowledged);
    let swap = |packet: &mut [u8], a: usize, b: usize, len: usize| {
        for n in 0..len {
            packet.swap(a + n, b + n);
        }
    };
    swap(&mut backward, 12, 16, 4);
    swap(&mut backward, HEADER, HEADER + 2, 2);
    for reset in [&mut forward, &mut backward] {
        let layout = Layout::of(reset)?;
        seal(reset, &layout);
    }
    Some((forward, backward))
}

/// A reset without data of the same flow.
fn bare(packet: &[u8], layout: &Layout, sequence: &[u8]) -> Vec<u8> {
    let mut reset = packet[..HEADER].to_vec();
    reset[0] = 0x45;
    reset[2..4].copy_from_slice(&((HEADER + TCP_HEADER) as u16).to_be_bytes());
    reset.extend_from_slice(&packet[layout.payload..layout.payload + 4]);
    reset.extend_from_slice(sequence);
    reset.extend_from_slice(&[0, 0, 0, 0, 5 << 4, RST, 0, 0, 0, 0, 0, 0]);
    reset
}

/// Computes the checksums of the packet again.
fn seal(packet: &mut [u8], layout: &Layout) {
    packet[10..12].fill(0);
    let header = !folded(sum(0, &packet[..layout.payload]));
    packet[10..12].copy_from_slice(&header.to_be_bytes());
    let Some(at) = layout.checksum_at(packet) else { return };
    // UDP over IPv4 may have no checksum.
    if layout.protocol == UDP && be(packet, at) == 0 {
        return;
    }
    packet[at..at + 2].fill(0);
    let length = (packet.len() - layout.payload) as u32;
    let pseudo = sum(length + u32::from(layout.protocol), &packet[12..HEADER]);
    let check = !folded(sum(pseudo, &packet[layout.payload..]));
    let check = if check == 0 && layout.protocol == UDP { 0xffff } else { check };
    packet[at..at + 2].copy_from_slice(&check.to_be_bytes());
}

fn be(packet: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([packet[at], packet[at + 1]])
}

/// The sum of RFC 1071, unfolded; 64 KiB of ones do not overflow it.
fn sum(start: u32, bytes: &[u8]) -> u32 {
    let pairs = bytes.chunks(2);
    pairs.fold(start, |sum, pair| sum + u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])))
}

fn folded(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn end(last: u8, port: u16) -> End {
        End { address: Ipv4Addr::new(45, 1, 0, last), port }
    }

    fn packet(protocol: u8, from: End, to: End, data: &[u8]) -> Vec<u8> {
        let transport = if protocol == TCP { TCP_HEADER } else { 8 };
        let mut packet = vec![0u8; HEADER + transport];
        packet.extend_from_slice(data);
        let total = packet.len() as u16;
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&total.to_be_bytes());
        packet[8] = 64;
        packet[9] = protocol;
        packet[12..16].copy_from_slice(&from.address.octets());
        packet[16..20].copy_from_slice(&to.address.octets());
        packet[20..22].copy_from_slice(&from.port.to_be_bytes());
        packet[22..24].copy_from_slice(&to.port.to_be_bytes());
        if protocol == TCP {
            packet[24..28].copy_from_slice(&7u32.to_be_bytes());
            packet[28..32].copy_from_slice(&9u32.to_be_bytes());
            packet[32] = 5 << 4;
            packet[33] = ACK;
        } else {
            packet[24..26].copy_from_slice(&(total - HEADER as u16).to_be_bytes());
            packet[26] = 1;
        }
        let layout = Layout::of(&packet).expect("a header");
        seal(&mut packet, &layout);
        packet
    }

    /// A receiver's check: the sum over all bytes, the checksum included, is all ones.
    fn sound(packet: &[u8]) -> bool {
        let layout = Layout::of(packet).expect("a header");
        let length = (packet.len() - layout.payload) as u32;
        let pseudo = sum(length + u32::from(layout.protocol), &packet[12..HEADER]);
        folded(sum(0, &packet[..layout.payload])) == 0xffff && folded(sum(pseudo, &packet[layout.payload..])) == 0xffff
    }

    #[test]
    fn too_short_or_of_another_version_is_nothing() {
        let whole = packet(TCP, end(1, 10), end(2, 20), b"abc");
        assert_eq!(Layout::of(&whole[..19]), None);
        let mut six = whole.clone();
        six[0] = 0x65;
        assert_eq!(Layout::of(&six), None);
        let mut long_header = whole;
        long_header[0] = 0x4f;
        assert_eq!(Layout::of(&long_header), None, "more header than packet");
    }

    #[test]
    fn resets_end_both_ends_at_the_right_place() {
        let data = packet(TCP, end(1, 10), end(2, 20), b"some data");
        let (forward, backward) = resets(&data, &Layout::of(&data).unwrap()).expect("it is TCP");
        assert!(sound(&forward) && sound(&backward));
        let (f, b) = (Layout::of(&forward).unwrap(), Layout::of(&backward).unwrap());
        assert_eq!((f.destination, f.ports(&forward)), (end(2, 0).address, Some((10, 20))));
        assert_eq!((b.destination, b.ports(&backward)), (end(1, 0).address, Some((20, 10))));
        assert_eq!((forward[33], backward[33]), (RST, RST));
        assert_eq!((&forward[24..28], &backward[24..28]), (&7u32.to_be_bytes()[..], &9u32.to_be_bytes()[..]));
        assert_eq!(resets(&forward, &f), None, "a reset is not reset");
        let datagram = packet(UDP, end(1, 10), end(2, 20), b"x");
        assert_eq!(resets(&datagram, &Layout::of(&datagram).unwrap()), None);
    }

    proptest! {
        #[test]
        fn changed_packets_stay_sound(
            udp: bool, data in proptest::collection::vec(any::<u8>(), 1..1400), draw: u64, port: u16, source: bool,
        ) {
            let mut bytes = packet(if udp { UDP } else { TCP }, end(1, 10), end(2, 20), &data);
            let layout = Layout::of(&bytes).unwrap();
            prop_assert!(sound(&bytes));
            let before = bytes.clone();
            prop_assert!(corrupt(&mut bytes, &layout, draw));
            prop_assert!(sound(&bytes));
            let header = if udp { 28 } else { 40 };
            let flipped: u32 = before[header..].iter().zip(&bytes[header..]).map(|(a, b)| (a ^ b).count_ones()).sum();
            prop_assert_eq!(flipped, 1);
            rewrite(&mut bytes, &layout, source, End { address: Ipv4Addr::new(9, 8, 7, 6), port });
            prop_assert!(sound(&bytes));
            let after = Layout::of(&bytes).unwrap();
            let (from, to) = after.ports(&bytes).unwrap();
            prop_assert_eq!(if source { (after.source, from) } else { (after.destination, to) }, (Ipv4Addr::new(9, 8, 7, 6), port));
        }

        #[test]
        fn nothing_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..80), draw: u64) {
            if let Some(layout) = Layout::of(&bytes) {
                layout.ports(&bytes);
                resets(&bytes, &layout);
                corrupt(&mut bytes, &layout, draw);
                rewrite(&mut bytes, &layout, true, end(3, 4));
            }
        }
    }
}
