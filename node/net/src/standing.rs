//! The ranks of peers: members, admitted joiners, and peers that the user named; every other peer is a stranger. Also
//! the address of each peer, and the budgets that strangers from an address have used up.
//!
//! The network takes the members and joiners from the node, and judges nothing itself. Whom it dials is said apart: in
//! a large flock those are some of the members ([`Contacts`]), and the rank of the others is the same.

use super::budget::{Account, Bucket, Cost, Purse};
use super::contacts::Contacts;
use libp2p::PeerId;
use starling_bootstrap::discovery::dialer;
use starling_bootstrap::identity;
use starling_bootstrap::source::{Remembered, Source};
use starling_protocol::NodeId;
use starling_protocol::limits::MEMBERS_MAX;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

/// Admitted joiners that the node may name at a time.
pub const INVITED_MAX: usize = 256;
/// Peers that the user may name; further ones are strangers.
const NAMED_MAX: usize = 1024;

/// Strangers that are asked for something, beside known peers and where there are none.
const STRANGERS_BESIDE_KNOWN: usize = 4;
const STRANGERS_ALONE: usize = 16;

/// Answers to strangers at one address that are in memory at a time. An answer is at most a mebibyte, but for manifests
/// of large models.
const ANSWERS: usize = 3;

/// The rank of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    Stranger,
    /// An admitted joiner, or a peer that the user named.
    Invited,
    Member,
}

/// The ranks and budgets of peers; cheap to clone. Its content is bounded: by the limits of connections, or by a limit
/// here.
#[derive(Clone, Default)]
pub struct Standing {
    known: Arc<Mutex<Known>>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct Known {
    members: BTreeSet<NodeId>,
    invited: BTreeSet<NodeId>,
    named: BTreeSet<NodeId>,
    contacts: Option<Contacts>,
    /// Whether the node has named members yet: a node that has met no flock does not know them.
    is_told: bool,
    /// The addresses of connected peers.
    sources: BTreeMap<NodeId, Source>,
    accounts: Remembered<Account>,
    /// The budgets of strangers' fetches, and of the answers to them that are in memory at a time.
    fetchers: Remembered<Fetcher>,
    /// The cost of sending a newcomer what it needs at once.
    newcomer: Duration,
    /// The budgets of addresses until this node has met a flock.
    unmet: Remembered<Purse>,
}

struct Fetcher {
    work: Bucket,
    answers: Arc<Semaphore>,
}

impl Known {
    fn rank(&self, peer: &NodeId) -> Rank {
        if self.members.contains(peer) {
            Rank::Member
        } else if self.invited.contains(peer) || self.named.contains(peer) {
            Rank::Invited
        } else {
            Rank::Stranger
        }
    }

    fn source(&self, peer: &NodeId) -> Source {
        self.sources.get(peer).copied().unwrap_or(Source::Here)
    }

    /// The address that pays for the peer: only that of a stranger from elsewhere.
    fn payer(&self, peer: &NodeId) -> Option<Source> {
        let source = self.source(peer);
        (self.rank(peer) == Rank::Stranger && source != Source::Here).then_some(source)
    }

    /// The budget for the fetches of a stranger's address; none until the node has named members.
    fn fetcher(&mut self, peer: &NodeId, now: Instant) -> Option<&mut Fetcher> {
        let payer = self.payer(peer).filter(|_| self.is_told)?;
        let newcomer = self.newcomer;
        let new = || Fetcher { work: Bucket::of_fetcher(newcomer, now), answers: Arc::new(Semaphore::new(ANSWERS)) };
        let fetcher = self.fetchers.of(payer, new);
        fetcher.work.widen(newcomer);
        Some(fetcher)
    }
}

impl Standing {
    /// No statement leaves it half-changed, so the content of a poisoned lock is still good.
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the members and the admitted joiners.
    pub fn set(&self, members: Vec<NodeId>, invited: Vec<NodeId>) {
        let beyond = members.len().saturating_sub(MEMBERS_MAX) + invited.len().saturating_sub(INVITED_MAX);
        if beyond > 0 {
            metrics::counter!("starling_refused_total", "reason" => "standing_full").increment(beyond as u64);
        }
        let members: BTreeSet<NodeId> = members.into_iter().take(MEMBERS_MAX).collect();
        let invited: BTreeSet<NodeId> = invited.into_iter().take(INVITED_MAX).collect();
        let mut known = self.known();
        // The first call is a change too, even without members: from now on there are strangers.
        let is_first = !std::mem::replace(&mut known.is_told, true);
        if is_first || (&known.members, &known.invited) != (&members, &invited) {
            (known.members, known.invited) = (members, invited);
            self.changed.notify_one();
        }
    }

