//! What this node says: heartbeats, and repetition of whatever others may have missed.
//!
//! A connection that breaks loses what was in flight. So everything that the round still depends on is said again:
//! at each connect, and at a slow beat while the round lasts.

use super::clock::Moment;
use super::ctx::Ctx;
use super::io::{Notice, Output, PersistToken};
use super::peer::Peer;
use super::round::Round;
use super::view::Scene;
use crate::limits::PROTOCOL_VERSION;
use crate::limits::VOTERS_MAX;
use crate::message::{Hello, Join, Message, Phase};
use crate::{Digest, NodeId, wire};

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
}

impl Beat {
    /// This node stands elsewhere or wants something else: a request to be let in is due at once.
    pub fn forget_join(&mut self) {
        self.joined = None;
    }
}

/// What the driver is to do, in this order.
#[derive(Debug, Default)]
pub(super) struct Out {
    pub outputs: Vec<Output>,
    /// Writes that were asked for.
    tokens: u64,
    /// This node's state or arithmetic was found to be damaged.
    pub doubts: bool,
}

impl Out {
    pub fn push(&mut self, output: Output) {
        self.outputs.push(output);
    }

    pub fn notice(&mut self, notice: Notice) {
        self.push(Output::Notice(notice));
    }

    /// This node's state or arithmetic is damaged: says so. The state is fetched anew.
    pub fn own_fault(&mut self, detail: &'static str, ctx: &Ctx) {
        if !ctx.distrusted && !std::mem::replace(&mut self.doubts, true) {
            self.notice(Notice::OwnFault { detail });
        }
    }

    pub fn next_token(&mut self) -> PersistToken {
        self.tokens += 1;
        PersistToken(self.tokens)
    }

    pub fn send_to(&mut self, ctx: &Ctx, targets: &[NodeId], message: &Message) {
        if let Some(bytes) = if targets.is_empty() { None } else { ctx.seal(message) } {
            self.send_bytes(targets, &bytes, None);
        }
    }

    pub fn send_bytes(&mut self, targets: &[NodeId], bytes: &[u8], after: Option<PersistToken>) {
        for to in targets {
            self.push(Output::Send { to: *to, bytes: bytes.to_vec(), after });
        }
    }
}

impl Round {
    pub fn repeat_ready(&self, targets: &[NodeId], out: &mut Out) {
        if let Some(own) = &self.part.ready {
            out.send_bytes(targets, &own.signed.bytes, None);
        }
    }

    /// Says READY again to those who seem to wait for it. What goes over a connection arrives as long as it holds: as
    /// long as this node waits as well, it is the slow ones that all wait for.
    pub fn repeat_late_ready(&mut self, ctx: &Ctx, out: &mut Out) {
        if self.record_vote.entered() {
            return;
        }
        let calm = self.attempts.number == 0 && self.attempts.running.is_none();
        let began = self.attempts.running.as_ref().map_or(Moment::default(), |attempt| attempt.began);
        let Some(own) = &mut self.part.ready else { return };
        if !ctx.may_repeat_ready(own.said_at.max(began), own.repeats, calm) {
            return;
        }
        (own.said_at, own.repeats) = (ctx.now, own.repeats + 1);
        let mut members = ctx.reachable_members();
        members.retain(|id| self.waits_for_readys(id, ctx));
        self.repeat_ready(&members, out);
    }

    /// Whether a member may miss a READY: not while it trains, reduces or votes.
    fn waits_for_readys(&self, id: &NodeId, ctx: &Ctx) -> bool {
        let head = ctx.peers.get(id).and_then(|peer| peer.head.as_ref()).filter(|_| ctx.in_touch(id));
        let Some(head) = head else { return true };
        head.record == self.head.digest && !matches!(head.phase, Phase::Training | Phase::Reducing | Phase::Settling)
    }
}

