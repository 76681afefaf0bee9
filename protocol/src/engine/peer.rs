//! One node's knowledge of another: its connection, its last heartbeat, and its statements about the round.

use super::clock::Moment;
use super::pace::Pace;
use super::succession::SignedReady;
use crate::limits::MEMBERS_MAX;
use crate::message::{Fork, Head, Join, Phase, Pulse, Ready, Stamp};
use crate::mutation::{Mutation, mutated};
use crate::{Digest, NodeId};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Peers that are remembered, connected or not: all members, and some that may become members.
pub const PEERS_MAX: usize = MEMBERS_MAX + 256;
/// READYs kept of one peer: of this round, and of the next, since a peer may be a record ahead.
const READYS_MAX: usize = 2;

#[derive(Debug, Default)]
pub(super) struct Peer {
    pub link: Link,
    pub process: Process,
    pub vote_state: PeerVoteState,
    pub said: Words,
    pub chain: Chain,
}

/// The present connection, or the last one.
#[derive(Debug, Default)]
pub(super) struct Link {
    pub connected: bool,
    /// Its process has ended, as its machine says.
    pub gone: bool,
    /// The `Hello` of the peer's process was accepted.
    pub greeted: bool,
    /// The peer was refused on this connection: the node reads nothing of it any more.
    pub refused: bool,
    /// Whether the start of the peer's process was named on this connection.
    introduced: bool,
    /// Last connect or disconnect.
    pub switched_at: Moment,
    pub heard_at: Moment,
    /// Smoothed round-trip time in microseconds; 0 = not measured.
    pub rtt: u32,
}

/// The process that speaks for the peer.
#[derive(Debug, Default)]
pub(super) struct Process {
    /// The name of its start.
    pub boot: Option<u64>,
    /// A later start of its key whose Hello was passed on to it.
    pub duplicate: Option<u64>,
    /// When this node noticed the process's last restart.
    pub restarted_at: Option<Moment>,
}

/// The peer's signed statements, and what the peer and this node know of each other's.
#[derive(Debug, Default)]
pub(super) struct PeerVoteState {
    /// The incarnation that the peer speaks under, and the newest place that it has signed under an incarnation.
    pub incarnation: u64,
    pub signed: Option<(u64, Stamp)>,
    /// When this node last told the peer what it has seen the peer sign, and the place that it named.
    pub told: Option<(Moment, Stamp)>,
    /// The newest place that the peer has seen this node sign, with this node's incarnation.
    pub witness: Option<(u64, Stamp)>,
}

/// Statements of the peer's process about itself and the round, and what the process was handed.
#[derive(Debug, Default)]
pub(super) struct Words {
    /// The peer said that it leaves.
    pub left: bool,
    pub head: Option<Head>,
    /// Others have passed its newest Head on.
    pub passed: bool,
    /// When this node last passed a Head of it on.
    pub passed_at: Option<Moment>,
    /// Last sign of progress.
    pub moved_at: Moment,
    pub pace: Pace,
    /// The most progress seen while the peer was behind, at its present head.
    reached: u64,
    /// Since when it catches up, and its progress at that time.
    pub fetches_since: Option<(Moment, u64)>,
    readys: Vec<SignedReady>,
    /// Its newest statement that it goes on in a fork, as signed.
    pub fork: Option<(Fork, Vec<u8>)>,
    pub join: Option<(Join, Moment)>,
    /// The peer has shown a ticket that admits it.
    pub invited: bool,
    /// When a certificate was last handed to it, and when it was last given the READYs that it lacked.
    pub handed_at: Option<Moment>,
    pub answered_at: Option<Moment>,
}

/// This node's knowledge of the chain of the peer's head.
#[derive(Debug, Default)]
pub(super) struct Chain {
    /// The number of fetches from the peer that failed in a row.
    pub failures: u32,
    /// This node ignores the peer's heads until then.
    pub avoid_until: Moment,
    /// Its lineage, if it has no record in common with this node's.
    pub foreign: Option<Digest>,
}

/// The relation of a `Hello` to the ones heard before.
#[derive(Debug, PartialEq)]
pub(super) enum Incarnation {
    First,
    Same,
    /// Its process was started anew.
    Restarted,
    /// A later start has spoken on this very connection: this `Hello` is old and came late.
    Former,
}

impl Peer {
    /// Whether the peer's statements count: it is connected, greeted, not refused, and has not left.
    pub fn present(&self) -> bool {
        self.link.connected && self.link.greeted && !self.link.refused && !self.said.left
    }

    /// A peer that is here and speaks as incarnation 7.
    #[cfg(test)]
    pub fn here(now: Moment) -> Self {
        let link = Link { connected: true, greeted: true, heard_at: now, ..Link::default() };
        let process = Process { boot: Some(1), ..Process::default() };
        Self {
            link,
            process,
            vote_state: PeerVoteState { incarnation: 7, ..PeerVoteState::default() },
            ..Self::default()
        }
    }

