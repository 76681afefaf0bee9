//! The memory of a rendezvous peer: which peers announced which key, and where they listen.
//!
//! Bounded in every direction, so that no announcer can crowd out another: announcements, providers of a key, keys of a
//! provider, addresses of a provider. Strangers share the places by their addresses, as with connections
//! ([`crate::crowd`]): an announcement outlives its connection, so that one address could otherwise fill a key with
//! node keys that come and go. The oldest announcement of an address makes way, since a present peer renews its own
//! each minute. Nothing is written to disk.

use crate::addresses;
use crate::doors::Doors;
use crate::source::Source;
use libp2p::kad::store::{Error, RecordStore, Result};
use libp2p::kad::{ProviderRecord, Record, RecordKey};
use libp2p::{Multiaddr, PeerId};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Announcements of all keys together.
const RECORDS_MAX: usize = 16 * PROVIDERS_MAX;
/// Announcements of strangers at one address.
const RECORDS_OF_ADDRESS_MAX: usize = 256;
/// Providers remembered for one key: twice a flock's members, for those that come and go.
const PROVIDERS_MAX: usize = 2 * starling_protocol::limits::MEMBERS_MAX;
/// Keys that one peer may announce.
const KEYS_OF_PEER_MAX: usize = 16;
/// Bytes of a key: digests have 32.
const KEY_BYTES_MAX: usize = 64;
/// Addresses of one peer that are passed on.
pub const SHARED_ADDRESSES_MAX: usize = 8;
/// Connected peers whose addresses are known; the limits on connections keep it below.
const NOTED_MAX: usize = 1024;

/// The pause between two searches for expired announcements.
const EXPIRY_PAUSE: Duration = Duration::from_secs(1);

/// An announcement.
struct Announced {
    record: ProviderRecord,
    /// The address that it counts for, and its number, for its age; only for a stranger from elsewhere.
    counts: Option<(Source, u64)>,
}

/// A record store of announcements only.
pub struct Rendezvous {
    local: PeerId,
    doors: Doors,
    providers: BTreeMap<Vec<u8>, BTreeMap<PeerId, Announced>>,
    keys_of: BTreeMap<PeerId, Vec<Vec<u8>>>,
    /// The announcements that count for an address, by age.
    of_address: BTreeMap<Source, BTreeMap<u64, (Vec<u8>, PeerId)>>,
    /// The number of announcements, and how many there have been so far.
    len: usize,
    serial: u64,
    expired_at: Option<Instant>,
    /// The addresses of connected peers.
    sources: BTreeMap<PeerId, Source>,
    /// The addresses on which connected peers listen.
    noted: BTreeMap<PeerId, Vec<Multiaddr>>,
    /// An answer holds at most 20 providers. A different start each time lets all nodes of a large flock meet.
    turn: AtomicUsize,
}

impl Rendezvous {
    pub fn new(local: PeerId, doors: Doors) -> Self {
        Self {
            local,
            doors,
            providers: BTreeMap::new(),
            keys_of: BTreeMap::new(),
            of_address: BTreeMap::new(),
            len: 0,
            serial: 0,
            expired_at: None,
            sources: BTreeMap::new(),
            noted: BTreeMap::new(),
            turn: AtomicUsize::new(0),
        }
    }

    /// A peer has connected from this address.
    pub fn came(&mut self, peer: PeerId, source: Source) {
        self.sources.insert(peer, source);
    }

    /// Notes where a connected peer listens; its earlier and later announcements carry these addresses.
    pub fn note(&mut self, peer: PeerId, addresses: &[Multiaddr]) {
        if !self.noted.contains_key(&peer) && self.noted.len() >= NOTED_MAX {
            refused("addresses_full");
            return;
        }
        let shared = shareable(addresses);
        for key in self.keys_of.get(&peer).into_iter().flatten() {
            if let Some(announced) = self.providers.get_mut(key).and_then(|of_key| of_key.get_mut(&peer)) {
                announced.record.addresses.clone_from(&shared);
            }
        }
        self.noted.insert(peer, shared);
    }

    /// The last connection to the peer closed. Its announcements stay until they expire: it may come back.
    pub fn gone(&mut self, peer: &PeerId) {
        self.noted.remove(peer);
        self.sources.remove(peer);
    }

    /// The addresses on which a provider listens, by its own word.
    pub fn addresses(&self, key: &RecordKey, peer: &PeerId) -> Vec<Multiaddr> {
        let announced = self.providers.get(key.as_ref()).and_then(|of_key| of_key.get(peer));
        announced.map(|announced| announced.record.addresses.clone()).unwrap_or_default()
    }

    fn expire(&mut self, now: Instant) {
        if self.expired_at.is_some_and(|at| now < at + EXPIRY_PAUSE) {
            return;
        }
        self.expired_at = Some(now);
        let all = self.providers.iter().flat_map(|(key, of_key)| of_key.iter().map(move |(peer, a)| (key, peer, a)));
        let over = all.filter(|(_, _, announced)| announced.record.is_expired(now));
        let over: Vec<(Vec<u8>, PeerId)> = over.map(|(key, peer, _)| (key.clone(), *peer)).collect();
        over.iter().for_each(|(key, peer)| self.forget(key, peer));
    }

    fn forget(&mut self, key: &[u8], peer: &PeerId) {
        let Some(of_key) = self.providers.get_mut(key) else { return };
        let Some(announced) = of_key.remove(peer) else { return };
        self.len -= 1;
        if of_key.is_empty() {
            self.providers.remove(key);
        }
        if let Some((source, serial)) = announced.counts
            && let Some(of_address) = self.of_address.get_mut(&source)
        {
            of_address.remove(&serial);
            if of_address.is_empty() {
                self.of_address.remove(&source);
            }
        }
        if let Some(keys) = self.keys_of.get_mut(peer) {
            keys.retain(|k| k != key);
            if keys.is_empty() {
                self.keys_of.remove(peer);
            }
        }
    }

