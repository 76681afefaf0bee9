//! What this node says: heartbeats, and repetition of whatever others may have missed.
//!
//! A connection that breaks loses what was in flight. So everything that the round still depends on is said again:
//! at each connect, and at a slow beat while the round lasts.

use super::Engine;
use super::clock::Moment;
use super::io::{Output, PersistToken};
use super::peer::Peer;
use crate::limits::PROTOCOL_VERSION;
use crate::message::{Head, Hello, Join, Leave, Message, Phase, Report};
use crate::{Digest, NodeId, wire};

/// When the recurring messages were last sent.
#[derive(Debug, Default)]
pub(super) struct Beat {
    head_at: Option<Moment>,
    /// Record and phase as last told to all.
    told: Option<(Digest, Phase)>,
    ready_at: Moment,
    join_at: Moment,
    /// The record for which a Join was last sent.
    joined: Option<Digest>,
    /// Inner steps done in this round.
    pub steps: u64,
}

impl Beat {
    pub fn due(&self, heartbeat: u64) -> Moment {
        self.head_at.map_or(Moment::default(), |at| at.plus(heartbeat))
    }

    /// The own READY was just sent to all.
    pub fn readied(&mut self, now: Moment) {
        self.ready_at = now;
    }
}

impl Engine {
    /// Signs a message. Own messages are within the limits, so that none is ever lost here.
    fn seal(&self, message: &Message) -> Option<Vec<u8>> {
        let sealed = wire::seal(self.signer.as_ref(), &self.run, message);
        debug_assert!(sealed.is_ok(), "{sealed:?}");
        sealed.ok()
    }

    fn send_to(&mut self, targets: &[NodeId], message: &Message) {
        self.send_after(targets, message, None);
    }

    fn send_after(&mut self, targets: &[NodeId], message: &Message, after: Option<PersistToken>) {
        if let Some(bytes) = if targets.is_empty() { None } else { self.seal(message) } {
            self.send_bytes(targets, &bytes, after);
        }
    }

    fn send_bytes(&mut self, targets: &[NodeId], bytes: &[u8], after: Option<PersistToken>) {
        for to in targets {
            self.out.push(Output::Send { to: *to, bytes: bytes.to_vec(), after });
        }
    }

    /// Peers with a working connection, greeted or not: this node's own `Hello` went ahead.
    fn reachable(&self) -> Vec<NodeId> {
        let open = |peer: &Peer| peer.connected && !peer.refused;
        self.peers.iter().filter(|(_, peer)| open(peer)).map(|(id, _)| *id).collect()
    }

    /// Reachable fellow members of the head record.
    pub(super) fn reachable_members(&self) -> Vec<NodeId> {
        let mut reachable = self.reachable();
        reachable.retain(|id| self.is_member(id));
        reachable
    }

    fn send_hello(&mut self, targets: &[NodeId]) {
        let hello = Hello { version: PROTOCOL_VERSION, spec: self.spec_bytes.clone(), boot: self.boot };
        self.send_to(targets, &Message::Hello(hello));
    }

    /// Declares this process newly started, without being so: what it said of the round does not hold any more.
    pub(super) fn renew(&mut self) {
        self.boot = self.boot.saturating_add(1);
        self.last_ready = None;
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
        if self.is_member(&peer) {
            self.repeat_ready(&[peer]);
            self.repeat_form(&[peer]);
        }
        if self.wants_in() {
            self.send_join(&[peer]);
        }
    }

    pub(super) fn head_message(&self) -> Head {
        let (lineage, seq, record, tokens) =
            self.head.as_ref().map_or((Digest::default(), 0, Digest::default(), 0), |h| {
                (h.record.lineage, h.record.seq, h.digest, h.record.tokens)
            });
        let report = self.round.as_ref().and_then(|round| round.durable_report()).map(|made| made.message());
        Head { lineage, seq, record, tokens, phase: self.phase(), progress: self.progress(), report }
    }

    fn send_heads(&mut self, targets: &[NodeId]) {
        let head = self.head_message();
        self.send_to(targets, &Message::Head(head));
    }

    /// Sends a report as soon as the write `token` is on disk.
    pub(super) fn send_report(&mut self, targets: &[NodeId], report: Report, token: PersistToken) {
        self.send_after(targets, &Message::Report(report), Some(token));
    }

    pub(super) fn repeat_ready(&mut self, targets: &[NodeId]) {
        if let Some(bytes) = self.round.as_ref().and_then(|round| round.own.as_ref()).map(|own| own.bytes.clone()) {
            self.send_bytes(targets, &bytes, None);
        }
    }

    pub(super) fn repeat_form(&mut self, targets: &[NodeId]) {
        if let Some(form) = self.round.as_ref().and_then(|round| round.form.clone()) {
            // What this node reported before it left goes ahead of the Form that says it has left.
            self.send_heads(targets);
            self.send_to(targets, &Message::Form(form));
        }
    }

    fn send_join(&mut self, targets: &[NodeId]) {
        let Some(head) = &self.head else { return };
        let (lineage, seq, state_root) = (head.record.lineage, head.record.seq, head.record.state_root);
        let join = Join { lineage, seq, record: head.digest, state_root };
        self.send_to(targets, &Message::Join(join));
    }

    pub(super) fn say_leave(&mut self) {
        let head = self.head_message();
        let leave = Leave { lineage: head.lineage, seq: head.seq };
        let targets = self.reachable();
        self.send_to(&targets, &Message::Leave(leave));
    }

    /// Sends what is due: heads on change and once a beat, and the slow repetitions.
    pub(super) fn beat(&mut self) {
        let standing = (self.head.as_ref().map_or(Digest::default(), |h| h.digest), self.phase());
        let due = self.now >= self.beat.due(self.timing.heartbeat);
        if due || self.beat.told != Some(standing) {
            self.beat.told = Some(standing);
            self.beat.head_at = Some(self.now);
            let all = self.reachable();
            self.send_heads(&all);
        }
        if self.end.is_some() {
            return;
        }
        if due {
            let members = self.reachable_members();
            self.repeat_form(&members);
        }
        let trained = self.round.as_ref().is_some_and(|round| round.own.is_some());
        if trained && self.now.since(self.beat.ready_at) >= self.timing.ready_every {
            self.beat.ready_at = self.now;
            let members = self.reachable_members();
            self.repeat_ready(&members);
        }
        self.ask_to_join();
    }

    fn ask_to_join(&mut self) {
        let Some(digest) = self.head.as_ref().map(|h| h.digest).filter(|_| self.wants_in()) else { return };
        let fresh = self.beat.joined != Some(digest);
        if fresh || self.now.since(self.beat.join_at) >= self.timing.join_every {
            self.beat.joined = Some(digest);
            self.beat.join_at = self.now;
            let all = self.reachable();
            self.send_join(&all);
        }
    }
}
