//! `make demo`: four nodes train one model on real text, one is killed, one joins; it ends with a report.

use clap::Parser;
use starling_tests::demo::{Demo, Options};
use std::path::PathBuf;
use std::process::ExitCode;

/// Four nodes on this machine train one model on real text; one is killed in mid-round, another joins later.
#[derive(Parser)]
#[command(name = "starling-demo", version)]
struct Arguments {
    /// Folder of the built binaries
    #[arg(long)]
    bin_dir: Option<PathBuf>,
    /// Folder for the report
    #[arg(long, default_value = "out/demo")]
    out: PathBuf,
    /// Rounds to train; about 3 minutes on 2 cores by default
    #[arg(long, default_value_t = 150)]
    rounds: u64,
    /// Device of the second node; the others train on the CPU
    #[arg(long, default_value = "cpu")]
    device: String,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let bin_dir = match arguments.bin_dir.map_or_else(starling_tests::flock::built_binaries, Ok) {
        Ok(folder) => folder,
        Err(e) => return fail(&e),
    };
    let options = Options { bin_dir, out: arguments.out, rounds: arguments.rounds, device: arguments.device };
    match Demo::run(options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => fail(&e),
    }
}

fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("demo: {error:#}");
    ExitCode::FAILURE
}
