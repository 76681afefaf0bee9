//! The trainer that a node's user brings, from the node's start to its end: its socket, its command, and with a founder
//! the first state of the run (`docs/bridge.md`).

use super::bridge::{Door, External, Founded, Note, Terms, TrainerCommand, Wanted, Wish, found};
use super::learned::keep_schema;
use super::origin::Asked;
use crate::cli::TrainArgs;
use crate::config::node_file::NodeFile;
use crate::config::run_file::RunFile;
use crate::exit::{Code, Failure};
use anyhow::Context;
use starling_bootstrap::identity;
use starling_protocol::run::{ExternalSpec, RunSpec, TaskSchema};
use starling_protocol::state::State;
use starling_protocol::wire;
use starling_store::Run;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time in which the trainer of a node that was killed comes to the next one: it tries every five seconds.
const COMES_BACK: Duration = Duration::from_secs(6);
/// Name of the folder of the trainer's private state, in the node's folder.
const FOLDER: &str = "trainer";

/// The trainer's side of a node. Its command ends when this is dropped.
pub struct Guest {
    door: Arc<Door>,
    schema: TaskSchema,
    patience: Duration,
    note: Arc<Note>,
    _command: Option<TrainerCommand>,
}

impl Guest {
    /// Lets a trainer come that fits the run, and starts its command if there is one.
    pub fn open(
        (args, node, home): (&TrainArgs, &NodeFile, &Path),
        spec: &RunSpec,
        task: &ExternalSpec,
        (schema, me): (TaskSchema, String),
    ) -> Result<Self, Failure> {
        let wanted = Wanted::Fellow { task: task.clone(), schema: schema.clone() };
        let steps = spec.inner.steps;
        let terms = terms(home, (&spec.name, me), (spec.inner.samples(1), steps), wanted);
        let door = Arc::new(Door::open(home, terms)?);
        let command = command(args, &door)?;
        Ok(Self { door, schema, patience: node.trainer.patience(), note: Arc::default(), _command: command })
    }

    /// The tensors of the run.
    pub fn schema(&self) -> &TaskSchema {
        &self.schema
    }

    /// The trainer's present state, for people.
    pub fn note(&self) -> Arc<Note> {
        self.note.clone()
    }

    /// The task of the trainer thread.
    pub fn task(&self, spec: &RunSpec, task: &ExternalSpec) -> External {
        let times = (spec.inner.samples(1), self.patience);
        External::new(self.door.clone(), task.clone(), times, self.note.clone())
    }
}

/// Refuses flags that do not fit the run's task.
pub fn check_flags(args: &TrainArgs, is_external: bool) -> Result<(), Failure> {
    let why = match is_external {
        false if !args.command.is_empty() => "a command after -- is for runs with [task] kind = \"external\"",
        false if args.trainer.is_some() => "--trainer is for runs with [task] kind = \"external\"",
        true if args.null_trainer.is_some() => "--null-trainer is for the built-in model",
        true if args.from.is_some() => "--from is for the built-in model: load the weights in the trainer",
        true if !args.data.is_empty() => "--data is for the built-in model: a trainer reads its own data",
        _ => return Ok(()),
    };
    Err(Failure::message(Code::Usage, format!("{why}; leave it out")))
}

/// Completes a run file whose task is not known yet: from the node's folder, or with what the founder's trainer brings.
/// Then the trainer stays, and the run's first state is returned with it.
pub async fn begin(args: &TrainArgs, node: &NodeFile, asked: &mut Asked) -> Result<Option<(Guest, State)>, Failure> {
    let Some(file) = asked.file.as_deref_mut().filter(|file| file.awaits_founder()) else { return Ok(None) };
    let home = node.home_for(&file.name);
    let bound = Run::of_folder(&home).and_then(|run| wire::decode_spec(&run.spec).ok());
    if bound.is_some_and(|spec| file.take_from(&spec)) {
        return Ok(None);
    }
    let founding = file.before_founding()?;
    let joins = asked.ticket.is_some() || !node.bootstrap.is_empty() && !args.init;
    if joins {
        let why = "the run's task is not in its file: come with --join TICKET, or with the run file that \
                   `starling train --home DIR --print-config` shows on a node of the run";
        return Err(Failure::message(Code::Usage, why));
    }
    if args.command.is_empty() && args.trainer.is_none() {
        let why = "this run begins with what a trainer brings: name its command after --, such as `-- python \
                   train.py`, or give --trainer wait and start it elsewhere";
        return Err(Failure::message(Code::Usage, why));
    }
    founded((args, node, &home), file, &founding).await.map(Some)
}

/// Waits for the founder's trainer.
async fn founded(
    (args, node, home): (&TrainArgs, &NodeFile, &Path),
    file: &mut RunFile,
    founding: &RunSpec,
) -> Result<(Guest, State), Failure> {
    let identity = identity::load_or_create(&home.join("key")).map_err(|e| Failure::new(Code::Refused, e))?;
    let wish = Wish { private: file.is_private(), weight: file.task.weight };
    let wanted = Wanted::Founder { private: wish.private };
    let lease = (founding.inner.samples(1), founding.inner.steps);
    let terms = terms(home, (&file.name, identity.node_id().to_string()), lease, wanted);
    let door = Arc::new(Door::open(home, terms)?);
    let command = command(args, &door)?;
    tracing::info!("waiting for the trainer that the run begins with, at {}", door.path().display());
    let is_wanted = Arc::new(AtomicBool::new(true));
    let (theirs, asks) = (door.clone(), is_wanted.clone());
    let finding = tokio::task::spawn_blocking(move || found(&theirs, wish, &|| asks.load(Ordering::Acquire)));
    let founded = tokio::select! {
        founded = finding => founded.context("the wait for the trainer stopped")??,
        () = super::signals::asked_to_leave() => {
            is_wanted.store(false, Ordering::Release);
            return Err(Failure::message(Code::Refused, "interrupted while waiting for the trainer"));
        }
    };
    let root = founded.root()?;
    let Founded { task, schema, state } = founded;
    file.take_task(&task, root);
    keep_schema(home, &schema).context("cannot write the names of the run's tensors")?;
    let guest = Guest { door, schema, patience: node.trainer.patience(), note: Arc::default(), _command: command };
    Ok((guest, state))
}

fn terms(home: &Path, (run, node): (&str, String), (unit, steps): (u64, u32), wanted: Wanted) -> Terms {
    let home = std::path::absolute(home).unwrap_or_else(|_| home.to_path_buf());
    Terms { wanted, run: run.to_owned(), node, unit, steps, folder: home.join(FOLDER) }
}

/// Starts the trainer's command, if there is one. A trainer that a killed node has left keeps its device, so that no
/// second one is started beside it.
fn command(args: &TrainArgs, door: &Arc<Door>) -> Result<Option<TrainerCommand>, Failure> {
    if args.command.is_empty() {
        return Ok(None);
    }
    let (theirs, began) = (door.clone(), Instant::now());
    let is_busy = move || theirs.has_trainer() || theirs.was_left() && began.elapsed() < COMES_BACK;
    TrainerCommand::start(&args.command, door.path(), is_busy).map(Some)
}
