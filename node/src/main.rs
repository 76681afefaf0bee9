//! The `starling` binary.

use clap::Parser;
use starling_node::cli::Cli;
use starling_node::{command, exit};
use std::process::ExitCode;

/// Training allocates and frees the same large buffers every step, so the allocator is one that keeps its pages.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // Vulkan loaders complain on standard error without it.
        // SAFETY: nothing else runs yet, so nobody reads the environment at the same time.
        unsafe { std::env::set_var("XDG_RUNTIME_DIR", std::env::temp_dir()) };
    }
    match Cli::try_parse() {
        Ok(cli) => command::run(cli),
        Err(error) => exit::of_command_line(&error),
    }
}
