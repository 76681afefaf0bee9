//! `bench-train`: training steps of Starling and of the same model in PyTorch, taking turns in one run.
//!
//! Both sides start from the same parameters and train on the same tokens; their first losses must agree. Absolute
//! times depend on the machine's other load, so the result is the ratio of neighbouring turns. CPU seconds (of all
//! threads) are given too: they measure the work of a step, also on a machine that is not idle.

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use serde_json::{Value, json};
use starling_benches::{append_row, cpu_seconds, json_file, median};
use starling_kernels::host::optimizer::Rule;
use starling_kernels::{
    DeviceChoice, DeviceKind, ModelConfig, Trainer, TrainerOptions, initial_parameters, memory_estimate, open_trainer,
};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const LR: f64 = 1e-3;

/// Time training steps beside PyTorch.
#[derive(Parser)]
struct Arguments {
    /// Model and batch, PRESET:BATCHxSEQ; repeat for several
    #[arg(long = "case", default_values = ["3m:16x128", "10m:8x256"])]
    cases: Vec<Case>,
    /// Threads of either side; 0 = as many as the machine has.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Turns of each side.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Steps of a turn.
    #[arg(long, default_value_t = 2)]
    steps: usize,
    /// Starling's optimizer: adamw, muon, sgd, rmsprop or lion; PyTorch's is AdamW
    #[arg(long, default_value = "adamw")]
    optimizer: Rule,
    /// `auto`, `cpu`, `wgpu[:N]` or `cuda[:N]`; PyTorch takes cuda with cuda, else the CPU.
    #[arg(long, default_value = "cpu")]
    device: DeviceChoice,
    /// PyTorch's way: `eager` in f32, or `compiled-bf16` (torch.compile, autocast, flash attention)
    #[arg(long, default_value = "eager", value_parser = ["eager", "compiled-bf16"])]
    way: String,
    /// PyTorch's side, if it is not the one of the checkout
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    /// A Python with PyTorch and NumPy (default: the one that the variable PYTHON names, or python3)
    #[arg(long)]
    python: Option<String>,
    /// Append one JSON object a case to this file (default: the file that the variable JSON names)
    #[arg(long)]
    json: Option<PathBuf>,
}

/// A model and a batch.
#[derive(Clone)]
struct Case {
    preset: String,
    batch: usize,
    model: ModelConfig,
}

impl std::str::FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || format!("{text:?} is not PRESET:BATCHxSEQ, for example 3m:16x128");
        let (preset, sizes) = text.split_once(':').ok_or_else(error)?;
        let (batch, seq) = sizes.split_once('x').ok_or_else(error)?;
        let number = |s: &str| s.parse::<usize>().map_err(|_| error());
        let base = ModelConfig::preset(preset).ok_or_else(|| {
            format!(
                "there is no preset {preset:?}; take one of {}",
                ModelConfig::preset_names().collect::<Vec<_>>().join(", ")
            )
        })?;
        let model = ModelConfig { seq_len: number(seq)?, ..base };
        Ok(Self { preset: preset.into(), batch: number(batch)?, model })
    }
}

/// The measurements of one turn.
#[derive(Clone, Copy)]
struct Turn {
    seconds: f64,
    cpu: Option<f64>,
    loss: f64,
}

fn main() -> Result<()> {
    let mut arguments = Arguments::parse();
    if arguments.threads == 0 {
        arguments.threads = std::thread::available_parallelism()?.get();
    }
    let json = json_file(arguments.json.as_deref());
    for case in &arguments.cases {
        let row = run(&arguments, case)?;
        append_row(json.as_deref(), &row)?;
    }
    Ok(())
}

fn run(arguments: &Arguments, case: &Case) -> Result<Value> {
    let Case { preset, batch, model } = case;
    let options = TrainerOptions {
        batch: *batch,
        accumulate: 1,
        threads: arguments.threads,
        rule: arguments.optimizer,
        beta1: 0.9,
        beta2: 0.99,
        eps: 1e-8,
        weight_decay: 0.1,
        clip: 1.0,
    };
    let parameters = initial_parameters(model, 1);
    let tokens = tokens(model, *batch);
    let mut ours = open_trainer(&arguments.device, model, &options)?;
    ours.load(&parameters)?;
    for said in ours.told() {
        println!("  {said}");
    }
    let memory = match ours.device().kind {
        DeviceKind::Cpu => format!("; memory as estimated {} MiB", memory_estimate(model, &options).total() >> 20),
        DeviceKind::Wgpu | DeviceKind::Cuda => String::new(),
    };
    println!(
        "{preset}: {} parameters, {batch} x {} tokens, {}, {} threads, on {}{memory}",
        parameters.len(),
        model.seq_len,
        options.rule.name(),
        options.threads,
        ours.device(),
    );
    let named = arguments.python.clone().or_else(|| std::env::var("PYTHON").ok());
    let python = named.unwrap_or_else(|| "python3".into());
    let cuda = ours.device().kind == DeviceKind::Cuda;
    let mut theirs = match Torch::start(&python, (model, &options), (arguments, cuda), (&parameters, &tokens)) {
        Ok(torch) => Some(torch),
        Err(error) => {
            println!("  PyTorch SKIPPED: {error:#}");
            None
        }
    };
    // One step of each side warms the caches, and shows that both compute the same loss.
    let first = turn(&mut *ours, &tokens, 1)?;
    if let Some(torch) = &mut theirs {
        let other = torch.turn(1)?;
        let apart = (first.loss - other.loss).abs();
        // Products of bf16 have eight bits.
        let most = if cuda { 1e-2 } else { 1e-3 };
        ensure!(apart < most, "the first losses differ: {} here, {} in PyTorch", first.loss, other.loss);
    }
    let mut turns = Vec::new();
    for _ in 0..arguments.rounds.max(1) {
        let ours = turn(&mut *ours, &tokens, arguments.steps)?;
        let theirs = theirs.as_mut().map(|torch| torch.turn(arguments.steps)).transpose()?;
        turns.push((ours, theirs));
    }
    let count = (batch * model.seq_len * arguments.steps) as f64;
    Ok(report(&turns, count, case, arguments, theirs.map(|torch| torch.version.clone())))
}

