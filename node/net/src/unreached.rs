//! Peers that this node dials in vain. A user is told of each once, and asks for the counts after that.

use super::event::NetEvent;
use libp2p::Multiaddr;
use starling_bootstrap::addresses::{self, Route};
use starling_bootstrap::discovery::reason::Reason;
use starling_protocol::NodeId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Strangers that are counted at a time; the metrics count the dials of all. Known peers are few, and always counted.
const STRANGERS_MAX: usize = 1024;
/// A peer that has not been dialed for so long is not looked for any more.
const GIVEN_UP: Duration = Duration::from_secs(10 * 60);
/// Addresses of one peer that are counted.
const ADDRESSES_MAX: usize = 16;

/// A peer that has not been reached since it was last here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreachedPeer {
    pub peer: NodeId,
    /// Why the last dial failed.
    pub reason: String,
    pub addresses: usize,
    pub dials: u64,
}

struct Entry {
    reason: String,
    addresses: BTreeSet<Multiaddr>,
    dials: u64,
    last: Instant,
    /// The kinds of reasons that the user was told.
    told: BTreeSet<&'static str>,
}

/// The peers that are dialed in vain now; cheap to clone.
#[derive(Clone, Default)]
pub struct Unreached(Arc<Mutex<BTreeMap<NodeId, Entry>>>);

impl Unreached {
    /// Counts a dial of the peer that failed. Returns the event for the user if nothing of its kind was told since the
    /// peer was here. `own` are addresses of this node: that nobody else answers there is no news.
    pub(super) fn failed(
        &self,
        (peer, is_known): (NodeId, bool),
        failures: &[(Option<Multiaddr>, Reason)],
        own: &[Multiaddr],
        now: Instant,
    ) -> Option<NetEvent> {
        // Behind one relay all places have the same address but for the peer.
        let direct = own.iter().filter(|address| addresses::route(address) != Some(Route::Relayed));
        let own: BTreeSet<Multiaddr> = direct.map(addresses::without_peer).collect();
        let is_own = |address: &Multiaddr| own.contains(&addresses::without_peer(address));
        let counts = |(address, reason): &&(Option<Multiaddr>, Reason)| {
            *reason != Reason::Ourselves && !address.as_ref().is_some_and(is_own)
        };
        let (address, reason) = failures.iter().rfind(counts)?;
        let mut peers = self.peers();
        peers.retain(|_, entry| now < entry.last + GIVEN_UP);
        if !is_known && peers.len() >= STRANGERS_MAX && !peers.contains_key(&peer) {
            return None;
        }
        let fresh =
            || Entry { reason: String::new(), addresses: BTreeSet::new(), dials: 0, last: now, told: BTreeSet::new() };
        let entry = peers.entry(peer).or_insert_with(fresh);
        (entry.dials, entry.last) = (entry.dials.saturating_add(1), now);
        entry.reason = reason.to_string();
        for address in failures.iter().filter(counts).filter_map(|(address, _)| address.clone()) {
            if entry.addresses.len() < ADDRESSES_MAX {
                entry.addresses.insert(address);
            }
        }
        let is_news = entry.told.insert(kind(reason));
        is_news.then(|| NetEvent::DialFailed { peer, address: address.clone(), why: reason.to_string() })
    }

    /// The peer is here.
    pub(super) fn reached(&self, peer: &NodeId) {
        self.peers().remove(peer);
    }

    /// Those that are still looked for, the most dialed first.
    pub(super) fn list(&self, now: Instant) -> Vec<UnreachedPeer> {
        let mut peers = self.peers();
        peers.retain(|_, entry| now < entry.last + GIVEN_UP);
        let row = |(peer, entry): (&NodeId, &Entry)| UnreachedPeer {
            peer: *peer,
            reason: entry.reason.clone(),
            addresses: entry.addresses.len(),
            dials: entry.dials,
        };
        let mut list: Vec<UnreachedPeer> = peers.iter().map(row).collect();
        list.sort_by_key(|peer| std::cmp::Reverse(peer.dials));
        list
    }

