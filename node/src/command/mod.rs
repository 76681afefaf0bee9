//! The commands of the program, and the choice among them.

mod at_rest;
pub mod audit;
mod brought;
pub mod chain;
pub mod change;
pub mod checkpoint;
pub mod doctor;
pub mod eval;
pub mod explain;
mod export;
mod exported;
pub mod generate;
pub mod invite;
pub mod new;
mod qr;
pub mod revoke;
pub mod status;
pub mod train;
mod trained;

use crate::cli::{Cli, Command};
use crate::exit::{Code, Failure};
use std::process::ExitCode;

/// Runs the command and returns how the program ends.
pub fn run(cli: Cli) -> ExitCode {
    small_pages();
    let outcome = match cli.command {
        Command::New(args) => new::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Train(args) if args.found => Err(Failure::message(Code::Usage, "--found is called --init now")),
        Command::Train(args) => train::run(&args),
        Command::Invite(args) => invite::run(&args),
        Command::Revoke(args) => revoke::run(&args),
        Command::Change(args) => change::run(&args),
        Command::Agree(args) => change::agree(&args),
        Command::Status(args) => status::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Audit(args) => audit::run(&args),
        Command::Chain(command) => chain::run(&command),
        Command::Checkpoint(args) => checkpoint::run(&args),
        Command::Generate(args) => generate::run(&args),
        Command::Eval(args) => eval::run(&args),
    };
    outcome.unwrap_or_else(|failure| failure.report())
}

/// Turns huge pages off for this process. The allocator asks the system for huge pages, each of which holds 2 MB of
/// memory for as long as a byte of it is in use. A node's threads each have memory of their own, so a flood that kept
/// all of them at work held some 80 MiB for 7 MiB of buffers, and the kernel spent half of the flood's cost on clearing
/// such pages. Training is no slower without them.
fn small_pages() {
    // If the call fails, the node works all the same and takes more memory.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}
