//! Decides which peers to dial, and when: a state machine without sockets, clock or randomness of its own.
//!
//! *Anchors* (given by the user or a ticket) and *wanted* peers (members of the flock) are dialed for ever, with
//! backoff from 0.2 s over 1 s to 30 s. *Candidates* (found under the run's key, heard on the local network or by
//! gossip) are dialed until they have failed [`CANDIDATE_ROUNDS_MAX`] rounds, and again when they are found anew. A
//! *round* tries every known address once, TCP before QUIC (unless TCP is refused), and relays beside. The number of
//! dials at once and their rate are limited. Half of both is kept for *preferred* peers: anchors, wanted peers, and
//! those that the owner knows. All others are strangers. The address of a stranger is the word of a stranger, which may
//! be wrong a thousand times. In a flock too large for connections between all, the owner names its *contacts*
//! ([`Contacts`]): they are wanted, and other members are not dialed.

mod choice;
mod contacts;
mod credit;
mod share;
mod target;

use self::credit::Credit;
use self::target::{State, Target};
use super::backoff::Backoff;
use super::book::{Book, Origin};
use super::reason::Reason;
use crate::addresses::{self, Route};
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use starling_protocol::engine::io::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub use self::contacts::Contacts;
pub use self::credit::DIALS_MAX;
pub use self::target::{Trouble, Wish};

/// Addresses of one peer tried at once.
const ADDRESSES_AT_ONCE: usize = 8;
/// The rest of a peer that was met through a relay and could not be connected directly; doubled each time.
const UNPUNCHED_REST: Duration = Duration::from_secs(60);
const CANDIDATE_ROUNDS_MAX: u32 = 8;
/// Rounds, 15 s in all, in which QUIC is not tried at a machine that has just answered on TCP, even by a refusal.
const REFUSED_ROUNDS_MAX: u32 = 5;
const CANDIDATE_REST: Duration = Duration::from_secs(60);
/// A peer's addresses come one by one from the local network, QUIC's before TCP's or after.
const GATHER: Duration = Duration::from_millis(100);
/// When two nodes find each other at once, the one with the larger id waits so long for the other's dial.
const YIELD: Duration = Duration::from_millis(300);
/// The same when both have a place on a relay: two attempts at a direct connection would disturb each other.
const YIELD_RELAYED: Duration = Duration::from_secs(3);
/// Peers that may be excluded at a time.
pub const EXCLUDED_MAX: usize = 1024;

/// One dial to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dial {
    pub peer: PeerId,
    /// Addresses without `/p2p`; at most 8, all of one route except relayed ones.
    pub addresses: Vec<Multiaddr>,
}

/// The state machine.
pub struct Dialer {
    me: PeerId,
    book: Book,
    targets: BTreeMap<PeerId, Target>,
    known: BTreeSet<PeerId>,
    contacts: Option<Contacts>,
    excluded: BTreeMap<PeerId, Time>,
    backoff: Backoff,
    credit: Credit,
    /// The next time at which something is due, as of the last poll, and whether anything has changed since. Most
    /// events change nothing here.
    next: Option<Time>,
    changed: bool,
}

impl Dialer {
    /// `seed` varies the jitter; equal seeds give equal behaviour.
    pub fn new(me: PeerId, seed: u64, now: Time) -> Self {
        Self {
            me,
            book: Book::default(),
            targets: BTreeMap::new(),
            known: BTreeSet::new(),
            contacts: None,
            excluded: BTreeMap::new(),
            backoff: Backoff::new(seed),
            credit: Credit::full(now),
            next: None,
            changed: true,
        }
    }

    /// Sets the peers that are no strangers from now on: their dials go first, even if they are mere candidates.
    pub fn set_known(&mut self, peers: BTreeSet<PeerId>) {
        self.known = peers;
        self.changed = true;
    }

    /// Whether there is nothing to do. Every change of a target, of an excluded peer or of the known peers ends that.
    fn is_quiet(&self, now: Time) -> bool {
        !self.changed && self.next.is_none_or(|next| now < next)
    }

    /// Learns addresses that have been judged fit, and makes the peer a target if their origin leads to the flock.
    /// Returns how many of them are in the book.
    pub fn learn(
        &mut self,
        peer: PeerId,
        list: &[Multiaddr],
        origin: Origin,
        teller: Option<PeerId>,
        now: Time,
    ) -> usize {
        if peer == self.me {
            return 0;
        }
        let brings_relay = self.brings_relay(&peer, list);
        let bare = list.iter().map(addresses::without_peer);
        let known = bare.filter(|a| self.book.add(peer, a.clone(), origin, teller, now)).count();
        let wish = match origin {
            Origin::Configured | Origin::Ticket => Some(Wish::Anchor),
            Origin::Gossip | Origin::Dht | Origin::Mdns => Some(Wish::Candidate),
            Origin::Itself => None,
        };
        if let Some(wish) = wish.filter(|_| known > 0) {
            let start = if origin == Origin::Mdns { after(now, GATHER) } else { now };
            self.wish(peer, wish, start);
        }
        if brings_relay && known > 0 {
            self.hurry(&peer, now);
        }
        if known > 0 {
            self.go_on(&peer, now);
        }
        known
    }

