//! What this node says: heartbeats, and repetition of whatever others may have missed.
//!
//! A connection that breaks loses what was in flight. So everything that the round still depends on is said again:
//! at each connect, and at a slow beat while the round lasts.

use super::Engine;
use super::clock::Moment;
use super::io::{Output, PersistToken};
use super::peer::Peer;
use crate::limits::PROTOCOL_VERSION;
use crate::limits::VOTERS_MAX;
use crate::message::{Head, Hello, Join, Message, Phase};
use crate::plant::{Plant, planted};
use crate::{Digest, NodeId, wire};

/// In a large flock learners and voters tell each other that they live once in so many beats.
const FAR_BEATS: u64 = 4;
/// Pause in microseconds between two Heads, and between two Joins, of who is no member: at most ten words a second in all. Networks hear
/// a few a second of a stranger, and more would wait there until they are old.
const OUTSIDER_PAUSE: u64 = 200_000;
/// Pauses between two repetitions of a READY double so many times.
const READY_DOUBLINGS: u32 = 4;

/// When the recurring messages were last sent.
#[derive(Debug, Default)]
pub(super) struct Beat {
    head_at: Option<Moment>,
    /// Record and phase as last told to all.
    told: Option<(Digest, Phase)>,
    /// The same for those who are told less in a large flock.
    far_at: Moment,
    told_far: Digest,
    repeated_at: Moment,
    join_at: Option<Moment>,
    /// The record for which a Join was last sent.
    joined: Option<Digest>,
    /// Inner steps done in this round.
    pub steps: u64,
}

impl Beat {
    pub fn due(&self, heartbeat: u64) -> Moment {
        self.head_at.map_or(Moment::default(), |at| at.plus(heartbeat))
    }

    /// This node stands elsewhere or wants something else: a request to be let in is due at once.
    pub fn forget_join(&mut self) {
        self.joined = None;
    }
}

impl Engine {
    /// Signs a message. Own messages are within the limits, so that none is ever lost here.
    pub(super) fn seal(&self, message: &Message) -> Option<Vec<u8>> {
        let sealed = wire::seal(self.signer.as_ref(), &self.run, message);
        debug_assert!(sealed.is_ok(), "{sealed:?}");
        sealed.ok()
    }

    pub(super) fn send_to(&mut self, targets: &[NodeId], message: &Message) {
        if let Some(bytes) = if targets.is_empty() { None } else { self.seal(message) } {
            self.send_bytes(targets, &bytes, None);
        }
    }

    pub(super) fn send_bytes(&mut self, targets: &[NodeId], bytes: &[u8], after: Option<PersistToken>) {
        for to in targets {
            self.out.push(Output::Send { to: *to, bytes: bytes.to_vec(), after });
        }
    }

    /// Peers with a working connection, greeted or not: this node's own `Hello` went ahead.
    pub(super) fn reachable(&self) -> Vec<NodeId> {
        let open = |peer: &Peer| peer.connected && !peer.refused;
        self.peers.iter().filter(|(_, peer)| open(peer)).map(|(id, _)| *id).collect()
    }

    /// Reachable fellow members of the head record.
    pub(super) fn reachable_members(&self) -> Vec<NodeId> {
        let mut reachable = self.reachable();
        reachable.retain(|id| self.is_member(id));
        reachable
    }

    /// Reachable voters.
    pub(super) fn reachable_voters(&self) -> Vec<NodeId> {
        let voters = self.head.iter().flat_map(|head| head.quorum.voters()).map(|(id, _)| *id);
        voters.filter(|id| self.peers.get(id).is_some_and(|peer| peer.connected && !peer.refused)).collect()
    }

    /// Whom heartbeats are for: those who are told of every change, and of every beat, are everybody in a small flock.
    /// In a large one these are voters, and who wants in; learners and voters tell each other only where they stand and
    /// that they live, and learners nothing, so that the traffic does not grow with the flock's square.
    fn beat_targets(&self, far: bool) -> Vec<NodeId> {
        let mut targets = self.reachable();
        let member = self.is_member(&self.me);
        targets.retain(|id| {
            let votes = self.head.as_ref().is_some_and(|head| head.quorum.incarnation(id).is_some());
            let outside = !member || !self.is_member(id);
            let near = (self.votes() || votes) && (self.votes() == votes || outside);
            (self.in_touch(id) || !self.is_member(id)) && far == (self.is_large() && !near)
        });
        targets
    }

