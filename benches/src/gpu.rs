//! `bench-gpu`: the trainer for devices looked at part by part. Each command prints one JSON object a line.
//!
//! `counts` runs on a driver that computes nothing (`make gpu-check`); the others need a device, and compare it with the
//! CPU or time it (`tests/scripts/gpu-checks.sh`).

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Args, Parser, Subcommand};
use serde_json::json;
use starling_gpu::{Device, Opened, Sizes, Ways};
use starling_kernels::host::optimizer::Rule;
use starling_kernels::{
    DeviceChoice, ModelConfig, Trainer, TrainerOptions, initial_parameters, open_trainer, open_untried_trainer,
};
use starling_protocol::codec;
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::run::Codec;
use std::fs::OpenOptions;
use std::io::Write;
use std::time::Instant;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Look at the trainer for devices.
#[derive(Parser)]
struct Arguments {
    /// `wgpu[:N]` or `cuda[:N]`
    #[arg(long, default_value = "cuda", global = true)]
    device: DeviceChoice,
    #[command(subcommand)]
    command: Command,
}

/// A model, and the sequences of a step.
#[derive(Args)]
struct Work {
    #[arg(long)]
    preset: String,
    #[arg(long)]
    batch: usize,
    /// Tokens of a sequence
    #[arg(long)]
    seq: usize,
    /// The inner optimizer
    #[arg(long, default_value_t = Rule::AdamW)]
    inner: Rule,
}

impl Work {
    fn model(&self) -> Result<ModelConfig> {
        Ok(ModelConfig { seq_len: self.seq, ..model(&self.preset)? })
    }

    /// A trainer whose answers nobody has compared, and what it told.
    fn untried(&self, device: DeviceChoice, model: &ModelConfig) -> Result<Box<dyn Trainer>> {
        let options = TrainerOptions { rule: self.inner, ..options(self.batch) };
        let trainer = open_untried_trainer(&device, model, &options)?;
        println!("{}", json!({"told": trainer.told()}));
        Ok(trainer)
    }
}

#[derive(Subcommand)]
enum Command {
    /// Two steps without known answers, on a driver that counts; marks go to the file that STUB_LOG names
    Counts(Work),
    /// Holds a model's memory, without known answers, until the standard input ends
    Hold(Work),
    /// Gradients of eight shapes beside the CPU's
    Gradients,
    /// Losses of 300 steps beside the CPU's
    Losses,
    /// Seconds of loading and reading the parameters of 125m, which have to come back the same, of making the
    /// contribution, and of its first payload
    Transfers,
    /// Attention of the shapes of 125m, 350m and 1b: portable and with tensor cores
    Attention,
    /// Products of the shapes of 125m and 1b: by cuBLASLt and by cubek
    Products,
}

fn main() -> Result<()> {
    let Arguments { device, command } = Arguments::parse();
    match command {
        Command::Counts(work) => counts(device, &work),
        Command::Hold(work) => hold(device, &work),
        Command::Gradients => gradients(device),
        Command::Losses => losses(device),
        Command::Transfers => transfers(device),
        Command::Attention => attention(device),
        Command::Products => products(device),
    }
}

fn model(preset: &str) -> Result<ModelConfig> {
    ModelConfig::preset(preset).with_context(|| {
        let names: Vec<_> = ModelConfig::preset_names().collect();
        format!("there is no preset {preset:?}: take one of {}", names.join(", "))
    })
}

fn opened(device: DeviceChoice) -> Result<Opened> {
    let device = match device {
        DeviceChoice::Wgpu(index) => {
            let mut adapters = starling_gpu::graphics::adapters();
            ensure!(index < adapters.len(), "there is no adapter wgpu:{index}; there are {}", adapters.len());
            Device::Graphics(adapters.swap_remove(index))
        }
        #[cfg(feature = "cuda")]
        DeviceChoice::Cuda(index) => {
            starling_gpu::cuda::find(index).map_err(|why| anyhow!("there is no device cuda:{index}; {why}"))?;
            Device::Cuda(index)
        }
        #[cfg(not(feature = "cuda"))]
        DeviceChoice::Cuda(_) => bail!("this binary was built without CUDA; build it with --features cuda"),
        DeviceChoice::Auto | DeviceChoice::Cpu => bail!("name a device: wgpu[:N] or cuda[:N]"),
    };
    Opened::new(device).map_err(|why| anyhow!("the device does not start: {why}"))
}

