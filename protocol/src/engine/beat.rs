//! Heartbeats, and repetition of messages that others may have missed.
//!
//! A connection that breaks loses what was in flight. So everything that the round still depends on is said again:
//! at each connect, and at a slow beat while the round lasts.

use super::clock::Moment;
use super::ctx::Ctx;
use super::outbox::Out;
use super::round::Round;
use super::view::Scene;
use crate::message::{Message, Phase};
use crate::{Digest, NodeId};

/// When the recurring messages were last sent.
#[derive(Debug, Default)]
pub(super) struct Beat {
    head_at: Option<Moment>,
    /// Record and phase as last told to all.
    told: Option<(Digest, Phase)>,
    /// The same for peers that are told less in a large flock.
    far_at: Moment,
    told_far: Digest,
    /// The neighbours that it was last said not to reach, and when that was last looked at.
    told_down: Vec<u8>,
    looked_at: Moment,
    repeated_at: Moment,
    join_at: Option<Moment>,
    /// The record for which a Join was last sent.
    joined: Option<Digest>,
}

impl Round {
    pub fn repeat_ready(&self, targets: &[NodeId], out: &mut Out) {
        if let Some(own) = &self.part.ready {
            out.send_bytes(targets, &own.signed.bytes, None);
        }
    }

    /// Says READY again to members that seem to wait for it. A message over a connection arrives as long as the
    /// connection holds. As long as this node waits as well, all wait for the slow members.
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
        let mut members = ctx.reachable_neighbours();
        members.retain(|id| self.waits_for_readys(id, ctx));
        self.repeat_ready(&members, out);
    }

    /// Whether a member may miss a READY: not while it trains, reduces or votes.
    fn waits_for_readys(&self, id: &NodeId, ctx: &Ctx) -> bool {
        let head = ctx.peers.get(id).and_then(|peer| peer.said.head.as_ref()).filter(|_| ctx.in_touch(id));
        let Some(head) = head else { return true };
        head.record == self.head.digest && !matches!(head.phase, Phase::Training | Phase::Reducing | Phase::Settling)
    }
}

impl Beat {
    /// Makes a request to be let in due at once: this node has another head or requests something else.
    pub fn forget_join(&mut self) {
        self.joined = None;
    }

    /// Whether this node stops reaching a neighbour, or reaches one again, since it last said so.
    fn down_has_changed(&mut self, scene: &Scene<'_>) -> bool {
        let Some(round) = scene.round.filter(|_| scene.ctx.may_look_again(self.looked_at)) else { return false };
        self.looked_at = scene.ctx.now;
        let down = scene.ctx.down(round);
        let news = down != self.told_down;
        self.told_down = down;
        news
    }

    /// Tells peers this node's head and phase, on change and once a beat.
    pub fn tell_heads(&mut self, scene: &Scene<'_>, out: &mut Out) {
        let ctx = scene.ctx;
        let told = (ctx.head_digest(), scene.phase());
        let due = ctx.is_beat_due(self.head_at);
        let news = self.told != Some(told);
        if due || (news && ctx.may_speak_again(self.head_at)) {
            self.told = Some(told);
            self.head_at = Some(ctx.now);
            out.send_to(ctx, &ctx.beat_targets(false), &Message::Head(scene.head_message()));
        }
        if !ctx.is_large() {
            return;
        }
        if self.down_has_changed(scene) || self.told_far != told.0 || ctx.is_far_beat_due(self.far_at) {
            self.told_far = told.0;
            self.far_at = ctx.now;
            out.send_to(ctx, &ctx.beat_targets(true), &Message::Head(scene.head_message()));
        }
    }

    /// Whether messages that others may have missed are to be said again.
    pub fn repeats(&mut self, ctx: &Ctx) -> bool {
        let due = ctx.may_repeat(self.repeated_at);
        if due {
            self.repeated_at = ctx.now;
        }
        due
    }

    /// Asks voters to be let in, or shows them the ticket, on the way to the flock.
    pub fn ask_to_join(&mut self, scene: &Scene<'_>, out: &mut Out) {
        let ctx = scene.ctx;
        if scene.wants_in() && self.join_is_due(ctx.head_digest(), ctx) {
            ctx.send_join(&ctx.reachable_voters(), out);
        }
        self.show_ticket(scene, out);
    }

    /// Whether a Join about this record is due; notes it as sent if it is.
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
    /// The peers that a heartbeat is for. In a flock of one row all peers are told of every change, and of every beat.
    /// In a flock of several rows voters tell each other and nodes that want in as much. They tell their column only
    /// their heads and that they live, and so do learners their column's head, or their row if they do not hear that
    /// head, or no voter at all. Others pass these words on ([`super::relay`]), so that the traffic does not grow with
    /// the square of the flock.
    fn beat_targets(&self, far: bool) -> Vec<NodeId> {
        let mut targets = self.reachable();
        let Some(grid) = self.head.as_ref().map(|head| &head.grid).filter(|grid| !grid.is_one_row()) else {
            targets.retain(|_| !far);
            return targets;
        };
        let (votes, cell) = (self.votes(), grid.cell_of(&self.me));
        let first = cell.is_some_and(|cell| cell.row() == 0);
        let head = grid.head_of(&self.me).filter(|id| *id != self.me && self.is_connected(id));
        let led = head.and_then(|id| self.peers.get(&id)).is_some_and(|peer| self.spoke_lately(peer));
        let alone = !votes && (!first && !led || !self.hears_a_voter());
        targets.retain(|id| {
            let outside = cell.is_none() || grid.cell_of(id).is_none();
            if outside {
                return far != (votes || self.is_voter(id));
            }
            let row = grid.share_a_row(id, &self.me);
            let told = match (first, row) {
                (true, true) => votes || self.is_voter(id) || alone,
                (true, false) => grid.are_neighbours(id, &self.me),
                (false, true) => alone,
                (false, false) => head == Some(*id),
            };
            told && far != (votes && self.is_voter(id))
        });
        targets
    }

    fn hears_a_voter(&self) -> bool {
        let voters = self.head.iter().flat_map(|head| head.quorum.voters());
        voters
            .filter(|(id, _)| *id != self.me)
            .any(|(id, _)| self.is_present(id) && self.peers.get(id).is_some_and(|peer| self.spoke_lately(peer)))
    }
}
