//! `bench-loss`: what codecs and engines cost in validation loss, at equal tokens and without a network.
//!
//! Some members train one model side by side in one process, as DiLoCo does, on the same text and the same samples in every
//! case; only how their pseudo-gradients are averaged differs. That is the protocol's own arithmetic (ring or owners), with
//! error feedback where the codec takes it. With `every-step` gradients are averaged at each step, in the same way, and
//! the protocol's AdamW applies them. Seeds are pairs: a case is compared with the first one seed by seed.

mod loss_plot;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use loss_plot::{Curve, Curves};
use serde_json::json;
use starling_kernels::codec::{offered, settle};
use starling_kernels::{DeviceChoice, ModelConfig, Trainer, TrainerOptions, initial_parameters, open_trainer};
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::outer::{self, adamw::AdamW};
use starling_protocol::run::{Codec, EngineKind, InnerSpec, ModelSpec, SyncMode};
use starling_protocol::update::{self, Fragments};
use std::io::Write;
use std::path::{Path, PathBuf};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Outer rate and momentum of short runs (`algorithms.md` §9).
const OUTER: (f32, f32) = (0.9, 0.3);
/// Steps until the inner rate is at its peak; then a cosine goes down to a twentieth.
const WARM_UP: f64 = 30.0;
const LR_FINAL: f64 = 0.05;
/// Text beyond this many bytes is not read.
const TEXT_BYTES_MAX: usize = 16 << 20;
/// Sequences that the loss is measured on.
const HELD_OUT_MAX: usize = 2048;
/// Sequences for each point of a curve.
const POINT_MAX: usize = 512;
/// Student's t for 95 % with 1, 2, ... degrees of freedom.
const STUDENT: [f64; 9] = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26];

/// Compare the validation loss of codecs at equal tokens.
#[derive(Parser)]
struct Arguments {
    /// Text to train on: a file, or a folder whose .rs and .md files are taken.
    #[arg(long)]
    text: PathBuf,
    /// CODEC:ENGINE, with top-k as top-64 and so on, and :every-step behind it for that mode, or any of :fragments=4,
    /// :overlap=2 and :mixing=0.5; repeat for several. The first is what others are compared with.
    #[arg(long = "case", default_values = ["bf16:ring", "int8:ring", "int4:owners"])]
    cases: Vec<Case>,
    #[arg(long, default_value = "0.1m")]
    preset: String,
    #[arg(long, default_value_t = 64)]
    seq: usize,
    #[arg(long, default_value_t = 8)]
    batch: usize,
    #[arg(long, default_value_t = 4)]
    members: usize,
    /// Inner steps a round.
    #[arg(long, default_value_t = 10)]
    steps: usize,
    #[arg(long, default_value_t = 60)]
    rounds: usize,
    #[arg(long, default_value_t = 3)]
    seeds: u64,
    #[arg(long, default_value_t = 4e-3)]
    lr: f64,
    /// Threads; 0 = as many as the machine has.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Append one JSON object a case and seed to this file; else to what JSON names.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Draw all curves into this file, as SVG.
    #[arg(long)]
    plot: Option<PathBuf>,
    /// Points of a curve, if one is drawn.
    #[arg(long, default_value_t = 12)]
    points: usize,
}

/// A way to average.
#[derive(Clone, Copy)]
struct Case {
    codec: Codec,
    engine: EngineKind,
    mode: SyncMode,
    fragments: u32,
    overlap: usize,
    mixing: f32,
}

impl Case {
    fn streams(&self) -> bool {
        self.fragments > 1 || self.overlap > 0 || self.mixing > 0.0
    }

    /// Takes one of the words behind codec and engine.
    fn take(&mut self, word: &str) -> Result<(), String> {
        let no_number = |_| format!("{word:?} names no number");
        match word.split_once('=') {
            None => self.mode = word.parse()?,
            Some(("fragments", count)) => self.fragments = count.parse().map_err(no_number)?,
            Some(("overlap", steps)) => self.overlap = steps.parse().map_err(no_number)?,
            Some(("mixing", share)) => {
                self.mixing = share.parse().map_err(|_| format!("{word:?} names no number"))?;
            }
            Some((key, _)) => return Err(format!("{key:?} is none of fragments, overlap, mixing")),
        }
        Ok(())
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.codec, self.engine)?;
        if self.mode != SyncMode::Rounds {
            write!(f, " {}", self.mode)?;
        }
        if self.streams() {
            write!(f, " fragments {} overlap {} mixing {}", self.fragments, self.overlap, self.mixing)?;
        }
        Ok(())
    }
}

