use super::super::book;
use super::share::{CANDIDATES_MAX, STRANGERS_DIALED_MAX};
use super::*;
use proptest::prelude::*;

const SECOND: u64 = 1_000_000;

fn address(port: u16) -> Multiaddr {
    format!("/ip4/192.0.2.7/tcp/{port}").parse().unwrap()
}

fn quic(port: u16) -> Multiaddr {
    format!("/ip4/192.0.2.7/udp/{port}/quic-v1").parse().unwrap()
}

/// A new peer with an id above this node's.
fn someone() -> PeerId {
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);
    let mut id = [0; 32];
    id[..4].copy_from_slice(&COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed).to_be_bytes());
    crate::identity::peer_id(&starling_protocol::NodeId(id))
}

fn dialer() -> Dialer {
    // The smallest id never yields.
    Dialer::new(crate::identity::peer_id(&starling_protocol::NodeId([0; 32])), 7, Time(0))
}

fn refused(list: &[Multiaddr]) -> Vec<(Option<Multiaddr>, Reason)> {
    list.iter().map(|a| (Some(a.clone()), Reason::Refused)).collect()
}

/// Fails every dial at once, for so many seconds; returns the times of all dials.
fn fail_for(dialer: &mut Dialer, from: Time, seconds: u64) -> Vec<Time> {
    let (mut now, mut times) = (from, Vec::new());
    while now.0 < from.0 + seconds * SECOND {
        for dial in dialer.poll(now) {
            times.push(now);
            dialer.failed(&dial.peer, &refused(&dial.addresses), now);
        }
        match dialer.wake_at() {
            Some(next) => now = Time(next.0.max(now.0 + 1)),
            None => break,
        }
    }
    times
}

#[test]
fn an_anchor_is_tried_for_ever_with_growing_waits_up_to_thirty_seconds() {
    let (mut dialer, peer) = (dialer(), someone());
    dialer.learn(peer, &[address(1)], Origin::Configured, None, Time(0));
    let times = fail_for(&mut dialer, Time(0), 3600);
    let waits: Vec<f64> = times.windows(2).map(|w| (w[1].0 - w[0].0) as f64 / SECOND as f64).collect();
    assert!(
        (0.2..=0.25).contains(&waits[0]) && (1.0..=1.25).contains(&waits[1]) && (2.0..=2.5).contains(&waits[2]),
        "{waits:?}"
    );
    assert!(waits[6..].iter().all(|w| (24.0..=30.0).contains(w)), "{waits:?}");
    assert!(waits[6..].windows(2).any(|w| w[0] != w[1]), "no jitter: {waits:?}");
    let trouble = &dialer.troubles(Time(3600 * SECOND))[0];
    assert_eq!((trouble.peer, trouble.wish, &trouble.reason), (peer, Wish::Anchor, &Reason::Refused));
    assert!(trouble.rounds > 100);
}

#[test]
fn a_candidate_is_given_up_and_comes_back_when_found_again() {
    let (mut dialer, peer) = (dialer(), someone());
    dialer.learn(peer, &[address(1)], Origin::Dht, None, Time(0));
    let times = fail_for(&mut dialer, Time(0), 3600);
    assert_eq!(times.len() as u32, CANDIDATE_ROUNDS_MAX);
    assert_eq!(dialer.wish_of(&peer), None);
    let last = *times.last().unwrap();
    dialer.learn(peer, &[address(1)], Origin::Dht, None, Time(last.0 + SECOND));
    let again = fail_for(&mut dialer, Time(last.0 + SECOND), 120);
    assert_eq!(again[0], after(last, CANDIDATE_REST), "it rests first");
}

#[test]
fn quic_is_tried_when_tcp_fails_and_in_the_same_round() {
    let (mut dialer, peer) = (dialer(), someone());
    dialer.learn(peer, &[quic(1), address(1), address(2)], Origin::Ticket, None, Time(0));
    let first = dialer.poll(Time(0)).remove(0);
    assert_eq!(first.addresses, [address(1), address(2)]);
    assert!(dialer.poll(Time(0)).is_empty(), "one dial at a time");
    let silent = |list: &[Multiaddr]| -> Vec<_> { list.iter().map(|a| (Some(a.clone()), Reason::TimedOut)).collect() };
    dialer.failed(&peer, &silent(&first.addresses), Time(5));
    assert_eq!(dialer.poll(Time(5)).remove(0).addresses, [quic(1)]);
    dialer.failed(&peer, &silent(&[quic(1)]), Time(6));
    assert!(dialer.poll(Time(7)).is_empty(), "the round is over");
}

