//! Kills any node at any time: the others commit again, and the killed one comes back to the same bits.

use crate::flock::{Flock, NodeOptions};
use crate::process::Process;
use anyhow::Context;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const NODES: usize = 4;
/// Longest wait for a commit after a kill, and for a restarted node to contribute again.
const PATIENCE: Duration = Duration::from_secs(120);

/// Settings of the run.
pub struct Options {
    pub bin_dir: PathBuf,
    pub out: PathBuf,
    pub kills: usize,
    pub seed: u64,
    pub all: bool,
}

/// The state of the run.
pub struct Kills {
    flock: Flock,
    nodes: Vec<Process>,
    random: u64,
}

impl Kills {
    /// Kills, restarts and measures; returns the result as text.
    ///
    /// # Errors
    /// If no commit comes in time, a node does not come back, or two nodes committed different states.
    pub fn run(options: &Options) -> anyhow::Result<String> {
        if options.out.exists() {
            std::fs::remove_dir_all(&options.out)?;
        }
        std::fs::create_dir_all(&options.out)?;
        let flock = Flock::start(&options.bin_dir, &options.out.canonicalize()?, RUN)?;
        let mut run = Self { flock, nodes: Vec::new(), random: options.seed };
        for n in 0..NODES {
            let node = run.start(n, n == 0)?;
            run.nodes.push(node);
            if n == 0 {
                run.nodes[0].wait(PATIENCE, "founded", |_| true)?;
            }
        }
        run.wait_for_all(0)?;
        let mut gaps = Vec::new();
        for kill in 0..options.kills {
            let gap = run.kill_and_restart().with_context(|| {
                format!("kill {} of {} (again: starling-kills --seed {})", kill + 1, options.kills, options.seed)
            })?;
            println!("kill {:3}: {gap:6.2} s without a commit", kill + 1);
            gaps.push(gap);
        }
        if options.all {
            run.kill_all()?;
        }
        run.check_parity()?;
        gaps.sort_by(f64::total_cmp);
        let at =
            |share: f64| gaps.get(((gaps.len() as f64 - 1.0) * share).round() as usize).copied().unwrap_or_default();
        Ok(format!(
            "{} kills: gap p50 {:.2} s, p99 {:.2} s, longest {:.2} s; states equal in all {} rounds compared",
            gaps.len(),
            at(0.5),
            at(0.99),
            at(1.0),
            run.compared()
        ))
    }

    fn start(&self, n: usize, found: bool) -> anyhow::Result<Process> {
        let arguments = ["--device", "cpu", "--threads", "1", "--log", "info"].map(String::from).to_vec();
        self.flock.node(&format!("node-{}", n + 1), &NodeOptions { found, arguments, ..NodeOptions::default() })
    }

    fn kill_and_restart(&mut self) -> anyhow::Result<f64> {
        let victim = self.below(NODES as u64) as usize;
        // A random time in a round: training takes most of it, so half of the kills wait for its end.
        let pause = Duration::from_millis(self.below(1500));
        let witness = (victim + 1) % NODES;
        let mark = self.nodes[victim].mark();
        if self.below(2) == 0 {
            self.nodes[victim].wait_since(mark, PATIENCE, "trained", |_| true)?;
            std::thread::park_timeout(pause / 20);
        } else {
            std::thread::park_timeout(pause);
        }
        let mark = self.nodes[witness].mark();
        self.nodes[victim].kill();
        let killed = Instant::now();
        let victim_id = self.id_of(victim)?;
        let without = |e: &Value| e["contributors"].as_array().is_some_and(|c| c.iter().all(|id| *id != victim_id));
        self.nodes[witness].wait_since(mark, PATIENCE, "committed", without)?;
        let gap = killed.elapsed().as_secs_f64();
        self.nodes[victim] = self.start(victim, false)?;
        self.wait_for_all(victim)?;
        Ok(gap)
    }

    fn kill_all(&mut self) -> anyhow::Result<()> {
        let before = newest(&self.nodes[0].events(), "round");
        for node in &mut self.nodes {
            node.kill();
        }
        for n in 0..NODES {
            self.nodes[n] = self.start(n, false)?;
        }
        let event = self.nodes[0].wait(PATIENCE, "committed", |_| true)?;
        let after = event["round"].as_u64().unwrap_or_default();
        anyhow::ensure!(
            after > before && after <= before + 3,
            "after restarting all, round {after} followed round {before}"
        );
        println!("killed and restarted all: round {before}, then round {after}");
        self.wait_for_all(0)
    }

    /// Waits until `n`'s newest commit has contributions of all.
    fn wait_for_all(&mut self, n: usize) -> anyhow::Result<()> {
        let all = |e: &Value| e["contributors"].as_array().is_some_and(|c| c.len() == NODES);
        self.nodes[n].wait(PATIENCE, "committed", all).map(drop)
    }

    fn id_of(&self, n: usize) -> anyhow::Result<Value> {
        self.nodes[n].events().first().map(|e| e["node"].clone()).context("a node says its id in every event")
    }

    /// Checks that all nodes that have committed a record have committed the same state. A node that committed alone
    /// and was rolled back reports so; its record does not count.
    fn check_parity(&self) -> anyhow::Result<()> {
        let mut roots: BTreeMap<String, String> = BTreeMap::new();
        for event in self.committed() {
            let (record, root) = (event["record"].to_string(), event["state_root"].to_string());
            let known = roots.entry(record).or_insert_with(|| root.clone());
            anyhow::ensure!(*known == root, "two states for record {}", event["record"]);
        }
        let mut heads: Vec<_> = self.nodes.iter().map(|n| newest(&n.events(), "seq")).collect();
        heads.sort_unstable();
        let (first, last) = (heads.first().copied().unwrap_or_default(), heads.last().copied().unwrap_or_default());
        anyhow::ensure!(last - first <= 1, "heads are apart: {heads:?}");
        Ok(())
    }

    fn compared(&self) -> usize {
        let mut records: Vec<_> = self.committed().iter().map(|e| e["record"].to_string()).collect();
        records.sort();
        records.dedup();
        records.len()
    }

    /// Commits of all nodes, earlier processes with the same name included (their events are on disk).
    fn committed(&self) -> Vec<Value> {
        let logs = self.flock.folder.join("logs");
        let texts =
            self.nodes.iter().filter_map(|n| std::fs::read_to_string(logs.join(format!("{}.jsonl", n.name))).ok());
        let parsed: Vec<Value> = texts
            .flat_map(|t| t.lines().filter_map(|l| serde_json::from_str(l).ok()).collect::<Vec<Value>>())
            .collect();
        parsed.into_iter().filter(|e| e["event"] == "committed").collect()
    }

    /// A random number below `bound` (splitmix64).
    fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound.max(1)
    }
}

fn newest(events: &[Value], key: &str) -> u64 {
    events.iter().rev().find(|e| e["event"] == "committed").and_then(|e| e[key].as_u64()).unwrap_or_default()
}

/// Small and quick: rounds of a second or two with four nodes on two cores.
const RUN: &str = r#"
name = "kills"
seed = 11
[model]
preset = "0.1m"
[data]
bytes_max = 4194304
[inner]
steps = 10
batch = 4
lr = 2e-3
[budget]
rounds = 100000
"#;
