//! The places for connections, and the peers that have them. A part of the places is for *known* peers: those that the
//! user named, and those that the swarm's owner knows. Strangers share the rest by the address that they come from.
//!
//! A connection that this node has dialed counts as well: a stranger's address is the word of a stranger, and one
//! address can offer a port for each of any number of keys. Dialed connections have places of their own, so that a peer
//! that fills the inbound places does not keep the node from dialing.
//!
//! An address has a bounded share of the strangers' places. When all of them are taken, a newcomer from an address with
//! few connections takes the place of the oldest connection of the address with most, as long as that address keeps as
//! many as the newcomer's gets. So a peer that floods from a handful of addresses ends with a handful of shares, and a
//! newcomer from elsewhere gets in. Between equally crowded addresses the newcomer is refused. If the oldest were sent
//! away in every case, a peer that floods would gain: it brings new keys faster than an honest newcomer is admitted,
//! and would turn all others out. If the newcomer were refused in every case, the first comers would keep all places.
//! The oldest connection of an address goes, since a stranger that is of use is soon a known peer.

use crate::addresses::{self, Route};
use crate::doors::Doors;
use crate::source::Source;
use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::{
    CloseConnection, ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent,
    THandlerOutEvent, ToSwarm, dummy,
};
use libp2p::{Multiaddr, PeerId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::Instant;

/// Inbound connections.
pub const PLACES_MAX: usize = 256;
/// Inbound connections of strangers; the rest is for known peers, which may have all.
pub const STRANGERS_MAX: usize = 128;
/// Strangers from one address: there may be many nodes behind one router.
pub const STRANGERS_PER_ADDRESS: usize = 32;
/// Strangers that this node has dialed.
pub const DIALED_STRANGERS_MAX: usize = 64;
/// The share of one address in them. The node needs only a few to find its flock, whose members are strangers no more
/// then.
pub const DIALED_STRANGERS_PER_ADDRESS: usize = 16;
/// Strangers by QUIC at one address, in each direction. Unread data fills a window of 2 MiB, and libp2p has no smaller
/// window for some connections only.
pub const QUIC_STRANGERS_PER_ADDRESS: usize = 1;
/// Connections in both directions. If all are taken, a known peer takes a stranger's place.
pub const CONNECTIONS_MAX: usize = 384;
/// Connections in their handshakes; their peers are not known yet.
pub const ARRIVING_MAX: usize = 32;
/// Handshakes from addresses where no known peer has been.
const ARRIVING_FROM_UNKNOWN_MAX: usize = 24;
/// Handshakes from one address.
const ARRIVING_PER_ADDRESS: usize = 8;
/// A handshake without any event for so long is silent. Each of its steps takes one round trip, which is shorter.
const SILENT: Duration = Duration::from_secs(1);
/// A handshake that has gone on for so long may have been fed byte by byte.
const SLOW: Duration = Duration::from_secs(3);

/// The error of a connection that is one too many.
#[derive(Debug, thiserror::Error)]
pub enum Crowded {
    #[error("too many connections from one address")]
    Address,
    #[error("all places for strangers are taken")]
    Full,
}

impl Crowded {
    fn reason(&self) -> &'static str {
        match self {
            Self::Address => "address_crowded",
            Self::Full => "places_full",
        }
    }
}

/// The side that began a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    In,
    Out,
}

impl Way {
    /// The shares of strangers' connections: of all, and of one address.
    fn shares(self) -> (usize, usize) {
        match self {
            Self::In => (STRANGERS_MAX, STRANGERS_PER_ADDRESS),
            Self::Out => (DIALED_STRANGERS_MAX, DIALED_STRANGERS_PER_ADDRESS),
        }
    }
}

/// An open connection.
#[derive(Clone, Copy)]
struct Place {
    peer: PeerId,
    source: Source,
    way: Way,
    is_quic: bool,
    /// The number of the connection, for its age.
    serial: u64,
}

/// A connection in its handshake.
struct Arriving {
    from: Multiaddr,
    source: Source,
    serial: u64,
    since: Instant,
}

/// Gives the places. Emits no events. Its memory is bounded by the limits.
#[derive(Default)]
pub struct Behaviour {
    doors: Doors,
    arriving: BTreeMap<ConnectionId, Arriving>,
    present: BTreeMap<ConnectionId, Place>,
    serial: u64,
    /// Connections to be closed; at most one for each newcomer that the swarm has let in.
    leaving: VecDeque<(PeerId, ConnectionId)>,
    waker: Option<Waker>,
}