/// The next process of a killed peer must be met by TCP, whose connections end with a process.
#[test]
fn quic_is_not_tried_for_a_while_where_tcp_is_refused() {
    let other: Multiaddr = "/ip4/192.0.2.8/udp/1/quic-v1".parse().unwrap();
    let (mut dialer, peer) = (dialer(), someone());
    dialer.learn(peer, &[quic(1), other.clone(), address(1)], Origin::Dht, None, Time(0));
    let first = dialer.poll(Time(0)).remove(0);
    dialer.failed(&peer, &refused(&first.addresses), Time(5));
    assert_eq!(dialer.poll(Time(5)).remove(0).addresses, std::slice::from_ref(&other), "another machine may differ");
    dialer.failed(&peer, &refused(&[other]), Time(6));
    assert!(dialer.poll(Time(7)).is_empty(), "the round is over");
    let (mut dialer, mut now, mut rounds) = (self::dialer(), Time(0), 0);
    dialer.learn(peer, &[quic(1), address(1)], Origin::Dht, None, now);
    loop {
        let dial = dialer.poll(now).remove(0);
        if dial.addresses == [quic(1)] {
            break;
        }
        assert_eq!(dial.addresses, [address(1)]);
        dialer.failed(&peer, &refused(&dial.addresses), now);
        (now, rounds) = (now.max(dialer.wake_at().unwrap()), rounds + 1);
    }
    assert_eq!(rounds, REFUSED_ROUNDS_MAX + 1, "a firewall may refuse TCP for good");
    assert!((15 * SECOND..20 * SECOND).contains(&now.0), "{now:?}");
    dialer.connected(peer, Some(&quic(1)), now);
    dialer.disconnected(&peer, false, now);
    now = dialer.wake_at().unwrap();
    assert_eq!(dialer.poll(now).remove(0).addresses, [address(1)]);
    dialer.failed(&peer, &refused(&[address(1)]), now);
    assert_eq!(dialer.poll(now).remove(0).addresses, [quic(1)], "where QUIC worked it is tried at once");
    let (mut dialer, peer) = (self::dialer(), someone());
    dialer.learn(peer, &[quic(1), address(1)], Origin::Configured, None, Time(0));
    let first = dialer.poll(Time(0)).remove(0);
    dialer.failed(&peer, &refused(&first.addresses), Time(1));
    assert_eq!(dialer.poll(Time(1)).remove(0).addresses, [quic(1)], "the user has said so");
}

/// Two peers that dial each other at the same moment both take themselves for the client: TCP is tried again, and not
/// by both at once.
#[test]
fn after_a_broken_handshake_tcp_is_tried_again_by_the_smaller_id_first() {
    let (small, large) = {
        let (a, b) = (someone(), someone());
        if a < b { (a, b) } else { (b, a) }
    };
    let broken = |list: &[Multiaddr]| -> Vec<_> { list.iter().map(|a| (Some(a.clone()), Reason::Broken)).collect() };
    let again = |me: PeerId, peer: PeerId| {
        let mut dialer = Dialer::new(me, 7, Time(0));
        dialer.learn(peer, &[quic(1), address(1)], Origin::Dht, None, Time(0));
        let now = dialer.wake_at().unwrap();
        let dial = dialer.poll(now).remove(0);
        assert_eq!(dial.addresses, [address(1)]);
        dialer.failed(&peer, &broken(&dial.addresses), now);
        assert!(dialer.poll(now).is_empty(), "QUIC is not tried");
        let next = dialer.wake_at().unwrap();
        assert_eq!(dialer.poll(next).remove(0).addresses, [address(1)]);
        next.0 - now.0
    };
    let (first, second) = (again(small, large), again(large, small));
    assert_eq!(second, first + YIELD.as_micros() as u64);
}

#[test]
fn addresses_that_the_local_network_tells_one_by_one_are_dialed_together() {
    let (mut dialer, peer) = (dialer(), someone());
    dialer.learn(peer, &[quic(1)], Origin::Mdns, None, Time(0));
    assert!(dialer.poll(Time(0)).is_empty());
    dialer.learn(peer, &[address(1)], Origin::Mdns, None, Time(2));
    let next = dialer.wake_at().unwrap();
    assert_eq!(next, after(Time(0), GATHER));
    assert_eq!(dialer.poll(next).remove(0).addresses, [address(1)], "TCP first");
}

