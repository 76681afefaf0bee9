//! Real nodes on loopback whose run is amended: by a quorum's operators, and by its creator after its end.

use serde_json::Value;
use starling_tests::flock::{Flock, NodeOptions, built_binaries};
use starling_tests::process::{Finished, Process, run};
use std::collections::BTreeMap;
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
    let asked = starling(&flock, "change", "node-0", &["lr=0.0001", "clip=0.5"]);
    assert_eq!(asked.code, Some(0), "{}", asked.stderr);
    let id = asked.stdout.split(['(', ')']).nth(1).expect("an id").to_owned();
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
    nodes[3] = flock.node("node-3", &NodeOptions { again: true, ..NodeOptions::default() }).expect("a node");
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
    let again = |n: usize| {
        let options = NodeOptions { again: true, ..NodeOptions::default() };
        flock.node(&format!("node-{n}"), &options).expect("a node")
    };
    let mut nodes = [again(0), again(1), again(2)];
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
