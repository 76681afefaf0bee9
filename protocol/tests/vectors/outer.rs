//! Outer steps, schemas, initial parameters and state roots (`docs/protocol/2-records.md` §2.8,
//! `docs/protocol/3-reduction.md` §3.8, §3.9).

use crate::json::{Json, bits, floats, hex, object, wide_bits};
use crate::made::{self, digest};
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::outer::{Rule, schedule};
use starling_protocol::run::{Codec, EngineKind, ModelSpec, OuterSpec, RunSpec, SyncMode, SyncSpec};
use starling_protocol::state::{self, Manifest, State};
use starling_protocol::update::{self, Fragments};
use starling_protocol::{Digest, wire};

const SCHEMA: &str = "docs/protocol/2-records.md §2.8.2";
const ROOT: &str = "docs/protocol/2-records.md §2.8.3";
const MANIFEST: &str = "docs/protocol/2-records.md §2.8.4";
const INITIAL: &str = "docs/protocol/2-records.md §2.8.5";
const ROUNDS: &str = "docs/protocol/3-reduction.md §3.8.1";
const EVERY_STEP: &str = "docs/protocol/3-reduction.md §3.8.2";
const MEANS: &str = "docs/protocol/3-reduction.md §3.8.3";
const STREAMING: &str = "docs/protocol/3-reduction.md §3.9";

/// A model with so few numbers that they fit on a page.
fn model(layers: u32, tied: bool) -> ModelSpec {
    ModelSpec { vocab: 5, d_model: 4, layers, heads: 2, kv_heads: 1, ffn: 3, seq_len: 4, tied, ..made::spec().model }
}

/// Names and shapes in the order of the schema.
fn tensors(model: &ModelSpec) -> Vec<(String, Vec<u64>)> {
    let [vocab, d, heads, kv_heads, ffn] =
        [model.vocab, model.d_model, model.heads, model.kv_heads, model.ffn].map(u64::from);
    let kv = d / heads * kv_heads;
    let layer: [(&str, &[u64]); 9] = [
        ("input_layernorm", &[d]),
        ("self_attn.q_proj", &[d, d]),
        ("self_attn.k_proj", &[kv, d]),
        ("self_attn.v_proj", &[kv, d]),
        ("self_attn.o_proj", &[d, d]),
        ("post_attention_layernorm", &[d]),
        ("mlp.gate_proj", &[ffn, d]),
        ("mlp.up_proj", &[ffn, d]),
        ("mlp.down_proj", &[d, ffn]),
    ];
    let mut tensors = vec![("model.embed_tokens".to_owned(), vec![vocab, d])];
    for number in 0..model.layers {
        tensors.extend(layer.iter().map(|(name, shape)| (format!("model.layers.{number}.{name}"), shape.to_vec())));
    }
    tensors.push(("model.norm".to_owned(), vec![d]));
    tensors.extend((!model.tied).then(|| ("lm_head".to_owned(), vec![vocab, d])));
    tensors.into_iter().map(|(name, shape)| (name + ".weight", shape)).collect()
}

