//! The `starling` binary.

use clap::Parser;
use starling_node::cli::{Cli, Command};
use starling_node::{command, train};
use std::process::ExitCode;

/// Training allocates and frees the same large buffers every step: an allocator that keeps its pages.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Train(args) => train::train(&args),
        Command::Invite(args) => command::invite::run(&args),
        Command::Status(args) => command::status::run(&args),
        Command::Checkpoint(args) => command::checkpoint::run(&args),
        Command::Generate(args) => command::generate::run(&args),
    };
    outcome.unwrap_or_else(|failure| failure.report())
}