#[test]
fn a_wrong_peer_at_one_address_does_not_hide_the_right_one() {
    let (mut dialer, peer) = (dialer(), someone());
    dialer.learn(peer, &[address(1), address(2)], Origin::Dht, None, Time(0));
    assert_eq!(dialer.poll(Time(0)).remove(0).addresses.len(), 2);
    let wrong = Reason::WrongPeer { found: someone() };
    dialer.failed(&peer, &[(Some(address(1)), wrong)], Time(1));
    assert_eq!(dialer.poll(Time(1)).remove(0).addresses, [address(2)]);
}

#[test]
fn a_lost_member_is_redialed_soon_and_an_idle_candidate_is_not() {
    let (mut dialer, member, passer) = (dialer(), someone(), someone());
    for (peer, wish) in [(member, Wish::Wanted), (passer, Wish::Candidate)] {
        dialer.learn(peer, &[address(1)], Origin::Dht, None, Time(0));
        dialer.wish(peer, wish, Time(0));
        dialer.connected(peer, Some(&address(1)), Time(1));
    }
    assert!(dialer.wake_at().is_none());
    dialer.disconnected(&member, true, Time(SECOND));
    dialer.disconnected(&passer, true, Time(SECOND));
    let next = dialer.wake_at().unwrap();
    assert!((SECOND + 200_000..=SECOND + 250_000).contains(&next.0), "{next:?}");
    let dials = dialer.poll(next);
    assert_eq!(dials.iter().map(|d| d.peer).collect::<Vec<_>>(), [member]);
    dialer.failed(&member, &refused(&dials[0].addresses), next);
    dialer.unwish(&member);
    assert_eq!(dialer.wake_at(), None);
}

#[test]
fn the_larger_id_yields_to_the_smaller() {
    let (low, high) = (dialer().me, crate::identity::peer_id(&starling_protocol::NodeId([255; 32])));
    let mut dialer = Dialer::new(high, 7, Time(0));
    dialer.learn(low, &[address(1)], Origin::Dht, None, Time(0));
    assert!(dialer.poll(Time(0)).is_empty());
    assert_eq!(dialer.wake_at(), Some(after(Time(0), YIELD)));
    dialer.learn(low, &[address(1)], Origin::Ticket, None, Time(0));
    dialer.connected(low, None, Time(1));
    assert!(dialer.poll(after(Time(0), YIELD)).is_empty(), "the other's dial arrived");
}

#[test]
fn the_excluded_are_left_alone_until_pardoned() {
    let (mut dialer, peer, anchor) = (dialer(), someone(), someone());
    dialer.learn(anchor, &[address(2)], Origin::Configured, None, Time(0));
    assert_eq!((dialer.exclude(peer, Time(10 * SECOND)), dialer.exclude(anchor, Time(10 * SECOND))), (None, None));
    dialer.learn(peer, &[address(1)], Origin::Dht, None, Time(0));
    assert!(dialer.poll(Time(9 * SECOND)).is_empty());
    assert_eq!(dialer.wake_at(), Some(Time(10 * SECOND)));
    assert_eq!(dialer.pardon(Time(10 * SECOND)).len(), 2);
    let dials = dialer.poll(Time(10 * SECOND));
    assert_eq!(dials.iter().map(|d| d.peer).collect::<Vec<_>>(), [anchor], "what the user named is not forgotten");
}

/// Before, the gate refused a peer for ever after the dialer had forgotten it.
#[test]
fn a_peer_that_makes_way_among_the_excluded_is_told_to_the_caller() {
    let mut dialer = dialer();
    let all: Vec<PeerId> = (0..2 * EXCLUDED_MAX).map(|_| someone()).collect();
    let until = |n: usize| Time((20 + n as u64) * SECOND);
    let pardoned: Vec<PeerId> =
        all.iter().enumerate().filter_map(|(n, peer)| dialer.exclude(*peer, until(n))).collect();
    assert_eq!(pardoned, all[..EXCLUDED_MAX], "those whose time would be over first");
    assert_eq!(dialer.exclude(all[EXCLUDED_MAX], until(0)), None, "it is excluded already");
    assert_eq!(dialer.excluded.len(), EXCLUDED_MAX);
}

