//! Bytes that a hostile or broken peer may send.

use super::*;
use crate::identity::{Ed25519Signer, Ed25519Verifier, Signature, Signer, Verifier};
use crate::limits::{AMENDMENT_BYTES_MAX, CANDIDATE_BYTES_MAX, CONTROL_BYTES_MAX, MEMBERS_MAX, PROTOCOL_VERSION};
use crate::limits::{RECORD_BYTES_MAX, TICKET_BYTES_MAX, VOTE_BYTES_MAX};
use crate::limits::{RTTS_MAX, RUN_SPEC_BYTES_MAX, SAMPLES_MAX, SET_BYTES_MAX, STATEMENT_BYTES_MAX, STATEMENTS_MAX};
use crate::message::{
    Evidence, Hello, Message, PeerRtt, Phase, Question, Ready, Statement, StatementKind, Value, ValueKind,
};
use crate::record::Measured;
use crate::{Digest, NodeId};
use sample::{digest, node};

/// Accepts every signature: the tests are about the decoding behind it.
pub(super) struct Trusting;

impl Verifier for Trusting {
    fn verify(&self, _: &NodeId, _: &[u8], _: &Signature) -> bool {
        true
    }
}

/// Offset of the fields in a body: behind the tag. A question has 44 bytes.
const FIELDS: usize = 2;
const QUESTION: usize = 8 + 32 + 4;
/// Offset of the value in an estimate and in a vote, and offset of its set's length in the value.
const SAID_VALUE: usize = FIELDS + QUESTION + 8 + 4;
const VALUE_MEMBERS: usize = 1 + 32 + 8 + 4 + 4 + 32;

pub(super) fn run() -> Digest {
    sample::spec().digest()
}

/// An envelope with this body and no valid signature.
pub(super) fn envelope(body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32).to_le_bytes();
    [&PROTOCOL_VERSION.to_le_bytes()[..], &[7; 32], &length, body, &[0; 64]].concat()
}

pub(super) fn body_of(message: &Message) -> Vec<u8> {
    let sealed = seal(&sample::signer(), &run(), message).unwrap();
    sealed[38..sealed.len() - 64].to_vec()
}

pub(super) fn refused(body: &[u8]) -> WireError {
    open(&Trusting, &run(), &envelope(body)).unwrap_err()
}

pub(super) fn message(kind: &str) -> Message {
    sample::messages().into_iter().find(|m| m.kind() == kind).unwrap()
}

fn with(bytes: &[u8], at: usize, new: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at..at + new.len()].copy_from_slice(new);
    bytes
}

#[test]
fn signatures_bind_run_sender_and_kind() {
    let signer = sample::signer();
    let other = Ed25519Signer::from_secret(&[9; 32]);
    let leave = seal(&signer, &run(), &message("leave")).unwrap();
    assert!(open(&Ed25519Verifier, &run(), &leave).is_ok());
    let bad = |bytes: &[u8]| open(&Ed25519Verifier, &run(), bytes).unwrap_err().reason();
    assert_eq!(open(&Ed25519Verifier, &digest(9), &leave).unwrap_err().reason(), "bad_signature");
    assert_eq!(bad(&with(&leave, 2, &other.id().0)), "bad_signature");
    assert_eq!(bad(&with(&leave, 38, &[3])), "bad_signature");
    for at in 38..leave.len() {
        let mut changed = leave.clone();
        changed[at] ^= 1;
        assert_eq!(bad(&changed), "bad_signature", "byte {at}");
    }
}

#[test]
fn a_hello_of_another_run_tells_its_specification() {
    let mut theirs = sample::spec();
    theirs.model.layers = 6;
    let spec = encode_spec(&theirs);
    let hello = Message::Hello(Hello { version: PROTOCOL_VERSION, spec, boot: 1, incarnation: 1 });
    let bytes = seal(&sample::signer(), &theirs.digest(), &hello).unwrap();
    let WireError::OtherRun { sender, spec } = open(&Ed25519Verifier, &run(), &bytes).unwrap_err() else {
        panic!("expected OtherRun");
    };
    assert_eq!(sender, sample::signer().id());
    assert_eq!(sample::spec().differences(&spec), ["model.layers: 2 here, 6 there"]);
    // Signed for neither run: only a bad signature.
    let forged = seal(&sample::signer(), &digest(1), &hello).unwrap();
    assert_eq!(open(&Ed25519Verifier, &run(), &forged).unwrap_err().reason(), "bad_signature");
}