    fn peers(&self) -> MutexGuard<'_, BTreeMap<NodeId, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reasons of one kind say the same to a user: the peer is away, however each of its addresses shows that.
fn kind(reason: &Reason) -> &'static str {
    match reason {
        Reason::WrongPeer { .. } | Reason::NoSuchName | Reason::OtherVersion(_) | Reason::Unsupported => reason.name(),
        _ => "away",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> Multiaddr {
        format!("/ip4/192.0.2.7/tcp/{port}").parse().unwrap()
    }

    #[test]
    fn a_peer_that_is_away_is_told_once_and_counted() {
        let (unreached, peer) = (Unreached::default(), NodeId([7; 32]));
        let now = Instant::now();
        let dial = |reason: Reason, port| unreached.failed((peer, false), &[(Some(at(port)), reason)], &[], now);
        let told = dial(Reason::TimedOut, 1);
        assert!(matches!(told, Some(NetEvent::DialFailed { peer: of, .. }) if of == peer), "{told:?}");
        for port in 1..4 {
            assert!(dial(Reason::Refused, port).is_none());
        }
        assert!(dial(Reason::NoSuchName, 1).is_some(), "something that the user can mend is news");
        let list = unreached.list(now);
        assert_eq!(list.iter().map(|row| (row.addresses, row.dials)).collect::<Vec<_>>(), [(3, 5)]);
        unreached.reached(&peer);
        assert!(unreached.list(now).is_empty());
        assert!(dial(Reason::TimedOut, 1).is_some(), "it was here in between");
        assert!(unreached.list(now + GIVEN_UP).is_empty(), "nobody dials it any more");
    }

    #[test]
    fn own_addresses_are_never_told() {
        let (unreached, peer) = (Unreached::default(), NodeId([7; 32]));
        let (own, now) = ([at(1)], Instant::now());
        let ours = [(Some(at(1)), Reason::TimedOut), (None, Reason::Ourselves)];
        assert!(unreached.failed((peer, true), &ours, &own, now).is_none());
        assert!(unreached.list(now).is_empty());
        let theirs = [(Some(at(2)), Reason::Refused), (Some(at(1)), Reason::TimedOut)];
        let told = unreached.failed((peer, true), &theirs, &own, now);
        let Some(NetEvent::DialFailed { address, .. }) = told else { panic!("{told:?}") };
        assert_eq!(address, Some(at(2)));
    }

    #[test]
    fn a_peer_behind_this_node_s_relay_is_told_of() {
        let (unreached, peer) = (Unreached::default(), NodeId([7; 32]));
        let [relay, me, other] = [(); 3].map(|()| libp2p::PeerId::random());
        let place = |of| format!("/ip4/192.0.2.7/tcp/1/p2p/{relay}/p2p-circuit/p2p/{of}").parse::<Multiaddr>().unwrap();
        let theirs = [(Some(place(other)), Reason::TimedOut)];
        let told = unreached.failed((peer, true), &theirs, &[at(1), place(me)], Instant::now());
        assert!(matches!(&told, Some(NetEvent::DialFailed { peer: of, .. }) if *of == peer), "{told:?}");
    }

    #[test]
    fn strangers_do_not_fill_the_memory() {
        let (unreached, now) = (Unreached::default(), Instant::now());
        let dial = |n: usize, is_known| {
            let mut id = [0; 32];
            id[..8].copy_from_slice(&(n as u64).to_le_bytes());
            unreached.failed((NodeId(id), is_known), &[(Some(at(1)), Reason::Refused)], &[], now)
        };
        let told = (0..2 * STRANGERS_MAX).filter(|n| dial(*n, false).is_some()).count();
        assert_eq!((told, unreached.list(now).len()), (STRANGERS_MAX, STRANGERS_MAX));
        assert!(dial(2 * STRANGERS_MAX, true).is_some(), "a member is told of all the same");
    }
}
