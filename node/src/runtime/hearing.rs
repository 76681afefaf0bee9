//! Peers' messages on the way to the engine, which are checked in their sessions' own tasks; and the list of members
//! and invited nodes that the network gets in return.

use super::driver::Driver;
use super::notice::{refusal_label, refusal_text};
use crate::exit::Failure;
use crate::net::{Checked, Unfit, Verify};
use starling_protocol::engine::io::{Input, Refusal};
use starling_protocol::identity::Ed25519Verifier;
use starling_protocol::message::{Awaited, Awaits, Message};
use starling_protocol::wire::{self, Opened, WireError};
use starling_protocol::{Digest, NodeId};
use std::sync::Arc;

/// Checks messages of `run` that arrive at `me`.
pub(super) fn verify(run: Digest, me: NodeId) -> Verify {
    Arc::new(move |from: &NodeId, bytes: &[u8]| check(&run, &me, from, bytes))
}

fn check(run: &Digest, me: &NodeId, from: &NodeId, bytes: &[u8]) -> Result<Checked, Unfit> {
    if wire::passed_on(from, bytes).is_some() {
        // The engine knows whose words this peer may pass on, and looks at that before the signature.
        return Ok(Checked::PassedOn);
    }
    match wire::check(&Ed25519Verifier, run, from, me, bytes) {
        Ok(opened) => Ok(Checked::Own(Box::new(opened))),
        // The engine names the peer's release, or the settings that differ, and knows whether that ends the node.
        Err(WireError::Version { .. } | WireError::OtherRun { .. }) => Ok(Checked::Foreign),
        Err(WireError::BadSignature { .. }) => Err(unfit(&Refusal::BadSignature)),
        Err(other) => Err(unfit(&Refusal::Malformed { what: other.reason() })),
    }
}

fn unfit(refusal: &Refusal) -> Unfit {
    Unfit { label: refusal_label(refusal), why: refusal_text(refusal) }
}

impl Driver {
    /// Hands a control message to the engine, with its content if that was checked.
    pub(super) async fn hear(
        &mut self,
        from: NodeId,
        bytes: Vec<u8>,
        opened: Option<Box<Opened>>,
    ) -> Result<(), Failure> {
        if let Some(opened) = &opened {
            self.note_report(from, &opened.message);
        }
        let input = match opened {
            Some(opened) => Input::Opened { from, opened: *opened, bytes },
            None => Input::Message { from, bytes },
        };
        self.feed(input).await
    }

    /// A member says that it has refused another's bytes in a reduction: sums may hold what came of them.
    fn note_report(&self, from: NodeId, message: &Message) {
        let Message::Head(head) = message else { return };
        if let Some(Awaits { what: Awaited::Refused, from: accused }) = head.awaits {
            self.reductions.sums.hear(from, accused, (head.lineage, head.seq));
        }
    }

    /// Tells the network who is of the flock, and with whom to be connected, if that may have changed.
    pub(super) fn tell_standing(&mut self) {
        let Some(head) = self.engine.head() else { return };
        let at = (head.lineage, head.seq, self.engine.invitations());
        if self.standing_told != Some(at) {
            self.standing_told = Some(at);
            let members = head.next.members.iter().map(|member| member.id).collect();
            self.net.set_standing(members, self.engine.invited());
            self.net.set_contacts(super::contacts::contacts(&self.engine, &self.me));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_protocol::identity::{Ed25519Signer, Signer};
    use starling_protocol::limits::PROTOCOL_VERSION;
    use starling_protocol::message::{Hello, Leave, Stamp, Witness};

    const RUN: Digest = Digest([7; 32]);

    fn signer(n: u8) -> Ed25519Signer {
        Ed25519Signer::from_secret(&[n; 32])
    }

    fn said(n: u8, run: Digest) -> Vec<u8> {
        let leave = Leave { lineage: Digest([1; 32]), seq: 4 };
        wire::seal(&signer(n), &run, &Message::Leave(leave)).unwrap()
    }

    /// A message of a kind that nobody passes on.
    fn witness(n: u8) -> Vec<u8> {
        let witness = Witness { incarnation: 1, stamp: Stamp::default() };
        wire::seal(&signer(n), &RUN, &Message::Witness(witness)).unwrap()
    }

    fn label(from: u8, bytes: &[u8]) -> Result<&'static str, &'static str> {
        let checked = verify(RUN, signer(9).id())(&signer(from).id(), bytes).map_err(|unfit| unfit.label)?;
        Ok(match checked {
            Checked::Own(_) => "own",
            Checked::PassedOn => "passed on",
            Checked::Foreign => "foreign",
        })
    }

    #[test]
    fn messages_are_checked_the_sender_first() {
        assert_eq!(label(1, &said(1, RUN)), Ok("own"));
        let hello = Hello { version: PROTOCOL_VERSION, spec: vec![1], boot: 1, incarnation: 1 };
        let own = wire::seal(&signer(9), &RUN, &Message::Hello(hello)).unwrap();
        assert_eq!(label(1, &own), Ok("own"), "this node's key is in use elsewhere");
        assert_eq!(label(1, &said(2, RUN)), Ok("passed on"), "the engine says whose words a peer may pass on");
        assert_eq!(label(1, &witness(9)), Err("malformed"), "nothing else of its own comes from a peer");
        assert_eq!(label(1, &witness(2)), Err("malformed"), "somebody else's");
        assert_eq!(label(1, &said(1, Digest([8; 32]))), Err("bad_signature"));
        let mut forged = witness(2);
        forged[60] ^= 1;
        assert_eq!(label(1, &forged), Err("malformed"), "its signature was not looked at");
        assert_eq!(label(1, &said(1, RUN)[..20]), Err("malformed"));
        let mut other = said(1, RUN);
        other[0] = other[0].wrapping_add(1);
        assert_eq!(label(1, &other), Ok("foreign"), "the engine says which release");
    }
}
