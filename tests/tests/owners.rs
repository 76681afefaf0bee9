//! Real nodes on loopback whose updates go to owners, with codecs that have error feedback.

use serde_json::Value;
use starling_tests::flock::{Flock, NodeOptions, built_binaries};
use starling_tests::process::Process;
use std::collections::BTreeMap;
use std::time::Duration;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(120);

/// A flock whose run file has this `[sync]` table, and no budget.
fn flock(sync: &str) -> (TempDir, Flock) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text: String =
        (0..4000).map(|n| format!("line {n}: the quick brown fox jumps over {}\n", n * 7919 % 1000)).collect();
    std::fs::write(folder.path().join("text.txt"), text).expect("write");
    let bin = built_binaries().expect("the folder of this test");
    let flock = Flock::start(&bin, folder.path(), &run_toml(sync)).expect("a bootstrap peer");
    (folder, flock)
}

fn run_toml(sync: &str) -> String {
    format!(
        "name = \"owners\"\n[model]\npreset = \"0.1m\"\nseq_len = 64\n[data]\nsources = [\"text.txt\"]\nholdout = 0.1\n\
         [inner]\nsteps = 4\nbatch = 2\n[sync]\n{sync}\n"
    )
}

fn contributors(event: &Value) -> usize {
    event["contributors"].as_array().map_or(0, Vec::len)
}

/// Starts nodes `node-0` and on, the first of which founds; returns them once all contribute.
fn nodes(flock: &Flock, count: usize) -> Vec<Process> {
    let mut nodes = flock.small_nodes(count, LIMIT).expect("nodes");
    nodes[0].wait(LIMIT, "committed", |e| contributors(e) == count).expect("all contribute");
    nodes
}

/// Checks that each record has one state, over all events of these nodes.
fn assert_parity(nodes: &[Process]) {
    let mut roots = BTreeMap::new();
    for event in nodes.iter().flat_map(Process::events).filter(|e| e["event"] == "committed") {
        let root = roots.entry(event["record"].to_string()).or_insert_with(|| event["state_root"].clone());
        assert_eq!(*root, event["state_root"], "one record, two states: {event}");
    }
    assert!(!roots.is_empty(), "something was committed");
}

/// Mean loss of the inner steps of the first, and of the last, three rounds of a node.
fn losses(node: &Process) -> (f64, f64) {
    let events = node.events();
    let losses: Vec<f64> =
        events.iter().filter(|e| e["event"] == "trained").filter_map(|e| e["loss"].as_f64()).collect();
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    assert!(losses.len() >= 6, "it has trained");
    (mean(&losses[..3]), mean(&losses[losses.len() - 3..]))
}

#[test]
fn four_nodes_learn_in_four_bits_and_lose_one_in_mid_round() {
    let (_folder, flock) = flock("codec = \"int4\"\nengine = \"owners\"");
    let mut nodes = nodes(&flock, 4);
    let together = |nodes: &mut [Process], least: usize| {
        for node in nodes {
            for _ in 0..5 {
                let mark = node.mark();
                node.wait_since(mark, LIMIT, "committed", |e| contributors(e) >= least).expect("rounds go on");
            }
        }
    };
    together(&mut nodes, 4);
    for victim in [3, 1] {
        // The victim dies as soon as it has something to send: the others have begun to wait for its parts, or its
        // sums.
        let mark = nodes[victim].mark();
        nodes[victim].wait_since(mark, LIMIT, "trained", |_| true).expect("it trains");
        nodes[victim].kill();
        let marks: Vec<usize> = nodes.iter().map(Process::mark).collect();
        for (n, node) in nodes.iter_mut().enumerate().filter(|(n, _)| *n != victim) {
            node.wait_since(marks[n], LIMIT, "committed", |e| contributors(e) == 3).expect("the others go on");
        }
        assert_parity(&nodes);
        nodes[victim] = flock.node(&format!("node-{victim}"), &NodeOptions::small(false)).expect("a node");
        nodes[victim].wait(LIMIT, "committed", |e| contributors(e) == 4).expect("it contributes again");
    }
    together(&mut nodes, 4);
    assert_parity(&nodes);
    let (first, last) = losses(&nodes[0]);
    assert!(last < first - 0.5, "the loss falls: {first} to {last}");
    for node in &mut nodes {
        node.terminate();
        assert!(node.wait_exit(LIMIT).expect("it ends").success(), "{}", node.last_words());
    }
    // The residuals are kept for the next start.
    assert!(has_residuals(&flock, "node-0"));
}

/// Whether the node's disk has residuals, anywhere in its private state.
fn has_residuals(flock: &Flock, name: &str) -> bool {
    let mut folders = vec![flock.home(name)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with("residuals-") {
                return true;
            }
            if entry.path().is_dir() {
                folders.push(entry.path());
            }
        }
    }
    false
}

#[test]
fn two_nodes_send_the_largest_values_only() {
    let (_folder, flock) = flock("codec = \"top-k\"\nk = 512");
    let mut nodes = nodes(&flock, 2);
    let mark = nodes[1].mark();
    let base = nodes[1].wait_since(mark, LIMIT, "committed", |_| true).expect("a commit")["round"].as_u64();
    let later = base.expect("a round") + 30;
    for node in &mut nodes {
        node.wait(LIMIT, "committed", |e| e["round"].as_u64() >= Some(later)).expect("rounds go on");
    }
    assert_parity(&nodes);
    let (first, last) = losses(&nodes[0]);
    assert!(last < first, "the loss falls: {first} to {last}");
}

#[test]
fn a_run_that_is_too_short_for_top_k_is_refused_with_the_reason() {
    let (_folder, flock) = flock("codec = \"int8\"");
    let said = |toml: String| flock.refusal(&toml).expect("it is refused");
    let short = said(run_toml("codec = \"top-k\"\nk = 64") + "[budget]\nrounds = 100\n");
    assert!(short.contains("sync.codec") && short.contains("at least 1280 rounds"), "{short}");
    let ring = said(run_toml("codec = \"int4\"\nengine = \"ring\""));
    assert!(ring.contains("sync.engine") && ring.contains("encode each sum anew"), "{ring}");
    let wrong = said(run_toml("codec = \"int44\""));
    assert!(wrong.contains("did you mean \"int4\"?"), "{wrong}");
}
