//! Real nodes on loopback that lose others, have a memory fault, or have a duplicate identity; and the policies of a
//! run.

use serde_json::Value;
use starling_kernels::ModelConfig;
use starling_tests::flock::{Flock, NodeOptions, built_binaries};
use starling_tests::memory;
use starling_tests::process::{Process, run};
use starling_tests::skips::skipped;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(120);
const SEED: u64 = 11;
/// A process without a message for this long counts as dead.
const SILENCE: Duration = Duration::from_secs(8);

/// A flock on a fixed text; `tables` ends its run file.
fn flock(lr: &str, tables: &str) -> (TempDir, Flock) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text: String = (0..2000).map(|n| format!("line {n}: some text {}\n", n * 7919 % 1000)).collect();
    std::fs::write(folder.path().join("text.txt"), text).expect("write");
    let run_toml = format!(
        "name = \"survivors\"\nseed = {SEED}\n[model]\npreset = \"0.1m\"\nseq_len = 32\n[data]\n\
         sources = [\"text.txt\"]\nholdout = 0.1\n[inner]\nsteps = 2\nbatch = 2\nlr = {lr}\n{tables}"
    );
    let bin = built_binaries().expect("the folder of this test");
    let flock = Flock::start(&bin, folder.path(), &run_toml).expect("a bootstrap peer");
    (folder, flock)
}

/// Starts nodes `node-0` and on, the first of which founds; returns them when all vote.
fn nodes(flock: &Flock, count: usize) -> Vec<Process> {
    let mut nodes = flock.small_nodes(count, LIMIT).expect("nodes");
    for node in &mut nodes {
        node.wait(LIMIT, "committed", |e| voters(e) == count as u64).expect("all vote");
    }
    nodes
}

fn voters(event: &Value) -> u64 {
    event["voters"].as_u64().unwrap_or_default()
}

fn contributors(event: &Value) -> usize {
    event["contributors"].as_array().map_or(0, Vec::len)
}

fn named(event: &Value, name: &str) -> bool {
    event["event"] == name
}

/// The first accepted event after the mark, of any name.
fn first(node: &mut Process, mark: usize, accept: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(event) = node.events()[mark..].iter().find(|e| accept(e)) {
            return event.clone();
        }
        assert!(Instant::now() < deadline && !node.has_exited(), "no such event: {}", node.last_words());
        std::thread::park_timeout(Duration::from_millis(50));
    }
}

fn status(flock: &Flock, name: &str, more: &[&str]) -> String {
    let home = flock.home(name).to_string_lossy().into_owned();
    let arguments: Vec<&str> = ["status", "--home", &home].into_iter().chain(more.iter().copied()).collect();
    run(&flock.bin_dir.join("starling"), &arguments, LIMIT).expect("it ends").stdout
}

/// Checks that a place in a lineage has one record, and a record has one state. `logs` also holds the events of former
/// processes.
fn assert_one_history(flock: &Flock) {
    let (mut records, mut roots) = (BTreeMap::new(), BTreeMap::new());
    for file in std::fs::read_dir(flock.folder.join("logs")).expect("logs").flatten() {
        let text = std::fs::read_to_string(file.path()).unwrap_or_default();
        let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        for event in events.filter(|e| named(e, "committed")) {
            let place = (event["lineage"].to_string(), event["seq"].as_u64());
            let record = event["record"].to_string();
            let known = records.entry(place).or_insert_with(|| record.clone());
            assert_eq!(*known, record, "two records at one place: {event}");
            let root = roots.entry(record).or_insert_with(|| event["state_root"].clone());
            assert_eq!(*root, event["state_root"], "one record, two states: {event}");
        }
    }
    assert!(!records.is_empty(), "something was committed");
}

/// The number of the senior voter of two nodes, as both of them see it.
fn senior(flock: &Flock) -> usize {
    let deadline = Instant::now() + LIMIT;
    loop {
        let said = [0, 1].map(|n| status(flock, &format!("node-{n}"), &["--json"]));
        let said = said.map(|text| serde_json::from_str::<Value>(&text).unwrap_or_default());
        let named = said.each_ref().map(|status| status["quorum"]["distinguished"].as_str());
        let agreed = named[0].filter(|_| named[0] == named[1]);
        if let Some(n) = agreed.and_then(|id| said.iter().position(|status| status["node"] == id)) {
            return n;
        }
        assert!(Instant::now() < deadline, "the two do not agree: {named:?}");
        std::thread::park_timeout(Duration::from_millis(100));
    }
}

