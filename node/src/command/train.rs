//! `starling train`, with the trained model that a new run may begin from.

use super::exported;
use super::trained::{Trained, is_home};
use crate::cli::TrainArgs;
use crate::exit::{Code, Failure};
use crate::runtime::{self, Machine, Weights};
use crate::watch::screen::bytes;
use crate::watch::status::is_running;
use starling_protocol::wire;
use starling_store::{Run, describe_checkpoint};
use std::path::Path;
use std::process::ExitCode;

/// Bytes of a parameter while a model is read: more than one vector of f32 is in memory, and a node needs more later.
const BYTES_OF_PARAMETER: u64 = 8;

/// Runs the command.
pub fn run(args: &TrainArgs) -> Result<ExitCode, Failure> {
    if let Some(folder) = args.from.as_deref().filter(|folder| args.print_config && is_running(folder)) {
        let name = folder.display();
        let why = format!(
            "--print-config writes nothing, and the node in {name} runs, so it would have to write a checkpoint for \
             --from: name one of its checkpoints (`starling checkpoint list --home {name}`)"
        );
        return Err(Failure::message(Code::Usage, why));
    }
    runtime::train(args, weights)
}

/// The model of the folder that `--from` names: a checkpoint's, a node's, or an exported one.
fn weights(folder: &Path) -> Result<Weights, Failure> {
    let of_flag = |Failure { code, error }| Failure { code, error: error.context("--from") };
    if let Some((parameters, machine)) = parameters(folder).zip(Machine::here()) {
        require_memory(folder, parameters, machine.total).map_err(of_flag)?;
    }
    if exported::is_exported(folder) {
        return exported::weights(folder).map_err(of_flag);
    }
    let trained = Trained::of_folder(folder).map_err(of_flag)?;
    trained.tell();
    Ok(trained.into_weights())
}

/// The number of the model's parameters, before any of them is read; none if the folder does not say.
fn parameters(folder: &Path) -> Option<u64> {
    if exported::is_exported(folder) {
        return exported::parameters(folder);
    }
    if is_home(folder) {
        let spec = wire::decode_spec(&Run::of_folder(folder)?.spec).ok()?;
        return Some(spec.parameters());
    }
    Some(describe_checkpoint(folder).ok()?.parameters)
}

/// Refuses a model that this machine, with so many bytes of memory, can never hold.
fn require_memory(folder: &Path, parameters: u64, total: u64) -> Result<(), Failure> {
    let needed = parameters.saturating_mul(BYTES_OF_PARAMETER);
    if needed <= total {
        return Ok(());
    }
    let why = format!(
        "the model of {} has {parameters} parameters, which take {} of memory or more, and this machine has {} in all: \
         take a larger machine, or a smaller model",
        folder.display(),
        bytes(needed),
        bytes(total)
    );
    Err(Failure::message(Code::Usage, why))
}

#[cfg(test)]
mod tests {
    use super::super::export::export;
    use super::*;
    use crate::cli::{Cli, Command};
    use crate::watch::status::StatusServer;
    use clap::Parser;

    #[test]
    fn a_model_that_no_memory_holds_is_refused_before_it_is_read() {
        let dir = tempfile::tempdir().expect("a folder");
        let (trained, folder) = (Trained::untrained(), dir.path().join("model"));
        export(&trained, &folder, false, None).expect("there is room");
        let count = trained.theta.len() as u64;
        assert_eq!((parameters(&folder), parameters(dir.path())), (Some(count), None));
        // The sizes are enough for it.
        std::fs::write(folder.join("model.safetensors"), "cut").expect("written");
        assert_eq!(parameters(&folder), Some(count));
        assert!(require_memory(&folder, count, 8 * count).is_ok());
        let refused = require_memory(&folder, count, 8 * count - 1).expect_err("one byte is missing");
        assert!(refused.error.to_string().contains(&format!("{count} parameters")), "{}", refused.error);
        assert!(require_memory(&folder, u64::MAX, u64::MAX - 1).is_err());
        assert_eq!(refused.code, Code::Usage);
    }

    #[test]
    fn a_running_node_writes_no_checkpoint_for_a_look_at_settings() {
        let home = tempfile::tempdir().expect("a folder");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a thread");
        let (_server, mut questions) = runtime.block_on(async { StatusServer::start(home.path()) }).expect("a socket");
        let line = format!("starling train --run run.toml --print-config --from {}", home.path().display());
        let Command::Train(args) = Cli::try_parse_from(line.split(' ')).expect("it parses").command else {
            panic!("another command");
        };
        let refused = run(&args).expect_err("it would write");
        assert!(refused.code == Code::Usage && refused.error.to_string().contains("checkpoint list"));
        assert!(questions.try_recv().is_err(), "the node was asked nothing");
    }
}
