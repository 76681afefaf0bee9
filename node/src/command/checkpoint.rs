//! `starling checkpoint now | list | verify | export`.

use super::at_rest::{open_at_rest, require_home};
use super::export::export;
use super::trained::{Trained, WRITING, load, open, require_known_model};
use crate::cli::CheckpointCommand;
use crate::exit::{Code, Failure};
use crate::runtime::{TOKENIZER_FILE, checkpoints_folder, home_of, kept_schema, shapes, store_failure};
use crate::watch::status::{Answer, Question, ask_within, failure, is_running};
use crate::watch::terminal;
use starling_protocol::wire;
use starling_store::{CheckpointSource, LoadedState, checkpoint_path, is_checkpoint_of, list_checkpoints};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Runs one of the checkpoint commands.
pub fn run(command: &CheckpointCommand) -> Result<ExitCode, Failure> {
    match command {
        CheckpointCommand::Now(args) => now(&home_of(args.run.as_deref(), args.home.as_deref())?)?,
        CheckpointCommand::List(args) => list(&home_of(args.run.as_deref(), args.home.as_deref())?)?,
        CheckpointCommand::Verify { folder } => {
            let checkpoint = open(folder)?;
            let source = format!("the checkpoint {}", folder.display());
            if checkpoint.spec.task.is_none() {
                require_known_model(&checkpoint.spec, checkpoint.schema, &source)?;
            }
            terminal::put(&format!(
                "{}: round {}, {} parameters, state {}: every byte checks\n",
                folder.display(),
                checkpoint.record.round,
                checkpoint.state.theta.len(),
                checkpoint.record.state_root
            ));
        }
        CheckpointCommand::Export { folder, output, force, tokenizer } => {
            let trained = Trained::of_folder(folder)?;
            trained.tell();
            export(&trained, output, *force, tokenizer.as_deref())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Has the running node write a checkpoint, or writes one of the state on a node's disk, and prints its path.
fn now(home: &Path) -> Result<(), Failure> {
    let (path, round, is_new) = if is_running(home) {
        match ask_within(home, Question::Checkpoint, WRITING).map_err(|e| Failure::new(Code::Refused, e))? {
            Answer::Checkpoint { path, round, is_new, .. } => (PathBuf::from(path), round, is_new),
            Answer::Error { message, code } => {
                let why = format!("the node in {} wrote no checkpoint: {message}", home.display());
                return Err(failure(why, code));
            }
            _ => return Err(Failure::message(Code::Refused, "the node answered another question: update it")),
        }
    } else {
        of_disk(home)?
    };
    let there = if is_new { "" } else { " (it was there already)" };
    terminal::put(&format!("checkpoint of round {round}: {}{there}\n", path.display()));
    Ok(())
}

/// Writes a checkpoint of the state on the disk of a node at rest. Others stay, however many they are.
fn of_disk(home: &Path) -> Result<(PathBuf, u64, bool), Failure> {
    let store = open_at_rest(home)?;
    let (LoadedState { record, schema, state, .. }, spec) = load(&store)?;
    let path = checkpoint_path(&checkpoints_folder(home), record.round);
    if is_checkpoint_of(&path, &record.digest()) {
        return Ok((path, record.round, false));
    }
    let kept = spec.task.as_ref().and_then(|task| kept_schema(home, task));
    let tensors = shapes(&spec, kept.as_ref());
    let tokenizer = std::fs::read(home.join(TOKENIZER_FILE)).ok();
    let extras: Vec<_> = tokenizer.iter().map(|bytes| (TOKENIZER_FILE, bytes.as_slice())).collect();
    let encoded = wire::encode_spec(&spec);
    let source =
        CheckpointSource { record: &record, spec: &encoded, schema, tensors: &tensors, state: &state, extras: &extras };
    store.write_checkpoint(&path, &source, false).map_err(store_failure)?;
    Ok((path, record.round, true))
}

fn list(home: &Path) -> Result<(), Failure> {
    let folder = checkpoints_folder(home);
    let found = list_checkpoints(&folder);
    if found.is_empty() {
        require_home(home)?;
        terminal::put(&format!(
            "no checkpoints in {}: a node writes one when its run or the node ends, and as [checkpoint] in the node \
             file says; `starling checkpoint now` writes one of its present state\n",
            folder.display()
        ));
    }
    for kept in found {
        let path = kept.path.display();
        match kept.manifest {
            Ok(m) => {
                let (seq, round, tokens, root) = (m.seq, m.round, m.tokens, m.state_root.short());
                terminal::put(&format!("{path}  round {round}, record {seq}, {tokens} tokens, state {root}\n"));
            }
            Err(e) => terminal::put(&format!("{path}  not readable: {e}\n")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::status::StatusServer;

    /// The end of `checkpoint now` if the node in its folder gives this answer.
    fn answered(answer: Answer) -> Failure {
        let home = tempfile::tempdir().expect("a folder");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a thread");
        let (_server, mut questions) = runtime.block_on(async { StatusServer::start(home.path()) }).expect("a socket");
        runtime.spawn(async move {
            while let Some((_, reply)) = questions.recv().await {
                // The command asks once.
                let _ = reply.send(answer.clone());
            }
        });
        now(home.path()).expect_err("no checkpoint was written")
    }

    #[test]
    fn a_checkpoint_that_was_not_written_ends_the_command_with_the_code_of_the_reason() {
        let full = answered(Answer::failed(Code::DiskFull, "the disk is full"));
        assert_eq!(full.code, Code::DiskFull);
        assert!(full.error.to_string().ends_with("wrote no checkpoint: the disk is full"), "{}", full.error);
        assert_eq!(answered(Answer::refused("it ends")).code, Code::Refused);
    }
}