#[test]
fn framing_is_exact() {
    let good = envelope(&body_of(&message("join")));
    let open = |bytes: &[u8]| open(&Trusting, &run(), bytes);
    assert!(open(&good).is_ok());
    for cut in 0..good.len() {
        assert_eq!(open(&good[..cut]).unwrap_err().reason(), "truncated", "{cut} bytes");
    }
    assert_eq!(open(&[&good[..], &[0]].concat()).unwrap_err().reason(), "trailing");
    assert_eq!(open(&vec![0; CONTROL_BYTES_MAX + 1]).unwrap_err().reason(), "too_long");
    for theirs in [0u16, 1, PROTOCOL_VERSION + 1, u16::MAX] {
        let version = with(&good, 0, &theirs.to_le_bytes());
        assert_eq!(open(&version), Err(WireError::Version { theirs, ours: PROTOCOL_VERSION }));
    }
    for length in [u32::MAX, CONTROL_BYTES_MAX as u32 + 1] {
        assert_eq!(open(&with(&good, 34, &length.to_le_bytes())).unwrap_err().reason(), "too_long");
    }
    assert_eq!(refused(&[]).reason(), "truncated");
    assert_eq!(refused(&[1]).reason(), "truncated");
    // 5 and 6 were kinds of version 1 and have no meaning any more.
    for tag in [0u16, 5, 6, 18, u16::MAX] {
        assert_eq!(refused(&tag.to_le_bytes()), WireError::UnknownTag { tag });
    }
}

#[test]
fn bodies_are_exact() {
    for message in sample::messages() {
        let body = body_of(&message);
        for cut in 2..body.len() {
            assert!(open(&Trusting, &run(), &envelope(&body[..cut])).is_err(), "{} cut at {cut}", message.kind());
        }
        assert_eq!(refused(&[&body[..], &[0]].concat()).reason(), "trailing", "{}", message.kind());
    }
}

/// The offset of each count or length in each kind of message, and the limit on it.
fn counts_of_messages() -> Vec<(&'static str, usize, usize)> {
    let ready_statements = FIELDS + 32 + 8 + 32 + 32 + 4 * 8 + 4 + 4 + 32 + 20;
    let statement = 1 + 32 + 8 + 32;
    let ready_rtts = ready_statements + 8 + 2 * statement + 1 + 33 + 8;
    let certificate = FIELDS + 32 + 8 + 32;
    vec![
        ("hello", FIELDS + 2, RUN_SPEC_BYTES_MAX),
        ("head", FIELDS + 32 + 8 + 32 + 8 + 1 + 8 + 34 + 24, SET_BYTES_MAX),
        ("join", FIELDS + 32 + 8 + 32 + 32 + 8, TICKET_BYTES_MAX),
        ("ready", ready_statements, STATEMENTS_MAX),
        ("ready", ready_rtts, RTTS_MAX),
        ("estimate", SAID_VALUE + VALUE_MEMBERS, SET_BYTES_MAX),
        ("vote", SAID_VALUE + VALUE_MEMBERS, SET_BYTES_MAX),
        ("certificate", certificate, crate::limits::VOTERS_MAX),
        ("certificate", certificate + 8, crate::limits::VOTE_BYTES_MAX),
        ("fork", FIELDS + 32 + 8 + 32 + 8 + 32, SET_BYTES_MAX),
        ("start", FIELDS + QUESTION + VALUE_MEMBERS, SET_BYTES_MAX),
        ("evidence", FIELDS, STATEMENT_BYTES_MAX),
        ("evidence", FIELDS + 8 + sample::evidence().first.len(), STATEMENT_BYTES_MAX),
    ]
}

