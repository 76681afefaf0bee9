use super::*;
use crate::identity::{Ed25519Signer, Ed25519Verifier};
use crate::limits::TICKET_BYTES_MAX;
use crate::record::GrantUse;
use crate::run::AdmissionSpec;
use crate::wire::sample::{self, digest, node, signer};
use crate::wire::{decode_revocation, decode_ticket, encode_revocation, encode_ticket};

const RUN: Digest = Digest([1; 32]);

fn spec(mode: AdmissionMode) -> RunSpec {
    let allow = if mode == AdmissionMode::List { vec![node(0x30), node(0x31)] } else { vec![] };
    RunSpec { admission: AdmissionSpec { mode, allow, probation: 0 }, ..sample::spec() }
}

fn ticket(holder: Option<NodeId>, expires: u64, uses: u32) -> Ticket {
    Ticket::sign(&signer(), &RUN, 5, holder, expires, uses)
}

/// The answer of the sample record, in round 3, to node 0x30 in a run that admits by ticket.
fn shown(record: &Record, ticket: &Ticket) -> Result<Digest, NotAdmitted> {
    let spec = spec(AdmissionMode::Ticket);
    admit(&spec, &Ed25519Verifier, &RUN, record, &node(0x30), &encode_ticket(ticket))
}

#[test]
fn a_ticket_holds_for_its_terms_run_and_creator() {
    let good = ticket(Some(node(0x30)), 9, 2);
    let holds = |ticket: &Ticket| ticket.verify(&Ed25519Verifier, &RUN, &signer().id());
    assert!(holds(&good));
    assert!(!good.verify(&Ed25519Verifier, &digest(2), &signer().id()), "another run");
    assert!(!good.verify(&Ed25519Verifier, &RUN, &node(1)), "another creator");
    let changes: [fn(&mut Ticket); 6] = [
        |t| t.nonce += 1,
        |t| t.holder = None,
        |t| t.holder = Some(node(0x31)),
        |t| t.expires = 0,
        |t| t.uses = 0,
        |t| t.signature[1][0] ^= 1,
    ];
    for change in changes {
        let mut forged = good.clone();
        change(&mut forged);
        assert!(!holds(&forged), "{forged:?}");
    }
    assert_ne!(good.grant(&RUN), good.grant(&digest(2)));
    assert_ne!(good.grant(&RUN), ticket(Some(node(0x30)), 9, 3).grant(&RUN));
    assert_eq!(good.grant(&RUN), Ticket { signature: [[0; 32]; 2], ..good }.grant(&RUN), "a name is for the terms");
}

#[test]
fn the_run_file_says_who_is_let_in() {
    let record = sample::record();
    let admit = |mode, fill| admit(&spec(mode), &Ed25519Verifier, &RUN, &record, &node(fill), &[]);
    assert_eq!(admit(AdmissionMode::Open, 0x40), Ok(Digest::default()));
    assert_eq!(admit(AdmissionMode::List, 0x31), Ok(Digest::default()));
    assert_eq!(admit(AdmissionMode::List, 0x40), Err(NotAdmitted::NotListed { id: node(0x40) }));
    assert_eq!(admit(AdmissionMode::Ticket, 0x40), Err(NotAdmitted::NoTicket { id: node(0x40) }));
    for mode in [AdmissionMode::Open, AdmissionMode::List, AdmissionMode::Ticket] {
        assert_eq!(admit(mode, 0x20), Ok(Digest::default()), "a member comes back");
        assert_eq!(admit(mode, 0x71), Err(NotAdmitted::RevokedIdentity { id: node(0x71) }));
    }
}

#[test]
fn a_revoked_member_does_not_come_back() {
    let mut record = sample::record();
    record.revoked = vec![Digest(node(0x20).0)];
    let back = admit(&spec(AdmissionMode::Open), &Ed25519Verifier, &RUN, &record, &node(0x20), &[]);
    assert_eq!(back, Err(NotAdmitted::RevokedIdentity { id: node(0x20) }));
}