/// Waits until a node says this in its status.
fn says(flock: &Flock, name: &str, words: &str) {
    let deadline = Instant::now() + LIMIT;
    loop {
        let said = status(flock, name, &[]);
        if said.contains(words) {
            return;
        }
        assert!(Instant::now() < deadline, "{name} does not say {words:?}: {said}");
        std::thread::park_timeout(Duration::from_millis(100));
    }
}

/// Kills the voter of two that came later, which comes back, and then the senior one.
fn one_of_two_is_killed(policy: &str) -> (TempDir, Flock, Vec<Process>) {
    let (folder, flock) = flock("1e-3", &format!("[partition]\nminority = \"{policy}\"\ngrace_s = 3\n"));
    let mut nodes = nodes(&flock, 2);
    assert_eq!(senior(&flock), 0, "the founder came first");
    for senior_is_lost in [false, true] {
        let older = senior(&flock);
        let (survivor, victim) = if senior_is_lost { (1 - older, older) } else { (older, 1 - older) };
        let (killed, alone) = (format!("node-{victim}"), format!("node-{survivor}"));
        let promise = match policy {
            _ if !senior_is_lost => "is lost, this node goes on at once",
            "fork" => "is lost, this node goes on by itself after 3 s",
            "wait" => "is lost, this node waits until both are here",
            _ => "is lost, this node stops until both are here",
        };
        says(&flock, &alone, promise);
        let mark = nodes[survivor].mark();
        nodes[victim].kill();
        let node = &mut nodes[survivor];
        let fate = first(node, mark, |e| named(e, "quorum_lost") || (named(e, "committed") && contributors(e) == 1));
        assert_eq!(named(&fate, "quorum_lost"), senior_is_lost, "it has said that it {promise}: {fate}");
        if senior_is_lost {
            let said = (fate["policy"].as_str(), fate["missing"].as_array().map(Vec::len));
            assert_eq!(said, (Some(policy), Some(1)), "{fate}");
            quorum_lost_survivor(&flock, node, &alone, policy, mark);
        } else {
            assert!(!node.events()[mark..].iter().any(|e| named(e, "forked")), "it is the flock: {fate}");
        }
        let before = nodes[survivor].mark();
        nodes[victim] = flock.node(&killed, &NodeOptions::small(false)).expect("a node");
        if senior_is_lost && policy != "fork" {
            nodes[survivor].wait_since(before, LIMIT, "rejoined", |_| true).expect("the quorum is back");
            let events = nodes[survivor].events();
            let since = events.iter().position(|e| *e == fate).expect("it is there");
            let until = since + events[since..].iter().position(|e| named(e, "rejoined")).expect("it is there");
            assert!(!events[since..until].iter().any(|e| named(e, "committed")), "half of the flock decided");
        }
        for node in &mut nodes {
            let mark = if node.name == alone { before } else { 0 };
            // An absent member keeps its seat for a record, and a member that comes back from a fork votes only after
            // it has contributed under its new incarnation.
            let both = |e: &Value| voters(e) == 2 && contributors(e) == 2;
            node.wait_since(mark, LIMIT, "committed", both).expect("both vote again");
        }
    }
    assert_one_history(&flock);
    (folder, flock, nodes)
}

/// Checks the policy for a node that has lost the quorum, by its events and its status.
fn quorum_lost_survivor(flock: &Flock, node: &mut Process, name: &str, policy: &str, mark: usize) {
    if policy == "fork" {
        let forked = node.wait_since(mark, LIMIT, "forked", |_| true).expect("it goes on after the grace");
        assert_eq!(forked["members"].as_array().map(Vec::len), Some(1), "{forked}");
        node.wait_since(mark, LIMIT, "committed", |e| e["lineage"] == forked["lineage"]).expect("in its own lineage");
        return;
    }
    let said = status(flock, name, &[]);
    let promise = if policy == "wait" { "waits for the others" } else { "has stopped until the others are back" };
    assert!(said.contains("no quorum") && said.contains(promise), "{said}");
}

#[test]
fn the_senior_of_two_voters_goes_on_at_once_and_the_other_forks() {
    one_of_two_is_killed("fork");
}