    /// Whether one of the addresses is a new relayed one.
    fn brings_relay(&self, peer: &PeerId, list: &[Multiaddr]) -> bool {
        let is_known = |a: &Multiaddr| self.book.known(peer).iter().any(|known| known.address == *a);
        let relayed = list.iter().filter(|a| addresses::route(a) == Some(Route::Relayed));
        relayed.map(addresses::without_peer).any(|address| !is_known(&address))
    }

    /// There is a new address of a peer that could not be reached: its next dial is soon, except for a peer that no
    /// relay has helped to reach.
    fn hurry(&mut self, peer: &PeerId, now: Time) {
        self.changed = true;
        let soon = if self.me > *peer { after(now, YIELD_RELAYED) } else { now };
        if let Some(target) = self.targets.get_mut(peer)
            && let State::Waiting(at) = target.state
            && target.unpunched == 0
        {
            target.state = State::Waiting(at.min(soon));
        }
    }

    /// Makes the peer a target of at least this wish.
    pub fn wish(&mut self, peer: PeerId, wish: Wish, now: Time) {
        let is_apart = wish == Wish::Candidate && !self.meets(&peer);
        if peer == self.me || is_apart || self.is_excluded(&peer, now) {
            return;
        }
        let start = match wish {
            Wish::Anchor => now,
            _ if self.me > peer => after(now, YIELD),
            _ => now,
        };
        // A candidate that was given up rests for a while, however often it is named again.
        let start = match wish {
            Wish::Candidate => start.max(self.book.rests_until(&peer)),
            _ => start,
        };
        let fresh =
            Target { wish, state: State::Waiting(start), tried: Vec::new(), rounds: 0, unpunched: 0, trouble: None };
        if !self.targets.contains_key(&peer) && self.standing(&peer, &fresh) == Wish::Candidate && !self.make_room() {
            metrics::counter!("starling_refused_total", "reason" => "candidates_full").increment(1);
            return;
        }
        self.changed = true;
        let target = self.targets.entry(peer).or_insert(fresh);
        target.wish = target.wish.max(wish);
        // The pin keeps the addresses as long as the target.
        self.book.pin(&peer, true);
    }

    /// The peer is no member any more: no longer dialed, unless the user named it.
    pub fn unwish(&mut self, peer: &PeerId) {
        self.changed = true;
        if let Some(target) = self.targets.get_mut(peer)
            && target.wish == Wish::Wanted
        {
            target.wish = Wish::Candidate;
            if target.state != State::Connected {
                self.give_up(peer);
            }
        }
    }

    /// Stops dials to the peer until `until`. Returns the peer that is pardoned for it when too many are excluded.
    #[must_use]
    pub fn exclude(&mut self, peer: PeerId, until: Time) -> Option<PeerId> {
        self.changed = true;
        let mut pardoned = None;
        if self.excluded.len() >= EXCLUDED_MAX && !self.excluded.contains_key(&peer) {
            pardoned = self.excluded.iter().min_by_key(|(_, until)| **until).map(|(peer, _)| *peer);
            pardoned.map(|peer| self.excluded.remove(&peer));
        }
        self.excluded.insert(peer, until);
        match self.targets.get_mut(&peer) {
            Some(target) if target.wish == Wish::Anchor => {
                target.tried.clear();
                target.state = State::Waiting(until);
            }
            Some(_) => self.give_up(&peer),
            None => {}
        }
        pardoned
    }

    /// Ends the exclusion of peers whose time is over, and returns them.
    pub fn pardon(&mut self, now: Time) -> Vec<PeerId> {
        if self.is_quiet(now) {
            return Vec::new();
        }
        let over: Vec<PeerId> =
            self.excluded.iter().filter(|(_, until)| **until <= now).map(|(peer, _)| *peer).collect();
        for peer in &over {
            self.excluded.remove(peer);
        }
        over
    }

    pub fn is_excluded(&self, peer: &PeerId, now: Time) -> bool {
        self.excluded.get(peer).is_some_and(|until| *until > now)
    }

