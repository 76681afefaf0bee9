//! The memory of a rendezvous peer, and the announcements that make way.

use super::*;
use std::time::Duration;

fn key(n: usize) -> RecordKey {
    RecordKey::new(&n.to_le_bytes())
}

fn record(n: usize, peer: PeerId) -> ProviderRecord {
    ProviderRecord::new(key(n), peer, vec![])
}

fn store() -> Rendezvous {
    Rendezvous::new(PeerId::random(), Doors::default())
}

fn at(n: u32) -> Source {
    Source::Address(std::net::IpAddr::V4((0x2d00_0000 + n).into()))
}

/// A connected peer from this address.
fn peer_at(store: &mut Rendezvous, source: Source) -> PeerId {
    let peer = PeerId::random();
    store.came(peer, source);
    peer
}

fn of(store: &Rendezvous, n: usize, source: Source) -> usize {
    let of_key = store.providers.get(key(n).as_ref()).into_iter().flatten();
    of_key.filter(|(_, announced)| announced.counts.is_some_and(|(of, _)| of == source)).count()
}

fn address(text: &str) -> Multiaddr {
    text.parse().unwrap()
}

#[test]
fn addresses_noted_before_and_after_an_announcement_are_handed_on() {
    let mut store = store();
    let (early, late) = (PeerId::random(), PeerId::random());
    store.note(early, &[address("/ip4/127.0.0.1/tcp/1")]);
    store.add_provider(record(1, early)).unwrap();
    store.add_provider(record(1, late)).unwrap();
    assert_eq!(store.addresses(&key(1), &late), vec![]);
    store.note(late, &[address("/ip4/127.0.0.1/tcp/2"), address("/ip4/0.0.0.0/tcp/2")]);
    assert_eq!(store.addresses(&key(1), &early), [address("/ip4/127.0.0.1/tcp/1")]);
    assert_eq!(store.addresses(&key(1), &late), [address("/ip4/127.0.0.1/tcp/2")]);
    store.gone(&late);
    assert_eq!(store.providers(&key(1)).len(), 2, "announcements outlive the connection");
}

#[test]
fn one_peer_cannot_fill_the_store() {
    let mut store = store();
    let greedy = PeerId::random();
    let taken = (0..1000).filter(|n| store.add_provider(record(*n, greedy)).is_ok()).count();
    assert_eq!(taken, KEYS_OF_PEER_MAX);
    store.remove_provider(&key(0), &greedy);
    store.add_provider(record(999, greedy)).unwrap();
    store.add_provider(record(999, greedy)).unwrap();
    assert_eq!(store.providers(&key(999)).len(), 1);
}

#[test]
fn a_key_holds_so_many_and_the_expired_make_room() {
    let mut store = store();
    let old = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
    for n in 0..PROVIDERS_MAX {
        let mut record = record(1, peer_at(&mut store, Source::Here));
        record.expires = Some(if n == 0 { old } else { Instant::now() + Duration::from_secs(60) });
        store.add_provider(record).unwrap();
    }
    let newcomers = [(); 2].map(|()| peer_at(&mut store, Source::Here));
    store.add_provider(record(1, newcomers[0])).unwrap();
    assert!(store.add_provider(record(1, newcomers[1])).is_err());
    assert_eq!(store.providers(&key(1)).len(), PROVIDERS_MAX);
}

#[test]
fn every_provider_gets_its_turn_in_front() {
    let mut store = store();
    for _ in 0..50 {
        store.add_provider(record(1, PeerId::random())).unwrap();
    }
    let seen: std::collections::BTreeSet<PeerId> =
        (0..50).flat_map(|_| store.providers(&key(1)).into_iter().take(20)).map(|r| r.provider).collect();
    assert_eq!(seen.len(), 50);
}

#[test]
fn values_and_long_keys_are_refused_and_own_keys_listed() {
    let me = PeerId::random();
    let mut store = Rendezvous::new(me, Doors::default());
    assert!(store.put(Record::new(key(1), vec![1])).is_err());
    let long = ProviderRecord::new(RecordKey::new(&[0; 65]), PeerId::random(), vec![]);
    assert!(store.add_provider(long).is_err());
    store.add_provider(record(1, me)).unwrap();
    assert_eq!(store.provided().count(), 1);
}

