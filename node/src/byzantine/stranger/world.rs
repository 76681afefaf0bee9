//! The knowledge that all identities of one process share: the run, the places and heads of its nodes, and a tally.

use super::super::plot::Plot;
use super::story::{Blank, Story};
use crate::net::NetOptions;
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use starling_bootstrap::addresses::PeerAddress;
use starling_bootstrap::identity;
use starling_protocol::message::Head;
use starling_protocol::run::RunSpec;
use starling_protocol::{Digest, NodeId, wire};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The `boot` and `incarnation` of all strangers, by which they know each other.
pub const SIGN: u64 = 0x6576_696c;
/// Port on which a node listens if its machine has an address for itself.
const PORT: u16 = 7400;

/// The state that all identities share.
pub struct World {
    pub plot: Plot,
    pub run: Digest,
    pub spec: RunSpec,
    pub spec_bytes: Vec<u8>,
    /// Options of the network that a node would have here.
    pub net: NetOptions,
    pub blank: Blank,
    pub tally: Tally,
    seen: Mutex<Seen>,
}

/// Counts of the attack so far.
#[derive(Default)]
pub struct Tally {
    pub identities: AtomicU64,
    pub sessions: AtomicU64,
    /// Sessions that have ended, whichever side ended them.
    pub ended: AtomicU64,
    /// Requests that were answered with a story.
    pub served: AtomicU64,
    /// Fetch streams that were opened.
    pub streams: AtomicU64,
    /// Requests of a flood that were answered, and those that were refused.
    pub answered: AtomicU64,
    pub refused: AtomicU64,
}

#[derive(Default)]
struct Seen {
    honest: BTreeSet<NodeId>,
    places: BTreeMap<NodeId, Multiaddr>,
    newest: Option<Head>,
    /// The flock's chain when it was first asked for.
    truth: Option<Arc<Story>>,
    asking: bool,
}

impl World {
    /// None if there can be no state of zeros for the run's model.
    pub fn new(plot: &Plot, spec: &RunSpec, net: &NetOptions) -> Option<Self> {
        Some(Self {
            plot: plot.clone(),
            run: spec.digest(),
            spec: spec.clone(),
            spec_bytes: wire::encode_spec(spec),
            net: net.clone(),
            blank: Blank::new(spec)?,
            tally: Tally::default(),
            seen: Mutex::default(),
        })
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a node greeted as no stranger does.
    pub fn is_honest(&self, node: NodeId) {
        self.seen().honest.insert(node);
    }

    /// Notes a node's head. Strangers of other processes send heads too; those do not count.
    pub fn note_head(&self, from: &NodeId, head: &Head) {
        let mut seen = self.seen();
        let news = seen.newest.as_ref().is_none_or(|newest| newest.lineage != head.lineage || newest.seq < head.seq);
        if seen.honest.contains(from) && head.lineage != Digest::default() && news {
            seen.newest = Some(head.clone());
        }
    }

    /// The flock's newest head.
    pub fn newest(&self) -> Option<Head> {
        self.seen().newest.clone()
    }

    /// Notes where a node listens: at the host that a connection leads to.
    pub fn note_place(&self, node: NodeId, address: &Multiaddr) {
        let Some(Protocol::Ip4(ip)) = address.iter().next() else { return };
        let mut seen = self.seen();
        if seen.honest.contains(&node) && !ip.is_loopback() {
            let place = Multiaddr::empty().with(Protocol::Ip4(ip)).with(Protocol::Tcp(PORT));
            seen.places.insert(node, place);
        }
    }

    /// The known addresses of nodes that the plot attacks.
    pub fn known(&self) -> Vec<PeerAddress> {
        let seen = self.seen();
        let meant = |address: &&Multiaddr| match address.iter().next() {
            Some(Protocol::Ip4(ip)) => self.plot.at.is_empty() || self.plot.at.contains(&ip),
            _ => false,
        };
        let places = seen.places.iter().filter(|(_, address)| meant(address));
        places.map(|(node, address)| PeerAddress { peer: identity::peer_id(node), address: address.clone() }).collect()
    }

    /// Whether no identity has asked for the flock's chain yet; the caller that gets `true` asks.
    pub fn is_to_ask(&self) -> bool {
        let mut seen = self.seen();
        !std::mem::replace(&mut seen.asking, true)
    }

    /// Notes the answer; after a failure another identity asks.
    pub fn heard(&self, truth: Option<Story>) {
        let mut seen = self.seen();
        seen.asking = truth.is_some();
        seen.truth = truth.map(Arc::new);
    }

    /// The flock's chain when it was asked for.
    pub fn truth(&self) -> Option<Arc<Story>> {
        self.seen().truth.clone()
    }
}