impl Beat {
    /// Tells peers where this node stands, on change and once a beat.
    pub fn tell_heads(&mut self, scene: &Scene<'_>, out: &mut Out) {
        let ctx = scene.ctx;
        let standing = (ctx.head_digest(), scene.phase());
        let due = ctx.is_beat_due(self.head_at);
        let news = self.told != Some(standing);
        if due || (news && ctx.may_speak_again(self.head_at)) {
            self.told = Some(standing);
            self.head_at = Some(ctx.now);
            out.send_to(ctx, &ctx.beat_targets(false), &Message::Head(scene.head_message()));
        }
        if ctx.is_large() && (self.told_far != standing.0 || ctx.is_far_beat_due(self.far_at)) {
            self.told_far = standing.0;
            self.far_at = ctx.now;
            out.send_to(ctx, &ctx.beat_targets(true), &Message::Head(scene.head_message()));
        }
    }

    /// Whether what others may have missed is to be said again.
    pub fn repeats(&mut self, ctx: &Ctx) -> bool {
        let due = ctx.may_repeat(self.repeated_at);
        if due {
            self.repeated_at = ctx.now;
        }
        due
    }

    /// Asks voters to be let in: or shows them the ticket, on the way to the flock.
    pub fn ask_to_join(&mut self, scene: &Scene<'_>, out: &mut Out) {
        let ctx = scene.ctx;
        if scene.wants_in() && self.join_is_due(ctx.head_digest(), ctx) {
            ctx.send_join(&ctx.reachable_voters(), out);
        }
        self.show_ticket(scene, out);
    }

    /// Whether a Join is to be said now about this record, as it then is.
    pub fn join_is_due(&mut self, record: Digest, ctx: &Ctx) -> bool {
        let fresh = self.joined != Some(record) && ctx.may_speak_again(self.join_at);
        let due = fresh || self.join_at.is_none_or(|last| ctx.may_join_again(last));
        if due {
            (self.joined, self.join_at) = (Some(record), Some(ctx.now));
        }
        due
    }
}

impl Ctx {
    /// Signs a message. Own messages are within the limits, so that none is ever lost here.
    pub fn seal(&self, message: &Message) -> Option<Vec<u8>> {
        let sealed = wire::seal(self.signer.as_ref(), &self.run, message);
        debug_assert!(sealed.is_ok(), "{sealed:?}");
        sealed.ok()
    }

    /// Peers with a working connection, greeted or not: this node's own `Hello` went ahead.
    pub fn reachable(&self) -> Vec<NodeId> {
        let open = |peer: &Peer| peer.connected && !peer.refused;
        self.peers.iter().filter(|(_, peer)| open(peer)).map(|(id, _)| *id).collect()
    }

    /// Reachable fellow members of the head record.
    pub fn reachable_members(&self) -> Vec<NodeId> {
        let mut reachable = self.reachable();
        reachable.retain(|id| self.is_member(id));
        reachable
    }

    /// Reachable voters.
    pub fn reachable_voters(&self) -> Vec<NodeId> {
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
            let votes = self.is_voter(id);
            let outside = !member || !self.is_member(id);
            let near = (self.votes() || votes) && (self.votes() == votes || outside);
            (self.in_touch(id) || !self.is_member(id)) && far == (self.is_large() && !near)
        });
        targets
    }

    /// Whether this node and a member tell each other where they stand.
    pub fn in_touch(&self, id: &NodeId) -> bool {
        !self.is_large() || self.votes() || self.is_voter(id)
    }

    /// Whether the flock is too large for everybody to hear everybody else all the time.
    pub fn is_large(&self) -> bool {
        self.head.as_ref().is_some_and(|head| head.record.next.members.len() > 2 * VOTERS_MAX)
    }

    pub fn send_hello(&mut self, targets: &[NodeId], out: &mut Out) {
        let (boot, incarnation) = (self.identity.boot, self.identity.incarnation);
        let hello = Hello { version: PROTOCOL_VERSION, spec: self.spec_bytes.clone(), boot, incarnation };
        if !targets.is_empty() {
            self.identity.note_boot();
        }
        out.send_to(self, targets, &Message::Hello(hello));
    }

    pub fn send_join(&self, targets: &[NodeId], out: &mut Out) {
        let Some(head) = &self.head else { return };
        let (lineage, seq, state_root) = (head.record.lineage, head.record.seq, head.record.state_root);
        let (incarnation, ticket) = (self.identity.incarnation, self.ticket.clone());
        let join = Join { lineage, seq, record: head.digest, state_root, incarnation, ticket };
        out.send_to(self, targets, &Message::Join(join));
    }
}
