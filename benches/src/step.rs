//! `bench-step`: the time of a training step whose gradient is averaged, with 1, 2 and 4 processes on this machine,
//! beside the same model's plain step in one process, and beside PyTorch's DDP over gloo.
//!
//! Each process trains on one thread. If there are more processes than cores, they share the cores, and this alone
//! makes a step longer. So the bench also gives the plain step for as many processes at once.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use serde_json::{Value, json};
use starling_benches::{append_row, json_file, median};
use starling_kernels::host::optimizer::Rule;
use starling_kernels::{DeviceChoice, ModelConfig, TrainerOptions, initial_parameters, open_trainer};
use starling_tests::flock::{Flock, NodeOptions, built_binaries};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(300);
/// Sequences of a step, in each process.
const BATCH: usize = 8;
/// The variable that this program sets in the processes that time a plain step.
const PLAIN: &str = "STARLING_BENCH_PLAIN_STEP";

/// Time steps whose gradients are averaged
#[derive(Parser)]
struct Arguments {
    /// The model; repeat for several.
    #[arg(long = "preset", default_values = ["1m", "3m"])]
    presets: Vec<String>,
    /// Processes; repeat for several.
    #[arg(long = "nodes", default_values_t = [1, 2, 4])]
    nodes: Vec<usize>,
    /// Steps timed.
    #[arg(long, default_value_t = 30)]
    steps: usize,
    /// A Python with PyTorch (default: the one that the variable PYTHON names, or python3)
    #[arg(long)]
    python: Option<String>,
    /// Append one JSON object a case to this file (default: the file that the variable JSON names)
    #[arg(long)]
    json: Option<PathBuf>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if std::env::var_os(PLAIN).is_some() {
        let preset = arguments.presets.first().context("a preset")?;
        println!("{}", plain(&model(preset)?, arguments.steps)?);
        return Ok(());
    }
    let json = json_file(arguments.json.as_deref());
    let named = arguments.python.clone().or_else(|| std::env::var("PYTHON").ok());
    let python = named.unwrap_or_else(|| "python3".into());
    for preset in &arguments.presets {
        for nodes in &arguments.nodes {
            let row = case(preset, *nodes, arguments.steps, &python)?;
            append_row(json.as_deref(), &row)?;
        }
    }
    Ok(())
}

fn model(preset: &str) -> Result<ModelConfig> {
    ModelConfig::preset(preset).with_context(|| format!("there is no preset {preset:?}"))
}

fn options() -> TrainerOptions {
    TrainerOptions {
        batch: BATCH,
        accumulate: 1,
        threads: 1,
        rule: Rule::AdamW,
        beta1: 0.9,
        beta2: 0.99,
        eps: 1e-8,
        weight_decay: 0.01,
        clip: 1.0,
    }
}

/// Seconds of the median step of a trainer that averages nothing.
fn plain(model: &ModelConfig, steps: usize) -> Result<f64> {
    let mut trainer = open_trainer(&DeviceChoice::Cpu, model, &options())?;
    trainer.load(&initial_parameters(model, 1))?;
    let count = (BATCH * (model.seq_len + 1)) as u64;
    let tokens: Vec<u32> =
        (0..count).map(|i| (i.wrapping_mul(2_654_435_761) >> 7) as u32 % model.vocab as u32).collect();
    trainer.step(&tokens, 1e-3)?;
    let mut times = Vec::with_capacity(steps);
    for _ in 0..steps {
        let clock = Instant::now();
        trainer.step(&tokens, 1e-3)?;
        times.push(clock.elapsed().as_secs_f64());
    }
    median(times.into_iter()).context("no steps")
}

fn case(preset: &str, nodes: usize, steps: usize, python: &str) -> Result<Value> {
    let model = model(preset)?;
    let alone = plain(&model, steps)?;
    let crowded = plain_at_once(preset, nodes, steps)?;
    let flock = flock(preset, nodes, steps)?;
    let torch = ddp(python, &model, nodes, steps);
    if let Err(why) = &torch {
        println!("  PyTorch SKIPPED: {why:#}");
    }
    let torch = torch.ok();
    let ms = |seconds: f64| format!("{:.1} ms", 1e3 * seconds);
    println!(
        "{preset}, {nodes} processes: a step {}, of it {} beyond training ({:.0} %); plain {} alone, {} at once; DDP {}",
        ms(flock.step),
        ms(flock.beyond),
        100.0 * flock.beyond / flock.step,
        ms(alone),
        ms(crowded),
        torch.as_ref().map_or("-".into(), |(seconds, _)| ms(*seconds)),
    );
    Ok(json!({
        "bench": "step",
        "preset": preset,
        "parameters": model.parameters(),
        "nodes": nodes,
        "batch": BATCH,
        "seq_len": model.seq_len,
        "steps": steps,
        "step_seconds": flock.step,
        "beyond_training_seconds": flock.beyond,
        "reduce_seconds": flock.reduce,
        "plain_seconds": alone,
        "plain_at_once_seconds": crowded,
        "torch": torch.as_ref().map(|(_, version)| version),
        "torch_ddp_seconds": torch.as_ref().map(|(seconds, _)| seconds),
    }))
}

