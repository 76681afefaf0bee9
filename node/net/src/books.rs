//! The books of open streams. Strangers share a part of the places, with a limit for each stranger and for each
//! address; the rest is for members and joiners.
//!
//! When strangers have used up their part, a stream from an address with few streams takes the place of the oldest
//! stream of the address with most, as with connections ([`starling_bootstrap::crowd`]).

use super::standing::{Rank, Standing};
use starling_bootstrap::source::Source;
use starling_protocol::NodeId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio_util::sync::CancellationToken;

/// Limits on open streams.
#[derive(Clone, Copy, Debug)]
pub struct Shares {
    /// For all peers together.
    pub total: usize,
    /// For one known peer.
    pub per_known: usize,
    /// For all strangers, for one stranger, and for the strangers at one address.
    pub strangers: usize,
    pub per_stranger: usize,
    pub per_address: usize,
}

/// The books of one kind of streams; cheap to clone.
#[derive(Clone)]
pub struct Books {
    shares: Shares,
    standing: Standing,
    open: Arc<Mutex<Open>>,
}

#[derive(Default)]
struct Open {
    slots: BTreeMap<u64, Entry>,
    serial: u64,
}

struct Entry {
    peer: NodeId,
    /// The address of a stranger; none for a known peer.
    stranger: Option<Source>,
    end: CancellationToken,
}

impl Open {
    fn count(&self, fits: impl Fn(&Entry) -> bool) -> usize {
        self.slots.values().filter(|entry| fits(entry)).count()
    }

    /// The stream that makes way for one from `source`, which has `ours` of the strangers' places.
    fn crowded(&self, ours: usize) -> Option<u64> {
        let mut strangers: BTreeMap<Source, usize> = BTreeMap::new();
        let sources = self.slots.values().filter_map(|entry| entry.stranger);
        sources.filter(|source| *source != Source::Here).for_each(|source| *strangers.entry(source).or_default() += 1);
        let (most, _) = strangers.into_iter().max_by_key(|(_, count)| *count).filter(|(_, count)| *count > ours + 1)?;
        self.slots.iter().find(|(_, entry)| entry.stranger == Some(most)).map(|(serial, _)| *serial)
    }
}

/// One stream in the books, until it is dropped.
pub struct Slot {
    open: Arc<Mutex<Open>>,
    serial: u64,
    end: CancellationToken,
}

impl Slot {
    /// Returns when the stream has to make way for another peer's.
    pub async fn ended(&self) {
        self.end.cancelled().await;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        lock(&self.open).slots.remove(&self.serial);
    }
}

fn lock(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Books {
    pub fn new(shares: Shares, standing: Standing) -> Self {
        Self { shares, standing, open: Arc::default() }
    }

    /// The peer's present rank.
    pub fn rank(&self, peer: &NodeId) -> Rank {
        self.standing.rank(peer)
    }

    /// Takes a place for one more stream of the peer's, if there is one.
    pub fn take(&self, peer: NodeId) -> Option<Slot> {
        let shares = &self.shares;
        let stranger = (self.standing.rank(&peer) == Rank::Stranger).then(|| self.standing.source(&peer));
        let mut open = lock(&self.open);
        let of_peer = open.count(|entry| entry.peer == peer);
        match stranger {
            None if of_peer >= shares.per_known => return None,
            None => {}
            Some(source) => {
                let ours = open.count(|entry| entry.stranger == Some(source));
                if of_peer >= shares.per_stranger || (source != Source::Here && ours >= shares.per_address) {
                    return None;
                }
                if open.count(|entry| entry.stranger.is_some()) >= shares.strangers || open.slots.len() >= shares.total
                {
                    let crowded = open.crowded(ours)?;
                    give_up(&mut open, crowded);
                }
            }
        }
        if open.slots.len() >= shares.total {
            // A known peer's stream goes before any stranger's.
            let stranger = open.slots.iter().find(|(_, entry)| entry.stranger.is_some()).map(|(serial, _)| *serial)?;
            give_up(&mut open, stranger);
        }
        open.serial += 1;
        let (serial, end) = (open.serial, CancellationToken::new());
        open.slots.insert(serial, Entry { peer, stranger, end: end.clone() });
        drop(open);
        Some(Slot { open: Arc::clone(&self.open), serial, end })
    }
}

fn give_up(open: &mut Open, serial: u64) {
    if let Some(entry) = open.slots.remove(&serial) {
        entry.end.cancel();
        metrics::counter!("starling_refused_total", "reason" => "stream_gave_way").increment(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARES: Shares = Shares { total: 64, per_known: 8, strangers: 32, per_stranger: 4, per_address: 16 };

    fn id(n: u32) -> NodeId {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&n.to_le_bytes());
        NodeId(bytes)
    }

    /// Peer `n` at address `n / 100`.
    fn books() -> (Standing, Books) {
        let standing = Standing::default();
        for n in 0..1000u32 {
            let ip = std::net::Ipv4Addr::from_bits(0x2d00_0000 + n / 100);
            standing.came(id(n), Source::Address(ip.into()));
        }
        (standing.clone(), Books::new(SHARES, standing))
    }

    /// Before there was a share for strangers, eight identities held all 64 streams.
    #[test]
    fn strangers_leave_half_to_members() {
        let (standing, books) = books();
        standing.set((0..8).map(id).collect(), Vec::new());
        let mut held = Vec::new();
        for n in 100..1000 {
            for _ in 0..10 {
                held.extend(books.take(id(n)));
            }
        }
        assert_eq!(lock(&books.open).slots.len(), SHARES.strangers);
        for member in 0..8 {
            for _ in 0..SHARES.per_known {
                held.push(books.take(id(member)).expect("members have a half, and the strangers' if they need it"));
            }
        }
        assert!(books.take(id(0)).is_none(), "a member has its share too");
        assert_eq!(lock(&books.open).count(|entry| entry.stranger.is_some()), 0);
        held.clear();
        assert!(lock(&books.open).slots.is_empty(), "places are given back");
    }

    #[test]
    fn one_stranger_and_one_address_have_few() {
        let (_, books) = books();
        let of_one: Vec<_> = (0..100).filter_map(|_| books.take(id(1))).collect();
        assert_eq!(of_one.len(), SHARES.per_stranger);
        let of_address: Vec<_> = (2..100).filter_map(|n| books.take(id(n))).collect();
        assert_eq!(of_one.len() + of_address.len(), SHARES.per_address);
        let of_other: Vec<_> = (100..200).filter_map(|n| books.take(id(n))).collect();
        assert_eq!(of_other.len(), SHARES.per_address);
        // Both halves are full. A stream from a third address takes the place of a crowd's oldest.
        let third = books.take(id(200)).expect("from elsewhere");
        assert!(of_one.iter().chain(&of_address).chain(&of_other).any(|slot| slot.end.is_cancelled()));
        assert!(!third.end.is_cancelled());
    }
}