    /// Sets the members to be connected with; `None`: all nodes that this one meets.
    pub fn set_contacts(&self, mut contacts: Option<Contacts>) {
        let near = contacts.as_mut().map(|contacts| &mut contacts.near);
        if let Some(near) = near.filter(|near| near.len() > MEMBERS_MAX) {
            let beyond = near.len() - MEMBERS_MAX;
            metrics::counter!("starling_refused_total", "reason" => "standing_full").increment(beyond as u64);
            *near = std::mem::take(near).into_iter().take(MEMBERS_MAX).collect();
        }
        let mut known = self.known();
        if known.contacts != contacts {
            known.contacts = contacts;
            self.changed.notify_one();
        }
    }

    /// The same as connections name them, beside all other members.
    pub fn contacts(&self) -> Option<dialer::Contacts> {
        let known = self.known();
        let contacts = known.contacts.as_ref()?;
        let far = known.members.difference(&contacts.near).map(identity::peer_id).collect();
        let near = contacts.near.iter().map(identity::peer_id).collect();
        Some(dialer::Contacts { near, far, meets_strangers: contacts.meets_strangers })
    }

    /// Whether the peer is a member that is no contact. A peer that the user named is one.
    pub fn is_far(&self, peer: &NodeId) -> bool {
        let known = self.known();
        let is_contact = |contacts: &Contacts| contacts.near.contains(peer) || known.named.contains(peer);
        known.members.contains(peer) && known.contacts.as_ref().is_some_and(|contacts| !is_contact(contacts))
    }

    /// Whether the node has named contacts: the flock is a large one.
    pub fn has_contacts(&self) -> bool {
        self.known().contacts.is_some()
    }

    /// The time after which a connection with such a member ends.
    pub fn parts_after(&self) -> Option<Duration> {
        self.known().contacts.as_ref()?.parts_after
    }

    /// Adds a peer that the user named.
    pub fn name(&self, peer: NodeId) {
        let mut known = self.known();
        if known.named.len() < NAMED_MAX {
            known.named.insert(peer);
        }
    }

    pub fn is_named(&self, peer: &NodeId) -> bool {
        self.known().named.contains(peer)
    }

    pub fn rank(&self, peer: &NodeId) -> Rank {
        self.known().rank(peer)
    }

    /// Orders peers for a request: members, joiners and named peers first, then a few strangers. Peers of one rank stay
    /// in their order.
    pub fn as_sources(&self, mut peers: Vec<NodeId>) -> Vec<NodeId> {
        let known = self.known();
        peers.sort_by_cached_key(|peer| std::cmp::Reverse(known.rank(peer)));
        let of_rank = peers.iter().take_while(|peer| known.rank(peer) != Rank::Stranger).count();
        let strangers = if of_rank > 0 { STRANGERS_BESIDE_KNOWN } else { STRANGERS_ALONE };
        peers.truncate(of_rank + strangers);
        peers
    }

    /// The rank by which the peer's messages are limited. While the node has met no flock, any peer may turn out to be
    /// a member, which has much to say.
    pub fn speaks_as(&self, peer: &NodeId) -> Rank {
        let known = self.known();
        if known.is_told { known.rank(peer) } else { known.rank(peer).max(Rank::Invited) }
    }

    /// The peer's address, while it is connected.
    pub fn source(&self, peer: &NodeId) -> Source {
        self.known().source(peer)
    }

    /// A peer has connected from this address.
    pub fn came(&self, peer: NodeId, source: Source) {
        self.known().sources.insert(peer, source);
    }

    /// The peer's last connection is gone.
    pub fn left(&self, peer: &NodeId) {
        self.known().sources.remove(peer);
    }

    /// Charges a stranger's message to its address, and returns how long the stranger has to wait, if at all. Other
    /// peers and processes of this machine pay nothing here. Before this node has met a flock members are strangers,
    /// too: all peers of an address together then say as much as one member may, so that many keys gain an address
    /// nothing.
    pub fn charge(&self, peer: &NodeId, cost: Cost, now: Instant) -> Option<Duration> {
        let mut known = self.known();
        let payer = known.payer(peer)?;
        if !known.is_told {
            let purse = known.unmet.of(payer, || Purse::new(now));
            return (0..cost.messages).fold(None, |_, _| purse.read(now));
        }
        known.accounts.of(payer, || Account::of_address(now)).spend(cost, now)
    }