/// The slowest of `nodes` processes that time a plain step at once.
fn plain_at_once(preset: &str, nodes: usize, steps: usize) -> Result<f64> {
    let me = std::env::current_exe()?;
    let start = |_| {
        let mut command = Command::new(&me);
        command.args(["--preset", preset, "--steps", &steps.to_string()]).env(PLAIN, "1");
        command.stdout(Stdio::piped()).spawn()
    };
    let children: Vec<_> = (0..nodes).map(start).collect::<Result<_, _>>()?;
    let mut slowest = 0f64;
    for child in children {
        let said = child.wait_with_output()?;
        ensure!(said.status.success(), "a process that times a plain step failed");
        slowest = slowest.max(String::from_utf8_lossy(&said.stdout).trim().parse()?);
    }
    Ok(slowest)
}

/// Medians over the steps of a flock, as its founder measured them, in seconds.
struct Timing {
    step: f64,
    reduce: f64,
    /// From the last gradient's arrival to the commit on disk.
    beyond: f64,
}

fn flock(preset: &str, count: usize, steps: usize) -> Result<Timing> {
    let folder = std::env::temp_dir().join(format!("starling-bench-step-{}", std::process::id()));
    let timing = in_folder(&folder, preset, count, steps);
    std::fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
    timing
}

fn in_folder(folder: &Path, preset: &str, count: usize, steps: usize) -> Result<Timing> {
    std::fs::create_dir_all(folder)?;
    let text: String = (0..20_000).map(|n| format!("line {n}: some text {}\n", n * 7919 % 1000)).collect();
    std::fs::write(folder.join("text.txt"), text)?;
    let node_file = folder.join("node.toml");
    std::fs::write(&node_file, "validate_sequences = 0\n")?;
    let run_toml = format!(
        "name = \"bench-step\"\nsync = \"every-step\"\n[model]\npreset = \"{preset}\"\n[data]\n\
         sources = [\"text.txt\"]\nholdout = 0.1\n[inner]\nbatch = {BATCH}\n"
    );
    let flock = Flock::start(&built_binaries()?, folder, &run_toml)?;
    let mut nodes = Vec::new();
    for n in 0..count {
        let mut options = NodeOptions::small(n == 0);
        options.arguments.extend(["--config".into(), node_file.to_string_lossy().into_owned()]);
        let mut node = flock.node(&format!("node-{n}"), &options)?;
        if n == 0 {
            node.wait(LIMIT, "founded", |_| true)?;
        }
        nodes.push(node);
    }
    let all = |e: &Value| e["contributors"].as_array().is_some_and(|c| c.len() == count);
    let first = nodes[0].wait(LIMIT, "committed", all)?["round"].as_u64().context("a round")?;
    // The first steps load and connect.
    let (from, to) = (first + 5, first + 5 + steps as u64);
    nodes[0].wait(LIMIT, "committed", |e| e["round"].as_u64() >= Some(to))?;
    let events = nodes[0].events();
    let timed = |key: &str| {
        let within = |e: &&Value| e["round"].as_u64().is_some_and(|round| (from..to).contains(&round)) && all(e);
        let committed = events.iter().filter(|e| e["event"] == "committed").filter(within);
        median(committed.filter_map(|e| e[key].as_f64())).with_context(|| format!("no {key}"))
    };
    Ok(Timing { step: timed("seconds")?, reduce: timed("reduce_seconds")?, beyond: timed("overhead_seconds")? })
}

/// Seconds of the median step of the slowest process of PyTorch's DDP, and PyTorch's version.
fn ddp(python: &str, model: &ModelConfig, nodes: usize, steps: usize) -> Result<(f64, String)> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("rivals/ddp.py");
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let start = |index: usize| {
        let numbers = [index, nodes, port.into(), steps].map(|n| n.to_string());
        let mut command = Command::new(python);
        command.arg(&script).args(numbers).arg(serde_json::to_string(model)?).arg(serde_json::to_string(&options())?);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        command.spawn().with_context(|| format!("starting {python}"))
    };
    let children: Vec<_> = (0..nodes).map(start).collect::<Result<_>>()?;
    let (mut slowest, mut version) = (0f64, String::new());
    for child in children {
        let said = child.wait_with_output()?;
        ensure!(said.status.success(), "{python} needs torch (set PYTHON)");
        let answer: Value = serde_json::from_slice(&said.stdout)?;
        slowest = slowest.max(answer["seconds"].as_f64().context("no time")?);
        version = answer["torch"].as_str().unwrap_or("?").to_owned();
    }
    Ok((slowest, version))
}