impl std::str::FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (codec, rest) = text.split_once(':').ok_or("give CODEC:ENGINE, for example int4:owners")?;
        let mut words = rest.split(':');
        let engine = words.next().unwrap_or_default();
        let codec = match codec.strip_prefix("top-") {
            Some(k) => Codec::TopK { k: k.parse().map_err(|_| format!("{k:?} is no number"))? },
            None => [Codec::Bf16, Codec::Int8, Codec::Int4]
                .into_iter()
                .find(|known| known.name() == codec)
                .ok_or_else(|| format!("{codec:?} is not one of bf16, int8, int4, top-K"))?,
        };
        let (engine, mode) = (engine.parse()?, SyncMode::Rounds);
        let mut case = Self { codec, engine, mode, fragments: 1, overlap: 0, mixing: 0.0 };
        words.try_for_each(|word| case.take(word))?;
        if case.streams() && case.mode != SyncMode::Rounds {
            return Err("fragments, overlap and mixing do not go with every-step".to_owned());
        }
        Ok(case)
    }
}

/// Bytes of text: what is trained on, and what is held out.
struct Text {
    train: Vec<u8>,
    held_out: Vec<u8>,
}

impl Text {
    fn read(path: &Path) -> Result<Self> {
        let (mut bytes, mut waiting) = (Vec::new(), vec![path.to_path_buf()]);
        while let Some(path) = waiting.pop() {
            if path.is_dir() {
                let mut inside: Vec<_> = std::fs::read_dir(&path)?.flatten().map(|entry| entry.path()).collect();
                inside.sort();
                let wanted = |p: &PathBuf| p.is_dir() || p.extension().is_some_and(|e| e == "rs" || e == "md");
                waiting.extend(inside.into_iter().rev().filter(wanted));
            } else if bytes.len() < TEXT_BYTES_MAX {
                bytes.extend(std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?);
            }
        }
        let held_out = bytes.split_off(bytes.len() - bytes.len() / 20);
        Ok(Self { train: bytes, held_out })
    }

    /// Sequence number `n` of a stream that a seed names, with the token after it.
    fn sample(&self, seed: u64, n: u64, seq: usize, out: &mut Vec<u32>) {
        let mut z = (seed << 40 ^ n).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let start = ((z ^ z >> 31) % (self.train.len() - seq) as u64) as usize;
        out.extend(self.train[start..=start + seq].iter().map(|byte| u32::from(*byte)));
    }
}

/// Averages pseudo-gradients, and keeps what is left out.
struct Averager {
    case: Case,
    own: Vec<Vec<f32>>,
    sums: Vec<f32>,
}

impl Averager {
    fn new(case: Case, members: usize, elements: usize) -> Self {
        Self { case, own: vec![vec![0.0; elements]; members], sums: vec![0.0; elements] }
    }

