//! Real nodes on loopback that lose their quorum, or are not admitted.

use serde_json::Value;
use starling_tests::flock::{Flock, NodeOptions, built_binaries};
use starling_tests::process::{Process, run};
use std::time::Duration;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(120);

/// A flock on a fixed text; `top` and `tables` go into its run file.
fn flock(top: &str, tables: &str) -> (TempDir, Flock) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text: String = (0..2000).map(|n| format!("line {n}: some text {}\n", n * 7919 % 1000)).collect();
    std::fs::write(folder.path().join("text.txt"), text).expect("write");
    let run_toml = format!(
        "name = \"quorum\"\n{top}\n[model]\npreset = \"0.1m\"\nseq_len = 32\n[data]\nsources = [\"text.txt\"]\n\
         holdout = 0.1\n[inner]\nsteps = 2\nbatch = 2\n{tables}"
    );
    let bin = built_binaries().expect("the folder of this test");
    let flock = Flock::start(&bin, folder.path(), &run_toml).expect("a bootstrap peer");
    (folder, flock)
}

fn voters(event: &Value) -> u64 {
    event["voters"].as_u64().unwrap_or_default()
}

fn starling(flock: &Flock, command: &str, name: &str, more: &[&str]) -> starling_tests::process::Finished {
    let home = flock.home(name).to_string_lossy().into_owned();
    let arguments: Vec<&str> = [command, "--home", &home].into_iter().chain(more.iter().copied()).collect();
    run(&flock.bin_dir.join("starling"), &arguments, LIMIT).expect("it ends")
}

#[test]
fn a_node_that_loses_the_quorum_forks_after_the_grace_and_rejoins_later() {
    let (_folder, flock) = flock("", "[partition]\nminority = \"fork\"\ngrace_s = 2\n");
    let mut nodes: Vec<Process> = Vec::new();
    for n in 0..3 {
        let mut node = flock.node(&format!("node-{n}"), &NodeOptions::small(n == 0)).expect("a node");
        if n == 0 {
            node.wait(LIMIT, "founded", |_| true).expect("it founds");
        }
        nodes.push(node);
    }
    let of_three = nodes[0].wait(LIMIT, "committed", |e| voters(e) == 3).expect("all three vote");
    let lineage = of_three["lineage"].clone();
    let status = starling(&flock, "status", "node-0", &[]);
    assert!(status.stdout.contains("3 of 3 voters here, quorum"), "{}", status.stdout);

    nodes[1].kill();
    nodes[2].kill();
    let cut = nodes[0].wait(LIMIT, "quorum_lost", |_| true).expect("it says that it is cut off");
    assert_eq!((cut["policy"].as_str(), cut["missing"].as_array().map(Vec::len)), (Some("fork"), Some(2)));
    let forked = nodes[0].wait(LIMIT, "forked", |_| true).expect("it goes on by itself");
    assert_ne!(forked["lineage"], lineage);
    nodes[0].wait(LIMIT, "committed", |e| e["lineage"] == forked["lineage"]).expect("and trains");

    for (n, node) in nodes.iter_mut().enumerate().skip(1) {
        *node = flock.node(&format!("node-{n}"), &NodeOptions::small(false)).expect("a node");
    }
    let mark = nodes[0].mark();
    let again = nodes[0].wait_since(mark, LIMIT, "committed", |e| voters(e) == 3).expect("one flock again");
    let same = |e: &Value| e["record"] == again["record"];
    for node in &mut nodes[1..] {
        let theirs = node.wait(LIMIT, "committed", |e| e["lineage"] == again["lineage"]).expect("they are one lineage");
        assert!(theirs["seq"].as_u64() > of_three["seq"].as_u64());
        assert!(node.events().iter().filter(|e| same(e)).all(|e| e["state_root"] == again["state_root"]));
    }
    for node in &mut nodes {
        node.terminate();
        assert!(node.wait_exit(Duration::from_secs(20)).expect("it leaves").success(), "{}", node.last_words());
    }
    for n in 0..3 {
        let audit = starling(&flock, "audit", &format!("node-{n}"), &[]);
        assert_eq!(audit.code, Some(0), "{}{}", audit.stdout, audit.stderr);
        assert!(audit.stdout.contains("no sample used twice"), "{}", audit.stdout);
    }
}

