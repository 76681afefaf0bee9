//! The rules of who may become a member, and on what proof (`docs/protocol/5-membership.md` §5.1).
//!
//! Members that state in their READYs that a node joins check its admission. The record counts the uses of tickets and
//! lists what is revoked. Whether a node may join thus depends on the head record, and all nodes with the same head
//! give the same answer.

use crate::identity::{Signature, Signer, Verifier};
use crate::limits::TICKET_BYTES_MAX;
use crate::mutation::{Mutation, mutated};
use crate::record::Record;
use crate::run::{AdmissionMode, RunSpec};
use crate::wire::number::numbered;
use crate::wire::{WireError, binary};
use crate::{Digest, NodeId};
use serde::{Deserialize, Serialize};

// Each also keeps the bytes signed under it from meaning anything as a control message.
const TICKET_DOMAIN: &str = "starling ticket v1";
const GRANT_DOMAIN: &str = "starling grant v1";
const REVOCATION_DOMAIN: &str = "starling revocation v1";

/// An invitation that the run's creator has signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// Makes this ticket differ from others of equal terms.
    pub nonce: u64,
    /// The node that it admits; with None it admits any node that shows it.
    pub holder: Option<NodeId>,
    /// The last round in whose record it may be used; 0 = no end.
    pub expires: u64,
    /// The number of identities that it may admit; 0 = any number.
    pub uses: u32,
    /// The creator's signature over domain, run and the fields above. Two halves, because serde knows arrays up to 32.
    pub signature: [[u8; 32]; 2],
}

/// "This identity, or this ticket, admits nobody any more": signed by the run's creator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    pub kind: SubjectKind,
    /// The identity's bytes or the ticket's name ([`Ticket::grant`]): its entry in [`Record::revoked`].
    pub subject: Digest,
    /// The creator's signature over domain, run and the fields above.
    pub signature: [[u8; 32]; 2],
}

/// The kind of thing that is revoked. The numbers are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SubjectKind {
    Identity = 1,
    /// A ticket. Members that it has admitted stay.
    Ticket = 2,
}

numbered!(SubjectKind, "subject of a revocation", { Identity = "identity", Ticket = "ticket" });

/// The one byte string of an admission ticket.
pub fn encode_ticket(ticket: &Ticket) -> Vec<u8> {
    binary::encode(ticket)
}

/// Decodes an admission ticket from outside bytes. [`admit`] decides whether it admits anybody.
pub fn decode_ticket(bytes: &[u8]) -> Result<Ticket, WireError> {
    binary::decode::<_, TICKET_BYTES_MAX>("ticket", bytes)
}

/// The one byte string of a revocation.
pub fn encode_revocation(revocation: &Revocation) -> Vec<u8> {
    binary::encode(revocation)
}

/// Decodes a revocation from outside bytes, no longer than a ticket. [`Revocation::verify`] checks whether the creator
/// signed it.
pub fn decode_revocation(bytes: &[u8]) -> Result<Revocation, WireError> {
    binary::decode::<_, TICKET_BYTES_MAX>("revocation", bytes)
}

/// Why a node is not let in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAdmitted {
    #[error("{id} is not in admission.allow of the run file, and a run file with another list is another run")]
    NotListed { id: NodeId },
    #[error("this run admits by ticket and {id} showed none: ask the run's creator for one (`starling invite`)")]
    NoTicket { id: NodeId },
    #[error("the ticket cannot be read ({detail}): was it copied whole?")]
    Malformed { detail: String },
    #[error("the ticket is not signed by this run's creator: it is for another run, or forged")]
    BadSignature,
    #[error("the ticket is made out to {holder}, and {id} showed it")]
    OtherHolder { holder: NodeId, id: NodeId },
    #[error("the ticket was good until round {expires}, and the next one is {round}: ask for a new one")]
    Expired { expires: u64, round: u64 },
    #[error("the ticket has admitted as many nodes as it may ({uses}): ask for a new one")]
    UsedUp { uses: u32 },
    #[error("the run's creator has revoked {id}")]
    RevokedIdentity { id: NodeId },
    #[error("the run's creator has revoked the ticket {grant}")]
    RevokedTicket { grant: Digest },
}

impl NotAdmitted {
    /// A short constant name of the reason: the label of a counter.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotListed { .. } => "not_listed",
            Self::NoTicket { .. } => "no_ticket",
            Self::Malformed { .. } => "malformed_ticket",
            Self::BadSignature => "bad_signature",
            Self::OtherHolder { .. } => "other_holder",
            Self::Expired { .. } => "expired",
            Self::UsedUp { .. } => "used_up",
            Self::RevokedIdentity { .. } => "revoked_identity",
            Self::RevokedTicket { .. } => "revoked_ticket",
        }
    }
}

impl Ticket {
    /// Makes a ticket for a run, as its creator.
    pub fn sign(
        signer: &dyn Signer,
        run: &Digest,
        nonce: u64,
        holder: Option<NodeId>,
        expires: u64,
        uses: u32,
    ) -> Self {
        let mut ticket = Self { nonce, holder, expires, uses, signature: [[0; 32]; 2] };
        ticket.signature = signer.sign(&ticket.terms(TICKET_DOMAIN, run).0).halves();
        ticket
    }

    /// The ticket's name in records and statements: of its terms, so that a ticket signed twice is one ticket.
    pub fn grant(&self, run: &Digest) -> Digest {
        self.terms(GRANT_DOMAIN, run)
    }

