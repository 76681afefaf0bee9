//! Five real nodes on a network that is cut and healed under them (`docs/protocol/7-merging.md` §7.1, §7.2).

use serde_json::Value;
use starling_tests::flock::{among_friends, built_binaries};
use starling_tests::netns::Network;
use starling_tests::process::{Process, run};
use starling_tests::skips::skipped;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const NODES: usize = 5;
/// Longest time for one step on a busy machine.
const LIMIT: Duration = Duration::from_secs(150);
/// Longest time from healing to one hash on all nodes.
const HEAL_LIMIT: Duration = Duration::from_secs(30);
const GRACE_S: u64 = 6;

struct Flock {
    folder: TempDir,
    network: Network,
    nodes: Vec<Process>,
    /// The first node's address.
    bootstrap: String,
}

impl Flock {
    fn start(network: Network, minority: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let text: String = (0..4000).map(|n| format!("line {n}: some text {}\n", n * 7919 % 1000)).collect();
        std::fs::write(folder.path().join("text.txt"), text).expect("write");
        let run = format!(
            "name = \"partition\"\n[model]\npreset = \"0.1m\"\nseq_len = 32\n[data]\nsources = [\"text.txt\"]\n\
             holdout = 0.1\n[inner]\nsteps = 4\nbatch = 2\n[partition]\nminority = \"{minority}\"\ngrace_s = {GRACE_S}\n"
        );
        std::fs::write(folder.path().join("run.toml"), among_friends(&run)).expect("write");
        let mut flock = Self { folder, network, nodes: Vec::new(), bootstrap: String::new() };
        for n in 0..NODES {
            let mut node = flock.node(n);
            if n == 0 {
                let listening = node.wait(LIMIT, "listening", |e| address(e).contains("10.77.")).expect("an address");
                flock.bootstrap = address(&listening).to_owned();
                node.wait(LIMIT, "founded", |_| true).expect("it founds");
            }
            flock.nodes.push(node);
        }
        for node in &mut flock.nodes {
            node.wait(LIMIT, "committed", |e| e["voters"] == NODES).expect("all five vote");
        }
        flock
    }

    fn node(&self, n: usize) -> Process {
        let [ip, before @ ..] = self.network.on(n);
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let home = self.folder.path().join("nodes").join(n.to_string());
        let listen = format!("/ip4/{}/tcp/7000", self.network.address(n));
        let starling = built_binaries().expect("the folder of this test").join("starling");
        let mut arguments: Vec<String> = before.into_iter().chain([text(&starling)]).collect();
        let plain =
            ["train", "--json", "--no-mdns", "--metrics", "off", "--device", "cpu", "--threads", "1", "--log", "info"];
        arguments.extend(plain.map(String::from));
        arguments.extend(["--home".into(), text(&home), "--listen".into(), listen]);
        arguments.extend(["--run".into(), text(&self.folder.path().join("run.toml"))]);
        arguments.extend(["--cache".into(), text(&self.folder.path().join("cache"))]);
        match self.bootstrap.as_str() {
            "" => arguments.push("--init".into()),
            address => arguments.extend(["--bootstrap".into(), address.into()]),
        }
        Process::start(&format!("node-{n}"), Path::new(&ip), &arguments, &self.folder.path().join("logs"))
            .expect("`ip netns exec`")
    }

    /// Puts each group on a network of its own.
    fn cut(&self, groups: &[&[usize]]) {
        for (bridge, group) in groups.iter().enumerate() {
            for node in *group {
                self.network.plug(*node, bridge).expect("the link is moved");
            }
        }
    }

    fn marks(&self) -> Vec<usize> {
        self.nodes.iter().map(Process::mark).collect()
    }

    /// Heals the network. All of `here` must soon have committed one record with one state.
    fn heal(&mut self, here: &[usize]) {
        self.cut(&[&[0, 1, 2, 3, 4]]);
        let (marks, began) = (self.marks(), Instant::now());
        loop {
            // The records that each node has committed since the network is whole.
            let heads = |n: &usize| -> BTreeMap<String, Value> {
                let events = self.nodes[*n].events();
                let committed = events[marks[*n]..].iter().filter(|e| e["event"] == "committed");
                committed.map(|e| (e["record"].to_string(), e["state_root"].clone())).collect()
            };
            let mut all = here.iter().map(heads);
            let first = all.next().unwrap_or_default();
            let rest: Vec<_> = all.collect();
            let common = first.iter().find(|(record, root)| rest.iter().all(|heads| heads.get(*record) == Some(root)));
            if common.is_some() {
                println!("one hash on all {} after {:.1} s", here.len(), began.elapsed().as_secs_f64());
                return self.assert_one_history();
            }
            assert!(began.elapsed() < HEAL_LIMIT, "no common record {HEAL_LIMIT:?} after healing: {}", self.words());
            std::thread::park_timeout(Duration::from_millis(100));
        }
    }

