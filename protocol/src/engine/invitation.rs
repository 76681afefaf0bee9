//! Joiners that the run admits have places of their own in members' networks, beside the strangers', before they have a
//! state: in a list run from the start, in a ticket run once they have shown their ticket.
//!
//! A newcomer shows its ticket to voters of the head that was proven to it, and to nobody else: whoever sees a ticket that
//! is made out to nobody can use it.

use super::Engine;
use super::peer::Peer;
use crate::message::{Join, Message};
use crate::run::AdmissionMode;
use crate::{Digest, NodeId, admission};

impl Engine {
    /// Shows the ticket on the way to the flock: a Join without a state, which asks for no seat.
    pub(super) fn show_ticket(&mut self) {
        let ticket = self.ticket.clone();
        let Some(target) = self.catch_up.target().filter(|_| !ticket.is_empty() && self.head.is_none()) else { return };
        let (Some(lineage), Some(seq)) = (target.ancestry.lineage(), target.ancestry.seq()) else { return };
        let (record, incarnation) = (target.record, self.voice.incarnation);
        let present = |id: &&NodeId| self.peers.get(id).is_some_and(Peer::present);
        let voters: Vec<NodeId> = target.voters.iter().filter(present).copied().collect();
        if !voters.is_empty() && self.join_is_due(record) {
            let join = Join { lineage, seq, record, state_root: Digest::default(), incarnation, ticket };
            self.send_to(&voters, &Message::Join(join));
        }
    }

    /// A newcomer without a state shows its ticket. One that admits nobody costs nothing but the look at it: its holder
    /// learns why when it asks for a seat.
    pub(super) fn hear_ticket(&mut self, from: NodeId, join: &Join) {
        let here = self.head.as_ref().filter(|head| head.record.lineage == join.lineage);
        let admitted = here.is_some_and(|head| {
            let verifier = self.verifier.as_ref();
            admission::admit(&self.spec, verifier, &self.run, &head.record, &from, &join.ticket).is_ok()
        });
        if admitted && !self.is_convicted(&from) { self.invite(&from) } else { self.stale(from) }
    }

    /// A peer has shown that it is admitted.
    pub(super) fn invite(&mut self, id: &NodeId) {
        if self.spec.admission.mode != AdmissionMode::Ticket {
            return;
        }
        if let Some(peer) = self.peers.get_mut(id).filter(|peer| !peer.invited) {
            peer.invited = true;
            self.invitations = self.invitations.wrapping_add(1);
        }
    }

    /// A number that changes with [`Self::invited`], but for what a new head changes.
    pub fn invitations(&self) -> u64 {
        self.invitations
    }

    /// Nodes without a seat that the run admits, as far as this node knows: no stranger is to take their places.
    pub fn invited(&self) -> Vec<NodeId> {
        let Some(record) = self.head() else { return Vec::new() };
        let open = |id: &&NodeId| record.member(id).is_none() && record.revoked.binary_search(&Digest(id.0)).is_err();
        match self.spec.admission.mode {
            AdmissionMode::Open => Vec::new(),
            AdmissionMode::List => self.spec.admission.allow.iter().filter(open).copied().collect(),
            AdmissionMode::Ticket => {
                let shown = self.peers.iter().filter(|(_, peer)| peer.invited).map(|(id, _)| id);
                shown.filter(open).copied().collect()
            }
        }
    }
}
