//! A fork that meets its flock again: it gives way, and its difference is merged once
//! (`docs/protocol/7-merging.md` §7.4).

use serde_json::Value;
use starling_tests::flock::{Flock, NodeOptions, built_binaries};
use starling_tests::process::{Process, run};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

const RUN: &str = "name = \"merging\"\n[model]\npreset = \"0.1m\"\nseq_len = 32\n[data]\nsources = [\"../text.txt\"]\n\
                   holdout = 0.1\n[inner]\nsteps = 2\nbatch = 2\n";

fn options(address: &str, order: &[&str]) -> NodeOptions {
    let mut options = NodeOptions { bootstrap: Some(address.to_owned()), ..NodeOptions::small(false) };
    options.arguments.extend(order.iter().copied().map(String::from));
    options
}

fn flock(folder: &Path, name: &str) -> Flock {
    Flock::start(&built_binaries().expect("the folder of this test"), &folder.join(name), RUN)
        .expect("a bootstrap peer")
}

/// Waits until each of these nodes has committed three times with so many voters.
fn train(nodes: &mut [Process], voters: usize) {
    for node in nodes {
        let mut mark = node.mark();
        for _ in 0..3 {
            node.wait_since(mark, LIMIT, "committed", |e| e["voters"] == voters).expect("they train");
            mark = node.mark();
        }
    }
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

/// The nodes' events, except those of each step of their work: the end of a meeting does not show its course.
fn story(nodes: &[Process]) -> String {
    let work = ["step", "phase", "trained", "attempt_started", "committed", "validated"];
    let telling = |e: &&Value| !work.iter().any(|name| e["event"] == *name);
    let lines = |node: &Process| node.events().iter().filter(telling).map(|e| format!("{e}\n")).collect::<String>();
    nodes.iter().map(|node| format!("{} told:\n{}", node.name, lines(node))).collect()
}

/// Checks that the nodes agree on each state of the lineage, and have all merged once, in one round; returns it.
fn merged_once(nodes: &[Process], lineage: &Value) -> u64 {
    let (mut roots, mut rounds) = (BTreeMap::new(), BTreeSet::new());
    for node in nodes {
        for event in node.events().iter().filter(|e| e["event"] == "committed" && e["lineage"] == *lineage) {
            let root = roots.entry(event["record"].to_string()).or_insert_with(|| event["state_root"].clone());
            assert_eq!(*root, event["state_root"], "one record, two states: {event}");
        }
        let merged = merges(node);
        assert!(merged.len() <= 1, "merged once: {merged:?}");
        rounds.extend(merged);
    }
    assert_eq!(rounds.len(), 1, "in one round: {rounds:?}");
    rounds.first().expect("one").1
}

/// Checks that both forms of a node's status report the merge of the fork; returns the tokens that the merge counted.
fn told_merge(flock: &Flock, name: &str, fork: &Value, round: u64) -> Option<u64> {
    let told: Value = serde_json::from_str(&status(flock, name, &["--json"])).expect("JSON");
    let merged = told["merged"].as_array().expect("a list");
    assert_eq!(merged.len(), 1, "{told}");
    assert_eq!((&merged[0]["lineage"], merged[0]["round"].as_u64()), (fork, Some(round)), "{told}");
    assert!(told["offers"].is_null(), "nothing is left to offer: {told}");
    let text = status(flock, name, &[]);
    assert!(text.contains(&format!(": in round {round}")), "{text}");
    merged[0]["tokens"].as_u64()
}

#[test]
fn the_work_of_a_fork_that_gives_way_is_merged_once() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text: String = (0..2000).map(|n| format!("line {n}: some text {}\n", n * 7919 % 1000)).collect();
    std::fs::write(folder.path().join("text.txt"), text).expect("write");
    let (flock, elsewhere) = (flock(folder.path(), "flock"), flock(folder.path(), "elsewhere"));
    let node = |name: &str, address: &str, order: &[&str]| flock.node(name, &options(address, order));
    let here = flock.address.clone();
    let mut first = vec![node("founder", &here, &["--init"]).expect("a node")];
    let winner = first[0].wait(LIMIT, "founded", |_| true).expect("it founds")["lineage"].clone();
    for name in ["second", "third"] {
        first.push(node(name, &here, &[]).expect("a node"));
    }
    train(&mut first, 3);
    // Two of three keep the quorum, and go on for longer than the fork will.
    first[0].kill();
    train(&mut first[1..], 2);
    first.iter_mut().for_each(Process::kill);
    // The founder goes on as a fork by its operator's order, with a newcomer, without contact to the others.
    let mut gone = vec![node("founder", &elsewhere.address, &["--force-lineage"]).expect("a node")];
    let lineage = gone[0].wait(LIMIT, "forked", |_| true).expect("it forks")["lineage"].clone();
    gone.push(node("fourth", &elsewhere.address, &[]).expect("a node"));
    train(&mut gone, 2);
    // The fork is killed: a member that leaves in good order has no vote in the last record, and keeps no difference.
    gone.iter_mut().for_each(Process::kill);
    let mut nodes = vec![node("second", &here, &[]).expect("a node"), node("third", &here, &[]).expect("a node")];
    train(&mut nodes, 2);
    for name in ["founder", "fourth"] {
        nodes.push(node(name, &here, &[]).expect("a node"));
    }
    for n in 0..2 {
        if let Err(e) = nodes[n].wait(LIMIT, "merged", |e| e["lineage"] == lineage) {
            panic!("the fork's work comes in: {e}\n{}", story(&nodes));
        }
    }
    // All four nodes go on, as one flock.
    let marks: Vec<usize> = nodes.iter().map(Process::mark).collect();
    for (node, mark) in nodes.iter_mut().zip(&marks) {
        let whole = |e: &Value| e["lineage"] == winner && e["voters"] == 4;
        node.wait_since(*mark, LIMIT, "committed", whole).expect("all four vote");
    }
    let round = merged_once(&nodes, &winner);
    let told = ["second", "third"].map(|name| told_merge(&flock, name, &lineage, round));
    let weights: Vec<u64> = told.into_iter().flatten().collect();
    assert!(
        !weights.is_empty() && weights.iter().all(|tokens| *tokens > 0),
        "who contributed knows what it counted for"
    );
    // A node that joined before the merge kept the difference; one that joined later had none; now neither has one.
    let kept = |node: &Process| node.events().into_iter().find(|e| e["event"] == "difference_kept");
    let kept: Vec<Value> = nodes[2..].iter().filter_map(kept).collect();
    assert!(!kept.is_empty(), "somebody offered it");
    for kept in kept {
        assert!(kept["lineage"] == lineage && kept["tokens"].as_u64() > Some(0), "{kept}");
    }
    for name in ["founder", "fourth"] {
        assert!(!flock.home(name).join("private").join("difference").exists(), "it is of no use any more");
    }
}
