//! Real nodes on loopback that average the gradient of every step.

use serde_json::Value;
use starling_tests::flock::{Flock, NodeOptions, built_binaries};
use starling_tests::process::{Process, run};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(120);
/// Rounds of some 15 ms: a node that joins during the first few takes part in most, also on a busy machine.
const ROUNDS: u64 = 300;

/// A flock whose run file begins with `top` and ends with `tables`.
fn flock(top: &str, tables: &str) -> (TempDir, Flock) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text: String =
        (0..4000).map(|n| format!("line {n}: the quick brown fox jumps over {}\n", n * 7919 % 1000)).collect();
    std::fs::write(folder.path().join("text.txt"), text).expect("write");
    let bin = built_binaries().expect("the folder of this test");
    let flock = Flock::start(&bin, folder.path(), &run_toml(top, tables)).expect("a bootstrap peer");
    (folder, flock)
}

fn run_toml(top: &str, tables: &str) -> String {
    format!(
        "name = \"every-step\"\n{top}\n[model]\npreset = \"0.1m\"\nseq_len = 32\n[data]\nsources = [\"text.txt\"]\n\
         holdout = 0.1\n[inner]\nbatch = 2\naccumulate = 2\nlr = 4e-3\nwarmup_steps = 5\n{tables}\n"
    )
}

fn contributors(event: &Value) -> usize {
    event["contributors"].as_array().map_or(0, Vec::len)
}

/// Checks that each record has one state, in all events of this flock's nodes, those of former processes too.
fn assert_parity(flock: &Flock) {
    let mut roots = BTreeMap::new();
    for file in std::fs::read_dir(flock.folder.join("logs")).expect("logs").flatten() {
        let text = std::fs::read_to_string(file.path()).unwrap_or_default();
        let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        for event in events.filter(|e| e["event"] == "committed") {
            let root = roots.entry(event["record"].to_string()).or_insert_with(|| event["state_root"].clone());
            assert_eq!(*root, event["state_root"], "one record, two states: {event}");
        }
    }
    assert!(!roots.is_empty(), "something was committed");
}

/// Waits until each of these nodes commits a step with so many contributors.
fn together(nodes: &mut [Process], count: usize) {
    for node in nodes {
        let mark = node.mark();
        node.wait_since(mark, LIMIT, "committed", |e| contributors(e) == count).expect("steps go on together");
    }
}

#[test]
fn two_nodes_train_to_the_end_and_hold_one_state() {
    let (_folder, flock) = flock("sync = \"every-step\"", &format!("[budget]\nrounds = {ROUNDS}"));
    let mut nodes = flock.small_nodes(2, LIMIT).expect("nodes");
    for node in &mut nodes {
        let ended = node.wait_exit(LIMIT).expect("the budget ends it");
        assert!(ended.success(), "{}", node.last_words());
    }
    assert_parity(&flock);
    let last = |node: &Process| node.events().into_iter().rev().find(|e| e["event"] == "committed").expect("a commit");
    let (a, b) = (last(&nodes[0]), last(&nodes[1]));
    assert_eq!((a["round"].as_u64(), &a["state_root"]), (Some(ROUNDS), &b["state_root"]), "{a}, {b}");
    assert!(nodes[0].events().iter().any(|e| e["event"] == "committed" && contributors(e) == 2), "both contribute");
    let losses: Vec<f64> =
        nodes[0].events().iter().filter(|e| e["event"] == "trained").filter_map(|e| e["loss"].as_f64()).collect();
    assert_eq!(losses.len() as u64, ROUNDS, "a step is a round");
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let (first, end) = (mean(&losses[..5]), mean(&losses[losses.len() - 5..]));
    assert!(end < first - 1.0, "the loss falls: {first} to {end}");
    // The last state has all three vectors, and the record's root.
    let checkpoints = flock.home("node-1").join("checkpoints");
    let folder = std::fs::read_dir(&checkpoints).expect("a checkpoint").flatten().next().expect("one").path();
    let starling = flock.bin_dir.join("starling");
    let verified = run(&starling, &["checkpoint", "verify", &folder.to_string_lossy()], LIMIT).expect("it ends");
    let root = b["state_root"].as_str().expect("a root");
    assert!(verified.code == Some(0) && verified.stdout.contains(root), "{} {}", verified.stdout, verified.stderr);
}

