//! Checkpoints of a run without an end: by the node file, when somebody asks, when the node leaves; and the model of a
//! node's folder, whether the node is running or not.

use serde_json::Value;
use starling_tests::flock::{Flock, NodeOptions, built_binaries};
use starling_tests::process::{Finished, Process, run};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(120);

struct Bench {
    folder: TempDir,
    flock: Flock,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let text: String = (0..2000).map(|n| format!("line {n}: some text {}\n", n * 7919 % 1000)).collect();
        std::fs::write(folder.path().join("text.txt"), text).expect("write");
        let run_toml = "name = \"endless\"\n[model]\npreset = \"0.1m\"\nseq_len = 32\n[data]\nsources = [\"text.txt\"]\n\
                        holdout = 0.1\n[inner]\nsteps = 4\nbatch = 2\n";
        let flock = Flock::start(&built_binaries().expect("the folder of this test"), folder.path(), run_toml);
        Self { folder, flock: flock.expect("a bootstrap peer") }
    }

    /// A node that trains alone, with this node file.
    fn node(&self, node_toml: &str) -> Process {
        let config = self.folder.path().join("node.toml");
        std::fs::write(&config, node_toml).expect("write");
        let config = config.to_string_lossy().into_owned();
        let arguments = ["--device", "cpu", "--threads", "1", "--config", &config].map(String::from).to_vec();
        let options = NodeOptions { found: true, arguments, ..NodeOptions::default() };
        self.flock.node("alone", &options).expect("a node")
    }

    fn home(&self) -> String {
        self.flock.home("alone").to_string_lossy().into_owned()
    }

    fn text(&self) -> String {
        self.folder.path().join("text.txt").to_string_lossy().into_owned()
    }

    fn starling(&self, arguments: &[&str]) -> Finished {
        run(&self.flock.bin_dir.join("starling"), arguments, LIMIT).expect("it ends in time")
    }

    /// The same, which must succeed.
    fn succeeds(&self, arguments: &[&str]) -> Finished {
        let finished = self.starling(arguments);
        assert_eq!(finished.code, Some(0), "{arguments:?}: {}", finished.stderr);
        finished
    }

    /// Has a checkpoint written, and returns its path and round.
    fn now(&self) -> (PathBuf, u64) {
        let said = self.succeeds(&["checkpoint", "now", "--home", &self.home()]).stdout;
        let (round, path) = said.strip_prefix("checkpoint of round ").and_then(|s| s.split_once(": ")).expect("both");
        let path = path.trim_end().trim_end_matches(" (it was there already)");
        (path.into(), round.parse().expect("a number"))
    }

    fn checkpoints(&self) -> Vec<String> {
        let entries = std::fs::read_dir(Path::new(&self.home()).join("checkpoints")).expect("a folder").flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

#[test]
fn a_run_without_an_end_has_checkpoints_and_its_model_can_be_used_meanwhile() {
    let bench = Bench::new();
    let home = bench.home();
    let mut node = bench.node("[checkpoint]\nevery = 2\nkeep = 2\n");
    let due = node.wait(LIMIT, "checkpoint", |_| true).expect("one is due");
    assert_eq!(due["round"].as_u64().expect("a round") % 2, 0, "{due}");
    node.wait(LIMIT, "checkpoint", |e| e["round"].as_u64() > due["round"].as_u64()).expect("and another");

    let (path, round) = bench.now();
    assert!(path.join("manifest.json").is_file() && round > 0, "{}", path.display());
    let generated = bench.succeeds(&["generate", "--home", &home, "--prompt", "line ", "--tokens", "8"]);
    assert!(generated.stdout.starts_with("line "), "{}", generated.stdout);
    assert!(generated.stderr.contains("run endless, record "), "{}", generated.stderr);
    let measured = bench.succeeds(&["eval", "--home", &home, &bench.text(), "--json"]);
    let measured: Value = serde_json::from_str(&measured.stdout).expect("it is JSON");
    let nats = |key: &str| measured[key].as_f64().expect("a number");
    assert!(nats("nats_per_token") < 256f64.ln() && nats("perplexity") > 1.0, "{measured}");
    assert!(measured["round"].as_u64() >= Some(round), "{measured}");
    let mark = node.mark();
    node.wait_since(mark, LIMIT, "committed", |_| true).expect("it goes on");

    node.terminate();
    assert!(node.wait_exit(LIMIT).expect("it leaves").success(), "{}", node.last_words());
    let events = node.events();
    let last = |name: &str| events.iter().rev().find(|e| e["event"] == name).expect("an event")["round"].as_u64();
    assert_eq!(last("checkpoint"), last("committed"), "it leaves with a checkpoint of its last record");
    assert!(events.iter().all(|e| e["event"] != "checkpoint_failed"), "{}", node.last_words());
    let names = bench.checkpoints();
    assert!((2..=4).contains(&names.len()), "two, and perhaps the two that were asked for last: {names:?}");

    // The folder of a node at rest has the same model.
    let at_rest = bench.succeeds(&["eval", "--home", &home, &bench.text()]);
    assert!(at_rest.stderr.contains("from the disk of the node"), "{}", at_rest.stderr);
    let newest = Path::new(&home).join("checkpoints").join(names.last().expect("two"));
    let of_checkpoint = bench.succeeds(&["eval", "--checkpoint", &newest.to_string_lossy(), &bench.text()]);
    assert_eq!(at_rest.stdout, of_checkpoint.stdout);
    // A node's folder may also be named in place of a checkpoint's.
    assert_eq!(bench.succeeds(&["eval", "--checkpoint", &home, &bench.text()]).stdout, at_rest.stdout);
    let listed = bench.succeeds(&["checkpoint", "list", "--home", &home]).stdout;
    assert_eq!(listed.lines().count(), names.len(), "{listed}");
}

#[test]
fn a_node_at_rest_has_a_checkpoint_of_its_disk_and_an_export_writes_over_nothing() {
    let bench = Bench::new();
    let home = bench.home();
    let mut node = bench.node("");
    let first = node.wait(LIMIT, "committed", |_| true).expect("it trains");
    node.kill();
    assert!(!Path::new(&home).join("checkpoints").exists(), "none is due");
    let listed = bench.succeeds(&["checkpoint", "list", "--home", &home]).stdout;
    assert!(listed.contains("no checkpoints") && listed.contains("starling checkpoint now"), "{listed}");
    let (path, round) = bench.now();
    assert!(first["round"].as_u64() <= Some(round), "round {round} after {first}");
    assert_eq!(bench.now(), (path.clone(), round), "it is there already");
    bench.succeeds(&["checkpoint", "verify", &path.to_string_lossy()]);

    let to = bench.folder.path().join("exported");
    let to_text = to.to_string_lossy().into_owned();
    bench.succeeds(&["checkpoint", "export", &home, "--output", &to_text]);
    for name in ["config", "generation_config", "tokenizer", "tokenizer_config"] {
        assert!(to.join(format!("{name}.json")).is_file(), "{name}");
    }
    assert!(to.join("model.safetensors").is_file());
    let refused = bench.starling(&["checkpoint", "export", &home, "--output", &to_text]);
    assert!(refused.code == Some(1) && refused.stderr.contains("--force"), "{}", refused.stderr);
    let checkpoint = path.to_string_lossy();
    let refused = bench.starling(&["checkpoint", "export", &home, "--output", &checkpoint, "--force"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("belongs to a checkpoint"), "{}", refused.stderr);
    bench.succeeds(&["checkpoint", "verify", &checkpoint]);
    bench.succeeds(&["checkpoint", "export", &home, "--output", &to_text, "--force"]);
    let beside = std::fs::read_dir(bench.folder.path()).expect("a folder").flatten();
    let hidden: Vec<_> = beside.map(|e| e.file_name()).filter(|n| n.to_string_lossy().starts_with('.')).collect();
    assert!(hidden.is_empty(), "{hidden:?}");

    let none = bench.starling(&["generate", "--checkpoint", &to_text]);
    assert!(none.code == Some(2) && none.stderr.contains("no manifest.json"), "{}", none.stderr);
    let none = bench.starling(&["eval", "--home", &to_text, &bench.text()]);
    assert!(none.code == Some(2) && none.stderr.contains("holds no run"), "{}", none.stderr);
    let both = bench.starling(&["generate", "--home", &home, "--checkpoint", &to_text]);
    assert_eq!(both.code, Some(2), "{}", both.stderr);
}