    /// Charges a fetch in the same way, by the processor time that it costs this node.
    pub fn charge_fetch(&self, peer: &NodeId, work: Duration, now: Instant) -> Option<Duration> {
        self.known().fetcher(peer, now)?.work.spend(work, now)
    }

    /// Sets the cost of sending a newcomer what it needs at once. An address may cost so much more before it has to
    /// wait.
    pub fn grant_newcomers(&self, work: Duration) {
        self.known().newcomer = work;
    }

    /// Room for the answers to a stranger's address that are in memory until they are taken; other peers have no such
    /// limit.
    pub fn answers(&self, peer: &NodeId) -> Option<Arc<Semaphore>> {
        Some(Arc::clone(&self.known().fetcher(peer, Instant::now())?.answers))
    }

    /// Returns when members or joiners have changed since the last time.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Members and joiners, as connections name them.
    pub fn peer_ids(&self) -> BTreeSet<PeerId> {
        let known = self.known();
        known.members.iter().chain(&known.invited).map(identity::peer_id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::budget::{REQUEST_WORK, STREAM_WORK, sending, serving};
    use super::*;

    fn id(n: u16) -> NodeId {
        let mut bytes = [0; 32];
        bytes[..2].copy_from_slice(&n.to_le_bytes());
        NodeId(bytes)
    }

    #[test]
    fn ranks_are_those_of_the_last_word_and_bounded() {
        let standing = Standing::default();
        assert_eq!(standing.rank(&id(1)), Rank::Stranger);
        standing.name(id(9));
        standing.set(vec![id(1), id(2)], vec![id(2), id(3)]);
        let ranks = [1, 2, 3, 4, 9].map(|n| standing.rank(&id(n)));
        assert_eq!(ranks, [Rank::Member, Rank::Member, Rank::Invited, Rank::Stranger, Rank::Invited]);
        let many: Vec<NodeId> = (0..2000).map(id).collect();
        standing.set(many[1000..].to_vec(), many[..1000].to_vec());
        assert_eq!(standing.peer_ids().len(), 1000 + INVITED_MAX);
        assert_eq!(standing.rank(&id(999)), Rank::Stranger);
        standing.set(Vec::new(), Vec::new());
        assert_eq!([1, 1500].map(|n| standing.rank(&id(n))), [Rank::Stranger; 2]);
    }

    #[test]
    fn whom_a_node_dials_changes_nobodys_rank() {
        let standing = Standing::default();
        standing.set((1..=4).map(id).collect(), vec![id(5)]);
        assert_eq!((standing.contacts(), standing.is_far(&id(1))), (None, false), "one row: everybody");
        standing.name(id(4));
        let near = BTreeSet::from([id(1), id(2)]);
        standing.set_contacts(Some(Contacts { near, parts_after: None, meets_strangers: false }));
        let contacts = standing.contacts().expect("they are named");
        assert_eq!(contacts.near, [1, 2].map(|n| identity::peer_id(&id(n))).into());
        assert_eq!(contacts.far, [3, 4].map(|n| identity::peer_id(&id(n))).into());
        assert_eq!([1, 3, 4, 5, 6].map(|n| standing.is_far(&id(n))), [false, true, false, false, false]);
        assert_eq!([1, 3].map(|n| standing.rank(&id(n))), [Rank::Member; 2]);
        let many = Contacts { near: (0..2000).map(id).collect(), ..Contacts::default() };
        standing.set_contacts(Some(many));
        assert_eq!(standing.contacts().map(|contacts| contacts.near.len()), Some(MEMBERS_MAX));
    }

    #[test]
    fn strangers_are_asked_last_and_few_of_them() {
        let standing = Standing::default();
        let all: Vec<NodeId> = (0..100).map(id).collect();
        assert_eq!(standing.as_sources(all.clone()), all[..STRANGERS_ALONE], "nobody is known yet");
        standing.name(id(98));
        standing.set(vec![id(97), id(99)], vec![id(96)]);
        let sources = standing.as_sources(all);
        assert_eq!(sources[..4], [id(97), id(99), id(96), id(98)]);
        assert_eq!(sources[4..], (0..4).map(id).collect::<Vec<_>>());
    }

    /// A flood of each kind, and of all, costs less than 2 % of a core. Before, a new stream cost nothing, and a
    /// mebibyte two thirds of a millisecond.
    #[test]
    fn the_fetches_of_strangers_of_one_address_have_a_budget() {
        let (standing, start) = (Standing::default(), Instant::now());
        let address = |n: u8| Source::Address([45, 2, 0, n].into());
        (0..9).for_each(|n| standing.came(id(n), address(1)));
        (100..104).zip(2..).for_each(|(n, from)| standing.came(id(n), address(from)));
        standing.set(vec![id(5)], Vec::new());
        // Seconds of processor time that a flood of these takes in a minute, if its sender waits as long as it is told
        // to.
        let costs = |peer: NodeId, work: Duration| {
            let (mut now, mut spent) = (start, Duration::ZERO);
            while now < start + Duration::from_secs(60) {
                now += standing.charge_fetch(&peer, work, now).unwrap_or_default();
                spent += work;
            }
            spent.as_secs_f64() / 60.0
        };
        for (peer, work) in [(6, STREAM_WORK), (100, REQUEST_WORK), (101, sending(1 << 20)), (102, SEARCH)] {
            let share = costs(id(peer), work);
            assert!((0.005..0.012).contains(&share), "{work:?} each: {share} of a core");
        }
        for other in [5, 103, 200] {
            assert_eq!(standing.charge_fetch(&id(other), sending(1 << 20), start), None, "{other}");
        }
        assert!(standing.charge_fetch(&id(7), Duration::ZERO, start).is_some(), "its address has spent all");
    }

    /// A search of the chain that takes long.
    const SEARCH: Duration = Duration::from_millis(50);

    /// Work that is charged without a wait leaves a debt; the debt does not grow for ever.
    #[test]
    fn the_debt_of_an_address_is_bounded() {
        let (standing, now) = (Standing::default(), Instant::now());
        standing.came(id(1), Source::Address([45, 2, 0, 1].into()));
        standing.set(Vec::new(), Vec::new());
        for _ in 0..100_000 {
            let _ = standing.charge_fetch(&id(1), STREAM_WORK, now);
        }
        let wait = standing.charge_fetch(&id(1), Duration::ZERO, now).expect("it owes much");
        assert!((30..120).contains(&wait.as_secs()), "{wait:?}");
    }

    #[test]
    fn a_newcomer_has_the_state_before_its_address_waits() {
        let (standing, now) = (Standing::default(), Instant::now());
        (0..2).for_each(|n| standing.came(id(n), Source::Address([45, 2, 0, 1].into())));
        standing.set(Vec::new(), Vec::new());
        let chunks = |count: u32, at| {
            (0..count).filter(|n| standing.charge_fetch(&id(*n as u16 % 2), sending(1 << 20), at).is_none()).count()
        };
        let few = chunks(2000, now);
        assert!(few < 100, "{few} MiB");
        // The node has had a snapshot of a large model since.
        standing.grant_newcomers(sending(1000 << 20));
        standing.grant_newcomers(sending(1000 << 20));
        let later = now + Duration::from_secs(1 << 20);
        let state = chunks(2000, later);
        assert!((1000..1100).contains(&state), "{state} MiB");
        assert!(chunks(10, later) == 0, "once");
    }

    /// Requests and the time of looking chunks up were charged, and not granted: the last tenth of a large state came
    /// at 2 MiB/s.
    #[test]
    fn the_grant_of_a_newcomer_covers_all_that_a_state_costs() {
        const CHUNKS: u64 = 2400;
        let (standing, now) = (Standing::default(), Instant::now());
        standing.came(id(1), Source::Address([45, 2, 0, 1].into()));
        standing.set(Vec::new(), Vec::new());
        standing.grant_newcomers(serving(CHUNKS << 20));
        let charges = [REQUEST_WORK, Duration::from_millis(1), sending(1 << 20)];
        let waits =
            (0..CHUNKS).flat_map(|_| charges).filter(|work| standing.charge_fetch(&id(1), *work, now).is_some());
        assert_eq!(waits.count(), 0);
    }

    #[test]
    fn strangers_of_one_address_share_an_account() {
        let (standing, now) = (Standing::default(), Instant::now());
        let flood = Source::Address("45.2.0.9".parse().unwrap());
        (0..40).for_each(|n| standing.came(id(n), flood));
        standing.came(id(100), Source::Address("45.2.0.10".parse().unwrap()));
        standing.set(vec![id(5)], Vec::new());
        let message = Cost { messages: 1, bytes: 100 };
        let free = (0..10_000).filter(|n| standing.charge(&id(6 + n % 30), message, now).is_none()).count();
        assert!((100..1000).contains(&free), "{free}");
        assert!(standing.charge(&id(6), message, now).is_some());
        for other in [5, 100, 200] {
            assert_eq!(standing.charge(&id(other), message, now), None, "{other}");
        }
        standing.left(&id(6));
        standing.came(id(6), flood);
        assert!(standing.charge(&id(6), message, now).is_some(), "coming back clears nothing");
    }
}