/// The offsets of counts and lengths in each document, from its beginning.
fn counts_of_documents() -> Vec<(&'static str, Vec<u8>, Vec<usize>)> {
    let record = encode_record(&sample::record());
    let contributors = 32 + 32 + 8 + 32 + 1 + 32 + 8;
    let free = contributors + 8 + 2 * 116 + 32 + 32 + 8 + 8 + 8;
    let merged = free + 8 + 16;
    let grants = merged + 8 + 32;
    let revoked = grants + 8 + 36;
    let members = revoked + 8 + 32 + 17 + 12;
    let ring = members + 8 + 2 * 75;
    let settings = 4 + 32 + 11;
    assert_eq!(record.len(), ring + 8 + 2 * 2 + settings + 1, "the places follow the record's layout");
    let lists = vec![contributors, free, merged, grants, revoked, members, ring];
    let spec = encode_spec(&sample::spec());
    let allow = spec.len() - 16 - 8 - 4 - 8;
    let table = allow - 23 - 16 - 2 * 12 - 8;
    let (candidate, key) = (encode_candidate(&sample::candidate()), 32 + 8 + 4 + 32);
    let in_candidate = lists.iter().map(|at| key + at).chain([key + record.len(), key + record.len() + 8]);
    let in_candidate = in_candidate.collect();
    let (vote_state, estimate) = (encode_vote_state(&sample::vote_state()), 8 + 32 + 32 + 17 + 1 + 4);
    let value = VALUE_MEMBERS + 8;
    vec![
        ("record", record, lists),
        ("spec", spec, vec![0, table, allow]),
        ("candidate", candidate, in_candidate),
        ("vote_state", vote_state, vec![estimate + VALUE_MEMBERS, estimate + value + 1 + 4 + VALUE_MEMBERS]),
        ("certificate", encode_certificate(&sample::certificate()), vec![72, 80]),
    ]
}

fn decode_document(kind: &str, bytes: &[u8]) -> Result<(), WireError> {
    match kind {
        "record" => decode_record(bytes).map(drop),
        "spec" => decode_spec(bytes).map(drop),
        "candidate" => decode_candidate(bytes).map(drop),
        "vote_state" => decode_vote_state(bytes).map(drop),
        "certificate" => decode_certificate(bytes).map(drop),
        "ticket" => decode_ticket(bytes).map(drop),
        "amendment" => decode_amendment(bytes).map(drop),
        _ => decode_revocation(bytes).map(drop),
    }
}

/// Counts that promise more elements than there are, up to those that kill a decoder that believes them.
#[test]
fn hostile_counts_are_refused_before_allocation() {
    const COUNTS: [u64; 6] = [1 << 16, 1 << 33, 1 << 40, 1 << 50, 1 << 63, u64::MAX];
    for (kind, at, limit) in counts_of_messages() {
        let body = body_of(&message(kind));
        let now = u64::from_le_bytes(body[at..at + 8].try_into().unwrap());
        assert!(now <= limit as u64, "{kind} has a count at {at}, not {now}");
        for count in COUNTS.into_iter().chain([limit as u64 + 1]) {
            let reason = refused(&with(&body, at, &count.to_le_bytes())).reason();
            assert!(["malformed", "truncated"].contains(&reason), "{kind} with {count} at {at}: {reason}");
        }
        // A list that is one too long is refused for its length, not because it ends early.
        let long = [&with(&body, at, &(limit as u64 + 1).to_le_bytes())[..], &vec![1; 12_000]].concat();
        assert_eq!(refused(&long).reason(), "malformed", "{kind} at {at}");
    }
    for (kind, document, places) in counts_of_documents() {
        assert_eq!(decode_document(kind, &document), Ok(()));
        for at in places {
            let now = u64::from_le_bytes(document[at..at + 8].try_into().unwrap());
            assert!(now < 1 << 10, "{kind} has a count at {at}, not {now}");
            for count in COUNTS {
                let reason = decode_document(kind, &with(&document, at, &count.to_le_bytes())).unwrap_err().reason();
                assert!(["malformed", "truncated"].contains(&reason), "{kind} with {count} at {at}: {reason}");
            }
        }
    }
}

