//! Runs whose nodes train with programs of their users (`docs/bridge.md`), with real processes.

use serde_json::Value;
use starling_tests::flock::{Flock, NodeOptions, built_binaries};
use starling_tests::process::{Process, run};
use std::path::Path;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(120);
const RUN: &str = "name = \"lines\"\n[task]\nkind = \"external\"\n[inner]\nsteps = 4\nbatch = 4\nlr = 0.1\n\
                   warmup_steps = 0\n[outer]\nlr = 0.7\nmomentum = 0.0\n[budget]\nrounds = 0\n";

/// The options of a node with a trainer of so many weights.
fn options(flock: &Flock, found: bool, weights: usize) -> NodeOptions {
    let mut options = NodeOptions::small(found);
    options.arguments.extend(["--".into(), flock.bin_dir.join("starling-line").to_string_lossy().into_owned()]);
    options.arguments.push(weights.to_string());
    options
}

fn flock(folder: &Path) -> Flock {
    Flock::start(&built_binaries().expect("the folder of this test"), folder, RUN).expect("a bootstrap peer")
}

/// A node that comes by ticket.
fn joiner(flock: &Flock, name: &str, weights: usize) -> Process {
    let ticket = Some(flock.invite("founder").expect("a ticket"));
    flock.node(name, &NodeOptions { ticket, ..options(flock, false, weights) }).expect("a node")
}

fn root_of(event: &Value) -> (Value, Value) {
    (event["record"].clone(), event["state_root"].clone())
}

/// The process id of a node's trainer.
fn trainer_of(flock: &Flock, name: &str) -> Option<i32> {
    std::fs::read_to_string(flock.home(name).join("trainer.pid")).ok()?.trim().parse().ok()
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).expect("a process id");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it runs");
}

#[test]
fn three_nodes_with_trainers_of_their_own_share_a_state_and_outlive_a_trainer() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let flock = flock(folder.path());
    let mut founder = flock.node("founder", &options(&flock, true, 64)).expect("a node");
    let first = founder.wait(LIMIT, "trained", |_| true).expect("it trains");
    founder.wait(LIMIT, "validated", |_| true).expect("its trainer measures the genesis");
    let (mut a, mut b) = (joiner(&flock, "a", 64), joiner(&flock, "b", 64));
    let at = a.wait(LIMIT, "committed", |e| e["voters"] == 3).expect("three vote");
    for node in [&mut founder, &mut b] {
        let same = node.wait(LIMIT, "committed", |e| e["round"] == at["round"]).expect("the same round");
        assert_eq!(root_of(&same), root_of(&at), "{}", node.name);
    }
    let learned = a.wait(LIMIT, "trained", |e| e["loss"].as_f64() < first["loss"].as_f64().map(|loss| 0.5 * loss));
    learned.expect("the loss falls");

    // The trainer of one node dies: the flock goes on, and it trains again once it is back.
    let marks = (a.mark(), founder.mark());
    let before = trainer_of(&flock, "a").expect("a trainer");
    kill(before);
    a.wait_since(marks.0, LIMIT, "trainer", |e| e["here"] == false).expect("the node notices");
    founder.wait_since(marks.1, LIMIT, "committed", |_| true).expect("the flock goes on");
    let here = a.wait_since(marks.0, LIMIT, "trainer", |e| e["here"] == true).expect("it is started again");
    assert!(here["why"].as_str().is_some_and(|why| why.contains("line 1")), "{here}");
    assert_ne!(trainer_of(&flock, "a"), Some(before));
    a.wait_since(a.mark(), LIMIT, "trained", |_| true).expect("it contributes again");

    // A node that is killed leaves its trainer, which comes to the next one that starts.
    let of_b = trainer_of(&flock, "b").expect("a trainer");
    b.kill();
    let mut b = flock.node("b", &NodeOptions { again: true, ..NodeOptions::default() }).expect("a node");
    b.wait(LIMIT, "trained", |_| true).expect("with the trainer that was there");
    assert_eq!(trainer_of(&flock, "b"), Some(of_b));

    for node in [&mut founder, &mut a, &mut b] {
        node.terminate();
        assert!(node.wait_exit(LIMIT).expect("it leaves").success(), "{}", node.last_words());
    }
    kill(of_b);
    for name in ["founder", "a", "b"] {
        let home = flock.home(name).to_string_lossy().into_owned();
        let audit = run(&flock.bin_dir.join("starling"), &["audit", "--home", &home], LIMIT).expect("it ends");
        assert_eq!(audit.code, Some(0), "{name}: {}{}", audit.stdout, audit.stderr);
    }
    assert!(flock.home("founder").join("trainer/saved/seen").exists(), "its trainer has saved what it keeps");
}

#[test]
fn a_trainer_of_another_model_is_refused_by_name_and_the_node_stays() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let flock = flock(folder.path());
    let mut founder = flock.node("founder", &options(&flock, true, 64)).expect("a node");
    founder.wait(LIMIT, "trained", |_| true).expect("it trains");
    let mut other = joiner(&flock, "other", 65);
    let refused = "refused (schema): line.weight: [65] here, the run has [64]";
    let until = Instant::now() + LIMIT;
    while !other.last_words().contains(refused) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(other.last_words().contains(refused), "{}", other.last_words());
    // It follows the run all the same.
    other.wait(LIMIT, "caught_up", |_| true).expect("it has the state");
    assert!(other.status().is_none(), "{}", other.last_words());
    founder.terminate();
    assert!(founder.wait_exit(LIMIT).expect("it leaves").success(), "{}", founder.last_words());
}
