//! Mistakes of a user: each gets one clear message and its exit code, within seconds, and nothing is lost.

use starling_tests::flock::{Flock, NodeOptions, built_binaries};
use starling_tests::process::{Finished, run};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// "Within seconds", with a margin for a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

struct Bench {
    folder: TempDir,
}

impl Bench {
    fn new() -> Self {
        let bench = Self { folder: tempfile::tempdir().expect("a temporary folder") };
        bench.write("text.txt", &"All happy families are alike.\n".repeat(6000));
        bench.write("run.toml", &run_toml(""));
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("write");
    }

    fn starling(&self, arguments: &[&str]) -> Finished {
        run(&binary("starling"), arguments, LIMIT).expect("it ends in time")
    }

    /// `starling train` with the settings that every test needs.
    fn train(&self, extra: &[&str]) -> Finished {
        let (home, cache, file) = (self.text("home"), self.text("cache"), self.text("run.toml"));
        let mut arguments = vec!["train", "--no-mdns"];
        let defaults = [
            ("--home", home.as_str()),
            ("--cache", &cache),
            ("--metrics", "off"),
            ("--listen", "/ip4/127.0.0.1/tcp/0"),
        ];
        for (flag, value) in defaults {
            if !extra.contains(&flag) {
                arguments.extend([flag, value]);
            }
        }
        if !extra.contains(&"--run") && !extra.contains(&"--join") {
            arguments.extend(["--run", &file]);
        }
        arguments.extend(extra);
        self.starling(&arguments)
    }

    /// Checks that the chain of `home` is exported once to a folder, and only to a folder that can be made.
    fn exports(&self) {
        let (home, to) = (self.text("home"), self.text("recording"));
        let export = |home: &str, to: &str| self.starling(&["chain", "export", "--home", home, "--output", to]);
        refused(&export(&self.text("flok"), &to), 2, &["flok", "holds no run", "starling train"]);
        refused(&export(&home, &self.text("missing/recording")), 1, &["missing", "check the path"]);
        let exported = export(&home, &to);
        assert_eq!(exported.code, Some(0), "{}", exported.stderr);
        assert!(exported.stdout.contains("records 0 to 2"), "{}", exported.stdout);
        refused(&export(&home, &to), 1, &["recording exists already", "remove it"]);
        refused(&self.starling(&["chain", "export", "--home", &home]), 2, &["--output"]);
        refused(&self.starling(&["chain", "exprot"]), 2, &["exprot", "export"]);
        corrupt(&self.path("home/head"));
        refused(&export(&home, &self.text("other")), 4, &["head", "damaged"]);
        assert!(!self.path("other").exists());
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_string_lossy().into_owned()
    }
}

fn run_toml(extra: &str) -> String {
    format!(
        "name = \"bad\"\n[model]\npreset = \"0.1m\"\nseq_len = 32\n[data]\nsources = [\"text.txt\"]\nholdout = 0.1\n\
         [inner]\nsteps = 2\nbatch = 2\n[budget]\nrounds = 2\n{extra}"
    )
}

fn binary(name: &str) -> PathBuf {
    built_binaries().expect("the folder of this test").join(name)
}

/// Checks for one message on standard error with all of `words`, that exit code, and no panic.
fn refused(finished: &Finished, code: i32, words: &[&str]) {
    assert_eq!(finished.code, Some(code), "exit code; it said: {}", finished.stderr);
    for word in words {
        assert!(finished.stderr.contains(word), "`{word}` is missing in: {}", finished.stderr);
    }
    assert!(!finished.stderr.contains("panicked"), "{}", finished.stderr);
}

#[test]
fn flags_and_files_that_do_not_parse() {
    let bench = Bench::new();
    refused(&bench.starling(&["train", "--bootstap", "x"]), 2, &["--bootstap", "--bootstrap"]);
    refused(&bench.starling(&["train"]), 2, &["--run"]);
    refused(&bench.train(&["--run", "/nonexistent/run.toml"]), 2, &["/nonexistent/run.toml"]);
    refused(&bench.train(&["--device", "tpu"]), 2, &["tpu", "cpu"]);
    refused(&bench.train(&["--listen", "localhost:80"]), 2, &["localhost:80", "/ip4/0.0.0.0/tcp/80"]);
    refused(&bench.starling(&["train", "--home", &bench.text("nowhere")]), 2, &["nowhere", "holds no run", "--run"]);
    refused(&bench.train(&["--join", "starling1nonsense"]), 2, &["--join", "older release", "a new one"]);
    refused(&bench.train(&["--join", "starling2nonsense"]), 2, &["--join", "damaged"]);
    refused(&bench.train(&["--join", "starling2"]), 2, &["--join", "cut"]);
    refused(&bench.train(&["--join", "ticket.txt"]), 2, &["--join", "no file", "no ticket"]);
    refused(&bench.train(&["--bootstrap", "/ip4/127.0.0.1/tcp/1"]), 2, &["/ip4/127.0.0.1/tcp/1", "p2p"]);

    bench.write("typo.toml", &run_toml("").replace("steps = 2", "stesp = 2"));
    refused(&bench.train(&["--run", &bench.text("typo.toml")]), 2, &["stesp", "steps"]);
    bench.write("node.toml", "lisen = []\n");
    refused(&bench.train(&["--config", &bench.text("node.toml")]), 2, &["lisen", "listen"]);
    bench.write("nameless.toml", &run_toml("").replace("name = \"bad\"", ""));
    let words = ["nameless.toml", "`name` is missing", "my-run"];
    refused(&bench.train(&["--run", &bench.text("nameless.toml")]), 2, &words);
    bench.write("type.toml", &run_toml("").replace("batch = 2", "batch = \"two\""));
    refused(&bench.train(&["--run", &bench.text("type.toml")]), 2, &["type.toml", "inner.batch", "whole number"]);
    bench.write("preset.toml", &run_toml("").replace("0.1m", "0.2m"));
    refused(&bench.train(&["--run", &bench.text("preset.toml")]), 2, &["0.2m", "125m"]);
    bench.write("heads.toml", &run_toml("").replace("seq_len = 32", "seq_len = 32\nheads = 3"));
    refused(&bench.train(&["--run", &bench.text("heads.toml")]), 2, &["heads"]);
}

