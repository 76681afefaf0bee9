//! The command line.

use super::case::Case;
use clap::Parser;
use clap::builder::RangedU64ValueParser;
use starling_kernels::DeviceChoice;
use std::path::PathBuf;

/// Compare the validation loss of codecs, outer and inner settings at equal tokens.
#[derive(Parser)]
pub struct Arguments {
    /// Text to train on: a file, or a folder (its .rs and .md files). Default: 64 MiB of Rust sources that no commit
    /// changes, made from the crates that cargo has fetched and kept in the user's cache
    #[arg(long)]
    pub text: Option<PathBuf>,
    /// Folder with the crates (NAME-VERSION) of which the default text is made, if not cargo's own
    #[arg(long)]
    pub crates: Option<PathBuf>,
    /// Make the default text, or check it, and end
    #[arg(long)]
    pub make_text: bool,
    /// CODEC:ENGINE, with top-k as top-64 and so on, and any of these behind it. Mode: :every-step, :fragments=4,
    /// :overlap=2, :mixing=0.5, :gossip=10 (members meet every 10 steps). Rounds: :steps=40 (of a round), :grow=1..30
    /// or :grow=1..30..5 (rounds grow over the first quarter, and shrink over the last). Optimizers:
    /// :outer=RATE,MOMENTUM, :corrected=10 (these are for rounds of 10 steps, and are corrected for others),
    /// :moments=3 (the members' moments are averaged each 3rd round), :inner=adamw|muon|sgd|rmsprop|lion, :lr=, :wd=
    /// (weight decay), :batch=, :members=. :null rounds one initial parameter otherwise. Repeat for several; all have
    /// the same tokens, and the others are compared with the first
    #[arg(long = "case", default_values = ["bf16:ring", "int8:ring", "int4:owners"])]
    pub cases: Vec<Case>,
    #[arg(long, default_value = "0.1m")]
    pub preset: String,
    /// Tokens of a sequence
    #[arg(long, default_value_t = 64, value_parser = up_to(4096))]
    pub seq: usize,
    /// Sequences of a member's step
    #[arg(long, default_value_t = 8, value_parser = up_to(1 << 16))]
    pub batch: usize,
    #[arg(long, default_value_t = 4, value_parser = up_to(64))]
    pub members: usize,
    /// Inner steps a round
    #[arg(long, default_value_t = 10, value_parser = up_to(1 << 16))]
    pub steps: usize,
    /// Rounds of so many steps: these are the tokens of all cases
    #[arg(long, default_value_t = 60, value_parser = up_to(1 << 20))]
    pub rounds: usize,
    /// Rounds of a lab's run in place of those: a node's log with its `committed` events
    #[arg(long)]
    pub schedule: Option<PathBuf>,
    /// How many seeds
    #[arg(long, default_value_t = 3)]
    pub seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 1)]
    pub first_seed: u64,
    /// Peak of the inner rate
    #[arg(long, default_value_t = 4e-3)]
    pub lr: f64,
    #[arg(long, default_value_t = DeviceChoice::Cpu)]
    pub device: DeviceChoice,
    /// Threads; 0 = as many as the machine has
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// Append one JSON object a case and seed to this file (default: the file that the variable JSON names). Runs whose
    /// rows it has already are not run again
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Say how many runs have no row there yet, and end
    #[arg(long)]
    pub due: bool,
    /// Draw all curves into this file, as SVG
    #[arg(long)]
    pub plot: Option<PathBuf>,
    /// Points of a curve
    #[arg(long, default_value_t = 12, value_parser = up_to(1000))]
    pub points: usize,
    /// Differences, in percent, for which to tell how many seeds they need
    #[arg(long = "claim", default_values_t = [0.5, 1.0, 2.0, 3.0])]
    pub claims: Vec<f64>,
}

/// Takes whole numbers from 1.
fn up_to(most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=most)
}
