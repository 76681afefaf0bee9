//! Real nodes on loopback: they train together, lose one, gain one, and lose all.

use serde_json::Value;
use starling_bootstrap::ticket::Ticket;
use starling_tests::flock::{Flock, NodeOptions, built_binaries};
use starling_tests::process::{Process, run, run_fed};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::TcpListener;
use std::process::Stdio;
use std::time::Duration;
use tempfile::TempDir;

/// Rounds of a few tens of milliseconds.
const ROUNDS: u64 = 500;
const LIMIT: Duration = Duration::from_secs(120);

/// Text that a byte model learns quickly, and enough of it for a few thousand sequences.
fn text() -> String {
    (0..4000).map(|n| format!("line {n}: the quick brown fox jumps over the lazy dog {}\n", n * 7919 % 1000)).collect()
}

fn run_toml(rounds: u64) -> String {
    format!(
        "name = \"flock\"\n[model]\npreset = \"0.1m\"\nseq_len = 64\n[data]\nsources = [\"text.txt\"]\nholdout = 0.1\n\
         [inner]\nsteps = 4\nbatch = 2\n[budget]\nrounds = {rounds}\n"
    )
}

fn flock(rounds: u64) -> (TempDir, Flock) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("text.txt"), text()).expect("write");
    let bin = built_binaries().expect("the folder of this test");
    let flock = Flock::start(&bin, folder.path(), &run_toml(rounds)).expect("a bootstrap peer");
    (folder, flock)
}

fn contributors(event: &Value) -> usize {
    event["contributors"].as_array().map_or(0, Vec::len)
}

/// Checks that each record has one state root, over all events of these nodes.
fn assert_parity(nodes: &[&Process]) {
    let mut roots = BTreeMap::new();
    for event in nodes.iter().flat_map(|n| n.events()).filter(|e| e["event"] == "committed") {
        let record = event["record"].to_string();
        let root = roots.entry(record).or_insert_with(|| event["state_root"].clone()).clone();
        assert_eq!(root, event["state_root"], "one record, two states: {event}");
    }
    assert!(!roots.is_empty(), "something was committed");
}

fn final_root(node: &Process) -> String {
    let events = node.events();
    let last = events.iter().rev().find(|e| e["event"] == "committed").expect("a commit");
    last["state_root"].to_string()
}

#[test]
fn two_nodes_train_and_end_with_equal_state() {
    // The run is long enough for the second node to join, at any pace of the machine.
    let (_folder, flock) = flock(ROUNDS);
    let mut first = flock.node("first", &NodeOptions::small(true)).expect("a node");
    first.wait(LIMIT, "founded", |_| true).expect("it founds");
    let mut second = flock.node("second", &NodeOptions::small(false)).expect("a node");
    first.wait(LIMIT, "committed", |e| contributors(e) == 2).expect("both contribute");
    for node in [&mut first, &mut second] {
        let status = node.wait_exit(LIMIT).expect("it ends by its budget");
        assert!(status.success(), "{status}: {}", node.last_words());
        node.wait(LIMIT, "checkpoint", |e| e["round"] == ROUNDS).expect("a final checkpoint");
    }
    assert_parity(&[&first, &second]);
    assert_eq!(final_root(&first), final_root(&second));
    let checkpoint = first.wait(LIMIT, "checkpoint", |_| true).expect("a checkpoint");
    let folder = checkpoint["path"].as_str().expect("a path").to_string();
    let starling = flock.bin_dir.join("starling");
    let verified = run(&starling, &["checkpoint", "verify", &folder], LIMIT).expect("it ends");
    assert_eq!(verified.code, Some(0), "{}", verified.stderr);
    let generated =
        run(&starling, &["generate", "--checkpoint", &folder, "--prompt", "line ", "--tokens", "16"], LIMIT);
    assert!(generated.expect("it ends").stdout.starts_with("line "));
}

#[test]
fn the_killed_are_left_behind_and_come_back() {
    let (_folder, flock) = flock(1_000_000);
    let mut nodes: Vec<Process> = Vec::new();
    for n in 0..3 {
        let mut node = flock.node(&format!("node-{n}"), &NodeOptions::small(n == 0)).expect("a node");
        if n == 0 {
            node.wait(LIMIT, "founded", |_| true).expect("it founds");
        }
        nodes.push(node);
    }
    nodes[0].wait(LIMIT, "committed", |e| contributors(e) == 3).expect("all contribute");

    nodes[2].kill();
    let mark = nodes[0].mark();
    nodes[0].wait_since(mark, LIMIT, "committed", |e| contributors(e) == 2).expect("the others go on");
    nodes[2] = flock.node("node-2", &NodeOptions::small(false)).expect("a node");
    nodes[2].wait(LIMIT, "committed", |e| contributors(e) == 3).expect("it contributes again");

    // The guest has nothing but a ticket: no run file, no text, an empty disk.
    let ticket = flock.invite("node-1").expect("a ticket");
    let named: BTreeSet<_> = ticket.parse::<Ticket>().expect("a ticket").addresses.iter().map(|of| of.peer).collect();
    assert!(named.len() == 3 && ticket.len() <= 260, "the node, its well-known peer, and a member: {ticket}");
    let by_ticket = NodeOptions { ticket: Some(ticket), ..NodeOptions::small(false) };
    let mut guest = flock.node("guest", &by_ticket).expect("a node");
    guest.wait(LIMIT, "committed", |e| contributors(e) == 4).expect("the guest contributes");

    // Now all nodes are killed at once.
    nodes.push(guest);
    let round = |node: &Process| {
        let events = node.events();
        events.iter().rev().find(|e| e["event"] == "committed").and_then(|e| e["round"].as_u64()).expect("a commit")
    };
    let before = nodes.iter().map(round).max().expect("four nodes");
    assert_parity(&nodes.iter().collect::<Vec<_>>());
    for node in &mut nodes {
        node.kill();
    }
    let mut again: Vec<Process> =
        (0..3).map(|n| flock.node(&format!("node-{n}"), &NodeOptions::small(false)).expect("a node")).collect();
    // The guest's folder has all that it needs.
    again.push(flock.node("guest", &NodeOptions { again: true, ..NodeOptions::default() }).expect("a node"));
    let first = again[0].wait(LIMIT, "committed", |_| true).expect("they go on");
    let after = first["round"].as_u64().expect("a round");
    assert!(
        (before..=before + 2).contains(&after),
        "round {after} after round {before}: not from zero, nothing skipped"
    );
    again[0].wait(LIMIT, "committed", |e| contributors(e) >= 3).expect("together again");
    assert_parity(&again.iter().collect::<Vec<_>>());
}

