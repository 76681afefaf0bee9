//! `bench-loss`: the cost of codecs and engines in validation loss, at equal tokens and without a network.
//!
//! Some members train one model side by side in one process, as DiLoCo does. Every case has the same text and the same
//! samples; only the averaging of the pseudo-gradients differs. The bench averages with the protocol's own arithmetic
//! (ring or owners), with error feedback if the codec takes it. With `every-step` it averages the gradients at each
//! step in the same way, and the protocol's AdamW applies them. Results are paired: each case is compared with the
//! first one seed by seed.

mod arguments;
mod averager;
mod case;
mod gossip;
mod plot;
mod run;
mod text;

use anyhow::{Result, bail};
use arguments::Arguments;
use case::Case;
use clap::Parser;
use plot::{Curve, Curves};
use run::Run;
use serde_json::json;
use starling_protocol::run::SyncMode;
use std::io::Write;
use std::path::PathBuf;
use text::Text;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Most sequences that the final loss is measured on.
const HELD_OUT_MAX: usize = 2048;
/// Most sequences for each point of a curve.
const POINT_MAX: usize = 512;
/// Student's t for 95 % with 1, 2, ... degrees of freedom.
const STUDENT: [f64; 9] = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26];

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
                    "steps": case.steps.unwrap_or(arguments.steps), "gossip": case.gossip.map(|pairs| pairs.steps),
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
    arguments.plot.as_ref().map_or(Ok(()), |path| plot::draw(path, &curves))
}

/// The mean, and half the width of its confidence interval.
fn interval(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
    let t = STUDENT.get(values.len().saturating_sub(2)).copied().unwrap_or(2.0);
    (mean, t * (variance / n).sqrt())
}

/// The validation loss at the end of one run, in nats per byte, and the curve of the run if curves are drawn.
fn train(arguments: &Arguments, text: &Text, case: Case, seed: u64) -> Result<(f64, Curve)> {
    let mut run = Run::new(arguments, text, case, seed)?;
    let per_step = (arguments.members * arguments.batch * arguments.seq) as f64;
    let (ends, steps) = match case.mode {
        SyncMode::Rounds => (run.rounds, run.steps),
        SyncMode::EveryStep => (run.rounds * run.steps, 1),
    };
    let mut curve = Curve::new();
    for done in 0..ends {
        // Points are at equal tokens in all cases, as near as the cases' rounds allow.
        if arguments.plot.is_some() && done * arguments.points >= curve.len() * ends {
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
