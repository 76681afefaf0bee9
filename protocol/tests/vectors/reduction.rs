//! Reductions of three members to the byte (`docs/protocol/3-reduction.md` §3.1 to §3.6).

use crate::fields;
use crate::json::{Json, bits, floats, hex, object};
use crate::made::{digest, id};
use starling_protocol::NodeId;
use starling_protocol::engine::io::AttemptKey;
use starling_protocol::frame::{FrameHeader, FrameKind, FrameScope};
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::run::Codec;
use starling_protocol::update::{self, Stated, owners};
use starling_protocol::{codec, record, ring};

const WEIGHTS: &str = "docs/protocol/3-reduction.md §3.3";
const RING: &str = "docs/protocol/3-reduction.md §3.4.2";
const OWNERS: &str = "docs/protocol/3-reduction.md §3.5.3";
const FRAMES: &str = "docs/protocol/3-reduction.md §3.6";

const CODECS: [Codec; 4] = [Codec::Bf16, Codec::Int8, Codec::Int4, Codec::TopK { k: 256 }];
/// Two blocks of int8, the second one short.
const SHORT: usize = 300;
/// Three chunks, the last one short.
const LONG: usize = 2 * CHUNK_ELEMENTS + SHORT;

/// The offer of one member: its elements follow from a, b and the power of two.
struct Member {
    id: NodeId,
    a: u64,
    b: u64,
    exponent: i32,
    tokens: u64,
    steps: u32,
}

/// The third member's vector is far longer than the others', and its round was cut short.
fn members() -> [Member; 3] {
    [
        Member { id: id(0x10), a: 7_919, b: 11, exponent: -14, tokens: 30_720, steps: 30 },
        Member { id: id(0x20), a: 104_729, b: 1_000, exponent: -14, tokens: 30_720, steps: 30 },
        Member { id: id(0x30), a: 1_299_709, b: 500, exponent: -10, tokens: 15_360, steps: 15 },
    ]
}

impl Member {
    /// Exact in f32.
    fn vector(&self, elements: usize) -> Vec<f32> {
        let element = |i: u64| ((i * self.a + self.b) % 2_003) as f32 - 1_001.0;
        (0..elements as u64).map(|i| element(i) * 2f32.powi(self.exponent)).collect()
    }

    fn stated(&self, elements: usize) -> Stated {
        let squares: f64 = self.vector(elements).iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
        Stated { tokens: self.tokens, steps: self.steps, norm: (squares.sqrt() as f32).next_up() }
    }
}

fn encoded(codec: Codec, values: &[f32]) -> Vec<u8> {
    let mut payload = Vec::new();
    codec::encode(codec, values, &mut payload).expect("all are finite and small");
    payload
}

fn decoded(codec: Codec, update: &[u8], elements: usize) -> Vec<f32> {
    let mut values = vec![0.0; elements];
    update::decode(codec, update, &mut values).expect("it was just encoded");
    values
}

/// D and its name.
fn result(codec: Codec, update: &[u8], elements: usize) -> Json {
    let values = if elements == SHORT { floats(&decoded(codec, update, elements)) } else { Json::Null };
    let bytes = if elements == SHORT { hex(update) } else { Json::Null };
    object! {"length": update.len(), "bytes": bytes, "digest": update::digest(update), "decoded": values}
}

/// The payloads in a ring of one chunk. The last position finishes it.
fn partial_sums(codec: Codec, weighted: &[Vec<f32>], update: &[u8]) -> Vec<Json> {
    let mut payload = encoded(codec, &weighted[0]);
    let mut sent = vec![hex(&payload)];
    for own in &weighted[1..] {
        let mut sum = own.clone();
        codec::decode_add(codec, &payload, &mut sum).expect("it was just encoded");
        payload = encoded(codec, &sum);
        sent.push(hex(&payload));
    }
    assert_eq!(payload, update, "the last of them is D");
    sent
}

fn in_a_ring(codec: Codec, weights: &[f32], elements: usize) -> Json {
    let head = digest(9);
    let members = members();
    let order = ring::order(&head, members.iter().map(|member| member.id));
    let place = |id: &NodeId| members.iter().position(|member| member.id == *id).expect("one of them");
    let weighted = |id: &NodeId| {
        let mut vector = members[place(id)].vector(elements);
        update::apply_weight(weights[place(id)], &mut vector);
        vector
    };
    let weighted: Vec<Vec<f32>> = order.iter().map(weighted).collect();
    let views: Vec<&[f32]> = weighted.iter().map(Vec::as_slice).collect();
    let update = update::reduce(codec, &views).expect("vectors of one length");
    let case = object! {"section": RING, "codec": fields::codec(codec), "record": head, "order": order};
    let sums = if elements == SHORT { Json::from(partial_sums(codec, &weighted, &update)) } else { Json::Null };
    case.and(object! {"partial_sums": sums, "update": result(codec, &update, elements)})
}

