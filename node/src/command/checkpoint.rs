//! `starling checkpoint list | verify | export`.

use crate::cli::CheckpointCommand;
use crate::exit::{Code, Failure};
use crate::runtime::home_of;
use starling_store::{Checkpoint, TensorView, describe_checkpoint, export_safetensors, open_checkpoint};
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
                checkpoint.state.theta.len(),
                checkpoint.record.state_root
            );
            Ok(ExitCode::SUCCESS)
        }
        CheckpointCommand::Export { folder, output } => {
            let checkpoint = open(folder)?;
            export(&checkpoint, output)?;
            println!(
                "wrote {} parameters of round {} to {}",
                checkpoint.state.theta.len(),
                checkpoint.record.round,
                output.display()
            );
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Opens and verifies a checkpoint; damage leads to exit code 4.
pub fn open(folder: &Path) -> Result<Checkpoint, Failure> {
    open_checkpoint(folder).map_err(crate::runtime::store_failure)
}

/// Writes the weights under their Hugging Face names, as Python's safetensors reads them.
fn export(checkpoint: &Checkpoint, output: &Path) -> Result<(), Failure> {
    let mut rest = checkpoint.state.theta.as_slice();
    let mut tensors = Vec::new();
    for tensor in &checkpoint.manifest.tensors {
        let elements = tensor.elements().filter(|n| *n <= rest.len());
        let elements = elements
            .ok_or_else(|| Failure::message(Code::StoreDamaged, format!("{} is larger than the model", tensor.name)))?;
        let (values, after) = rest.split_at(elements);
        tensors.push(TensorView { name: &tensor.name, shape: &tensor.shape, values });
        rest = after;
    }
    let metadata = [
        ("format", "pt".to_string()),
        ("run", checkpoint.spec.name.clone()),
        ("round", checkpoint.record.round.to_string()),
    ];
    let metadata = metadata.into_iter().map(|(key, value)| (key.to_string(), value)).collect();
    export_safetensors(output, &tensors, &metadata).map_err(crate::runtime::store_failure)
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
        match describe_checkpoint(&path) {
            Ok(m) => println!("{}  round {}, {} tokens, state {:.8}", path.display(), m.round, m.tokens, m.state_root),
            Err(e) => println!("{}  not readable: {e}", path.display()),
        }
    }
    Ok(ExitCode::SUCCESS)
}
