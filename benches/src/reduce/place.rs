//! The machines of members: all on loopback, or each on a machine of its own behind a link of limited rate.

use anyhow::{Result, bail};
use starling_tests::netns::Network;

/// The places of one flock.
pub struct Places {
    nodes: usize,
    network: Option<Network>,
}

impl Places {
    /// `nodes` places. With rates in Mbit/s, each has a network namespace whose link has that rate in either direction,
    /// and queues of `queue_ms`.
    ///
    /// # Errors
    /// If the system makes no namespaces or limits.
    pub fn new(rates: &[u32], queue_ms: u32, nodes: usize) -> Result<Self> {
        if rates.is_empty() {
            return Ok(Self { nodes, network: None });
        }
        if let Some(why) = Network::missing() {
            bail!("links cannot be limited here: {why}");
        }
        let network = Network::new(nodes, 1)?;
        for (machine, rate) in rates.iter().enumerate() {
            network.limit(machine, *rate, queue_ms)?;
        }
        Ok(Self { nodes, network: Some(network) })
    }

    pub fn len(&self) -> usize {
        self.nodes
    }

    pub fn host(&self, node: usize) -> String {
        self.network.as_ref().map_or_else(|| "127.0.0.1".into(), |network| network.address(node))
    }

    pub fn interface(&self, node: usize) -> String {
        self.network.as_ref().map_or_else(|| "lo".into(), |network| network.interface(node))
    }

    /// The command that runs `command` at the place of `node`.
    pub fn on(&self, node: usize, command: &[String]) -> Vec<String> {
        let before = self.network.as_ref().map_or_else(Vec::new, |network| network.on(node).to_vec());
        before.into_iter().chain(command.iter().cloned()).collect()
    }
}
