//! `starling checkpoint list | verify | export`.

use crate::cli::CheckpointCommand;
use crate::exit::{Code, Failure};
use crate::train::home_of;
use starling_store::checkpoint::{self, Checkpoint};
use std::path::Path;
use std::process::ExitCode;

/// Runs one of the checkpoint commands.
pub fn run(command: &CheckpointCommand) -> Result<ExitCode, Failure> {
    match command {
        CheckpointCommand::List(args) => list(&home_of(args.run.as_deref(), args.home.as_deref())?),
        CheckpointCommand::Verify { folder } => {
            let checkpoint = open(folder)?;
            println!(
                "{}: round {}, {} parameters, state {}: every byte checks",
                folder.display(),
                checkpoint.record.round,
                checkpoint.theta.len(),
                checkpoint.record.state_root
            );
            Ok(ExitCode::SUCCESS)
        }
        CheckpointCommand::Export { folder, output } => {
            let checkpoint = open(folder)?;
            checkpoint::export(&checkpoint, output).map_err(|e| Failure::new(Code::Refused, e))?;
            println!("wrote {} parameters of round {} to {}", checkpoint.theta.len(), checkpoint.record.round, output.display());
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Opens and verifies; damage leads to exit code 4.
pub fn open(folder: &Path) -> Result<Checkpoint, Failure> {
    checkpoint::open(folder).map_err(crate::train::store_failure)
}

fn list(home: &Path) -> Result<ExitCode, Failure> {
    let folder = home.join("checkpoints");
    let mut found: Vec<_> = match std::fs::read_dir(&folder) {
        Ok(entries) => entries.filter_map(|e| e.ok().map(|e| e.path())).filter(|p| p.is_dir()).collect(),
        Err(_) => Vec::new(),
    };
    found.sort();
    if found.is_empty() {
        println!("no checkpoints in {}: a run writes one when its budget is spent", folder.display());
    }
    for path in found {
        match checkpoint::summary(&path) {
            Ok(summary) => println!("{}  {summary}", path.display()),
            Err(e) => println!("{}  not readable: {e}", path.display()),
        }
    }
    Ok(ExitCode::SUCCESS)
}
