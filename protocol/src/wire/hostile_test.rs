//! Bytes that a hostile or broken peer may send, and round trips by property.

use super::*;
use crate::identity::{Ed25519Signer, Ed25519Verifier, Signature, Signer, Verifier};
use crate::limits::{CONTROL_BYTES_MAX, MEMBERS_MAX, PROTOCOL_VERSION, RECORD_BYTES_MAX, RUN_SPEC_BYTES_MAX};
use crate::message::{Form, Head, Hello, Message, Phase, Ready};
use crate::{Digest, NodeId};
use proptest::prelude::*;
use sample::{digest, node};

/// Accepts every signature: decoding behind it is what is tested.
struct Trusting;

impl Verifier for Trusting {
    fn verify(&self, _: &NodeId, _: &[u8], _: &Signature) -> bool {
        true
    }
}

/// Bytes of the list that ends the sample `Form`: a count and three ids.
const LIVE: usize = 8 + 3 * 32;

fn run() -> Digest {
    sample::spec().digest()
}

/// An envelope with this body and no valid signature.
fn envelope(body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32).to_le_bytes();
    [&PROTOCOL_VERSION.to_le_bytes()[..], &[7; 32], &length, body, &[0; 64]].concat()
}

fn body_of(message: &Message) -> Vec<u8> {
    let sealed = seal(&sample::signer(), &run(), message).unwrap();
    sealed[38..sealed.len() - 64].to_vec()
}

fn refused(body: &[u8]) -> WireError {
    open(&Trusting, &run(), &envelope(body)).unwrap_err()
}

fn message(kind: &str) -> Message {
    sample::messages().into_iter().find(|m| m.kind() == kind).unwrap()
}

