//! The members that can be counted on in this round.
//!
//! A member is ruled out when its connection stays down, when it is silent, or when it owes something and makes no
//! progress for far longer than progress took so far. A member that is slow but moves is never ruled out. A verdict is
//! about now: a member that moves again counts again, as long as no attempt has begun without it.

use super::ctx::Ctx;
use super::peer::Peer;
use super::round::Round;
use super::touch::Touch;
use crate::message::Phase;
use crate::{Digest, NodeId};

/// Reasons for which a member is not counted on.
pub(super) mod fault {
    pub const LEFT: &str = "it left";
    pub const DOWN: &str = "its connection is down";
    pub const NEVER_MET: &str = "it was never met";
    pub const SILENT: &str = "nothing was heard of it";
    pub const RESTARTED: &str = "it restarted and has not trained yet";
    pub const RULED_OUT: &str = "it spoiled an attempt";
    pub const BEHIND: &str = "it stands on another record";
    pub const STUCK: &str = "it makes no progress";
}

impl Ctx {
    /// Notes that the process of a peer without a connection has ended.
    pub fn peer_gone(&mut self, id: NodeId) {
        if let Some(peer) = self.peers.get_mut(&id).filter(|peer| !peer.link.connected) {
            peer.link.gone = true;
        }
    }

    /// The reason for which `id` cannot be counted on in `round`; None if it can.
    pub fn fault(&self, id: &NodeId, round: &Round) -> Option<&'static str> {
        if *id != self.me && round.distrust.ruled_out.contains(id) {
            return Some(fault::RULED_OUT);
        }
        self.fault_of_itself(id, round)
    }

    /// The same without regard to the attempts that the member has spoiled.
    pub fn fault_of_itself(&self, id: &NodeId, round: &Round) -> Option<&'static str> {
        if *id == self.me {
            return None;
        }
        let touch = self.touch(id);
        let met = |peer: &&Peer| match touch {
            Touch::Direct => peer.link.greeted && (peer.link.connected || !self.is_new_neighbour(id)),
            Touch::Passed => peer.said.head.is_some(),
            Touch::Untold => peer.process.boot.is_some(),
        };
        let Some(peer) = self.peers.get(id).filter(met) else {
            // The member has sent this process no Hello yet, or as a neighbour of the last record for the first time, or
            // no Head of it was passed on.
            return (touch != Touch::Untold && self.is_long_unmet(round, touch)).then_some(fault::NEVER_MET);
        };
        if peer.said.left {
            return Some(fault::LEFT);
        }
        match touch {
            Touch::Direct if !peer.link.connected || !peer.link.greeted => {
                return self.is_long_down(peer, round).then_some(fault::DOWN);
            }
            Touch::Passed if self.is_down(id) => return Some(fault::DOWN),
            Touch::Untold => return None,
            _ => {}
        }
        let in_touch = self.in_touch(id);
        if in_touch && self.is_unheard(id, peer) {
            return Some(fault::SILENT);
        }
        let ready = peer.ready(&round.head.record.lineage, round.task.number, &round.head.base).is_some();
        if !ready && peer.process.restarted_at.is_some_and(|at| at >= round.began) {
            return Some(fault::RESTARTED);
        }
        if !in_touch {
            // The voters see whether the member moves.
            return None;
        }
        if self.is_stuck((peer, touch), round, || self.owes(peer, round, ready)) {
            return Some(fault::STUCK);
        }
        let elsewhere = peer
            .said
            .head
            .as_ref()
            .is_some_and(|head| self.head.as_ref().is_some_and(|mine| head.lineage != mine.record.lineage));
        elsewhere.then_some(fault::BEHIND)
    }

    /// The phase in which the peer has to make progress for this round; None if it waits for others itself.
    fn owes(&self, peer: &Peer, round: &Round, ready: bool) -> Option<Phase> {
        let Some(head) = &peer.said.head else { return Some(Phase::Seeking) };
        if head.record != round.head.digest {
            return Some(head.phase);
        }
        match head.phase {
            Phase::Ready if ready => None,
            // A stuck reduction is judged as a whole (`attempt`), since all its members stand still. A vote waits for
            // others.
            Phase::Reducing | Phase::Settling => None,
            phase => Some(phase),
        }
    }

    /// Whether the node is there at this very moment: messages reach it, or its neighbours hear it.
    pub fn is_present(&self, id: &NodeId) -> bool {
        *id == self.me
            || match self.touch(id) {
                Touch::Direct => self.is_connected(id),
                Touch::Passed => self.is_heard_of(id),
                Touch::Untold => self.peers.get(id).is_none_or(|peer| !peer.said.left),
            }
    }

    pub fn is_member(&self, id: &NodeId) -> bool {
        self.head.as_ref().is_some_and(|head| head.record.member(id).is_some())
    }

    /// Whether the node decides on the record after the head.
    pub fn is_voter(&self, id: &NodeId) -> bool {
        self.head.as_ref().is_some_and(|head| head.quorum.incarnation(id).is_some())
    }

    /// Whether this voter can be heard, speaks under the incarnation with which it was admitted, and does not say that
    /// it has lost the quorum itself. A voter in another lineage decides nothing in this one.
    pub fn voter_in_reach(&self, id: &NodeId) -> bool {
        let Some(head) = &self.head else { return false };
        if *id == self.me {
            return self.votes();
        }
        self.peers.get(id).is_some_and(|peer| {
            let theirs = peer.said.head.as_ref().filter(|theirs| theirs.lineage != Digest::default());
            let here = theirs.is_none_or(|theirs| theirs.lineage == head.record.lineage);
            let quorum_lost =
                theirs.is_some_and(|theirs| theirs.record == head.digest && theirs.phase == Phase::QuorumLost);
            self.is_present(id)
                && here
                && !quorum_lost
                && head.quorum.has(id, peer.vote_state.incarnation)
                && !self.is_unheard(id, peer)
        })
    }

    /// Whether voters that can be heard are a quorum. A restarted voter without the word of another is no quorum, even
    /// where it would decide alone.
    pub fn quorum_in_reach(&self) -> bool {
        let met = self.head.as_ref().is_some_and(|head| head.quorum.met_by(|id| self.voter_in_reach(id)));
        met && !self.lacks_word()
    }

    /// The longest measured round-trip time to a voter.
    pub fn slowest_rtt(&self) -> u64 {
        let voters = self.head.iter().flat_map(|head| head.quorum.voters());
        voters.filter_map(|(id, _)| self.peers.get(id)).map(|peer| u64::from(peer.link.rtt)).max().unwrap_or(0)
    }

    pub fn measured_rtt(&mut self, id: NodeId, micros: u32) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.note_rtt(micros);
        }
    }
}
