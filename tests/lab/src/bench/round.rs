//! `make bench-round`: the time of a round beyond its inner steps and its wire time, on lines of 1 Gbit/s.

use super::play::{Place, table};
use crate::costs;
use crate::history::{History, NodeHistory};
use crate::rows::{append, median};
use crate::stage::What;
use anyhow::Context;
use clap::Args;
use serde_json::{Value, json};

/// The settings of the bench.
#[derive(Clone, Debug, Args)]
pub struct RoundSetting {
    /// Model, as in a run file
    #[arg(long, default_value = "30m")]
    pub preset: String,
    /// Number of nodes
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=32))]
    pub nodes: u32,
    /// Mbit/s of each node's line, both ways
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub mbit: u32,
    /// Inner steps of a round, of 50 ms each
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub steps: u32,
    /// Seconds of rounds to measure, once all nodes are in
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(15..=3600))]
    pub seconds: u32,
    /// Codec, as in a run file
    #[arg(long, default_value = "int8")]
    pub codec: String,
    /// Engine: ring or owners
    #[arg(long, default_value = "ring")]
    pub engine: String,
}

impl RoundSetting {
    /// Plays the rounds, prints the figures and appends their row. `false` if a check of the scenario failed.
    ///
    /// # Errors
    /// If the scenario cannot be played, there was no round with all nodes, or the row cannot be written.
    pub fn run(&self, place: &Place) -> anyhow::Result<bool> {
        let (history, ok) = place.play("bench-round", &self.scenario())?;
        let cost = RoundCost::of(&history, self.nodes as usize, f64::from(self.mbit))?;
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        println!("{}", self.text(&cost, cores));
        append(place.json.as_deref(), &self.row(&cost, cores, ok))?;
        Ok(ok)
    }

    fn scenario(&self) -> String {
        let Self { preset, nodes, mbit, steps, seconds, codec, engine } = self;
        format!(
            "about = \"rounds of {nodes} nodes on fast lines\"\nend_s = {seconds}\nlimit_s = 3600\n\
             null_trainer_ms = 50\n\
             [run.model]\npreset = {preset:?}\n[run.inner]\nsteps = {steps}\n\
             [run.sync]\ncodec = {codec:?}\nengine = {engine:?}\n\
             [[nodes]]\nname = \"n\"\ncount = {nodes}\nsite = \"room\"\nup_mbit = {mbit}\ndown_mbit = {mbit}\n\
             [expect]\nmax_gap_s = 300\nsettle_s = 300\nrounds = 4\n"
        )
    }

    fn text(&self, cost: &RoundCost, cores: usize) -> String {
        let Self { preset, nodes, mbit, steps, codec, engine, .. } = self;
        let s = |seconds: f64| format!("{seconds:.3} s");
        let wire = format!("{} ({:.1} MB at {mbit} Mbit/s)", s(cost.wire_seconds), cost.sent_bytes / 1e6);
        let rows = [
            ("a round", s(cost.round_seconds)),
            ("of it the inner steps", s(cost.train_seconds)),
            ("of it the reduction", s(cost.reduce_seconds)),
            ("of it the rest", s(cost.rest_seconds)),
            ("from the last contribution to the commit on disk", s(cost.overhead_seconds)),
            ("what a node sends, by its line's rate", wire),
            ("a round beyond inner steps and wire time", s(cost.beyond_seconds)),
            ("processor time of a node", cost.cpu_seconds.map_or("not known".into(), s)),
        ];
        format!(
            "{preset}, {nodes} nodes on {cores} cores, {codec}, {engine}, {steps} steps a round: medians of {} rounds \
             on each node\n{}",
            cost.rounds,
            table(&rows)
        )
    }

    fn row(&self, cost: &RoundCost, cores: usize, ok: bool) -> Value {
        json!({
            "bench": "round", "preset": self.preset, "nodes": self.nodes, "mbit": self.mbit, "cores": cores,
            "steps": self.steps, "codec": self.codec, "engine": self.engine, "rounds": cost.rounds,
            "round_seconds": cost.round_seconds, "train_seconds": cost.train_seconds,
            "reduce_seconds": cost.reduce_seconds, "rest_seconds": cost.rest_seconds,
            "overhead_seconds": cost.overhead_seconds, "sent_bytes": cost.sent_bytes,
            "wire_seconds": cost.wire_seconds, "beyond_seconds": cost.beyond_seconds,
            "cpu_seconds": cost.cpu_seconds, "ok": ok,
        })
    }
}