    /// A direct connection to the peer exists; with an `address` if this node dialed it.
    pub fn connected(&mut self, peer: PeerId, address: Option<&Multiaddr>, now: Time) {
        self.changed = true;
        if let Some(address) = address {
            self.book.reached(&peer, &addresses::without_peer(address), now);
        }
        if let Some(target) = self.targets.get_mut(&peer) {
            target.state = State::Connected;
            target.tried.clear();
            target.trouble = None;
            (target.rounds, target.unpunched) = (0, 0);
        }
        self.book.pin(&peer, true);
    }

    /// A relay has connected this node with the peer; with an `address` if this node dialed it. Nothing is dialed
    /// during the attempt at a direct connection.
    pub fn relayed(&mut self, peer: PeerId, address: Option<&Multiaddr>, now: Time) {
        self.changed = true;
        if let Some(address) = address {
            self.book.reached(&peer, &addresses::without_peer(address), now);
        }
        if let Some(target) = self.targets.get_mut(&peer) {
            target.state = State::Connected;
            target.tried.clear();
        }
    }

    /// No direct connection came about with a peer that was met through a relay.
    pub fn unpunched(&mut self, peer: &PeerId, now: Time) {
        self.changed = true;
        let Some(times) = self.targets.get(peer).map(|t| t.unpunched.saturating_add(1)) else { return };
        let wait = self.backoff.jittered(UNPUNCHED_REST.saturating_mul(1 << (times - 1).min(4)));
        let Some(target) = self.targets.get_mut(peer) else { return };
        target.unpunched = times;
        target.trouble = Some((None, Reason::NoDirectWay));
        target.state = State::Waiting(after(now, wait));
        if target.wish == Wish::Candidate && times >= CANDIDATE_ROUNDS_MAX {
            self.give_up(peer);
            self.book.rest(peer, after(now, CANDIDATE_REST));
        }
    }

    /// The last direct connection to the peer is gone. `idle`: it was closed because it was not used.
    pub fn disconnected(&mut self, peer: &PeerId, idle: bool, now: Time) {
        self.changed = true;
        let wait = self.backoff.after(0);
        let Some((wish, standing)) = self.targets.get(peer).map(|t| (t.wish, self.standing(peer, t))) else {
            self.book.pin(peer, false);
            return;
        };
        let is_useless = wish == Wish::Candidate && (idle || !self.meets(peer));
        // The peer waits for its turn from now on, like newly found ones.
        if is_useless || (standing == Wish::Candidate && !self.make_room()) {
            self.give_up(peer);
            return;
        }
        if let Some(target) = self.targets.get_mut(peer)
            && target.state == State::Connected
        {
            target.state = State::Waiting(after(now, wait));
        }
    }

    /// A dial failed: each address with its reason, `None` for all of them.
    pub fn failed(&mut self, peer: &PeerId, reasons: &[(Option<Multiaddr>, Reason)], now: Time) {
        self.changed = true;
        for (address, reason) in reasons {
            if let Some(address) = address {
                self.book.failed(peer, address, reason);
            }
        }
        let Some(target) = self.targets.get_mut(peer) else { return };
        let new: Vec<Multiaddr> =
            reasons.iter().filter_map(|(a, _)| a.clone()).filter(|a| !target.tried.contains(a)).collect();
        if target.state == State::Connected {
            return;
        }
        target.trouble = reasons.last().cloned().or(target.trouble.take());
        if target.state != State::Dialing {
            return;
        }
        let progress = !new.is_empty();
        target.tried.extend(new);
        // Left are another route, or addresses that were not reached because a wrong peer answered first.
        if progress && !self.addresses_left(peer).is_empty() {
            self.wait(peer, now);
            return;
        }
        self.end_round(peer, now);
    }

    fn wait(&mut self, peer: &PeerId, until: Time) {
        if let Some(target) = self.targets.get_mut(peer) {
            target.state = State::Waiting(until);
        }
    }