    /// The address that an announcement of the peer's counts for; none for this node, a known peer, or a process of
    /// this machine.
    fn payer(&self, peer: &PeerId) -> Option<Source> {
        let source = self.sources.get(peer).copied().unwrap_or(Source::Named);
        (*peer != self.local && source != Source::Here && !self.doors.is_known(peer)).then_some(source)
    }

    /// Makes room for one more announcement that counts for `payer`, of a peer that has none under the key.
    fn make_room(&mut self, key: &[u8], peer: &PeerId, payer: Option<Source>) -> Result<()> {
        if *peer != self.local && self.keys_of.get(peer).is_some_and(|keys| keys.len() >= KEYS_OF_PEER_MAX) {
            refused("dht_full");
            return Err(Error::MaxProvidedKeys);
        }
        let of_address = payer.and_then(|source| self.of_address.get(&source)).map_or(0, BTreeMap::len);
        if let Some(source) = payer.filter(|_| of_address >= RECORDS_OF_ADDRESS_MAX) {
            self.give_up_oldest(source, |_| true);
        }
        let of_key = |store: &Self| store.providers.get(key).map_or(0, BTreeMap::len);
        if of_key(self) >= PROVIDERS_MAX || self.len >= RECORDS_MAX {
            self.expire(Instant::now());
        }
        if of_key(self) >= PROVIDERS_MAX {
            let of_key = self.providers.get(key).into_iter().flatten();
            let sources = of_key.filter_map(|(_, announced)| announced.counts.map(|(source, _)| source));
            let mut crowds: BTreeMap<Source, usize> = BTreeMap::new();
            sources.for_each(|source| *crowds.entry(source).or_default() += 1);
            let crowded = most_crowded(crowds.iter().map(|(source, count)| (*source, *count)), payer)?;
            self.give_up_oldest(crowded, |(of, _)| of == key);
        }
        if self.len >= RECORDS_MAX {
            let crowds = self.of_address.iter().map(|(source, records)| (*source, records.len()));
            let crowded = most_crowded(crowds, payer)?;
            self.give_up_oldest(crowded, |_| true);
        }
        Ok(())
    }

    fn give_up_oldest(&mut self, source: Source, fits: impl Fn(&(Vec<u8>, PeerId)) -> bool) {
        let oldest = self.of_address.get(&source).and_then(|records| records.values().find(|record| fits(record)));
        if let Some((key, peer)) = oldest.cloned() {
            refused("dht_gave_way");
            self.forget(&key, &peer);
        }
    }
}

/// The address with most, as long as it has more than the newcomer's will have. A newcomer that counts for no address
/// is let in before any stranger.
fn most_crowded(crowds: impl Iterator<Item = (Source, usize)> + Clone, payer: Option<Source>) -> Result<Source> {
    let ours = crowds.clone().find(|(source, _)| Some(*source) == payer).map_or(0, |(_, count)| count);
    let most = crowds.max_by_key(|(_, count)| *count);
    let most = most.filter(|(_, count)| payer.is_none() || *count > ours + 1).map(|(source, _)| source);
    most.ok_or_else(|| {
        refused("dht_full");
        Error::MaxProvidedKeys
    })
}

/// The addresses worth passing on, best first.
fn shareable(list: &[Multiaddr]) -> Vec<Multiaddr> {
    let mut shared: Vec<Multiaddr> =
        list.iter().filter(|a| addresses::may_be_learned(a, true)).map(addresses::without_peer).collect();
    addresses::sort_for_sharing(&mut shared);
    shared.dedup();
    shared.truncate(SHARED_ADDRESSES_MAX);
    shared
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

    /// Starling stores no values for other peers.
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
        let peer = record.provider;
        let payer = self.payer(&peer);
        if self.providers.get(&key).is_some_and(|of_key| of_key.contains_key(&peer)) {
            self.forget(&key, &peer);
        } else {
            self.make_room(&key, &peer, payer)?;
        }
        let mut known = std::mem::take(&mut record.addresses);
        known.extend(self.noted.get(&peer).into_iter().flatten().cloned());
        record.addresses = shareable(&known);
        (self.len, self.serial) = (self.len + 1, self.serial + 1);
        let counts = payer.map(|source| (source, self.serial));
        if let Some((source, serial)) = counts {
            self.of_address.entry(source).or_default().insert(serial, (key.clone(), peer));
        }
        self.keys_of.entry(peer).or_default().push(key.clone());
        self.providers.entry(key).or_default().insert(peer, Announced { record, counts });
        Ok(())
    }

    fn providers(&self, key: &RecordKey) -> Vec<ProviderRecord> {
        let Some(of_key) = self.providers.get(key.as_ref()) else { return Vec::new() };
        let mut records: Vec<ProviderRecord> = of_key.values().map(|announced| announced.record.clone()).collect();
        if !records.is_empty() {
            let start = self.turn.fetch_add(1, Ordering::Relaxed) % records.len();
            records.rotate_left(start);
        }
        records
    }

    fn provided(&self) -> Self::ProvidedIter<'_> {
        let own = self.providers.values().filter_map(|of_key| of_key.get(&self.local));
        own.map(|announced| Cow::Borrowed(&announced.record)).collect::<Vec<_>>().into_iter()
    }

    fn remove_provider(&mut self, key: &RecordKey, peer: &PeerId) {
        self.forget(key.as_ref(), peer);
    }
}

#[cfg(test)]
#[path = "store_test.rs"]
mod tests;