    /// Notes the start of the peer's process. Statements of a former process about the round do not bind the new one,
    /// which has lost them.
    pub fn meet(&mut self, boot: u64, now: Moment) -> Incarnation {
        if self.process.boot.is_some_and(|before| boot < before) && self.link.introduced {
            return Incarnation::Former;
        }
        self.link.introduced = true;
        self.speaks_from(boot, now)
    }

    /// The same by a word that another node has passed on. The newest start counts, unless the peer has named its start
    /// on its own connection; an earlier one does once the peer is silent, since its clock may have been set back.
    /// Returns whether the word is of the start that counts.
    pub fn meet_far(&mut self, boot: u64, silent: bool, now: Moment) -> bool {
        let earlier = self.process.boot.is_some_and(|before| boot < before);
        if self.link.introduced || earlier && !silent {
            return self.process.boot == Some(boot);
        }
        self.speaks_from(boot, now);
        true
    }

    fn speaks_from(&mut self, boot: u64, now: Moment) -> Incarnation {
        match self.process.boot.replace(boot) {
            None => Incarnation::First,
            Some(before) if before == boot => Incarnation::Same,
            Some(_) => {
                self.process.restarted_at = Some(now);
                let Words { moved_at, reached, mut readys, .. } = std::mem::take(&mut self.said);
                readys.retain(|_| mutated!(Mutation::KeepFormerReady));
                self.said = Words { moved_at, reached, readys, ..Words::default() };
                Incarnation::Restarted
            }
        }
    }

    /// Whether the peer's process has said `Hello` on the present connection.
    pub fn is_introduced(&self) -> bool {
        self.link.introduced
    }

    /// Ends the channel. Another process may speak on the next connection, also one that was started before.
    pub fn end_of_channel(&mut self) {
        self.link.introduced = false;
        self.process.duplicate = None;
    }

    /// Whether the peer's process has already named a head beyond this place: no node goes back within a lineage.
    pub fn was_beyond(&self, lineage: &Digest, seq: u64) -> bool {
        self.said.head.as_ref().is_some_and(|head| head.lineage == *lineage && head.seq > seq)
    }

    /// Whether a heartbeat of this process was said before the newest one that was heard.
    pub fn has_heard_newer(&self, pulse: &Pulse) -> bool {
        let newest = self.said.head.as_ref().map(|head| &head.pulse).filter(|newest| newest.boot == pulse.boot);
        newest.is_some_and(|newest| pulse.beat < newest.beat) && !mutated!(Mutation::OldBeatLives)
    }

    /// Whether a Head that was passed on is newer than the newest one of its process.
    pub fn is_news(&self, head: &Head) -> bool {
        let newest = self.said.head.as_ref().filter(|newest| newest.pulse.boot == head.pulse.boot);
        let beat = newest.is_none_or(|newest| head.pulse.beat > newest.pulse.beat) || mutated!(Mutation::OldBeatLives);
        beat && !self.was_beyond(&head.lineage, head.seq)
    }

    /// Takes a Head that was passed on: the only sign of life of a peer that is not connected.
    pub fn take_passed_head(&mut self, head: Head, now: Moment) {
        if !self.link.introduced {
            self.vote_state.incarnation = head.pulse.incarnation;
        }
        (self.link.heard_at, self.said.left, self.said.passed) = (now, false, true);
        self.take_head(head, now);
    }

    /// Takes a heartbeat, and measures the time since the last sign of progress if it is one.
    pub fn take_head(&mut self, head: Head, now: Moment) {
        if self.is_progress(&head) {
            // The time between two signs of progress in one phase counts. A deadline may end a phase.
            if let Some(before) = self.said.head.as_ref().filter(|before| before.phase == head.phase) {
                self.said.pace.note(before.phase, now.since(self.said.moved_at));
            }
            self.said.moved_at = now;
        }
        if head.phase == Phase::CatchingUp {
            self.said.fetches_since.get_or_insert((now, head.progress));
        } else {
            self.said.fetches_since = None;
        }
        self.said.head = Some(head);
    }

    /// Whether a heartbeat shows progress. A peer that tries again and again to catch up and gets no further than
    /// before makes none, however often its phase changes.
    fn is_progress(&mut self, head: &Head) -> bool {
        let behind = |phase| matches!(phase, Phase::Seeking | Phase::CatchingUp | Phase::Joining);
        let Some(before) = self.said.head.as_ref().filter(|before| before.record == head.record) else {
            self.said.reached = 0;
            return true;
        };
        if behind(before.phase) && behind(head.phase) {
            let further = head.progress > self.said.reached;
            self.said.reached = self.said.reached.max(head.progress);
            return further;
        }
        (before.phase, before.progress) != (head.phase, head.progress)
    }