#[test]
fn a_ticket_admits_as_many_as_it_says() {
    let (_folder, mut flock) = flock("", "");
    let key = flock.home("creator").join("key");
    std::fs::create_dir_all(flock.home("creator")).expect("a folder");
    let creator = starling_bootstrap::identity::load_or_create(&key).expect("a key").node_id();
    let text = std::fs::read_to_string(&flock.run_file).expect("the run file");
    let run_file = flock.folder.join("ticket.toml");
    let text = text.replace("[model]", &format!("creator = \"{creator}\"\n[model]"));
    std::fs::write(&run_file, text.replace("[admission]", "[admission]\nmode = \"ticket\"")).expect("write");
    flock.run_file = run_file;

    let mut first = flock.node("creator", &NodeOptions::small(true)).expect("a node");
    first.wait(LIMIT, "committed", |_| true).expect("it trains");
    let invited = starling(&flock, "invite", "creator", &["--uses", "1"]);
    assert_eq!(invited.code, Some(0), "{}", invited.stderr);
    let ticket = Some(invited.stdout.trim().to_string());
    let mut guest =
        flock.node("guest", &NodeOptions { ticket: ticket.clone(), ..NodeOptions::small(false) }).expect("a node");
    guest.wait(LIMIT, "committed", |e| e["members"].as_u64() == Some(2)).expect("the ticket admits");

    let spent = ticket.clone();
    let mut late = flock.node("late", &NodeOptions { ticket, ..NodeOptions::small(false) }).expect("a node");
    let why = |e: &Value, what: &str| e["why"].as_str().is_some_and(|why| why.contains(what));
    late.wait(LIMIT, "waiting", |e| why(e, "as many nodes as it may (1)")).expect("it says that the ticket is used up");
    let mut bare = flock.node("bare", &NodeOptions::small(false)).expect("a node");
    bare.wait(LIMIT, "waiting", |e| why(e, "showed none")).expect("it says that it needs a ticket");
    let status = starling(&flock, "status", "bare", &[]);
    assert!(status.stdout.contains("admits by ticket"), "{}", status.stdout);
    // The members go on, and no other node is in.
    let mark = first.mark();
    let event = first.wait_since(mark, LIMIT, "committed", |_| true).expect("a commit");
    assert_eq!(event["members"].as_u64(), Some(2));

    // The creator revokes the guest.
    let id = guest.events().first().and_then(|e| e["node"].as_str().map(str::to_owned)).expect("an id");
    let theirs = starling(&flock, "revoke", "guest", &["--id", &id]);
    assert_eq!(theirs.code, Some(1), "only the creator may: {}", theirs.stdout);
    let revoked = starling(&flock, "revoke", "creator", &["--id", &id]);
    assert_eq!(revoked.code, Some(0), "{}", revoked.stderr);
    let alone = |e: &Value| e["members"].as_u64() == Some(1) && voters(e) == 1;
    first.wait_since(mark, LIMIT, "committed", alone).expect("the guest is out");
    // The guest stays out, also after a restart. It learns why from the records, which it may have to read first.
    guest.kill();
    let mut guest = flock.node("guest", &NodeOptions { ticket: spent, ..NodeOptions::small(false) }).expect("a node");
    let soon = Duration::from_secs(40);
    guest.wait(soon, "waiting", |e| why(e, "has revoked")).expect("it says that it was revoked");

    // A revoked ticket admits no node, for any number of uses.
    let invited = starling(&flock, "invite", "creator", &["--uses", "5"]);
    let ticket = invited.stdout.trim().to_string();
    let revoked = starling(&flock, "revoke", "creator", &["--ticket", &ticket]);
    assert_eq!(revoked.code, Some(0), "{}", revoked.stderr);
    let mark = first.mark();
    first.wait_since(mark, LIMIT, "committed", |_| true).expect("the record that carries it");
    let by_ticket = NodeOptions { ticket: Some(ticket), ..NodeOptions::small(false) };
    let mut stranger = flock.node("stranger", &by_ticket).expect("a node");
    stranger.wait(LIMIT, "waiting", |e| why(e, "has revoked the ticket")).expect("it says that the ticket is revoked");
    let mark = first.mark();
    let event = first.wait_since(mark, LIMIT, "committed", |_| true).expect("a commit");
    assert_eq!((event["members"].as_u64(), voters(&event)), (Some(1), 1), "nobody else is in");
}