fn by_owners(codec: Codec, weights: &[f32], elements: usize) -> Json {
    let vectors = members().map(|member| member.vector(elements));
    let views: Vec<&[f32]> = vectors.iter().map(Vec::as_slice).collect();
    let update = owners::reduce(codec, weights, &views).expect("vectors of one length");
    let mut case = object! {"section": OWNERS, "codec": fields::codec(codec)};
    if elements == SHORT {
        let parts: Vec<Vec<u8>> = views.iter().map(|vector| encoded(codec, vector)).collect();
        let weighed: Vec<(f32, &[u8])> = weights.iter().copied().zip(parts.iter().map(Vec::as_slice)).collect();
        let sum = owners::sum(codec, &weighed, elements).expect("they were just encoded");
        case = case.and(object! {"parts": parts.iter().map(|part| hex(part)).collect::<Vec<_>>(), "sum": floats(&sum)});
    }
    case.and(object! {"update": result(codec, &update, elements)})
}

/// One part and one sum as frames.
fn frames(weights: &[f32]) -> Json {
    let set = record::set_digest([(id(0x10), digest(0x90)), (id(0x20), digest(0xa0))].into_iter());
    let key = AttemptKey { lineage: digest(2), seq: 4, attempt: 1, set };
    let scope = FrameScope { run: digest(1), key, codec: Codec::Int8, elements: LONG };
    let vector = members()[0].vector(LONG);
    let chunk = 2;
    let part = encoded(Codec::Int8, &vector[update::chunk_elements(LONG, chunk)]);
    let parts: Vec<(f32, &[u8])> = vec![(weights[0], &part)];
    let sum = owners::sum(Codec::Int8, &parts, SHORT).expect("it was just encoded");
    let frame = |kind: FrameKind, payload: &[u8]| {
        let header = FrameHeader::new(&scope, kind, chunk, payload);
        object! {"kind": kind.number(), "header": hex(&header.encode()), "payload": hex(payload)}
    };
    object! {
        "section": FRAMES, "run": scope.run, "lineage": key.lineage, "seq": key.seq, "set": key.set,
        "attempt": key.attempt, "codec": fields::codec(scope.codec), "elements": LONG, "chunk": chunk,
        "frames": vec![frame(FrameKind::Contrib, &part), frame(FrameKind::Reduced, &encoded(Codec::Int8, &sum))],
    }
}

/// All codecs over vectors of one length.
fn reduced(elements: usize) -> Json {
    let members = members();
    let stated: Vec<Stated> = members.iter().map(|member| member.stated(elements)).collect();
    let weights = update::weights(&stated);
    let contribution = |(member, stated): (&Member, &Stated)| {
        let vector = member.vector(elements);
        let elements = if elements == SHORT { floats(&vector) } else { Json::Null };
        object! {
            "id": member.id, "a": member.a, "b": member.b, "divisor": 1u64 << -member.exponent,
            "tokens": stated.tokens, "merged_tokens": 0u64, "steps": stated.steps, "norm": bits(stated.norm),
            "elements": elements, "payload": update::contribution_digest(&vector),
        }
    };
    let longest = |codec| update::longest_sum(codec, &stated, &weights).map(bits);
    object! {
        "elements": elements,
        "contributions": members.iter().zip(&stated).map(contribution).collect::<Vec<_>>(),
        "weights": object! {
            "section": WEIGHTS, "weights": weights.iter().map(|weight| bits(*weight)).collect::<Vec<_>>(),
            "longest_sum_bf16": longest(Codec::Bf16), "longest_sum_int8": longest(Codec::Int8),
        },
        "rings": [Codec::Bf16, Codec::Int8].map(|codec| in_a_ring(codec, &weights, elements)).to_vec(),
        "owners": CODECS.map(|codec| by_owners(codec, &weights, elements)).to_vec(),
    }
}

/// Weights of stated values alone: of an even number of contributions, and of members whose rounds were cut short.
fn weighed() -> Vec<Json> {
    let stated = |tokens, steps, norm| Stated { tokens, steps, norm };
    let lengths = [1.0, 2.0, 4.0, 64.0].map(|norm| stated(8, 30, norm)).to_vec();
    let late = vec![stated(24, 30, 16.0), stated(8, 10, 1.0), stated(8, 10, 1.0)];
    let cases =
        [("of four lengths the second largest counts", lengths), ("others' lengths are brought up to its steps", late)];
    let case = |(name, stated): (&str, Vec<Stated>)| {
        let weights = update::weights(&stated);
        let contribution = |s: &Stated| object! {"tokens": s.tokens, "steps": s.steps, "norm": bits(s.norm)};
        object! {
            "case": name, "section": WEIGHTS, "contributions": stated.iter().map(contribution).collect::<Vec<_>>(),
            "weights": weights.iter().map(|weight| bits(*weight)).collect::<Vec<_>>(),
        }
    };
    cases.map(case).to_vec()
}

pub fn subject() -> Json {
    let weights = update::weights(&members().map(|member| member.stated(LONG)));
    let about = "Element i of a contribution is ((i a + b) mod 2003 - 1001) / divisor, which is exact in f32. `partial_sums` \
                 are what positions 0 and 1 send and what position 2 finishes. Of the long vectors D is given by its \
                 digest. What top-k keeps is its encoder's choice: parts and D are those of this program, and decode to \
                 what stands here. In `weighed` weights follow from what is stated, and no vectors are given.";
    object! {"about": about, "short": reduced(SHORT), "long": reduced(LONG), "weighed": weighed(), "frames": frames(&weights)}
}