    /// Keeps a READY.
    ///
    /// # Errors
    /// The envelope of the kept READY that the new one contradicts; the kept one stays.
    pub fn take_ready(&mut self, signed: SignedReady) -> Result<(), Vec<u8>> {
        let key = |s: &SignedReady| (s.ready.round, s.ready.base, s.ready.lineage);
        if let Some(kept) = self.said.readys.iter().find(|kept| key(kept) == key(&signed)) {
            let same = kept.ready == signed.ready && !mutated!(Mutation::BlameRepeats);
            return if same || mutated!(Mutation::AcceptSecondReady) { Ok(()) } else { Err(kept.bytes.clone()) };
        }
        // The newest READYs are kept: a peer that comes from another lineage has said others before.
        self.said.readys.push(signed);
        if self.said.readys.len() > READYS_MAX {
            self.said.readys.remove(0);
        }
        Ok(())
    }

    pub fn ready(&self, lineage: &Digest, round: u64, base: &Digest) -> Option<&SignedReady> {
        let place = (lineage, round, base);
        self.said.readys.iter().find(|kept| (&kept.ready.lineage, kept.ready.round, &kept.ready.base) == place)
    }

    /// Whether this very READY is kept.
    pub fn has_ready(&self, bytes: &[u8]) -> bool {
        self.said.readys.iter().any(|kept| kept.bytes == bytes)
    }

    /// Forgets READYs of rounds that are over.
    pub fn forget_readys(&mut self, over: impl Fn(&Ready) -> bool) {
        self.said.readys.retain(|kept| !over(&kept.ready));
    }

    /// Forgets a READY that turned out not to fit the round.
    pub fn drop_ready(&mut self, lineage: &Digest, base: &Digest) {
        self.said.readys.retain(|kept| (&kept.ready.lineage, &kept.ready.base) != (lineage, base));
    }

    /// Takes note of a measured round-trip time.
    pub fn note_rtt(&mut self, micros: u32) {
        let smooth = (u64::from(self.link.rtt) * 7 + u64::from(micros)) / 8;
        self.link.rtt = if self.link.rtt == 0 { micros } else { smooth.min(u64::from(u32::MAX)) as u32 };
    }
}

/// All peers, by id.
pub(super) type Peers = BTreeMap<NodeId, Peer>;