    fn average(&mut self, deltas: &[Vec<f32>]) -> Result<Vec<f32>> {
        let Case { codec, engine, .. } = self.case;
        let weight = update::weight(1, deltas.len() as u64);
        let mut mean = vec![0.0; self.sums.len()];
        let decay = match codec {
            Codec::Bf16 | Codec::Int8 => None,
            Codec::Int4 => Some(1.0),
            Codec::TopK { .. } => Some(0.95),
        };
        let Some(decay) = decay else {
            let views: Vec<&[f32]> = deltas.iter().map(Vec::as_slice).collect();
            let reduced = match engine {
                EngineKind::Owners => update::owners::reduce(codec, &vec![weight; deltas.len()], &views)?,
                EngineKind::Ring => {
                    let mut weighted = deltas.to_vec();
                    weighted.iter_mut().for_each(|delta| update::apply_weight(weight, delta));
                    update::reduce(codec, &weighted.iter().map(Vec::as_slice).collect::<Vec<_>>())?
                }
            };
            update::decode(codec, &reduced, &mut mean)?;
            return Ok(mean);
        };
        ensure!(engine == EngineKind::Owners, "{codec} goes with owners");
        let (mut offer, mut said) = (mean.clone(), mean.clone());
        let mut sum = mean.clone();
        for (delta, own) in deltas.iter().zip(&mut self.own) {
            offered(delta, own, decay, &mut offer);
            update::decode(codec, &update::encode(codec, &offer)?, &mut said)?;
            settle(delta, own, decay, &said);
            sum.iter_mut().zip(&said).for_each(|(sum, x)| *sum += x * weight);
        }
        let without = sum.clone();
        sum.iter_mut().zip(&self.sums).for_each(|(sum, left)| *sum += left);
        update::decode(codec, &update::encode(codec, &sum)?, &mut mean)?;
        settle(&without, &mut self.sums, 1.0, &mean);
        Ok(mean)
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let text = Text::read(&arguments.text)?;
    if text.train.len() < 100 * arguments.seq {
        bail!("{} has too little text", arguments.text.display());
    }
    let json = arguments.json.clone().or_else(|| std::env::var_os("JSON").map(PathBuf::from));
    let mut losses = vec![Vec::new(); arguments.cases.len()];
    let curves = |case: &Case| Curves { case: case.to_string(), seeds: Vec::new() };
    let mut curves: Vec<Curves> = arguments.cases.iter().map(curves).collect();
    for seed in 1..=arguments.seeds {
        for ((case, losses), curves) in arguments.cases.iter().zip(&mut losses).zip(&mut curves) {
            let (loss, curve) = train(&arguments, &text, *case, seed)?;
            curves.seeds.push(curve);
            println!("seed {seed}  {:<32}  validation {loss:.4}", case.to_string());
            losses.push(loss);
            if let Some(path) = &json {
                let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
                let row = json!({"bench": "loss", "codec": case.codec.to_string(), "engine": case.engine.name(),
                    "mode": case.mode.name(), "fragments": case.fragments, "overlap": case.overlap, "mixing": case.mixing,
                    "seed": seed, "members": arguments.members, "rounds": arguments.rounds, "loss": loss});
                writeln!(file, "{row}")?;
            }
        }
    }
    for (case, others) in arguments.cases.iter().zip(&losses).skip(1) {
        let percent: Vec<f64> = others.iter().zip(&losses[0]).map(|(a, b)| (a / b - 1.0) * 100.0).collect();
        let (mean, half) = interval(&percent);
        println!("{case}: {mean:+.2} % +- {half:.2} (95 %) against the first");
    }
    arguments.plot.as_ref().map_or(Ok(()), |path| loss_plot::draw(path, &curves))
}

/// Mean, and half of its interval of confidence.
fn interval(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
    let t = STUDENT.get(values.len().saturating_sub(2)).copied().unwrap_or(2.0);
    (mean, t * (variance / n).sqrt())
}

/// One run under way.
struct Run<'a> {
    arguments: &'a Arguments,
    text: &'a Text,
    seed: u64,
    model: ModelConfig,
    options: TrainerOptions,
    members: Vec<Box<dyn Trainer>>,
    case: Case,
    fragments: Fragments,
    /// One for each fragment.
    averagers: Vec<Averager>,
    /// What each member has to say.
    deltas: Vec<Vec<f32>>,
    theta: Vec<f32>,
    /// Of the outer optimizer.
    moments: [Vec<f32>; 2],
}