/// The settings in force are shown only if a start takes them.
#[test]
fn settings_are_refused_in_the_same_words_whether_they_are_shown_or_used() {
    let bench = Bench::new();
    let last = |finished: &Finished| finished.stderr.lines().last().unwrap_or_default().to_owned();
    let patience = ("patience.toml", run_toml("[join]\npatience_s = 9999\n"), "join.patience_s = 9999");
    let manifest = ("manifest.toml", run_toml("").replace("holdout", "manifest = \"none\"\nholdout"), "data.manifest");
    for (name, text, word) in [patience, manifest] {
        bench.write(name, &text);
        let file = bench.text(name);
        let (shown, used) = (bench.train(&["--run", &file, "--print-config"]), bench.train(&["--run", &file]));
        refused(&shown, 2, &[word]);
        refused(&used, 2, &[word]);
        assert_eq!((last(&shown), shown.stdout.as_str()), (last(&used), ""));
    }
    let shown = bench.train(&["--print-config"]);
    assert_eq!(shown.code, Some(0), "{}", shown.stderr);
    assert!(shown.stdout.contains("patience_s = 120"), "{}", shown.stdout);
}

/// A file may hold what a terminal would obey, written out or raw.
#[test]
fn names_and_values_that_would_colour_the_terminal() {
    let bench = Bench::new();
    let files = [
        ("name = \"gpu\\u001b[31mbox\"\n", "letters and digits"),
        ("name = \"gpu\\u009b2Jbox\"\n", "letters and digits"),
        ("name = \"gpu\u{1b}[31mbox\"\n", "line 1"),
        ("\"\\u001b]0;title\\u0007\" = 1\n", "unknown key"),
        ("[checkpoint]\nevery = \"\\u001b[2J\"\n", "checkpoint.every"),
        ("[checkpoint]\nevery = \"\\u202eh 2\"\n", "checkpoint.every"),
    ];
    for (text, word) in files {
        bench.write("node.toml", text);
        let said = bench.train(&["--config", &bench.text("node.toml")]);
        refused(&said, 2, &["node.toml", word]);
        let obeyed = |c: char| c.is_control() && c != '\n' || ('\u{202a}'..='\u{202e}').contains(&c);
        assert!(!said.stderr.contains(obeyed) && said.stdout.is_empty(), "{text:?}: {said:?}");
    }
}

