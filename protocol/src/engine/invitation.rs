//! Joiners that the run admits have places of their own in members' networks, beside the strangers', before they have a
//! state: in a list run from the start, in a ticket run once they have shown their ticket.
//!
//! A newcomer shows its ticket to voters of the head that was proven to it, and to no other node: any node that sees a
//! ticket without a named holder can use it.

use super::beat::Beat;
use super::chain::ChainHead;
use super::ctx::Ctx;
use super::outbox::Out;
use super::peer::Peer;
use super::view::Scene;
use crate::admission::{self, NotAdmitted};
use crate::message::{Join, Message};
use crate::run::AdmissionMode;
use crate::{Digest, NodeId};

impl Beat {
    /// Shows the ticket on the way to the flock: a Join without a state, which asks for no seat.
    pub fn show_ticket(&mut self, scene: &Scene<'_>, out: &mut Out) {
        let ctx = scene.ctx;
        let ticket = ctx.ticket.clone();
        let target = scene.catch_up.target().filter(|_| !ticket.is_empty() && ctx.head.is_none());
        let Some(target) = target else { return };
        let (Some(lineage), Some(seq)) = (target.ancestry.lineage(), target.ancestry.seq()) else { return };
        let (record, incarnation) = (target.record, ctx.identity.incarnation);
        let present = |id: &&NodeId| ctx.peers.get(id).is_some_and(Peer::present);
        let voters: Vec<NodeId> = target.voters.iter().filter(present).copied().collect();
        if !voters.is_empty() && self.join_is_due(record, ctx) {
            let join = Join { lineage, seq, record, state_root: Digest::default(), incarnation, ticket };
            out.send_to(ctx, &voters, &Message::Join(join));
        }
    }
}

impl Ctx {
    /// Checks whether a record lets in a node that shows this ticket. Returns the ticket that is to be counted.
    ///
    /// # Errors
    /// The reason for which it does not.
    pub fn admits(&self, head: &ChainHead, id: &NodeId, ticket: &[u8]) -> Result<Digest, NotAdmitted> {
        admission::admit(&self.spec, self.verifier.as_ref(), &self.run, &head.record, id, ticket)
    }

    /// Notes that a peer has shown that it is admitted.
    pub fn invite(&mut self, id: &NodeId) {
        if self.spec.admission.mode != AdmissionMode::Ticket {
            return;
        }
        if let Some(peer) = self.peers.get_mut(id).filter(|peer| !peer.said.invited) {
            peer.said.invited = true;
            self.invitations = self.invitations.wrapping_add(1);
        }
    }

    /// Nodes without a seat that the run admits, as far as this node knows. Strangers must not take their places.
    pub fn invited(&self) -> Vec<NodeId> {
        let Some(head) = &self.head else { return Vec::new() };
        let record = &head.record;
        let open = |id: &&NodeId| record.member(id).is_none() && record.revoked.binary_search(&Digest(id.0)).is_err();
        match self.spec.admission.mode {
            AdmissionMode::Open => Vec::new(),
            AdmissionMode::List => self.spec.admission.allow.iter().filter(open).copied().collect(),
            AdmissionMode::Ticket => {
                let shown = self.peers.iter().filter(|(_, peer)| peer.said.invited).map(|(id, _)| id);
                shown.filter(open).copied().collect()
            }
        }
    }
}
