//! The address book: addresses of peers, the tellers of them, and the results of dials.
//!
//! Bounded: [`PEERS_MAX`] peers, [`ADDRESSES_MAX`] addresses each, and at most [`INTRODUCED_MAX`] peers introduced by
//! one teller, so that one liar cannot push all others out (`docs/reliability.md`, T8, T10).

use super::reason::Reason;
use crate::addresses::{self, Route};
use libp2p::{Multiaddr, PeerId};
use starling_protocol::engine::io::Time;
use std::collections::BTreeMap;

/// Peers in the book.
pub const PEERS_MAX: usize = 4096;
/// Addresses of one peer.
pub const ADDRESSES_MAX: usize = 16;
/// Peers that are in the book because one teller named them.
pub const INTRODUCED_MAX: usize = 512;

/// Relayed addresses that are dialed beside those of a better route.
const RELAYED_BESIDE: usize = 2;
/// An address that once worked and has failed so often since may be dropped for a newer one.
const STALE_FAILURES: u32 = 3;

/// The origin of an address. Earlier variants are trusted more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The user wrote it.
    Configured,
    /// It was in the ticket.
    Ticket,
    /// The peer said so itself, over a connection that its key authenticated.
    Itself,
    /// Announced on the run's gossip.
    Gossip,
    /// The peer is announced under the run's key.
    Dht,
    /// Heard on the local network.
    Mdns,
}

impl Origin {
    /// Whether addresses of this origin are never dropped.
    pub fn is_given(self) -> bool {
        matches!(self, Origin::Configured | Origin::Ticket)
    }
}

/// One address of a peer.
#[derive(Clone, Debug)]
pub struct Known {
    pub address: Multiaddr,
    pub origin: Origin,
    pub reached: Option<Time>,
    pub failures: u32,
    pub reason: Option<Reason>,
}

#[derive(Debug, Default)]
struct Entry {
    known: Vec<Known>,
    teller: Option<PeerId>,
    seen: Time,
    /// The peer must not be evicted: it is connected, configured or wanted.
    pinned: bool,
    rests_until: Time,
}

/// The book.
#[derive(Debug, Default)]
pub struct Book {
    entries: BTreeMap<PeerId, Entry>,
    introduced: BTreeMap<PeerId, usize>,
}

impl Book {
    /// Adds an address that was judged fit to be dialed. Returns whether it is in the book afterwards.
    pub fn add(&mut self, peer: PeerId, address: Multiaddr, origin: Origin, teller: Option<PeerId>, now: Time) -> bool {
        if !self.entries.contains_key(&peer) && !self.admit(peer, origin, teller, now) {
            metrics::counter!("starling_refused_total", "reason" => "address_book_full").increment(1);
            return false;
        }
        let Some(entry) = self.entries.get_mut(&peer) else { return false };
        entry.seen = now;
        entry.pinned |= origin.is_given();
        if let Some(known) = entry.known.iter_mut().find(|k| k.address == address) {
            known.origin = known.origin.min(origin);
            return true;
        }
        if entry.known.len() >= ADDRESSES_MAX && !entry.drop_worst() {
            metrics::counter!("starling_refused_total", "reason" => "addresses_of_peer_full").increment(1);
            return false;
        }
        entry.known.push(Known { address, origin, reached: None, failures: 0, reason: None });
        true
    }

    fn admit(&mut self, peer: PeerId, origin: Origin, teller: Option<PeerId>, now: Time) -> bool {
        let teller = teller.filter(|teller| *teller != peer);
        let told_too_much = teller.is_some_and(|t| self.introduced.get(&t).is_some_and(|n| *n >= INTRODUCED_MAX));
        if told_too_much && !origin.is_given() {
            return false;
        }
        if self.entries.len() >= PEERS_MAX && !self.evict() {
            return false;
        }
        if let Some(teller) = teller {
            *self.introduced.entry(teller).or_default() += 1;
        }
        self.entries.insert(peer, Entry { teller, seen: now, ..Entry::default() });
        true
    }

    /// Makes room by forgetting the peer whose last mention is the oldest.
    fn evict(&mut self) -> bool {
        let idle = self.entries.iter().filter(|(_, e)| !e.pinned);
        let Some(oldest) = idle.min_by_key(|(_, e)| e.seen).map(|(peer, _)| *peer) else { return false };
        self.remove(&oldest);
        true
    }

