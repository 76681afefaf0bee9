//! Evidence: two statements that one node has signed and that contradict each other
//! (`docs/protocol/4-agreement.md` §4.10).
//!
//! A statement is *the only one for its place*. The place of a READY is (lineage, round, base, start of the process),
//! that of an estimate or a vote is (question, incarnation, ballot). Two statements of one place with different bodies
//! are a lie, or come from two processes with one key. Two signatures of one body are neither: bodies are compared as
//! decoded, never as bytes.
//!
//! These do not contradict each other: READYs of two starts of a process, of two rounds or of two bases, since a
//! contribution is offered again; statements under two incarnations, or in two ballots; two FORKs, since members say
//! them anew as members come and go.

use crate::identity::Verifier;
use crate::message::{Estimate, Evidence, Message, Ready, Vote};
use crate::mutation::{Mutation, mutated};
use crate::wire::{self, WireError};
use crate::{Digest, NodeId};
use std::fmt;

/// The kind of statement that was made twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contradiction {
    Ready,
    Estimate,
    Vote,
}

impl Contradiction {
    /// A short constant name for the label of a counter and for events.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Estimate => "estimate",
            Self::Vote => "vote",
        }
    }
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready => "two different READYs for one round",
            Self::Estimate => "two different estimates in one ballot",
            Self::Vote => "two different votes in one ballot",
        })
    }
}

/// The reason why two envelopes prove nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvidenceError {
    #[error("one of the two does not decode: {0}")]
    Malformed(String),
    #[error("one of the two is not signed by its sender for this run")]
    NotSigned,
    #[error("the two are by different senders")]
    TwoSenders,
    #[error("the two do not contradict each other")]
    NoContradiction,
}

impl EvidenceError {
    /// A short constant name of the reason: the label of a counter.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed",
            Self::NotSigned => "not_signed",
            Self::TwoSenders => "two_senders",
            Self::NoContradiction => "no_contradiction",
        }
    }
}

/// The node that the two envelopes prove to have contradicted itself, and the kind of statement.
///
/// # Errors
/// The reason why they prove nothing.
pub fn examine(
    verifier: &dyn Verifier,
    run: &Digest,
    evidence: &Evidence,
) -> Result<(NodeId, Contradiction), EvidenceError> {
    let open = |bytes: &[u8]| {
        wire::open(verifier, run, bytes).map_err(|error| match error {
            WireError::BadSignature { .. } | WireError::OtherRun { .. } => EvidenceError::NotSigned,
            other => EvidenceError::Malformed(other.to_string()),
        })
    };
    let (first, second) = (open(&evidence.first)?, open(&evidence.second)?);
    if first.sender != second.sender {
        return Err(EvidenceError::TwoSenders);
    }
    let what = contradiction(&first.message, &second.message).ok_or(EvidenceError::NoContradiction)?;
    Ok((first.sender, what))
}

/// The kind of statement in which two messages of one sender contradict each other, if they do.
pub fn contradiction(first: &Message, second: &Message) -> Option<Contradiction> {
    let (what, one_place) = match (first, second) {
        (Message::Ready(a), Message::Ready(b)) => (Contradiction::Ready, place_of_ready(a) == place_of_ready(b)),
        (Message::Estimate(a), Message::Estimate(b)) => {
            let place = |m: &Estimate| (m.question.clone(), m.incarnation, m.ballot);
            (Contradiction::Estimate, place(a) == place(b))
        }
        (Message::Vote(a), Message::Vote(b)) => {
            let place = |m: &Vote| (m.question.clone(), m.incarnation, m.ballot);
            (Contradiction::Vote, place(a) == place(b))
        }
        _ => return None,
    };
    (one_place && (first != second || mutated!(Mutation::BlameSignatures))).then_some(what)
}

fn place_of_ready(ready: &Ready) -> (Digest, u64, Digest, u64) {
    let boot = if mutated!(Mutation::BlameRestarts) { 0 } else { ready.boot };
    (ready.lineage, ready.round, ready.base, boot)
}

#[cfg(test)]
#[path = "evidence_test.rs"]
mod tests;
