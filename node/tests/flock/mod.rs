//! Nodes' networks on loopback, for tests.

#![allow(dead_code, reason = "each test file uses some of it")]

use libp2p::Multiaddr;
use starling_bootstrap::addresses::{split, without_peer};
use starling_bootstrap::identity::Identity;
use starling_node::net::fetch::FetchSource;
use starling_node::net::{NetEvent, NetEvents, NetHandle, NetOptions, Network};
use starling_protocol::{Digest, NodeId};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::timeout;

/// Of all nodes that [`options`] makes.
pub const RUN: Digest = Digest([0x5a; 32]);
/// No test asserts times; this only turns a hang into a failure.
const HANG: Duration = Duration::from_secs(60);

/// One node's network.
pub struct Node {
    pub net: NetHandle,
    pub events: NetEvents,
    pub secret: [u8; 32],
    /// Where it listens, `/p2p/...` included.
    pub address: Multiaddr,
    up: BTreeSet<NodeId>,
    /// Control messages that came while something else was waited for.
    early: std::collections::VecDeque<Vec<u8>>,
}

pub fn bare(address: &Multiaddr) -> Multiaddr {
    without_peer(address)
}

pub fn options(listen: &[Multiaddr], bootstrap: &[&Node], source: impl FetchSource) -> NetOptions {
    NetOptions {
        run: RUN,
        listen: listen.to_vec(),
        advertise: Vec::new(),
        bootstrap: bootstrap.iter().map(|node| split(&node.address).unwrap()).collect(),
        mdns: false,
        relay: false,
        name: None,
        hidden: false,
        source: Arc::new(source),
        verify: None,
    }
}

/// A key of its own for each call; the same secret makes the same identity.
pub fn fresh_secret() -> [u8; 32] {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let parts = [u64::from(std::process::id()), COUNT.fetch_add(1, Ordering::Relaxed)];
    Digest::of("starling test identity", &[&parts[0].to_le_bytes(), &parts[1].to_le_bytes()]).0
}

pub fn identity(secret: [u8; 32]) -> Identity {
    Identity::from_secret(secret.into()).unwrap()
}

pub async fn start(bootstrap: &[&Node], source: impl FetchSource) -> Node {
    let anywhere = "/ip4/127.0.0.1/tcp/0".parse().unwrap();
    start_at(fresh_secret(), &anywhere, bootstrap, source).await
}

pub async fn start_at(secret: [u8; 32], address: &Multiaddr, bootstrap: &[&Node], source: impl FetchSource) -> Node {
    let identity = identity(secret);
    let (net, mut events) = Network::start(&identity, options(&[bare(address)], bootstrap, source)).unwrap();
    let mut early = Vec::new();
    let address = loop {
        match timeout(HANG, events.recv()).await.expect("it listens").expect("it runs") {
            NetEvent::Listening { address } => break address,
            other => early.push(other),
        }
    };
    let mut node = Node { net, events, secret, address, up: BTreeSet::new(), early: Default::default() };
    early.iter().for_each(|event| node.note(event));
    node
}

impl Node {
    pub fn id(&self) -> NodeId {
        self.net.me()
    }

    fn note(&mut self, event: &NetEvent) {
        match event {
            NetEvent::PeerUp { peer } => drop(self.up.insert(*peer)),
            NetEvent::PeerDown { peer, .. } => drop(self.up.remove(peer)),
            _ => {}
        }
    }

    async fn next(&mut self) -> NetEvent {
        let event = self.events.recv().await.expect("the network runs");
        self.note(&event);
        event
    }

    /// Goes on until an event fits; control messages on the way are kept.
    pub async fn wait_for(&mut self, fits: impl Fn(&NetEvent) -> bool) -> NetEvent {
        timeout(HANG, self.wait(fits)).await.expect("it never happened")
    }

    async fn wait(&mut self, fits: impl Fn(&NetEvent) -> bool) -> NetEvent {
        loop {
            let event = self.next().await;
            if fits(&event) {
                return event;
            }
            if let NetEvent::Control { bytes, .. } = event {
                self.early.push_back(bytes);
            }
        }
    }

    /// Goes on until all of these but itself are up.
    pub async fn wait_for_peers(&mut self, ids: &[NodeId]) {
        let me = self.id();
        let waiting = async {
            while ids.iter().any(|id| *id != me && !self.up.contains(id)) {
                self.wait(|event| matches!(event, NetEvent::PeerUp { .. })).await;
            }
        };
        timeout(HANG, waiting).await.expect("they never met");
    }

    pub async fn next_control(&mut self) -> Vec<u8> {
        if let Some(bytes) = self.early.pop_front() {
            return bytes;
        }
        match self.wait_for(|event| matches!(event, NetEvent::Control { .. })).await {
            NetEvent::Control { bytes, .. } => bytes,
            other => unreachable!("{other:?}"),
        }
    }
}

/// Asks again and again until it is so.
pub async fn eventually(mut is_so: impl AsyncFnMut() -> bool) {
    let asking = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(HANG, asking).await.expect("it never became so");
}
