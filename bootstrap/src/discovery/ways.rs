//! The connections to each peer: direct ones, and relayed ones, which are only there to open a direct one.
//!
//! Over a relayed connection two peers agree on a moment at which both dial (dcutr), and exchange nothing else. It is
//! closed when there is a direct one, or when there is none after [`PUNCHING`].

use libp2p::PeerId;
use libp2p::swarm::ConnectionId;
use starling_protocol::engine::io::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// Three attempts at a direct connection, each with the time of an unanswered dial.
const PUNCHING: Duration = Duration::from_secs(40);
/// The other end of a direct connection may learn of it a moment later.
const LINGER: Duration = Duration::from_secs(2);

/// All open connections.
#[derive(Debug, Default)]
pub struct Ways {
    open: BTreeMap<ConnectionId, Way>,
}

#[derive(Debug)]
struct Way {
    peer: PeerId,
    /// The time until which a relayed connection stays open.
    relayed: Option<Time>,
    /// A direct connection has come about since.
    served: bool,
}

/// A direct connection has come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// There was none to this peer before.
    pub first: bool,
    /// A relay has brought the two peers together.
    pub punched: bool,
}

/// A connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    Direct {
        last: bool,
    },
    /// `vain`: there was no direct connection, and no other attempt at one is under way.
    Relayed {
        vain: bool,
    },
}

impl Ways {
    /// Notes a direct connection. Relayed connections to the peer are not needed any more.
    pub fn direct(&mut self, id: ConnectionId, peer: PeerId, now: Time) -> Opened {
        let first = !self.has_direct(&peer);
        let until = super::dialer::after(now, LINGER);
        let mut punched = false;
        for way in self.open.values_mut().filter(|way| way.peer == peer) {
            if let Some(closes) = &mut way.relayed {
                *closes = until.min(*closes);
                way.served = true;
                punched = first;
            }
        }
        self.open.insert(id, Way { peer, relayed: None, served: true });
        Opened { first, punched }
    }

    pub fn relayed(&mut self, id: ConnectionId, peer: PeerId, now: Time) {
        let served = self.has_direct(&peer);
        let until = if served { now } else { super::dialer::after(now, PUNCHING) };
        self.open.insert(id, Way { peer, relayed: Some(until), served });
    }

    /// There will be no direct connection to the peer for now.
    pub fn give_up(&mut self, peer: &PeerId, now: Time) {
        for way in self.open.values_mut().filter(|way| way.peer == *peer) {
            if let Some(closes) = &mut way.relayed {
                *closes = now.min(*closes);
            }
        }
    }

    pub fn closed(&mut self, id: ConnectionId) -> Option<Closed> {
        let Way { peer, relayed, served } = self.open.remove(&id)?;
        Some(match relayed {
            None => Closed::Direct { last: !self.has_direct(&peer) },
            Some(_) => Closed::Relayed { vain: !served && !self.open.values().any(|way| way.peer == peer) },
        })
    }

    pub fn is_relayed(&self, id: &ConnectionId) -> bool {
        self.open.get(id).is_some_and(|way| way.relayed.is_some())
    }

    pub fn has_direct(&self, peer: &PeerId) -> bool {
        self.open.values().any(|way| way.peer == *peer && way.relayed.is_none())
    }

    /// Relayed connections whose time is over, each once.
    pub fn overdue(&mut self, now: Time) -> Vec<ConnectionId> {
        let due = |way: &Way| way.relayed.is_some_and(|closes| closes <= now);
        let over: Vec<ConnectionId> = self.open.iter().filter(|(_, way)| due(way)).map(|(id, _)| *id).collect();
        for id in &over {
            if let Some(way) = self.open.get_mut(id) {
                way.relayed = Some(Time(u64::MAX));
            }
        }
        over
    }

    /// The time to ask for those that are overdue.
    pub fn wake_at(&self) -> Option<Time> {
        self.open.values().filter_map(|way| way.relayed).filter(|closes| closes.0 < u64::MAX).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: usize) -> ConnectionId {
        ConnectionId::new_unchecked(n)
    }

    #[test]
    fn a_relayed_connection_ends_soon_after_a_direct_one_has_come() {
        let (mut ways, peer) = (Ways::default(), PeerId::random());
        ways.relayed(id(1), peer, Time(0));
        assert!(ways.is_relayed(&id(1)) && !ways.has_direct(&peer));
        assert_eq!(ways.direct(id(2), peer, Time(10)), Opened { first: true, punched: true });
        assert_eq!(ways.direct(id(3), peer, Time(11)), Opened { first: false, punched: false });
        assert_eq!(ways.wake_at(), Some(Time(10 + LINGER.as_micros() as u64)));
        assert_eq!(ways.overdue(Time(11 + LINGER.as_micros() as u64)), [id(1)]);
        assert_eq!((ways.overdue(Time(u64::MAX - 1)), ways.wake_at()), (Vec::new(), None));
        assert_eq!(ways.closed(id(1)), Some(Closed::Relayed { vain: false }));
        assert_eq!(ways.closed(id(2)), Some(Closed::Direct { last: false }));
        assert_eq!(ways.closed(id(3)), Some(Closed::Direct { last: true }));
        assert_eq!(ways.closed(id(3)), None);
    }

    #[test]
    fn without_a_direct_one_it_ends_after_a_while_and_in_vain() {
        let (mut ways, peer, other) = (Ways::default(), PeerId::random(), PeerId::random());
        ways.relayed(id(1), peer, Time(0));
        ways.relayed(id(2), peer, Time(0));
        assert_eq!(ways.direct(id(3), other, Time(0)), Opened { first: true, punched: false });
        assert!(ways.overdue(Time(PUNCHING.as_micros() as u64 - 1)).is_empty());
        ways.give_up(&peer, Time(5));
        assert_eq!(ways.overdue(Time(5)).len(), 2);
        assert_eq!(ways.closed(id(1)), Some(Closed::Relayed { vain: false }), "another attempt is under way");
        assert_eq!(ways.closed(id(2)), Some(Closed::Relayed { vain: true }));
        ways.relayed(id(4), other, Time(7));
        assert_eq!(ways.overdue(Time(7)), [id(4)], "it is not needed from the beginning");
        assert_eq!(ways.closed(id(3)), Some(Closed::Direct { last: true }));
        assert_eq!(ways.closed(id(4)), Some(Closed::Relayed { vain: false }), "there was a direct one");
    }
}
