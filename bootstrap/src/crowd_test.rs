//! The peers that get a place, and those that make way for them.

use super::*;
use std::net::IpAddr;

fn at(n: u32) -> Source {
    Source::Address(IpAddr::V4((0x2d00_0000 + n).into()))
}

struct Crowd {
    behaviour: Behaviour,
    next: usize,
    now: Instant,
}

impl Crowd {
    fn new() -> Self {
        Self { behaviour: Behaviour::default(), next: 0, now: Instant::now() }
    }

    fn id(&mut self) -> ConnectionId {
        self.next += 1;
        ConnectionId::new_unchecked(self.next)
    }

    /// A connection of a peer, from its arrival to its place.
    fn comes(&mut self, peer: PeerId, source: Source) -> Result<ConnectionId, Crowded> {
        let id = self.id();
        self.behaviour.arrive(id, &Multiaddr::empty(), source, self.now)?;
        self.behaviour.enter(id, peer, (source, Way::In, false), self.now).inspect_err(|_| {
            // The same events as the swarm's.
        })?;
        Ok(id)
    }

    fn stranger(&mut self, source: Source) -> Result<ConnectionId, Crowded> {
        self.comes(PeerId::random(), source)
    }

    /// A connection that this node has dialed.
    fn is_met(&mut self, peer: PeerId, source: Source) -> Result<ConnectionId, Crowded> {
        let id = self.id();
        self.behaviour.enter(id, peer, (source, Way::Out, false), self.now)?;
        Ok(id)
    }

    fn of(&self, source: Source) -> usize {
        self.behaviour.present.values().filter(|place| place.source == source).count()
    }
}

#[test]
fn handshakes_of_one_address_are_few_and_some_are_kept_for_known_addresses() {
    let mut crowd = Crowd::new();
    let arrives = |crowd: &mut Crowd, source| {
        let id = crowd.id();
        crowd.behaviour.arrive(id, &Multiaddr::empty(), source, crowd.now).is_ok()
    };
    assert_eq!((0..100).filter(|_| arrives(&mut crowd, at(1))).count(), ARRIVING_PER_ADDRESS);
    assert!(arrives(&mut crowd, at(2)), "others have places of their own");
    for n in 3..100 {
        arrives(&mut crowd, at(n));
    }
    assert_eq!(crowd.behaviour.arriving.len(), ARRIVING_FROM_UNKNOWN_MAX);
    crowd.behaviour.doors.know(at(1000), crowd.now);
    assert!(arrives(&mut crowd, at(1000)), "where a member has been there is room");
    let ids: Vec<_> = crowd.behaviour.arriving.keys().copied().collect();
    ids.into_iter().for_each(|id| crowd.behaviour.is_gone(id));
    assert!(crowd.behaviour.arriving.is_empty(), "places are given back");
}

/// Before, three addresses with eight silent connections each kept every newcomer out.
#[test]
fn the_oldest_handshake_of_a_crowd_makes_way() {
    use futures::FutureExt;
    let mut crowd = Crowd::new();
    let mut handshakes = Vec::new();
    for n in 0..ARRIVING_FROM_UNKNOWN_MAX as u32 {
        let from: Multiaddr = format!("/ip4/45.0.0.{}/tcp/{}", n % 3, n + 1).parse().unwrap();
        let id = crowd.id();
        let silent = futures::future::pending::<std::io::Result<()>>();
        handshakes.push(crowd.behaviour.doors.handshakes().begin(&from, silent));
        crowd.behaviour.arrive(id, &from, Source::of(&from), crowd.now).expect("there is room");
    }
    let mut arrives = |n: u32| {
        let id = crowd.id();
        crowd.behaviour.arrive(id, &Multiaddr::empty(), at(n), crowd.now)
    };
    let newcomers = (100..200).filter(|n| arrives(*n).is_ok()).count();
    assert_eq!(newcomers, ARRIVING_FROM_UNKNOWN_MAX - 3, "until each address has one");
    assert!(arrives(1).is_err(), "a crowd does not come back so");
    let ended = handshakes.iter_mut().filter_map(|handshake| handshake.now_or_never()).count();
    assert_eq!(ended, newcomers);
    assert_eq!(crowd.behaviour.arriving.len(), ARRIVING_FROM_UNKNOWN_MAX);
}

