//! The bytes of one example of each wire type, compared with a file that other implementers can read.

use super::*;
use crate::Digest;
use crate::identity::Ed25519Verifier;
use crate::message::Message;
use data_encoding::HEXLOWER;
use std::fmt::Write;

const GOLDEN: &str = include_str!("../../vectors/wire.txt");

/// Name and bytes of each example, in the order of the file.
fn samples() -> Vec<(String, Vec<u8>)> {
    let run = sample::spec().digest();
    let mut samples = vec![
        ("spec".to_owned(), encode_spec(&sample::spec())),
        ("spec-with-pairs".to_owned(), encode_spec(&sample::spec_with_pairs())),
        ("spec-with-a-choice".to_owned(), encode_spec(&sample::spec_with_a_choice())),
        ("spec-from-weights".to_owned(), encode_spec(&sample::spec_from_weights())),
        ("spec-with-task".to_owned(), encode_spec(&sample::spec_with_task())),
        ("task-schema".to_owned(), sample::task_schema().encode()),
        ("task-schema-digest".to_owned(), sample::task_schema().digest().0.to_vec()),
        ("spec-digest".to_owned(), run.0.to_vec()),
        ("record".to_owned(), encode_record(&sample::record())),
        ("record-digest".to_owned(), sample::record().digest().0.to_vec()),
        ("fork-record".to_owned(), encode_record(&sample::fork())),
        ("fork-lineage".to_owned(), sample::fork().lineage.0.to_vec()),
        ("certificate".to_owned(), encode_certificate(&sample::certificate())),
        ("vote_state".to_owned(), encode_vote_state(&sample::vote_state())),
        ("candidate".to_owned(), encode_candidate(&sample::candidate())),
        ("ticket".to_owned(), encode_ticket(&sample::ticket())),
        ("ticket-grant".to_owned(), sample::ticket().grant(&sample::digest(1)).0.to_vec()),
        ("revocation".to_owned(), encode_revocation(&sample::revocation())),
        ("amendment".to_owned(), encode_amendment(&sample::amendment())),
        ("amendment-name".to_owned(), sample::amendment().name(&sample::digest(1)).0.to_vec()),
        ("amended-record".to_owned(), encode_record(&sample::amended())),
    ];
    for message in sample::messages() {
        let envelope = seal(&sample::signer(), &run, &message).unwrap();
        let opened = open(&Ed25519Verifier, &run, &envelope).unwrap();
        samples.push((format!("envelope-{}", message.kind()), envelope));
        if matches!(message, Message::Ready(_)) {
            samples.push(("envelope-ready-digest".to_owned(), opened.digest.0.to_vec()));
        }
        assert_eq!(opened.message, message);
    }
    samples
}

#[test]
fn bytes_are_those_of_the_file() {
    let mut text =
        String::from("# One example of each thing on the wire, as hex; the values are in src/wire/sample.rs.\n");
    for (name, bytes) in samples() {
        writeln!(text, "{name} {}", HEXLOWER.encode(&bytes)).unwrap();
    }
    assert!(text == GOLDEN, "the wire format changed; if that is meant, raise its version and write:\n{text}");
}

/// The name of `docs/protocol/1-wire.md` §1.1.1: from the members and the vote states that they speak from.
#[test]
fn a_forks_lineage_is_named_by_ids_and_incarnations() {
    let parent = sample::record();
    let mut going = Vec::new();
    for (id, incarnation) in [(sample::node(0x10), 7u64), (sample::node(0x20), 9)] {
        going.extend(id.0);
        going.extend(incarnation.to_le_bytes());
    }
    let name = Digest::of("starling fork v1", &[&parent.lineage.0, &parent.digest().0, &going]);
    assert_eq!(sample::fork().lineage, name);
}

#[test]
fn the_files_bytes_decode_to_the_samples() {
    let bytes = |name: &str| {
        let line = GOLDEN.lines().find(|line| line.split(' ').next() == Some(name)).unwrap();
        HEXLOWER.decode(line.split(' ').nth(1).unwrap().as_bytes()).unwrap()
    };
    assert_eq!(decode_spec(&bytes("spec")), Ok(sample::spec()));
    assert_eq!(decode_spec(&bytes("spec-with-pairs")), Ok(sample::spec_with_pairs()));
    assert_eq!(decode_spec(&bytes("spec-with-a-choice")), Ok(sample::spec_with_a_choice()));
    assert_eq!(decode_spec(&bytes("spec-from-weights")), Ok(sample::spec_from_weights()));
    assert_eq!(decode_spec(&bytes("spec-with-task")), Ok(sample::spec_with_task()));
    assert_eq!(crate::run::TaskSchema::decode(&bytes("task-schema")), Ok(sample::task_schema()));
    assert_eq!(decode_record(&bytes("record")), Ok(sample::record()));
    assert_eq!(decode_record(&bytes("fork-record")), Ok(sample::fork()));
    assert_eq!(decode_certificate(&bytes("certificate")), Ok(sample::certificate()));
    assert_eq!(decode_vote_state(&bytes("vote_state")), Ok(sample::vote_state()));
    assert_eq!(decode_candidate(&bytes("candidate")), Ok(sample::candidate()));
    assert_eq!(decode_ticket(&bytes("ticket")), Ok(sample::ticket()));
    assert_eq!(decode_revocation(&bytes("revocation")), Ok(sample::revocation()));
    assert_eq!(decode_amendment(&bytes("amendment")), Ok(sample::amendment()));
    assert_eq!(decode_record(&bytes("amended-record")), Ok(sample::amended()));
    let run = sample::spec().digest();
    for message in sample::messages() {
        let opened = open(&Ed25519Verifier, &run, &bytes(&format!("envelope-{}", message.kind()))).unwrap();
        assert_eq!(opened.message, message);
    }
}
