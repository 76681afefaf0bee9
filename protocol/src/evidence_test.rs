//! Proofs of a contradiction, and honest statements that must never look like one.

use super::*;
use crate::identity::{Ed25519Signer, Ed25519Verifier, Signer};
use crate::message::{Question, Value};
use crate::wire::sample;

fn run() -> Digest {
    sample::spec().digest()
}

fn seal(message: &Message) -> Vec<u8> {
    wire::seal(&sample::signer(), &run(), message).unwrap()
}

fn judge(first: &Message, second: &Message) -> Result<(NodeId, Contradiction), EvidenceError> {
    examine(&Ed25519Verifier, &run(), &Evidence { first: seal(first), second: seal(second) })
}

fn ready(change: impl FnOnce(&mut Ready)) -> Message {
    let mut ready = sample::ready();
    change(&mut ready);
    Message::Ready(ready)
}

fn vote(change: impl FnOnce(&mut Vote)) -> Message {
    let mut vote = sample::vote();
    change(&mut vote);
    Message::Vote(vote)
}

fn estimate(change: impl FnOnce(&mut Estimate)) -> Message {
    let Vote { question, incarnation, ballot, value, .. } = sample::vote();
    let mut estimate = Estimate { question, incarnation, ballot, value };
    change(&mut estimate);
    Message::Estimate(estimate)
}

#[test]
fn two_statements_of_one_place_are_proof_against_their_signer() {
    let liar = sample::signer().id();
    let truth = ready(|_| {});
    for lie in [
        ready(|r| r.payload = Digest([1; 32])),
        ready(|r| r.loss_q16 ^= 1),
        ready(|r| r.statements.clear()),
        ready(|r| r.leave = true),
        ready(|r| r.rtts.clear()),
    ] {
        assert_eq!(judge(&truth, &lie), Ok((liar, Contradiction::Ready)), "{lie:?}");
        assert_eq!(judge(&lie, &truth), Ok((liar, Contradiction::Ready)));
    }
    let other = |value: &mut Value| value.digest = Digest([1; 32]);
    assert_eq!(judge(&vote(|_| {}), &vote(|v| other(&mut v.value))), Ok((liar, Contradiction::Vote)));
    assert_eq!(judge(&vote(|_| {}), &vote(|v| v.voted = false)), Ok((liar, Contradiction::Vote)));
    assert_eq!(judge(&estimate(|_| {}), &estimate(|e| other(&mut e.value))), Ok((liar, Contradiction::Estimate)));
}

#[test]
fn messages_of_an_honest_node_are_no_contradiction() {
    let nothing = Err(EvidenceError::NoContradiction);
    let truth = ready(|_| {});
    // The same READY again; one after a restart, which has lost the contribution; one offered again to another state;
    // one in a fork.
    assert_eq!(judge(&truth, &truth), nothing);
    assert_eq!(judge(&truth, &ready(|r| (r.boot, r.payload) = (r.boot + 1, Digest([1; 32])))), nothing);
    assert_eq!(judge(&truth, &ready(|r| r.round += 1)), nothing);
    assert_eq!(judge(&truth, &ready(|r| r.base = Digest([1; 32]))), nothing);
    assert_eq!(judge(&truth, &ready(|r| r.lineage = Digest([1; 32]))), nothing);
    // The next ballot, another record, a new vote state, the vote after the estimate, the set before the record.
    let other = |v: &mut Vote| v.value.digest = Digest([1; 32]);
    let said = vote(|_| {});
    assert_eq!(judge(&said, &said), nothing);
    assert_eq!(judge(&said, &vote(|v| (v.ballot += 1, other(v)).1)), nothing);
    assert_eq!(judge(&said, &vote(|v| (v.incarnation += 1, other(v)).1)), nothing);
    assert_eq!(judge(&said, &vote(|v| (v.question.seq += 1, other(v)).1)), nothing);
    assert_eq!(judge(&said, &vote(|v| (v.question.parent = Digest([3; 32]), other(v)).1)), nothing);
    assert_eq!(judge(&said, &estimate(|e| e.value.digest = Digest([1; 32]))), nothing);
    let of_set = vote(|v| {
        v.question = Question { instance: 1, ..v.question.clone() };
        v.value = sample::set_value();
    });
    assert_eq!(judge(&said, &of_set), nothing);
    // Members of a fork come and go until all say the same.
    let fork = |members| {
        let Some(Message::Fork(fork)) = sample::messages().into_iter().find(|m| m.kind() == "fork") else {
            unreachable!()
        };
        Message::Fork(crate::message::Fork { members, ..fork })
    };
    assert_eq!(judge(&fork(vec![1]), &fork(vec![3])), nothing);
}

/// Signs so that two signatures of one body differ, as a signer may.
struct Fickle(std::cell::Cell<u8>);
struct Prefixed;

impl Signer for Fickle {
    fn id(&self) -> NodeId {
        sample::node(7)
    }

    fn sign(&self, bytes: &[u8]) -> crate::Signature {
        self.0.set(self.0.get() + 1);
        let mut signature = [0; 64];
        signature[..32].copy_from_slice(&Digest::of("test", &[bytes]).0);
        signature[63] = self.0.get();
        crate::Signature(signature)
    }
}

impl Verifier for Prefixed {
    fn verify(&self, _: &NodeId, bytes: &[u8], signature: &crate::Signature) -> bool {
        signature.0[..32] == Digest::of("test", &[bytes]).0
    }
}

#[test]
fn two_signatures_of_one_body_are_no_contradiction() {
    let signer = Fickle(std::cell::Cell::new(0));
    let seal = |message: &Message| wire::seal(&signer, &run(), message).unwrap();
    for message in [ready(|_| {}), vote(|_| {}), estimate(|_| {})] {
        let evidence = Evidence { first: seal(&message), second: seal(&message) };
        assert_ne!(evidence.first, evidence.second);
        assert_eq!(examine(&Prefixed, &run(), &evidence), Err(EvidenceError::NoContradiction));
        let blamed = crate::mutation::with(Some(Mutation::BlameSignatures), || examine(&Prefixed, &run(), &evidence));
        assert!(blamed.is_ok(), "the injected bug is injected");
    }
}

#[test]
fn evidence_needs_two_good_signatures_of_one_sender_and_this_run() {
    let (truth, lie) = (ready(|_| {}), ready(|r| r.loss_q16 ^= 1));
    let reason = |first: Vec<u8>, second: Vec<u8>| {
        examine(&Ed25519Verifier, &run(), &Evidence { first, second }).map_err(|error| error.reason())
    };
    let other = Ed25519Signer::from_secret(&[9; 32]);
    let by_other = wire::seal(&other, &run(), &lie).unwrap();
    assert_eq!(reason(seal(&truth), by_other), Err("two_senders"));
    let elsewhere = wire::seal(&sample::signer(), &Digest([8; 32]), &lie).unwrap();
    assert_eq!(reason(seal(&truth), elsewhere), Err("not_signed"));
    for at in [40, 100, seal(&lie).len() - 1] {
        let mut forged = seal(&lie);
        forged[at] ^= 1;
        assert_eq!(reason(seal(&truth), forged.clone()), Err("not_signed"));
        assert_eq!(reason(forged, seal(&truth)), Err("not_signed"));
    }
    assert_eq!(reason(seal(&truth), Vec::new()), Err("malformed"));
    assert_eq!(reason(seal(&truth)[..90].to_vec(), seal(&lie)), Err("malformed"));
}