#[test]
fn the_senior_of_two_voters_goes_on_at_once_and_the_other_waits() {
    one_of_two_is_killed("wait");
}

#[test]
fn the_other_of_two_voters_halts_until_it_is_told_to_go_on_alone() {
    let (_folder, flock, mut nodes) = one_of_two_is_killed("halt");
    // No other node is there: the operator's order makes a lineage of the state on disk. The senior one may decide
    // alone until it is killed, too.
    for node in nodes.iter_mut().rev() {
        node.kill();
    }
    let heads: Vec<Value> = nodes.iter().map(newest).collect();
    let mut forced = NodeOptions::small(false);
    forced.arguments.push("--force-lineage".into());
    nodes[0] = flock.node("node-0", &forced).expect("a node");
    let forked = nodes[0].wait(LIMIT, "forked", |_| true).expect("it goes on alone");
    assert_ne!(forked["lineage"], heads[0]["lineage"]);
    let next = nodes[0].wait(LIMIT, "committed", |_| true).expect("and trains");
    assert_eq!(next["lineage"], forked["lineage"]);
    assert!(next["round"].as_u64() > heads[0]["round"].as_u64(), "from the state at hand: {next}");
    // The other node finds the new lineage and joins it: without the senior one it decides nothing in the old one.
    nodes[1] = flock.node("node-1", &NodeOptions::small(false)).expect("a node");
    let both = nodes[0].wait(LIMIT, "committed", |e| voters(e) == 2).expect("one flock again");
    assert_eq!(both["lineage"], forked["lineage"], "{both}");
    nodes[1].wait(LIMIT, "committed", |e| e["record"] == both["record"]).expect("the same flock");
    assert_one_history(&flock);
}

fn newest(node: &Process) -> Value {
    node.events().iter().rev().find(|e| named(e, "committed")).cloned().expect("a commit")
}

/// The nodes learn nothing, so the state stays the initial one, which the test can find in a process's memory.
#[test]
fn a_node_with_another_result_than_the_flock_fetches_the_state_and_is_back() {
    let model = ModelConfig::preset("0.1m").expect("a preset");
    let theta = starling_kernels::initial_parameters(&model, SEED);
    let bytes = |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|v| v.to_le_bytes()).collect() };
    let sound = bytes(&theta[1_000..1_016]);
    let mut faulty = sound.clone();
    faulty[20] ^= 0x10;
    let (_folder, flock) = flock("1e-30", "");
    let mut nodes = nodes(&flock, 3);
    let mark = nodes[2].mark();
    match memory::replace(nodes[2].id(), &sound, &faulty) {
        Err(why) => return skipped(format_args!("the memory of another process cannot be changed here: {why:#}")),
        Ok(places) => assert!(places > 0, "the parameters are in memory"),
    }
    let fault = nodes[2].wait_since(mark, LIMIT, "own_fault", |_| true).expect("it notices");
    // A change between a commit and its snapshot is noticed and mended from disk before any disagreement.
    if !fault["detail"].as_str().is_some_and(|detail| detail.contains("read from disk again")) {
        nodes[2].wait_since(mark, LIMIT, "catching_up", |e| e["afresh"] == true).expect("it fetches the state");
        nodes[2].wait_since(mark, LIMIT, "caught_up", |_| true).expect("and has it");
    }
    let after = nodes[2].mark();
    let back = nodes[2].wait_since(after, LIMIT, "committed", |e| contributors(e) == 3 && voters(e) == 3);
    let back = back.expect("it contributes again");
    let same = nodes[0].wait(LIMIT, "committed", |e| e["record"] == back["record"]).expect("the others have it too");
    assert_eq!(same["state_root"], back["state_root"], "after {fault}");
    assert!(!nodes[0].events().iter().any(|e| named(e, "own_fault")), "the others are sound");
    assert_one_history(&flock);
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder").flatten() {
        let (kind, target) = (entry.file_type().expect("a kind"), to.join(entry.file_name()));
        if kind.is_dir() {
            copy_folder(&entry.path(), &target);
        } else if kind.is_file() {
            std::fs::copy(entry.path(), target).expect("a file");
        }
    }
}

