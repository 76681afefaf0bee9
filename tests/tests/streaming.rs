//! Real nodes on loopback: each round averages one fragment while nodes do the first steps of the next round.

use serde_json::Value;
use starling_tests::flock::{Flock, NodeOptions, built_binaries};
use starling_tests::process::Process;
use std::collections::BTreeMap;
use std::time::Duration;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(120);
const STREAMING: &str = "[sync]\nfragments = 4\noverlap = 2\nmixing = 0.5";

/// A flock whose run file ends with `tables`.
fn flock(tables: &str) -> (TempDir, Flock) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text: String =
        (0..4000).map(|n| format!("line {n}: the quick brown fox jumps over {}\n", n * 7919 % 1000)).collect();
    std::fs::write(folder.path().join("text.txt"), text).expect("write");
    let bin = built_binaries().expect("the folder of this test");
    let flock = Flock::start(&bin, folder.path(), &run_toml(tables)).expect("a bootstrap peer");
    (folder, flock)
}

fn run_toml(tables: &str) -> String {
    format!(
        "name = \"streaming\"\n[model]\npreset = \"0.1m\"\nseq_len = 32\n[data]\nsources = [\"text.txt\"]\n\
         holdout = 0.1\n[inner]\nsteps = 4\nbatch = 2\nlr = 4e-3\nwarmup_steps = 5\n{tables}\n"
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

/// Waits until each of these nodes commits a round with so many contributors.
fn together(nodes: &mut [Process], count: usize) {
    for node in nodes {
        let mark = node.mark();
        node.wait_since(mark, LIMIT, "committed", |e| contributors(e) == count).expect("rounds go on together");
    }
}

fn commits(node: &Process) -> Vec<Value> {
    node.events().into_iter().filter(|e| e["event"] == "committed").collect()
}

#[test]
fn fragments_with_steps_ahead_are_learned_from_to_the_end() {
    let (_folder, flock) = flock(&format!("{STREAMING}\n[budget]\nrounds = 300"));
    let mut nodes = flock.small_nodes(2, LIMIT).expect("nodes");
    for node in &mut nodes {
        let ended = node.wait_exit(LIMIT).expect("the budget ends it");
        assert!(ended.success(), "{}", node.last_words());
    }
    assert_parity(&flock);
    let last = |node: &Process| commits(node).pop().expect("a commit");
    let (a, b) = (last(&nodes[0]), last(&nodes[1]));
    assert_eq!((a["round"].as_u64(), &a["state_root"]), (Some(300), &b["state_root"]), "{a}, {b}");
    assert!(commits(&nodes[0]).iter().any(|e| contributors(e) == 2), "both contribute");
    let losses: Vec<f64> =
        nodes[0].events().iter().filter(|e| e["event"] == "trained").filter_map(|e| e["loss"].as_f64()).collect();
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let (first, end) = (mean(&losses[..5]), mean(&losses[losses.len() - 5..]));
    assert!(end < first - 1.0, "the loss falls: {first} to {end}");
    // The common parameters learn, too, and not only each node's own.
    let validated: Vec<f64> =
        nodes[0].events().iter().filter(|e| e["event"] == "validated").filter_map(|e| e["loss"].as_f64()).collect();
    let (first, end) = (validated.first().expect("at the start"), validated.last().expect("at the end"));
    assert!(end < &(first - 1.0), "the common parameters learn: {first} to {end}");
}

#[test]
fn killed_and_new_nodes_come_to_the_same_state() {
    let (_folder, flock) = flock(STREAMING);
    let mut nodes = flock.small_nodes(3, LIMIT).expect("nodes");
    nodes[0].wait(LIMIT, "committed", |e| contributors(e) == 3).expect("all contribute");
    together(&mut nodes, 3);
    // The node dies right after it has offered its fragment, for which the others wait.
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
    assert_parity(&flock);
    for node in &nodes {
        let faults: Vec<Value> = node.events().into_iter().filter(|e| e["event"] == "own_fault").collect();
        assert!(faults.is_empty(), "{}: its state is its own doing: {faults:?}", node.name);
    }
}

/// Waits until `more` rounds with `count` contributors were committed.
fn rounds(node: &mut Process, more: usize, count: usize) {
    for _ in 0..more {
        let mark = node.mark();
        node.wait_since(mark, LIMIT, "committed", |e| contributors(e) == count).expect("rounds go on");
    }
}

#[test]
fn owners_keep_residuals_for_each_fragment() {
    let (_folder, flock) = flock("[sync]\nfragments = 3\ncodec = \"int4\"\nengine = \"owners\"");
    let mut nodes = flock.small_nodes(3, LIMIT).expect("nodes");
    for kill in 0..2 {
        rounds(&mut nodes[2], 9, 3);
        // Each fragment had its turns, and the averaging of one has begun.
        let mark = nodes[2].mark();
        nodes[2].wait_since(mark, LIMIT, "trained", |_| true).expect("it trains");
        nodes[2].kill();
        together(&mut nodes[..2], 2);
        nodes[2] = flock.node("node-2", &NodeOptions::small(false)).expect("a node");
        let found = nodes[2].wait(LIMIT, "residuals", |_| true).expect("they are looked for");
        let of = |field: &str| found[field].as_u64().expect("a count");
        assert_eq!(of("kept") + of("lost"), 3, "kill {kill}: each fragment has files: {found}");
        // On a busy machine the writing may be a round behind, but never by as many rounds as there are fragments.
        assert!(of("kept") >= 1, "kill {kill}: not all were being written: {found}");
        assert!(found["norm"].as_f64().expect("a norm") > 0.0, "kill {kill}: int4 leaves something out: {found}");
        nodes[2].wait(LIMIT, "committed", |e| contributors(e) == 3).expect("it contributes again");
    }
    assert_parity(&flock);
    // A node that ends by itself has finished its averaging, and each fragment had its turn since.
    rounds(&mut nodes[2], 3, 3);
    nodes[2].terminate();
    assert!(nodes[2].wait_exit(LIMIT).expect("it ends").success(), "{}", nodes[2].last_words());
    nodes[2] = flock.node("node-2", &NodeOptions::small(false)).expect("a node");
    let found = nodes[2].wait(LIMIT, "residuals", |_| true).expect("they are looked for");
    assert_eq!((found["kept"].as_u64(), found["lost"].as_u64()), (Some(3), Some(0)), "{found}");
    nodes[2].wait(LIMIT, "committed", |e| contributors(e) == 3).expect("it contributes again");
    assert_parity(&flock);
}

#[test]
fn settings_that_mean_nothing_are_refused_by_name() {
    let (_folder, flock) = flock("");
    let said = |tables: &str| flock.refusal(&run_toml(tables)).expect("it is refused");
    let many = said("[sync]\nfragments = 5");
    assert!(many.contains("sync.fragments = 5") && many.contains("at least one chunk of 32768"), "{many}");
    let late = said("[sync]\noverlap = 5\nmixing = 0.5");
    assert!(late.contains("sync.overlap = 5") && late.contains("inner.steps (4)"), "{late}");
    let lost = said("[sync]\noverlap = 2");
    assert!(lost.contains("sync.mixing = 0") && lost.contains("overwritten"), "{lost}");
    let every_step = "[sync]\nmode = \"every-step\"\nfragments = 2";
    let every_step = flock.refusal(&run_toml(every_step).replace("steps = 4\n", "")).expect("it is refused");
    assert!(
        every_step.contains("sync.fragments = 2") && every_step.contains("no parameters of its own"),
        "{every_step}"
    );
}
