//! Tickets: one short line of text with which a second machine joins a run.
//!
//! A ticket names a run by its digest, and peers that are likely to answer. A joiner fetches the run's specification
//! from one of them and compares its digest, so nobody can lead it to another run than the ticket's. In a run that
//! admits by ticket it also carries the creator's *admission ticket* ([`starling_protocol::admission`]), which members
//! check and count: such a ticket must be handed on as carefully as a key.
//!
//! After the word `starling2`, whose digit is the version, come letters of base64url without padding. Layout,
//! little-endian:
//!
//! ```text
//! u16 n: bytes of the body | u8 both bytes of n and 0x5a, by exclusive or
//! body: 32 digest of the run | u8 flags: bit 0 with an admission, bit 1 made out to its holder
//!       admission: u64 nonce | number: last round, 0 = no end | number: uses, 0 = any | 64 signature
//!       for each peer: 32 key | its addresses, see `packed`
//! 4 checksum: the first bytes of H("starling ticket checksum v2"; body)
//! ```
//!
//! The three bytes at the beginning are four letters of their own. So the length is known to be sound before anything
//! else, and a text that is shorter was cut, while one of the right length that fails its checksum was damaged. One
//! ticket has one encoding: anything that would be written otherwise is refused.

use crate::addresses::{self, AddressError, PeerAddress};
use crate::identity;
use data_encoding::BASE64URL_NOPAD;
use libp2p::Multiaddr;
use packed::{array, put_number, take_number};
use starling_protocol::admission::Ticket as AdmissionTicket;
use starling_protocol::identity::Ed25519Verifier;
use starling_protocol::run::{AdmissionMode, RunSpec};
use starling_protocol::{Digest, NodeId, wire};
use std::fmt;
use std::str::FromStr;

mod choice;
mod packed;

/// The beginning of every ticket; its last letter is the version.
pub const PREFIX: &str = "starling2";
/// Addresses in one ticket.
pub const ADDRESSES_MAX: usize = 16;
/// Characters of a new ticket, unless its first address alone takes more, and those that an admission adds.
pub const TICKET_CHARS: usize = 260;
pub const ADMISSION_CHARS: usize = 120;
/// Characters of one ticket from outside, with room for the line breaks of a paste.
pub const TICKET_CHARS_MAX: usize = 16 * 1024;

/// The letters of [`PREFIX`] without the version.
const NAME: &str = "starling";
/// Letters of the length and its check, and their bytes.
const HEAD_CHARS: usize = 4;
const HEAD_BYTES: usize = 3;
const HEAD_MASK: u8 = 0x5a;
const CHECKSUM_BYTES: usize = 4;
/// Bytes of a body: one with [`ADDRESSES_MAX`] of the longest names has fewer.
const BODY_BYTES_MAX: usize = 8 * 1024;
const CHECKSUM_DOMAIN: &str = "starling ticket checksum v2";
/// Bytes of a new ticket that are neither peers nor admission: head, run, flags and checksum.
const FIXED_BYTES: usize = HEAD_BYTES + 32 + 1 + CHECKSUM_BYTES;

const ADMITS: u8 = 1;
const MADE_OUT: u8 = 2;

/// A ticket. Whether its admission is the creator's is known once the run's specification is
/// ([`Ticket::admission_for`]).
#[derive(Clone, Debug, PartialEq)]
pub struct Ticket {
    /// Digest of the run that the ticket leads to.
    pub run: Digest,
    /// Nodes that are likely to answer; those of one peer stand together.
    pub addresses: Vec<PeerAddress>,
    /// None in a run that asks for none.
    pub admission: Option<Admission>,
}

/// The terms under which a ticket admits, and the creator's signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    pub nonce: u64,
    /// The last round in whose record it may be used; 0 = no end.
    pub expires: u64,
    /// The number of nodes that it may admit; 0 = any number.
    pub uses: u32,
    /// Whether it is made out to one node. The ticket does not name that node, which knows its own id.
    pub made_out: bool,
    pub signature: [[u8; 32]; 2],
}

/// The reason why a ticket cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum TicketError {
    #[error("this is no ticket: a ticket is one line that starts with `{PREFIX}` (get one with `starling invite`)")]
    NotATicket,
    #[error("this ticket is of an older release: ask for a new one")]
    Old,
    #[error("this ticket is of a newer release: install that release, or ask for a ticket of this one")]
    Newer,
    #[error("the ticket is longer than {TICKET_CHARS_MAX} characters: paste it alone")]
    TooLong,
    #[error("the ticket is cut: only its first letters are here; copy it again, whole")]
    Beginning,
    #[error("the ticket is cut: {here} of its {of} characters are here; copy it again, whole")]
    Cut { here: usize, of: usize },
    #[error("the ticket was damaged on the way (character {position} does not belong there): copy it again, whole")]
    Character { position: usize },
    #[error("the ticket was damaged on the way ({more} characters follow its end): copy it again, alone")]
    Longer { more: usize },
    #[error("the ticket was damaged on the way (its checksum does not fit): copy it again, whole")]
    Checksum,
    #[error("the ticket is malformed: {0}; ask for a new one")]
    Malformed(&'static str),
    #[error("an address of the ticket cannot be used: {0}")]
    Address(#[from] AddressError),
    #[error(
        "the run admits by ticket, and this one carries no admission that its creator has signed: ask for a new one"
    )]
    NoAdmission,
    #[error(
        "the ticket is made out to another node than this one ({me}), or not signed by the run's creator: ask for one \
         that is made out to this node, or to none"
    )]
    OtherHolder { me: NodeId },
    #[error("a ticket needs at least one address and this node knows none of its own yet: give --advertise, or wait")]
    NoAddress,
}