/// The digest of the schema. In a program the crate with the models computes it.
pub fn schema(model: &ModelSpec) -> Digest {
    let tensors = tensors(model);
    let mut bytes = (tensors.len() as u64).to_le_bytes().to_vec();
    for (name, shape) in &tensors {
        bytes.extend((name.len() as u64).to_le_bytes());
        bytes.extend(name.as_bytes());
        bytes.extend((shape.len() as u64).to_le_bytes());
        bytes.extend(shape.iter().flat_map(|dimension| dimension.to_le_bytes()));
    }
    Digest(blake3::derive_key("starling schema v1", &bytes))
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The parameters that a lineage of the run begins with.
pub fn initial(model: &ModelSpec, seed: u64) -> Vec<f32> {
    const G: u64 = 0x9e37_79b9_7f4a_7c15;
    let normal = |i: u64| {
        let r = mix(mix(seed.wrapping_add(G)).wrapping_add((i + 1).wrapping_mul(G)));
        let parts = (0..4).map(|part| (r >> (16 * part) & 0xffff) as i32);
        (parts.sum::<i32>() - 131_070) as f32
    };
    let mut theta: Vec<f32> = Vec::new();
    for (name, shape) in tensors(model) {
        let (first, elements) = (theta.len() as u64, shape.iter().product::<u64>());
        let residual = ["o_proj.weight", "down_proj.weight"].iter().any(|end| name.ends_with(end));
        let shrink = if residual { (2.0 * f64::from(model.layers)).sqrt() } else { 1.0 };
        let scale = (0.02 / shrink / (f64::from(u32::MAX) / 3.0).sqrt()) as f32;
        theta.extend((first..first + elements).map(|i| if shape.len() == 1 { 1.0 } else { normal(i) * scale }));
    }
    assert_eq!(theta.len() as u64, model.parameters());
    theta
}

fn root_of(schema: Digest, state: &State) -> Digest {
    state::root(&state.manifest(schema).expect("vectors of one length"))
}

fn initials() -> Vec<Json> {
    let case = |model: ModelSpec, seed: u64| {
        let tensor = |(name, shape): (String, Vec<u64>)| object! {"name": name, "shape": shape};
        let theta = initial(&model, seed);
        object! {
            "section": INITIAL, "vocab": model.vocab, "d_model": model.d_model, "layers": model.layers,
            "heads": model.heads, "kv_heads": model.kv_heads, "ffn": model.ffn, "tied": model.tied, "seed": seed,
            "schema": object! {
                "section": SCHEMA, "tensors": tensors(&model).into_iter().map(tensor).collect::<Vec<_>>(),
                "digest": schema(&model),
            },
            "parameters": model.parameters(), "theta": floats(&theta),
            "root": root_of(schema(&model), &State::initial(theta, SyncMode::Rounds)),
        }
    };
    vec![case(model(1, true), 42), case(model(2, false), 7)]
}

/// Element i of a vector: exact in f32.
fn made_up(elements: usize, a: u64) -> Vec<f32> {
    (0..elements as u64).map(|i| (((i * a) % 2_003) as f32 - 1_001.0) / 1_024.0).collect()
}

fn roots() -> Vec<Json> {
    let case = |elements: usize, mode: SyncMode| {
        let factors = [7_919, 104_729, 1_299_709];
        let mut vectors = factors[..mode.vectors() as usize].iter().map(|a| made_up(elements, *a));
        let state = State { theta: vectors.next().expect("theta is one"), moments: vectors.collect() };
        let manifest = state.manifest(digest(6)).expect("vectors of one length");
        object! {
            "section": ROOT, "schema": digest(6), "parameters": elements,
            "a": factors[..mode.vectors() as usize].to_vec(), "leaves": manifest.chunks.clone(),
            "root": state::root(&manifest),
        }
    };
    vec![
        case(10, SyncMode::Rounds),
        case(262_144, SyncMode::Rounds),
        case(600_000, SyncMode::Rounds),
        case(600_000, SyncMode::EveryStep),
    ]
}

fn manifest() -> Json {
    let manifest = Manifest::of_chunks(digest(6), 262_145, 2, (1..=4).map(digest).collect()).expect("four chunks");
    object! {
        "section": MANIFEST, "schema": manifest.schema, "parameters": manifest.elements, "vectors": manifest.vectors,
        "chunks": manifest.chunks.clone(), "bytes": hex(&manifest.encode()), "root": state::root(&manifest),
    }
}

fn moments(state: &State) -> Json {
    Json::from(state.moments.iter().map(|moment| floats(moment)).collect::<Vec<_>>())
}

/// Two outer steps of a run, one after another, from the initial parameters.
fn steps(section: &str, spec: &RunSpec, contributors: &[usize]) -> Json {
    steps_from(section, spec, (schema(&spec.model), initial(&spec.model, spec.seed)), contributors)
}

/// The same with an external task, whose last elements are of kind mean, from parameters of which `a` is 7919.
fn means() -> Json {
    let mut spec = made::spec_with_task();
    spec.sync.codec = Codec::Bf16;
    let schema = spec.task.as_ref().map(|task| task.schema).expect("it has a task");
    let elements = usize::try_from(spec.parameters()).expect("a few");
    steps_from(MEANS, &spec, (schema, made_up(elements, 7_919)), &[1, 4])
}

fn steps_from(section: &str, spec: &RunSpec, (schema, theta): (Digest, Vec<f32>), contributors: &[usize]) -> Json {
    let mut state = State::initial(theta, spec.sync.mode);
    let mut parent = made::record();
    let steps_a_round = u64::from(spec.inner.steps);
    (parent.round, parent.tokens, parent.steps) = (3, 184_320, 3 * steps_a_round);
    let mut steps = Vec::new();
    let (theta, root) = (floats(&state.theta), root_of(schema, &state));
    for (number, contributors) in contributors.iter().enumerate() {
        // The second one is long enough to be clipped.
        let divisor = (8 >> number) as f32;
        let vector: Vec<f32> = made_up(state.elements(), 7_919 + number as u64).iter().map(|x| x / divisor).collect();
        let update = update::encode(spec.sync.codec, &vector).expect("finite");
        let mut decoded = vec![0.0; state.elements()];
        update::decode(spec.sync.codec, &update, &mut decoded).expect("just encoded");
        let rule = Rule::of(spec, &parent, *contributors);
        assert!(rule.apply(&mut state, &decoded), "the state stays finite");
        let next = parent.round + 1;
        let constants = match rule {
            Rule::Nesterov { lr, momentum, .. } => object! {"lr": bits(lr), "momentum": bits(momentum)},
            Rule::AdamW(_) => object! {
                "lr": wide_bits(schedule::rate(&spec.inner, &spec.budget, next, 0, &parent.done())),
                "scale": bits(rule.scale(decoded.chunks(CHUNK_ELEMENTS).map(
                    starling_protocol::outer::adamw::squares).sum())),
            },
        };
        let given = object! {
            "round": next, "tokens_of_parent": parent.tokens, "steps_of_parent": parent.steps,
            "contributors": *contributors, "update": hex(&update),
        };
        let made = object! {
            "theta": floats(&state.theta), "moments": moments(&state), "root": root_of(schema, &state),
        };
        steps.push(given.and(constants).and(made));
        (parent.round, parent.tokens) = (next, parent.tokens + 30_720);
        parent.steps += steps_a_round;
    }
    object! {
        "section": section, "spec": hex(&wire::encode_spec(spec)), "schema": schema, "theta": theta, "root": root,
        "steps": steps,
    }
}

/// The COMMITs of a run whose fragments take turns: each steps one fragment.
fn fragments() -> Json {
    const ELEMENTS: usize = 2 * CHUNK_ELEMENTS + 100;
    let turns = Fragments::new(2, ELEMENTS, CHUNK_ELEMENTS);
    let mut state = State::initial(made_up(ELEMENTS, 7_919), SyncMode::Rounds);
    let rule = Rule::Nesterov { lr: 0.7, momentum: 0.9, learned: usize::MAX };
    let mut steps = Vec::new();
    for round in 1..=3u64 {
        let range = turns.of_round(round);
        let vector = made_up(range.len(), 104_729 + round);
        let update = update::encode(Codec::Int8, &vector).expect("finite");
        let mut decoded = vec![0.0; range.len()];
        update::decode(Codec::Int8, &update, &mut decoded).expect("just encoded");
        assert!(rule.apply_at(&mut state, range.start, &decoded), "the state stays finite");
        steps.push(object! {
            "round": round, "elements": vec![range.start, range.end], "a": 104_729 + round,
            "update_digest": update::digest(&update), "root": root_of(digest(6), &state),
        });
    }
    object! {
        "section": STREAMING, "fragments": 2u8, "parameters": ELEMENTS, "a": 7_919u64, "schema": digest(6),
        "codec": "int8", "lr": bits(0.7), "momentum": bits(0.9), "steps": steps,
    }
}

pub fn subject() -> Json {
    let mut rounds = made::spec();
    (rounds.model, rounds.sync.codec) = (model(1, true), Codec::Bf16);
    let mut every_step = rounds.clone();
    every_step.sync = SyncSpec::whole(SyncMode::EveryStep, Codec::Bf16, EngineKind::Owners);
    (every_step.outer, every_step.inner.steps) = (OuterSpec::unused(), 1);
    assert_eq!((rounds.validate(), every_step.validate()), (Ok(()), Ok(())));
    let about = "Where `a` is given, element i of a vector is ((i a) mod 2003 - 1001) / 1024, which is exact in f32; with \
                 several, one for theta and for each moment. Floats of vectors are little endian; single ones are given \
                 by their bits.";
    object! {
        "about": about,
        "initial": initials(), "roots": roots(), "manifest": manifest(),
        "rounds": steps(ROUNDS, &rounds, &[1, 4]), "every_step": steps(EVERY_STEP, &every_step, &[3, 3]),
        "means": means(), "streaming": fragments(),
    }
}
