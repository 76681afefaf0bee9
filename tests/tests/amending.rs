//! Real nodes on loopback whose run is amended: by a quorum's operators, and by its creator after its end. Of
//! amendments that contradict each other one is in force.

use rustix::process::Signal;
use serde_json::Value;
use starling_tests::flock::{Flock, NodeOptions, built_binaries};
use starling_tests::process::{Finished, Process, run};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(120);

fn flock(inner: &str, tables: &str) -> (TempDir, Flock) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text: String = (0..2000).map(|n| format!("line {n}: some text {}\n", n * 7919 % 1000)).collect();
    std::fs::write(folder.path().join("text.txt"), text).expect("write");
    let run_toml = format!(
        "name = \"amended\"\n[model]\npreset = \"0.1m\"\nseq_len = 32\n[data]\nsources = [\"text.txt\"]\n\
         holdout = 0.1\n[inner]\n{inner}\n[partition]\nminority = \"wait\"\n{tables}"
    );
    let bin = built_binaries().expect("the folder of this test");
    let flock = Flock::start(&bin, folder.path(), &run_toml).expect("a bootstrap peer");
    (folder, flock)
}

fn starling(flock: &Flock, command: &str, name: &str, more: &[&str]) -> Finished {
    let home = flock.home(name).to_string_lossy().into_owned();
    let arguments: Vec<&str> = [command, "--home", &home].into_iter().chain(more.iter().copied()).collect();
    run(&flock.bin_dir.join("starling"), &arguments, LIMIT).expect("it ends")
}

/// Hands in an amendment on a node, running or not, and returns its id.
fn change(flock: &Flock, name: &str, changes: &[&str]) -> String {
    let asked = starling(flock, "change", name, changes);
    assert_eq!(asked.code, Some(0), "{}", asked.stderr);
    asked.stdout.split(['(', ')']).nth(1).expect("an id").to_owned()
}

/// The ids of the amendments that wait for a record, as a node knows them.
fn waiting(flock: &Flock, name: &str) -> BTreeSet<String> {
    let told = starling(flock, "status", name, &["--json"]);
    assert_eq!(told.code, Some(0), "{}", told.stderr);
    let status: Value = serde_json::from_str(&told.stdout).expect("JSON");
    let proposals = status["proposals"].as_array().into_iter().flatten();
    proposals.map(|proposal| proposal["id"].as_str().expect("an id").to_owned()).collect()
}

fn again(flock: &Flock, name: &str) -> Process {
    flock.node(name, &NodeOptions { again: true, ..NodeOptions::default() }).expect("a node")
}

/// The id and the first round of the newest amendment that a node says to be in force.
fn amended(node: &mut Process) -> (String, u64, Value) {
    let event = node.wait(LIMIT, "amended", |_| true).expect("the amendment is in force");
    (
        event["id"].as_str().unwrap_or_default().into(),
        event["round"].as_u64().unwrap_or_default(),
        event["changes"].clone(),
    )
}

#[test]
fn a_quorums_operators_amend_a_run_and_a_node_that_was_away_goes_by_it() {
    let (_folder, flock) = flock("steps = 2\nbatch = 2", "");
    let mut nodes = flock.small_nodes(4, LIMIT).expect("four nodes");
    nodes[0].wait(LIMIT, "committed", |e| e["voters"].as_u64() == Some(4)).expect("all four vote");
    // One is away, and hears of nothing. One operator of the three that are left is no quorum.
    nodes[3].kill();
    let fixed = starling(&flock, "change", "node-0", &["model.layers=3"]);
    assert_eq!(fixed.code, Some(2), "{}", fixed.stderr);
    assert!(fixed.stderr.contains("cannot change in a run"), "{}", fixed.stderr);
    let wrong = starling(&flock, "change", "node-0", &["lr=0"]);
    assert_eq!(wrong.code, Some(2), "{}", wrong.stderr);
    let id = change(&flock, "node-0", &["lr=0.0001", "clip=0.5"]);
    // The others hear of it, and their operators agree. The last of them may come too late to matter.
    let agree = |name: &str| starling(&flock, "agree", name, &[&id[..16]]);
    let deadline = Instant::now() + LIMIT;
    loop {
        let asked = agree("node-1");
        if asked.code == Some(0) {
            break;
        }
        assert!(Instant::now() < deadline, "the second node never heard of {id}: {}", asked.stderr);
        std::thread::park_timeout(Duration::from_millis(100));
    }
    agree("node-2");
    let (first, second, third) = (amended(&mut nodes[0]), amended(&mut nodes[1]), amended(&mut nodes[2]));
    assert_eq!((&first, &first), (&second, &third), "one amendment, from one round on");
    assert_eq!((first.0.as_str(), first.2["inner.lr"].as_str()), (id.as_str(), Some("0.0001")));
    nodes[3] = again(&flock, "node-3");
    assert_eq!(amended(&mut nodes[3]).0, id);
    let status = starling(&flock, "status", "node-3", &[]);
    assert!(status.stdout.contains("amended once: inner.clip = 0.5, inner.lr = 0.0001"), "{}", status.stdout);
}

