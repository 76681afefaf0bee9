//! What the program is told to do: the commands beside `train`, and which one it is.

mod at_rest;
pub mod audit;
pub mod chain;
pub mod checkpoint;
pub mod generate;
pub mod invite;
pub mod revoke;
pub mod status;

use crate::cli::{Cli, Command};
use crate::train;
use std::process::ExitCode;

/// Does what the command line says; how the program ends.
pub fn run(cli: Cli) -> ExitCode {
    let outcome = match cli.command {
        Command::Train(args) => train::train(&args),
        Command::Invite(args) => invite::run(&args),
        Command::Revoke(args) => revoke::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Audit(args) => audit::run(&args),
        Command::Chain(command) => chain::run(&command),
        Command::Checkpoint(args) => checkpoint::run(&args),
        Command::Generate(args) => generate::run(&args),
    };
    outcome.unwrap_or_else(|failure| failure.report())
}
