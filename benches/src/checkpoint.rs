//! `bench-checkpoint`: the time that a checkpoint adds to the rounds of the node that writes it. The goal is 3 % of a
//! round at most.
//!
//! One node trains by itself and writes a checkpoint every third round. It validates nothing and writes no snapshots
//! meanwhile, since these come at times of their own.

use anyhow::{Context, Result};
use clap::Parser;
use serde_json::json;
use starling_benches::cycles::{Cycle, EVERY, Figures};
use starling_benches::{append_row, json_file};
use starling_tests::flock::built_binaries;
use starling_tests::process::Process;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest time that one round may take.
const ROUND_LIMIT: Duration = Duration::from_secs(1200);
/// A share of a round.
const GOAL: f64 = 0.03;
/// Rounds of which the bench has fewer.
const NEVER: u64 = 1_000_000;

/// Measure what a checkpoint costs the rounds of the node that writes it
#[derive(Parser)]
struct Arguments {
    /// Model, as in a run file
    #[arg(long, default_value = "10m")]
    preset: String,
    /// Inner steps of a round: fewer make a checkpoint cost more of it
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    steps: u32,
    /// Checkpoints to measure, each over three rounds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    checkpoints: u64,
    /// Threads of the node's training; 0 = all cores
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Device of the node
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Folder for the node and its log, on the disk that is to be measured
    #[arg(long, value_name = "DIR", default_value = "out/bench-checkpoint")]
    out: PathBuf,
    /// Append one JSON object to this file (default: the file that the variable JSON names)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    std::fs::create_dir_all(&arguments.out).with_context(|| format!("cannot make {}", arguments.out.display()))?;
    let out = arguments.out.canonicalize()?;
    // The node of an earlier bench is of another run.
    let home = out.join("home");
    if home.exists() {
        std::fs::remove_dir_all(&home).with_context(|| format!("cannot remove {}", home.display()))?;
    }
    let cycles = measure(&arguments, &out)?;
    let figures = Figures::of(&cycles)?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let Arguments { preset, steps, threads, device, .. } = &arguments;
    let [low, cost, high] = figures.cost;
    println!(
        "{preset}, {steps} steps a round, {device}, {cores} cores: a round takes {:.2} s, and a checkpoint {:.2} s \
         beside it; it adds {:.1} % of a round ({:.1} to {:.1}; medians and quartiles of {} checkpoints; goal: at most \
         {:.0} %)",
        figures.round_seconds,
        figures.write_seconds,
        100.0 * cost,
        100.0 * low,
        100.0 * high,
        figures.cycles,
        100.0 * GOAL,
    );
    let row = json!({
        "bench": "checkpoint", "preset": preset, "steps": steps, "threads": threads, "device": device, "cores": cores,
        "every": EVERY, "checkpoints": figures.cycles, "round_seconds": figures.round_seconds,
        "write_seconds": figures.write_seconds, "added_seconds": cost * figures.round_seconds, "cost": cost,
        "cost_low": low, "cost_high": high, "goal": GOAL, "ok": cost <= GOAL,
    });
    println!("{row}");
    append_row(json_file(arguments.json.as_deref()).as_deref(), &row)
}

/// Runs the node until all checkpoints are written and the rounds after them are committed.
fn measure(arguments: &Arguments, out: &Path) -> Result<Vec<Cycle>> {
    let mut node = start(arguments, out)?;
    for checkpoint in 1..=arguments.checkpoints {
        // The first one waits for as many rounds, in which the node warms up.
        for round in EVERY * checkpoint..=EVERY * (checkpoint + 1) {
            node.wait(ROUND_LIMIT, "committed", |event| event["round"].as_u64() >= Some(round))?;
        }
        println!("{checkpoint} of {} checkpoints, with their rounds", arguments.checkpoints);
    }
    Cycle::all(&node.events()).with_context(|| node.last_words())
}

fn start(arguments: &Arguments, out: &Path) -> Result<Process> {
    let write = |name: &str, text: &str| {
        let path = out.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        anyhow::Ok(path.to_string_lossy().into_owned())
    };
    let text: String = (0..200_000u64).map(|n| format!("line {n}: some text {}\n", n * 7919 % 1000)).collect();
    write("text.txt", &text)?;
    // The disk has to hold the updates of so many rounds, so that a great number would be refused.
    let snapshots = EVERY * (arguments.checkpoints + 2);
    let node_toml =
        format!("validate_every = {NEVER}\nsnapshot_every = {snapshots}\n[checkpoint]\nevery = {EVERY}\nkeep = 2\n");
    let run_toml = format!(
        "name = \"checkpoint-cost\"\n[model]\npreset = {:?}\n[data]\nsources = [\"text.txt\"]\n[inner]\n\
         steps = {}\n",
        arguments.preset, arguments.steps
    );
    let (node_file, run_file) = (write("node.toml", &node_toml)?, write("run.toml", &run_toml)?);
    let folder = |name: &str| out.join(name).to_string_lossy().into_owned();
    let (home, cache, threads) = (folder("home"), folder("cache"), arguments.threads.to_string());
    let flags: [(&str, &str); 8] = [
        ("--run", &run_file),
        ("--config", &node_file),
        ("--home", &home),
        ("--cache", &cache),
        ("--device", &arguments.device),
        ("--threads", &threads),
        ("--listen", "/ip4/127.0.0.1/tcp/0"),
        ("--metrics", "off"),
    ];
    let mut line = vec!["train", "--json", "--no-mdns"];
    line.extend(flags.iter().flat_map(|(flag, value)| [*flag, *value]));
    Process::start("node", &built_binaries()?.join("starling"), &line, &out.join("logs"))
}