/// Starts a copy of a running node, which has to end by itself, without an effect on other nodes.
fn a_clone_gives_way(flock: &Flock, nodes: &mut [Process], original: usize, copy: &str) {
    let me = nodes[original].events().iter().rev().find_map(|e| e["node"].as_str().map(String::from));
    let me = me.expect("a node says who it is");
    let marks: Vec<usize> = nodes.iter().map(Process::mark).collect();
    let began = Instant::now();
    let mut clone = flock.node(copy, &NodeOptions::small(false)).expect("a node");
    let status = clone.wait_exit(LIMIT).expect("it gives way");
    println!("{copy} ended after {:.1} s", began.elapsed().as_secs_f64());
    let (words, events) = (clone.last_words(), clone.events());
    assert_eq!(status.code(), Some(6), "{words}");
    assert!(words.contains("identity in use"), "{words}");
    assert!(!events.iter().any(|e| named(e, "committed")), "it took part: {events:?}");
    let original_id = nodes[original].id();
    for (node, mark) in nodes.iter_mut().zip(marks) {
        let after = node.mark();
        node.wait_since(after, LIMIT, "committed", |e| contributors(e) == 3).expect("it goes on");
        let events = &node.events()[mark..];
        let all = |e: &&Value| !named(e, "committed") || (contributors(e) == 3 && voters(e) == 3);
        assert_eq!(events.iter().find(|e| !all(e)), None, "somebody was left out");
        let calm = ["quorum_lost", "own_fault", "new_incarnation", "evidence", "skipped", "attempt_failed", "finished"];
        let disturbed = |e: &&Value| calm.iter().any(|name| named(e, name));
        assert_eq!(events.iter().find(disturbed), None, "{}: it was disturbed", node.name);
        let lost = events.iter().find(|e| named(e, "peer_down") && (node.id() == original_id || e["peer"] == *me));
        assert_eq!(lost, None, "{}: the original's sessions stay", node.name);
        for refused in events.iter().filter(|e| named(e, "refused")) {
            assert!(refused["reason"].as_str().is_some_and(|why| why.contains("in use")), "{refused}");
            assert_eq!(refused["peer"], *me);
        }
    }
    let told = |node: &Process| node.events().iter().any(|e| named(e, "refused") && e["peer"] == *me);
    assert!(nodes.iter().any(told), "the operators learn of it");
}

/// T7. A folder is copied to a second machine, and started there while the original runs.
#[test]
fn the_newer_of_two_processes_with_one_key_ends_and_the_older_goes_on() {
    let (_folder, flock) = flock("1e-3", "");
    let mut nodes = nodes(&flock, 3);
    // The first copy is a whole folder, as it is after a kill. The second is the key alone, of another node, whose id
    // may compare differently with its peers' ids.
    nodes[1].kill();
    copy_folder(&flock.home("node-1"), &flock.home("copy-1"));
    nodes[1] = flock.node("node-1", &NodeOptions::small(false)).expect("a node");
    let mark = nodes[0].mark();
    let back = |e: &Value| contributors(e) == 3 && voters(e) == 3;
    nodes[0].wait_since(mark, LIMIT, "committed", back).expect("it is back");
    let (home, copy) = (flock.home("node-2"), flock.home("copy-2"));
    std::fs::create_dir_all(&copy).expect("a folder");
    std::fs::copy(home.join("key"), copy.join("key")).expect("the key");
    for original in [1, 2] {
        a_clone_gives_way(&flock, &mut nodes, original, &format!("copy-{original}"));
        // The original may be killed and started again as usual, and its peers wait for no silence.
        let mark = nodes[0].mark();
        let me = nodes[original].events().iter().find_map(|e| e["node"].as_str().map(String::from));
        nodes[original].kill();
        nodes[0].wait_since(mark, LIMIT, "peer_down", |e| e["peer"].as_str() == me.as_deref()).expect("it is gone");
        let began = Instant::now();
        nodes[original] = flock.node(&format!("node-{original}"), &NodeOptions::small(false)).expect("a node");
        nodes[0].wait_since(mark, LIMIT, "peer_up", |e| e["peer"].as_str() == me.as_deref()).expect("it is back");
        assert!(began.elapsed() < SILENCE, "admitted only after {:?}", began.elapsed());
        let mark = nodes[0].mark();
        nodes[0].wait_since(mark, LIMIT, "committed", back).expect("it contributes and votes");
    }
    assert_one_history(&flock);
}
