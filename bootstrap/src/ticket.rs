//! Tickets: one line of text with which a second machine joins a run.
//!
//! A ticket holds the run's specification, its creator's key, addresses of nodes, and the round after which it is void.
//! In a run that admits by ticket it also carries the creator's *admission ticket* ([`starling_protocol::admission`]),
//! which members check and count. Everything but the addresses is signed. The holder of a ticket may join, so it must
//! be handed on as carefully as a key.
//!
//! Layout, little-endian, before base32 (lower case, no padding, after the word `starling1`):
//!
//! ```text
//! u8 version = 2 | u16 n | n bytes of encoded RunSpec | 32 creator | u64 expires (0 = never)
//! u16 n | n bytes of encoded admission ticket (none in a run that asks for none) | 64 signature
//! u8 count <= 16 | count x (u16 n | n bytes of multiaddr ending in /p2p) | 4 checksum over all before
//! ```
//!
//! One ticket has one encoding: base32 with stray bits, addresses that re-encode differently and trailing bytes are
//! refused. The checksum tells a mangled paste from a forged ticket.

use crate::addresses::{self, ADDRESS_BYTES_MAX, AddressError, PeerAddress};
use crate::identity::Identity;
use data_encoding::{BASE32_NOPAD, DecodeError};
use libp2p::Multiaddr;
use starling_protocol::identity::Ed25519Verifier;
use starling_protocol::limits::{RUN_SPEC_BYTES_MAX, TICKET_BYTES_MAX as ADMISSION_BYTES_MAX};
use starling_protocol::run::AdmissionMode;
use starling_protocol::wire::{self, WireError};
use starling_protocol::{Digest, NodeId, Signature, Signer, Verifier};
use std::fmt;
use std::str::FromStr;

/// The beginning of every ticket.
pub const PREFIX: &str = "starling1";
/// Addresses in one ticket.
pub const ADDRESSES_MAX: usize = 16;
/// Bytes of one ticket before base32.
pub const TICKET_BYTES_MAX: usize = 1
    + 2
    + RUN_SPEC_BYTES_MAX
    + 32
    + 8
    + 2
    + ADMISSION_BYTES_MAX
    + 64
    + 1
    + ADDRESSES_MAX * (2 + ADDRESS_BYTES_MAX)
    + CHECKSUM_BYTES;
/// Characters of one ticket, with room for the line breaks of a paste.
pub const TICKET_CHARS_MAX: usize = 16 * 1024;

const VERSION: u8 = 2;
const CHECKSUM_BYTES: usize = 4;
const ADMISSION_DOMAIN: &str = "starling admission v2";
const CHECKSUM_DOMAIN: &str = "starling ticket checksum v1";

/// A ticket whose signature, run and addresses have been checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Ticket {
    /// The encoded `RunSpec`.
    pub spec: Vec<u8>,
    /// The signer of the ticket; equals the run's creator where the run names one.
    pub creator: NodeId,
    /// The round after which the ticket admits nobody; 0 = it never expires.
    pub expires: u64,
    /// The encoded admission ticket; empty in a run that asks for none.
    pub admission: Vec<u8>,
    /// The creator's signature over [`admission_digest`].
    pub signature: Signature,
    /// Nodes that are likely to answer.
    pub addresses: Vec<PeerAddress>,
}

/// The reason why a ticket cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum TicketError {
    #[error("this is no ticket: a ticket is one line that starts with `{PREFIX}` (get one with `starling invite`)")]
    NotATicket,
    #[error("the ticket is longer than {TICKET_CHARS_MAX} characters: paste it alone")]
    TooLong,
    #[error("the ticket was damaged on the way (character {position} does not belong there): copy it again, whole")]
    Character { position: usize },
    #[error("the ticket was damaged on the way (its checksum does not fit): copy it again, whole")]
    Checksum,
    #[error("the ticket is of version {0} and this program reads version {VERSION}: run the same release as its maker")]
    Version(u8),
    #[error("the ticket is malformed: {0}")]
    Malformed(&'static str),
    #[error("the ticket's run cannot be used: {0}")]
    Run(#[from] WireError),
    #[error("an address of the ticket cannot be used: {0}")]
    Address(#[from] AddressError),
    #[error("the ticket's signature is not its creator's: it was altered; ask for a new one")]
    Signature,
    #[error(
        "the run admits by ticket, and this one carries no admission that its creator has signed: ask for a new one"
    )]
    NoAdmission,
    #[error("only the run's creator ({creator}) can make tickets for it: run `starling invite` on that node")]
    NotTheCreator { creator: NodeId },
    #[error("a ticket needs at least one address and this node knows none of its own yet: give --advertise, or wait")]
    NoAddress,
}