#[test]
fn dials_are_limited_at_once_and_in_rate_and_anchors_go_first() {
    let mut dialer = dialer();
    for port in 1..=200 {
        dialer.learn(someone(), &[address(port)], Origin::Dht, None, Time(0));
    }
    let anchor = someone();
    dialer.learn(anchor, &[address(1)], Origin::Configured, None, Time(0));
    let burst = dialer.poll(Time(0));
    assert_eq!((burst.len(), burst[0].peer), (DIALS_MAX, anchor));
    assert_eq!(dialer.wake_at(), None, "it waits for a dial to end");
    for dial in &burst {
        dialer.connected(dial.peer, None, Time(1));
    }
    assert!(dialer.poll(Time(2)).is_empty(), "the burst is spent");
    let dials = dialer.poll(dialer.wake_at().unwrap());
    assert_eq!(dials.len(), 1);
    let in_ten_seconds: usize = (1..=100)
        .map(|tenth| {
            let now = Time(tenth * SECOND / 10 + SECOND);
            let dials = dialer.poll(now);
            for dial in &dials {
                dialer.connected(dial.peer, None, now);
            }
            dials.len()
        })
        .sum();
    assert!((70..=90).contains(&in_ten_seconds), "{in_ten_seconds}");
}

/// Before, a thousand strangers at silent addresses had all dials under way, and members waited behind them after a
/// network partition.
#[test]
fn half_of_the_dials_is_kept_for_known_peers() {
    let (mut dialer, members): (Dialer, Vec<PeerId>) = (dialer(), (0..8).map(|_| someone()).collect());
    dialer.set_known(members.iter().copied().collect());
    for port in 1..=200 {
        dialer.learn(someone(), &[address(port)], Origin::Dht, None, Time(0));
    }
    assert_eq!(dialer.poll(Time(0)).len(), STRANGERS_DIALED_MAX);
    let mut now = Time(30 * SECOND);
    assert!(dialer.poll(now).is_empty(), "their addresses are silent");
    assert_eq!(dialer.wake_at(), None);
    for (n, member) in members.iter().enumerate() {
        dialer.learn(*member, &[address(n as u16 + 1)], Origin::Gossip, None, now);
        if n % 2 == 0 {
            dialer.wish(*member, Wish::Wanted, now);
        }
    }
    let dialed: BTreeSet<PeerId> = dialer.poll(now).iter().map(|dial| dial.peer).collect();
    assert_eq!(dialed, members.iter().copied().collect(), "at once, and candidates among them too");
    // The known peers' credit is kept as well, and they are dialed before strangers.
    for peer in dialer.targets.keys().copied().collect::<Vec<_>>() {
        dialer.connected(peer, None, now);
        dialer.disconnected(&peer, false, now);
    }
    now = after(now, Duration::from_secs(1));
    let again: Vec<PeerId> = dialer.poll(now).iter().map(|dial| dial.peer).collect();
    assert!(members.iter().all(|member| again.contains(member)), "{again:?}");
}

#[test]
fn candidates_are_so_many_and_those_that_failed_make_way() {
    let mut dialer = dialer();
    for n in 0..10_000u32 {
        dialer.learn(someone(), &[address((n % 60_000) as u16 + 1)], Origin::Gossip, None, Time(n.into()));
    }
    assert_eq!((dialer.targets.len(), dialer.book().len()), (CANDIDATES_MAX, book::PEERS_MAX));
    assert!(dialer.targets.keys().all(|peer| !dialer.book().known(peer).is_empty()), "a target without an address");
    let member = someone();
    dialer.set_known(BTreeSet::from([member]));
    dialer.learn(member, &[address(1)], Origin::Gossip, None, Time(0));
    assert!(dialer.wish_of(&member).is_some(), "whom the owner knows has a place");
    dialer.learn(someone(), &[address(2)], Origin::Dht, None, Time(SECOND));
    assert_eq!(dialer.targets.len(), CANDIDATES_MAX + 1, "before its turn nobody is driven out");
    for dial in dialer.poll(Time(SECOND)) {
        dialer.failed(&dial.peer, &refused(&dial.addresses), Time(SECOND));
    }
    let newcomer = someone();
    dialer.learn(newcomer, &[address(3)], Origin::Dht, None, Time(SECOND));
    assert!(dialer.wish_of(&newcomer).is_some() && dialer.wish_of(&member).is_some());
    assert_eq!(dialer.targets.len(), CANDIDATES_MAX + 1, "one that had failed made way");
}

