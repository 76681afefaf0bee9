//! Real swarms on loopback, each driven by a task of its own.

use futures::StreamExt;
use libp2p::gossipsub::MessageAcceptance;
use libp2p::swarm::SwarmEvent;
use libp2p::{Multiaddr, PeerId, Swarm};
use starling_bootstrap::addresses::{self, PeerAddress};
use starling_bootstrap::discovery::{Discovery, DiscoveryOptions, NetEvent};
use starling_bootstrap::identity::Identity;
use starling_bootstrap::swarm::{self, Behaviour, BehaviourEvent, SwarmOptions};
use starling_protocol::Digest;
use std::collections::BTreeSet;
use std::time::Duration;

/// Long enough for the slowest machine; no test measures it.
pub const DEADLINE: Duration = Duration::from_secs(60);
pub const TOPIC: &str = "starling/1/test";

pub struct Node {
    pub swarm: Swarm<Behaviour>,
    pub discovery: Discovery,
}

/// A node that listens on a free port of loopback.
pub fn node(bootstrap: Vec<PeerAddress>, run: Option<Digest>, options: SwarmOptions) -> Node {
    let identity = Identity::generate().unwrap();
    let listen = match options.listen.is_empty() {
        true => vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()],
        false => options.listen.clone(),
    };
    let options = SwarmOptions { listen, mdns: false, ..options };
    let mut swarm = swarm::build(&identity, &options).unwrap();
    let options = DiscoveryOptions { run, bootstrap, gossip: options.gossip, hidden: false, seed: 1 };
    let discovery = Discovery::new(&mut swarm, options);
    Node { swarm, discovery }
}

impl Node {
    pub fn id(&self) -> PeerId {
        *self.swarm.local_peer_id()
    }

    /// The next event of discovery.
    pub async fn next(&mut self) -> NetEvent {
        loop {
            let wake = self.discovery.wake_at();
            tokio::select! {
                event = self.swarm.select_next_some() => {
                    if let Some(told) = self.discovery.on_event(&mut self.swarm, event) {
                        return told;
                    }
                }
                () = async { tokio::time::sleep_until(wake.unwrap()).await }, if wake.is_some() => {
                    self.discovery.tick(&mut self.swarm);
                }
            }
        }
    }

    /// Runs until an event that `fits` accepts.
    pub async fn until<T>(&mut self, mut fits: impl FnMut(&NetEvent) -> Option<T>) -> T {
        let search = async {
            loop {
                let event = self.next().await;
                if let Some(found) = fits(&event) {
                    return found;
                }
            }
        };
        tokio::time::timeout(DEADLINE, search).await.expect("the awaited event did not come")
    }

    /// Runs until an event of the swarm that `fits` accepts.
    pub async fn until_swarm(&mut self, fits: impl Fn(&SwarmEvent<BehaviourEvent>) -> bool) {
        let search = async {
            loop {
                let wake = self.discovery.wake_at();
                tokio::select! {
                    event = self.swarm.select_next_some() => {
                        let found = fits(&event);
                        self.discovery.on_event(&mut self.swarm, event);
                        if found {
                            return;
                        }
                    }
                    () = async { tokio::time::sleep_until(wake.unwrap()).await }, if wake.is_some() => {
                        self.discovery.tick(&mut self.swarm);
                    }
                }
            }
        };
        tokio::time::timeout(DEADLINE, search).await.expect("the awaited event of the swarm did not come");
    }

    /// The first address that the node listens on.
    pub async fn address(&mut self) -> PeerAddress {
        let full: Multiaddr = self
            .until(|event| match event {
                NetEvent::Listening { address } => Some(address.clone()),
                _ => None,
            })
            .await;
        addresses::split(&full).unwrap()
    }

    /// Runs for ever, accepting all gossip.
    pub async fn serve(mut self) {
        loop {
            if let NetEvent::Gossip { id, from, .. } = self.next().await {
                self.discovery.judge(&mut self.swarm, &id, &from, MessageAcceptance::Accept);
            }
        }
    }

    /// Runs until it is connected to all of these.
    pub async fn meet(&mut self, others: &BTreeSet<PeerId>) {
        let search = async {
            while !others.iter().all(|peer| self.swarm.is_connected(peer)) {
                self.next().await;
            }
        };
        if tokio::time::timeout(DEADLINE, search).await.is_err() {
            let connected: Vec<_> = self.swarm.connected_peers().copied().collect();
            panic!("{}: connected to {connected:?} only; {:?}", self.id(), self.discovery.troubles());
        }
    }
}