    fn remove(&mut self, peer: &PeerId) {
        let teller = self.entries.remove(peer).and_then(|e| e.teller);
        if let Some(teller) = teller
            && let Some(count) = self.introduced.get_mut(&teller)
        {
            *count -= 1;
            if *count == 0 {
                self.introduced.remove(&teller);
            }
        }
    }

    /// Sets whether the peer must stay.
    pub fn pin(&mut self, peer: &PeerId, pinned: bool) {
        if let Some(entry) = self.entries.get_mut(peer) {
            entry.pinned = pinned || entry.known.iter().any(|k| k.origin.is_given());
        }
    }

    /// The peer must not be dialed as a candidate before `until`.
    pub fn rest(&mut self, peer: &PeerId, until: Time) {
        if let Some(entry) = self.entries.get_mut(peer) {
            entry.rests_until = until;
        }
    }

    pub fn rests_until(&self, peer: &PeerId) -> Time {
        self.entries.get(peer).map_or(Time(0), |e| e.rests_until)
    }

    /// The address led to the peer.
    pub fn reached(&mut self, peer: &PeerId, address: &Multiaddr, now: Time) {
        if let Some(known) = self.find(peer, address) {
            (known.reached, known.failures, known.reason) = (Some(now), 0, None);
        }
    }

    /// The address did not lead to the peer. If it leads to another one, it is dropped, unless the user gave it.
    pub fn failed(&mut self, peer: &PeerId, address: &Multiaddr, reason: &Reason) {
        let Some(known) = self.find(peer, address) else { return };
        known.failures = known.failures.saturating_add(1);
        known.reason = Some(reason.clone());
        let is_theirs = matches!(reason, Reason::WrongPeer { .. } | Reason::Ourselves) && !known.origin.is_given();
        if is_theirs && let Some(entry) = self.entries.get_mut(peer) {
            entry.known.retain(|k| k.address != *address);
        }
    }

    fn find(&mut self, peer: &PeerId, address: &Multiaddr) -> Option<&mut Known> {
        self.entries.get_mut(peer)?.known.iter_mut().find(|k| k.address == *address)
    }

    /// The address at which the peer was reached last.
    pub fn last_reached(&self, peer: &PeerId) -> Option<&Multiaddr> {
        let reached = self.known(peer).iter().filter(|k| k.reached.is_some());
        reached.max_by_key(|k| k.reached).map(|k| &k.address)
    }

    /// A peer's addresses.
    pub fn known(&self, peer: &PeerId) -> &[Known] {
        self.entries.get(peer).map_or(&[], |e| e.known.as_slice())
    }