impl<'a> Run<'a> {
    fn new(arguments: &'a Arguments, text: &'a Text, case: Case, seed: u64) -> Result<Self> {
        let base = ModelConfig::preset(&arguments.preset).context("there is no such preset")?;
        let model = ModelConfig { vocab: 256, seq_len: arguments.seq, ..base };
        let available = std::thread::available_parallelism()?.get();
        let threads = if arguments.threads > 0 { arguments.threads } else { available };
        let options = TrainerOptions {
            batch: arguments.batch,
            accumulate: 1,
            threads,
            beta1: 0.9,
            beta2: 0.99,
            eps: 1e-8,
            weight_decay: 0.01,
            clip: 1.0,
        };
        let theta = initial_parameters(&model, seed);
        let open = |_| open_trainer(&DeviceChoice::Cpu, &model, &options).context("the CPU");
        let members: Vec<Box<dyn Trainer>> = (0..arguments.members).map(open).collect::<Result<_>>()?;
        let fragments = Fragments::new(case.fragments, theta.len(), CHUNK_ELEMENTS);
        let chunks = update::chunks(theta.len());
        ensure!(fragments.count() <= chunks, "{case}: the model has {chunks} chunks only");
        ensure!(case.overlap <= arguments.steps, "{case}: a round has {} steps only", arguments.steps);
        let averager = |index| Averager::new(case, arguments.members, fragments.range(index).len());
        let averagers = (0..fragments.count()).map(averager).collect();
        let zeros = vec![0.0; theta.len()];
        let (deltas, moments) = (vec![zeros.clone(); arguments.members], [zeros.clone(), zeros]);
        Ok(Self { arguments, text, seed, members, case, fragments, averagers, deltas, moments, theta, model, options })
    }

    /// The learning rate of a step of all.
    fn rate(&self, done: usize) -> f64 {
        let (done, all) = (done as f64, (self.arguments.rounds * self.arguments.steps) as f64);
        let cosine = 0.5 * (1.0 + (std::f64::consts::PI * done / all).cos());
        self.arguments.lr * ((done + 1.0) / WARM_UP).min(1.0) * (LR_FINAL + (1.0 - LR_FINAL) * cosine)
    }

    /// What a member trains on in this step.
    fn tokens(&self, done: usize, member: usize) -> Vec<u32> {
        let first = ((done * self.arguments.members + member) * self.arguments.batch) as u64;
        let mut tokens = Vec::new();
        let samples = first..first + self.arguments.batch as u64;
        samples.for_each(|n| self.text.sample(self.seed, n, self.arguments.seq, &mut tokens));
        tokens
    }

    /// Inner steps of everybody, and an outer step.
    fn round(&mut self, round: usize) -> Result<()> {
        let steps = self.arguments.steps;
        for member in 0..self.members.len() {
            self.members[member].load(&self.theta)?;
            self.steps(member, round * steps..(round + 1) * steps)?;
            let delta = &mut self.deltas[member];
            self.members[member].read(delta)?;
            delta.iter_mut().zip(&self.theta).for_each(|(trained, theta)| *trained = theta - *trained);
        }
        let mean = self.averagers[0].average(&self.deltas)?;
        let sound = outer::nesterov(&mut self.theta, &mut self.moments[0], &mean, OUTER.0, OUTER.1);
        ensure!(sound, "the run diverged");
        Ok(())
    }

    /// The same where members keep parameters of their own and one fragment is averaged: each does its first steps of the
    /// next round before it has the average.
    fn streaming_round(&mut self, round: usize) -> Result<()> {
        let (steps, overlap) = (self.arguments.steps, self.case.overlap);
        let last = round + 1 == self.arguments.rounds;
        let range = self.fragments.of_round(round as u64 + 1);
        let mut own = self.theta.clone();
        for member in 0..self.members.len() {
            if round == 0 {
                self.members[member].load(&self.theta)?;
            }
            let begun = if round == 0 { 0 } else { overlap };
            self.steps(member, round * steps + begun..(round + 1) * steps)?;
            self.members[member].read(&mut own)?;
            let (theta, own) = (&self.theta[range.clone()], &own[range.clone()]);
            self.deltas[member] = theta.iter().zip(own).map(|(theta, own)| theta - own).collect();
            let ahead = if last { 0 } else { overlap };
            self.steps(member, (round + 1) * steps..(round + 1) * steps + ahead)?;
        }
        let mean = self.averagers[self.fragments.turn(round as u64 + 1)].average(&self.deltas)?;
        let (theta, momentum) = (&mut self.theta[range.clone()], &mut self.moments[0][range.clone()]);
        ensure!(outer::nesterov(theta, momentum, &mean, OUTER.0, OUTER.1), "the run diverged");
        for member in &mut self.members {
            member.read(&mut own)?;
            update::mix(self.case.mixing, &mut own[range.clone()], &self.theta[range.clone()]);
            member.load(&own)?;
        }
        Ok(())
    }

