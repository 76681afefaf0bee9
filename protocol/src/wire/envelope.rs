//! Signed envelopes of control messages. [`seal`] and [`open`] are the only ways in and out.
//!
//! ```text
//! version u16 | sender 32 | body length u32 | body | signature 64       little endian
//! body = tag u16 | fields of the message
//! ```
//!
//! The signature covers the domain, the run's digest, the sender and the raw body, so a message is worth nothing in
//! another run, under another sender or as another kind.

use super::{WireError, binary};
use crate::Digest;
use crate::amendment::Amendment;
use crate::identity::{NodeId, Signature, Signer, Verifier};
use crate::limits::{CONTROL_BYTES_MAX, PROTOCOL_VERSION};
use crate::message::{
    Alive, Certificate, Estimate, Evidence, Fork, Head, Hello, Join, Leave, Message, Ready, Start, Vote, Want, Witness,
};
use crate::mutation::{Mutation, mutated};
use crate::run::bytes::{decode_spec, spec_digest};

const SIGNATURE_DOMAIN: &[u8] = b"starling control v1";
const ENVELOPE_DOMAIN: &str = "starling envelope v1";
const HEADER: usize = 2 + 32 + 4;
const SIGNATURE: usize = 64;
const TAG: usize = 2;

/// Numbers of the message kinds. A number is never given a second meaning; retired ones stay listed.
mod tag {
    pub const HELLO: u16 = 1;
    pub const HEAD: u16 = 2;
    pub const JOIN: u16 = 3;
    pub const READY: u16 = 4;
    // 5 and 6 were FORM and REPORT of version 1.
    pub const LEAVE: u16 = 7;
    pub const ESTIMATE: u16 = 8;
    pub const VOTE: u16 = 9;
    pub const CERTIFICATE: u16 = 10;
    pub const WITNESS: u16 = 11;
    pub const FORK: u16 = 12;
    pub const START: u16 = 13;
    pub const EVIDENCE: u16 = 14;
    pub const ALIVE: u16 = 15;
    pub const AMEND: u16 = 16;
    pub const WANT: u16 = 17;
}

/// A message whose signature holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Opened {
    pub sender: NodeId,
    pub message: Message,
    /// Digest of the whole envelope as received. A signer can make several valid envelopes of one message, so `message`
    /// decides whether two statements contradict each other, never this digest.
    pub digest: Digest,
}

/// Encodes and signs a message for the run: at most [`CONTROL_BYTES_MAX`] bytes.
///
/// Refuses a shape or size that [`open`] would refuse, so that a fault shows where it is made.
pub fn seal(signer: &dyn Signer, run: &Digest, message: &Message) -> Result<Vec<u8>, WireError> {
    check_shape(message)?;
    let body = encode_body(message);
    let total = HEADER + body.len() + SIGNATURE;
    if total > CONTROL_BYTES_MAX {
        return Err(WireError::TooLong { what: "control message", bytes: total, limit: CONTROL_BYTES_MAX });
    }
    let sender = signer.id();
    let signature = signer.sign(&signed_bytes(run, &sender, &body));
    let mut bytes = Vec::with_capacity(total);
    bytes.extend_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    bytes.extend_from_slice(&sender.0);
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes.extend_from_slice(&signature.0);
    Ok(bytes)
}

/// Opens an envelope from outside: size, version, signature, then canonical decoding, then the message's shape.
///
/// A `Hello` that is well signed for the run that it carries, but not for `run`, gives [`WireError::OtherRun`], so
/// that the user learns which keys differ.
pub fn open(verifier: &dyn Verifier, run: &Digest, bytes: &[u8]) -> Result<Opened, WireError> {
    open_parts(verifier, run, &Parts::split(bytes)?, bytes)
}