/// Marks the place in the log of a driver that counts.
fn mark(section: &str) -> Result<()> {
    let Some(path) = std::env::var_os("STUB_LOG") else { return Ok(()) };
    let mut file = OpenOptions::new().create(true).append(true).open(path).context("the file that STUB_LOG names")?;
    // One write, since the driver writes to the file, too.
    Ok(file.write_all(format!("MARK {section}\n").as_bytes())?)
}

fn counts(device: DeviceChoice, work: &Work) -> Result<()> {
    let (model, sequences) = (work.model()?, work.batch);
    mark("open")?;
    let mut trainer = work.untried(device, &model)?;
    mark("load")?;
    if let Err(why) = trainer.load(&vec![0.01; model.schema().elements()]) {
        println!("{}", json!({"load": why.to_string()}));
    }
    let batch = crate::tokens(&model, sequences, 7);
    for step in 1..=2 {
        mark("step")?;
        match trainer.step(&batch, 1e-3) {
            Ok(report) => println!("{}", json!({"step": step, "loss": report.loss, "norm": report.grad_norm})),
            Err(why) => println!("{}", json!({"step": step, "error": why.to_string()})),
        }
    }
    mark("end")
}

/// Keeps a trainer open, with its memory, until nobody writes to the standard input any more.
fn hold(device: DeviceChoice, work: &Work) -> Result<()> {
    let _trainer = work.untried(device, &work.model()?)?;
    std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink()).context("the standard input")?;
    Ok(())
}

fn options(batch: usize) -> TrainerOptions {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let (rule, beta1, beta2, eps, weight_decay, clip) = (Rule::AdamW, 0.9, 0.99, 1e-8, 0.1, 1.0);
    TrainerOptions { batch, accumulate: 1, threads, rule, beta1, beta2, eps, weight_decay, clip }
}

/// Pseudo-random tokens.
fn tokens(model: &ModelConfig, sequences: usize, seed: u64) -> Vec<u32> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % model.vocab as u64) as u32
    };
    std::iter::repeat_with(next).take(sequences * (model.seq_len + 1)).collect()
}

/// A trainer on the device and one on the CPU, with equal parameters.
fn pair(device: DeviceChoice, model: &ModelConfig, options: &TrainerOptions) -> Result<[Box<dyn Trainer>; 2]> {
    let start = initial_parameters(model, 1);
    let mut trainers = [open_trainer(&device, model, options)?, open_trainer(&DeviceChoice::Cpu, model, options)?];
    trainers[0].told().iter().for_each(|told| eprintln!("told: {told}"));
    for trainer in &mut trainers {
        trainer.load(&start)?;
    }
    Ok(trainers)
}

/// vocab, d_model, heads, kv_heads, ffn, seq_len, layers.
const SHAPES: [[usize; 7]; 8] = [
    [256, 64, 4, 4, 176, 128, 2],
    [256, 128, 4, 4, 352, 128, 5],
    [1000, 384, 6, 6, 1024, 256, 2],
    [256, 512, 8, 8, 1376, 512, 2],
    [32_000, 768, 12, 4, 2048, 1024, 2],
    [257, 1024, 16, 4, 2816, 333, 2],
    [256, 1024, 8, 1, 1024, 512, 2],
    [256, 2048, 32, 4, 5632, 512, 1],
];

fn gradients(device: DeviceChoice) -> Result<()> {
    for [vocab, d_model, heads, kv_heads, ffn, seq_len, layers] in SHAPES {
        let base = model("0.1m")?;
        let model = ModelConfig { vocab, d_model, heads, kv_heads, ffn, seq_len, layers, ..base };
        let options = options(2);
        let shape = [vocab, d_model, heads, kv_heads, ffn, seq_len, layers];
        let [mut ours, mut cpu] = match pair(device, &model, &options) {
            Ok(pair) => pair,
            Err(why) => {
                println!("{}", json!({"shape": shape, "error": why.to_string()}));
                continue;
            }
        };
        let tokens = tokens(&model, options.batch, 7);
        let mut vectors = [(); 2].map(|()| vec![f32::NAN; model.schema().elements()]);
        let [a, b] = &mut vectors;
        let (report, known) = (ours.gradient(&tokens, a)?, cpu.gradient(&tokens, b)?);
        let squares = a.iter().zip(b.iter()).map(|(&a, &b)| (f64::from(a), f64::from(b)));
        let sums = squares.fold([0.0; 2], |[apart, all], (a, b)| [apart + (a - b).powi(2), all + b * b]);
        let apart = (sums[0] / sums[1]).sqrt();
        let row = json!({"shape": shape, "loss": report.loss, "cpu": known.loss, "apart": apart, "ok": apart < 1e-2});
        println!("{row}");
    }
    Ok(())
}