#[test]
fn we_never_dial_ourselves() {
    let mut dialer = dialer();
    assert_eq!(dialer.learn(dialer.me, &[address(1)], Origin::Dht, None, Time(0)), 0);
    dialer.wish(dialer.me, Wish::Wanted, Time(0));
    assert!(dialer.poll(Time(SECOND)).is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any events in any order: no panic, bounded dials, equal histories for equal seeds, and a wanted peer with an
    /// address is dialed within 30 s of quiet.
    #[test]
    fn any_history_keeps_the_promises(steps in proptest::collection::vec((0u8..8, 0usize..5, 0u64..3_000_000), 0..120)) {
        let peers: Vec<PeerId> = (1..=5u8).map(|n| crate::identity::peer_id(&starling_protocol::NodeId([n; 32]))).collect();
        let (mut a, mut b) = (dialer(), dialer());
        let mut now = Time(0);
        for (what, who, wait) in steps {
            now = Time(now.0 + wait);
            let peer = peers[who];
            for d in [&mut a, &mut b] {
                match what {
                    0 => drop(d.learn(peer, &[address(who as u16 + 1), quic(1)], Origin::Dht, Some(peers[0]), now)),
                    1 => drop(d.learn(peer, &[address(who as u16 + 1)], Origin::Configured, None, now)),
                    2 => d.connected(peer, Some(&address(who as u16 + 1)), now),
                    3 => d.disconnected(&peer, who % 2 == 0, now),
                    4 => d.failed(&peer, &refused(&[address(who as u16 + 1)]), now),
                    5 => drop(d.exclude(peer, after(now, Duration::from_secs(5)))),
                    6 => d.wish(peer, Wish::Wanted, now),
                    _ => drop(d.pardon(now)),
                }
            }
            let dials = a.poll(now);
            prop_assert_eq!(&dials, &b.poll(now));
            prop_assert!(a.dialing().all <= DIALS_MAX);
        }
        let later = after(now, Duration::from_secs(31));
        a.pardon(later);
        a.poll(later);
        for (peer, target) in &a.targets {
            let has_address = !a.book.known(peer).is_empty();
            prop_assert!(!has_address || !matches!(target.state, State::Waiting(at) if at <= later), "{peer} {target:?}");
        }
    }
}

#[test]
fn a_peer_that_no_relay_could_help_to_rests_longer_each_time_and_says_why() {
    let (mut dialer, peer) = (dialer(), someone());
    let relayed: Multiaddr = format!("/ip4/192.0.2.9/tcp/1/p2p/{}/p2p-circuit", PeerId::random()).parse().unwrap();
    dialer.learn(peer, &[address(1), relayed.clone()], Origin::Configured, None, Time(0));
    assert_eq!(dialer.poll(Time(0))[0].addresses, [address(1), relayed.clone()]);
    let (mut now, mut waits) = (Time(0), Vec::new());
    for _ in 0..7 {
        dialer.relayed(peer, Some(&relayed), now);
        assert!(dialer.poll(now).is_empty(), "a direct way is looked for");
        dialer.unpunched(&peer, now);
        let trouble = &dialer.troubles(now)[0];
        assert_eq!((trouble.peer, &trouble.reason), (peer, &Reason::NoDirectWay));
        let next = dialer.wake_at().unwrap();
        waits.push((next.0 - now.0) / SECOND);
        now = next;
        assert_eq!(dialer.poll(now).len(), 1);
    }
    assert!((60..=75).contains(&waits[0]) && (120..=150).contains(&waits[1]), "{waits:?}");
    assert!((960..=1200).contains(&waits[6]), "{waits:?}");
    dialer.connected(peer, None, now);
    dialer.disconnected(&peer, false, now);
    assert!(dialer.wake_at().unwrap().0 - now.0 < SECOND, "what was once direct is looked for at once");
}

#[test]
fn a_new_relayed_address_is_dialed_soon() {
    let (mut dialer, peer) = (dialer(), someone());
    let relayed: Multiaddr = format!("/ip4/192.0.2.9/tcp/1/p2p/{}/p2p-circuit", PeerId::random()).parse().unwrap();
    dialer.learn(peer, &[address(1)], Origin::Configured, None, Time(0));
    fail_for(&mut dialer, Time(0), 600);
    let now = Time(601 * SECOND);
    dialer.poll(now);
    dialer.failed(&peer, &refused(&[address(1)]), now);
    assert!(dialer.wake_at().unwrap() > after(now, Duration::from_secs(1)));
    dialer.learn(peer, std::slice::from_ref(&relayed), Origin::Itself, None, now);
    assert_eq!(dialer.poll(now)[0].addresses, [address(1), relayed.clone()]);
    dialer.relayed(peer, None, now);
    dialer.unpunched(&peer, now);
    let other: Multiaddr = format!("/ip4/192.0.2.8/tcp/1/p2p/{}/p2p-circuit", PeerId::random()).parse().unwrap();
    dialer.learn(peer, &[relayed, other], Origin::Itself, None, now);
    assert!(dialer.poll(now).is_empty(), "another relay helps no more");
}

#[test]
fn a_candidate_that_no_relay_could_help_to_is_given_up() {
    let (mut dialer, peer) = (dialer(), someone());
    dialer.learn(peer, &[address(1)], Origin::Dht, None, Time(0));
    for _ in 0..CANDIDATE_ROUNDS_MAX {
        assert!(dialer.wish_of(&peer).is_some());
        dialer.relayed(peer, None, Time(0));
        dialer.unpunched(&peer, Time(0));
    }
    assert_eq!(dialer.wish_of(&peer), None);
}

fn contacts(near: &[PeerId], far: &[PeerId], meets_strangers: bool) -> Option<Contacts> {
    let [near, far] = [near, far].map(|peers| peers.iter().copied().collect());
    Some(Contacts { near, far, meets_strangers })
}

fn dialed(dialer: &mut Dialer, now: Time) -> BTreeSet<PeerId> {
    let dials = dialer.poll(now);
    dials.iter().for_each(|dial| dialer.failed(&dial.peer, &refused(&dial.addresses), now));
    dials.into_iter().map(|dial| dial.peer).collect()
}

#[test]
fn members_that_are_no_contacts_are_not_dialed() {
    let (mut dialer, [near, far, met, stranger, named]) = (dialer(), std::array::from_fn(|_| someone()));
    dialer.set_known(BTreeSet::from([near, far, met, named]));
    for peer in [near, far, met, stranger] {
        dialer.learn(peer, &[address(1)], Origin::Gossip, None, Time(0));
    }
    dialer.learn(named, &[address(1)], Origin::Ticket, None, Time(0));
    dialer.connected(met, None, Time(0));
    dialer.set_contacts(contacts(&[near], &[far, met, named], false), Time(0));
    assert_eq!(dialed(&mut dialer, Time(0)), BTreeSet::from([near, named]), "the user's word stands");
    // They are found again and again, and a connection with one ends.
    dialer.learn(far, &[address(2)], Origin::Dht, None, Time(SECOND));
    dialer.disconnected(&met, false, Time(SECOND));
    assert_eq!(dialed(&mut dialer, Time(60 * SECOND)), BTreeSet::from([near, named]));
    // By the next record it is a contact; its addresses were kept.
    let former = dialer.set_contacts(contacts(&[far], &[near, met, named], true), Time(61 * SECOND));
    assert_eq!(former, BTreeSet::from([near]));
    former.iter().for_each(|peer| dialer.unwish(peer));
    dialer.learn(stranger, &[address(1)], Origin::Gossip, None, Time(61 * SECOND));
    assert_eq!(dialed(&mut dialer, Time(90 * SECOND)), BTreeSet::from([far, named, stranger]), "voters meet strangers");
    // One row again.
    assert_eq!(dialer.set_contacts(None, Time(91 * SECOND)), BTreeSet::from([far]));
    dialer.learn(near, &[address(1)], Origin::Gossip, None, Time(91 * SECOND));
    assert!(dialed(&mut dialer, Time(150 * SECOND)).contains(&near));
}

#[test]
fn a_contact_without_an_address_is_lacking_until_there_is_one() {
    let (mut dialer, [unknown, stale, here]) = (dialer(), std::array::from_fn(|_| someone()));
    dialer.learn(stale, &[address(1)], Origin::Gossip, None, Time(0));
    dialer.set_contacts(contacts(&[unknown, stale, here], &[], false), Time(0));
    dialer.connected(here, None, Time(0));
    assert_eq!(dialer.away(), BTreeMap::from([(unknown, true), (stale, false)]));
    fail_for(&mut dialer, Time(0), 60);
    assert_eq!(dialer.away(), BTreeMap::from([(unknown, true), (stale, true)]), "its address leads nowhere");
    dialer.learn(unknown, &[address(2)], Origin::Dht, None, Time(60 * SECOND));
    assert_eq!(dialer.away().get(&unknown), Some(&false));
    assert!(dialed(&mut dialer, Time(60 * SECOND)).contains(&unknown));
}
