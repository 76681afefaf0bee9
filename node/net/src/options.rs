//! How a node's network is set up, and why it could not be.

use super::fetch::FetchSource;
use libp2p::Multiaddr;
use starling_bootstrap::addresses::PeerAddress;
use starling_bootstrap::discovery::DiscoveryOptions;
use starling_bootstrap::swarm::{StartError, SwarmOptions};
use starling_protocol::wire::Opened;
use starling_protocol::{Digest, NodeId};
use std::sync::Arc;

/// How a node's network is set up.
#[derive(Clone)]
pub struct NetOptions {
    /// Whose nodes to look for.
    pub run: Digest,
    /// Where to listen; port 0 takes a free one.
    pub listen: Vec<Multiaddr>,
    /// Where others reach this node although it does not listen there itself.
    pub advertise: Vec<Multiaddr>,
    /// Peers to begin with: from bootstrap lists and tickets.
    pub bootstrap: Vec<PeerAddress>,
    /// Look for peers on the local network.
    pub mdns: bool,
    /// Relay for nodes that cannot be reached.
    pub relay: bool,
    /// What peers may fetch here.
    pub source: Arc<dyn FetchSource>,
    /// Checks control messages before the node hears of them; without it they are passed on as they are.
    pub verify: Option<Verify>,
}

/// Checks a control message that came from this peer, and opens it; none if the peer is of another run or release, which the
/// node refuses in its own words. Called in the session's own task, so that signatures
/// cost the node's task nothing, and no session waits for another one's.
pub type Verify = Arc<dyn Fn(&NodeId, &[u8]) -> Result<Option<Box<Opened>>, Unfit> + Send + Sync>;

/// What ends a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// The label of `starling_refused_total`.
    pub label: &'static str,
    /// In words, as a person reads it.
    pub why: String,
}

impl NetOptions {
    /// Where the run's nodes tell each other their addresses.
    fn topic(&self) -> String {
        format!("starling/1/{}", self.run)
    }

    pub(super) fn swarm(&self) -> SwarmOptions {
        SwarmOptions {
            listen: self.listen.clone(),
            advertise: self.advertise.clone(),
            mdns: self.mdns,
            relay_server: self.relay,
            gossip: Some(self.topic()),
            ..SwarmOptions::default()
        }
    }

    /// `seed` moves the jitter of retries.
    pub(super) fn discovery(&self, seed: u64) -> DiscoveryOptions {
        DiscoveryOptions { run: Some(self.run), bootstrap: self.bootstrap.clone(), gossip: Some(self.topic()), seed }
    }
}

/// Why the network did not start.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("the network is set up twice: {0}")]
    Twice(#[from] starling_bootstrap::streams::AlreadyAccepted),
}
