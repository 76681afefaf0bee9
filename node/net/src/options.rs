//! The settings of a node's network, and the errors of its start.

use super::fetch::FetchSource;
use libp2p::Multiaddr;
use starling_bootstrap::addresses::PeerAddress;
use starling_bootstrap::discovery::DiscoveryOptions;
use starling_bootstrap::swarm::{StartError, SwarmOptions};
use starling_bootstrap::untrusted;
use starling_protocol::wire::Opened;
use starling_protocol::{Digest, NodeId};
use std::sync::Arc;

/// The settings of a node's network.
#[derive(Clone)]
pub struct NetOptions {
    /// The run whose nodes to look for.
    pub run: Digest,
    /// Addresses to listen on; port 0 takes a free one.
    pub listen: Vec<Multiaddr>,
    /// Addresses at which peers reach this node although it does not listen there itself.
    pub advertise: Vec<Multiaddr>,
    /// Peers to begin with: from bootstrap lists and tickets.
    pub bootstrap: Vec<PeerAddress>,
    /// Look for peers on the local network.
    pub mdns: bool,
    /// Relay for nodes that cannot be reached.
    pub relay: bool,
    /// The node's name, which peers are told.
    pub name: Option<String>,
    /// Only asks, and is soon gone: announces itself neither in the DHT nor by gossip, and answers no DHT questions.
    pub hidden: bool,
    /// The source of peers' fetches.
    pub source: Arc<dyn FetchSource>,
    /// Checks control messages before they reach the node; without it they are passed on as they are.
    pub verify: Option<Verify>,
}

/// Checks a control message that came from this peer. Called in the session's own task, so that checks of signatures take
/// no time of the node's task, and no session waits for another one's.
pub type Verify = Arc<dyn Fn(&NodeId, &[u8]) -> Result<Checked, Unfit> + Send + Sync>;

/// A control message as the check leaves it.
#[derive(Clone, Debug, PartialEq)]
pub enum Checked {
    /// The peer's own word, with its content.
    Own(Box<Opened>),
    /// Another node's word, which the node checks itself.
    PassedOn,
    /// The peer is of another run or release, which the node refuses in its own words. Nothing that it says after this
    /// one is heard.
    Foreign,
}

/// The fault that ends a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// The label of `starling_refused_total`.
    pub label: &'static str,
    /// The fault in words, for a person.
    pub why: String,
}

impl NetOptions {
    /// The gossip topic in which the run's nodes announce their addresses.
    fn topic(&self) -> Option<String> {
        (!self.hidden).then(|| format!("starling/1/{}", self.run))
    }

    pub(super) fn swarm(&self) -> SwarmOptions {
        let default = SwarmOptions::default();
        SwarmOptions {
            agent: untrusted::agent_with(&default.agent, self.name.as_deref()),
            listen: self.listen.clone(),
            advertise: self.advertise.clone(),
            mdns: self.mdns,
            dht_server: !self.hidden,
            relay_server: self.relay,
            gossip: self.topic(),
            ..default
        }
    }

    /// `seed` varies the jitter of retries.
    pub(super) fn discovery(&self, seed: u64) -> DiscoveryOptions {
        DiscoveryOptions {
            run: Some(self.run),
            bootstrap: self.bootstrap.clone(),
            gossip: self.topic(),
            hidden: self.hidden,
            seed,
        }
    }
}

/// The reason why the network did not start.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("the network is set up twice: {0}")]
    Twice(#[from] starling_bootstrap::streams::AlreadyAccepted),
}