#[test]
fn lists_in_messages_ascend_and_are_bounded() {
    let seal = |m: Message| seal(&sample::signer(), &run(), &m).map(drop).map_err(|error| error.reason());
    let statement = |fill| {
        let grant = Digest::default();
        Statement { kind: StatementKind::Suspect, id: node(fill), incarnation: 0, grant }
    };
    let said = |statements: &[u8]| {
        let statements = statements.iter().map(|fill| statement(*fill)).collect();
        seal(Message::Ready(Ready { statements, ..sample::ready() }))
    };
    assert_eq!(said(&[1, 2]), Ok(()));
    let many: Vec<u8> = (1..=STATEMENTS_MAX as u8 + 1).collect();
    assert_eq!(said(&many[1..]), Ok(()));
    for bad in [&[2, 1][..], &[1, 1], &many] {
        assert_eq!(said(bad), Err("invalid"), "{bad:?}");
    }
    let measured = |peers: Vec<u16>| {
        let rtts = peers.into_iter().map(|peer| PeerRtt { peer, rtt: 1 }).collect();
        seal(Message::Ready(Ready { rtts, ..sample::ready() }))
    };
    assert_eq!(measured((0..RTTS_MAX as u16).collect()), Ok(()));
    for bad in [vec![2, 1], vec![1, 1], vec![MEMBERS_MAX as u16], (0..RTTS_MAX as u16 + 1).collect()] {
        assert_eq!(measured(bad), Err("invalid"));
    }
    let Evidence { first, second } = sample::evidence();
    let told = |first: &[u8], second: &[u8]| {
        seal(Message::Evidence(Evidence { first: first.to_vec(), second: second.to_vec() }))
    };
    let long = vec![1; STATEMENT_BYTES_MAX + 1];
    assert_eq!(told(&first, &long[1..]), Ok(()));
    for (first, second) in [(&first, &first), (&first, &Vec::new()), (&Vec::new(), &second), (&long, &second)] {
        assert_eq!(told(first, second), Err("invalid"));
    }
    let Message::Fork(fork) = message("fork") else { unreachable!() };
    let forks = |members: Vec<u8>| seal(Message::Fork(crate::message::Fork { members, ..fork.clone() }));
    assert_eq!(forks(vec![1; SET_BYTES_MAX]), Ok(()));
    let largest = Message::Fork(crate::message::Fork { members: vec![1; SET_BYTES_MAX], ..fork.clone() });
    let largest = super::seal(&sample::signer(), &sample::digest(1), &largest).map(|bytes| bytes.len());
    assert_eq!(largest, Ok(VOTE_BYTES_MAX), "it fits a certificate");
    for bad in [vec![], vec![1, 0], vec![1; SET_BYTES_MAX + 1]] {
        assert_eq!(forks(bad), Err("invalid"));
    }
}

/// Values that a READY may not have, each on its own.
#[test]
fn each_field_of_a_ready_has_its_range() {
    let norm = |norm: f32| Measured { norm_bits: norm.to_bits(), ..sample::measured() };
    let revoked = |id, grant| Statement { kind: StatementKind::Revoked, id, incarnation: 0, grant };
    let one = |statement| Ready { statements: vec![statement], ..sample::ready() };
    let suspect = Statement { kind: StatementKind::Suspect, ..sample::ready().statements[1].clone() };
    let bad = [
        Ready { round: 0, ..sample::ready() },
        Ready { samples: 0, ..sample::ready() },
        Ready { samples: SAMPLES_MAX + 1, ..sample::ready() },
        Ready { tokens: 0, ..sample::ready() },
        Ready { tokens: u64::MAX, ..sample::ready() },
        Ready { steps: 0, ..sample::ready() },
        Ready { steps: u32::MAX, ..sample::ready() },
        Ready { start: u64::MAX, ..sample::ready() },
        Ready { measured: norm(f32::NAN), ..sample::ready() },
        Ready { measured: norm(-f32::NAN), ..sample::ready() },
        Ready { measured: norm(f32::INFINITY), ..sample::ready() },
        Ready { measured: norm(-1.0), ..sample::ready() },
        Ready { measured: norm(-0.0), ..sample::ready() },
        one(Statement { incarnation: 1, ..suspect.clone() }),
        one(Statement { grant: digest(1), ..suspect }),
        one(revoked(node(0), Digest::default())),
        one(revoked(node(1), digest(1))),
    ];
    for ready in bad {
        let told = format!("{ready:?}");
        let error = seal(&sample::signer(), &run(), &Message::Ready(ready)).unwrap_err();
        assert_eq!(error.reason(), "invalid", "{told}");
    }
}

