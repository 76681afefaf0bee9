//! `starling train --from`: a new run begins with the state of a trained model, and those who join it need no copy of
//! the model.

use serde_json::Value;
use starling_tests::flock::{Flock, NodeOptions, among_friends, built_binaries};
use starling_tests::process::{Finished, run};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(120);
const MODEL: &str = "[model]\npreset = \"0.1m\"\nseq_len = 32\n";
const TABLES: &str = "[data]\nsources = [\"text.txt\"]\nholdout = 0.1\n[inner]\nsteps = 4\nbatch = 2\n";

/// A run that has ended.
struct Bench {
    folder: TempDir,
    flock: Flock,
    /// The checkpoint of its last record, and the loss of that state on the held-out text.
    checkpoint: PathBuf,
    loss: f64,
}

impl Bench {
    fn new(rounds: u64) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let text: String = (0..2000).map(|n| format!("line {n}: some text {}\n", n * 7919 % 1000)).collect();
        std::fs::write(folder.path().join("text.txt"), text).expect("write");
        let run_toml = format!("name = \"first\"\n{MODEL}{TABLES}[budget]\nrounds = {rounds}\n");
        let flock = Flock::start(&built_binaries().expect("the folder of this test"), folder.path(), &run_toml);
        let flock = flock.expect("a bootstrap peer");
        let mut node = flock.node("first", &NodeOptions::small(true)).expect("a node");
        assert!(node.wait_exit(LIMIT).expect("its budget is spent").success(), "{}", node.last_words());
        let events = node.events();
        let last = |name: &str| events.iter().rev().find(|e| e["event"] == name).expect("an event").clone();
        let checkpoint = PathBuf::from(last("checkpoint")["path"].as_str().expect("a path"));
        let loss = last("validated")["loss"].as_f64().expect("a loss");
        Self { folder, flock, checkpoint, loss }
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, among_friends(text)).expect("write");
        path
    }

    /// Runs a node of this run file alone to its end.
    fn train(&self, run_file: &Path, home: &Path, from: &[&Path]) -> Finished {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let mut arguments: Vec<String> =
            ["train", "--no-mdns", "--metrics", "off", "--device", "cpu", "--threads", "1"].map(String::from).to_vec();
        arguments.extend(["--run".into(), text(run_file), "--home".into(), text(home)]);
        arguments.extend(["--cache".into(), text(&self.flock.shared_cache())]);
        arguments.extend(from.iter().copied().flat_map(|from| ["--from".into(), text(from)]));
        run(&self.flock.bin_dir.join("starling"), &arguments, LIMIT).expect("it ends in time")
    }
}

#[track_caller]
fn says(finished: &Finished, code: i32, words: &[&str]) {
    assert_eq!(finished.code, Some(code), "{}", finished.stderr);
    words.iter().for_each(|words| assert!(finished.stderr.contains(words), "`{words}`: {}", finished.stderr));
}

fn root_of(event: &Value) -> (Value, Value) {
    (event["record"].clone(), event["state_root"].clone())
}

#[test]
fn a_run_from_a_checkpoint_begins_with_its_loss_and_joiners_end_on_one_state() {
    let bench = Bench::new(6);
    let (flock, home) = (&bench.flock, bench.flock.home("founder"));
    // Without [model] the run has the checkpoint's.
    let second = bench.file("second.toml", &format!("name = \"second\"\n{TABLES}"));
    let mut options = NodeOptions { run_file: Some(second.clone()), ..NodeOptions::small(true) };
    options.arguments.extend(["--from".into(), bench.checkpoint.to_string_lossy().into_owned()]);
    let mut founder = flock.node("founder", &options).expect("a node");
    let begun = founder.wait(LIMIT, "validated", |e| e["round"] == 1).expect("it measures the genesis");
    let loss = begun["loss"].as_f64().expect("a loss");
    assert!(loss < 256f64.ln() && (loss - bench.loss).abs() < 1e-6, "{loss}, and {} at the end before", bench.loss);

    let ticket = flock.invite("founder").expect("a ticket");
    let mut joiner = flock.node("joiner", &NodeOptions { ticket: Some(ticket), ..NodeOptions::small(false) });
    let joiner = joiner.as_mut().expect("a node");
    let at = joiner.wait(LIMIT, "committed", |e| e["voters"] == 2).expect("it trains along");
    let same = founder.wait(LIMIT, "committed", |e| e["round"] == at["round"]).expect("so does the founder");
    assert_eq!(root_of(&at), root_of(&same));

    founder.kill();
    let without = bench.train(&second, &home, &[]);
    says(&without, 3, &["another run", "model.beginning: none here"]);
    // The folder alone is enough, and the run is the same.
    let mark = joiner.mark();
    let mut again = flock.node("founder", &NodeOptions { again: true, ..NodeOptions::default() }).expect("a node");
    let run = |e: &Value| e["run_digest"].clone();
    let started = again.wait(LIMIT, "started", |_| true).expect("it starts");
    assert_eq!(run(&started), run(&founder.wait(LIMIT, "started", |_| true).expect("it started")));
    let later = again.wait(LIMIT, "committed", |e| e["voters"] == 2).expect("it goes on");
    assert!(later["round"].as_u64() > at["round"].as_u64(), "{later}");
    let same = joiner.wait_since(mark, LIMIT, "committed", |e| e["round"] == later["round"]).expect("with the joiner");
    assert_eq!(root_of(&later), root_of(&same));

    // A node's folder will do in place of a checkpoint's.
    let third = bench.file("third.toml", &format!("name = \"third\"\n{MODEL}{TABLES}[budget]\nrounds = 1\n"));
    let of_home = bench.train(&third, &flock.home("third"), &[&flock.home("first")]);
    says(&of_home, 0, &["run first, record ", "from the disk of the node"]);
}