    /// Whether this node and a member tell each other where they stand.
    pub(super) fn in_touch(&self, id: &NodeId) -> bool {
        let votes = |id: &NodeId| self.head.as_ref().is_some_and(|head| head.quorum.incarnation(id).is_some());
        !self.is_large() || self.votes() || votes(id)
    }

    /// Whether the flock is too large for everybody to hear everybody else all the time.
    pub(super) fn is_large(&self) -> bool {
        self.head.as_ref().is_some_and(|head| head.record.next.members.len() > 2 * VOTERS_MAX)
    }

    pub(super) fn send_hello(&mut self, targets: &[NodeId]) {
        let (boot, incarnation) = (self.boot, self.voice.incarnation);
        let hello = Hello { version: PROTOCOL_VERSION, spec: self.spec_bytes.clone(), boot, incarnation };
        if !targets.is_empty() {
            self.note_boot();
        }
        self.send_to(targets, &Message::Hello(hello));
    }

    /// Declares this process newly started, without being so: what it said of the round does not hold any more.
    pub(super) fn renew(&mut self) {
        self.boot = self.boot.saturating_add(1);
        self.offered.clear();
        let all = self.reachable();
        self.send_hello(&all);
    }

    /// Everything that a newly connected peer needs to know.
    pub(super) fn introduce(&mut self, peer: NodeId) {
        self.send_hello(&[peer]);
        self.send_to(&[peer], &Message::Head(self.head_message()));
        if self.end.is_some() {
            return;
        }
        if self.peers.get(&peer).is_some_and(|peer| peer.greeted) {
            self.bear_witness(peer);
        }
        if self.is_member(&peer) {
            self.repeat_ready(&[peer]);
            self.repeat_votes(peer);
            self.repeat_fork(&[peer]);
        }
        // Voters let in; a ticket is nobody else's business.
        let votes = self.head.as_ref().is_some_and(|head| head.quorum.incarnation(&peer).is_some());
        if votes && self.wants_in() {
            self.send_join(&[peer]);
        }
    }

    pub(super) fn head_message(&self) -> Head {
        let (lineage, seq, record, tokens) =
            self.head.as_ref().map_or((Digest::default(), 0, Digest::default(), 0), |h| {
                (h.record.lineage, h.record.seq, h.digest, h.record.tokens)
            });
        let awaits = self.round.as_ref().and_then(|round| round.running.as_ref()?.awaits);
        let phase = self.told_phase();
        let awaits = if phase == Phase::Reducing { awaits } else { self.accusation() };
        Head { lineage, seq, record, tokens, phase, progress: self.progress(), awaits }
    }

    /// What this node is doing, as others hear it: who says that it is cut off is no voter to them. If all who halt for want
    /// of a quorum said that, none of them would find the others again. In the middle of a vote, too, who may not speak is
    /// none.
    fn told_phase(&self) -> Phase {
        let lacks = self.lacks_word();
        let mute = lacks && self.cut.since().is_some() && !planted!(Plant::MuteSettles);
        match self.phase() {
            Phase::Settling if mute => Phase::CutOff,
            Phase::CutOff if !lacks && !planted!(Plant::HaltApart) => Phase::Joining,
            phase => phase,
        }
    }

    pub(super) fn send_heads(&mut self, targets: &[NodeId]) {
        let head = self.head_message();
        self.send_to(targets, &Message::Head(head));
    }

    pub(super) fn repeat_ready(&mut self, targets: &[NodeId]) {
        if let Some(bytes) =
            self.round.as_ref().and_then(|round| round.own.as_ref()).map(|own| own.signed.bytes.clone())
        {
            self.send_bytes(targets, &bytes, None);
        }
    }

