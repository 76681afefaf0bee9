//! The demo's story: start, train, kill, join, end, report.

use crate::flock::{Flock, NodeOptions};
use crate::process::{self, Process};
use crate::report::{Happening, NodeRow, Report};
use anyhow::Context;
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Nodes at the start.
const NODES: usize = 4;
/// Longest time for one step of the demo (a round, a join): a step that takes longer on any machine is broken.
const PATIENCE: Duration = Duration::from_secs(300);

/// Settings of the demo.
pub struct Options {
    pub bin_dir: PathBuf,
    pub out: PathBuf,
    pub rounds: u64,
    /// Device of the second node; the others train on the CPU.
    pub device: String,
}

/// The state of the demo.
pub struct Demo {
    options: Options,
    flock: Flock,
    nodes: Vec<Process>,
    started: Instant,
    happenings: Vec<Happening>,
}

impl Demo {
    /// Plays the demo. Returns `false` if it came to its end but not as promised; the table says how.
    pub fn run(options: Options) -> anyhow::Result<bool> {
        let out = options.out.clone();
        if out.exists() {
            std::fs::remove_dir_all(&out)
                .with_context(|| format!("cannot empty the report folder {}", out.display()))?;
        }
        std::fs::create_dir_all(&out).with_context(|| format!("cannot make the report folder {}", out.display()))?;
        let out = out.canonicalize()?;
        let flock = Flock::start(&options.bin_dir, &out.join("flock"), &run_file(options.rounds))?;
        println!("bootstrap peer: {}", flock.address);
        let options = Options { out, ..options };
        let mut demo = Self { options, flock, nodes: Vec::new(), started: Instant::now(), happenings: Vec::new() };
        demo.start_nodes()?;
        demo.kill_one()?;
        demo.join_one()?;
        demo.wait_for_the_end()?;
        demo.report()
    }

    fn start_nodes(&mut self) -> anyhow::Result<()> {
        for n in 1..=NODES {
            let device = if n == 2 { self.options.device.as_str() } else { "cpu" };
            let options = NodeOptions { found: n == 1, arguments: node_arguments(device), ..NodeOptions::default() };
            let mut node = self.flock.node(&format!("node-{n}"), &options)?;
            if n == 1 {
                println!(
                    "node-1 prepares the text (crate sources that cargo has unpacked here) and founds the flock ..."
                );
                node.wait(PATIENCE, "founded", |_| true)?;
            }
            self.nodes.push(node);
        }
        // The measured time begins when all nodes contribute.
        let all_in = |e: &Value| e["contributors"].as_array().is_some_and(|c| c.len() == NODES);
        let event = self.nodes[0].wait(PATIENCE, "committed", all_in)?;
        println!("round {}: all {NODES} nodes contribute", event["round"]);
        self.started = Instant::now();
        Ok(())
    }

    /// Sends SIGKILL to a node in the middle of a round, at about a third of the run.
    fn kill_one(&mut self) -> anyhow::Result<()> {
        let round = self.wait_for_round(self.options.rounds / 3)?;
        let victim = &mut self.nodes[NODES - 1];
        let mark = victim.mark();
        victim.wait_since(mark, PATIENCE, "step", |e| e["step"].as_u64() < e["steps"].as_u64())?;
        victim.kill();
        self.happened(round, "node-4 killed");
        let survivors = |e: &Value| e["contributors"].as_array().is_some_and(|c| c.len() == NODES - 1);
        let mark = self.nodes[0].mark();
        let killed = Instant::now();
        let event = self.nodes[0].wait_since(mark, PATIENCE, "committed", survivors)?;
        println!(
            "killed node-4 in round {round}; the others committed round {} {:.1} s later",
            event["round"],
            killed.elapsed().as_secs_f64()
        );
        Ok(())
    }