#[test]
fn a_ticket_outlives_a_restart_of_its_inviter() {
    let (folder, flock) = flock(1_000_000);
    let mut first = flock.node("first", &NodeOptions::small(true)).expect("a node");
    first.wait(LIMIT, "committed", |_| true).expect("it trains");
    let text = flock.invite("first").expect("a ticket");
    let ticket: Ticket = text.parse().expect("a ticket");
    let named: Vec<String> = ticket.addresses.iter().map(ToString::to_string).collect();
    assert!(named.len() == 2 && named[1] == flock.address, "the node, and its well-known peer: {named:?}");
    assert!(text.len() <= 260, "{}", text.len());

    first.kill();
    let again = NodeOptions { again: true, ..NodeOptions::default() };
    let mut first = flock.node("first", &again).expect("a node");
    let listening = first.wait(LIMIT, "listening", |_| true).expect("it listens");
    assert_eq!(listening["address"], named[0], "it has kept its port");

    // Another process takes the port. The well-known peer still leads from the ticket to the node.
    first.kill();
    let port: u16 = named[0].split('/').nth(4).and_then(|port| port.parse().ok()).expect("a port");
    let thief = TcpListener::bind(("127.0.0.1", port)).expect("it is free");
    let mut first = flock.node("first", &again).expect("a node");
    let listening = first.wait(LIMIT, "listening", |_| true).expect("it listens elsewhere");
    assert_ne!(listening["address"], named[0]);
    drop(thief);
    let by_ticket = NodeOptions { ticket: Some(text.clone()), ..NodeOptions::small(false) };
    let mut guest = flock.node("guest", &by_ticket).expect("a node");
    guest.wait(LIMIT, "committed", |e| contributors(e) == 2).expect("the guest contributes");

    // A run file beside a ticket must be the run's, also if the ticket comes from another program.
    let other = folder.path().join("other.toml");
    std::fs::write(&other, run_toml(1_000_000).replace("steps = 4", "steps = 5")).expect("write");
    let (other, home) = (other.to_string_lossy(), flock.home("other").to_string_lossy().into_owned());
    let cache = flock.shared_cache().to_string_lossy().into_owned();
    let piped = folder.path().join("ticket.txt");
    std::fs::write(&piped, format!("{text}\n")).expect("write");
    let piped = File::open(piped).expect("it is there");
    let starling = flock.bin_dir.join("starling");
    for (join, input) in [(text.as_str(), Stdio::null()), ("-", Stdio::from(piped))] {
        let flags = ["train", "--join", join, "--run", &other, "--home", &home, "--cache", &cache, "--metrics", "off"];
        let refused = run_fed(folder.path(), &starling, &flags, input, LIMIT).expect("it ends");
        assert_eq!(refused.code, Some(3), "--join {join}: {}", refused.stderr);
        assert!(refused.stderr.contains("different runs") && refused.stderr.contains("--run"), "{}", refused.stderr);
    }
}

#[test]
fn a_node_without_a_flock_says_that_it_waits() {
    let (_folder, flock) = flock(5);
    let mut lost = flock.node("lost", &NodeOptions::small(false)).expect("a node");
    let waiting = lost.wait(LIMIT, "waiting", |_| true).expect("it says so");
    assert!(waiting["why"].as_str().is_some_and(|why| why.contains("flock")), "{waiting}");
    let home = flock.home("lost").to_string_lossy().into_owned();
    let status = run(&flock.bin_dir.join("starling"), &["status", "--home", &home], LIMIT).expect("it answers");
    assert_eq!(status.code, Some(0), "{}", status.stderr);
    assert!(status.stdout.contains("no flock met yet") && status.stdout.contains("waiting"), "{}", status.stdout);
    lost.terminate();
    assert!(lost.wait_exit(Duration::from_secs(10)).expect("within 10 s").success());
}

#[test]
fn another_run_is_refused_by_name_of_the_key() {
    let (folder, flock) = flock(1_000_000);
    let mut first = flock.node("first", &NodeOptions::small(true)).expect("a node");
    first.wait(LIMIT, "committed", |_| true).expect("it trains");
    let other = folder.path().join("other.toml");
    std::fs::write(&other, run_toml(1_000_000).replace("steps = 4", "steps = 5")).expect("write");
    let options = NodeOptions { run_file: Some(other), ..NodeOptions::small(false) };
    let mut stranger = flock.node("stranger", &options).expect("a node");
    let status = stranger.wait_exit(LIMIT).expect("it ends");
    assert_eq!(status.code(), Some(3), "{}", stranger.last_words());
    assert!(stranger.last_words().contains("inner.steps"), "{}", stranger.last_words());
}