/// Opens an envelope that came over the connection of `from` to the node `me`. Compares the claimed sender before it
/// checks the signature, which costs far more. Only a Hello and an Alive of the node's own key may come over another's
/// connection (`docs/protocol/5-membership.md` §5.6).
///
/// It needs only its arguments, so a connection's own task can open messages, and the engine's thread need not.
///
/// # Errors
/// As [`open`], and [`WireError::Sender`].
pub fn check(
    verifier: &dyn Verifier,
    run: &Digest,
    from: &NodeId,
    me: &NodeId,
    bytes: &[u8],
) -> Result<Opened, WireError> {
    let parts = Parts::split(bytes)?;
    let kind = parts.body.first_chunk::<TAG>().map(|tag| u16::from_le_bytes(*tag));
    let returned = parts.sender == *me && matches!(kind, Some(tag::HELLO | tag::ALIVE));
    let strange = parts.sender != *from && !returned && !mutated!(Mutation::AnySender);
    if strange && !mutated!(Mutation::SignatureFirst) {
        return Err(WireError::Sender { claimed: parts.sender });
    }
    let opened = open_parts(verifier, run, &parts, bytes)?;
    if strange { Err(WireError::Sender { claimed: opened.sender }) } else { Ok(opened) }
}

fn open_parts(verifier: &dyn Verifier, run: &Digest, parts: &Parts<'_>, bytes: &[u8]) -> Result<Opened, WireError> {
    let signed = verifier.verify(&parts.sender, &signed_bytes(run, &parts.sender, parts.body), &parts.signature);
    if !signed && !mutated!(Mutation::AcceptUnsigned) {
        return Err(foreign(verifier, parts));
    }
    let message = decode_body(parts.body)?;
    check_shape(&message)?;
    Ok(Opened { sender: parts.sender, message, digest: Digest::of(ENVELOPE_DOMAIN, &[bytes]) })
}

/// The sender that an envelope claims, unchecked: for a look-up before the cost of verifying a signature.
pub fn claimed_sender(bytes: &[u8]) -> Option<NodeId> {
    Some(NodeId(*bytes.get(2..)?.first_chunk::<32>()?))
}

/// The signer of a message that came over the connection of `from`, if that may be another node: `from` passes words of
/// this kind on. Unchecked; [`open`] checks it.
pub fn passed_on(from: &NodeId, bytes: &[u8]) -> Option<NodeId> {
    const KINDS: [u16; 4] = [tag::READY, tag::START, tag::HEAD, tag::LEAVE];
    let parts = Parts::split(bytes).ok().filter(|parts| parts.sender != *from)?;
    let kind = u16::from_le_bytes(*parts.body.first_chunk::<TAG>()?);
    KINDS.contains(&kind).then_some(parts.sender)
}

struct Parts<'a> {
    sender: NodeId,
    body: &'a [u8],
    signature: Signature,
}

impl<'a> Parts<'a> {
    fn split(bytes: &'a [u8]) -> Result<Self, WireError> {
        const WHAT: &str = "control message";
        const LEAST: usize = HEADER + TAG + SIGNATURE;
        if bytes.len() > CONTROL_BYTES_MAX {
            return Err(WireError::TooLong { what: WHAT, bytes: bytes.len(), limit: CONTROL_BYTES_MAX });
        }
        let truncated = |least| WireError::Truncated { what: WHAT, bytes: bytes.len(), least };
        let (version, rest) = bytes.split_first_chunk::<2>().ok_or_else(|| truncated(LEAST))?;
        let theirs = u16::from_le_bytes(*version);
        if theirs != PROTOCOL_VERSION {
            return Err(WireError::Version { theirs, ours: PROTOCOL_VERSION });
        }
        let (sender, rest) = rest.split_first_chunk::<32>().ok_or_else(|| truncated(LEAST))?;
        let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(|| truncated(LEAST))?;
        let length = u32::from_le_bytes(*length) as usize;
        if length > CONTROL_BYTES_MAX {
            return Err(WireError::TooLong { what: WHAT, bytes: length, limit: CONTROL_BYTES_MAX });
        }
        let (body, rest) = rest.split_at_checked(length).ok_or_else(|| truncated(HEADER + length + SIGNATURE))?;
        let (signature, rest) =
            rest.split_first_chunk::<SIGNATURE>().ok_or_else(|| truncated(HEADER + length + SIGNATURE))?;
        if !rest.is_empty() && !mutated!(Mutation::BytesAfterTheEnd) {
            return Err(WireError::Trailing { what: WHAT, bytes: rest.len() });
        }
        Ok(Self { sender: NodeId(*sender), body, signature: Signature(*signature) })
    }
}

