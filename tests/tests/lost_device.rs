//! A device fails in the middle of a round: its node ends with one message that says what to do, offers nothing of that
//! round, and the others go on without it. Nodes count steps instead of training, so that the failure is where it is
//! wanted.

use serde_json::Value;
use starling_tests::flock::{Flock, NodeOptions, built_binaries};
use starling_tests::process::Process;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
const RUN_TOML: &str = "name = \"lost-device\"\n[model]\npreset = \"0.1m\"\nseq_len = 32\n[data]\n\
                        sources = [\"text.txt\"]\nholdout = 0.1\n[inner]\nsteps = 10\nbatch = 2\n";
/// Steps of the device that fails: some rounds, and then a part of one.
const STEPS: &str = "75";

fn options(found: bool, more: &[&str]) -> NodeOptions {
    let mut options = NodeOptions::small(found);
    options.arguments.extend(["--null-trainer", "20"].iter().chain(more).map(ToString::to_string));
    options
}

fn contributors(event: &Value) -> Vec<Value> {
    event["contributors"].as_array().cloned().unwrap_or_default()
}

/// The last event of this name.
fn last(node: &Process, name: &str) -> Value {
    let events = node.events();
    events.iter().rev().find(|event| event["event"] == name).cloned().unwrap_or_else(|| panic!("it said no {name}"))
}

#[test]
fn the_round_goes_on_without_a_node_whose_device_fails() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text: String = (0..4000).map(|n| format!("line {n}: some text {}\n", n * 7919 % 1000)).collect();
    std::fs::write(folder.path().join("text.txt"), text).expect("written");
    let bin = built_binaries().expect("the folder of this test");
    let flock = Flock::start(&bin, folder.path(), RUN_TOML).expect("a bootstrap peer");
    let mut first = flock.node("first", &options(true, &[])).expect("a node");
    first.wait(LIMIT, "founded", |_| true).expect("it founds");
    let mut second = flock.node("second", &options(false, &[])).expect("a node");
    let mut third = flock.node("third", &options(false, &["--null-fails-after", STEPS])).expect("a node");
    first.wait(LIMIT, "committed", |event| contributors(event).len() == 3).expect("all three contribute");

    let status = third.wait_exit(LIMIT).expect("it ends");
    let (words, mark) = (third.last_words(), first.mark());
    assert_eq!(status.code(), Some(1), "{words}");
    let messages: Vec<&str> = words.lines().filter(|line| line.starts_with("starling: ")).collect();
    assert_eq!(messages.len(), 1, "one message: {words}");
    for part in ["training failed", "the device cpu", "restart this node", "--device cpu"] {
        assert!(messages[0].contains(part), "`{part}` is missing in: {words}");
    }
    // Its contributions are those of the rounds that it has trained to their ends.
    let (id, trained) = (last(&third, "trained")["node"].clone(), last(&third, "trained")["round"].clone());
    first.wait_since(mark, LIMIT, "committed", |event| contributors(event).len() == 2).expect("the others go on");
    let commits = second.events().into_iter().chain(first.events()).filter(|event| event["event"] == "committed");
    for commit in commits.filter(|commit| contributors(commit).contains(&id)) {
        assert!(commit["round"].as_u64() <= trained.as_u64(), "it offered what it had not trained: {commit}");
    }
    for node in [&mut first, &mut second] {
        node.terminate();
        let status = node.wait_exit(LIMIT).expect("it leaves");
        assert!(status.success(), "{status}: {}", node.last_words());
    }
}
