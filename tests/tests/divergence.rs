//! A training that diverges ends its node with code 7, as its node file says. The other node of two goes on if its own
//! file says so, and ends in the same way if not.

use serde_json::Value;
use starling_tests::flock::{Flock, NodeOptions, built_binaries};
use starling_tests::process::{Process, run};
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(120);
const DIVERGED: i32 = 7;
/// Rounds of one step, whose loss is that of the state before it. The state stays as it is while a node trains alone.
/// With the second contributor it moves by steps as large as a run file allows, hundreds of times its own values.
const WITH_THE_SECOND: &str = "[inner]\nsteps = 1\nbatch = 2\nlr = 10.0\nwarmup_steps = 1\nweight_decay = 0.0\n\
                               [outer]\nlr = [[1, 1e-9], [2, 1.0]]\nmomentum = 0.0\n[partition]\ngrace_s = 3\n";

/// A flock whose run file ends with these tables.
fn flock(tables: &str) -> (TempDir, Flock) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text: String = (0..2000).map(|n| format!("line {n}: some text {}\n", n * 7919 % 1000)).collect();
    std::fs::write(folder.path().join("text.txt"), text).expect("write");
    std::fs::write(folder.path().join("on.toml"), "[inner]\nhalt_on_divergence = false\n").expect("write");
    let run_toml = format!(
        "name = \"divergence\"\n[model]\npreset = \"0.1m\"\nseq_len = 32\n[data]\nsources = [\"text.txt\"]\n\
         holdout = 0.1\n{tables}"
    );
    let flock = Flock::start(&built_binaries().expect("the folder of this test"), folder.path(), &run_toml);
    (folder, flock.expect("a bootstrap peer"))
}

/// The options of a node that goes on although its training diverges.
fn goes_on(folder: &Path, found: bool) -> NodeOptions {
    let mut options = NodeOptions::small(found);
    options.arguments.extend(["--config".to_owned(), folder.join("on.toml").to_string_lossy().into_owned()]);
    options
}

/// Whether an event says that the losses of rounds were far too high.
fn by_its_losses(event: &Value) -> bool {
    event["why"].as_str().is_some_and(|why| why.contains("rounds in a row"))
}

/// Waits for the node to say that it diverges, and to end for that with a whole checkpoint.
fn halts(flock: &Flock, node: &mut Process) {
    node.wait(LIMIT, "diverges", by_its_losses).expect("it says so");
    let status = node.wait_exit(LIMIT).expect("it ends");
    let words = node.last_words();
    assert_eq!(status.code(), Some(DIVERGED), "{words}");
    for part in ["the training diverges in round", "inner.lr", "starling change lr=", "--from CHECKPOINT"] {
        assert!(words.contains(part), "`{part}` is missing in: {words}");
    }
    let events = node.events();
    let last = |name: &str| events.iter().rev().find(|e| e["event"] == name);
    let checkpoint = last("checkpoint").expect("it leaves with a checkpoint");
    assert_eq!(checkpoint["round"], last("committed").expect("a commit")["round"], "of its last record");
    let path = checkpoint["path"].as_str().expect("a path");
    let verified = run(&flock.bin_dir.join("starling"), &["checkpoint", "verify", path], LIMIT).expect("it ends");
    assert_eq!(verified.code, Some(0), "{}", verified.stderr);
}

#[test]
fn one_of_two_halts_and_the_other_goes_on_as_its_file_says() {
    let (folder, flock) = flock(WITH_THE_SECOND);
    let mut first = flock.node("first", &NodeOptions::small(true)).expect("a node");
    first.wait(LIMIT, "committed", |_| true).expect("it trains");
    let mut second = flock.node("second", &goes_on(folder.path(), false)).expect("a node");
    halts(&flock, &mut first);
    second.wait(LIMIT, "diverges", by_its_losses).expect("it says so as well");
    let mark = second.mark();
    let alone = |e: &Value| e["contributors"].as_array().is_some_and(|ids| ids.len() == 1 && ids[0] == e["node"]);
    second.wait_since(mark, LIMIT, "committed", alone).expect("it goes on alone");
    second.terminate();
    let status = second.wait_exit(LIMIT).expect("it leaves");
    assert!(status.success(), "{status}: {}", second.last_words());
}

#[test]
fn both_of_two_halt_with_a_checkpoint_each() {
    let (_folder, flock) = flock(WITH_THE_SECOND);
    let mut first = flock.node("first", &NodeOptions::small(true)).expect("a node");
    first.wait(LIMIT, "committed", |_| true).expect("it trains");
    let mut second = flock.node("second", &NodeOptions::small(false)).expect("a node");
    halts(&flock, &mut first);
    halts(&flock, &mut second);
}

/// Weights that decay by more than all of themselves grow a hundredfold with each step. A long round is spoilt by the
/// steps that are left out, and a short one has no other steps.
#[test]
fn a_node_whose_numbers_are_not_finite_ends_at_once_without_a_checkpoint() {
    for steps in [30, 2] {
        let (folder, flock) = flock(&format!(
            "[inner]\nsteps = {steps}\nbatch = 2\nlr = 10.0\nwarmup_steps = 1\nweight_decay = 10.0\n\
             [outer]\nlr = 1.0\nmomentum = 0.0\n"
        ));
        let mut node = flock.node("alone", &goes_on(folder.path(), true)).expect("a node");
        let status = node.wait_exit(LIMIT).expect("it ends");
        let words = node.last_words();
        assert_eq!(status.code(), Some(DIVERGED), "{steps} steps: {words}");
        assert!(words.contains("training failed") && words.contains("starling change lr="), "{steps} steps: {words}");
        assert!(!node.events().iter().any(|e| e["event"] == "checkpoint"), "{steps} steps: {words}");
    }
}
