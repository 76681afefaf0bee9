//! Checks exports: Python's `safetensors` package reads the weights of `starling checkpoint export`, a program with NumPy
//! alone computes the same logits from the exported files, and the follower in Python verifies the files of `starling
//! chain export`.

use serde_json::Value;
use starling_protocol::{update, wire};
use starling_tests::flock::{Flock, NodeOptions, built_binaries};
use starling_tests::process::{Process, run};
use starling_tests::skips::skipped;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(120);
const ROUNDS: u64 = 3;

/// Name, shape, and the sum of all values' bits of each tensor, by name.
const READ: &str = r#"
import json, sys
from safetensors.numpy import load_file
tensors = load_file(sys.argv[1])
rows = [[n, list(t.shape), str(t.dtype), int(t.view("<u4").astype("u8").sum())] for n, t in sorted(tensors.items())]
print(json.dumps(rows))
"#;

/// The same rows from the file's own bytes: a length, a header in JSON, the values.
fn rows(file: &Path) -> Vec<Value> {
    let bytes = std::fs::read(file).expect("the file");
    let (length, rest) = bytes.split_at(8);
    let length = u64::from_le_bytes(length.try_into().expect("eight bytes")) as usize;
    let (header, values) = rest.split_at(length);
    let header: serde_json::Map<String, Value> = serde_json::from_slice(header).expect("a header");
    let tensors = header.iter().filter(|(name, _)| *name != "__metadata__");
    let row = |(name, tensor): (&String, &Value)| {
        let at = |n: usize| tensor["data_offsets"][n].as_u64().expect("an offset") as usize;
        let words = values[at(0)..at(1)].chunks_exact(4);
        let sum: u64 = words.map(|word| u64::from(u32::from_le_bytes(word.try_into().expect("four bytes")))).sum();
        serde_json::json!([name, tensor["shape"], "float32", sum])
    };
    let mut rows: Vec<Value> = tensors.map(row).collect();
    rows.sort_by_key(|row| row[0].as_str().map(str::to_owned));
    rows
}

/// A Python that has these packages, if there is one.
fn python(packages: &str) -> Option<PathBuf> {
    let python = PathBuf::from(std::env::var("STARLING_PYTHON").unwrap_or_else(|_| "python3".into()));
    let has = run(&python, &["-c", &format!("import {packages}")], LIMIT);
    if has.is_ok_and(|said| said.code == Some(0)) {
        return Some(python);
    }
    skipped(format_args!("exports are not read in Python: {} lacks {packages} (STARLING_PYTHON)", python.display()));
    None
}

/// A node that trains alone.
fn alone() -> (TempDir, Flock, Process) {
    alone_with("", "steps = 2")
}

/// The same with these keys of the model and the inner optimizer.
fn alone_with(model: &str, inner: &str) -> (TempDir, Flock, Process) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text: String = (0..2000).map(|n| format!("line {n}: some text {}\n", n * 7919 % 1000)).collect();
    std::fs::write(folder.path().join("text.txt"), text).expect("write");
    let run_toml = format!(
        "name = \"export\"\n[model]\npreset = \"0.1m\"\nseq_len = 32\n{model}\n[data]\nsources = [\"text.txt\"]\n\
         holdout = 0.1\n[inner]\n{inner}\nbatch = 2\n[budget]\nrounds = {ROUNDS}\n"
    );
    let flock = Flock::start(&built_binaries().expect("the folder of this test"), folder.path(), &run_toml);
    let flock = flock.expect("a bootstrap peer");
    let arguments = ["--device", "cpu", "--threads", "1"].map(String::from).to_vec();
    let options = NodeOptions { found: true, arguments, ..NodeOptions::default() };
    let node = flock.node("alone", &options).expect("a node");
    (folder, flock, node)
}