/// Before, 24 addresses with a silent connection each kept every newcomer out until libp2p ended them, eight seconds
/// later.
#[test]
fn a_silent_handshake_makes_way_though_no_address_has_more_than_one() {
    use futures::FutureExt;
    let mut crowd = Crowd::new();
    let mut handshakes = Vec::new();
    for n in 0..ARRIVING_FROM_UNKNOWN_MAX as u32 {
        let from: Multiaddr = format!("/ip4/45.0.0.{n}/tcp/5").parse().unwrap();
        let id = crowd.id();
        let silent = futures::future::pending::<std::io::Result<()>>();
        handshakes.push(crowd.behaviour.doors.handshakes().begin(&from, silent));
        crowd.behaviour.arrive(id, &from, Source::of(&from), crowd.now).expect("there is room");
    }
    let arrives = |crowd: &mut Crowd, n: u32| {
        let (id, from) = (crowd.id(), format!("/ip4/45.1.0.{n}/tcp/5").parse::<Multiaddr>().unwrap());
        crowd.behaviour.arrive(id, &from, Source::of(&from), crowd.now)
    };
    assert!(arrives(&mut crowd, 1).is_err(), "an honest one takes a fraction of a second");
    // All of these looked at the clock for the first time a moment after the crowd's.
    crowd.now = Instant::now() + SILENT;
    let newcomers = (1..100).filter(|n| arrives(&mut crowd, *n).is_ok()).count();
    assert_eq!(newcomers, ARRIVING_FROM_UNKNOWN_MAX, "each silent one, and none of those that have just come");
    let ended = handshakes.iter_mut().filter_map(|handshake| handshake.now_or_never()).count();
    assert_eq!(ended, newcomers);
}

/// A handshake in which bytes keep coming has longer, but not for ever.
#[test]
fn a_handshake_that_is_fed_byte_by_byte_makes_way_later() {
    use futures::FutureExt;
    let crowd = Crowd::new();
    let from: Multiaddr = "/ip4/45.0.0.1/tcp/5".parse().unwrap();
    let silent = futures::future::pending::<std::io::Result<()>>();
    let mut fed = crowd.behaviour.doors.handshakes().begin(&from, silent);
    let began = crowd.now.checked_sub(SILENT).unwrap();
    let arriving = Arriving { from: from.clone(), source: Source::of(&from), serial: 0, since: began };
    assert!((&mut fed).now_or_never().is_none(), "something has just happened in it");
    assert!(!crowd.behaviour.is_overdue(&arriving, crowd.now));
    assert!(crowd.behaviour.is_overdue(&arriving, began + SLOW));
    crowd.behaviour.doors.handshakes().give_up(&from);
    assert!(crowd.behaviour.is_overdue(&arriving, crowd.now), "without a word of its it counts from its beginning");
}

/// Before, two addresses filled all 128 places: 64 each.
#[test]
fn two_addresses_do_not_fill_the_places() {
    let mut crowd = Crowd::new();
    for _ in 0..500 {
        for address in [at(1), at(2)] {
            drop(crowd.stranger(address));
        }
    }
    assert_eq!((crowd.of(at(1)), crowd.of(at(2))), (STRANGERS_PER_ADDRESS, STRANGERS_PER_ADDRESS));
    crowd.stranger(at(3)).expect("a newcomer from elsewhere");
}

#[test]
fn many_addresses_leave_room_for_one_more_and_for_known_peers() {
    let mut crowd = Crowd::new();
    for _ in 0..500 {
        for n in 0..16 {
            drop(crowd.stranger(at(n)));
        }
    }
    let strangers: usize = (0..16).map(|n| crowd.of(at(n))).sum();
    assert_eq!(strangers, STRANGERS_MAX);
    // A peer from elsewhere takes the place of the oldest connection of a crowd, and does not make way for the crowd's
    // next one.
    let honest = crowd.stranger(at(99)).expect("a newcomer from elsewhere");
    assert_eq!(crowd.behaviour.leaving.len(), 1);
    for n in 0..16 {
        assert!(crowd.stranger(at(n)).is_err(), "a crowd does not grow");
    }
    assert!(crowd.behaviour.present.contains_key(&honest));
    // Known peers take all the rest, and then the strangers' places too.
    let members: Vec<PeerId> = (0..PLACES_MAX + 1).map(|_| PeerId::random()).collect();
    crowd.behaviour.set_known(members.iter().copied().collect());
    for (n, member) in members[..PLACES_MAX].iter().enumerate() {
        crowd.comes(*member, at(n as u32 % 4)).expect("members always get in, from wherever");
    }
    assert!(matches!(crowd.comes(members[PLACES_MAX], at(5)), Err(Crowded::Full)), "all places are members'");
    assert!(crowd.behaviour.present.len() == PLACES_MAX && !crowd.behaviour.present.contains_key(&honest));
}