    /// Starts a node with nothing but a ticket, at about half of the run.
    fn join_one(&mut self) -> anyhow::Result<()> {
        self.wait_for_round(self.options.rounds / 2)?;
        let ticket = self.flock.invite("node-1")?;
        std::fs::write(self.options.out.join("ticket.txt"), &ticket)?;
        let options = NodeOptions { ticket: Some(ticket), arguments: node_arguments("cpu"), ..NodeOptions::default() };
        let started = Instant::now();
        let mut node = self.flock.node("node-5", &options)?;
        let event = node.wait(PATIENCE, "committed", |_| true)?;
        let seconds = started.elapsed().as_secs_f64();
        println!(
            "node-5 joined with a ticket and an empty disk; its first commit is round {}, {seconds:.1} s after its start",
            event["round"]
        );
        self.happened(event["round"].as_u64().unwrap_or_default(), "node-5 joined");
        self.nodes.push(node);
        Ok(())
    }

    fn wait_for_the_end(&mut self) -> anyhow::Result<()> {
        for round in (0..=self.options.rounds).step_by(5) {
            let reached = self.wait_for_round(round)?;
            let events = self.nodes[0].events();
            let loss = events.iter().rev().find(|e| e["event"] == "committed").and_then(|e| e["loss"].as_f64());
            if reached == round {
                println!("round {round}/{}: loss {:.3}", self.options.rounds, loss.unwrap_or(f64::NAN));
            }
        }
        for node in &mut self.nodes {
            if node.name == "node-4" {
                continue;
            }
            let status = node.wait_exit(PATIENCE)?;
            anyhow::ensure!(status.success(), "{} ended with {status}\n{}", node.name, node.last_words());
        }
        Ok(())
    }

    /// Waits until node-1 has committed that round or a later one; returns its newest round.
    fn wait_for_round(&mut self, round: u64) -> anyhow::Result<u64> {
        if round > 0 {
            self.nodes[0].wait(PATIENCE, "committed", |e| e["round"].as_u64() >= Some(round))?;
        }
        let newest = |e: &Value| (e["event"] == "committed").then(|| e["round"].as_u64()).flatten();
        Ok(self.nodes[0].events().iter().rev().find_map(newest).unwrap_or_default())
    }

    fn happened(&mut self, round: u64, what: &str) {
        let seconds = self.started.elapsed().as_secs_f64();
        self.happenings.push(Happening { round, seconds, what: what.into() });
    }

    fn report(self) -> anyhow::Result<bool> {
        let seconds = self.started.elapsed().as_secs_f64();
        let rows = self.nodes.iter().map(|n| NodeRow::from_events(&n.name, n.name != "node-4", &n.events())).collect();
        let checkpoint = final_checkpoint(&self.nodes[0].events())?;
        let sample = self.sample(&checkpoint)?;
        let report = Report::new(&self.nodes[0].events(), rows, self.happenings, seconds, sample)?;
        report.write(&self.options.out, &self.flock.folder.join("logs"))?;
        println!("\n{}", report.text());
        println!("checkpoint: {checkpoint}");
        println!("report:     {}", self.options.out.display());
        Ok(report.as_promised())
    }

    fn sample(&self, checkpoint: &str) -> anyhow::Result<String> {
        let program = self.options.bin_dir.join("starling");
        let arguments =
            ["generate", "--checkpoint", checkpoint, "--prompt", "pub fn ", "--tokens", "240", "--temperature", "0.7"];
        let finished = process::run(&program, &arguments, PATIENCE)?;
        anyhow::ensure!(finished.code == Some(0), "starling generate failed: {}", finished.stderr);
        Ok(finished.stdout)
    }
}

fn final_checkpoint(events: &[Value]) -> anyhow::Result<String> {
    let found = events.iter().rev().find(|e| e["event"] == "checkpoint").and_then(|e| e["path"].as_str());
    Ok(found.context("node-1 wrote no final checkpoint")?.to_string())
}

/// Arguments with one training thread for each node: four nodes share the machine.
fn node_arguments(device: &str) -> Vec<String> {
    ["--device", device, "--threads", "1", "--log", "info"].map(String::from).to_vec()
}

/// A run file of a few short rounds, which need a high outer rate and little momentum.
fn run_file(rounds: u64) -> String {
    include_str!("../../configs/demo.toml").replace("rounds = 150", &format!("rounds = {rounds}"))
}