/// Prints the medians, and returns them as one JSON object.
fn report(
    turns: &[(Turn, Option<Turn>)],
    tokens: f64,
    case: &Case,
    arguments: &Arguments,
    torch: Option<String>,
) -> Value {
    let pairs = || turns.iter().filter_map(|(ours, theirs)| theirs.map(|theirs| (*ours, theirs)));
    let ours = median(turns.iter().map(|(ours, _)| tokens / ours.seconds));
    let theirs = median(pairs().map(|(_, theirs)| tokens / theirs.seconds));
    let ratio = median(pairs().map(|(ours, theirs)| theirs.seconds / ours.seconds));
    let work = median(pairs().filter_map(|(ours, theirs)| Some(theirs.cpu? / ours.cpu?)));
    let busy = median(turns.iter().filter_map(|(ours, _)| Some(ours.cpu? / ours.seconds)));
    let show = |value: Option<f64>, digits: usize| value.map_or("-".into(), |v| format!("{v:.digits$}"));
    println!(
        "  Starling {} tokens/s ({} cores busy), PyTorch {} tokens/s; ratio {} by the clock, {} by CPU time",
        show(ours, 0),
        show(busy, 2),
        show(theirs, 0),
        show(ratio, 2),
        show(work, 2)
    );
    json!({
        "bench": "train",
        "preset": case.preset,
        "parameters": case.model.parameters(),
        "batch": case.batch,
        "seq_len": case.model.seq_len,
        "optimizer": arguments.optimizer.name(),
        "threads": arguments.threads,
        "device": arguments.device.to_string(),
        "rounds": turns.len(),
        "steps": arguments.steps,
        "tokens_per_second": ours,
        "torch": torch,
        "torch_way": arguments.way,
        "torch_tokens_per_second": theirs,
        "ratio": ratio,
        "cpu_ratio": work,
    })
}

/// Tokens with little pattern, the same in every run.
fn tokens(model: &ModelConfig, batch: usize) -> Vec<u32> {
    let count = (batch * (model.seq_len + 1)) as u64;
    (0..count).map(|i| (i.wrapping_mul(2_654_435_761) >> 7) as u32 % model.vocab as u32).collect()
}

fn turn(trainer: &mut dyn Trainer, tokens: &[u32], steps: usize) -> Result<Turn> {
    let (clock, cpu) = (Instant::now(), cpu_seconds());
    let mut loss = f64::NAN;
    for _ in 0..steps {
        loss = trainer.step(tokens, LR)?.loss;
    }
    let seconds = clock.elapsed().as_secs_f64();
    Ok(Turn { seconds, cpu: cpu_seconds().zip(cpu).map(|(after, before)| after - before), loss })
}

/// PyTorch in a process of its own, which waits on a pipe between its turns.
struct Torch {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    version: String,
    folder: PathBuf,
}

impl Torch {
    fn start(
        python: &str,
        (model, options): (&ModelConfig, &TrainerOptions),
        (arguments, cuda): (&Arguments, bool),
        (parameters, tokens): (&[f32], &[u32]),
    ) -> Result<Self> {
        let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("pytorch/train_step.py");
        let script = arguments.script.clone().unwrap_or_else(own);
        let folder = std::env::temp_dir().join(format!("starling-bench-train-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let write = |name: &str, bytes: Vec<u8>| -> Result<PathBuf> {
            let path = folder.join(name);
            std::fs::write(&path, bytes).with_context(|| format!("writing {}", path.display()))?;
            Ok(path)
        };
        let parameters = write("parameters", parameters.iter().flat_map(|x| x.to_le_bytes()).collect())?;
        let tokens = write("tokens", tokens.iter().flat_map(|x| x.to_le_bytes()).collect())?;
        let mut child = Command::new(python)
            .arg(script)
            .args(["--model", &serde_json::to_string(model)?, "--options", &serde_json::to_string(options)?])
            .arg("--parameters")
            .arg(parameters)
            .arg("--tokens")
            .arg(tokens)
            .args(["--lr", &LR.to_string(), "--device", if cuda { "cuda" } else { "cpu" }, "--way", &arguments.way])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {python}"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("{python} has no pipes");
        };
        let mut torch = Self { child, input, output: BufReader::new(output), version: String::new(), folder };
        let hello = torch.answer().with_context(|| format!("{python} needs torch and numpy (set PYTHON)"))?;
        torch.version = hello["torch"].as_str().unwrap_or("?").to_string();
        Ok(torch)
    }

    fn turn(&mut self, steps: usize) -> Result<Turn> {
        writeln!(self.input, "step {steps}")?;
        self.input.flush()?;
        let answer = self.answer()?;
        let number = |key: &str| answer[key].as_f64();
        let seconds = number("seconds").context("PyTorch gave no time")?;
        Ok(Turn { seconds, cpu: number("cpu_seconds"), loss: number("loss").unwrap_or(f64::NAN) })
    }

    fn answer(&mut self) -> Result<Value> {
        let mut line = String::new();
        ensure!(self.output.read_line(&mut line)? > 0, "it ended without an answer");
        Ok(serde_json::from_str(&line)?)
    }
}

impl Drop for Torch {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