/// A bound that the run does not fit into is refused before anything is written; one that it fits into is in force.
#[test]
fn a_bound_of_the_folder_that_is_too_small() {
    let bench = Bench::new();
    bench.write("small.toml", "[store]\nmax_gib = 0.001\n");
    bench.write("fits.toml", "[store]\nmax_gib = 0.5\n");
    let small = bench.train(&["--config", &bench.text("small.toml")]);
    refused(&small, 2, &["store.max_gib = 0.001", "1073741 bytes", &bench.text("home"), "set store.max_gib to"]);
    assert!(!bench.path("home").exists(), "nothing was written");
    let shown = bench.train(&["--config", &bench.text("fits.toml"), "--print-config"]);
    assert_eq!(shown.code, Some(0), "{}", shown.stderr);
    assert!(shown.stdout.contains("[store]\nmax_gib = 0.5"), "{}", shown.stdout);
    let shown = bench.train(&["--print-config"]);
    assert!(shown.stdout.contains("max_gib = 0.0"), "{}", shown.stdout);
    let finished = bench.train(&["--config", &bench.text("fits.toml"), "--device", "cpu", "--threads", "1"]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
}

#[test]
fn text_that_is_not_there() {
    let bench = Bench::new();
    refused(&bench.train(&["--data", "/nonexistent/corpus"]), 2, &["/nonexistent/corpus"]);
    bench.write("empty.txt", "");
    refused(&bench.train(&["--data", &bench.text("empty.txt")]), 2, &["empty"]);
    bench.write("bad.jsonl", "{\"text\": \"fine\"}\n{nonsense\n");
    refused(&bench.train(&["--data", &bench.text("bad.jsonl")]), 2, &["bad.jsonl", "2"]);
    bench.write("tokenizer.toml", &run_toml("").replace("holdout", "tokenizer = \"none.json\"\nholdout"));
    refused(&bench.train(&["--run", &bench.text("tokenizer.toml")]), 2, &["none.json", "data.tokenizer"]);
}

#[test]
fn a_tokenizer_that_does_not_fit_the_model() {
    let bench = Bench::new();
    let small = run_toml("").replace("seq_len = 32", "seq_len = 32\nvocab = 100");
    bench.write("small.toml", &small);
    refused(&bench.train(&["--run", &bench.text("small.toml")]), 2, &["256", "100", "vocab"]);
}

#[test]
fn ports_and_devices_that_are_not_to_be_had() {
    let bench = Bench::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("its address").port().to_string();
    refused(&bench.train(&["--listen", &format!("/ip4/127.0.0.1/tcp/{port}")]), 1, &[&port]);
    refused(&bench.train(&["--metrics", &format!("127.0.0.1:{port}")]), 1, &[&port, "metrics"]);
    refused(&bench.train(&["--device", "cuda"]), 2, &["cuda"]);
    refused(&bench.train(&["--device", "wgpu:77"]), 2, &["77"]);
    let bootstrap = binary("starling-bootstrap");
    let key = bench.text("bootstrap.key");
    let listen = format!("/ip4/127.0.0.1/tcp/{port}");
    let finished = run(&bootstrap, &["--no-mdns", "--key", &key, "--listen", &listen], LIMIT).expect("it ends");
    refused(&finished, 1, &[&port]);
    refused(&run(&bootstrap, &["--lsiten", "x"], LIMIT).expect("it ends"), 2, &["--lsiten"]);
}

#[test]
fn a_folder_keeps_to_its_run_and_its_process() {
    let bench = Bench::new();
    let finished = bench.train(&["--device", "cpu", "--threads", "1"]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert!(finished.stdout.contains("checkpoint"), "{}", finished.stdout);
    let checkpoint = bench.path("home/checkpoints/round-000002");

    // With another run in the same folder the message names the differing key, and the folder is as before.
    bench.write("other.toml", &run_toml("").replace("batch = 2", "batch = 4"));
    refused(&bench.train(&["--run", &bench.text("other.toml")]), 3, &["inner.batch", "--home", "another name"]);
    let verified = bench.starling(&["checkpoint", "verify", &checkpoint.to_string_lossy()]);
    assert_eq!(verified.code, Some(0), "{}", verified.stderr);

    corrupt(&checkpoint.join("model.safetensors"));
    refused(&bench.starling(&["checkpoint", "verify", &checkpoint.to_string_lossy()]), 4, &["model.safetensors"]);
    refused(&bench.starling(&["generate", "--checkpoint", &checkpoint.to_string_lossy()]), 4, &["model.safetensors"]);
    refused(&bench.starling(&["status", "--home", &bench.text("home")]), 1, &["no node is running"]);
    bench.exports();
}

#[test]
fn a_second_process_in_one_folder_is_refused() {
    let bench = Bench::new();
    bench.write("long.toml", &run_toml("").replace("rounds = 2", "rounds = 1000000"));
    let text = std::fs::read_to_string(bench.path("long.toml")).expect("just written");
    std::fs::create_dir_all(bench.path("flock")).expect("a folder");
    std::fs::copy(bench.path("text.txt"), bench.path("flock/text.txt")).expect("a copy");
    let flock = Flock::start(&built_binaries().expect("binaries"), &bench.path("flock"), &text).expect("bootstrap");
    let options = NodeOptions {
        found: true,
        arguments: ["--device", "cpu", "--threads", "1"].map(String::from).to_vec(),
        ..NodeOptions::default()
    };
    let mut node = flock.node("first", &options).expect("a node");
    node.wait(LIMIT, "committed", |_| true).expect("it trains");
    let home = flock.home("first").to_string_lossy().into_owned();
    let long = bench.text("flock/run.toml");
    refused(&bench.train(&["--run", &long, "--home", &home]), 6, &[&home, &node.id().to_string()]);
    let to = bench.text("recording");
    let export = bench.starling(&["chain", "export", "--home", &home, "--output", &to]);
    refused(&export, 6, &[&home, &node.id().to_string(), "stop"]);
    assert!(!bench.path("recording").exists());

    // The first node was not disturbed.
    let mark = node.mark();
    node.wait_since(mark, LIMIT, "committed", |_| true).expect("it goes on");
    node.terminate();
    let status = node.wait_exit(Duration::from_secs(10)).expect("it finishes within 10 s");
    assert!(status.success(), "{status}");
}

fn corrupt(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    std::fs::write(path, bytes).expect("write");
}
