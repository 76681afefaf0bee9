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
//! The newer process believes only its own key: a process that has signed a statement that names this very start was
//! alive after it. An old Hello, or an old statement, therefore fences no process. A peer admits the newer process if
//! it has not heard the older one for as long as a silence lasts, or has lost the connection to it: a process that was
//! killed is soon replaced.

use super::ctx::Ctx;
use super::identity::Identity;
use super::io::{Notice, Output, Refusal};
use super::outbox::Out;
use crate::message::{Alive, Message};
use crate::mutation::{Mutation, mutated};
use crate::{NodeId, wire};
use std::cmp::Ordering;

/// The number of boots of Hellos that are remembered: a peer passes a Hello on within moments.
const BOOTS_MAX: usize = 16;

impl Ctx {
    /// Meets another process with the key of a connected peer, which asks for the peer's place.
    pub fn meet_duplicate(&mut self, from: NodeId, bytes: &[u8], out: &mut Out) {
        // A Hello of any other key, even of this node's own, has no place here.
        let by_it = wire::claimed_sender(bytes) == Some(from);
        let opened = if by_it { wire::open(self.verifier.as_ref(), &self.run, bytes).ok() } else { None };
        let hello = match opened.map(|opened| opened.message) {
            Some(Message::Hello(hello)) if hello.spec == self.spec_bytes => hello,
            // The process that has the channel has said nothing wrong.
            _ => return out.deny(from, None, Refusal::Malformed { what: "hello of a second process" }),
        };
        let Some(peer) = self.peers.get(&from).filter(|peer| peer.link.connected) else { return };
        let silent = self.is_silent(peer);
        match peer.process.boot.filter(|_| peer.link.greeted).map(|boot| hello.boot.cmp(&boot)) {
            _ if silent => out.push(Output::Admit { peer: from }),
            Some(Ordering::Less) => out.push(Output::Admit { peer: from }),
            // Asks the older process for a sign of life that names the newer one.
            Some(Ordering::Greater) => {
                if let Some(peer) = self.peers.get_mut(&from) {
                    peer.process.duplicate = Some(hello.boot);
                }
                out.send_bytes(&[from], bytes, None);
            }
            // The peer's process has not yet said which of the two it is.
            Some(Ordering::Equal) | None => {}
        }
    }

    /// Hears that a peer's process was shown a later start of its key, and lives; false if this node showed it none.
    pub fn hear_alive(&mut self, from: NodeId, alive: &Alive, bytes: &[u8], out: &mut Out) -> bool {
        let Some(peer) = self.peers.get_mut(&from) else { return true };
        let shown = peer.process.duplicate.take_if(|newer| *newer == alive.newer).is_some();
        if shown {
            out.deny(from, Some(bytes.to_vec()), Refusal::IdentityInUse);
        }
        shown
    }

    /// Takes a statement that this node's own key has signed, in this process or in another, and that a peer passes on.
    /// Returns whether this process has to end, because an older one lives.
    ///
    /// # Errors
    /// The statement is not used.
    pub fn meet_myself(&mut self, from: NodeId, message: &Message, out: &mut Out) -> Result<bool, Refusal> {
        match message {
            Message::Hello(hello) if hello.boot > self.identity.boot => {
                let alive = Alive { boot: self.identity.boot, newer: hello.boot };
                out.send_to(self, &[from], &Message::Alive(alive));
                if hello.boot > self.identity.duplicate {
                    self.identity.duplicate = hello.boot;
                    out.notice(Notice::Refused { peer: self.me, refusal: Refusal::IdentityInUse });
                }
                Ok(false)
            }
            Message::Alive(Alive { boot, newer })
                if (self.identity.is_mine(*newer) || mutated!(Mutation::EchoEndsMe))
                    && *boot < self.identity.first_boot =>
            {
                Ok(true)
            }
            Message::Hello(_) | Message::Alive(_) => Err(Refusal::Stale),
            _ => Err(Refusal::Malformed { what: "sender" }),
        }
    }
}

impl Out {
    fn deny(&mut self, peer: NodeId, proof: Option<Vec<u8>>, refusal: Refusal) {
        self.push(Output::Deny { peer, proof });
        self.notice(Notice::Refused { peer, refusal });
    }
}

impl Identity {
    /// Keeps the boot of a Hello.
    pub fn note_boot(&mut self) {
        if self.boots.back() != Some(&self.boot) {
            if self.boots.len() >= BOOTS_MAX {
                self.boots.pop_front();
            }
            self.boots.push_back(self.boot);
        }
    }

    /// Whether this process has said Hello with this boot. Not every boot between its first and its newest is its own:
    /// where the clock is behind, the process took one above its seat's.
    fn is_mine(&self, boot: u64) -> bool {
        self.boots.contains(&boot)
    }
}