#[test]
fn python_reads_an_exported_checkpoint() {
    let Some(python) = python("numpy, safetensors.numpy") else { return };
    let (folder, flock, mut node) = alone();
    let checkpoint = node.wait(LIMIT, "checkpoint", |e| e["round"] == ROUNDS).expect("a final checkpoint");
    let from = checkpoint["path"].as_str().expect("a path");
    let to = folder.path().join("model.safetensors");
    let to_text = to.to_string_lossy();
    let exported = run(&flock.bin_dir.join("starling"), &["checkpoint", "export", from, "-o", &to_text], LIMIT);
    let exported = exported.expect("it ends");
    assert_eq!(exported.code, Some(0), "{}", exported.stderr);
    let read = run(&python, &["-c", READ, &to_text], LIMIT).expect("it ends");
    assert_eq!(read.code, Some(0), "{}", read.stderr);
    let theirs: Vec<Value> = serde_json::from_str(&read.stdout).expect("rows");
    assert_eq!(theirs, rows(&to));
    // Two blocks of nine tensors, the embedding and the last norm.
    assert_eq!(theirs.len(), 20, "{theirs:?}");
    assert_eq!(theirs[0][0], "model.embed_tokens.weight");
}

/// Trained for long enough, at a rate high enough, that weights are large and the rotary layout makes a difference.
#[test]
fn numpy_computes_the_same_logits_from_an_exported_model() {
    let Some(python) = python("numpy") else { return };
    let (folder, flock, mut node) = alone_with("kv_heads = 2\ntied = false", "steps = 40\nlr = 1e-2\nwarmup_steps = 1");
    let checkpoint = node.wait(LIMIT, "checkpoint", |e| e["round"] == ROUNDS).expect("a final checkpoint");
    let from = checkpoint["path"].as_str().expect("a path");
    let starling = flock.bin_dir.join("starling");
    let exported = folder.path().join("exported");
    let exported = exported.to_string_lossy();
    let text = folder.path().join("text.txt");
    let text = text.to_string_lossy();
    let ended = run(&starling, &["checkpoint", "export", from, "-o", &exported], LIMIT).expect("it ends");
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let said = run(&starling, &["eval", "--checkpoint", from, &text, "--logits", "24"], LIMIT).expect("it ends");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let logits = folder.path().join("logits.json");
    std::fs::write(&logits, said.stdout).expect("write");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/reference/llama.py");
    let compared = run(&python, &["-B", script, &exported, &logits.to_string_lossy()], LIMIT).expect("it ends");
    assert_eq!(compared.code, Some(0), "{}{}", compared.stdout, compared.stderr);
    assert!(compared.stdout.starts_with("24 tokens, 256 logits each"), "{}", compared.stdout);
}

#[test]
fn python_follows_an_exported_chain() {
    let (folder, flock, mut node) = alone();
    let last = node.wait(LIMIT, "committed", |e| e["round"] == ROUNDS).expect("a last commit");
    assert!(node.wait_exit(LIMIT).expect("it ends").success());
    let (home, to) = (flock.home("alone"), folder.path().join("recording"));
    let (home, recording) = (home.to_string_lossy(), to.to_string_lossy());
    let arguments = ["chain", "export", "--home", &home, "-o", &recording];
    let exported = run(&flock.bin_dir.join("starling"), &arguments, LIMIT).expect("it ends");
    assert_eq!(exported.code, Some(0), "{}", exported.stderr);
    let bytes = |name: String| std::fs::read(to.join(&name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let spec = wire::decode_spec(&bytes("spec".into())).expect("a specification");
    for seq in 0..=ROUNDS {
        let record = wire::decode_record(&bytes(format!("{seq:010}.record"))).expect("a record");
        assert_eq!((record.seq, record.run), (seq, spec.digest()));
        if seq > 0 {
            let certificate = wire::decode_certificate(&bytes(format!("{seq:010}.certificate"))).expect("votes");
            assert_eq!(certificate.record, record.digest());
            assert_eq!(update::digest(&bytes(format!("{seq:010}.update"))), record.update);
        }
        assert_eq!(last["state_root"] == record.state_root.to_string(), seq == ROUNDS);
    }
    let Some(python) = python("blake3, cryptography, numpy") else { return };
    let follower = concat!(env!("CARGO_MANIFEST_DIR"), "/follower");
    let arguments = ["-B", follower, "--flips", "1", &recording];
    let followed = run(&python, &arguments, LIMIT).expect("it ends");
    assert_eq!(followed.code, Some(0), "{}{}", followed.stdout, followed.stderr);
    let roots = format!("{} state roots", ROUNDS + 1);
    assert!(followed.stdout.contains(&roots), "{}", followed.stdout);
    assert!(!followed.stdout.contains("MISSED"), "{}", followed.stdout);
}