    fn words(&self) -> String {
        self.nodes.iter().map(|node| format!("{}\n", node.last_words())).collect()
    }

    /// Checks that a place in a lineage has one record, and a record has one state.
    fn assert_one_history(&self) {
        let (mut records, mut roots) = (BTreeMap::new(), BTreeMap::new());
        let events = self.nodes.iter().flat_map(|node| node.events());
        for event in events.filter(|e| e["event"] == "committed") {
            let place = (event["lineage"].to_string(), event["seq"].as_u64());
            let record = event["record"].to_string();
            let known = records.entry(place).or_insert_with(|| record.clone());
            assert_eq!(*known, record, "two records at one place: {event}");
            let root = roots.entry(record).or_insert_with(|| event["state_root"].clone());
            assert_eq!(*root, event["state_root"], "one record, two states: {event}");
        }
        assert!(!records.is_empty(), "something was committed");
    }

    /// Checks that the difference of a lineage that gave way is merged once, and that the nodes that stayed report it.
    fn assert_merged(&mut self, lineage: &Value, stayed: &[usize]) {
        for node in stayed {
            self.nodes[*node].wait(LIMIT, "merged", |e| e["lineage"] == *lineage).expect("the fork's work is merged");
        }
        for node in &self.nodes {
            let events = node.events();
            let merged = events.iter().filter(|e| e["event"] == "merged" && e["lineage"] == *lineage).count();
            assert!(merged <= 1, "merged {merged} times: {}", node.last_words());
        }
        self.assert_one_history();
    }

    /// Gives a command to a node's operator; returns whether it was done.
    fn operate(&self, node: usize, command: &[&str]) -> bool {
        let home = self.folder.path().join("nodes").join(node.to_string()).to_string_lossy().into_owned();
        let starling = built_binaries().expect("the folder of this test").join("starling");
        let arguments: Vec<&str> = command.iter().copied().chain(["--home", &home]).collect();
        run(&starling, &arguments, LIMIT).expect("it ends").code == Some(0)
    }

    fn commits_since(&mut self, node: usize, mark: usize, count: usize) {
        let mut from = mark;
        for _ in 0..count {
            self.nodes[node].wait_since(from, LIMIT, "committed", |_| true).expect("it goes on");
            let events = self.nodes[node].events();
            let at = events[from..].iter().position(|e| e["event"] == "committed").unwrap_or_default();
            from += at + 1;
        }
    }
}

fn address(event: &Value) -> &str {
    event["address"].as_str().unwrap_or_default()
}

fn network() -> Option<Network> {
    if let Some(why) = Network::missing() {
        skipped(why);
        return None;
    }
    match Network::new(NODES, 3) {
        Ok(network) => Some(network),
        Err(error) => {
            skipped(format_args!("{error:#}"));
            None
        }
    }
}

#[test]
fn a_cut_flock_goes_on_where_the_quorum_is_and_is_one_again_when_healed() {
    let Some(network) = network() else { return };
    let mut flock = Flock::start(network, "fork");

    // Three and two: the three go on at once, and the two fork after the grace.
    let marks = flock.marks();
    flock.cut(&[&[0, 1, 2], &[3, 4]]);
    flock.commits_since(0, marks[0], 3);
    for node in [3, 4] {
        flock.nodes[node].wait_since(marks[node], LIMIT, "quorum_lost", |_| true).expect("the two are told");
        let forked = flock.nodes[node].wait_since(marks[node], LIMIT, "forked", |_| true).expect("the two fork");
        assert_eq!(forked["members"].as_array().map(Vec::len), Some(2), "together: {forked}");
    }
    flock.commits_since(3, marks[3], 3);
    let forked = flock.nodes[3].wait(LIMIT, "forked", |_| true).expect("it was seen before")["lineage"].clone();
    flock.heal(&[0, 1, 2, 3, 4]);
    flock.assert_merged(&forked, &[0, 1, 2]);

    // All five vote again. Then two, two and one: no part has the quorum.
    for node in 0..NODES {
        let mark = flock.nodes[node].mark();
        flock.nodes[node].wait_since(mark, LIMIT, "committed", |e| e["voters"] == NODES).expect("all five vote again");
    }
    let marks = flock.marks();
    flock.cut(&[&[0, 1], &[2, 3], &[4]]);
    for (node, mark) in flock.nodes.iter_mut().zip(&marks) {
        node.wait_since(*mark, LIMIT, "forked", |_| true).expect("each part forks");
    }
    flock.heal(&[0, 1, 2, 3, 4]);
}

