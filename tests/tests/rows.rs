//! Real nodes whose flock is a grid of several rows. Rows begin at 64 members, so these are nodes of
//! `starling-byzantine` (`make byzantine`) that lie about nothing: with `--small-rows` nine of them sit in two rows
//! (`protocol/src/scale.rs`).

use serde_json::Value;
use starling_protocol::record::Role;
use starling_tests::flock::{Flock, NodeOptions, built_binaries, byzantine_program};
use starling_tests::process::{Process, run};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
const RUN_TOML: &str = "name = \"rows\"\n[model]\npreset = \"0.1m\"\nseq_len = 32\n[data]\nsources = [\"text.txt\"]\n\
                        holdout = 0.1\n[inner]\nsteps = 10\nbatch = 1\n";
/// Nodes of the beginning; in rows of four they make two.
const NODES: usize = 9;
/// Voters of a flock with small rows.
const VOTERS: usize = 3;
/// Length of a member's entry in a record, the place of its role there, and the columns by which cells are numbered.
const ENTRY_BYTES: usize = 75;
const ROLE_AT: usize = 40;
const COLUMNS: u16 = 64;
/// Records that all nodes commit together before something happens.
const RECORDS: usize = 5;

fn options(program: &Path, found: bool) -> NodeOptions {
    let mut options = NodeOptions { program: Some(program.to_path_buf()), ..NodeOptions::small(found) };
    options.arguments.extend(["--small-rows", "--null-trainer", "20"].map(String::from));
    options
}

/// The records that a node has committed since the mark to which all of `count` members contributed, and that three
/// vote on.
fn full(node: &Process, mark: usize, count: usize) -> BTreeSet<String> {
    let contributors = |e: &Value| e["contributors"].as_array().map_or(0, Vec::len);
    let is_full = |e: &Value| contributors(e) == count && e["members"] == count && e["voters"] == VOTERS;
    let commits = node.events_since(mark).into_iter().filter(|e| e["event"] == "committed" && is_full(e));
    commits.map(|e| e["record"].to_string()).collect()
}

/// Waits until all nodes have committed so many records together, from now on, with contributions of all.
fn fly(nodes: &mut [Process], records: usize) {
    let (deadline, count) = (Instant::now() + LIMIT, nodes.len());
    let marks: Vec<usize> = nodes.iter().map(Process::mark).collect();
    loop {
        let each = nodes.iter().zip(&marks).map(|(node, mark)| full(node, *mark, count));
        let common = each.reduce(|a, b| a.intersection(&b).cloned().collect()).unwrap_or_default();
        if common.len() >= records {
            return;
        }
        let ended = nodes.iter_mut().find_map(|node| node.has_exited().then(|| node.last_words()));
        assert_eq!(ended, None, "all nodes run on");
        let last = || nodes.iter().map(Process::last_words).collect::<Vec<_>>().join("\n");
        assert!(Instant::now() < deadline, "{} of {records} records of {count} nodes: {}", common.len(), last());
        std::thread::park_timeout(Duration::from_millis(50));
    }
}

/// A member's role, and its row in the grid.
type Seat = (u8, u16);

/// The seats of these nodes in the newest record on the disk of a node that does not run. This process cannot decode the
/// record: to its own sizes a flock of ten is one row. So it looks for the members' table (§2.2.2), in which entries of
/// one length follow each other.
fn seats(flock: &Flock, program: &Path, name: &str, ids: &[String]) -> BTreeMap<String, Seat> {
    let (home, output) = (flock.home(name), flock.folder.join(format!("{name}.chain")));
    let [home_text, output_text] = [&home, &output].map(|path| path.to_string_lossy().into_owned());
    let arguments = ["chain", "export", "--small-rows", "--home", &home_text, "--output", &output_text];
    let exported = run(program, &arguments, LIMIT).expect("it ends");
    assert_eq!(exported.code, Some(0), "{}", exported.stderr);
    let files = std::fs::read_dir(&output).expect("a folder").flatten().map(|entry| entry.path());
    let newest = files.filter(|path| path.extension().is_some_and(|end| end == "record")).max().expect("a record");
    let record = std::fs::read(newest).expect("a record");
    let places = |id: &String| -> Vec<usize> {
        let id = data_of(id);
        record.windows(id.len()).enumerate().filter(|(_, bytes)| **bytes == id[..]).map(|(at, _)| at).collect()
    };
    let mut table: Vec<usize> = ids.iter().flat_map(places).collect();
    table.sort_unstable();
    let row = table.windows(ids.len()).find(|run| run.windows(2).all(|pair| pair[1] - pair[0] == ENTRY_BYTES));
    let seat = |at: &usize| {
        let entry = &record[*at..at + ENTRY_BYTES];
        let cell = u16::from_le_bytes([entry[ENTRY_BYTES - 2], entry[ENTRY_BYTES - 1]]);
        let id = entry[..32].iter().map(|byte| format!("{byte:02x}")).collect();
        (id, (entry[ROLE_AT], cell / COLUMNS))
    };
    row.expect("a table of all these members").iter().map(seat).collect()
}