/// Two founders begin the same run, apart from each other. A node without the weights goes over from one to the other:
/// what its lineage has learned is measured from the weights, which it fetches.
#[test]
fn the_work_of_a_lineage_from_weights_is_merged_by_a_node_without_them() {
    let bench = Bench::new(2);
    let run_toml = |beginning: &str| format!("name = \"both\"\n{MODEL}{beginning}{TABLES}");
    let with_model = bench.file("both.toml", &run_toml(""));
    let from = ["--from".to_owned(), bench.checkpoint.to_string_lossy().into_owned()];
    let shown = {
        let (file, model) = (with_model.to_string_lossy(), from[1].as_str());
        let arguments = ["train", "--run", &*file, "--from", model, "--print-config"];
        run(&bench.flock.bin_dir.join("starling"), &arguments, LIMIT).expect("it ends").stdout
    };
    let beginning = shown.lines().find(|line| line.starts_with("beginning = ")).expect("it is shown");
    let without_model = bench.file("named.toml", &run_toml(&format!("{beginning}\n")));
    let elsewhere = Flock::start(&bench.flock.bin_dir, &bench.folder.path().join("elsewhere"), &run_toml(""));
    let elsewhere = elsewhere.expect("a bootstrap peer");
    let node = |name: &str, (founds, away): (bool, bool), more: &[String]| {
        let file = if founds { &with_model } else { &without_model };
        let bootstrap = away.then(|| elsewhere.address.clone());
        let mut options = NodeOptions { run_file: Some(file.clone()), bootstrap, ..NodeOptions::small(founds) };
        options.arguments.extend(more.iter().cloned());
        bench.flock.node(name, &options).expect("a node")
    };
    let mut first = node("first-founder", (true, false), &from);
    let lineage = first.wait(LIMIT, "founded", |_| true).expect("it founds")["lineage"].clone();
    let mut guest = node("guest", (false, false), &[]);
    for _ in 0..2 {
        let mark = guest.mark();
        guest.wait_since(mark, LIMIT, "committed", |e| e["voters"] == 2).expect("both vote");
    }
    let mut second = node("second-founder", (true, true), &from);
    let winner = second.wait(LIMIT, "founded", |_| true).expect("it founds")["lineage"].clone();
    assert_ne!(lineage, winner);
    first.kill();
    guest.kill();
    let adopt = ["--adopt-lineage".to_owned(), winner.as_str().expect("a name").to_owned()];
    let guest = node("guest", (false, true), &adopt);
    if let Err(why) = second.wait(LIMIT, "merged", |e| e["lineage"] == lineage) {
        panic!("its work comes in: {why}\n{}", guest.last_words());
    }
}

#[test]
fn a_checkpoint_that_does_not_fit_is_refused() {
    let bench = Bench::new(1);
    let home = bench.flock.home("refused");
    let refused = |tables: &str, from: &Path| {
        let file = bench.file("new.toml", &format!("name = \"new\"\n{tables}"));
        bench.train(&file, &home, &[from])
    };
    let deeper = format!("[model]\npreset = \"0.1m\"\nlayers = 3\n{TABLES}");
    says(&refused(&deeper, &bench.checkpoint), 3, &["model.layers: 3 here, 2 there", "leave [model] out"]);

    let exported = bench.folder.path().join("exported");
    let (from, to) = (bench.checkpoint.to_string_lossy(), exported.to_string_lossy());
    let arguments = ["checkpoint", "export", &*from, "--output", &*to];
    let ended = run(&bench.flock.bin_dir.join("starling"), &arguments, LIMIT).expect("it ends");
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let short = bench.file("short.toml", &format!("name = \"short\"\n{TABLES}[budget]\nrounds = 1\n"));
    let begun = bench.train(&short, &bench.flock.home("short"), &[&exported]);
    says(&begun, 0, &[]);
    let tokenizer = exported.join("tokenizer.json");
    let tables = TABLES.replace("holdout", &format!("tokenizer = \"{}\"\nholdout", tokenizer.display()));
    says(&refused(&tables, &bench.checkpoint), 3, &["another tokenizer", "data.tokenizer: "]);

    let weights = bench.checkpoint.join("model.safetensors");
    let mut bytes = std::fs::read(&weights).expect("it is there");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    std::fs::write(&weights, bytes).expect("write");
    says(&refused(TABLES, &bench.checkpoint), 4, &["--from", "model.safetensors"]);
    assert!(!home.exists(), "nothing was written");
}
