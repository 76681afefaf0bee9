//! Proof that a record was decided: the quorum of signed votes for it (`docs/protocol/4-agreement.md` §4.8.1), or for a
//! fork the signed statements of all members that went (§4.8.2).

use crate::engine::succession;
use crate::identity::Verifier;
use crate::limits::CONTROL_BYTES_MAX;
use crate::message::{Certificate, Fork, Message, Question, Value, ValueKind, Vote, member_indices};
use crate::mutation::{Mutation, mutated};
use crate::quorum::Quorum;
use crate::record::{Record, RecordKind};
use crate::run::RunSpec;
use crate::wire::{self, WireError, binary};
use crate::{Digest, NodeId};
use std::collections::BTreeSet;

/// The reason why a certificate does not prove its record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    #[error("the certificate is for another record")]
    OtherRecord,
    #[error("the record does not follow the one before: {0}")]
    DoesNotFollow(String),
    #[error("a vote in the certificate does not decode: {0}")]
    Malformed(String),
    #[error("a vote in the certificate is not for this record, or not a vote")]
    OtherVote,
    #[error("a vote in the certificate is by {0}, who may not vote here")]
    NotAVoter(NodeId),
    #[error("the votes in the certificate are not in ascending order of their senders")]
    NotAscending,
    #[error("{0} voters signed, which is no quorum")]
    NoQuorum(usize),
}

/// The one byte string of a certificate.
pub fn encode_certificate(certificate: &Certificate) -> Vec<u8> {
    binary::encode(certificate)
}

/// Decodes a certificate from outside bytes: canonical, at most [`CONTROL_BYTES_MAX`] long. [`verify`] checks whether
/// it proves anything.
pub fn decode_certificate(bytes: &[u8]) -> Result<Certificate, WireError> {
    binary::decode::<_, CONTROL_BYTES_MAX>("certificate", bytes)
}

/// Checks by signatures and quorum that `record` was decided after `parent` (whose digest is `parent_digest`), and that
/// it follows from it as far as the two show. A SKIP follows from its parent alone, a FORK from its parent and its
/// members: both are built again, and have to be equal to the bit.
///
/// # Errors
/// The first reason why it is no proof.
pub fn verify(
    verifier: &dyn Verifier,
    spec: &RunSpec,
    parent: &Record,
    parent_digest: &Digest,
    record: &Record,
    certificate: &Certificate,
) -> Result<(), CertificateError> {
    let digest = record.digest();
    if (certificate.lineage, certificate.seq, certificate.record) != (record.lineage, record.seq, digest) {
        return Err(CertificateError::OtherRecord);
    }
    record.validate_after(parent).map_err(|why| CertificateError::DoesNotFollow(why.to_string()))?;
    match record.kind {
        RecordKind::Fork => {
            return verify_fork(verifier, spec, (parent, parent_digest), (record, &digest), certificate);
        }
        RecordKind::Skip if succession::skip(parent, *parent_digest).as_ref() != Some(record) => {
            return Err(CertificateError::DoesNotFollow("a skip follows from its parent alone".to_owned()));
        }
        _ => {}
    }
    if let Some(amendment) = &record.amended {
        let signed = amendment.is_authorised(verifier, spec, &record.run);
        let why = amendment.check(spec, &parent.next.settings).err().map(|error| error.to_string());
        let why = why.or_else(|| (!signed).then(|| "nobody with a right to it has amended the run".to_owned()));
        why.map_or(Ok(()), |why| Err(CertificateError::DoesNotFollow(why)))?;
    }
    let quorum = Quorum::after(parent);
    verify_votes(verifier, &record.run, &quorum, parent_digest, certificate).map(drop)
}

/// Two records at one place of a lineage, each with its proof, after the one record that both follow.
#[derive(Clone, Debug, PartialEq)]
pub struct Split {
    pub parent: Record,
    pub ours: (Record, Certificate),
    pub theirs: (Record, Certificate),
}

/// Checks that both records of a split were decided, which must never happen (`docs/protocol/4-agreement.md` §4.8.4).
///
/// # Errors
/// The reason why it proves nothing.
pub fn verify_split(verifier: &dyn Verifier, spec: &RunSpec, split: &Split) -> Result<(), CertificateError> {
    let Split { parent, ours: (ours, our_proof), theirs: (theirs, their_proof) } = split;
    // Two forks of one record are two lineages.
    if (ours.lineage, ours.seq) != (theirs.lineage, theirs.seq) || ours == theirs {
        return Err(CertificateError::OtherRecord);
    }
    let parent_digest = parent.digest();
    verify(verifier, spec, parent, &parent_digest, ours, our_proof)?;
    verify(verifier, spec, parent, &parent_digest, theirs, their_proof)
}

