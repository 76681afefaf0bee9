//! Writes the seed corpora: one example of everything on the wire, from the golden vectors, and some histories.
//!
//! `CORPUS=FOLDER seeds` makes `FOLDER/TARGET/NAME` for each. It is linked like the targets, whose flags need libFuzzer's
//! symbols, and ends before anything is fuzzed.

#![no_main]
// What the macro writes after `init` is not reached.
#![allow(unreachable_code)]

use data_encoding::HEXLOWER;
use std::fs;
use std::path::Path;

const VECTORS: &str = include_str!("../../protocol/vectors/wire.txt");
const CODEC: &str = include_str!("../../protocol/vectors/codec.txt");

fn write(folder: &Path, target: &str, name: &str, bytes: &[u8]) {
    let folder = folder.join(target);
    fs::create_dir_all(&folder).expect("the corpus folder can be made");
    fs::write(folder.join(name), bytes).expect("a seed can be written");
}

fn seeds() {
    let folder = std::env::var_os("CORPUS").expect("usage: CORPUS=FOLDER seeds");
    let folder = Path::new(&folder);
    for line in VECTORS.lines().filter(|line| !line.starts_with('#')) {
        let (name, hex) = line.split_once(' ').expect("name and bytes");
        let target = match name {
            "spec" | "spec-with-pairs" | "spec-with-a-choice" | "spec-from-weights" | "spec-with-task" => "run_spec",
            "task-schema" => "task_schema",
            "amended-record" | "fork-record" => "record",
            "record" | "certificate" | "vote_state" | "candidate" | "ticket" | "revocation" | "amendment" => name,
            name if name.starts_with("envelope-") => "envelope",
            _ => continue,
        };
        let bytes = HEXLOWER.decode(hex.as_bytes()).expect("hex");
        if name == "envelope-evidence" {
            // Behind its envelope's header and tag: two byte strings, each behind its length.
            let fields = bytes.get(40..bytes.len() - 64).expect("an envelope");
            let length = fields.first_chunk::<8>().map_or(0, |length| u64::from_le_bytes(*length) as usize);
            let (first, second) = (&fields[8..8 + length], &fields[16 + length..]);
            let pair = [&(length as u16).to_le_bytes()[..], first, second].concat();
            write(folder, "evidence", name, &pair);
        }
        write(folder, target, name, &bytes);
    }
    for (number, line) in CODEC.lines().filter(|line| line.starts_with("encode ")).enumerate() {
        let words: Vec<&str> = line.split(' ').collect();
        let codec = u8::from(words[1] != "bf16");
        let payload = if words[3] == "-" { Vec::new() } else { HEXLOWER.decode(words[3].as_bytes()).expect("hex") };
        write(folder, "payload", &format!("vector-{number}"), &[&[codec], &payload[..]].concat());
    }
    // An update of two chunks of top-k, and one of bf16.
    let table = "18000000070000000200803f803f0000010000000000000000000000000000000100803f803f01";
    write(folder, "update", "top-k", &[&[11, 3, 0x80], &HEXLOWER.decode(table.as_bytes()).expect("hex")[..]].concat());
    write(folder, "update", "bf16", &[0, 1, 0, 0x80, 0x3f]);
    let header = "57530102020050000101010101010101020202020202020204000000000000000808080808080808010000000300000000\
                  80010000000000030000000500000011c5fd5f329716a0257fc319a00a0512";
    write(folder, "frame", "last", &HEXLOWER.decode(header.as_bytes()).expect("hex"));
    trainers(folder);
    // Histories: any choices will do to begin with.
    for seed in 0..16u64 {
        let mut state = seed;
        let bytes = (0..64 << (seed % 4)).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u8
        });
        write(folder, "engine", &format!("history-{seed}"), &bytes.collect::<Vec<u8>>());
    }
}

/// Trainers' words in the conversation of `docs/bridge.md` and beside it: each frame by itself, and in a connection.
fn trainers(folder: &Path) {
    const HELLO: &str = concat!(
        r#"{"hello": 1, "program": "mine 1", "tensors": 1, "samples": 1000, "weight": 1, "frozen": null, "#,
        r#""evaluates": true, "saves": false}"#
    );
    const TENSORS: &str = r#"{"tensors": [{"name": "w", "shape": [4], "kind": "learned", "dtype": "f32"}]}"#;
    let mixed = concat!(
        r#"{"tensors": [{"name": "m.w", "shape": [64, 2], "kind": "learned", "dtype": "bf16"}, "#,
        r#"{"name": "m.var", "shape": [], "kind": "mean", "dtype": "f64"}]}"#
    );
    let hello_of_two = HELLO.replace("\"tensors\": 1", "\"tensors\": 2");
    let step = r#"{"answer": 4, "loss": 0.5, "samples": 2, "weight": 2}"#;
    let (alive, log) = (r#"{"say": "alive"}"#, r#"{"say": "log", "text": "epoch 3"}"#);
    let failed = r#"{"answer": 1, "error": "CUDA out of memory"}"#;
    let evaluated = r#"{"answer": 5, "loss": null, "weight": 5000}"#;
    let (one, two, three) = (r#"{"answer": 1}"#, r#"{"answer": 2}"#, r#"{"answer": 3}"#);
    let frames = [HELLO, TENSORS, mixed, &hello_of_two, step, alive, log, failed, evaluated, one];
    for (number, frame) in frames.iter().enumerate() {
        write(folder, "trainer_frame", &format!("page-{number}"), frame.as_bytes());
    }
    let told = |terms: [u8; 2], frames: &[&str]| {
        let frames = frames.iter().map(|frame| [&(frame.len() as u32).to_le_bytes()[..], frame.as_bytes()].concat());
        [&terms[..], &frames.collect::<Vec<_>>().concat()].concat()
    };
    let round = [HELLO, TENSORS, one, alive, two, three, log, step, evaluated];
    for terms in 0..4u8 {
        write(folder, "trainer", &format!("round-{terms}"), &told([terms, 5], &round));
    }
    write(folder, "trainer", "failed", &told([2, 2], &[HELLO, TENSORS, failed]));
    write(folder, "trainer", "two-tensors", &told([0, 1], &[&hello_of_two, mixed, one]));
    write(folder, "trainer", "out-of-turn", &told([2, 2], &[HELLO, TENSORS, two]));
}

libfuzzer_sys::fuzz_target!(
    init: {
        seeds();
        std::process::exit(0);
    },
    |_data: &[u8]| {}
);