/// Tells another run's `Hello` from a bad signature.
fn foreign(verifier: &dyn Verifier, parts: &Parts<'_>) -> WireError {
    let bad = WireError::BadSignature { sender: parts.sender };
    let Ok(Message::Hello(hello)) = decode_body(parts.body) else { return bad };
    let theirs = spec_digest(&hello.spec);
    if !verifier.verify(&parts.sender, &signed_bytes(&theirs, &parts.sender, parts.body), &parts.signature) {
        return bad;
    }
    match decode_spec(&hello.spec) {
        Ok(spec) => WireError::OtherRun { sender: parts.sender, spec: Box::new(spec) },
        Err(error) => error,
    }
}

fn signed_bytes(run: &Digest, sender: &NodeId, body: &[u8]) -> Vec<u8> {
    [SIGNATURE_DOMAIN, &run.0, &sender.0, body].concat()
}

fn encode_body(message: &Message) -> Vec<u8> {
    fn fields<T: serde::Serialize>(tag: u16, message: &T) -> Vec<u8> {
        let mut body = tag.to_le_bytes().to_vec();
        binary::append(message, &mut body);
        body
    }
    match message {
        Message::Hello(m) => fields(tag::HELLO, m),
        Message::Head(m) => fields(tag::HEAD, m),
        Message::Join(m) => fields(tag::JOIN, m),
        Message::Ready(m) => fields(tag::READY, m),
        Message::Leave(m) => fields(tag::LEAVE, m),
        Message::Estimate(m) => fields(tag::ESTIMATE, m),
        Message::Vote(m) => fields(tag::VOTE, m),
        Message::Certificate(m) => fields(tag::CERTIFICATE, m),
        Message::Witness(m) => fields(tag::WITNESS, m),
        Message::Fork(m) => fields(tag::FORK, m),
        Message::Start(m) => fields(tag::START, m),
        Message::Evidence(m) => fields(tag::EVIDENCE, m),
        Message::Alive(m) => fields(tag::ALIVE, m),
        Message::Amend(m) => fields(tag::AMEND, m),
        Message::Want(m) => fields(tag::WANT, m),
    }
}

fn decode_body(body: &[u8]) -> Result<Message, WireError> {
    const MAX: usize = CONTROL_BYTES_MAX;
    let Some((tag, fields)) = body.split_first_chunk::<TAG>() else {
        return Err(WireError::Truncated { what: "control message", bytes: body.len(), least: TAG });
    };
    Ok(match u16::from_le_bytes(*tag) {
        tag::HELLO => Message::Hello(binary::decode::<Hello, MAX>("hello", fields)?),
        tag::HEAD => Message::Head(binary::decode::<Head, MAX>("head", fields)?),
        tag::JOIN => Message::Join(binary::decode::<Join, MAX>("join", fields)?),
        tag::READY => Message::Ready(binary::decode::<Ready, MAX>("ready", fields)?),
        tag::LEAVE => Message::Leave(binary::decode::<Leave, MAX>("leave", fields)?),
        tag::ESTIMATE => Message::Estimate(binary::decode::<Estimate, MAX>("estimate", fields)?),
        tag::VOTE => Message::Vote(binary::decode::<Vote, MAX>("vote", fields)?),
        tag::CERTIFICATE => Message::Certificate(binary::decode::<Certificate, MAX>("certificate", fields)?),
        tag::WITNESS => Message::Witness(binary::decode::<Witness, MAX>("witness", fields)?),
        tag::FORK => Message::Fork(binary::decode::<Fork, MAX>("fork", fields)?),
        tag::START => Message::Start(binary::decode::<Start, MAX>("start", fields)?),
        tag::EVIDENCE => Message::Evidence(binary::decode::<Evidence, MAX>("evidence", fields)?),
        tag::ALIVE => Message::Alive(binary::decode::<Alive, MAX>("alive", fields)?),
        tag::AMEND => Message::Amend(binary::decode::<Amendment, MAX>("amend", fields)?),
        tag::WANT => Message::Want(binary::decode::<Want, MAX>("want", fields)?),
        tag => return Err(WireError::UnknownTag { tag }),
    })
}

fn check_shape(message: &Message) -> Result<(), WireError> {
    message.validate_shape().map_err(|error| WireError::Invalid { what: message.kind(), detail: error.to_string() })
}