    /// Says READY again to those who seem to wait for it. What goes over a connection arrives as long as it holds: as
    /// long as this node waits as well, it is the slow ones that all wait for.
    fn repeat_late_ready(&mut self) {
        let (now, repeat) = (self.now, self.timing.repeat);
        let Some(round) = self.round.as_mut().filter(|round| !round.record_vote.entered()) else { return };
        let calm = round.attempt == 0 && round.running.is_none();
        let began = round.running.as_ref().map_or(Moment::default(), |attempt| attempt.began);
        let Some(own) = &mut round.own else { return };
        let pause = if calm { (4 * repeat) << own.repeats.min(READY_DOUBLINGS) } else { repeat };
        if now.since(own.said_at.max(began)) < pause {
            return;
        }
        (own.said_at, own.repeats) = (now, own.repeats + 1);
        let mut members = self.reachable_members();
        members.retain(|id| self.waits_for_readys(id));
        self.repeat_ready(&members);
    }

    /// Whether a member may miss a READY: not while it trains, reduces or votes.
    fn waits_for_readys(&self, id: &NodeId) -> bool {
        let head = self.peers.get(id).and_then(|peer| peer.head.as_ref()).filter(|_| self.in_touch(id));
        let Some((head, round)) = head.zip(self.round.as_ref()) else { return true };
        head.record == round.parent && !matches!(head.phase, Phase::Training | Phase::Reducing | Phase::Settling)
    }

    fn send_join(&mut self, targets: &[NodeId]) {
        let Some(head) = &self.head else { return };
        let (lineage, seq, state_root) = (head.record.lineage, head.record.seq, head.record.state_root);
        let (incarnation, ticket) = (self.voice.incarnation, self.ticket.clone());
        let join = Join { lineage, seq, record: head.digest, state_root, incarnation, ticket };
        self.send_to(targets, &Message::Join(join));
    }

    /// Sends what is due: heads on change and once a beat, and the slow repetitions.
    pub(super) fn beat(&mut self) {
        let standing = (self.head.as_ref().map_or(Digest::default(), |h| h.digest), self.phase());
        let due = self.now >= self.beat.due(self.timing.heartbeat);
        let news = self.beat.told != Some(standing);
        if due || (news && self.may_speak_again(self.beat.head_at)) {
            self.beat.told = Some(standing);
            self.beat.head_at = Some(self.now);
            let near = self.beat_targets(false);
            self.send_heads(&near);
        }
        let far_due = self.now.since(self.beat.far_at) >= FAR_BEATS * self.timing.heartbeat;
        if self.is_large() && (far_due || self.beat.told_far != standing.0) {
            self.beat.told_far = standing.0;
            self.beat.far_at = self.now;
            let far = self.beat_targets(true);
            self.send_heads(&far);
        }
        if self.end.is_some() || self.frozen {
            return;
        }
        if self.now.since(self.beat.repeated_at) >= self.timing.repeat {
            self.beat.repeated_at = self.now;
            let members = self.reachable_members();
            self.repeat_fork(&members);
            self.tell_set();
        }
        self.repeat_late_ready();
        self.repeat_late_votes();
        self.ask_to_join();
        self.show_ticket();
    }

    /// Whether this node may say something new of this kind, which it said last then.
    fn may_speak_again(&self, last: Option<Moment>) -> bool {
        self.is_member(&self.me) || last.is_none_or(|last| self.now.since(last) >= OUTSIDER_PAUSE)
    }

    fn ask_to_join(&mut self) {
        let Some(digest) = self.head.as_ref().map(|h| h.digest).filter(|_| self.wants_in()) else { return };
        if self.join_is_due(digest) {
            let voters = self.reachable_voters();
            self.send_join(&voters);
        }
    }

    /// Whether a Join is to be said now about this record, as it then is.
    pub(super) fn join_is_due(&mut self, record: Digest) -> bool {
        let fresh = self.beat.joined != Some(record) && self.may_speak_again(self.beat.join_at);
        let due = fresh || self.beat.join_at.is_none_or(|last| self.now.since(last) >= self.timing.join_every);
        if due {
            (self.beat.joined, self.beat.join_at) = (Some(record), Some(self.now));
        }
        due
    }
}