/// A vote's value fits its question.
#[test]
fn values_fit_their_question() {
    let Message::Estimate(estimate) = message("estimate") else { unreachable!() };
    let asked = |instance, value: Value| {
        let question = Question { instance, ..sample::question() };
        let estimate = crate::message::Estimate { question, value, ..estimate.clone() };
        seal(&sample::signer(), &run(), &Message::Estimate(estimate)).map(drop).map_err(|error| error.reason())
    };
    let set = sample::set_value;
    assert_eq!(asked(Question::RECORD, sample::value()), Ok(()));
    assert_eq!(asked(Question::RECORD, Value::skip(digest(3))), Ok(()));
    assert_eq!(asked(1, set()), Ok(()));
    let bad = [
        (Question::RECORD, set()),
        (Question::RECORD, Value { members: vec![1], ..sample::value() }),
        (Question::RECORD, Value { tokens: 0, ..sample::value() }),
        (Question::RECORD, Value { contributors: 0, ..sample::value() }),
        (Question::RECORD, Value { set: Digest::default(), ..sample::value() }),
        (Question::RECORD, Value { kind: ValueKind::Skip, ..sample::value() }),
        (1, sample::value()),
        (0, Value { attempt: 0, ..set() }),
        (2, set()),
        (1, Value { set: digest(9), ..set() }),
        (1, Value { contributors: 3, ..set() }),
        (1, Value { members: vec![], ..set() }),
        (1, Value { members: vec![0b101, 0], ..set() }),
    ];
    for (instance, value) in bad {
        assert_eq!(asked(instance, value.clone()), Err("invalid"), "{instance} {value:?}");
    }
}

#[test]
fn numbers_of_enums_are_fixed() {
    // A message with each enum, the enum's place in the body, and one above its greatest number.
    let places = [
        ("head", FIELDS + 32 + 8 + 32 + 8, 11),
        ("ready", FIELDS + 196 + 8, 4),
        ("estimate", SAID_VALUE, 4),
        ("vote", SAID_VALUE, 4),
        ("start", FIELDS + QUESTION, 4),
    ];
    for (kind, at, beyond) in places {
        let body = body_of(&message(kind));
        assert!((1..beyond).contains(&body[at]), "{kind} has an enum at {at}, not {}", body[at]);
        for unknown in [0, beyond, 255] {
            assert_eq!(refused(&with(&body, at, &[unknown])).reason(), "malformed", "{kind} {unknown}");
        }
    }
    let head = body_of(&message("head"));
    for (number, phase) in (1..).zip(Phase::ALL) {
        let opened = open(&Trusting, &run(), &envelope(&with(&head, places[0].1, &[number]))).unwrap();
        assert!(matches!(opened.message, Message::Head(head) if head.phase == *phase));
    }
    // A bool or option is 0 or 1 and nothing else.
    let vote = body_of(&message("vote"));
    assert_eq!(refused(&with(&vote, vote.len() - 1, &[2])).reason(), "malformed");
    let ready = body_of(&message("ready"));
    let leave = FIELDS + 196 + 8 + 2 * 73;
    for at in [leave, leave + 1] {
        assert_eq!(refused(&with(&ready, at, &[2])).reason(), "malformed");
    }
}

#[test]
fn documents_are_bounded_and_exact() {
    let small = [
        ("ticket", encode_ticket(&sample::ticket())),
        ("revocation", encode_revocation(&sample::revocation())),
        ("amendment", encode_amendment(&sample::amendment())),
    ];
    let lists = counts_of_documents().into_iter().map(|(kind, document, _)| (kind, document));
    for (kind, document) in lists.chain(small) {
        let reason = |bytes: &[u8]| decode_document(kind, bytes).unwrap_err().reason();
        let limit = match kind {
            "record" => RECORD_BYTES_MAX,
            "spec" => RUN_SPEC_BYTES_MAX,
            "candidate" => CANDIDATE_BYTES_MAX,
            "ticket" | "revocation" => TICKET_BYTES_MAX,
            "amendment" => AMENDMENT_BYTES_MAX,
            _ => CONTROL_BYTES_MAX,
        };
        assert_eq!(decode_document(kind, &document), Ok(()));
        assert_eq!(reason(&[&document[..], &[0]].concat()), "trailing", "{kind}");
        assert_eq!(reason(&vec![0; limit + 1]), "too_long", "{kind}");
        for cut in 0..document.len() {
            assert!(decode_document(kind, &document[..cut]).is_err(), "{kind} cut at {cut}");
        }
    }
}