/// Two of five without the quorum decide nothing; when the network heals, they take up the decisions of the three.
fn the_two_decide_nothing(policy: &str) {
    let Some(network) = network() else { return };
    let mut flock = Flock::start(network, policy);
    let marks = flock.marks();
    flock.cut(&[&[0, 1, 2], &[3, 4]]);
    for node in [3, 4] {
        let cut = flock.nodes[node].wait_since(marks[node], LIMIT, "quorum_lost", |_| true).expect("the two are told");
        assert_eq!(cut["policy"], policy);
    }
    // The three go on for longer than the grace, after which the two would fork under another policy.
    let (began, mark) = (Instant::now(), flock.nodes[0].mark());
    flock.commits_since(0, mark, 3);
    while began.elapsed() < Duration::from_secs(GRACE_S) {
        let mark = flock.nodes[0].mark();
        flock.commits_since(0, mark, 1);
    }
    for node in [3, 4] {
        let events = flock.nodes[node].events();
        let told = events.iter().position(|e| e["event"] == "quorum_lost").unwrap_or_default();
        let decided = |e: &&Value| ["committed", "skipped", "forked"].iter().any(|name| e["event"] == *name);
        assert_eq!(events[told..].iter().find(decided), None, "two of five decided something");
        if policy == "halt" {
            // A training step that had begun may end.
            let trained = events[told..].iter().filter(|e| e["event"] == "trained").count();
            assert!(trained <= 1, "it went on to train");
        }
    }
    flock.heal(&[0, 1, 2, 3, 4]);
}

#[test]
fn the_smaller_part_waits_if_that_is_the_policy() {
    the_two_decide_nothing("wait");
}

#[test]
fn the_smaller_part_halts_if_that_is_the_policy() {
    the_two_decide_nothing("halt");
}

/// Two of five amend the run while they are cut off. That is in force nowhere before a quorum's operators have agreed,
/// and then on all five from one round on.
#[test]
fn an_amendment_of_the_smaller_part_waits_for_a_quorums_operators() {
    let Some(network) = network() else { return };
    let mut flock = Flock::start(network, "wait");
    let marks = flock.marks();
    flock.cut(&[&[0, 1, 2], &[3, 4]]);
    for node in [3, 4] {
        flock.nodes[node].wait_since(marks[node], LIMIT, "quorum_lost", |_| true).expect("the two are told");
        assert!(flock.operate(node, &["change", "lr=0.0001"]), "it is taken, and waits");
    }
    flock.commits_since(0, marks[0], 3);
    flock.heal(&[0, 1, 2, 3, 4]);
    for node in 0..NODES {
        let mark = flock.nodes[node].mark();
        flock.nodes[node].wait_since(mark, LIMIT, "committed", |e| e["voters"] == NODES).expect("all five vote again");
        let early = flock.nodes[node].events().iter().any(|e| e["event"] == "amended");
        assert!(!early, "two of five have amended the run: {}", flock.nodes[node].last_words());
    }
    // The others' operators ask for the same.
    assert!(flock.operate(0, &["change", "lr=0.0001"]));
    let (mut ids, mut rounds) = (BTreeSet::new(), BTreeSet::new());
    for node in &mut flock.nodes {
        let event = node.wait(LIMIT, "amended", |_| true).expect("it is in force");
        assert_eq!(event["changes"]["inner.lr"], "0.0001");
        ids.insert(event["id"].to_string());
        rounds.insert(event["round"].to_string());
    }
    assert_eq!((ids.len(), rounds.len()), (1, 1), "one amendment, from one round on: {rounds:?}");
    flock.assert_one_history();
}

#[test]
fn the_last_survivor_trains_on_alone_and_the_others_come_back_to_it() {
    let Some(network) = network() else { return };
    let mut flock = Flock::start(network, "fork");
    // Nodes are killed one after the other, so that there is a quorum until one is left.
    for node in (1..NODES).rev() {
        let mark = flock.nodes[0].mark();
        flock.nodes[node].kill();
        if node > 1 {
            let left = |e: &Value| e["voters"] == node;
            flock.nodes[0].wait_since(mark, LIMIT, "committed", left).expect("the others go on without it");
            continue;
        }
        // The last node has founded the flock, so it is the senior one of two voters, and goes on at once.
        let alone = |e: &Value| e["contributors"].as_array().map(Vec::len) == Some(1);
        let commit = flock.nodes[0].wait_since(mark, LIMIT, "committed", alone).expect("it goes on alone");
        let events = flock.nodes[0].events();
        let apart = |e: &&Value| e["event"] == "forked" || e["event"] == "quorum_lost";
        assert_eq!(events[mark..].iter().find(apart), None, "{commit}");
    }
    let marks = flock.marks();
    for node in 1..NODES {
        flock.nodes[node] = flock.node(node);
    }
    flock.nodes[0].wait_since(marks[0], LIMIT, "committed", |e| e["voters"] == NODES).expect("all five vote again");
    flock.heal(&[0, 1, 2, 3, 4]);
}
