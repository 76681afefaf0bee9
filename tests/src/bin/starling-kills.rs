//! `make kills`: kills nodes at random times and measures the time until the others commit again.

use clap::Parser;
use starling_tests::kills::{Kills, Options};
use std::path::PathBuf;
use std::process::ExitCode;

/// Kills a random node of four at random moments and restarts it; checks that states stay equal.
#[derive(Parser)]
#[command(name = "starling-kills", version)]
struct Arguments {
    /// Folder of the built binaries
    #[arg(long)]
    bin_dir: Option<PathBuf>,
    /// Folder for logs; emptied first
    #[arg(long, default_value = "out/kills")]
    out: PathBuf,
    /// Number of kills
    #[arg(long, default_value_t = 20)]
    kills: usize,
    /// Seed of victims and times
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Kill all nodes at the end and restart them
    #[arg(long)]
    all: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = arguments.bin_dir.map_or_else(starling_tests::flock::built_binaries, Ok).and_then(|bin_dir| {
        Kills::run(&Options {
            bin_dir,
            out: arguments.out,
            kills: arguments.kills,
            seed: arguments.seed,
            all: arguments.all,
        })
    });
    match outcome {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("kills: {e:#}");
            ExitCode::FAILURE
        }
    }
}
