//! `starling` with hooks that make it lie, for tests: its own command line, and `--byzantine MODE[,MODE]`,
//! `--byzantine-from-round N`, `--mutation BUG` and `--small-rows`.

use clap::Parser;
use starling_node::cli::Cli;
use starling_node::{byzantine, command};
use std::process::ExitCode;

/// As in `starling`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match byzantine::arm(std::env::args_os()) {
        Ok(arguments) => command::run(Cli::parse_from(arguments)),
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(2)
        }
    }
}
