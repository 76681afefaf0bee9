//! Makes tickets for `starling invite`, and revokes them.

use crate::watch::status::{Subject, Terms};
use libp2p::Multiaddr;
use starling_bootstrap::identity::Identity;
use starling_bootstrap::ticket::Ticket;
use starling_protocol::admission::{self, Revocation, SubjectKind};
use starling_protocol::run::{AdmissionMode, RunSpec};
use starling_protocol::{Digest, NodeId, wire};

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

    /// A ticket with these addresses. In a run that admits by ticket it carries the creator's signed terms, which
    /// members check and count; in any other run it only leads to the flock, until it expires.
    ///
    /// # Errors
    /// A text for people, if the node may not invite or has no address that another machine could use.
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

    /// Shuts a node or a ticket out of the run.
    ///
    /// # Errors
    /// A text for people, if this node is not the run's creator.
    pub fn revoke(&self, spec: &RunSpec, subject: &Subject) -> Result<Revocation, String> {
        if spec.creator != Some(self.identity.node_id()) {
            return Err("only the run's creator (`creator` in the run file) may revoke: do it on its node".into());
        }
        let malformed = || "the subject is not 64 hex digits".to_string();
        let (kind, digest) = match subject {
            Subject::Node { id } => (SubjectKind::Identity, Digest(NodeId::from_hex(id).ok_or_else(malformed)?.0)),
            Subject::Ticket { grant } => (SubjectKind::Ticket, Digest::from_hex(grant).ok_or_else(malformed)?),
        };
        Ok(Revocation::sign(&self.identity.signer(), &spec.digest(), kind, digest))
    }

    /// The admission ticket of a run that asks for one; empty in other runs.
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