#[test]
fn signatures_bind_run_sender_and_kind() {
    let signer = sample::signer();
    let other = Ed25519Signer::from_secret(&[9; 32]);
    let leave = seal(&signer, &run(), &message("leave")).unwrap();
    assert!(open(&Ed25519Verifier, &run(), &leave).is_ok());
    let bad = |bytes: &[u8]| open(&Ed25519Verifier, &run(), bytes).unwrap_err().reason();
    assert_eq!(open(&Ed25519Verifier, &digest(9), &leave).unwrap_err().reason(), "bad_signature");
    let mut by_other = leave.clone();
    by_other[2..34].copy_from_slice(&other.id().0);
    assert_eq!(bad(&by_other), "bad_signature");
    let mut other_kind = leave.clone();
    other_kind[38] = 3;
    assert_eq!(bad(&other_kind), "bad_signature");
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
    let hello = Message::Hello(Hello { version: PROTOCOL_VERSION, spec: encode_spec(&theirs), boot: 1 });
    let bytes = seal(&sample::signer(), &theirs.digest(), &hello).unwrap();
    let WireError::OtherRun { sender, spec } = open(&Ed25519Verifier, &run(), &bytes).unwrap_err() else {
        panic!("expected OtherRun");
    };
    assert_eq!(sender, sample::signer().id());
    assert_eq!(sample::spec().differences(&spec), ["model.layers: 2 here, 6 there"]);
    // Signed for neither run: no more than a bad signature.
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
    let mut version = good.clone();
    version[0] = 2;
    assert_eq!(open(&version), Err(WireError::Version { theirs: 2, ours: 1 }));
    for length in [u32::MAX, CONTROL_BYTES_MAX as u32 + 1] {
        let mut bytes = good.clone();
        bytes[34..38].copy_from_slice(&length.to_le_bytes());
        assert_eq!(open(&bytes).unwrap_err().reason(), "too_long");
    }
    assert_eq!(refused(&[]).reason(), "truncated");
    assert_eq!(refused(&[1]).reason(), "truncated");
    for tag in [0u16, 8, u16::MAX] {
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

/// Counts that promise more than is there, up to those that kill a decoder that believes them.
#[test]
fn hostile_counts_are_refused_before_allocation() {
    const COUNTS: [u64; 7] = [65, 1 << 16, 1 << 33, 1 << 40, 1 << 50, 1 << 63, u64::MAX];
    let (ready, form) = (body_of(&message("ready")), body_of(&message("form")));
    let hello = body_of(&message("hello"));
    let record = encode_record(&sample::record());
    let spec = encode_spec(&sample::spec());
    let with = |bytes: &[u8], at: usize, count: u64| {
        let mut bytes = bytes.to_vec();
        bytes[at..at + 8].copy_from_slice(&count.to_le_bytes());
        bytes
    };
    for count in COUNTS {
        // Counts lie before two ids and `leave`; before three ids; before two ids and that.
        assert_eq!(refused(&with(&ready, ready.len() - 1 - 64 - 8, count)).reason(), "malformed");
        assert_eq!(refused(&with(&form, form.len() - LIVE, count)).reason(), "malformed");
        assert_eq!(refused(&with(&form, form.len() - LIVE - 64 - 8, count)).reason(), "malformed");
        // 64 entries of 48 bytes and a count end the record; contributors' count follows kind and round.
        let contributors = 3 * 32 + 8 + 1 + 8;
        assert_eq!(decode_record(&with(&record, contributors, count)).unwrap_err().reason(), "malformed");
        let members = record.len() - 2 * 48 - 8;
        assert_eq!(decode_record(&with(&record, members, count)).unwrap_err().reason(), "malformed");
        assert!(decode_spec(&with(&spec, 0, count)).is_err(), "name of {count} bytes");
        assert!(decode_spec(&with(&spec, spec.len() - 25 - 24 - 8, count)).is_err(), "table of {count} entries");
        if count > RUN_SPEC_BYTES_MAX as u64 {
            assert!(open(&Trusting, &run(), &envelope(&with(&hello, 4, count))).is_err(), "spec of {count} bytes");
        }
    }
}

#[test]
fn lists_are_ascending_and_bounded() {
    let form = |members: Vec<NodeId>| {
        Message::Form(Form {
            lineage: digest(2),
            seq: 4,
            parent: digest(4),
            attempt: 1,
            live: members.clone(),
            members,
        })
    };
    let seal = |m: &Message| seal(&sample::signer(), &run(), m);
    assert!(seal(&form((0..MEMBERS_MAX as u8).map(node).collect())).is_ok());
    for members in [vec![node(2), node(1)], vec![node(1), node(1)], vec![], (0..65).map(node).collect()] {
        assert_eq!(seal(&form(members)).unwrap_err().reason(), "invalid");
    }
    let body = body_of(&message("form"));
    let (head, rest) = body.split_at(body.len() - LIVE - 64);
    let (first, rest) = rest.split_at(32);
    let (second, live) = rest.split_at(32);
    assert_eq!(refused(&[head, second, first, live].concat()).reason(), "invalid");
    assert_eq!(refused(&[head, first, first, live].concat()).reason(), "invalid");
}

#[test]
fn numbers_of_enums_are_fixed() {
    let head = |phase| {
        let (lineage, record) = (digest(2), digest(4));
        Message::Head(Head { lineage, seq: 3, record, tokens: 1, phase, progress: 0, report: None })
    };
    let at = 2 + 32 + 8 + 32 + 8;
    for (number, phase) in (1..).zip(Phase::ALL) {
        let body = body_of(&head(*phase));
        assert_eq!((body[at], body.len()), (number, at + 1 + 8 + 1));
    }
    let mut body = body_of(&head(Phase::Ready));
    for unknown in [0, 9, 255] {
        body[at] = unknown;
        assert_eq!(refused(&body).reason(), "malformed");
    }
    body[at] = 1;
    // A bool or option is 0 or 1 and nothing else.
    let option = body.len() - 1;
    body[option] = 2;
    assert_eq!(refused(&body).reason(), "malformed");
}

#[test]
fn documents_are_bounded_and_exact() {
    let record = encode_record(&sample::record());
    assert_eq!(decode_record(&record), Ok(sample::record()));
    assert_eq!(decode_record(&[&record[..], &[0]].concat()).unwrap_err().reason(), "trailing");
    assert_eq!(decode_record(&vec![0; RECORD_BYTES_MAX + 1]).unwrap_err().reason(), "too_long");
    assert!((0..record.len()).all(|cut| decode_record(&record[..cut]).is_err()));
    let spec = encode_spec(&sample::spec());
    assert_eq!(decode_spec(&[&spec[..], &[0]].concat()).unwrap_err().reason(), "trailing");
    assert_eq!(decode_spec(&vec![0; RUN_SPEC_BYTES_MAX + 1]).unwrap_err().reason(), "too_long");
    assert!((0..spec.len()).all(|cut| decode_spec(&spec[..cut]).is_err()));
}

fn ids() -> impl Strategy<Value = Vec<NodeId>> {
    prop::collection::btree_set(any::<[u8; 32]>(), 0..MEMBERS_MAX).prop_map(|ids| ids.into_iter().map(NodeId).collect())
}

proptest! {
    #[test]
    fn readies_round_trip(joins in ids(), numbers: [u32; 5], bytes: [u8; 32], leave: bool) {
        let Message::Ready(base) = message("ready") else { unreachable!() };
        let ready = Message::Ready(Ready {
            seq: 1 + u64::from(numbers[0]),
            round: 1,
            parent: Digest(bytes),
            lease_start: numbers[1].into(),
            samples: 1 + u64::from(numbers[2]),
            loss_q16: numbers[3],
            step_us: numbers[4],
            joins,
            leave,
            ..base
        });
        let sealed = seal(&sample::signer(), &run(), &ready).unwrap();
        let opened = open(&Ed25519Verifier, &run(), &sealed).unwrap();
        prop_assert_eq!(opened.message, ready);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600), tag in 0u16..9) {
        let _ = open(&Trusting, &run(), &bytes);
        let _ = decode_record(&bytes);
        let _ = decode_spec(&bytes);
        let body = [&tag.to_le_bytes(), &bytes[..]].concat();
        if let Ok(opened) = open(&Trusting, &run(), &envelope(&body)) {
            prop_assert_eq!(body_of(&opened.message), body);
        }
    }

    /// A changed byte gives another value or a refusal, never a second encoding of the same value.
    #[test]
    fn mutations_are_refused_or_canonical(
        which in 0usize..9,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mutate = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            for (at, with) in &changes {
                let at = at.index(bytes.len());
                bytes[at] = *with;
            }
            bytes
        };
        match sample::messages().get(which) {
            Some(message) => {
                let body = mutate(&body_of(message));
                if let Ok(opened) = open(&Trusting, &run(), &envelope(&body)) {
                    prop_assert_eq!(body_of(&opened.message), body);
                }
            }
            None if which == 7 => {
                let bytes = mutate(&encode_record(&sample::record()));
                if let Ok(record) = decode_record(&bytes) {
                    prop_assert_eq!(encode_record(&record), bytes);
                }
            }
            None => {
                let bytes = mutate(&encode_spec(&sample::spec()));
                if let Ok(spec) = decode_spec(&bytes) {
                    prop_assert_eq!(encode_spec(&spec), bytes);
                }
            }
        }
    }
}