/// One round of one node.
struct Part {
    round: f64,
    train: f64,
    reduce: f64,
    overhead: f64,
    sent: f64,
}

/// Medians over the rounds of all nodes to which every node contributed.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundCost {
    /// Number of rounds of the node that has most.
    pub rounds: usize,
    /// From one commit to the next.
    pub round_seconds: f64,
    pub train_seconds: f64,
    pub reduce_seconds: f64,
    /// A round without inner steps and reduction.
    pub rest_seconds: f64,
    /// The nodes' own measure: from the last contribution to the commit on disk.
    pub overhead_seconds: f64,
    pub sent_bytes: f64,
    /// The time of these bytes on the node's line.
    pub wire_seconds: f64,
    /// A round without inner steps and wire time.
    pub beyond_seconds: f64,
    pub cpu_seconds: Option<f64>,
}

impl RoundCost {
    /// Reads the figures of the rounds of `nodes` nodes on lines of `mbit`.
    ///
    /// # Errors
    /// If no node has two commits in a row to which all contributed.
    pub fn of(history: &History, nodes: usize, mbit: f64) -> anyhow::Result<Self> {
        let from = history.when(What::AllIn).context("the nodes never were in one commit")?;
        let to = history.when(What::Closing).unwrap_or(f64::INFINITY);
        let of_node: Vec<Vec<Part>> = history.nodes.iter().map(|node| parts(node, nodes, from, to)).collect();
        let rounds = of_node.iter().map(Vec::len).max().unwrap_or_default();
        let wire = |part: &Part| part.sent * 8.0 / (mbit * 1e6);
        let of = |pick: &dyn Fn(&Part) -> f64| {
            let all = of_node.iter().flatten().map(pick).collect();
            median(all).context("no two commits in a row had all nodes in them")
        };
        let cpu = history.nodes.iter().filter_map(|node| costs::of_a_round(history, node, from..to)).collect();
        Ok(Self {
            rounds,
            round_seconds: of(&|part| part.round)?,
            train_seconds: of(&|part| part.train)?,
            reduce_seconds: of(&|part| part.reduce)?,
            rest_seconds: of(&|part| part.round - part.train - part.reduce)?,
            overhead_seconds: of(&|part| part.overhead)?,
            sent_bytes: of(&|part| part.sent)?,
            wire_seconds: of(&wire)?,
            beyond_seconds: of(&|part| part.round - part.train - wire(part))?,
            cpu_seconds: median(cpu),
        })
    }
}

/// The node's rounds in that time to which all `nodes` contributed, each with the commit before it.
fn parts(node: &NodeHistory, nodes: usize, from: f64, to: f64) -> Vec<Part> {
    let seen = |event: &Value| event["seen"].as_f64().is_some_and(|seen| (from..=to).contains(&seen));
    let commits: Vec<&Value> = node.named("committed").filter(|event| seen(event)).collect();
    let trained = |round: u64| node.named("trained").filter(|event| event["round"] == round).last();
    let part = |pair: &[&Value]| {
        let (before, commit) = (pair[0], pair[1]);
        let number = |key: &str| commit[key].as_f64();
        let round = commit["round"].as_u64().filter(|round| before["round"].as_u64() == round.checked_sub(1))?;
        let whole = commit["contributors"].as_array().is_some_and(|all| all.len() == nodes);
        let sent = number("bytes_sent")? - before["bytes_sent"].as_f64()?;
        let train = trained(round)?["seconds"].as_f64()?;
        let (reduce, overhead) = (number("reduce_seconds")?, number("overhead_seconds")?);
        (whole && sent >= 0.0).then_some(Part { round: number("seconds")?, train, reduce, overhead, sent })
    };
    commits.windows(2).filter_map(part).collect()
}

#[cfg(test)]
#[path = "round_test.rs"]
mod tests;