/// Checks signatures and quorum alone: that voters of `quorum`, those after the record of digest `parent`, decided
/// `certificate.record`. Returns the value that they voted for. The caller compares the lineage with the parent's.
///
/// # Errors
/// The first reason why they did not.
pub fn verify_votes(
    verifier: &dyn Verifier,
    run: &Digest,
    quorum: &Quorum,
    parent: &Digest,
    certificate: &Certificate,
) -> Result<Option<Value>, CertificateError> {
    let mut signers: Vec<NodeId> = Vec::with_capacity(certificate.votes.len());
    let (mut ballot, mut value) = (None, None);
    for bytes in &certificate.votes {
        let opened = open(verifier, run, bytes)?;
        let Message::Vote(vote) = opened.message else { return Err(CertificateError::OtherVote) };
        let asked = (vote.question.seq, vote.question.parent, vote.question.instance);
        let one_ballot = *ballot.get_or_insert(vote.ballot) == vote.ballot;
        let for_it = vote.voted
            && (vote.value.digest == certificate.record || mutated!(Mutation::ProofOfAnother))
            && vote.value.kind != ValueKind::Set;
        if asked != (certificate.seq, *parent, Question::RECORD)
            || !(one_ballot || mutated!(Mutation::ProofOfBallots))
            || !for_it
        {
            return Err(CertificateError::OtherVote);
        }
        if !quorum.has(&opened.sender, vote.incarnation) {
            return Err(CertificateError::NotAVoter(opened.sender));
        }
        ascend(&mut signers, opened.sender)?;
        value = Some(vote.value);
    }
    let signed: BTreeSet<NodeId> = signers.iter().copied().collect();
    if quorum.met(&signed) || mutated!(Mutation::AcceptThinCertificate) {
        Ok(value)
    } else {
        Err(CertificateError::NoQuorum(signed.len()))
    }
}

/// Checks that every member of a fork has signed the digest of its record, under the incarnation that it has there.
fn verify_fork(
    verifier: &dyn Verifier,
    spec: &RunSpec,
    (parent, parent_digest): (&Record, &Digest),
    (record, digest): (&Record, &Digest),
    certificate: &Certificate,
) -> Result<(), CertificateError> {
    let mut signers: Vec<NodeId> = Vec::with_capacity(certificate.votes.len());
    let mut incarnations: Vec<u64> = Vec::with_capacity(certificate.votes.len());
    let mut members: Option<Vec<u8>> = None;
    for bytes in &certificate.votes {
        let opened = open(verifier, &record.run, bytes)?;
        let Message::Fork(fork) = opened.message else { return Err(CertificateError::OtherVote) };
        let Fork { lineage, seq, parent: after, incarnation, record: named, members: said } = fork;
        let same = *members.get_or_insert_with(|| said.clone()) == said;
        let names = named == *digest || mutated!(Mutation::ForkUnsignedRecord);
        if (lineage, seq, after) != (parent.lineage, record.seq, *parent_digest) || !same || !names {
            return Err(CertificateError::OtherVote);
        }
        ascend(&mut signers, opened.sender)?;
        incarnations.push(incarnation);
    }
    let named: Option<Vec<NodeId>> = member_indices(members.as_deref().unwrap_or_default())
        .map(|index| parent.next.members.get(index).map(|member| member.id))
        .collect();
    if signers.is_empty() || (named.as_ref() != Some(&signers) && !mutated!(Mutation::ForkOfSome)) {
        return Err(CertificateError::NoQuorum(signers.len()));
    }
    let members: Vec<(NodeId, u64)> = signers.into_iter().zip(incarnations).collect();
    let built = succession::fork(parent, *parent_digest, spec, &members);
    if built.as_ref() == Some(record) || mutated!(Mutation::ForkUnsignedRecord) {
        Ok(())
    } else {
        Err(CertificateError::DoesNotFollow("a fork follows from its members alone".to_owned()))
    }
}

/// The senders of the votes, as the votes name them: for a certificate that was verified.
pub fn signers(certificate: &Certificate) -> BTreeSet<NodeId> {
    certificate.votes.iter().filter_map(|vote| wire::claimed_sender(vote)).collect()
}

fn open(verifier: &dyn Verifier, run: &Digest, bytes: &[u8]) -> Result<wire::Opened, CertificateError> {
    wire::open(verifier, run, bytes).map_err(|error| CertificateError::Malformed(error.to_string()))
}

fn ascend(signers: &mut Vec<NodeId>, sender: NodeId) -> Result<(), CertificateError> {
    if signers.last().is_some_and(|last| *last >= sender) {
        return Err(CertificateError::NotAscending);
    }
    signers.push(sender);
    Ok(())
}

/// Makes the certificate from the votes as received. They are for one record and were collected in one ballot.
pub fn of_votes<'a>(
    lineage: Digest,
    decided: &Vote,
    votes: impl IntoIterator<Item = (&'a NodeId, &'a Vec<u8>)>,
) -> Certificate {
    let question = &decided.question;
    let mut by_sender: Vec<(&NodeId, &Vec<u8>)> = votes.into_iter().collect();
    by_sender.sort_unstable_by_key(|(id, _)| **id);
    Certificate {
        lineage,
        seq: question.seq,
        record: decided.value.digest,
        votes: by_sender.into_iter().map(|(_, bytes)| bytes.clone()).collect(),
    }
}
