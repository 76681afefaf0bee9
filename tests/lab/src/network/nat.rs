//! Network address translation as home routers do it, between one machine and all others.
//!
//! Two machines behind such boxes can reach each other or not by how ports are mapped and which ends may answer (RFC
//! 4787, sections 4 and 5; "full cone" and "symmetric" are the older names of RFC 3489).

use super::packet::{End, Layout, rewrite};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// Public ports begin here.
const FIRST_PORT: u16 = 20_000;
/// Mappings of one box; more flows are refused, as by a small router.
const MAPPINGS_MAX: usize = 4096;
/// Remote ends remembered for one mapping.
const REMOTES_MAX: usize = 1024;
/// Nanoseconds without an outgoing packet after which a mapping ends (RFC 4787 asks for two minutes).
const IDLE: u64 = 120_000_000_000;

/// The mapping and filtering of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NatKind {
    /// One public port for each inner port; any end may send to it.
    FullCone,
    /// One public port for each inner port; an end may answer if the machine has sent to it.
    PortRestricted,
    /// Another public port for each remote end, and only that end may answer.
    Symmetric,
}

/// One box.
#[derive(Debug)]
pub struct Nat {
    kind: NatKind,
    inner: Ipv4Addr,
    public: Ipv4Addr,
    /// Public port by protocol, inner port and, if symmetric, remote end.
    by_inner: BTreeMap<(u8, u16, Option<End>), u16>,
    by_public: BTreeMap<(u8, u16), Mapping>,
    next_port: u16,
}

#[derive(Debug)]
struct Mapping {
    inner_port: u16,
    for_remote: Option<End>,
    /// The time of the last packet to each remote end.
    remotes: BTreeMap<End, u64>,
    used_at: u64,
}

impl Nat {
    pub fn new(kind: NatKind, inner: Ipv4Addr, public: Ipv4Addr) -> Self {
        Self { kind, inner, public, by_inner: BTreeMap::new(), by_public: BTreeMap::new(), next_port: FIRST_PORT }
    }

    /// Translates an outgoing packet of the machine; `false` if it is dropped.
    pub fn outbound(&mut self, packet: &mut [u8], layout: &Layout, now: u64) -> bool {
        let Some((port, remote_port)) = layout.ports(packet) else { return false };
        if layout.source != self.inner {
            return false;
        }
        let remote = End { address: layout.destination, port: remote_port };
        let key = (layout.protocol, port, (self.kind == NatKind::Symmetric).then_some(remote));
        let Some(public_port) = self.port_for(key, now) else { return false };
        if let Some(mapping) = self.by_public.get_mut(&(layout.protocol, public_port)) {
            mapping.used_at = now;
            if mapping.remotes.len() >= REMOTES_MAX {
                mapping.remotes.retain(|_, out| is_fresh(*out, now));
            }
            if mapping.remotes.len() < REMOTES_MAX || mapping.remotes.contains_key(&remote) {
                mapping.remotes.insert(remote, now);
            }
        }
        rewrite(packet, layout, true, End { address: self.public, port: public_port });
        true
    }

    /// Translates a packet for the public address; `false` if the machine has not sent to its sender.
    pub fn inbound(&mut self, packet: &mut [u8], layout: &Layout, now: u64) -> bool {
        let Some((remote_port, port)) = layout.ports(packet) else { return false };
        let remote = End { address: layout.source, port: remote_port };
        let Some(mapping) = self.by_public.get(&(layout.protocol, port)) else { return false };
        // The hole to each end closes by itself, whatever other packets go through the port.
        let asked = || mapping.remotes.get(&remote).is_some_and(|out| is_fresh(*out, now));
        if !is_fresh(mapping.used_at, now) || !(self.kind == NatKind::FullCone || asked()) {
            return false;
        }
        let inner = End { address: self.inner, port: mapping.inner_port };
        rewrite(packet, layout, false, inner);
        true
    }

    /// Forgets every mapping, as a box does that is restarted or gets another address from its provider.
    pub fn forget(&mut self) {
        self.by_inner.clear();
        self.by_public.clear();
        // Later mappings get other ports.
        self.next_port = self.next_port.wrapping_add(1000).max(FIRST_PORT);
    }

    fn port_for(&mut self, key: (u8, u16, Option<End>), now: u64) -> Option<u16> {
        if let Some(port) = self.by_inner.get(&key) {
            let public = (key.0, *port);
            if self.by_public.get(&public).is_some_and(|mapping| is_fresh(mapping.used_at, now)) {
                return Some(*port);
            }
            self.by_public.remove(&public);
        }
        if self.by_public.len() >= MAPPINGS_MAX {
            self.expire(now);
        }
        if self.by_public.len() >= MAPPINGS_MAX {
            return None;
        }
        while self.by_public.contains_key(&(key.0, self.next_port)) {
            self.next_port = self.next_port.wrapping_add(1).max(FIRST_PORT);
        }
        let port = self.next_port;
        self.next_port = self.next_port.wrapping_add(1).max(FIRST_PORT);
        let mapping = Mapping { inner_port: key.1, for_remote: key.2, remotes: BTreeMap::new(), used_at: now };
        self.by_inner.insert(key, port);
        self.by_public.insert((key.0, port), mapping);
        Some(port)
    }

