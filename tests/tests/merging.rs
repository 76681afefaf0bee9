//! Two flocks of one run that meet: one gives way, and what it has learned is merged once (`protocol.md` §9).

use serde_json::Value;
use starling_tests::flock::{Flock, NodeOptions, built_binaries};
use starling_tests::process::{Process, run};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

const RUN: &str = "name = \"merging\"\n[model]\npreset = \"0.1m\"\nseq_len = 32\n[data]\nsources = [\"../text.txt\"]\n\
                   holdout = 0.1\n[inner]\nsteps = 2\nbatch = 2\n";

fn options(found: bool, bootstrap: Option<&str>) -> NodeOptions {
    let mut arguments = ["--device", "cpu", "--threads", "1", "--log", "info"].map(String::from).to_vec();
    arguments.extend(bootstrap.into_iter().flat_map(|address| ["--bootstrap".to_owned(), address.to_owned()]));
    NodeOptions { found, arguments, ..NodeOptions::default() }
}

fn flock(folder: &Path, name: &str) -> Flock {
    Flock::start(&built_binaries().expect("the folder of this test"), &folder.join(name), RUN)
        .expect("a bootstrap peer")
}

/// Tokens by which the winners are ahead when the losers start again: who gives way is decided by tokens, and these may
/// train by themselves for seconds before they meet anybody.
const LEAD: u64 = 10_000;

/// Two nodes that train until `rounds` are committed by both.
fn pair(flock: &Flock, rounds: u64) -> Vec<Process> {
    let mut founder = flock.node("founder", &options(true, None)).expect("a node");
    founder.wait(LIMIT, "founded", |_| true).expect("it founds");
    let mut nodes = vec![founder, flock.node("second", &options(false, None)).expect("a node")];
    for node in &mut nodes {
        let both = |e: &Value| e["voters"] == 2 && e["round"].as_u64() >= Some(rounds);
        node.wait(LIMIT, "committed", both).expect("both train");
    }
    nodes
}

fn status(flock: &Flock, name: &str, arguments: &[&str]) -> String {
    let home = flock.home(name).to_string_lossy().into_owned();
    let arguments = [&["status", "--home", home.as_str()], arguments].concat();
    run(&flock.bin_dir.join("starling"), &arguments, LIMIT).expect("it ends").stdout
}

fn merges(node: &Process) -> Vec<(String, u64)> {
    let events = node.events();
    let merged = events.iter().filter(|e| e["event"] == "merged");
    merged.map(|e| (e["lineage"].to_string(), e["round"].as_u64().unwrap_or_default())).collect()
}

/// What the nodes have told, but for each step of their work: how a meeting went cannot be seen from its end.
fn story(nodes: &[Process]) -> String {
    let work = ["step", "phase", "trained", "attempt_started", "committed", "validated"];
    let telling = |e: &&Value| !work.iter().any(|name| e["event"] == *name);
    let lines = |node: &Process| node.events().iter().filter(telling).map(|e| format!("{e}\n")).collect::<String>();
    nodes.iter().map(|node| format!("{} told:\n{}", node.name, lines(node))).collect()
}

#[test]
fn what_a_flock_that_gives_way_has_learned_is_merged_once() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text: String = (0..2000).map(|n| format!("line {n}: some text {}\n", n * 7919 % 1000)).collect();
    std::fs::write(folder.path().join("text.txt"), text).expect("write");
    let (losers, winners) = (flock(folder.path(), "losers"), flock(folder.path(), "winners"));
    let mut gone = pair(&losers, 4);
    let lineage = gone[0].wait(LIMIT, "founded", |_| true).expect("it was seen before")["lineage"].clone();
    for node in &mut gone {
        node.terminate();
        node.wait_exit(LIMIT).expect("it leaves");
    }
    let trained = gone.iter().flat_map(Process::events).filter(|e| e["event"] == "committed");
    let trained = trained.filter_map(|e| e["tokens"].as_u64()).max().expect("they have trained");
    let mut nodes = pair(&winners, 12);
    for node in &mut nodes {
        node.wait(LIMIT, "committed", |e| e["tokens"].as_u64() >= Some(trained + LEAD)).expect("they train");
    }
    let winner = nodes[0].wait(LIMIT, "founded", |_| true).expect("it was seen before")["lineage"].clone();
    for name in ["founder", "second"] {
        nodes.push(losers.node(name, &options(false, Some(&winners.address))).expect("a node"));
    }
    for n in 0..2 {
        if let Err(e) = nodes[n].wait(LIMIT, "merged", |e| e["lineage"] == lineage) {
            panic!("the losers' work comes in: {e}\n{}", story(&nodes));
        }
    }
    // All four go on, as one flock.
    let marks: Vec<usize> = nodes.iter().map(Process::mark).collect();
    for (node, mark) in nodes.iter_mut().zip(&marks) {
        let whole = |e: &Value| e["lineage"] == winner && e["voters"] == 4;
        node.wait_since(*mark, LIMIT, "committed", whole).expect("all four vote");
    }
    let (mut roots, mut rounds) = (BTreeMap::new(), BTreeSet::new());
    for node in &nodes {
        for event in node.events().iter().filter(|e| e["event"] == "committed" && e["lineage"] == winner) {
            let root = roots.entry(event["record"].to_string()).or_insert_with(|| event["state_root"].clone());
            assert_eq!(*root, event["state_root"], "one record, two states: {event}");
        }
        let merged = merges(node);
        assert!(merged.len() <= 1, "merged once: {merged:?}");
        rounds.extend(merged);
    }
    assert_eq!(rounds.len(), 1, "in one round: {rounds:?}");
    // Both forms of the status tell of it.
    let merged_in = rounds.first().expect("one").1;
    let mut weights = Vec::new();
    for name in ["founder", "second"] {
        let told: Value = serde_json::from_str(&status(&winners, name, &["--json"])).expect("JSON");
        let merged = told["merged"].as_array().expect("a list").clone();
        assert_eq!(merged.len(), 1, "{told}");
        assert_eq!((&merged[0]["lineage"], merged[0]["round"].as_u64()), (&lineage, Some(merged_in)), "{told}");
        assert!(told["offers"].is_null(), "nothing is left to offer: {told}");
        weights.extend(merged[0]["tokens"].as_u64());
        let text = status(&winners, name, &[]);
        assert!(text.contains(&format!(": in round {merged_in}")), "{text}");
    }
    assert!(
        !weights.is_empty() && weights.iter().all(|tokens| *tokens > 0),
        "who contributed knows what it counted for"
    );
    // Who came before it was merged has kept it, who came later had nothing to keep, and both have nothing left.
    let kept = |node: &Process| node.events().into_iter().find(|e| e["event"] == "difference_kept");
    let kept: Vec<Value> = nodes[2..].iter().filter_map(kept).collect();
    assert!(!kept.is_empty(), "somebody offered it");
    for kept in kept {
        assert!(kept["lineage"] == lineage && kept["tokens"].as_u64() > Some(0), "{kept}");
    }
    for name in ["founder", "second"] {
        assert!(!losers.home(name).join("private").join("difference").exists(), "it is of no use any more");
    }
}