/// Checks that all nodes, in all their processes, have one record and one state of each round up to the last, and that
/// each of them has come to the last.
fn assert_one_history(flock: &Flock, nodes: usize, last: u64) {
    let mut rounds: BTreeMap<u64, [String; 3]> = BTreeMap::new();
    for n in 0..nodes {
        let path = flock.folder.join("logs").join(format!("node-{n}.jsonl"));
        let text = std::fs::read_to_string(path).expect("a log");
        let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut newest = 0;
        for event in events.filter(|e| e["event"] == "committed") {
            let round = event["round"].as_u64().expect("a round");
            let said = [&event["lineage"], &event["record"], &event["state_root"]].map(ToString::to_string);
            let known = rounds.entry(round).or_insert_with(|| said.clone());
            assert_eq!(*known, said, "node-{n} has another round {round}");
            newest = newest.max(round);
        }
        assert_eq!(newest, last, "node-{n} has come to another end");
    }
    assert!(rounds.keys().copied().eq(1..=last), "a round is missing: {:?}", rounds.keys());
}

/// Gives the run file of the flock a creator: its first node.
fn let_the_first_node_create(flock: &mut Flock) {
    let home = flock.home("node-0");
    std::fs::create_dir_all(&home).expect("a folder");
    let creator = starling_bootstrap::identity::load_or_create(&home.join("key")).expect("a key").node_id();
    let text = std::fs::read_to_string(&flock.run_file).expect("the run file");
    flock.run_file = flock.folder.join("created.toml");
    let text = text.replace("[model]", &format!("creator = \"{creator}\"\n[model]"));
    std::fs::write(&flock.run_file, text).expect("write");
}

#[test]
fn a_run_that_is_over_goes_on_when_its_creator_adds_to_the_budget() {
    // A step takes a tenth of a second, so that all three have come long before the first end.
    let (_folder, mut flock) = flock("steps = 1\nbatch = 256", "[budget]\nrounds = 60\n");
    let_the_first_node_create(&mut flock);
    let mut nodes = flock.small_nodes(3, LIMIT).expect("three nodes");
    for node in &mut nodes {
        node.wait(LIMIT, "committed", |e| e["voters"].as_u64() == Some(3)).expect("all three vote before the end");
    }
    for node in &mut nodes {
        node.wait(LIMIT, "finished", |_| true).expect("the run ends");
        node.wait_exit(LIMIT).expect("and the node with it");
    }
    assert_one_history(&flock, 3, 60);
    let theirs = starling(&flock, "change", "node-1", &["rounds=120"]);
    assert_eq!(theirs.code, Some(1), "only the creator may: {}", theirs.stdout);
    let never = starling(&flock, "change", "node-0", &["rounds=120", "--from-round", "100"]);
    assert_eq!(never.code, Some(2), "the run never comes there: {}", never.stdout);
    // An operator thinks of one thing after the other.
    let rate = starling(&flock, "change", "node-0", &["lr=0.0005"]);
    assert!(rate.code == Some(0) && rate.stdout.contains("the run is over"), "{} {}", rate.stdout, rate.stderr);
    let budget = starling(&flock, "change", "node-0", &["rounds=120"]);
    assert_eq!(budget.code, Some(0), "{}", budget.stderr);
    assert!(budget.stdout.contains("budget.rounds = 120, inner.lr = 0.0005"), "{}", budget.stdout);
    let mut nodes = ["node-0", "node-1", "node-2"].map(|name| again(&flock, name));
    let amended = nodes.each_mut().map(amended);
    for (id, _, changes) in &amended {
        assert_eq!(*id, amended[0].0, "one amendment");
        let values = ["budget.rounds", "inner.lr"].map(|key| changes[key].as_str());
        assert_eq!(values, [Some("120"), Some("0.0005")], "both calls count");
    }
    for node in &mut nodes {
        node.wait(LIMIT, "committed", |e| e["round"].as_u64() == Some(120)).expect("it goes on");
        node.wait(LIMIT, "finished", |_| true).expect("and ends anew");
        let status = node.wait_exit(LIMIT).expect("the node ends with the run");
        assert!(status.success(), "{status}: {}", node.last_words());
    }
    assert_one_history(&flock, 3, 120);
    let shown = starling(&flock, "train", "node-0", &["--print-config"]);
    assert_eq!(shown.code, Some(0), "{}", shown.stderr);
    for words in ["rounds = 60\n", "after 1 amendment of the run", "# budget.rounds = 120\n# inner.lr = 0.0005\n"] {
        assert!(shown.stdout.contains(words), "`{words}` is missing in: {}", shown.stdout);
    }
}