    fn steps(&mut self, member: usize, steps: std::ops::Range<usize>) -> Result<()> {
        for done in steps {
            let (tokens, rate) = (self.tokens(done, member), self.rate(done));
            self.members[member].step(&tokens, rate)?;
        }
        Ok(())
    }

    /// A gradient of everybody, and a step of AdamW.
    fn step(&mut self, done: usize) -> Result<()> {
        for member in 0..self.members.len() {
            let tokens = self.tokens(done, member);
            self.members[member].load(&self.theta)?;
            self.members[member].gradient(&tokens, &mut self.deltas[member])?;
        }
        let mean = self.averagers[0].average(&self.deltas)?;
        let (inner, model) = self.specs();
        let rule = outer::Rule::AdamW(AdamW::new(&inner, &model, done as u64 + 1, self.rate(done)));
        let squares = mean.chunks(CHUNK_ELEMENTS).map(outer::adamw::squares).sum();
        let [m, v] = &mut self.moments;
        ensure!(rule.step(rule.scale(squares), 0, &mut self.theta, &mut [m, v], &mean), "the run diverged");
        Ok(())
    }

    /// Nats a byte on at most so many sequences of what is held out.
    fn validate(&mut self, sequences: usize) -> Result<f64> {
        let length = self.arguments.seq + 1;
        let held_out: Vec<u32> = self.text.held_out.iter().map(|byte| u32::from(*byte)).collect();
        let batch = self.arguments.batch;
        let whole = (held_out.len() / length).min(sequences) / batch * batch;
        // Who streams goes on from its own.
        let mut own = vec![0.0; self.theta.len()];
        self.members[0].read(&mut own)?;
        self.members[0].load(&self.theta)?;
        let (nats, tokens) = self.members[0].evaluate(&held_out[..whole * length])?;
        self.members[0].load(&own)?;
        Ok(nats / tokens.max(1) as f64)
    }

    /// The optimizer and the model as the protocol knows them.
    fn specs(&self) -> (InnerSpec, ModelSpec) {
        let (options, model) = (&self.options, &self.model);
        let inner = InnerSpec {
            steps: 1,
            batch: options.batch as u32,
            accumulate: options.accumulate as u32,
            lr: self.arguments.lr,
            lr_final: LR_FINAL,
            warmup_steps: WARM_UP as u32,
            beta1: options.beta1,
            beta2: options.beta2,
            eps: options.eps,
            weight_decay: options.weight_decay,
            clip: options.clip,
        };
        let model = ModelSpec {
            vocab: model.vocab as u32,
            d_model: model.d_model as u32,
            layers: model.layers as u32,
            heads: model.heads as u32,
            kv_heads: model.kv_heads as u32,
            ffn: model.ffn as u32,
            seq_len: model.seq_len as u32,
            tied: model.tied,
            rope_theta: model.rope_theta,
            norm_eps: model.norm_eps,
        };
        (inner, model)
    }
}

/// The validation loss at the end of one run, in nats a byte, and on the way if curves are drawn.
fn train(arguments: &Arguments, text: &Text, case: Case, seed: u64) -> Result<(f64, Curve)> {
    let mut run = Run::new(arguments, text, case, seed)?;
    let per_step = (arguments.members * arguments.batch * arguments.seq) as f64;
    let (ends, steps) = match case.mode {
        SyncMode::Rounds => (arguments.rounds, arguments.steps),
        SyncMode::EveryStep => (arguments.rounds * arguments.steps, 1),
    };
    let apart = if arguments.plot.is_some() { (ends / arguments.points.max(1)).max(1) } else { ends };
    let mut curve = Curve::new();
    for done in 0..ends {
        if done % apart == 0 && arguments.plot.is_some() {
            curve.push(((done * steps) as f64 * per_step, run.validate(POINT_MAX)?));
        }
        match case.mode {
            SyncMode::Rounds if case.streams() => run.streaming_round(done)?,
            SyncMode::Rounds => run.round(done)?,
            SyncMode::EveryStep => run.step(done)?,
        }
    }
    if arguments.plot.is_some() {
        curve.push(((ends * steps) as f64 * per_step, run.validate(POINT_MAX)?));
    }
    Ok((run.validate(HELD_OUT_MAX)?, curve))
}