    /// The addresses of a peer to dial next: those of the best route that has addresses outside `tried`, the last
    /// successful ones first, with relayed ones beside. A peer with a place on a relay is seldom reached otherwise, and
    /// to try the others first would take long.
    pub fn candidates(&self, peer: &PeerId, tried: &[Multiaddr], count: usize) -> Vec<Multiaddr> {
        let fresh: Vec<&Known> = self.known(peer).iter().filter(|k| !tried.contains(&k.address)).collect();
        let Some(best) = fresh.iter().filter_map(|k| addresses::route(&k.address)).min() else { return Vec::new() };
        let of_route = |route: Route| {
            let mut chosen: Vec<&Known> =
                fresh.iter().filter(|k| addresses::route(&k.address) == Some(route)).copied().collect();
            chosen.sort_by_key(|k| (std::cmp::Reverse(k.reached), k.failures, k.origin));
            chosen
        };
        let mut chosen = of_route(best);
        if best != Route::Relayed {
            let relayed = of_route(Route::Relayed);
            let beside = relayed.len().min(RELAYED_BESIDE).min(count.saturating_sub(1));
            chosen.truncate(count.saturating_sub(beside));
            chosen.extend(relayed.into_iter().take(beside));
        }
        chosen.into_iter().take(count).map(|k| k.address.clone()).collect()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl Entry {
    /// Drops the least valuable address; `false` when all are worth keeping.
    fn drop_worst(&mut self) -> bool {
        let worth = |k: &Known| (k.reached, std::cmp::Reverse(k.failures), std::cmp::Reverse(k.origin));
        let is_stale = |k: &Known| k.reached.is_none() || k.failures >= STALE_FAILURES;
        let droppable = self.known.iter().enumerate().filter(|(_, k)| !k.origin.is_given() && is_stale(k));
        let Some(worst) = droppable.min_by_key(|(_, k)| worth(k)).map(|(index, _)| index) else { return false };
        // A newcomer does not push out an address that the peer itself gave and that has not failed.
        if self.known[worst].failures == 0 && self.known[worst].origin <= Origin::Itself {
            return false;
        }
        self.known.remove(worst);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: usize) -> Multiaddr {
        format!("/ip4/192.0.2.7/tcp/{port}").parse().unwrap()
    }

    #[test]
    fn ten_thousand_addresses_of_one_peer_become_sixteen() {
        let (mut book, peer) = (Book::default(), PeerId::random());
        for port in 1..=10_000 {
            book.add(peer, address(port), Origin::Dht, None, Time(port as u64));
        }
        assert_eq!((book.known(&peer).len(), book.len()), (ADDRESSES_MAX, 1));
    }

    #[test]
    fn given_and_working_addresses_outlive_a_flood() {
        let (mut book, peer) = (Book::default(), PeerId::random());
        book.add(peer, address(1), Origin::Configured, None, Time(0));
        book.add(peer, address(2), Origin::Dht, None, Time(0));
        book.reached(&peer, &address(2), Time(1));
        for port in 3..1000 {
            book.add(peer, address(port), Origin::Dht, None, Time(2));
        }
        let kept: Vec<Multiaddr> = book.known(&peer).iter().map(|k| k.address.clone()).collect();
        assert!(kept.contains(&address(1)) && kept.contains(&address(2)));
        assert_eq!(book.candidates(&peer, &[], 1), [address(2)], "what worked last comes first");
    }

    #[test]
    fn one_teller_cannot_fill_the_book() {
        let (mut book, liar) = (Book::default(), PeerId::random());
        let told = (0..2 * INTRODUCED_MAX)
            .filter(|n| book.add(PeerId::random(), address(n + 1), Origin::Gossip, Some(liar), Time(0)))
            .count();
        assert_eq!(told, INTRODUCED_MAX);
        assert!(book.add(PeerId::random(), address(1), Origin::Gossip, Some(PeerId::random()), Time(0)));
    }

    #[test]
    fn the_book_forgets_the_oldest_and_never_the_pinned() {
        let mut book = Book::default();
        let pinned = PeerId::random();
        book.add(pinned, address(1), Origin::Configured, None, Time(0));
        for n in 0..PEERS_MAX + 100 {
            assert!(book.add(PeerId::random(), address(n + 1), Origin::Mdns, None, Time(n as u64 + 1)));
        }
        assert_eq!(book.len(), PEERS_MAX);
        assert_eq!(book.known(&pinned).len(), 1);
        assert!(book.introduced.is_empty());
    }

    #[test]
    fn an_address_that_is_somebody_elses_is_dropped_unless_the_user_gave_it() {
        let (mut book, peer) = (Book::default(), PeerId::random());
        let wrong = Reason::WrongPeer { found: PeerId::random() };
        book.add(peer, address(1), Origin::Dht, None, Time(0));
        book.add(peer, address(2), Origin::Ticket, None, Time(0));
        book.failed(&peer, &address(1), &wrong);
        book.failed(&peer, &address(2), &wrong);
        assert_eq!(book.known(&peer).len(), 1);
        assert_eq!(book.known(&peer)[0].reason, Some(wrong));
    }

    #[test]
    fn tcp_before_quic_and_relays_beside() {
        let (mut book, peer) = (Book::default(), PeerId::random());
        let quic: Multiaddr = "/ip4/192.0.2.7/udp/1/quic-v1".parse().unwrap();
        let relayed: Multiaddr = format!("/ip4/192.0.2.9/tcp/1/p2p/{}/p2p-circuit", PeerId::random()).parse().unwrap();
        for a in [&relayed, &quic, &address(1), &address(2)] {
            book.add(peer, a.clone(), Origin::Dht, None, Time(0));
        }
        let first = book.candidates(&peer, &[], 8);
        assert_eq!(first, [address(1), address(2), relayed.clone()]);
        assert_eq!(book.candidates(&peer, &[], 2), [address(1), relayed.clone()]);
        assert_eq!(book.candidates(&peer, &[], 1), [address(1)]);
        assert_eq!(book.candidates(&peer, &first, 8), std::slice::from_ref(&quic));
        assert_eq!(book.candidates(&peer, &[address(1), address(2), quic], 8), [relayed]);
    }
}
