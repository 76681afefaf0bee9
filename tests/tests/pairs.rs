//! Real nodes on loopback that meet in pairs between the steps of a round. One is stopped in the middle of an exchange,
//! and one is killed.

use rustix::process::Signal;
use serde_json::Value;
use starling_tests::flock::{Flock, NodeOptions, built_binaries};
use starling_tests::process::Process;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(120);
const VICTIM: usize = 2;

fn run_toml(sync: &str) -> String {
    format!(
        "name = \"pairs\"\n[model]\npreset = \"0.1m\"\nseq_len = 64\n[data]\nsources = [\"text.txt\"]\nholdout = 0.1\n\
         [inner]\nsteps = 12\nbatch = 2\n[sync]\n{sync}\n"
    )
}

fn flock(sync: &str) -> (TempDir, Flock) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text: String =
        (0..4000).map(|n| format!("line {n}: the quick brown fox jumps over {}\n", n * 7919 % 1000)).collect();
    std::fs::write(folder.path().join("text.txt"), text).expect("write");
    let bin = built_binaries().expect("the folder of this test");
    let flock = Flock::start(&bin, folder.path(), &run_toml(sync)).expect("a bootstrap peer");
    (folder, flock)
}

fn contributors(event: &Value) -> usize {
    event["contributors"].as_array().map_or(0, Vec::len)
}

fn all_contribute(nodes: &mut [Process], count: usize) {
    for node in nodes {
        if node.has_exited() {
            continue;
        }
        let mark = node.mark();
        node.wait_since(mark, LIMIT, "committed", |e| contributors(e) == count).expect("rounds of all go on");
    }
}

/// Waits until another node reports that it went on without the victim, for one of these reasons; returns the event.
fn gone_without(nodes: &[Process], marks: &[usize], victim: &str, reasons: &[&str]) -> Value {
    let fits = |e: &Value| {
        let reason = e["alone"].as_str().is_some_and(|reason| reasons.contains(&reason));
        e["event"] == "exchanged" && e["partner"] == victim && reason
    };
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        for (node, mark) in nodes.iter().zip(marks) {
            if let Some(event) = node.events().into_iter().skip(*mark).find(fits) {
                return event;
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("nobody was let down by {victim}: {}", nodes[0].last_words());
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

fn marks(nodes: &[Process]) -> Vec<usize> {
    nodes.iter().map(Process::mark).collect()
}

#[test]
fn four_nodes_meet_in_pairs_and_lose_one_in_mid_exchange() {
    let (_folder, flock) = flock("engine = \"gossip\"\ngossip = { steps = 2 }");
    let mut nodes = flock.small_nodes(4, LIMIT).expect("nodes");
    nodes[0].wait(LIMIT, "committed", |e| contributors(e) == 4).expect("all contribute");
    for node in &mut nodes {
        let mark = node.mark();
        let met = |e: &Value| e["alone"].is_null() && !e["partner"].is_null();
        let last =
            node.wait_since(mark, LIMIT, "exchanged", |e| met(e) && e["exchange"] == 5).expect("it meets others");
        assert!(last["seconds"].as_f64().is_some_and(|seconds| seconds < 30.0), "{last}");
    }
    assert_parity(&nodes);

    // The victim is stopped between two exchanges: its next partner waits no longer than a deadline.
    let mark = nodes[VICTIM].mark();
    let event = nodes[VICTIM].wait_since(mark, LIMIT, "exchanged", |e| e["exchange"] == 1).expect("it meets others");
    nodes[VICTIM].signal(Signal::STOP);
    let victim = event["node"].as_str().expect("its id").to_owned();
    let before = marks(&nodes);
    let late = gone_without(&nodes, &before, &victim, &["late"]);
    assert!(late["seconds"].as_f64().is_some_and(|seconds| seconds < 30.0), "{late}");
    nodes[VICTIM].signal(Signal::CONT);
    all_contribute(&mut nodes, 4);

    // The victim is killed, perhaps in an exchange.
    let mark = nodes[VICTIM].mark();
    nodes[VICTIM].wait_since(mark, LIMIT, "exchanged", |e| e["exchange"] == 1).expect("it meets others");
    let before = marks(&nodes);
    nodes[VICTIM].kill();
    gone_without(&nodes, &before, &victim, &["lost", "unreachable", "late"]);
    all_contribute(&mut nodes, 3);
    assert_parity(&nodes);
    nodes[VICTIM] = flock.node(&format!("node-{VICTIM}"), &NodeOptions::small(false)).expect("a node");
    all_contribute(&mut nodes, 4);
    assert_parity(&nodes);

    let events = nodes[0].events();
    let losses: Vec<f64> =
        events.iter().filter(|e| e["event"] == "trained").filter_map(|e| e["loss"].as_f64()).collect();
    assert!(losses[losses.len() - 1] < losses[0] - 0.3, "the loss falls: {losses:?}");
    for node in &mut nodes {
        node.terminate();
        assert!(node.wait_exit(LIMIT).expect("it ends").success(), "{}", node.last_words());
    }
}

#[test]
fn a_setting_that_pairs_cannot_have_is_refused_with_the_reason() {
    let (_folder, flock) = flock("engine = \"gossip\"");
    let said = |sync: &str| flock.refusal(&run_toml(sync)).expect("it is refused");
    let rare = said("engine = \"gossip\"\ngossip = { steps = 12 }");
    assert!(rare.contains("sync.gossip.steps = 12") && rare.contains("below inner.steps (12)"), "{rare}");
    let apart = said("engine = \"gossip\"\ngossip = { gamma = 2.0 }");
    assert!(apart.contains("sync.gossip.gamma"), "{apart}");
    let ring = said("engine = \"ring\"\ngossip = { steps = 4 }");
    assert!(ring.contains("sync.gossip means nothing"), "{ring}");
    let unknown = said("engine = \"gossip\"\ngossip = { step = 4 }");
    assert!(unknown.contains("did you mean `steps`?"), "{unknown}");
}