/// The digest that the creator signs: of the run, the last round, and the admission ticket.
pub fn admission_digest(run: &Digest, expires: u64, admission: &[u8]) -> Digest {
    Digest::of(ADMISSION_DOMAIN, &[&run.0, &expires.to_le_bytes(), admission])
}

impl Ticket {
    /// A ticket that never expires, signed by `identity`. Addresses must end in `/p2p/PEER`; the first
    /// [`ADDRESSES_MAX`] are taken.
    pub fn new(identity: &Identity, spec: Vec<u8>, addresses: Vec<Multiaddr>) -> Result<Self, TicketError> {
        Self::until(identity, spec, addresses, 0)
    }

    /// A ticket that is void after round `expires` (0 = never).
    pub fn until(
        identity: &Identity,
        spec: Vec<u8>,
        addresses: Vec<Multiaddr>,
        expires: u64,
    ) -> Result<Self, TicketError> {
        Self::admitting(identity, spec, addresses, expires, Vec::new())
    }

    /// The same for a run that admits by ticket, with its encoded admission ticket.
    pub fn admitting(
        identity: &Identity,
        spec: Vec<u8>,
        addresses: Vec<Multiaddr>,
        expires: u64,
        admission: Vec<u8>,
    ) -> Result<Self, TicketError> {
        let addresses: Vec<PeerAddress> =
            addresses.iter().take(ADDRESSES_MAX).map(addresses::split).collect::<Result<_, _>>()?;
        if addresses.is_empty() {
            return Err(TicketError::NoAddress);
        }
        let signed = admission_digest(&wire::spec_digest(&spec), expires, &admission);
        let signature = identity.signer().sign(&signed.0);
        let ticket = Self { spec, creator: identity.node_id(), expires, admission, signature, addresses };
        ticket.check()?;
        Ok(ticket)
    }

    /// Digest of the run that the ticket leads to.
    pub fn run(&self) -> Digest {
        wire::spec_digest(&self.spec)
    }

