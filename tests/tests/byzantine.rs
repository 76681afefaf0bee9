//! Lying members, in real processes: `starling-byzantine` (`make byzantine`) joins a flock of honest nodes as a member
//! and does one thing that no honest program does. The honest nodes report it, blame the member that did it, and go on.
//! Lying strangers: `starling-byzantine` never joins, and moves no node. `configs/lab/full/byzantine-*.toml` has more
//! of these.

use serde_json::Value;
use starling_tests::flock::{Flock, NodeOptions, built_binaries, byzantine_program};
use starling_tests::process::{Process, run};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(120);
/// The text that every program with the hooks prints when it starts.
const MARK: &[u8] = b"starling byzantine build";
const HONEST: usize = 3;
/// Number of newcomers, at least one of which must be served damaged state.
const NEWCOMERS: usize = 6;
/// Rounds for which the honest nodes hear a stranger.
const ROUNDS: u64 = 8;

/// The report of honest nodes about a liar.
enum Shown {
    /// An attempt fails because of the liar, for a reason with one of these words.
    Blamed(Vec<&'static str>),
    /// Two statements that contradict each other.
    Evidence,
}

/// The program that lies, if it is built.
fn program() -> Option<PathBuf> {
    byzantine_program().expect("the folder of this test")
}

fn holds(program: &Path, mark: &[u8]) -> bool {
    let bytes = std::fs::read(program).expect("it is built");
    bytes.windows(mark.len()).any(|window| window == mark)
}

#[test]
fn the_shipped_program_has_none_of_it() {
    let shipped = built_binaries().expect("the folder of this test").join("starling");
    assert!(!holds(&shipped, MARK), "{} has the hooks of `byzantine`", shipped.display());
    for flags in [&["--byzantine", "nan"][..], &["--mutation", "pass-nothing"], &["--small-rows"]] {
        let refused = run(&shipped, &[&["train"], flags].concat(), LIMIT).expect("it ends");
        assert_eq!(refused.code, Some(2), "{flags:?}: {}", refused.stderr);
    }
    if let Some(byzantine) = program() {
        assert!(holds(&byzantine, MARK), "the mark is what is looked for");
    }
}

/// Three honest nodes that all vote, and the liars that join them.
struct Bench {
    flock: Flock,
    honest: Vec<Process>,
    _folder: TempDir,
}

impl Bench {
    fn new(engine: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let text: String = (0..2000).map(|n| format!("line {n}: some text {}\n", n * 7919 % 1000)).collect();
        std::fs::write(folder.path().join("text.txt"), text).expect("write");
        let run_toml = format!(
            "name = \"byzantine\"\n[model]\npreset = \"0.1m\"\nseq_len = 16\n[data]\nsources = [\"text.txt\"]\nholdout = 0.1\n\
             [inner]\nsteps = 2\nbatch = 1\n[sync]\ncodec = \"int8\"\nengine = \"{engine}\"\n"
        );
        let bin = built_binaries().expect("the folder of this test");
        let flock = Flock::start(&bin, folder.path(), &run_toml).expect("a bootstrap peer");
        let mut honest = flock.small_nodes(HONEST, LIMIT).expect("nodes");
        for node in &mut honest {
            node.wait(LIMIT, "committed", |e| e["voters"] == HONEST).expect("all vote");
        }
        Self { flock, honest, _folder: folder }
    }

    /// Starts a member that lies in this mode from its first contribution on; returns it and its id.
    fn liar(&self, program: &Path, mode: &str) -> (Process, String) {
        let mut options = NodeOptions { program: Some(program.to_path_buf()), ..NodeOptions::small(false) };
        options.arguments.extend(["--byzantine".to_owned(), mode.to_owned()]);
        let mut liar = self.flock.node(&format!("byzantine-{mode}"), &options).expect("a node");
        let id = liar.wait(LIMIT, "started", |_| true).expect("it starts")["node"].as_str().expect("text").to_owned();
        (liar, id)
    }

    /// Checks that after `marks` each honest node commits a record of the others' contributions, without `liar`.
    fn go_on_without(&mut self, marks: &[usize], liar: &str) {
        for (node, mark) in self.honest.iter_mut().zip(marks) {
            let without = |e: &Value| !contributed(e, liar) && contributors(e) >= HONEST;
            node.wait_since(*mark, LIMIT, "committed", without).expect("the honest go on without it");
        }
    }