/// Checks that an amendment is the only one that a node ever tells, some rounds after it is in force there.
fn assert_the_only_one(flock: &Flock, node: &mut Process, id: &str, value: &str) {
    let (first, round, changes) = amended(node);
    assert_eq!((first.as_str(), changes["inner.lr"].as_str()), (id, Some(value)), "{}", node.name);
    let later = node.wait(LIMIT, "committed", |e| e["round"].as_u64() >= Some(round + 3));
    later.expect("it goes on");
    let told = node.events().iter().filter(|event| event["event"] == "amended").count();
    assert_eq!(told, 1, "{}", node.name);
    let status = starling(flock, "status", &node.name, &[]).stdout;
    assert!(status.contains(&format!("amended once: inner.lr = {value} ({})", &id[..8])), "{status}");
    assert_eq!(waiting(flock, &node.name), BTreeSet::new());
}

#[test]
fn a_creators_second_amendment_is_refused_while_its_first_one_waits() {
    // A step takes a tenth of a second.
    let (_folder, mut flock) = flock("steps = 1\nbatch = 256", "");
    let_the_first_node_create(&mut flock);
    let mut nodes = flock.small_nodes(3, LIMIT).expect("three nodes");
    for node in &mut nodes {
        node.wait(LIMIT, "committed", |e| e["voters"].as_u64() == Some(3)).expect("all three vote");
    }
    // Both others go at once, so that no record comes that could hold the first amendment.
    nodes[1..].iter().for_each(|node| node.signal(Signal::KILL));
    nodes[1..].iter_mut().for_each(Process::kill);
    let first = change(&flock, "node-0", &["lr=0.0005"]);
    let status = starling(&flock, "status", "node-0", &[]).stdout;
    assert!(status.contains(&format!("amendment {}: inner.lr = 0.0005; waits for a record", &first[..8])), "{status}");
    let names_the_first = |asked: &Finished, words: &str| {
        assert_eq!(asked.code, Some(1), "{}", asked.stdout);
        let named = format!("amendment 1 ({}: inner.lr = 0.0005)", &first[..8]);
        assert!(asked.stderr.contains(&named) && asked.stderr.contains(words), "{}", asked.stderr);
    };
    let second = ["lr=0.001", "--from-round", "next"];
    names_the_first(&starling(&flock, "change", "node-0", &second), "is on its way: wait until");
    // Nor does the stopped node take it, since others may know the first one.
    nodes[0].kill();
    names_the_first(&starling(&flock, "change", "node-0", &second), "another one would contradict it");
    let mut nodes = ["node-0", "node-1", "node-2"].map(|name| again(&flock, name));
    for node in &mut nodes {
        assert_the_only_one(&flock, node, &first, "0.0005");
    }
}

#[test]
fn of_two_proposals_for_one_key_the_one_of_a_quorum_is_in_force_on_all_nodes() {
    const NAMES: [&str; 3] = ["node-0", "node-1", "node-2"];
    let (_folder, flock) = flock("steps = 2\nbatch = 2", "");
    let mut nodes = flock.small_nodes(3, LIMIT).expect("three nodes");
    for node in &mut nodes {
        node.wait(LIMIT, "committed", |e| e["voters"].as_u64() == Some(3)).expect("all three vote");
    }
    let (low, high) = (change(&flock, "node-0", &["lr=0.0001"]), change(&flock, "node-1", &["lr=0.0003"]));
    // Each is known everywhere, and has the word of one operator out of three.
    let both = BTreeSet::from([low.clone(), high.clone()]);
    let deadline = Instant::now() + LIMIT;
    for name in NAMES {
        while waiting(&flock, name) != both {
            assert!(Instant::now() < deadline, "{name} never heard of both");
            std::thread::park_timeout(Duration::from_millis(100));
        }
    }
    for (name, own, other) in [("node-0", &low, &high), ("node-1", &high, &low)] {
        let status = starling(&flock, "status", name, &[]).stdout;
        assert!(status.contains("; agreed here, and waits for a quorum"), "{status}");
        assert!(status.contains(&format!("amendment {}: inner.lr = ", &own[..8])), "{status}");
        assert!(status.contains(&format!("; agree with `starling agree {}`", &other[..8])), "{status}");
    }
    let agreed = starling(&flock, "agree", "node-2", &[&low[..16]]);
    assert_eq!(agreed.code, Some(0), "{}", agreed.stderr);
    let rounds: BTreeSet<u64> = nodes.iter_mut().map(|node| amended(node).1).collect();
    assert_eq!(rounds.len(), 1, "in force from one round on: {rounds:?}");
    for node in &mut nodes {
        assert_the_only_one(&flock, node, &low, "0.0001");
    }
    let late = starling(&flock, "agree", "node-2", &[&high[..16]]);
    assert_eq!(late.code, Some(1), "{}", late.stdout);
    assert!(late.stderr.contains(&format!("no amendment {} waits here", &high[..16])), "{}", late.stderr);
    // The folder of its operator's node does not bring it back.
    nodes[1].kill();
    nodes[1] = again(&flock, "node-1");
    nodes[1].wait(LIMIT, "committed", |_| true).expect("it is back");
    assert_eq!(waiting(&flock, "node-1"), BTreeSet::new());
}
