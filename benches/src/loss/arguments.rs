//! The command line.

use super::case::Case;
use clap::Parser;
use std::path::PathBuf;

/// Compare the validation loss of codecs at equal tokens.
#[derive(Parser)]
pub struct Arguments {
    /// Text to train on: a file, or a folder (its .rs and .md files)
    #[arg(long)]
    pub text: PathBuf,
    /// CODEC:ENGINE, with top-k as top-64 and so on, and :every-step behind it for that mode, or any of :fragments=4,
    /// :overlap=2, :mixing=0.5, :steps=40 (rounds of so many inner steps, fewer of them) and :pairs=10 (members meet
    /// every 10 steps); repeat for several. The others are compared with the first
    #[arg(long = "case", default_values = ["bf16:ring", "int8:ring", "int4:owners"])]
    pub cases: Vec<Case>,
    #[arg(long, default_value = "0.1m")]
    pub preset: String,
    #[arg(long, default_value_t = 64)]
    pub seq: usize,
    #[arg(long, default_value_t = 8)]
    pub batch: usize,
    #[arg(long, default_value_t = 4)]
    pub members: usize,
    /// Inner steps a round.
    #[arg(long, default_value_t = 10)]
    pub steps: usize,
    #[arg(long, default_value_t = 60)]
    pub rounds: usize,
    #[arg(long, default_value_t = 3)]
    pub seeds: u64,
    #[arg(long, default_value_t = 4e-3)]
    pub lr: f64,
    /// Threads; 0 = as many as the machine has
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// Append one JSON object a case and seed to this file (default: the file that the variable JSON names)
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Draw all curves into this file, as SVG.
    #[arg(long)]
    pub plot: Option<PathBuf>,
    /// Points of a curve, if one is drawn.
    #[arg(long, default_value_t = 12)]
    pub points: usize,
}