    fn expire(&mut self, now: u64) {
        let by_inner = &mut self.by_inner;
        self.by_public.retain(|(protocol, _), mapping| {
            let keep = is_fresh(mapping.used_at, now);
            if !keep {
                by_inner.remove(&(*protocol, mapping.inner_port, mapping.for_remote));
            }
            keep
        });
    }
}

fn is_fresh(used_at: u64, now: u64) -> bool {
    now.saturating_sub(used_at) <= IDLE
}

#[cfg(test)]
mod tests {
    use super::super::packet::UDP;
    use super::*;

    const INNER: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 2);
    const PUBLIC: Ipv4Addr = Ipv4Addr::new(45, 1, 0, 1);

    fn end(last: u8, port: u16) -> End {
        End { address: Ipv4Addr::new(45, 2, 0, last), port }
    }

    fn datagram(from: End, to: End) -> Vec<u8> {
        let mut packet = vec![0; 28];
        packet[0] = 0x45;
        packet[9] = UDP;
        packet[12..16].copy_from_slice(&from.address.octets());
        packet[16..20].copy_from_slice(&to.address.octets());
        packet[20..22].copy_from_slice(&from.port.to_be_bytes());
        packet[22..24].copy_from_slice(&to.port.to_be_bytes());
        packet
    }

    /// Sends from the machine's port; returns the public port that the remote sees.
    fn send(nat: &mut Nat, port: u16, to: End, now: u64) -> u16 {
        let mut packet = datagram(End { address: INNER, port }, to);
        let layout = Layout::of(&packet).unwrap();
        assert!(nat.outbound(&mut packet, &layout, now));
        let after = Layout::of(&packet).unwrap();
        assert_eq!(after.source, PUBLIC);
        after.ports(&packet).unwrap().0
    }

    /// The inner port at which a packet to the public port arrives.
    fn receive(nat: &mut Nat, from: End, port: u16, now: u64) -> Option<u16> {
        let mut packet = datagram(from, End { address: PUBLIC, port });
        let layout = Layout::of(&packet).unwrap();
        nat.inbound(&mut packet, &layout, now).then(|| {
            let after = Layout::of(&packet).unwrap();
            assert_eq!(after.destination, INNER);
            after.ports(&packet).unwrap().1
        })
    }

    #[test]
    fn kinds_differ_in_ports_and_in_who_may_answer() {
        for (kind, same_port, stranger) in [
            (NatKind::FullCone, true, true),
            (NatKind::PortRestricted, true, false),
            (NatKind::Symmetric, false, false),
        ] {
            let mut nat = Nat::new(kind, INNER, PUBLIC);
            let one = send(&mut nat, 7400, end(1, 80), 0);
            let other = send(&mut nat, 7400, end(2, 80), 0);
            assert_eq!(one == other, same_port, "{kind:?}");
            assert_eq!(receive(&mut nat, end(1, 80), one, 1), Some(7400), "{kind:?}: who was asked answers");
            assert_eq!(receive(&mut nat, end(1, 81), one, 1).is_some(), stranger, "{kind:?}");
            assert_eq!(receive(&mut nat, end(1, 80), 9, 1), None, "{kind:?}: no such port");
        }
    }

    #[test]
    fn a_hole_closes_although_others_use_the_port() {
        let mut nat = Nat::new(NatKind::PortRestricted, INNER, PUBLIC);
        let port = send(&mut nat, 7400, end(1, 80), 0);
        assert_eq!(send(&mut nat, 7400, end(2, 80), IDLE), port);
        assert_eq!(receive(&mut nat, end(2, 80), port, IDLE + 1), Some(7400));
        assert_eq!(receive(&mut nat, end(1, 80), port, IDLE + 1), None, "nothing went out to it for too long");
        assert_ne!(send(&mut nat, 7400, end(1, 80), 3 * IDLE), port, "an idle port is another one afterwards");
    }

    #[test]
    fn mappings_end_and_are_bounded() {
        let mut nat = Nat::new(NatKind::FullCone, INNER, PUBLIC);
        let port = send(&mut nat, 7400, end(1, 80), 0);
        assert_eq!(receive(&mut nat, end(1, 80), port, IDLE + 1), None);
        nat.forget();
        assert_ne!(send(&mut nat, 7400, end(1, 80), 0), port);
        for inner in 0..MAPPINGS_MAX as u16 - 1 {
            send(&mut nat, 10_000 + inner, end(1, 80), 0);
        }
        let mut more = datagram(End { address: INNER, port: 9 }, end(1, 80));
        let layout = Layout::of(&more).unwrap();
        assert!(!nat.outbound(&mut more, &layout, 1), "full");
        assert!(nat.outbound(&mut more, &layout, IDLE + 1), "old ones make room");
    }
}
