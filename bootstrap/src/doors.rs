//! Limits on new connections: each address has a rate, and an address from which harm came is blocked for a while. Also
//! the list of known peers; to all parts of the node every other peer is a stranger.
//!
//! Connections are judged where they arrive, below the swarm and before a handshake, which costs a signature and a key
//! exchange. With TCP only the connection itself has been spent by then. (QUIC's library answers the first flight
//! before it asks; the rest comes after the judgement.)

use crate::handshake::Handshakes;
use crate::source::{Remembered, Source};
use libp2p::{Multiaddr, PeerId};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Connections that may come from one address at once: a flock of thirty behind one router that all start again.
const KNOCKS_BURST: f64 = 64.0;
/// Connections a second from one address in the long run. A handshake and its consequences cost about a millisecond.
const KNOCKS_PER_SECOND: f64 = 2.0;
/// The same for addresses where members or other known peers have been, since these may share their address with a peer
/// that floods.
const KNOCKS_PER_SECOND_KNOWN: f64 = 8.0;
/// An address counts as a known peer's for so long after the peer was last seen there.
const KNOWN_FOR: Duration = Duration::from_secs(60 * 60);
/// The first block of an address; each further one is twice as long, up to the longest.
const REST_MIN: Duration = Duration::from_secs(10);
const REST_MAX: Duration = Duration::from_secs(640);
/// After so long without harm an address starts with the shortest block again.
const REST_FORGOTTEN: Duration = Duration::from_secs(60 * 60);
/// Peers that the user may name; further ones are strangers.
const NAMED_MAX: usize = 1024;

/// The record of one address.
#[derive(Debug)]
struct Address {
    knocks: f64,
    at: Instant,
    known_until: Option<Instant>,
    rests: u32,
    rests_until: Option<Instant>,
}

impl Address {
    fn new(now: Instant) -> Self {
        Self { knocks: KNOCKS_BURST, at: now, known_until: None, rests: 0, rests_until: None }
    }

    fn is_known(&self, now: Instant) -> bool {
        self.known_until.is_some_and(|until| now < until)
    }

    fn admit(&mut self, now: Instant) -> Result<(), &'static str> {
        let known = self.is_known(now);
        if !known && self.rests_until.is_some_and(|until| now < until) {
            return Err("address_rests");
        }
        let pace = if known { KNOCKS_PER_SECOND_KNOWN } else { KNOCKS_PER_SECOND };
        let earned = now.saturating_duration_since(self.at).as_secs_f64() * pace;
        self.knocks = (self.knocks + earned).min(KNOCKS_BURST);
        self.at = now;
        if self.knocks < 1.0 {
            return Err("address_knocks");
        }
        self.knocks -= 1.0;
        Ok(())
    }
}

/// The shared limits and lists; used by the transport and the behaviours, cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Doors {
    addresses: Arc<Mutex<Remembered<Address>>>,
    peers: Arc<Mutex<Known>>,
    handshakes: Handshakes,
}

/// The peers that are no strangers.
#[derive(Debug, Default)]
struct Known {
    named: BTreeSet<PeerId>,
    told: BTreeSet<PeerId>,
}

impl Doors {
    /// No statement leaves the addresses half-changed, so the content of a poisoned lock is still good.
    fn addresses(&self) -> MutexGuard<'_, Remembered<Address>> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn peers(&self) -> MutexGuard<'_, Known> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a peer that the user named.
    pub fn name(&self, peer: PeerId) {
        let mut peers = self.peers();
        if peers.named.len() < NAMED_MAX {
            peers.named.insert(peer);
        }
    }

    /// Sets the peers that are known from now on, beside those that the user named.
    pub fn set_known(&self, peers: BTreeSet<PeerId>) {
        self.peers().told = peers;
    }

    /// Whether the peer is known.
    pub fn is_known(&self, peer: &PeerId) -> bool {
        let peers = self.peers();
        peers.told.contains(peer) || peers.named.contains(peer)
    }

    /// The handshakes of admitted connections.
    pub fn handshakes(&self) -> &Handshakes {
        &self.handshakes
    }

