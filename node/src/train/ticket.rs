//! Making tickets for `starling invite`.

use crate::watch::status::Terms;
use libp2p::Multiaddr;
use starling_bootstrap::identity::Identity;
use starling_bootstrap::ticket::Ticket;
use starling_protocol::admission;
use starling_protocol::run::{AdmissionMode, RunSpec};
use starling_protocol::{NodeId, wire};

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

    /// A ticket with these addresses. In a run that admits by ticket it carries the creator's word on these terms, which
    /// members check and count; in any other it only leads the way, and ends when it expires.
    ///
    /// # Errors
    /// In plain words, if the node may not invite or has no address that another machine could use.
    pub fn make(&self, spec: &RunSpec, addresses: Vec<Multiaddr>, terms: &Terms) -> Result<String, String> {
        if spec.creator.is_some_and(|creator| creator != self.identity.node_id()) {
            return Err("only the run's creator may invite: run `starling invite` on its node".into());
        }
        if addresses.is_empty() {
            return Err(
                "this node has no address yet that others could reach: wait a moment, or give --advertise".into()
            );
        }
        let admission = self.admission(spec, terms)?;
        Ticket::admitting(&self.identity, self.spec.clone(), addresses, terms.expires, admission)
            .map(|t| t.to_string())
            .map_err(|e| e.to_string())
    }

    /// The admission ticket of a run that asks for one; empty otherwise.
    fn admission(&self, spec: &RunSpec, terms: &Terms) -> Result<Vec<u8>, String> {
        if spec.admission.mode != AdmissionMode::Ticket {
            let counts = terms.uses > 0 || terms.holder.is_some();
            let why =
                "this run does not count tickets (admission.mode is not \"ticket\"): leave out --uses and --holder";
            return if counts { Err(why.into()) } else { Ok(Vec::new()) };
        }
        let holder = match &terms.holder {
            Some(text) => Some(NodeId::from_hex(text).ok_or("the holder is not a node id of 64 hex digits")?),
            None => None,
        };
        let (signer, nonce) = (self.identity.signer(), rand::random());
        let ticket = admission::Ticket::sign(&signer, &spec.digest(), nonce, holder, terms.expires, terms.uses);
        Ok(wire::encode_ticket(&ticket))
    }
}
