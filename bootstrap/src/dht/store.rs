//! What a rendezvous peer remembers: who announced which key, and where they listen.
//!
//! Bounded in every direction, so that no announcer can crowd out another: keys, providers of a key, keys of a
//! provider, addresses of a provider. Nothing is written to disk.

use crate::addresses;
use libp2p::kad::store::{Error, RecordStore, Result};
use libp2p::kad::{ProviderRecord, Record, RecordKey};
use libp2p::{Multiaddr, PeerId};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Runs that can meet here.
const KEYS_MAX: usize = 4096;
/// Providers remembered for one key; twice a flock's members, for those that come and go.
const PROVIDERS_MAX: usize = 2 * starling_protocol::limits::MEMBERS_MAX;
/// Keys that one peer may announce.
const KEYS_OF_PEER_MAX: usize = 16;
/// Bytes of a key: digests have 32.
const KEY_BYTES_MAX: usize = 64;
/// Addresses of one peer that are handed on.
pub const SHARED_ADDRESSES_MAX: usize = 8;
/// Connected peers whose addresses are known; connection limits keep it below.
const NOTED_MAX: usize = 1024;

/// A record store of announcements only.
pub struct Rendezvous {
    local: PeerId,
    providers: BTreeMap<Vec<u8>, BTreeMap<PeerId, ProviderRecord>>,
    keys_of: BTreeMap<PeerId, Vec<Vec<u8>>>,
    /// Where connected peers listen.
    noted: BTreeMap<PeerId, Vec<Multiaddr>>,
    /// Answers hold at most 20 providers; a different start each time lets large flocks meet whole.
    turn: AtomicUsize,
}

impl Rendezvous {
    pub fn new(local: PeerId) -> Self {
        Self {
            local,
            providers: BTreeMap::new(),
            keys_of: BTreeMap::new(),
            noted: BTreeMap::new(),
            turn: AtomicUsize::new(0),
        }
    }

    /// A connected peer listens there; its announcements, earlier and later ones, carry it.
    pub fn note(&mut self, peer: PeerId, addresses: &[Multiaddr]) {
        if !self.noted.contains_key(&peer) && self.noted.len() >= NOTED_MAX {
            refused("addresses_full");
            return;
        }
        let shared = shareable(addresses);
        for key in self.keys_of.get(&peer).into_iter().flatten() {
            if let Some(record) = self.providers.get_mut(key).and_then(|of_key| of_key.get_mut(&peer)) {
                record.addresses.clone_from(&shared);
            }
        }
        self.noted.insert(peer, shared);
    }

    /// The last connection to the peer closed. Its announcements stay until they expire: it may come back.
    pub fn gone(&mut self, peer: &PeerId) {
        self.noted.remove(peer);
    }

    /// Where a provider said that it listens.
    pub fn addresses(&self, key: &RecordKey, peer: &PeerId) -> Vec<Multiaddr> {
        let record = self.providers.get(key.as_ref()).and_then(|of_key| of_key.get(peer));
        record.map(|r| r.addresses.clone()).unwrap_or_default()
    }

    fn expire(&mut self) {
        let now = Instant::now();
        let keys_of = &mut self.keys_of;
        self.providers.retain(|key, of_key| {
            of_key.retain(|peer, record| {
                let stays = !record.is_expired(now);
                if !stays {
                    forget_key(keys_of, peer, key);
                }
                stays
            });
            !of_key.is_empty()
        });
    }

    fn has_room(&self, key: &[u8], peer: &PeerId) -> bool {
        let of_key = self.providers.get(key);
        let known_key = of_key.is_some() || self.providers.len() < KEYS_MAX;
        let known_provider = of_key.is_none_or(|of_key| of_key.contains_key(peer) || of_key.len() < PROVIDERS_MAX);
        let of_peer = self.keys_of.get(peer);
        let keys_fit = of_peer.is_none_or(|keys| keys.iter().any(|k| k == key) || keys.len() < KEYS_OF_PEER_MAX);
        known_key && known_provider && (keys_fit || *peer == self.local)
    }
}

/// The addresses worth handing on, best first.
fn shareable(list: &[Multiaddr]) -> Vec<Multiaddr> {
    let mut shared: Vec<Multiaddr> =
        list.iter().filter(|a| addresses::may_be_learned(a, true)).map(addresses::without_peer).collect();
    addresses::sort_for_sharing(&mut shared);
    shared.dedup();
    shared.truncate(SHARED_ADDRESSES_MAX);
    shared
}

