//! What each fuzz target asks of its bytes: no panic, one byte string for one value, little memory, little time.
//!
//! A target is a function of bytes, so that libFuzzer, a corpus and a debugger run the same thing.

mod engine;
mod memory;

#[path = "../../protocol/tests/engine_edges/bench.rs"]
#[allow(dead_code)]
mod bench;
#[path = "../../protocol/tests/engine_edges/fixture.rs"]
#[allow(dead_code)]
mod fixture;
#[path = "../../protocol/tests/engine_edges/nonsense.rs"]
mod nonsense;
#[path = "../../protocol/tests/engine_edges/watch.rs"]
mod watch;

pub use engine::engine;

use starling_protocol::message::Evidence;
use starling_protocol::run::{Codec, TaskSchema};
use starling_protocol::wire::{self, WireError};
use starling_protocol::{Digest, NodeId, Signature, Signer, Verifier, codec, evidence, frame, update};

/// Accepts every signature: what is behind it is fuzzed.
struct Trusting;
/// Signs nothing.
struct Nobody;

impl Verifier for Trusting {
    fn verify(&self, _: &NodeId, _: &[u8], _: &Signature) -> bool {
        true
    }
}

impl Signer for Nobody {
    fn id(&self) -> NodeId {
        NodeId([0; 32])
    }

    fn sign(&self, _: &[u8]) -> Signature {
        Signature([0; 64])
    }
}

/// Whatever is accepted has exactly these bytes, and neither answer costs much.
fn canonical<T>(data: &[u8], decode: fn(&[u8]) -> Result<T, WireError>, encode: fn(&T) -> Vec<u8>) {
    let decoded = memory::within_limits(data.len(), || decode(data));
    if let Ok(value) = decoded {
        assert!(encode(&value) == data, "a second byte string of one value");
    }
}

pub fn envelope(data: &[u8]) {
    let run = Digest([1; 32]);
    let opened = memory::within_limits(data.len(), || wire::open(&Trusting, &run, data));
    if let Ok(opened) = opened {
        let again = wire::seal(&Nobody, &run, &opened.message).expect("what was opened can be sealed");
        let body = |bytes: &[u8]| bytes[38..bytes.len() - 64].to_vec();
        assert!(body(&again) == body(data), "a second byte string of one message");
    }
}

/// Two envelopes: what is taken for a contradiction is one either way round, and needs two messages of one kind that
/// differ.
pub fn evidence(data: &[u8]) {
    let Some((length, rest)) = data.split_first_chunk::<2>() else { return };
    let at = usize::from(u16::from_le_bytes(*length)).min(rest.len());
    let (first, second) = rest.split_at(at);
    let judge = |first: &[u8], second: &[u8]| {
        let evidence = Evidence { first: first.to_vec(), second: second.to_vec() };
        evidence::examine(&Trusting, &Digest([1; 32]), &evidence)
    };
    let judged = judge(first, second);
    if judged.is_ok() {
        let open = |bytes| wire::open(&Trusting, &Digest([1; 32]), bytes).expect("it was opened").message;
        assert!(open(first) != open(second) && open(first).kind() == open(second).kind());
        assert_eq!(judge(second, first), judged);
    }
    assert!(judge(first, first).is_err() && judge(second, second).is_err());
}

pub fn record(data: &[u8]) {
    canonical(data, wire::decode_record, wire::encode_record);
}

pub fn run_spec(data: &[u8]) {
    canonical(data, wire::decode_spec, wire::encode_spec);
}

pub fn certificate(data: &[u8]) {
    canonical(data, wire::decode_certificate, wire::encode_certificate);
}

pub fn vote_state(data: &[u8]) {
    canonical(data, wire::decode_vote_state, wire::encode_vote_state);
}

pub fn candidate(data: &[u8]) {
    canonical(data, wire::decode_candidate, wire::encode_candidate);
}

pub fn ticket(data: &[u8]) {
    canonical(data, wire::decode_ticket, wire::encode_ticket);
}

pub fn revocation(data: &[u8]) {
    canonical(data, wire::decode_revocation, wire::encode_revocation);
}

pub fn amendment(data: &[u8]) {
    canonical(data, wire::decode_amendment, wire::encode_amendment);
}

pub fn task_schema(data: &[u8]) {
    canonical(data, TaskSchema::decode, TaskSchema::encode);
}

/// Header of a tensor frame, and the payload behind it.
pub fn frame(data: &[u8]) {
    let Ok(header) = frame::FrameHeader::decode(data.get(..80).unwrap_or(data)) else { return };
    assert!(header.encode() == data[..80], "a second byte string of one header");
    assert!(header.payload_len() <= 1 << 20, "a frame holds one chunk");
    let _ = header.check_payload(&data[80..]);
}

/// A codec, of four kinds.
fn codec_of(first: u8) -> Codec {
    match first % 4 {
        0 => Codec::Bf16,
        1 => Codec::Int8,
        2 => Codec::Int4,
        _ => Codec::TopK { k: 16 << (first / 4 % 5) },
    }
}

/// A coded vector: what is accepted is finite, is added exactly as it is decoded, and a refusal leaves no trace.
pub fn payload(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let codec = codec_of(*first);
    let elements = match codec {
        Codec::Bf16 => rest.len() / 2,
        // The block's scales take two bytes of every 258, or of every 34.
        Codec::Int8 => rest.len() - 2 * rest.len().div_ceil(258).min(rest.len() / 2),
        Codec::Int4 => 2 * (rest.len() - 2 * rest.len().div_ceil(34).min(rest.len() / 2)),
        Codec::TopK { .. } => 37 * usize::from(*first),
    };
    let (mut values, mut sum) = (vec![7.0; elements], vec![1.0; elements]);
    match codec::decode(codec, rest, &mut values) {
        Ok(()) => {
            codec::decode_add(codec, rest, &mut sum).expect("what is decoded can be added");
            assert!(values.iter().all(|value| value.is_finite()));
            assert!(values.iter().zip(&sum).all(|(v, s)| (1.0 + v).to_bits() == s.to_bits()));
        }
        Err(_) => {
            assert!(values.iter().all(|value| *value == 7.0));
            assert!(codec::decode_add(codec, rest, &mut sum).is_err() && sum.iter().all(|value| *value == 1.0));
        }
    }
}

/// An update of some elements: one byte string for one list of payloads, each of them canonical.
pub fn update(data: &[u8]) {
    let Some(([first, low, high], rest)) = data.split_first_chunk() else { return };
    let (codec, elements) = (codec_of(*first), usize::from(u16::from_le_bytes([*low, *high])));
    let mut values = vec![0.0; elements];
    if update::decode(codec, rest, &mut values).is_ok() {
        let layout = update::Layout::of(codec, elements, rest).expect("it was decoded");
        let payloads = (0..update::chunks(elements)).map(|chunk| &rest[layout.range(chunk)]);
        assert!(update::assemble(codec, payloads) == rest, "a second byte string of one update");
        assert!(values.iter().all(|value| value.is_finite()) && rest.len() <= update::encoded_max(codec, elements));
    }
}
