//! `starling-lab`: the command line.

use clap::{Parser, Subcommand};
use starling_lab::bench::{JoinSetting, Place, RoundSetting};
use starling_lab::run::{self, Request};
use starling_lab::stage::control;
use starling_lab::{compare, measure, network::rights, sweep};
use starling_tests::flock::built_binaries;
use std::path::PathBuf;
use std::process::ExitCode;

/// Real Starling nodes behind an emulated network, with faults, checks and a report
#[derive(Debug, Parser)]
#[command(name = "starling-lab", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Play scenarios: a file, or a folder of them
    Run {
        #[arg(required = true, value_name = "SCENARIO.toml|DIR")]
        paths: Vec<PathBuf>,
        /// Folder for the results, one below it for each scenario
        #[arg(long, value_name = "DIR", default_value = "out/lab")]
        out: PathBuf,
        /// Loopback and no emulated network: works anywhere, without rights; leaves out faults of the network
        #[arg(long)]
        plain: bool,
        /// As --plain if no network can be emulated, after saying why
        #[arg(long, conflicts_with = "plain")]
        or_plain: bool,
        /// Seed to use instead of the scenario's
        #[arg(long, value_name = "N")]
        seed: Option<u64>,
        /// Folder of `starling` and `starling-bootstrap` (default: the folder of this program)
        #[arg(long, value_name = "DIR")]
        bin_dir: Option<PathBuf>,
        /// Print the results only
        #[arg(long, short)]
        quiet: bool,
    },
    /// Play one scenario with all combinations of some settings, and tabulate the figures
    Sweep {
        #[arg(value_name = "SWEEP.toml")]
        file: PathBuf,
        /// Folder for the results
        #[arg(long, value_name = "DIR", default_value = "out/lab")]
        out: PathBuf,
        /// Loopback and no emulated network: bandwidth and delay then have no effect
        #[arg(long)]
        plain: bool,
        /// Seed to use instead of the scenario's
        #[arg(long, value_name = "N")]
        seed: Option<u64>,
        /// Folder of `starling` and `starling-bootstrap` (default: the folder of this program)
        #[arg(long, value_name = "DIR")]
        bin_dir: Option<PathBuf>,
    },
    /// Play Starling, PyTorch's DDP and hivemind (if PYTHON or python3 has them) with the same model, text and links
    Compare {
        /// Settings (default: those that configs/lab/compare/default.toml lists)
        #[arg(value_name = "COMPARE.toml")]
        file: Option<PathBuf>,
        /// Text to train on (default: Starling's documents, which change with its commits; `bench-loss --make-text` makes
        /// one that does not)
        #[arg(long, value_name = "FILE")]
        text: Option<PathBuf>,
        /// Folder for the results
        #[arg(long, value_name = "DIR", default_value = "out/lab")]
        out: PathBuf,
        /// Folder of `starling` and `starling-bootstrap` (default: the folder of this program)
        #[arg(long, value_name = "DIR")]
        bin_dir: Option<PathBuf>,
    },
    /// Inject a fault into a running scenario
    Poke {
        /// The scenario's socket: OUT/SCENARIO/control
        #[arg(value_name = "SOCKET")]
        socket: PathBuf,
        /// A fault as [[faults]] spells it, as JSON: '{"kind": "kill", "nodes": ["eu-1"]}'
        #[arg(value_name = "FAULT")]
        fault: String,
    },
    /// Make the report of a played scenario again
    Report {
        /// The scenario's folder, below --out of `run`
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
    /// Measure the capacity of the emulated network on this machine
    Measure {
        /// Append one JSON object a figure to this file
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// Measure how a newcomer joins a flying flock: its rate, its first contribution, the flock's rounds meanwhile
    BenchJoin {
        #[command(flatten)]
        setting: JoinSetting,
        #[command(flatten)]
        place: Place,
    },
    /// Measure rounds on fast lines: inner steps, reduction and the rest, beside the wire time
    BenchRound {
        #[command(flatten)]
        setting: RoundSetting,
        #[command(flatten)]
        place: Place,
    },
}

fn main() -> ExitCode {
    match obey(&Cli::parse()) {
        Ok(code) => code,
        Err(why) => {
            eprintln!("starling-lab: {}", starling_words::of_chain(why.chain()));
            ExitCode::from(2)
        }
    }
}

fn obey(cli: &Cli) -> anyhow::Result<ExitCode> {
    match &cli.command {
        Command::Run { paths, out, plain, or_plain, seed, bin_dir, quiet } => {
            let bin_dir = bin_dir.clone().map_or_else(built_binaries, Ok)?;
            let request =
                Request { paths: paths.clone(), out: out.clone(), bin_dir, plain: *plain, seed: *seed, quiet: *quiet };
            let mut request = request;
            if let Err(why) = if *plain { Ok(()) } else { rights::acquire() } {
                let why = starling_words::of_chain(why.chain());
                anyhow::ensure!(*or_plain, "{why}");
                println!("the emulated network is SKIPPED: {why}");
                request.plain = true;
            }
            Ok(ExitCode::from(u8::from(!run::run(&request)?)))
        }
        Command::Sweep { file, out, plain, seed, bin_dir } => {
            let bin_dir = bin_dir.clone().map_or_else(built_binaries, Ok)?;
            if !plain {
                rights::acquire()?;
            }
            let request =
                Request { paths: Vec::new(), out: out.clone(), bin_dir, plain: *plain, seed: *seed, quiet: true };
            Ok(ExitCode::from(u8::from(!sweep::run(file, &request)?)))
        }
        Command::Compare { file, text, out, bin_dir } => {
            let bin_dir = bin_dir.clone().map_or_else(built_binaries, Ok)?;
            rights::acquire()?;
            let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".into());
            Ok(ExitCode::from(u8::from(!compare::run((file.as_deref(), text.as_deref()), out, &bin_dir, &python)?)))
        }
        Command::Poke { socket, fault } => {
            let (ok, answer) = control::ask(socket, fault)?;
            println!("{answer}");
            Ok(ExitCode::from(u8::from(!ok)))
        }
        Command::Report { folder } => {
            let report = run::report(folder)?;
            println!("{}\nreport: {}", report.text(), folder.join("index.html").display());
            Ok(ExitCode::from(u8::from(!report.ok)))
        }
        Command::Measure { json } => {
            rights::acquire()?;
            measure::run(json.as_deref())?;
            Ok(ExitCode::SUCCESS)
        }
        Command::BenchJoin { setting, place } => {
            rights::acquire()?;
            Ok(ExitCode::from(u8::from(!setting.run(place)?)))
        }
        Command::BenchRound { setting, place } => {
            rights::acquire()?;
            Ok(ExitCode::from(u8::from(!setting.run(place)?)))
        }
    }
}