    fn marks(&self) -> Vec<usize> {
        self.honest.iter().map(Process::mark).collect()
    }

    /// Lets a liar join; the honest nodes report it and go on without it.
    fn meets(&mut self, program: &Path, mode: &str, shown: &Shown) {
        let marks = self.marks();
        let (mut liar, id) = self.liar(program, mode);
        match shown {
            // Nodes that do not meet the lie themselves hear of it from the others.
            Shown::Blamed(words) => {
                let fits = |why: &str| words.iter().any(|words| why.contains(words));
                let says = |e: &Value| e["suspect"] == *id && e["reason"].as_str().is_some_and(fits);
                let deadline = std::time::Instant::now() + LIMIT;
                while !self.honest.iter().zip(&marks).any(|(node, mark)| {
                    node.events()[*mark..].iter().any(|e| e["event"] == "attempt_failed" && says(e))
                }) {
                    assert!(
                        std::time::Instant::now() < deadline && !liar.has_exited(),
                        "{mode}: nobody blames {id} for {words:?}: {:#?}",
                        self.failures(&marks)
                    );
                    std::thread::park_timeout(Duration::from_millis(50));
                }
            }
            Shown::Evidence => {
                for node in &mut self.honest {
                    node.wait(LIMIT, "evidence", |e| e["against"] == *id && e["what"] == "ready").expect("it is shown");
                }
            }
        }
        let marks = self.marks();
        self.go_on_without(&marks, &id);
        liar.kill();
        eprintln!("{mode}: {:?}", self.failures(&marks).len());
    }

    fn failures(&self, marks: &[usize]) -> Vec<Value> {
        let since = self.honest.iter().zip(marks).flat_map(|(node, mark)| node.events().split_off(*mark));
        since.filter(|e| e["event"] == "attempt_failed" || e["event"] == "refused").collect()
    }

    /// Lets a liar join, which is averaged like any other member.
    fn takes_in(&mut self, program: &Path, mode: &str) {
        let marks = self.marks();
        let (mut liar, id) = self.liar(program, mode);
        for (node, mark) in self.honest.iter_mut().zip(&marks) {
            let with = |e: &Value| contributed(e, &id) && contributors(e) > HONEST;
            let event = node.wait_since(*mark, LIMIT, "committed", with).expect("it contributes");
            let seq = event["seq"].as_u64().expect("a number");
            node.wait(LIMIT, "committed", |e| e["seq"].as_u64() > Some(seq)).expect("rounds go on");
        }
        liar.kill();
        let marks = self.marks();
        self.go_on_without(&marks, &id);
    }

