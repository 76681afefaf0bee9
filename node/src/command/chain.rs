//! `starling chain export`: the history on disk as plain files, for programs that follow and verify it.

use super::at_rest::open_at_rest;
use crate::cli::ChainCommand;
use crate::exit::Failure;
use crate::runtime::{home_of, store_failure};
use crate::watch::terminal;
use std::process::ExitCode;

/// Writes the node's chain, and says what is in it.
pub fn run(command: &ChainCommand) -> Result<ExitCode, Failure> {
    let ChainCommand::Export { node, output } = command;
    let home = home_of(node.run.as_deref(), node.home.as_deref())?;
    let written = open_at_rest(&home)?.export_chain(output).map_err(store_failure)?;
    terminal::put(&format!(
        "wrote records {} to {} to {}, with the state of record {} and {} since\n",
        written.first,
        written.last,
        output.display(),
        written.state,
        starling_words::count(written.updates, "update")
    ));
    Ok(ExitCode::SUCCESS)
}