#[test]
fn killed_damaged_and_new_nodes_come_to_the_same_state() {
    let (_folder, flock) = flock("sync = \"every-step\"", "");
    let mut nodes = flock.small_nodes(3, LIMIT).expect("nodes");
    nodes[0].wait(LIMIT, "committed", |e| contributors(e) == 3).expect("all contribute");
    together(&mut nodes, 3);
    // The node dies right after it has offered a gradient, for which the others wait.
    let mark = nodes[2].mark();
    nodes[2].wait_since(mark, LIMIT, "trained", |_| true).expect("it trains");
    nodes[2].kill();
    together(&mut nodes[..2], 2);
    nodes[2] = flock.node("node-2", &NodeOptions::small(false)).expect("a node");
    nodes[2].wait(LIMIT, "committed", |e| contributors(e) == 3).expect("it contributes again");
    together(&mut nodes, 3);
    // The new node has nothing but a ticket.
    let ticket = flock.invite("node-0").expect("a ticket");
    let joins = NodeOptions { ticket: Some(ticket), ..NodeOptions::small(false) };
    nodes.push(flock.node("node-3", &joins).expect("a node"));
    nodes[3].wait(LIMIT, "committed", |e| contributors(e) == 4).expect("it contributes");
    together(&mut nodes, 4);
    // Every chunk of a state is damaged, including those of the second moment.
    nodes[1].kill();
    let damaged = damage(&flock.home("node-1"));
    assert!(damaged >= 3, "{damaged} chunks");
    nodes[1] = flock.node("node-1", &NodeOptions::small(false)).expect("a node");
    nodes[1].wait(LIMIT, "caught_up", |_| true).expect("it fetches the state");
    nodes[1].wait(LIMIT, "committed", |e| contributors(e) == 4).expect("it contributes again");
    together(&mut nodes, 4);
    assert_parity(&flock);
    for node in &nodes {
        let calm = |e: &&Value| e["event"] != "own_fault";
        assert_eq!(node.events().iter().find(|e| !calm(e)), None, "{}: its state is its own doing", node.name);
    }
}

/// Flips a bit of every chunk of a stopped node; returns the number of chunks.
fn damage(home: &Path) -> usize {
    let mut folders: Vec<PathBuf> = vec![home.to_path_buf()];
    let mut count = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.ancestors().any(|above| above.file_name().is_some_and(|name| name == "chunks")) {
                let mut bytes = std::fs::read(&path).expect("a chunk");
                let middle = bytes.len() / 2;
                bytes[middle] ^= 4;
                std::fs::write(&path, bytes).expect("a chunk");
                count += 1;
            }
        }
    }
    count
}

#[test]
fn owners_take_gradients_in_four_bits() {
    let tables = format!("[sync]\nmode = \"every-step\"\ncodec = \"int4\"\n[budget]\nrounds = {ROUNDS}");
    let (_folder, flock) = flock("", &tables);
    let mut nodes = flock.small_nodes(2, LIMIT).expect("nodes");
    for node in &mut nodes {
        assert!(node.wait_exit(LIMIT).expect("the budget ends it").success(), "{}", node.last_words());
    }
    assert_parity(&flock);
    assert!(nodes[0].events().iter().any(|e| e["event"] == "committed" && contributors(e) == 2), "both contribute");
}

#[test]
fn settings_that_mean_nothing_there_are_refused_by_name() {
    let (_folder, flock) = flock("sync = \"every-step\"", "");
    let said = |toml: String| flock.refusal(&toml).expect("it is refused");
    let steps = said(run_toml("sync = \"every-step\"", "").replace("[inner]\n", "[inner]\nsteps = 4\n"));
    assert!(steps.contains("inner.steps = 4") && steps.contains("averaged at each step"), "{steps}");
    let outer = said(run_toml("sync = \"every-step\"", "[outer]\nmomentum = 0.5"));
    assert!(outer.contains("outer means nothing with sync.mode = \"every-step\""), "{outer}");
    let mode = said(run_toml("sync = \"every-stop\"", ""));
    assert!(mode.contains("sync.mode") && mode.contains("did you mean \"every-step\"?"), "{mode}");
    let horizon = said(run_toml("", "[sync]\nmode = \"every-step\"\ncodec = \"top-k\"\n[budget]\nrounds = 100"));
    assert!(horizon.contains("at least 1280 rounds"), "{horizon}");
}
