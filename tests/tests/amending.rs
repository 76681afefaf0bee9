//! Real nodes on loopback whose run is amended: by a quorum's operators, and by its creator after its end.

use serde_json::Value;
use starling_tests::flock::{Flock, NodeOptions, built_binaries};
use starling_tests::process::{Finished, Process, run};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(120);

fn flock(top: &str, tables: &str) -> (TempDir, Flock) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text: String = (0..2000).map(|n| format!("line {n}: some text {}\n", n * 7919 % 1000)).collect();
    std::fs::write(folder.path().join("text.txt"), text).expect("write");
    let run_toml = format!(
        "name = \"amended\"\n{top}\n[model]\npreset = \"0.1m\"\nseq_len = 32\n[data]\nsources = [\"text.txt\"]\n\
         holdout = 0.1\n[inner]\nsteps = 2\nbatch = 2\n[partition]\nminority = \"wait\"\n{tables}"
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
    (event["id"].as_str().unwrap_or_default().into(), event["round"].as_u64().unwrap_or_default(), event["changes"].clone())
}

#[test]
fn a_quorums_operators_amend_a_run_and_a_node_that_was_away_goes_by_it() {
    let (_folder, flock) = flock("", "");
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

#[test]
fn a_run_that_is_over_goes_on_when_its_creator_adds_to_the_budget() {
    let (_folder, mut flock) = flock("", "[budget]\nrounds = 6\n");
    let key = flock.home("node-0").join("key");
    std::fs::create_dir_all(flock.home("node-0")).expect("a folder");
    let creator = starling_bootstrap::identity::load_or_create(&key).expect("a key").node_id();
    let text = std::fs::read_to_string(&flock.run_file).expect("the run file");
    flock.run_file = flock.folder.join("created.toml");
    std::fs::write(&flock.run_file, text.replace("[model]", &format!("creator = \"{creator}\"\n[model]"))).expect("write");
    let mut nodes = flock.small_nodes(2, LIMIT).expect("two nodes");
    for node in &mut nodes {
        node.wait(LIMIT, "finished", |_| true).expect("the run ends");
        node.wait_exit(LIMIT).expect("and the node with it");
    }
    let again = |n: usize| {
        let options = NodeOptions { again: true, ..NodeOptions::default() };
        flock.node(&format!("node-{n}"), &options).expect("a node")
    };
    let theirs = starling(&flock, "change", "node-1", &["rounds=9"]);
    assert_eq!(theirs.code, Some(1), "only the creator may: {}", theirs.stdout);
    let asked = starling(&flock, "change", "node-0", &["rounds=9"]);
    assert_eq!(asked.code, Some(0), "{}", asked.stderr);
    let mut nodes = [again(0), again(1)];
    for node in &mut nodes {
        node.wait(LIMIT, "amended", |e| e["changes"]["budget.rounds"].as_str() == Some("9")).expect("in force");
        node.wait(LIMIT, "committed", |e| e["round"].as_u64() == Some(9)).expect("it goes on");
        node.wait(LIMIT, "finished", |_| true).expect("and ends anew");
    }
}
