//! The words that count: whose messages a node looks at, and the READYs that fit the round.

use super::ctx::Ctx;
use super::io::{Notice, Output, Refusal};
use super::outbox::Out;
use super::peer::{Peer, make_room};
use super::succession::{self, SignedReady, merging};
use crate::NodeId;
use crate::amendment::Amendment;
use crate::message::{Message, Ready};
use crate::mutation::{Mutation, mutated};

/// The fault of a READY that does not fit the head record, or whose sender has no seat in it.
const LEASE: &str = "ready that does not fit its lease";

impl Out {
    /// Counts a message that came too late or too early, and does nothing else: no node is at fault.
    pub fn stale(&mut self, id: NodeId) {
        self.notice(Notice::Refused { peer: id, refusal: Refusal::Stale });
    }
}

impl Ctx {
    /// Closes the connection and says why.
    pub fn refuse(&mut self, id: NodeId, refusal: Refusal, out: &mut Out) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.link.refused = true;
        }
        out.push(Output::Refuse { peer: id, refusal });
    }

    /// Returns the entry of a peer, made if there is room. A member of the head takes the place of a connected
    /// stranger, which is refused.
    pub fn entry(&mut self, id: NodeId, out: &mut Out) -> Option<&mut Peer> {
        if !self.peers.contains_key(&id) {
            let record = self.head.as_ref().map(|head| &head.record);
            let is_member = |id: &NodeId| record.is_some_and(|record| record.member(id).is_some());
            let member = is_member(&id);
            if let Some(displaced) = make_room(&mut self.peers, is_member, member)? {
                self.refuse(displaced, Refusal::Full, out);
            }
        }
        Some(self.peers.entry(id).or_default())
    }

    /// Forgets READYs of rounds that are over with the new head, and READYs that came before it and do not fit it.
    /// Returns the senders of the latter, with the fault of each.
    pub fn recheck_readys(&mut self) -> Vec<(NodeId, &'static str)> {
        let Some(head) = &self.head else { return Vec::new() };
        let (lineage, round, base) = (head.record.lineage, head.record.round.saturating_add(1), head.base);
        let past = |ready: &Ready| ready.lineage == lineage && ready.round < round;
        self.peers.values_mut().for_each(|peer| peer.forget_readys(past));
        let early = self.peers.iter().filter_map(|(id, peer)| Some((*id, peer.ready(&lineage, round, &base)?)));
        let bad = early.filter_map(|(id, signed)| Some((id, self.fits_round(signed).err()?)));
        let bad: Vec<(NodeId, &'static str)> = bad.collect();
        for (id, _) in &bad {
            if let Some(peer) = self.peers.get_mut(id) {
                peer.drop_ready(&lineage, &base);
            }
        }
        bad
    }

    /// Whether a message of this sender is looked at. From a node that is no member, only signs of life and messages on
    /// the way to membership are. Its other messages cost one signature, and nothing of them is kept. Votes and
    /// certificates are also heard from nodes that voted on one of the last records: their signed statements have to be
    /// remembered.
    pub fn heeds(&self, from: &NodeId, message: &Message) -> bool {
        let voted = || self.history.iter().any(|past| past.quorum.incarnation(from).is_some());
        match message {
            Message::Hello(_)
            | Message::Head(_)
            | Message::Join(_)
            | Message::Leave(_)
            | Message::Witness(_)
            | Message::Alive(_) => true,
            _ if mutated!(Mutation::HeedAnybody) => true,
            Message::Estimate(_) | Message::Vote(_) | Message::Certificate(_) => self.is_member(from) || voted(),
            Message::Ready(_) | Message::Fork(_) | Message::Start(_) | Message::Evidence(_) | Message::Want(_) => {
                self.is_member(from)
            }
            Message::Amend(_) => self.may_amend(from),
        }
    }

    /// Whether this node has its seat only since the head record, as far as it knows.
    pub fn is_new(&self) -> bool {
        self.history.iter().nth_back(1).is_none_or(|parent| parent.record.member(&self.me).is_none())
    }

    /// Whether a READY agrees with the head record; it does if it is about another state.
    ///
    /// # Errors
    /// The fault of the READY.
    pub fn fits_round(&self, signed: &SignedReady) -> Result<(), &'static str> {
        let (ready, Some(head)) = (&signed.ready, &self.head) else { return Ok(()) };
        if ready.base != head.base || ready.lineage != head.record.lineage {
            return Ok(());
        }
        let record = &head.record;
        record.member(&signed.member).ok_or(LEASE)?;
        let tokens_max = ready.samples.saturating_mul(u64::from(self.spec.sample_weight()));
        let used = (ready.start, ready.samples, ready.steps);
        let fits = Some(ready.round) == record.round.checked_add(1)
            && ready.state_root == record.state_root
            && (succession::fits_lease(record, &signed.member, used) || mutated!(Mutation::AnyLease))
            && (ready.tokens <= tokens_max || mutated!(Mutation::AnyWeight));
        if !fits {
            return Err(LEASE);
        }
        let authorised = |amendment: &Amendment| amendment.is_authorised(self.verifier.as_ref(), &self.spec, &self.run);
        if !ready.amends.as_deref().is_none_or(authorised) {
            return Err("ready with an amendment by nobody with a right to it");
        }
        let allowed = merging::allowed(&self.spec.sync, record, &signed.member, ready);
        if allowed { Ok(()) } else { Err("ready that merges what it may not") }
    }
}