fn losses(device: DeviceChoice) -> Result<()> {
    const STEPS: usize = 300;
    let (model, options) = (model("0.1m")?, options(8));
    let [mut ours, mut cpu] = pair(device, &model, &options)?;
    let text = include_str!("../../CONTRIBUTING.md").as_bytes();
    let length = model.seq_len + 1;
    let (mut last, mut most) = ([0.0; 2], 0.0f64);
    for step in 0..STEPS {
        let starts = (0..options.batch).map(|s| (step * 7919 + s * 104_729) % (text.len() - length));
        let batch: Vec<u32> = starts.flat_map(|at| text[at..at + length].iter().map(|&b| b.into())).collect();
        last = [ours.step(&batch, 2e-3)?.loss, cpu.step(&batch, 2e-3)?.loss];
        most = most.max((last[0] - last[1]).abs());
    }
    println!("{}", json!({"steps": STEPS, "loss": last[0], "cpu": last[1], "furthest": most}));
    Ok(())
}

fn transfers(device: DeviceChoice) -> Result<()> {
    let model = model("125m")?;
    let mut trainer = open_untried_trainer(&device, &model, &options(1))?;
    println!("{}", json!({"told": trainer.told()}));
    let theta = initial_parameters(&model, 1);
    let mut vector = theta.clone();
    for turn in 0..4 {
        vector.fill(f32::NAN);
        let start = Instant::now();
        trainer.load(&theta)?;
        let loaded = start.elapsed();
        let start = Instant::now();
        trainer.read(&mut vector)?;
        let (read, same) = (start.elapsed(), vector == theta);
        let start = Instant::now();
        starling_node::contribution::subtract_from(&theta, &mut vector).context("parameters that are not finite")?;
        let made = start.elapsed();
        let (start, mut payload) = (Instant::now(), Vec::new());
        codec::encode(Codec::Int8, &vector[..CHUNK_ELEMENTS], &mut payload)?;
        let [load, read, made, payload] = [loaded, read, made, start.elapsed()].map(|time| time.as_secs_f64());
        let row = json!({"turn": turn, "elements": theta.len(), "load_s": load, "read_s": read, "same": same,
            "made_s": made, "first_payload_s": payload});
        println!("{row}");
    }
    Ok(())
}

/// Heads, key heads, width of a head, sequences, tokens.
const ATTENTIONS: [(&str, [usize; 5]); 3] =
    [("125m", [12, 4, 64, 8, 1024]), ("350m", [16, 4, 64, 4, 1024]), ("1b", [32, 4, 64, 4, 2048])];

fn attention(device: DeviceChoice) -> Result<()> {
    let opened = opened(device)?;
    for (name, [heads, kv_heads, head_dim, sequences, tokens]) in ATTENTIONS {
        for tensor_cores in [true, false] {
            let shape = [heads, kv_heads, head_dim, sequences, tokens];
            match opened.time_attention(shape, tensor_cores) {
                Ok([forward, backward]) => {
                    // Causal: half of the scores.
                    let flops = (2 * heads * head_dim * sequences * tokens * tokens) as f64;
                    let rates = [flops / forward, 2.5 * flops / backward].map(|rate| rate / 1e12);
                    let row = json!({"attention": name, "tensor_cores": tensor_cores, "forward_s": forward,
                        "backward_s": backward, "forward_tflops": rates[0], "backward_tflops": rates[1]});
                    println!("{row}");
                }
                Err(why) => println!("{}", json!({"attention": name, "tensor_cores": tensor_cores, "error": why})),
            }
        }
    }
    Ok(())
}

fn products(device: DeviceChoice) -> Result<()> {
    let opened = opened(device)?;
    for (preset, sequences) in [("125m", 8), ("1b", 4)] {
        let sizes = Sizes::from(&model(preset)?);
        for cublas in [true, false] {
            let ways = Ways { bf16: cfg!(feature = "cuda"), tensor_cores: false, cublas };
            for (shape, told) in opened.time_products(&sizes, sequences, ways) {
                let [form, m, n, k] = shape;
                let form = ["forward", "input", "weight"][form];
                let row = match told {
                    Ok(seconds) => json!({"product": preset, "form": form, "m": m, "n": n, "k": k, "cublas": cublas,
                        "seconds": seconds, "tflops": 2.0 * (m * n * k) as f64 / seconds / 1e12}),
                    Err(why) => json!({"product": preset, "form": form, "m": m, "n": n, "k": k, "cublas": cublas,
                        "error": why}),
                };
                println!("{row}");
            }
        }
    }
    Ok(())
}
