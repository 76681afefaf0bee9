//! The runs of `make follower`: plays them, and leaves their chains as recordings.

use clap::Parser;
use starling_tests::recordings::record;
use std::path::PathBuf;
use std::process::ExitCode;

/// Plays short runs of real nodes, and writes their chains out for a follower.
#[derive(Parser)]
#[command(name = "starling-recordings", version)]
struct Arguments {
    /// Folder of the built binaries
    #[arg(long)]
    bin_dir: Option<PathBuf>,
    /// Folder for the runs, emptied first; the recordings are in its folder `recordings`
    #[arg(long, default_value = "out/follower")]
    out: PathBuf,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let bin_dir = arguments.bin_dir.map_or_else(starling_tests::flock::built_binaries, Ok);
    match bin_dir.and_then(|bin_dir| record(&bin_dir, &arguments.out)) {
        Ok(_) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("recordings: {e:#}");
            ExitCode::FAILURE
        }
    }
}