    /// The addresses to dial next in the round. A machine that refuses TCP is up, and the peer's process is not. A dial
    /// by QUIC would wait there and become the connection to the next process; with QUIC, unlike TCP, nothing shows
    /// that a process was killed. When a handshake on TCP broke, two nodes dialed each other at the same moment, and
    /// TCP works, too. QUIC is tried all the same if the user gave that address, if QUIC led to the peer the last time,
    /// and after some rounds.
    fn addresses_left(&self, peer: &PeerId) -> Vec<Multiaddr> {
        let Some(target) = self.targets.get(peer) else { return Vec::new() };
        let mut left = self.book.candidates(peer, &target.tried, ADDRESSES_AT_ONCE);
        let is = |address: &Multiaddr, route: Route| addresses::route(address) == Some(route);
        let by_quic = self.book.last_reached(peer).is_some_and(|address| is(address, Route::Quic));
        if target.rounds < REFUSED_ROUNDS_MAX && !by_quic {
            let known = self.book.known(peer);
            let answers = |host: Option<Protocol<'_>>| {
                known.iter().any(|k| {
                    let answered = matches!(k.reason, Some(Reason::Refused | Reason::Broken));
                    answered
                        && target.tried.contains(&k.address)
                        && is(&k.address, Route::Tcp)
                        && k.address.iter().next() == host
                })
            };
            let is_given = |a: &Multiaddr| known.iter().any(|k| k.address == *a && k.origin.is_given());
            left.retain(|a| !is(a, Route::Quic) || is_given(a) || !answers(a.iter().next()));
        }
        left
    }

    /// The peer was reached and is of no use. The reason is shown until it is connected again.
    pub fn blame(&mut self, peer: &PeerId, reason: Reason) {
        if let Some(target) = self.targets.get_mut(peer) {
            target.trouble = Some((None, reason));
        }
    }

    fn end_round(&mut self, peer: &PeerId, now: Time) {
        let Some(rounds) = self.targets.get(peer).map(|t| t.rounds.saturating_add(1)) else { return };
        let wait = self.backoff.after(rounds);
        let Some(target) = self.targets.get_mut(peer) else { return };
        // Two nodes that dialed each other at the same moment must not do so again.
        let met = matches!(target.trouble, Some((_, Reason::Broken)));
        let wait = if met && self.me > *peer { wait + YIELD } else { wait };
        target.rounds = rounds;
        target.tried.clear();
        target.state = State::Waiting(after(now, wait));
        if target.wish == Wish::Candidate && rounds >= CANDIDATE_ROUNDS_MAX {
            // The peer stays in the book, and becomes a target again when it is found again.
            self.give_up(peer);
            self.book.rest(peer, after(now, CANDIDATE_REST));
        }
    }

    /// The dials that are due.
    pub fn poll(&mut self, now: Time) -> Vec<Dial> {
        if self.is_quiet(now) {
            return Vec::new();
        }
        self.credit.collect(now);
        let mut due: Vec<(std::cmp::Reverse<Wish>, Time, PeerId)> = Vec::new();
        for (peer, target) in &self.targets {
            if let State::Waiting(at) = target.state
                && at <= now
            {
                due.push((std::cmp::Reverse(self.standing(peer, target)), at, *peer));
            }
        }
        due.sort_unstable();
        let mut busy = self.dialing();
        let mut dials = Vec::new();
        for (std::cmp::Reverse(standing), _, peer) in due {
            // Strangers come last, so no other peer that may still be dialed is left out.
            if !self.has_slot(standing, busy) || !self.credit.has_one(self.left_by(standing)) {
                break;
            }
            if let Some(dial) = self.start(peer, now) {
                busy.count(standing);
                dials.push(dial);
            }
        }
        (self.next, self.changed) = (self.agenda(), false);
        dials
    }

    fn start(&mut self, peer: PeerId, now: Time) -> Option<Dial> {
        let addresses = self.addresses_left(&peer);
        let target = self.targets.get_mut(&peer)?;
        if addresses.is_empty() {
            target.trouble.get_or_insert((None, Reason::NoAddress));
            self.end_round(&peer, now);
            return None;
        }
        target.state = State::Dialing;
        self.credit.spend();
        Some(Dial { peer, addresses })
    }

    /// The time of the next poll, if nothing happens before.
    pub fn wake_at(&self) -> Option<Time> {
        if self.changed { self.agenda() } else { self.next }
    }

    fn agenda(&self) -> Option<Time> {
        let busy = self.dialing();
        let waiting = self.targets.iter().filter_map(|(peer, t)| match t.state {
            State::Waiting(at) => Some((self.standing(peer, t), at)),
            _ => None,
        });
        // A dial that ends makes room and is an event of its own.
        let fit = waiting.filter(|(standing, _)| self.has_slot(*standing, busy));
        let next_dial = fit.map(|(standing, at)| at.max(self.credit.at(self.left_by(standing)))).min();
        next_dial.into_iter().chain(self.excluded.values().copied()).min()
    }

    /// Targets that are not connected, with the reasons; those that the user named first.
    pub fn troubles(&self, now: Time) -> Vec<Trouble> {
        let mut list: Vec<Trouble> = self.targets.iter().filter_map(|(peer, t)| t.describe(peer, now)).collect();
        list.sort_by_key(|t| (std::cmp::Reverse(t.wish), t.peer));
        list
    }

    /// The wish of a peer that is a target.
    pub fn wish_of(&self, peer: &PeerId) -> Option<Wish> {
        self.targets.get(peer).map(|t| t.wish)
    }

    pub fn book(&self) -> &Book {
        &self.book
    }
}

/// `now + wait`.
pub fn after(now: Time, wait: Duration) -> Time {
    Time(now.0.saturating_add(u64::try_from(wait.as_micros()).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod dialer_test;