/// The bytes of an id in hex.
fn data_of(id: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&id[at..at + 2], 16).expect("hex");
    (0..id.len()).step_by(2).map(byte).collect()
}

/// The node's own id.
fn id(node: &Process) -> String {
    let started = node.events().into_iter().find(|e| e["event"] == "started").expect("it has started");
    started["node"].as_str().expect("text").to_owned()
}

/// Checks that each record has one state, and that no node doubts its own.
fn assert_one_state(nodes: &[Process]) {
    let mut roots = BTreeMap::new();
    for event in nodes.iter().flat_map(Process::events) {
        assert!(!["own_fault", "split_brain", "forked"].iter().any(|bad| event["event"] == *bad), "{event}");
        if event["event"] == "committed" {
            let root = roots.entry(event["record"].to_string()).or_insert_with(|| event["state_root"].clone());
            assert_eq!(*root, event["state_root"], "one record, two states: {event}");
        }
    }
}

#[test]
fn nodes_in_rows_commit_together_and_go_on_after_deaths_in_both_rows_at_once() {
    let Some(program) = byzantine_program().expect("the folder of this test") else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text: String = (0..4000).map(|n| format!("line {n}: some text {}\n", n * 7919 % 1000)).collect();
    std::fs::write(folder.path().join("text.txt"), text).expect("written");
    let bin = built_binaries().expect("the folder of this test");
    let flock = Flock::start(&bin, folder.path(), RUN_TOML).expect("a bootstrap peer");
    let mut nodes = Vec::new();
    for n in 0..NODES {
        let mut node = flock.node(&format!("node-{n}"), &options(&program, n == 0)).expect("a node");
        if n == 0 {
            node.wait(LIMIT, "founded", |_| true).expect("it founds");
        }
        nodes.push(node);
    }
    fly(&mut nodes, RECORDS);

    // Others vote already, so the last one learns. Its disk says who sits in another row.
    nodes.push(flock.node("last", &options(&program, false)).expect("a node"));
    fly(&mut nodes, RECORDS);
    let ids: Vec<String> = nodes.iter().map(id).collect();
    nodes.pop().expect("the last one").kill();
    let seats_then = seats(&flock, &program, "last", &ids);
    assert_eq!(seats_then[&ids[0]], (Role::Voter as u8, 0), "the founder votes as long as it is there");
    assert_eq!(seats_then[&ids[NODES]].0, Role::Learner as u8);
    fly(&mut nodes, RECORDS);
    // Both die at the same moment. They may be all that passes on the words of a third member to a voter.
    let far = nodes.iter().position(|node| seats_then[&id(node)] == (Role::Learner as u8, 1));
    nodes.remove(far.expect("a learner of the other row")).kill();
    nodes.remove(0).kill();
    fly(&mut nodes, RECORDS);

    nodes.push(flock.node("late", &options(&program, false)).expect("a node"));
    fly(&mut nodes, RECORDS);
    assert_one_state(&nodes);
    let ids: Vec<String> = nodes.iter().map(id).collect();
    nodes.pop().expect("the newcomer").kill();
    let rows: BTreeSet<u16> = seats(&flock, &program, "late", &ids).into_values().map(|(_, row)| row).collect();
    assert_eq!(rows, BTreeSet::from([0, 1]), "the flock has rows to its end");
}