fn forget_key(keys_of: &mut BTreeMap<PeerId, Vec<Vec<u8>>>, peer: &PeerId, key: &[u8]) {
    if let Some(keys) = keys_of.get_mut(peer) {
        keys.retain(|k| k != key);
        if keys.is_empty() {
            keys_of.remove(peer);
        }
    }
}

fn refused(reason: &'static str) {
    metrics::counter!("starling_refused_total", "reason" => reason).increment(1);
}

impl RecordStore for Rendezvous {
    type RecordsIter<'a> = std::iter::Empty<Cow<'a, Record>>;
    type ProvidedIter<'a> = std::vec::IntoIter<Cow<'a, ProviderRecord>>;

    fn get(&self, _: &RecordKey) -> Option<Cow<'_, Record>> {
        None
    }

    /// Starling keeps no values for others.
    fn put(&mut self, _: Record) -> Result<()> {
        refused("dht_value");
        Err(Error::MaxRecords)
    }

    fn remove(&mut self, _: &RecordKey) {}

    fn records(&self) -> Self::RecordsIter<'_> {
        std::iter::empty()
    }

    fn add_provider(&mut self, mut record: ProviderRecord) -> Result<()> {
        let key = record.key.to_vec();
        if key.len() > KEY_BYTES_MAX {
            refused("dht_key");
            return Err(Error::ValueTooLarge);
        }
        if !self.has_room(&key, &record.provider) {
            // Scanning everything is for the moment when it seems full.
            self.expire();
            if !self.has_room(&key, &record.provider) {
                refused("dht_full");
                return Err(Error::MaxProvidedKeys);
            }
        }
        let mut known = std::mem::take(&mut record.addresses);
        known.extend(self.noted.get(&record.provider).into_iter().flatten().cloned());
        record.addresses = shareable(&known);
        let keys = self.keys_of.entry(record.provider).or_default();
        if !keys.contains(&key) {
            keys.push(key.clone());
        }
        self.providers.entry(key).or_default().insert(record.provider, record);
        Ok(())
    }

    fn providers(&self, key: &RecordKey) -> Vec<ProviderRecord> {
        let Some(of_key) = self.providers.get(key.as_ref()) else { return Vec::new() };
        let mut records: Vec<ProviderRecord> = of_key.values().cloned().collect();
        if !records.is_empty() {
            let start = self.turn.fetch_add(1, Ordering::Relaxed) % records.len();
            records.rotate_left(start);
        }
        records
    }

    fn provided(&self) -> Self::ProvidedIter<'_> {
        let own = self.providers.values().filter_map(|of_key| of_key.get(&self.local)).map(Cow::Borrowed);
        own.collect::<Vec<_>>().into_iter()
    }

    fn remove_provider(&mut self, key: &RecordKey, peer: &PeerId) {
        let key = key.as_ref();
        if let Some(of_key) = self.providers.get_mut(key) {
            of_key.remove(peer);
            if of_key.is_empty() {
                self.providers.remove(key);
            }
        }
        forget_key(&mut self.keys_of, peer, key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn key(n: usize) -> RecordKey {
        RecordKey::new(&n.to_le_bytes())
    }

    fn record(n: usize, peer: PeerId) -> ProviderRecord {
        ProviderRecord::new(key(n), peer, vec![])
    }

    fn address(text: &str) -> Multiaddr {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_noted_before_and_after_an_announcement_are_handed_on() {
        let mut store = Rendezvous::new(PeerId::random());
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
        let mut store = Rendezvous::new(PeerId::random());
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
        let mut store = Rendezvous::new(PeerId::random());
        let old = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        for n in 0..PROVIDERS_MAX {
            let mut record = record(1, PeerId::random());
            record.expires = Some(if n == 0 { old } else { Instant::now() + Duration::from_secs(60) });
            store.add_provider(record).unwrap();
        }
        store.add_provider(record(1, PeerId::random())).unwrap();
        assert!(store.add_provider(record(1, PeerId::random())).is_err());
        assert_eq!(store.providers(&key(1)).len(), PROVIDERS_MAX);
    }

    #[test]
    fn every_provider_gets_its_turn_in_front() {
        let mut store = Rendezvous::new(PeerId::random());
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
        let mut store = Rendezvous::new(me);
        assert!(store.put(Record::new(key(1), vec![1])).is_err());
        let long = ProviderRecord::new(RecordKey::new(&[0; 65]), PeerId::random(), vec![]);
        assert!(store.add_provider(long).is_err());
        store.add_provider(record(1, me)).unwrap();
        assert_eq!(store.provided().count(), 1);
    }
}