    /// Checks that the run decodes, that the signature is the creator's, and that the creator is the run's.
    fn check(&self) -> Result<(), TicketError> {
        let spec = wire::decode_spec(&self.spec)?;
        if let Some(creator) = spec.creator.filter(|creator| *creator != self.creator) {
            return Err(TicketError::NotTheCreator { creator });
        }
        let signed = admission_digest(&self.run(), self.expires, &self.admission);
        if !Ed25519Verifier.verify(&self.creator, &signed.0, &self.signature) {
            return Err(TicketError::Signature);
        }
        if spec.admission.mode != AdmissionMode::Ticket {
            return if self.admission.is_empty() { Ok(()) } else { Err(TicketError::Malformed("it admits nobody")) };
        }
        let admission = wire::decode_ticket(&self.admission).map_err(|_| TicketError::NoAdmission)?;
        match admission.verify(&Ed25519Verifier, &self.run(), &self.creator) {
            true => Ok(()),
            false => Err(TicketError::NoAdmission),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        put_sized(&mut bytes, &self.spec);
        bytes.extend_from_slice(&self.creator.0);
        bytes.extend_from_slice(&self.expires.to_le_bytes());
        put_sized(&mut bytes, &self.admission);
        bytes.extend_from_slice(&self.signature.0);
        let count = self.addresses.len().min(ADDRESSES_MAX);
        bytes.push(count as u8);
        for address in &self.addresses[..count] {
            put_sized(&mut bytes, address.full().as_ref());
        }
        let checksum = checksum(&bytes);
        bytes.extend_from_slice(&checksum);
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, TicketError> {
        if bytes.len() > TICKET_BYTES_MAX {
            return Err(TicketError::TooLong);
        }
        let (body, sum) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(TicketError::Checksum)?;
        if checksum(body) != *sum {
            return Err(TicketError::Checksum);
        }
        let mut rest = Cursor(body);
        match rest.array::<1>()? {
            [VERSION] => {}
            [other] => return Err(TicketError::Version(other)),
        }
        let spec = rest.sized(RUN_SPEC_BYTES_MAX)?.to_vec();
        let creator = NodeId(rest.array()?);
        let expires = u64::from_le_bytes(rest.array()?);
        let admission = rest.sized(ADMISSION_BYTES_MAX)?.to_vec();
        let signature = Signature(rest.array()?);
        let [count] = rest.array::<1>()?;
        if count == 0 || usize::from(count) > ADDRESSES_MAX {
            return Err(TicketError::Malformed("it has no address, or too many"));
        }
        let mut addresses = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            addresses.push(addresses::split(&addresses::decode(rest.sized(ADDRESS_BYTES_MAX)?)?)?);
        }
        if !rest.0.is_empty() {
            return Err(TicketError::Malformed("bytes follow its end"));
        }
        let ticket = Self { spec, creator, expires, admission, signature, addresses };
        ticket.check()?;
        Ok(ticket)
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", to_base32(&self.encode()))
    }
}

impl FromStr for Ticket {
    type Err = TicketError;

    /// Line breaks and spaces inside are skipped, since terminals and mail wrap long lines.
    fn from_str(text: &str) -> Result<Self, TicketError> {
        let text = text.trim();
        if !text.is_ascii() || !text.get(..PREFIX.len()).is_some_and(|p| p.eq_ignore_ascii_case(PREFIX)) {
            return Err(TicketError::NotATicket);
        }
        if text.len() > TICKET_CHARS_MAX {
            return Err(TicketError::TooLong);
        }
        let bytes = from_base32(&text.as_bytes()[PREFIX.len()..]).map_err(|error| match error.kind {
            // A text that was cut off shows at its end.
            data_encoding::DecodeKind::Length | data_encoding::DecodeKind::Trailing => TicketError::Checksum,
            _ => TicketError::Character { position: PREFIX.len() + error.position + 1 },
        })?;
        Self::decode(&bytes)
    }
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let digest = Digest::of(CHECKSUM_DOMAIN, &[bytes]).0;
    [digest[0], digest[1], digest[2], digest[3]]
}

/// Lengths here are at most [`RUN_SPEC_BYTES_MAX`]: `check` has checked the run, `split` the addresses.
fn put_sized(bytes: &mut Vec<u8>, part: &[u8]) {
    bytes.extend_from_slice(&(part.len() as u16).to_le_bytes());
    bytes.extend_from_slice(part);
}

/// Encodes lower-case base32 without padding.
fn to_base32(bytes: &[u8]) -> String {
    BASE32_NOPAD.encode(bytes).to_ascii_lowercase()
}

/// Decodes base32 of either case, with the line breaks and blanks of a paste.
fn from_base32(text: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let letters: Vec<u8> = text.iter().filter(|b| !b.is_ascii_whitespace()).map(u8::to_ascii_uppercase).collect();
    BASE32_NOPAD.decode(&letters)
}

/// The remaining bytes.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], TicketError> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(TicketError::Malformed("it ends too early"))?;
        self.0 = rest;
        Ok(*head)
    }

    fn sized(&mut self, max: usize) -> Result<&'a [u8], TicketError> {
        let length = usize::from(u16::from_le_bytes(self.array()?));
        if length > max {
            return Err(TicketError::Malformed("a part of it is too long"));
        }
        let (head, rest) = self.0.split_at_checked(length).ok_or(TicketError::Malformed("it ends too early"))?;
        self.0 = rest;
        Ok(head)
    }
}

#[cfg(test)]
mod ticket_test;
