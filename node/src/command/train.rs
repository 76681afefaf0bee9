//! `starling train`, with the trained model that a new run may begin from.

use super::exported;
use super::trained::Trained;
use crate::cli::TrainArgs;
use crate::exit::Failure;
use crate::runtime::{self, Weights};
use std::path::Path;
use std::process::ExitCode;

/// Runs the command.
pub fn run(args: &TrainArgs) -> Result<ExitCode, Failure> {
    runtime::train(args, weights)
}

/// The model of the folder that `--from` names: a checkpoint's, a node's, or an exported one.
fn weights(folder: &Path) -> Result<Weights, Failure> {
    let of_flag = |Failure { code, error }| Failure { code, error: error.context("--from") };
    if exported::is_exported(folder) {
        return exported::weights(folder).map_err(of_flag);
    }
    let trained = Trained::of_folder(folder).map_err(of_flag)?;
    trained.tell();
    Ok(trained.into_weights())
}