#[test]
fn a_ticket_admits_its_holder_in_time_and_so_often() {
    let record = sample::record();
    let good = ticket(Some(node(0x30)), 4, 2);
    let grant = good.grant(&RUN);
    assert_eq!(shown(&record, &good), Ok(grant));
    assert_eq!(shown(&record, &ticket(None, 0, 1)), Ok(ticket(None, 0, 1).grant(&RUN)));
    assert_eq!(shown(&record, &ticket(None, 0, 0)), Ok(Digest::default()), "nothing to count");

    let (holder, id) = (node(0x31), node(0x30));
    assert_eq!(shown(&record, &ticket(Some(holder), 0, 0)), Err(NotAdmitted::OtherHolder { holder, id }));
    assert_eq!(shown(&record, &ticket(None, 3, 0)), Err(NotAdmitted::Expired { expires: 3, round: 4 }));
    let stranger = Ed25519Signer::from_secret(&[8; 32]);
    assert_eq!(shown(&record, &Ticket::sign(&stranger, &RUN, 5, None, 0, 0)), Err(NotAdmitted::BadSignature));
    let other = Ticket::sign(&signer(), &digest(2), 5, None, 0, 0);
    assert_eq!(shown(&record, &other), Err(NotAdmitted::BadSignature), "a ticket of another run");

    let used = |uses| Record { grants: vec![GrantUse { grant, uses }], ..record.clone() };
    assert_eq!(shown(&used(1), &good), Ok(grant));
    assert_eq!(shown(&used(2), &good), Err(NotAdmitted::UsedUp { uses: 2 }));
    let revoked = Record { revoked: vec![grant], ..record.clone() };
    assert_eq!(shown(&revoked, &good), Err(NotAdmitted::RevokedTicket { grant }));
    let ownerless = RunSpec { creator: None, ..spec(AdmissionMode::Ticket) };
    let answer = admit(&ownerless, &Ed25519Verifier, &RUN, &record, &node(0x30), &encode_ticket(&good));
    assert_eq!(answer, Err(NotAdmitted::BadSignature));
}

#[test]
fn an_unreadable_or_expired_ticket_is_refused_in_words_that_help() {
    let record = sample::record();
    let bytes = encode_ticket(&ticket(None, 0, 0));
    let mut twice = bytes.clone();
    twice.extend_from_slice(&bytes);
    for bytes in [&bytes[1..], &twice, &[0xff; TICKET_BYTES_MAX + 1]] {
        let answer = admit(&spec(AdmissionMode::Ticket), &Ed25519Verifier, &RUN, &record, &node(0x30), bytes);
        let error = answer.unwrap_err();
        assert_eq!(error.reason(), "malformed_ticket");
        assert!(error.to_string().starts_with("the ticket cannot be read ("), "{error}");
    }
    let expired = NotAdmitted::Expired { expires: 3, round: 4 }.to_string();
    assert_eq!(expired, "the ticket was good until round 3, and the next one is 4: ask for a new one");
}

#[test]
fn a_revocation_is_the_creators_for_one_subject() {
    let revocation = Revocation::sign(&signer(), &RUN, SubjectKind::Identity, Digest(node(0x30).0));
    let holds = |revocation: &Revocation| revocation.verify(&Ed25519Verifier, &RUN, &signer().id());
    assert!(holds(&revocation));
    assert!(!revocation.verify(&Ed25519Verifier, &digest(2), &signer().id()));
    assert!(!revocation.verify(&Ed25519Verifier, &RUN, &node(1)));
    assert!(!holds(&Revocation { kind: SubjectKind::Ticket, ..revocation.clone() }));
    assert!(!holds(&Revocation { subject: digest(9), ..revocation }));
}

#[test]
fn tickets_and_revocations_have_one_byte_string() {
    for ticket in [ticket(Some(node(0x30)), u64::MAX, u32::MAX), ticket(None, 0, 0)] {
        let bytes = encode_ticket(&ticket);
        assert!(bytes.len() <= TICKET_BYTES_MAX);
        assert_eq!(decode_ticket(&bytes).as_ref(), Ok(&ticket));
    }
    let revocation = Revocation::sign(&signer(), &RUN, SubjectKind::Ticket, digest(9));
    let bytes = encode_revocation(&revocation);
    assert_eq!(decode_revocation(&bytes).as_ref(), Ok(&revocation));
    assert!(decode_revocation(&bytes[1..]).is_err());
    assert_eq!(decode_revocation(&[&[3], &bytes[1..]].concat()).unwrap_err().reason(), "malformed");
    assert!(decode_revocation(&[0; TICKET_BYTES_MAX + 1]).is_err_and(|error| error.reason() == "too_long"));
}