impl Behaviour {
    pub fn new(doors: Doors) -> Self {
        Self { doors, ..Self::default() }
    }

    /// Adds a peer that the user named.
    pub fn name(&mut self, peer: PeerId) {
        self.doors.name(peer);
    }

    /// Sets the peers that are known from now on, beside those that the user named.
    pub fn set_known(&mut self, peers: BTreeSet<PeerId>) {
        self.doors.set_known(peers);
        let now = Instant::now();
        for place in self.present.values().filter(|place| self.is_known(&place.peer)) {
            self.doors.know(place.source, now);
        }
    }

    fn is_known(&self, peer: &PeerId) -> bool {
        self.doors.is_known(peer)
    }

    /// Gives a handshake a place. A silent peer holds one for seconds, and an honest one for a fraction of a second. So
    /// when all are taken, the oldest handshake of the most crowded address makes way, as long as that address has more
    /// than the newcomer's. Between equally crowded addresses the oldest silent or slow handshake makes way.
    fn arrive(&mut self, id: ConnectionId, from: &Multiaddr, source: Source, now: Instant) -> Result<(), Crowded> {
        if source != Source::Here {
            let mut crowds: BTreeMap<Source, usize> = BTreeMap::new();
            for other in self.arriving.values().filter(|other| other.source != Source::Here) {
                *crowds.entry(other.source).or_default() += 1;
            }
            let ours = crowds.get(&source).copied().unwrap_or_default();
            if ours >= ARRIVING_PER_ADDRESS {
                return Err(Crowded::Address);
            }
            let all = crowds.values().sum::<usize>();
            crowds.retain(|other, _| !self.doors.knows(other, now));
            let is_known = self.doors.knows(&source, now);
            if all >= ARRIVING_MAX || (!is_known && crowds.values().sum::<usize>() >= ARRIVING_FROM_UNKNOWN_MAX) {
                // A connection through a relay has no handshake that could be ended.
                crowds.remove(&Source::Relay);
                let most = crowds.iter().max_by_key(|(_, count)| **count).map(|(most, count)| (*most, *count));
                let oldest = match most.filter(|(_, count)| is_known || *count > ours + 1) {
                    Some((most, _)) => self.oldest_handshake(|arriving| arriving.source == most),
                    None => self.oldest_handshake(|arriving| {
                        crowds.contains_key(&arriving.source) && self.is_overdue(arriving, now)
                    }),
                };
                self.give_up(oldest.ok_or(Crowded::Full)?);
            }
        }
        self.serial += 1;
        self.arriving.insert(id, Arriving { from: from.clone(), source, serial: self.serial, since: now });
        Ok(())
    }

    fn oldest_handshake(&self, fits: impl Fn(&Arriving) -> bool) -> Option<ConnectionId> {
        let fit = self.arriving.iter().filter(|(_, arriving)| fits(arriving));
        fit.min_by_key(|(_, arriving)| arriving.serial).map(|(id, _)| *id)
    }

    fn is_overdue(&self, arriving: &Arriving, now: Instant) -> bool {
        let moved = self.doors.handshakes().moved_at(&arriving.from).unwrap_or(arriving.since);
        now >= moved.max(arriving.since) + SILENT || now >= arriving.since + SLOW
    }

    fn give_up(&mut self, oldest: ConnectionId) {
        if let Some(arriving) = self.arriving.remove(&oldest) {
            metrics::counter!("starling_refused_total", "reason" => "handshake_gave_way").increment(1);
            self.doors.handshakes().give_up(&arriving.from);
        }
    }

    /// A handshake is done, and shows the peer's id.
    fn enter(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        (source, way, is_quic): (Source, Way, bool),
        now: Instant,
    ) -> Result<(), Crowded> {
        self.arriving.remove(&id);
        if self.is_known(&peer) {
            self.doors.know(source, now);
            // Strangers give up their places for known peers.
            if way == Way::In && self.inbound() >= PLACES_MAX {
                let stranger = self.oldest_of(|place| place.way == Way::In).ok_or(Crowded::Full)?;
                self.send_away(stranger);
            } else if self.present.len() >= CONNECTIONS_MAX {
                let stranger = self.oldest_of(|_| true).ok_or(Crowded::Full)?;
                self.send_away(stranger);
            }
        } else {
            self.enter_as_stranger(source, way, is_quic)?;
        }
        self.serial += 1;
        self.present.insert(id, Place { peer, source, way, is_quic, serial: self.serial });
        Ok(())
    }