    /// Whether the creator of the run signed these terms.
    pub fn verify(&self, verifier: &dyn Verifier, run: &Digest, creator: &NodeId) -> bool {
        verifier.verify(creator, &self.terms(TICKET_DOMAIN, run).0, &Signature::whole(&self.signature))
    }

    /// The digest of the ticket's terms, under a domain.
    fn terms(&self, domain: &str, run: &Digest) -> Digest {
        let Self { nonce, holder, expires, uses, signature: _ } = self;
        let holder: &[u8] = holder.as_ref().map_or(&[], |holder| &holder.0);
        Digest::of(domain, &[&run.0, &nonce.to_le_bytes(), holder, &expires.to_le_bytes(), &uses.to_le_bytes()])
    }
}

impl Revocation {
    /// Revokes for a run, as its creator.
    pub fn sign(signer: &dyn Signer, run: &Digest, kind: SubjectKind, subject: Digest) -> Self {
        let mut revocation = Self { kind, subject, signature: [[0; 32]; 2] };
        revocation.signature = signer.sign(&revocation.terms(run).0).halves();
        revocation
    }

    /// Whether the creator of the run revoked this subject.
    pub fn verify(&self, verifier: &dyn Verifier, run: &Digest, creator: &NodeId) -> bool {
        verifier.verify(creator, &self.terms(run).0, &Signature::whole(&self.signature))
    }

    fn terms(&self, run: &Digest) -> Digest {
        Digest::of(REVOCATION_DOMAIN, &[&run.0, &[self.kind.number()], &self.subject.0])
    }
}

/// Whether a node may become a member in the record after `record`, on this ticket (empty: none).
///
/// A node that is a member already needs no ticket to come back under a new incarnation: it was admitted, and its
/// ticket may have ended since. Returns the ticket whose use the admission costs; it goes into the statement that the
/// node joins. It is zero if no use needs to be counted, as with a ticket for any number of nodes.
///
/// # Errors
/// The reason why it may not.
pub fn admit(
    spec: &RunSpec,
    verifier: &dyn Verifier,
    run: &Digest,
    record: &Record,
    id: &NodeId,
    ticket_bytes: &[u8],
) -> Result<Digest, NotAdmitted> {
    let revoked = |digest: &Digest| record.revoked.binary_search(digest).is_ok();
    if revoked(&Digest(id.0)) && !mutated!(Mutation::RevokedStays) {
        return Err(NotAdmitted::RevokedIdentity { id: *id });
    }
    if record.member(id).is_some() || mutated!(Mutation::AdmitAnybody) {
        return Ok(Digest::default());
    }
    match spec.admission.mode {
        AdmissionMode::Open => Ok(Digest::default()),
        AdmissionMode::List if spec.admission.allow.binary_search(id).is_ok() => Ok(Digest::default()),
        AdmissionMode::List => Err(NotAdmitted::NotListed { id: *id }),
        AdmissionMode::Ticket => by_ticket(spec, verifier, run, record, id, ticket_bytes),
    }
}

/// Whether a node may found a lineage of the run that others follow.
pub fn may_found(spec: &RunSpec, founder: &NodeId) -> bool {
    match spec.admission.mode {
        AdmissionMode::Open => true,
        AdmissionMode::List => spec.admission.allow.binary_search(founder).is_ok(),
        // A ticket admits to a flock that exists. Before there is one, no record counts its uses.
        AdmissionMode::Ticket => spec.creator == Some(*founder),
    }
}

fn by_ticket(
    spec: &RunSpec,
    verifier: &dyn Verifier,
    run: &Digest,
    record: &Record,
    id: &NodeId,
    bytes: &[u8],
) -> Result<Digest, NotAdmitted> {
    if bytes.is_empty() {
        return Err(NotAdmitted::NoTicket { id: *id });
    }
    let ticket = decode_ticket(bytes).map_err(|error| NotAdmitted::Malformed { detail: error.to_string() })?;
    let signed = spec.creator.is_some_and(|creator| ticket.verify(verifier, run, &creator));
    if !signed && !mutated!(Mutation::ForgedTicket) {
        return Err(NotAdmitted::BadSignature);
    }
    let grant = ticket.grant(run);
    if record.revoked.binary_search(&grant).is_ok() && !mutated!(Mutation::RevokedTicketAdmits) {
        return Err(NotAdmitted::RevokedTicket { grant });
    }
    if let Some(holder) = ticket.holder.filter(|holder| holder != id && !mutated!(Mutation::AnyHolder)) {
        return Err(NotAdmitted::OtherHolder { holder, id: *id });
    }
    let round = record.round.saturating_add(1);
    if ticket.expires > 0 && round > ticket.expires && !mutated!(Mutation::ExpiredTicketAdmits) {
        return Err(NotAdmitted::Expired { expires: ticket.expires, round });
    }
    if ticket.uses == 0 {
        return Ok(Digest::default());
    }
    let used = record.grants.binary_search_by(|entry| entry.grant.cmp(&grant)).ok();
    let used = used.and_then(|at| record.grants.get(at)).map_or(0, |entry| entry.uses);
    if used >= ticket.uses && !mutated!(Mutation::UsedTicketAdmits) {
        Err(NotAdmitted::UsedUp { uses: used })
    } else {
        Ok(grant)
    }
}

#[cfg(test)]
#[path = "admission_test.rs"]
mod tests;