/// Before, keys that came and went from four addresses filled the run's key, and no other node could announce itself.
#[test]
fn a_few_addresses_do_not_fill_a_key() {
    let mut store = store();
    for _ in 0..PROVIDERS_MAX {
        for n in 0..4 {
            let peer = peer_at(&mut store, at(n));
            store.add_provider(record(1, peer)).unwrap();
            store.gone(&peer);
        }
    }
    assert_eq!(store.providers(&key(1)).len(), 4 * RECORDS_OF_ADDRESS_MAX);
    let honest = peer_at(&mut store, at(99));
    store.add_provider(record(1, honest)).unwrap();
    for n in 0..4 {
        let peer = peer_at(&mut store, at(n));
        store.add_provider(record(2, peer)).unwrap();
        assert!(of(&store, 1, at(n)) < RECORDS_OF_ADDRESS_MAX, "one address has so many under all keys together");
    }
    assert_eq!(of(&store, 1, at(99)), 1);
}

#[test]
fn the_oldest_announcement_of_the_most_crowded_address_makes_way_and_known_peers_stay() {
    let mut store = store();
    let crowds = (PROVIDERS_MAX / RECORDS_OF_ADDRESS_MAX) as u32;
    let named = peer_at(&mut store, at(0));
    store.doors.name(named);
    store.add_provider(record(1, named)).unwrap();
    let mut first = None;
    for _ in 0..RECORDS_OF_ADDRESS_MAX {
        for n in 0..crowds {
            let peer = peer_at(&mut store, at(n));
            first.get_or_insert(peer);
            drop(store.add_provider(record(1, peer)));
        }
    }
    assert_eq!(store.providers(&key(1)).len(), PROVIDERS_MAX);
    // A renewed announcement counts as young.
    store.add_provider(record(1, first.unwrap())).unwrap();
    for n in 100..100 + PROVIDERS_MAX as u32 / 2 {
        let newcomer = peer_at(&mut store, at(n));
        store.add_provider(record(1, newcomer)).unwrap();
        assert_eq!(of(&store, 1, at(n)), 1);
    }
    let announced = store.providers.get(key(1).as_ref()).unwrap();
    assert!(announced.contains_key(&named) && announced.contains_key(&first.unwrap()));
    assert_eq!(announced.len(), PROVIDERS_MAX);
    let again = peer_at(&mut store, at(100));
    for _ in 0..RECORDS_OF_ADDRESS_MAX {
        let peer = peer_at(&mut store, at(100));
        drop(store.add_provider(record(1, peer)));
    }
    drop(store.add_provider(record(1, again)));
    assert!(of(&store, 1, at(100)) <= RECORDS_OF_ADDRESS_MAX / 2 + 1, "a crowd does not come back so");
}

#[test]
fn all_announcements_together_are_so_many() {
    let mut store = store();
    for n in 0..2 * RECORDS_MAX / KEYS_OF_PEER_MAX {
        let peer = peer_at(&mut store, at(n as u32 % 300));
        for k in 0..KEYS_OF_PEER_MAX {
            drop(store.add_provider(record(n * KEYS_OF_PEER_MAX + k, peer)));
        }
        store.gone(&peer);
    }
    assert_eq!(store.len, RECORDS_MAX);
    let newcomer = peer_at(&mut store, at(1000));
    store.add_provider(record(usize::MAX, newcomer)).unwrap();
    let counted: usize = store.of_address.values().map(BTreeMap::len).sum();
    let held: usize = store.providers.values().map(BTreeMap::len).sum();
    assert_eq!((counted, held, store.len), (RECORDS_MAX, RECORDS_MAX, RECORDS_MAX));
    let keys: usize = store.keys_of.values().map(Vec::len).sum();
    assert_eq!(keys, held);
}