    fn enter_as_stranger(&mut self, source: Source, way: Way, is_quic: bool) -> Result<(), Crowded> {
        let mut strangers: BTreeMap<Source, usize> = BTreeMap::new();
        let mut by_quic = 0;
        for place in self.present.values().filter(|place| place.way == way && !self.is_known(&place.peer)) {
            *strangers.entry(place.source).or_default() += 1;
            by_quic += usize::from(place.is_quic && place.source == source);
        }
        let (all, of_address) = way.shares();
        let ours = strangers.get(&source).copied().unwrap_or_default();
        if source != Source::Here && (ours >= of_address || (is_quic && by_quic >= QUIC_STRANGERS_PER_ADDRESS)) {
            return Err(Crowded::Address);
        }
        let is_room = self.present.len() < CONNECTIONS_MAX && (way == Way::Out || self.inbound() < PLACES_MAX);
        if is_room && strangers.values().sum::<usize>() < all {
            return Ok(());
        }
        // The processes of this machine have many keys at one place, and are no crowd.
        strangers.remove(&Source::Here);
        let most = strangers.iter().max_by_key(|(_, count)| **count).map(|(source, count)| (*source, *count));
        let (most, _) = most.filter(|(_, count)| *count > ours + 1).ok_or(Crowded::Full)?;
        let oldest = self.oldest_of(|place| place.way == way && place.source == most).ok_or(Crowded::Full)?;
        self.send_away(oldest);
        Ok(())
    }

    fn inbound(&self) -> usize {
        self.present.values().filter(|place| place.way == Way::In).count()
    }

    /// The oldest stranger's connection that `fits` accepts.
    fn oldest_of(&self, fits: impl Fn(&Place) -> bool) -> Option<ConnectionId> {
        let strangers = self.present.iter().filter(|(_, place)| !self.is_known(&place.peer) && fits(place));
        strangers.min_by_key(|(_, place)| place.serial).map(|(id, _)| *id)
    }

    fn send_away(&mut self, id: ConnectionId) {
        let Some(place) = self.present.remove(&id) else { return };
        metrics::counter!("starling_refused_total", "reason" => "place_given_away").increment(1);
        self.leaving.push_back((place.peer, id));
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn is_gone(&mut self, id: ConnectionId) {
        self.arriving.remove(&id);
        self.present.remove(&id);
    }
}

fn denied(crowded: Crowded) -> ConnectionDenied {
    metrics::counter!("starling_refused_total", "reason" => crowded.reason()).increment(1);
    ConnectionDenied::new(crowded)
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = dummy::ConnectionHandler;
    type ToSwarm = Infallible;

    fn handle_pending_inbound_connection(
        &mut self,
        id: ConnectionId,
        local: &Multiaddr,
        from: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        self.arrive(id, from, Source::of_inbound(local, from), Instant::now()).map_err(denied)
    }

    fn handle_established_inbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        local: &Multiaddr,
        from: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.enter(id, peer, (Source::of_inbound(local, from), Way::In, is_quic(from)), Instant::now())
            .map_err(denied)?;
        Ok(dummy::ConnectionHandler)
    }

    fn handle_established_outbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        address: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.enter(id, peer, (Source::of(address), Way::Out, is_quic(address)), Instant::now()).map_err(denied)?;
        Ok(dummy::ConnectionHandler)
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        match event {
            // Covers connections that another part of the node has denied.
            FromSwarm::ListenFailure(failed) => self.is_gone(failed.connection_id),
            FromSwarm::DialFailure(failed) => self.is_gone(failed.connection_id),
            FromSwarm::ConnectionClosed(closed) => self.is_gone(closed.connection_id),
            _ => {}
        }
    }

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: THandlerOutEvent<Self>) {
        match event {}
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        match self.leaving.pop_front() {
            Some((peer_id, id)) => {
                Poll::Ready(ToSwarm::CloseConnection { peer_id, connection: CloseConnection::One(id) })
            }
            None => {
                self.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Whether the connection is or may be a direct one by QUIC: a `/dnsaddr` name, which stands for whole addresses, does
/// not say.
fn is_quic(address: &Multiaddr) -> bool {
    addresses::route(address) == Some(Route::Quic) || matches!(address.iter().next(), Some(Protocol::Dnsaddr(_)))
}

#[cfg(test)]
#[path = "crowd_test.rs"]
mod tests;
