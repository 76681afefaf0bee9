//! Checkpoints that cannot be used: of another model, of another format, damaged. Each command that takes one answers
//! with the path of what is wrong, and with the exit code of `docs/user/errors.md`.

use starling_protocol::{Digest, state, wire};
use starling_store::{CheckpointSource, export_checkpoint, open_checkpoint};
use starling_tests::flock::built_binaries;
use starling_tests::process::{Finished, run};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);
const ANOTHER_RELEASE: i32 = 3;
const DAMAGED: i32 = 4;
const MANIFEST: &str = "manifest.json";

/// A folder with a sound checkpoint, and with its text.
struct Bench {
    folder: TempDir,
    sound: PathBuf,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let text = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        std::fs::write(text("text.txt"), "All happy families are alike.\n".repeat(6000)).expect("write");
        let run_toml = "name = \"other\"\n[model]\npreset = \"0.1m\"\nseq_len = 32\n[data]\nsources = [\"text.txt\"]\n\
                        holdout = 0.1\n[inner]\nsteps = 2\nbatch = 2\n[budget]\nrounds = 2\n";
        std::fs::write(text("run.toml"), run_toml).expect("write");
        let (run_file, home, cache) = (text("run.toml"), text("home"), text("cache"));
        let mut arguments = vec!["train", "--no-mdns", "--metrics", "off", "--listen", "/ip4/127.0.0.1/tcp/0"];
        arguments.extend(["--device", "cpu", "--threads", "1"]);
        arguments.extend(["--run", &run_file, "--home", &home, "--cache", &cache]);
        let trained = starling(&arguments);
        assert_eq!(trained.code, Some(0), "{}", trained.stderr);
        let sound = Path::new(&home).join("checkpoints/round-000002");
        Self { folder, sound }
    }

    /// A copy of the checkpoint.
    fn copy(&self, name: &str) -> PathBuf {
        let to = self.folder.path().join(name);
        std::fs::create_dir_all(&to).expect("a folder");
        for entry in std::fs::read_dir(&self.sound).expect("a checkpoint").flatten() {
            std::fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
        }
        to
    }

    /// The answers of all commands to a checkpoint.
    fn answers(&self, checkpoint: &Path) -> [Finished; 4] {
        let text = |name: &str| self.folder.path().join(name).to_string_lossy().into_owned();
        let (from, to, read) = (checkpoint.to_string_lossy(), text("exported"), text("text.txt"));
        [
            starling(&["generate", "--checkpoint", &from, "--tokens", "4"]),
            starling(&["eval", "--checkpoint", &from, &read, "--bytes-max", "4096"]),
            starling(&["checkpoint", "export", &from, "--output", &to]),
            starling(&["checkpoint", "verify", &from]),
        ]
    }

    /// Checks that all commands refuse a checkpoint with this code and these words, and that no export comes about.
    fn refused(&self, checkpoint: &Path, code: i32, words: &[&str]) {
        for answer in self.answers(checkpoint) {
            assert_eq!(answer.code, Some(code), "{answer:?}");
            for word in words {
                assert!(answer.stderr.contains(word), "`{word}` is missing in: {}", answer.stderr);
            }
            assert!(answer.stdout.is_empty() && !answer.stderr.contains("panicked"), "{answer:?}");
        }
        assert!(!self.folder.path().join("exported").exists(), "nothing is exported");
    }
}

fn starling(arguments: &[&str]) -> Finished {
    let program = built_binaries().expect("the folder of this test").join("starling");
    run(&program, arguments, LIMIT).expect("it ends in time")
}

/// Replaces a text of the description, which is there once.
fn rewrite(checkpoint: &Path, from: &str, to: &str) {
    let path = checkpoint.join(MANIFEST);
    let text = std::fs::read_to_string(&path).expect("a description");
    assert_eq!(text.matches(from).count(), 1, "{from} is once in: {text}");
    std::fs::write(path, text.replace(from, to)).expect("write");
}

#[test]
fn a_damaged_byte_in_any_file_is_found_by_every_command() {
    let bench = Bench::new();
    for name in ["model.safetensors", "state.starling"] {
        let checkpoint = bench.copy(name);
        let path = checkpoint.join(name);
        let good = std::fs::read(&path).expect("a file");
        for place in [0, 12, good.len() / 2, good.len() - 1] {
            let mut bytes = good.clone();
            bytes[place] ^= 0x10;
            std::fs::write(&path, bytes).expect("write");
            bench.refused(&checkpoint, DAMAGED, &[&path.to_string_lossy(), "damaged"]);
        }
    }
    let missing = bench.copy("missing");
    std::fs::remove_file(missing.join("model.safetensors")).expect("it is there");
    bench.refused(&missing, DAMAGED, &["model.safetensors", "it is not there"]);
    for (at, (from, to)) in [
        ("\"format\"", "\"farmat\""),
        ("\"round\": 2,", "\"round\": 3,"),
        ("\"model.embed_tokens.weight\"", "\"model.embed_tokenc.weight\""),
        ("\"model.safetensors\"", "\"model.cafetensors\""),
    ]
    .into_iter()
    .enumerate()
    {
        let checkpoint = bench.copy(&format!("description-{at}"));
        rewrite(&checkpoint, from, to);
        bench.refused(&checkpoint, DAMAGED, &[&checkpoint.to_string_lossy(), MANIFEST, "damaged"]);
    }
    for answer in bench.answers(&bench.sound) {
        assert_eq!(answer.code, Some(0), "the checkpoint itself is sound: {answer:?}");
    }
}

#[test]
fn a_checkpoint_of_another_format_or_model_is_left_to_its_release() {
    let bench = Bench::new();
    let opened = open_checkpoint(&bench.sound).expect("it is sound");
    let format = opened.manifest.format;
    for (name, found) in [("older", format - 1), ("newer", format + 1)] {
        let checkpoint = bench.copy(name);
        rewrite(&checkpoint, &format!("\"format\": {format},"), &format!("\"format\": {found},"));
        let said = format!("has format {found}");
        bench.refused(&checkpoint, ANOTHER_RELEASE, &[&checkpoint.to_string_lossy(), &said, "release"]);
    }

    // The same parameters under a schema that this release does not know.
    let other = bench.folder.path().join("other");
    let (schema, spec) = (Digest([9; 32]), wire::encode_spec(&opened.spec));
    let mut record = opened.record.clone();
    record.state_root = state::root(&opened.state.manifest(schema).expect("a sound size"));
    let (tensors, state) = (&opened.manifest.tensors, &opened.state);
    let source = CheckpointSource { record: &record, spec: &spec, schema, tensors, state, extras: &[] };
    export_checkpoint(&other, &source).expect("there is room");
    bench.refused(&other, ANOTHER_RELEASE, &[&other.to_string_lossy(), "another model", "release that trained it"]);
}