/// Makes room for one more peer; `member` tells whether it is a member. Returns the connected stranger that has to go
/// for a member, if there is no other way. None if all places are taken by connected peers or members, or for a member
/// by members.
pub(super) fn make_room(
    peers: &mut Peers,
    is_member: impl Fn(&NodeId) -> bool,
    member: bool,
) -> Option<Option<NodeId>> {
    if peers.len() < PEERS_MAX {
        return Some(None);
    }
    let strangers = || peers.iter().filter(|(id, _)| !is_member(id));
    let gone = strangers().filter(|(_, peer)| !peer.link.connected);
    if let Some(id) = gone.min_by_key(|(id, peer)| (peer.link.switched_at, **id)).map(|(id, _)| *id) {
        peers.remove(&id);
        return Some(None);
    }
    if !member || mutated!(Mutation::MembersWait) {
        return None;
    }
    // A stranger that has asked for nothing, and came last, goes first.
    let least = |(id, peer): &(&NodeId, &Peer)| {
        (peer.said.join.is_some(), peer.link.greeted, Reverse(peer.link.switched_at), **id)
    };
    let id = strangers().min_by_key(least).map(|(id, _)| *id)?;
    peers.remove(&id);
    Some(Some(id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Ready;
    use crate::wire::sample::{self, digest};

    fn signed(round: u64, base: u8, payload: u8) -> SignedReady {
        let ready = Ready { round, base: Digest([base; 32]), payload: Digest([payload; 32]), ..sample::ready() };
        SignedReady { member: NodeId([1; 32]), ready, digest: Digest([payload; 32]), bytes: vec![payload] }
    }

    #[test]
    fn the_first_ready_stays_and_old_ones_go() {
        let mut peer = Peer::default();
        assert_eq!(peer.take_ready(signed(4, 1, 1)), Ok(()));
        assert_eq!(peer.take_ready(signed(4, 1, 1)), Ok(()));
        assert_eq!(peer.take_ready(signed(4, 1, 2)), Err(vec![1]), "another payload for the same round");
        assert_eq!(peer.ready(&digest(2), 4, &Digest([1; 32])).unwrap().digest, Digest([1; 32]));
        assert_eq!(peer.take_ready(signed(5, 2, 3)), Ok(()));
        assert_eq!(peer.take_ready(signed(6, 3, 3)), Ok(()));
        assert!(peer.ready(&digest(2), 4, &Digest([1; 32])).is_none());
        assert!(peer.ready(&digest(2), 5, &Digest([2; 32])).is_some());
    }

    #[test]
    fn a_new_start_may_say_something_else_and_an_old_one_may_not_return() {
        let now = Moment::default().plus(5);
        let mut peer = Peer::default();
        assert_eq!(peer.meet(1, now), Incarnation::First);
        assert_eq!(peer.take_ready(signed(4, 1, 1)), Ok(()));
        assert_eq!(peer.meet(1, now), Incarnation::Same);
        assert_eq!(peer.meet(2, now), Incarnation::Restarted);
        assert_eq!(peer.process.restarted_at, Some(now));
        assert_eq!(peer.take_ready(signed(4, 1, 2)), Ok(()));
        assert_eq!(peer.meet(1, now), Incarnation::Former, "its word came late");
        assert_eq!(peer.process.boot, Some(2));
        peer.end_of_channel();
        assert_eq!(peer.meet(1, now), Incarnation::Restarted, "another connection");
        assert_eq!((peer.meet(1, now), peer.process.boot), (Incarnation::Same, Some(1)));
    }

    #[test]
    fn a_heartbeat_from_before_the_newest_is_stale() {
        let crate::message::Message::Head(head) = sample::messages().swap_remove(1) else { unreachable!() };
        let pulse = |boot, beat| Pulse { boot, beat, ..Pulse::default() };
        let mut peer = Peer::default();
        assert!(!peer.has_heard_newer(&pulse(3, 7)), "none was heard");
        peer.take_head(Head { pulse: pulse(3, 7), ..head }, Moment::default());
        assert!(peer.has_heard_newer(&pulse(3, 6)));
        assert!(!peer.has_heard_newer(&pulse(3, 7)) && !peer.has_heard_newer(&pulse(4, 1)));
    }

    #[test]
    fn trying_in_vain_is_no_progress() {
        let crate::message::Message::Head(head) = sample::messages().swap_remove(1) else { unreachable!() };
        let at = |seconds: u64| Moment::default().plus(seconds);
        let say = |phase, progress| Head { phase, progress, ..head.clone() };
        let mut peer = Peer::default();
        peer.take_head(say(Phase::CatchingUp, 0), at(1));
        peer.take_head(say(Phase::CatchingUp, 50), at(2));
        assert_eq!(peer.said.moved_at, at(2));
        for round in 0..5 {
            peer.take_head(say(Phase::Joining, 0), at(10 * round + 11));
            peer.take_head(say(Phase::CatchingUp, 0), at(10 * round + 12));
            peer.take_head(say(Phase::CatchingUp, 50), at(10 * round + 13));
        }
        assert_eq!(peer.said.moved_at, at(2));
        peer.take_head(say(Phase::CatchingUp, 51), at(90));
        assert_eq!(peer.said.moved_at, at(90));
        peer.take_head(say(Phase::Training, 0), at(91));
        peer.take_head(say(Phase::Training, 0), at(92));
        assert_eq!(peer.said.moved_at, at(91));
    }

    #[test]
    fn room_is_made_by_the_oldest_stranger_that_is_gone() {
        let id = |i: usize| NodeId([(i / 200) as u8, (i % 200) as u8].repeat(16).try_into().unwrap());
        let mut peers: Peers = (0..PEERS_MAX).map(|i| (id(i), Peer::default())).collect();
        for (i, peer) in peers.values_mut().enumerate() {
            peer.link.connected = i != 3 && i != 5 && i != 7;
            peer.link.switched_at = Moment::default().plus(if i == 5 { 1 } else { 2 });
        }
        let member = *peers.keys().nth(7).unwrap();
        let (third, fifth) = (*peers.keys().nth(3).unwrap(), *peers.keys().nth(5).unwrap());
        let connected = |switched_at, greeted| {
            let link = Link { connected: true, greeted, switched_at, ..Link::default() };
            Peer { link, ..Peer::default() }
        };
        let room = |peers: &mut Peers, for_member| make_room(peers, |id| *id == member, for_member);
        assert_eq!(room(&mut peers, false), Some(None));
        assert!(!peers.contains_key(&fifth) && peers.contains_key(&third));
        peers.insert(fifth, connected(Moment::default(), false));
        assert_eq!(room(&mut peers, true), Some(None));
        let switched_at = Moment::default().plus(9);
        peers.insert(third, connected(switched_at, false));
        assert_eq!(room(&mut peers, false), None);
        assert_eq!(room(&mut peers, true), Some(Some(third)), "for a member the last that came goes");
        peers.insert(third, connected(switched_at, true));
        assert_ne!(room(&mut peers, true), Some(Some(third)), "and rather one that has said nothing");
    }
}
