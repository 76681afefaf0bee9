//! The `starling` binary.

use clap::Parser;
use starling_node::cli::{Cli, Command};
use starling_node::{command, train};
use std::process::ExitCode;

/// Training allocates and frees the same large buffers every step: an allocator that keeps its pages.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // Vulkan loaders complain on standard error without it.
        // SAFETY: nothing else runs yet, so nobody reads the environment at the same time.
        unsafe { std::env::set_var("XDG_RUNTIME_DIR", std::env::temp_dir()) };
    }
    let outcome = match Cli::parse().command {
        Command::Train(args) => train::train(&args),
        Command::Invite(args) => command::invite::run(&args),
        Command::Revoke(args) => command::revoke::run(&args),
        Command::Status(args) => command::status::run(&args),
        Command::Audit(args) => command::audit::run(&args),
        Command::Checkpoint(args) => command::checkpoint::run(&args),
        Command::Generate(args) => command::generate::run(&args),
    };
    outcome.unwrap_or_else(|failure| failure.report())
}