impl Admission {
    /// The terms of an admission ticket.
    pub fn of(ticket: &AdmissionTicket) -> Self {
        let AdmissionTicket { nonce, holder, expires, uses, signature } = ticket;
        let made_out = holder.is_some();
        Self { nonce: *nonce, expires: *expires, uses: *uses, made_out, signature: *signature }
    }

    /// The admission ticket; `holder` is the node that it is made out to, if it is made out to one.
    pub fn ticket(&self, holder: &NodeId) -> AdmissionTicket {
        let Self { nonce, expires, uses, made_out, signature } = *self;
        AdmissionTicket { nonce, holder: made_out.then_some(*holder), expires, uses, signature }
    }
}

impl Ticket {
    /// A ticket with addresses of the inviter, which end in `/p2p/PEER`, and of the peers that it knows, best first: as
    /// many as fit into [`TICKET_CHARS`], and at least one.
    ///
    /// # Errors
    /// [`TicketError::NoAddress`] if none of them can be in a ticket.
    pub fn new(
        run: Digest,
        own: &[Multiaddr],
        known: &[PeerAddress],
        admission: Option<Admission>,
    ) -> Result<Self, TicketError> {
        let own: Vec<PeerAddress> = own.iter().map(addresses::split).collect::<Result<_, _>>()?;
        let room = (TICKET_CHARS - PREFIX.len()) * 6 / 8 - FIXED_BYTES;
        let addresses = choice::choose(&own, known, room);
        match addresses.is_empty() {
            true => Err(TicketError::NoAddress),
            false => Ok(Self { run, addresses, admission }),
        }
    }

    /// The encoded admission ticket that the node `me` shows; empty in a run that asks for none.
    ///
    /// # Errors
    /// If the run, which `spec` specifies, admits by ticket, and this one does not admit the node.
    pub fn admission_for(&self, spec: &RunSpec, me: &NodeId) -> Result<Vec<u8>, TicketError> {
        match (&self.admission, spec.admission.mode) {
            (None, AdmissionMode::Ticket) => Err(TicketError::NoAdmission),
            (None, _) => Ok(Vec::new()),
            (Some(admission), AdmissionMode::Ticket) => {
                let ticket = admission.ticket(me);
                match spec.creator {
                    Some(creator) if ticket.verify(&Ed25519Verifier, &self.run, &creator) => {
                        Ok(wire::encode_ticket(&ticket))
                    }
                    _ if admission.made_out => Err(TicketError::OtherHolder { me: *me }),
                    _ => Err(TicketError::NoAdmission),
                }
            }
            (Some(_), _) => Err(TicketError::Malformed("its run asks for no admission, and it carries one")),
        }
    }

    fn body(&self) -> Vec<u8> {
        let mut body = self.run.0.to_vec();
        let made_out = self.admission.as_ref().is_some_and(|admission| admission.made_out);
        body.push(self.admission.as_ref().map_or(0, |_| ADMITS) | if made_out { MADE_OUT } else { 0 });
        if let Some(Admission { nonce, expires, uses, signature, .. }) = &self.admission {
            body.extend_from_slice(&nonce.to_le_bytes());
            put_number(&mut body, *expires);
            put_number(&mut body, u64::from(*uses));
            body.extend_from_slice(signature.as_flattened());
        }
        for of_one in self.addresses.chunk_by(|a, b| a.peer == b.peer) {
            // Peers and addresses that cannot be packed are never in a ticket.
            let Some(key) = of_one.first().and_then(|address| identity::node_id(&address.peer)) else { continue };
            body.extend_from_slice(&key.0);
            for (at, address) in of_one.iter().enumerate() {
                let _ = packed::put(&mut body, &address.address, at + 1 == of_one.len());
            }
        }
        body
    }

    fn encode(&self) -> Vec<u8> {
        let body = self.body();
        let [low, high] = (body.len() as u16).to_le_bytes();
        let mut bytes = vec![low, high, low ^ high ^ HEAD_MASK];
        bytes.extend_from_slice(&body);
        bytes.extend_from_slice(&checksum(&body));
        bytes
    }