    /// Checks that all honest nodes have committed the same states, and that their losses are finite.
    fn assert_sound(&self) {
        let mut roots = BTreeMap::new();
        for event in self.honest.iter().flat_map(Process::events).filter(|e| e["event"] == "committed") {
            let root = roots.entry(event["record"].to_string()).or_insert_with(|| event["state_root"].clone());
            assert_eq!(*root, event["state_root"], "one record, two states: {event}");
            let loss = event["loss"].as_f64().expect("a number");
            assert!(loss.is_finite() && loss < 8.0, "{event}");
        }
        let ended = |e: &Value| ["own_fault", "split_brain"].iter().any(|bad| e["event"] == *bad);
        assert!(!self.honest.iter().flat_map(Process::events).any(|e| ended(&e)), "honest states stay sound");
    }
}

fn contributors(event: &Value) -> usize {
    event["contributors"].as_array().map_or(0, Vec::len)
}

fn contributed(event: &Value, id: &str) -> bool {
    event["contributors"].as_array().is_some_and(|all| all.iter().any(|one| one == id))
}

#[test]
fn owners_refuse_what_no_program_sends() {
    let Some(program) = program() else { return };
    let mut bench = Bench::new("owners");
    for (mode, words) in [
        ("nan", "the payload of chunk"),
        ("garbage", "a frame was refused"),
        ("oversize", "payload length"),
        ("huge-hidden", "while its READY states"),
        ("wrong-sum", "its sums are"),
        ("close", "ended early"),
    ] {
        bench.meets(&program, mode, &Shown::Blamed(vec![words]));
    }
    bench.meets(&program, "equivocate-ready", &Shown::Evidence);
    bench.assert_sound();
}

#[test]
fn owners_go_on_without_a_member_that_stalls() {
    let Some(program) = program() else { return };
    let mut bench = Bench::new("owners");
    // The first liar never opens a fitting stream; the second sends next to nothing on it. A liar's engine is as
    // patient as the others', or less: they have measured how slow it is. If it gives up first, its streams end.
    bench.meets(&program, "wrong-round", &Shown::Blamed(vec!["nothing has moved"]));
    bench.meets(&program, "stall", &Shown::Blamed(vec!["nothing has moved", "ended early"]));
    bench.assert_sound();
}

#[test]
fn a_huge_contribution_is_cut_and_wrong_state_is_fetched_elsewhere() {
    let Some(program) = program() else { return };
    let mut bench = Bench::new("owners");
    // A liar with huge values counts as three of the others at most; one with a flipped sign counts like any member.
    bench.takes_in(&program, "huge");
    bench.takes_in(&program, "sign-flip");
    // State that does not fit its hash is refused, and fetched from another node.
    let (mut liar, id) = bench.liar(&program, "bad-chunk");
    for node in &mut bench.honest {
        node.wait(LIMIT, "committed", |e| contributed(e, &id)).expect("it contributes");
    }
    // Each newcomer meets the liar first; chance decides whether it knows another node by the time it asks.
    let address = liar.wait(LIMIT, "listening", |_| true).expect("it listens")["address"].clone();
    let mut newcomers = Vec::new();
    let met = (0..NEWCOMERS).any(|n| {
        let bootstrap = Some(address.as_str().expect("text").to_owned());
        let name = format!("late-{n}");
        let mut late =
            bench.flock.node(&name, &NodeOptions { bootstrap, ..NodeOptions::small(false) }).expect("a node");
        let own = late.wait(LIMIT, "started", |_| true).expect("it starts")["node"].as_str().expect("text").to_owned();
        late.wait(LIMIT, "committed", |e| contributed(e, &own)).expect("it learns the state all the same");
        let log = std::fs::read_to_string(bench.flock.folder.join(format!("logs/{name}.log"))).expect("its log");
        newcomers.push(late);
        log.lines().any(|line| line.contains("a source of downloads is dropped") && line.contains(&id[..8]))
    });
    assert!(met, "none of {NEWCOMERS} newcomers was served damaged state by {id}");
    liar.kill();
    bench.honest.append(&mut newcomers);
    bench.assert_sound();
}

/// A stranger may send anything; the flock goes on from the same head.
#[test]
fn a_stranger_moves_nobody() {
    let Some(program) = program() else { return };
    let mut bench = Bench::new("owners");
    for mode in ["usurp", "usurp-genesis", "usurp-ahead", "false-heads", "evidence"] {
        let (mut liar, _) = bench.liar(&program, mode);
        liar.wait(LIMIT, "strangers", |e| e["sessions"].as_u64() >= Some(HONEST as u64)).expect("it is heard");
        for node in &mut bench.honest {
            let mark = node.mark();
            let first = node.wait_since(mark, LIMIT, "committed", |_| true).expect("rounds go on");
            let more = first["seq"].as_u64().expect("a number") + ROUNDS;
            node.wait_since(mark, LIMIT, "committed", |e| e["seq"].as_u64() >= Some(more)).expect("rounds go on");
        }
        let moved = |e: &Value| ["rolled_back", "evidence"].iter().any(|bad| e["event"] == *bad);
        let said: Vec<Value> = bench.honest.iter().flat_map(Process::events).filter(moved).collect();
        assert!(said.is_empty(), "{mode}: {said:#?}");
        liar.kill();
    }
    bench.assert_sound();
}

#[test]
fn a_ring_goes_on_without_a_member_that_spoils_it() {
    let Some(program) = program() else { return };
    let mut bench = Bench::new("ring");
    for (mode, words) in
        [("nan", "the payload of chunk"), ("garbage", "a frame was refused"), ("oversize", "payload length")]
    {
        bench.meets(&program, mode, &Shown::Blamed(vec![words]));
    }
    bench.takes_in(&program, "huge");
    bench.assert_sound();
}
