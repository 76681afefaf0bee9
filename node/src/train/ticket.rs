//! Making tickets for `starling invite`.

use libp2p::Multiaddr;
use starling_bootstrap::identity::Identity;
use starling_bootstrap::ticket::Ticket;
use starling_protocol::run::RunSpec;

/// Signs tickets with this node's key.
pub struct TicketMaker {
    identity: Identity,
    spec: Vec<u8>,
}

impl TicketMaker {
    /// `spec` is the run's encoded specification.
    pub fn new(identity: &Identity, spec: Vec<u8>) -> Self {
        Self { identity: identity.clone(), spec }
    }

    /// A ticket with these addresses.
    ///
    /// # Errors
    /// In plain words, if the node may not invite or has no address that another machine could use.
    pub fn make(&self, spec: &RunSpec, addresses: Vec<Multiaddr>) -> Result<String, String> {
        if spec.creator.is_some_and(|creator| creator != self.identity.node_id()) {
            return Err("only the run's creator may invite: run `starling invite` on its node".into());
        }
        if addresses.is_empty() {
            return Err(
                "this node has no address yet that others could reach: wait a moment, or give --advertise".into()
            );
        }
        Ticket::new(&self.identity, self.spec.clone(), addresses).map(|t| t.to_string()).map_err(|e| e.to_string())
    }
}
