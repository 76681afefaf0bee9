//! `starling train`, with the trained model that a new run may begin from.

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

/// The model of the folder that `--from` names: a checkpoint's, or a node's.
fn weights(folder: &Path) -> Result<Weights, Failure> {
    let of_flag = |Failure { code, error }| Failure { code, error: error.context("--from") };
    let trained = Trained::of_folder(folder).map_err(of_flag)?;
    trained.tell();
    Ok(trained.into_weights())
}