    /// Decodes a body whose checksum fits.
    fn decode(body: &[u8]) -> Result<Self, TicketError> {
        let ticket = Self::take(body).ok_or(TicketError::Malformed("its parts do not fit together"))?;
        if ticket.addresses.is_empty() || ticket.addresses.len() > ADDRESSES_MAX {
            return Err(TicketError::Malformed("it has no address, or too many"));
        }
        for address in &ticket.addresses {
            addresses::split(&address.full())?;
        }
        if ticket.body() != body {
            return Err(TicketError::Malformed("it is not written as tickets are"));
        }
        Ok(ticket)
    }

    fn take(body: &[u8]) -> Option<Self> {
        let mut rest = body;
        let run = Digest(array(&mut rest)?);
        let [flags] = array(&mut rest)?;
        let made_out = flags & MADE_OUT != 0;
        let admission = match flags {
            0 => None,
            _ => Some(Admission {
                nonce: u64::from_le_bytes(array(&mut rest)?),
                expires: take_number(&mut rest)?,
                uses: u32::try_from(take_number(&mut rest)?).ok()?,
                made_out,
                signature: [array(&mut rest)?, array(&mut rest)?],
            }),
        };
        let mut addresses = Vec::new();
        while !rest.is_empty() && addresses.len() <= ADDRESSES_MAX {
            let peer = identity::peer_id(&NodeId(array(&mut rest)?));
            let mut is_last = false;
            while !is_last && addresses.len() <= ADDRESSES_MAX {
                let address;
                (address, is_last) = packed::take(&mut rest)?;
                addresses.push(PeerAddress { peer, address });
            }
        }
        Some(Self { run, addresses, admission })
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", BASE64URL_NOPAD.encode(&self.encode()))
    }
}

impl FromStr for Ticket {
    type Err = TicketError;

    /// Line breaks and spaces inside are skipped, since terminals and mail wrap long lines.
    fn from_str(text: &str) -> Result<Self, TicketError> {
        let letters = letters(after_prefix(text.trim())?)?;
        let head = letters.first_chunk::<HEAD_CHARS>().ok_or(TicketError::Beginning)?;
        let n = body_bytes(head).ok_or(TicketError::Checksum)?;
        let of = (HEAD_BYTES + n + CHECKSUM_BYTES).saturating_mul(8).div_ceil(6);
        if letters.len() < of {
            return Err(TicketError::Cut { here: PREFIX.len() + letters.len(), of: PREFIX.len() + of });
        }
        if letters.len() > of {
            return Err(TicketError::Longer { more: letters.len() - of });
        }
        let bytes = BASE64URL_NOPAD.decode(&letters).map_err(|_| TicketError::Checksum)?;
        let sealed = bytes.get(HEAD_BYTES..).and_then(|sealed| sealed.split_last_chunk::<CHECKSUM_BYTES>());
        match sealed {
            Some((body, sum)) if checksum(body) == *sum => Self::decode(body),
            _ => Err(TicketError::Checksum),
        }
    }
}

/// The text behind [`PREFIX`], if it is one of this release.
fn after_prefix(text: &str) -> Result<&str, TicketError> {
    if text.len() > TICKET_CHARS_MAX {
        return Err(TicketError::TooLong);
    }
    if let Some((prefix, rest)) = text.split_at_checked(PREFIX.len())
        && prefix.eq_ignore_ascii_case(PREFIX)
    {
        return Ok(rest);
    }
    let begun = PREFIX.get(..text.len()).is_some_and(|beginning| beginning.eq_ignore_ascii_case(text));
    if begun && !text.is_empty() {
        return Err(TicketError::Beginning);
    }
    let of_another_release = text.split_at_checked(NAME.len()).filter(|(name, _)| name.eq_ignore_ascii_case(NAME));
    match of_another_release.and_then(|(_, rest)| rest.chars().next()) {
        Some('0' | '1') => Err(TicketError::Old),
        Some('3'..='9') => Err(TicketError::Newer),
        _ => Err(TicketError::NotATicket),
    }
}

/// The letters of the encoding, without the white space of a paste.
fn letters(text: &str) -> Result<Vec<u8>, TicketError> {
    let mut letters = Vec::with_capacity(text.len());
    for (at, letter) in text.chars().enumerate().filter(|(_, letter)| !letter.is_whitespace()) {
        match u8::try_from(letter) {
            Ok(letter) if letter.is_ascii_alphanumeric() || letter == b'-' || letter == b'_' => letters.push(letter),
            _ => return Err(TicketError::Character { position: PREFIX.len() + at + 1 }),
        }
    }
    Ok(letters)
}

/// The bytes of the body that the first letters announce; `None` if the letters are damaged.
fn body_bytes(head: &[u8; HEAD_CHARS]) -> Option<usize> {
    let head = BASE64URL_NOPAD.decode(head).ok()?;
    let [low, high, check]: [u8; HEAD_BYTES] = head.try_into().ok()?;
    let n = usize::from(u16::from_le_bytes([low, high]));
    (low ^ high ^ HEAD_MASK == check && n <= BODY_BYTES_MAX).then_some(n)
}

fn checksum(body: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let digest = Digest::of(CHECKSUM_DOMAIN, &[body]).0;
    [digest[0], digest[1], digest[2], digest[3]]
}

#[cfg(test)]
mod ticket_test;
