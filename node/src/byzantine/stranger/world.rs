//! What all identities of one process know: the run, where its nodes are and what they have said, and what they served.

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

/// The `boot` and `incarnation` of all of them, by which they know each other.
pub const SIGN: u64 = 0x6576_696c;
/// Where a machine listens that has its address for itself.
const PORT: u16 = 7400;

/// See the module.
pub struct World {
    pub plot: Plot,
    pub run: Digest,
    pub spec: RunSpec,
    pub spec_bytes: Vec<u8>,
    /// What a node's network would be like.
    pub net: NetOptions,
    pub blank: Blank,
    pub tally: Tally,
    seen: Mutex<Seen>,
}

/// How it went so far.
#[derive(Default)]
pub struct Tally {
    pub identities: AtomicU64,
    pub sessions: AtomicU64,
    /// Sessions that have ended, by whomever.
    pub ended: AtomicU64,
    /// Requests that were answered.
    pub served: AtomicU64,
    /// Fetch streams that were opened.
    pub streams: AtomicU64,
    /// Requests of a flood that were answered, and that were refused.
    pub answered: AtomicU64,
    pub refused: AtomicU64,
}

#[derive(Default)]
struct Seen {
    honest: BTreeSet<NodeId>,
    places: BTreeMap<NodeId, Multiaddr>,
    newest: Option<Head>,
    /// What the flock had when it was first asked.
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

    /// Somebody has greeted as no stranger of ours does.
    pub fn is_honest(&self, node: NodeId) {
        self.seen().honest.insert(node);
    }

    /// A node said where it stands; strangers of other processes do so too, and are not heeded.
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

    /// A connection leads there: the node listens at the same host.
    pub fn note_place(&self, node: NodeId, address: &Multiaddr) {
        let Some(Protocol::Ip4(ip)) = address.iter().next() else { return };
        let mut seen = self.seen();
        if seen.honest.contains(&node) && !ip.is_loopback() {
            let place = Multiaddr::empty().with(Protocol::Ip4(ip)).with(Protocol::Tcp(PORT));
            seen.places.insert(node, place);
        }
    }

    /// Where those are whom the plot is about, as far as that is known.
    pub fn known(&self) -> Vec<PeerAddress> {
        let seen = self.seen();
        let meant = |address: &&Multiaddr| match address.iter().next() {
            Some(Protocol::Ip4(ip)) => self.plot.at.is_empty() || self.plot.at.contains(&ip),
            _ => false,
        };
        let places = seen.places.iter().filter(|(_, address)| meant(address));
        places.map(|(node, address)| PeerAddress { peer: identity::peer_id(node), address: address.clone() }).collect()
    }

    /// Whether nobody has asked for the flock's chain yet: whoever is told so does.
    pub fn is_to_ask(&self) -> bool {
        let mut seen = self.seen();
        !std::mem::replace(&mut seen.asking, true)
    }

    /// The answer, or that another is to ask.
    pub fn heard(&self, truth: Option<Story>) {
        let mut seen = self.seen();
        seen.asking = truth.is_some();
        seen.truth = truth.map(Arc::new);
    }

    /// What the flock had when it was asked.
    pub fn truth(&self) -> Option<Arc<Story>> {
        self.seen().truth.clone()
    }
}
