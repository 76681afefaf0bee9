//! The engine's outputs, this node's messages, and their recipients.

use super::ctx::Ctx;
use super::io::{Notice, Output, PersistToken};
use super::peer::Peer;
use crate::limits::PROTOCOL_VERSION;
use crate::message::{Hello, Join, Message};
use crate::{NodeId, wire};

/// The orders to the driver, in this order.
#[derive(Debug, Default)]
pub(super) struct Out {
    pub outputs: Vec<Output>,
    /// The number of writes that were asked for.
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

    /// Reports that this node's state or arithmetic is damaged. The engine then fetches the state anew.
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

impl Ctx {
    /// Signs a message. This node's own messages are within the limits, so none is ever lost here.
    pub fn seal(&self, message: &Message) -> Option<Vec<u8>> {
        let sealed = wire::seal(self.signer.as_ref(), &self.run, message);
        debug_assert!(sealed.is_ok(), "{sealed:?}");
        sealed.ok()
    }

    /// Peers with a working connection, greeted or not. This node's own `Hello` went ahead.
    pub fn reachable(&self) -> Vec<NodeId> {
        let open = |peer: &Peer| peer.link.connected && !peer.link.refused;
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
        voters.filter(|id| self.peers.get(id).is_some_and(|peer| peer.link.connected && !peer.link.refused)).collect()
    }

    /// Whether this node and a member exchange Heads.
    pub fn in_touch(&self, id: &NodeId) -> bool {
        !self.is_large() || self.votes() || self.is_voter(id)
    }

    /// Whether the flock is too large for every member to hear every other one all the time.
    pub fn is_large(&self) -> bool {
        self.head.as_ref().is_some_and(|head| !head.grid.is_one_row())
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