#[test]
fn a_stranger_that_becomes_a_member_makes_room_for_strangers() {
    let mut crowd = Crowd::new();
    let lab: Vec<PeerId> = (0..STRANGERS_PER_ADDRESS).map(|_| PeerId::random()).collect();
    for peer in &lab {
        crowd.comes(*peer, at(1)).expect("a flock behind one router");
    }
    assert!(matches!(crowd.stranger(at(1)), Err(Crowded::Address)));
    crowd.behaviour.set_known(lab.iter().copied().collect());
    crowd.stranger(at(1)).expect("the others are no strangers any more");
    assert!(crowd.behaviour.doors.knows(&at(1), crowd.now), "handshakes from there are let in");
    let named = PeerId::random();
    crowd.behaviour.name(named);
    for _ in 0..STRANGERS_PER_ADDRESS {
        drop(crowd.stranger(at(1)));
    }
    crowd.comes(named, at(1)).expect("whom the user named");
}

#[test]
fn this_machine_is_no_crowd_and_relays_are_one() {
    let mut crowd = Crowd::new();
    let here = (0..200).filter(|_| crowd.stranger(Source::Here).is_ok()).count();
    assert_eq!(here, STRANGERS_MAX);
    assert!(crowd.stranger(at(1)).is_err(), "none of them is sent away");
    let mut crowd = Crowd::new();
    let relayed = (0..200).filter(|_| crowd.stranger(Source::Relay).is_ok()).count();
    assert_eq!(relayed, STRANGERS_PER_ADDRESS);
    let named = (0..200).filter(|_| crowd.is_met(PeerId::random(), Source::Named).is_ok()).count();
    assert_eq!(named, DIALED_STRANGERS_PER_ADDRESS, "names are one crowd, too");
}

/// Before, one address with a port for each key filled all connections, so that members were refused in both
/// directions.
#[test]
fn dialed_strangers_have_a_share_and_members_always_get_in() {
    let mut crowd = Crowd::new();
    let met = (0..500).filter(|_| crowd.is_met(PeerId::random(), at(1)).is_ok()).count();
    assert_eq!(met, DIALED_STRANGERS_PER_ADDRESS);
    for _ in 0..50 {
        for n in 1..=16 {
            drop(crowd.is_met(PeerId::random(), at(n)));
            drop(crowd.stranger(at(n)));
        }
    }
    let strangers = crowd.behaviour.present.len();
    assert_eq!(strangers, STRANGERS_MAX + DIALED_STRANGERS_MAX, "whoever fills the one does not fill the other");
    crowd.is_met(PeerId::random(), at(99)).expect("a stranger elsewhere");
    let members: Vec<PeerId> = (0..CONNECTIONS_MAX).map(|_| PeerId::random()).collect();
    crowd.behaviour.set_known(members.iter().copied().collect());
    for (n, member) in members.iter().enumerate() {
        let met = if n % 2 == 0 { crowd.comes(*member, at(1)) } else { crowd.is_met(*member, at(1)) };
        met.expect("members always get in, from wherever, in both directions");
        assert!(crowd.behaviour.present.len() <= CONNECTIONS_MAX);
    }
    assert!(matches!(crowd.is_met(PeerId::random(), at(7)), Err(Crowded::Full)), "all places are members'");
    let ids: Vec<_> = crowd.behaviour.present.keys().copied().collect();
    ids.into_iter().for_each(|id| crowd.behaviour.is_gone(id));
    assert!(crowd.behaviour.present.is_empty(), "places are given back");
}

/// Before, 32 connections by QUIC had a window each, which their peers could fill.
#[test]
fn strangers_by_quic_are_one_of_an_address_in_each_direction() {
    let mut crowd = Crowd::new();
    let mut enters = |peer, source, way| {
        let id = crowd.id();
        crowd.behaviour.enter(id, peer, (source, way, true), crowd.now).is_ok()
    };
    for way in [Way::In, Way::Out] {
        let count = (0..20).filter(|_| enters(PeerId::random(), at(1), way)).count();
        assert_eq!(count, QUIC_STRANGERS_PER_ADDRESS, "{way:?}");
        assert!(enters(PeerId::random(), at(2), way), "others have their own");
        assert!((0..20).all(|_| enters(PeerId::random(), Source::Here, way)));
    }
    let member = PeerId::random();
    crowd.behaviour.set_known([member].into());
    let id = crowd.id();
    crowd.behaviour.enter(id, member, (at(1), Way::In, true), crowd.now).expect("a member");
    crowd.stranger(at(1)).expect("by TCP");
    for (address, quic) in [("/ip4/45.2.0.9/udp/5/quic-v1", true), ("/ip4/45.2.0.9/tcp/5", false)] {
        assert_eq!(is_quic(&address.parse().unwrap()), quic);
    }
}