    /// Whether a connection that has just arrived may begin its handshake; refusals are counted.
    pub fn open(&self, from: &Multiaddr, now: Instant) -> bool {
        let source = Source::of(from);
        if source == Source::Here {
            return true;
        }
        let admitted = self.addresses().of(source, || Address::new(now)).admit(now);
        if let Err(reason) = admitted {
            metrics::counter!("starling_refused_total", "reason" => reason).increment(1);
        }
        admitted.is_ok()
    }

    /// Notes that a known peer is at an address. A peer behind a name may be anywhere, so no address is noted for it.
    pub fn know(&self, source: Source, now: Instant) {
        if !matches!(source, Source::Here | Source::Named) {
            self.addresses().of(source, || Address::new(now)).known_until = Some(now + KNOWN_FOR);
        }
    }

    /// Whether a known peer was at the address not long ago.
    pub fn knows(&self, source: &Source, now: Instant) -> bool {
        *source == Source::Here || self.addresses().get(source).is_some_and(|address| address.is_known(now))
    }

    /// Notes that harm came from an address: it is blocked for a while, unless known peers have been there, which
    /// cannot be told from others before a handshake.
    pub fn rest(&self, source: Source, now: Instant) {
        if source == Source::Here {
            return;
        }
        let mut addresses = self.addresses();
        let address = addresses.of(source, || Address::new(now));
        if address.rests_until.is_some_and(|until| now < until) {
            return;
        }
        if address.rests_until.is_some_and(|until| now.saturating_duration_since(until) >= REST_FORGOTTEN) {
            address.rests = 0;
        }
        let rest = REST_MIN.saturating_mul(1 << address.rests.min(16)).min(REST_MAX);
        (address.rests, address.rests_until) = (address.rests.saturating_add(1), Some(now + rest));
        tracing::debug!(?source, ?rest, "no connections are taken from there for a while");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn from(text: &str) -> Multiaddr {
        text.parse().unwrap()
    }

    fn source(text: &str) -> Source {
        Source::of(&from(text))
    }

    #[test]
    fn one_address_knocks_at_a_pace_and_others_at_theirs() {
        let (doors, start) = (Doors::default(), Instant::now());
        let (flood, quic) = (from("/ip4/45.2.0.9/tcp/5"), from("/ip4/45.2.0.9/udp/5/quic-v1"));
        let opened = (0..1000).filter(|_| doors.open(&flood, start)).count();
        assert_eq!(opened, KNOCKS_BURST as usize);
        assert!(!doors.open(&quic, start), "QUIC counts like TCP");
        assert!(doors.open(&from("/ip4/45.2.0.10/tcp/5"), start));
        assert!(doors.open(&from("/ip4/127.0.0.1/tcp/5"), start));
        let mut opened = 0;
        for ms in 0..10_000 {
            opened += u32::from(doors.open(&flood, start + Duration::from_millis(ms)));
        }
        assert!((19..=21).contains(&opened), "{opened} in ten seconds");
    }

    #[test]
    fn rests_grow_and_known_addresses_go_on() {
        let (doors, mut now) = (Doors::default(), Instant::now());
        let (text, home) = ("/ip4/45.2.0.9/tcp/5", "/ip4/45.3.0.9/tcp/5");
        let mut lasted = Vec::new();
        for _ in 0..9 {
            doors.rest(source(text), now);
            doors.rest(source(text), now);
            let since = now;
            while !doors.open(&from(text), now) {
                now += SECOND;
            }
            lasted.push((now - since).as_secs());
        }
        assert_eq!(lasted, [10, 20, 40, 80, 160, 320, 640, 640, 640]);
        doors.know(source(home), now);
        doors.rest(source(home), now);
        assert!(doors.open(&from(home), now), "members are there");
        assert!(doors.knows(&source(home), now + KNOWN_FOR / 2));
        assert!(!doors.knows(&source(home), now + KNOWN_FOR));
        doors.rest(Source::Here, now);
        assert!(doors.open(&from("/ip4/127.0.0.1/tcp/5"), now));
    }
}
