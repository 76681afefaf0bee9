//! Two processes with one key (`docs/protocol/5-membership.md` §5.6): the older goes on, the newer ends.
//!
//! ```text
//! newer start            peer                    older start
//!      |---- Hello ------>|                           |        on a connection of its own
//!      |                  |----- that very Hello ---->|        over the channel that the older one has
//!      |                  |<---- Alive(own, newer) ---|
//!      |<-- that Alive ---|                           |        and its connection is closed
//!     ends
//! ```
//!
//! The newer one believes nobody but its own key: who has signed a statement that names this very start was alive after
//! it. So an old Hello, or an old statement, fences nobody. A peer that has not heard the older one for as long as a
//! silence lasts, or whose connection to it is gone, takes the newer one: a process that was killed is soon replaced.

use super::Engine;
use super::io::{Finish, Notice, Output, Refusal};
use crate::message::{Alive, Hello, Message};
use crate::plant::{Plant, planted};
use crate::{NodeId, wire};
use std::cmp::Ordering;

/// Boots of Hellos that are remembered: a peer passes one on within moments.
const BOOTS_MAX: usize = 16;

impl Engine {
    /// Somebody with the key of a connected peer asks for its place.
    pub(super) fn meet_namesake(&mut self, from: NodeId, bytes: &[u8]) {
        // Not even of this node's own key: that has no place here.
        let by_it = wire::claimed_sender(bytes) == Some(from);
        let opened = if by_it { wire::open(self.verifier.as_ref(), &self.run, bytes).ok() } else { None };
        let hello = match opened.map(|opened| opened.message) {
            Some(Message::Hello(hello)) if hello.spec == self.spec_bytes => hello,
            // The process that has the channel has said nothing wrong.
            _ => return self.deny(from, None, Refusal::Malformed { what: "hello of a second process" }),
        };
        let now = self.now;
        let Some(peer) = self.peers.get(&from).filter(|peer| peer.connected) else { return };
        let silent = now.since(peer.heard_at.max(peer.switched_at)) >= self.silence(peer);
        match peer.boot.filter(|_| peer.greeted).map(|boot| hello.boot.cmp(&boot)) {
            _ if silent => self.out.push(Output::Admit { peer: from }),
            Some(Ordering::Less) => self.out.push(Output::Admit { peer: from }),
            Some(Ordering::Greater) => self.challenge(from, &hello, bytes),
            // Its process has not said yet which one it is.
            Some(Ordering::Equal) | None => {}
        }
    }

    /// Asks the older process for a sign of life that names the newer one.
    fn challenge(&mut self, older: NodeId, newer: &Hello, bytes: &[u8]) {
        if let Some(peer) = self.peers.get_mut(&older) {
            peer.namesake = Some(newer.boot);
        }
        self.send_bytes(&[older], bytes, None);
    }

    /// A peer's process was shown a later start of its key, and lives.
    pub(super) fn hear_alive(&mut self, from: NodeId, alive: &Alive, bytes: &[u8]) {
        let Some(peer) = self.peers.get_mut(&from) else { return };
        if peer.namesake.take_if(|newer| *newer == alive.newer).is_none() {
            return self.stale(from);
        }
        self.deny(from, Some(bytes.to_vec()), Refusal::IdentityInUse);
    }

    fn deny(&mut self, peer: NodeId, proof: Option<Vec<u8>>, refusal: Refusal) {
        self.out.push(Output::Deny { peer, proof });
        self.notice(Notice::Refused { peer, refusal });
    }

    /// A peer passes on what this node's own key has signed: in this process, or in another.
    pub(super) fn meet_myself(&mut self, from: NodeId, message: &Message) {
        match message {
            Message::Hello(hello) if hello.boot > self.boot => {
                let alive = Alive { boot: self.boot, newer: hello.boot };
                self.send_to(&[from], &Message::Alive(alive));
                if hello.boot > self.namesake {
                    self.namesake = hello.boot;
                    self.notice(Notice::Refused { peer: self.me, refusal: Refusal::IdentityInUse });
                }
            }
            Message::Alive(Alive { boot, newer })
                if (self.is_mine(*newer) || planted!(Plant::EchoEndsMe)) && *boot < self.first_boot =>
            {
                self.finish(Finish::Fenced);
            }
            Message::Hello(_) | Message::Alive(_) => self.stale(from),
            _ => self.refuse(from, Refusal::Malformed { what: "sender" }),
        }
    }

    /// Keeps the boot of a Hello.
    pub(super) fn note_boot(&mut self) {
        if self.boots.back() != Some(&self.boot) {
            if self.boots.len() >= BOOTS_MAX {
                self.boots.pop_front();
            }
            self.boots.push_back(self.boot);
        }
    }

    /// Whether this process has said Hello with this boot. Not all between its first and its newest are its own: where the
    /// clock is behind, one above its seat's was taken.
    fn is_mine(&self, boot: u64) -> bool {
        self.boots.contains(&boot)
    }
}
