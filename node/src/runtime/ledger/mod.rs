//! The thread that owns the canonical state and the store, so that memory and disk change in one order. It waits for
//! the disk of commits and votes, and for none of a snapshot or checkpoint: another thread writes those.

mod ahead;
mod checkpoints;
mod due;
mod frozen;
mod job;
mod snapshots;
mod update;
mod updates;
mod writer;

pub use ahead::{Ahead, Awaited};
pub use due::CheckpointPlan;
pub use job::{CheckpointMade, CheckpointOutcome, CheckpointPurpose, Job, LedgerReply, NotMade};
pub use update::Update;

use super::canonical::{Canonical, Known};
use super::difference;
use super::evidence;
use super::head::SharedState;
use super::outer_step::{OuterStep, StepError};
use crate::exit::{Code, Failure};
use due::{Checkpoints, Owed, Wanted};
use starling_protocol::engine::io::AttemptKey;
use starling_protocol::engine::{Candidate, VoteState};
use starling_protocol::message::{Certificate, Evidence};
use starling_protocol::outer::Rule;
use starling_protocol::record::{Record, RecordKind};
use starling_protocol::run::RunSpec;
use starling_protocol::state::Manifest;
use starling_protocol::update::Fragments;
use starling_protocol::{Digest, NodeId, state};
use starling_store::{LoadedState, Store, StoreError, TensorShape};
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::mpsc;
use updates::Updates;
use writer::Writer;

/// Jobs that may wait; the engine never has more than a few under way.
const JOBS_MAX: usize = 64;

/// The driver's end.
pub struct Ledger {
    pub jobs: mpsc::Sender<Job>,
    pub done: mpsc::Receiver<LedgerReply>,
    pub state: Arc<SharedState>,
    /// Ends when `jobs` is dropped, after the jobs at hand.
    pub thread: JoinHandle<()>,
    /// [`Writer::hold`].
    #[cfg(test)]
    hold: Arc<std::sync::Mutex<()>>,
}

/// Finds files that go with a checkpoint.
pub type MoreFiles = Box<dyn Fn() -> Vec<(String, Vec<u8>)> + Send + Sync>;

/// The node of the state, and the content of a checkpoint besides the tensors.
pub struct Naming {
    pub node: NodeId,
    /// The encoded specification of the run.
    pub spec: Vec<u8>,
    /// Hugging Face name and shape of each tensor, in the order of the flat vector.
    pub tensors: Vec<TensorShape>,
    /// Files that go with it, such as the tokenizer.
    pub extras: Vec<(String, Vec<u8>)>,
    /// Finds more of them when a checkpoint is written.
    pub more: Option<MoreFiles>,
}

/// Why a record that others have committed was not replayed.
#[derive(Debug, thiserror::Error)]
enum NotReplayed {
    #[error("record {0} does not follow the state that this node holds")]
    NoSuccessor(u64),
    #[error("record {0} came with an update that it does not have, or without its own")]
    OtherUpdate(u64),
    #[error("replaying record {0} gave another state root")]
    OtherRoot(u64),
    #[error(transparent)]
    Step(#[from] StepError),
}

impl Ledger {
    /// Starts the thread. `state` is that of the store's head, or the genesis state before it is founded.
    pub fn start(
        store: Arc<Store>,
        spec: RunSpec,
        naming: Naming,
        state: Canonical,
        (snapshot_every, checkpoints): (u64, CheckpointPlan),
    ) -> std::io::Result<Self> {
        let (jobs, job_queue) = mpsc::channel(JOBS_MAX);
        let (done_queue, done) = mpsc::channel(JOBS_MAX);
        let checkpoints = Checkpoints::new(checkpoints, state.record.round);
        let state = Arc::new(SharedState::new(state));
        let writer = Writer::new(store.clone(), state.clone(), jobs.downgrade());
        #[cfg(test)]
        let hold = writer.hold.clone();
        let worker = Worker {
            store,
            spec,
            naming: Arc::new(naming),
            state: state.clone(),
            done: done_queue,
            updates: Updates::default(),
            manifest: None,
            writer,
            snapshot_every,
            committed: false,
            owed: Owed::default(),
            checkpoints,
        };
        let thread = std::thread::Builder::new().name("ledger".into()).spawn(move || worker.run(job_queue))?;
        Ok(Self {
            jobs,
            done,
            state,
            thread,
            #[cfg(test)]
            hold,
        })
    }
}

struct Worker {
    store: Arc<Store>,
    spec: RunSpec,
    naming: Arc<Naming>,
    state: Arc<SharedState>,
    done: mpsc::Sender<LedgerReply>,
    updates: Updates,
    /// The manifest of the present state, as its votes have named it; known when the step to it was speculated on.
    manifest: Option<Manifest>,
    writer: Writer,
    snapshot_every: u64,
    /// A commit was made, after which a snapshot or a checkpoint may be due.
    committed: bool,
    owed: Owed,
    checkpoints: Checkpoints,
}

impl Worker {
    fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        while let Some(job) = jobs.blocking_recv() {
            let Some(answer) = self.handle(job).unwrap_or_else(|failure| Some(LedgerReply::Fatal(failure))) else {
                continue;
            };
            let fatal = matches!(answer, LedgerReply::Fatal(_));
            if self.done.blocking_send(answer).is_err() || fatal {
                break;
            }
            // The commit is reported first.
            if std::mem::take(&mut self.committed) {
                self.snapshot_if_due();
                self.checkpoint_if_due();
            }
        }
        // The writer does not wait to be heard.
        drop(jobs);
        self.writer.end();
    }

    fn handle(&mut self, job: Job) -> Result<Option<LedgerReply>, Failure> {
        Ok(match job {
            Job::Bring { key, update, ahead } => {
                self.updates.bring(key, update, ahead);
                None
            }
            Job::Abandon { key } => {
                self.updates.abandon(key);
                None
            }
            Job::Speculate { key, update, rule } => match self.at_hand(&update)? {
                Some(at_hand) => Some(self.speculate(key, at_hand, rule)),
                None => {
                    let reason = "its update is not at hand any more".into();
                    Some(LedgerReply::NotApplied { key, update, reason })
                }
            },
            Job::Persist { token, vote_state, candidate } => {
                self.persist(&vote_state, candidate.as_deref())?;
                Some(LedgerReply::Durable { token })
            }
            Job::Commit { token, record, certificate } => {
                self.commit(*record, &certificate)?;
                self.committed = true;
                Some(LedgerReply::Durable { token })
            }
            Job::Verify => {
                let manifest = self.state.read().manifest().map_err(|e| Failure::new(Code::Refused, e))?;
                Some(LedgerReply::Verified { state_root: state::root(&manifest) })
            }
            Job::Found { token, record } => {
                let state = self.state.read();
                self.store.found(&record, &state.schema, &state.state).map_err(store_failure)?;
                drop(state);
                self.state.change(|state| state.stand_on(record));
                Some(LedgerReply::Durable { token })
            }
            Job::Replay { record, certificate, update, reply } => {
                let _ = reply.send(self.replay(record, &certificate, update.as_deref().map(Vec::as_slice))?);
                None
            }
            Job::Leave { weights, reply } => {
                let last = self.state.read();
                let kept = difference::keep(&self.store, &self.spec, &self.naming.node, &last, weights);
                let _ = reply.send(kept);
                None
            }
            Job::Reload { reply } => {
                let _ = reply.send(self.reload());
                None
            }
            Job::Snapshot { reply } => {
                self.snapshot_for_newcomers(reply);
                None
            }
            Job::Written => {
                self.written()?;
                None
            }
            Job::Evidence { against, evidence } => {
                self.keep_evidence(against, evidence.map(|evidence| *evidence));
                None
            }
            Job::Checkpoint { purpose, asked } => {
                self.checkpoint(Wanted { purpose, asked: asked.into_iter().collect() });
                None
            }
        })
    }

    /// Keeps evidence against a node, which is shown and passed on even if the disk does not keep it.
    fn keep_evidence(&self, against: NodeId, evidence: Option<Evidence>) {
        if let Err(e) = evidence::keep(&self.store, against, evidence) {
            let why = starling_words::of_chain(e.chain());
            tracing::warn!("the evidence against {} is not kept on disk: {why}", against.short());
        }
    }

    /// The update of this digest, if it is held or on disk.
    fn at_hand(&self, digest: &Digest) -> Result<Option<Update>, Failure> {
        if let Some(held) = self.updates.of(digest) {
            return Ok(Some(held));
        }
        let bytes = self.store.update_by_digest(digest).map_err(store_failure)?;
        Ok(bytes.map(|bytes| Update { digest: *digest, bytes: Arc::new(bytes) }))
    }

    fn update_of(&self, record: &Record) -> Result<Update, Failure> {
        self.at_hand(&record.update)?.ok_or_else(|| {
            let seq = record.seq;
            Failure::message(Code::StoreDamaged, format!("the update of record {seq} is gone from memory and disk"))
        })
    }

    fn speculate(&mut self, key: AttemptKey, update: Update, rule: Rule) -> LedgerReply {
        let step = {
            let state = self.state.read();
            step_after(&self.spec, &state.record, rule, state.elements())
        };
        let ahead = self.updates.ahead(&update.digest);
        let ahead = ahead.map(|ahead| ahead.end(&step, &update.bytes)).unwrap_or_default();
        let state = self.state.read();
        // The candidate must find the update on disk, so it is written while the state root is computed.
        let result = std::thread::scope(|scope| {
            scope.spawn(|| {
                let staged = match ahead.file {
                    Some(file) => file.stage(&self.store, &update),
                    None => self.store.stage_update(&update.bytes),
                };
                if let Err(e) = staged {
                    tracing::debug!("the update is written with its candidate: {e}");
                }
            });
            let known = Known { present: self.manifest.as_ref(), stepped: &ahead.stepped };
            state.speculate(&step, &update.bytes, known)
        });
        drop(state);
        let digest = update.digest;
        match result {
            Ok(manifest) => {
                let state_root = state::root(&manifest);
                self.updates.speculated(key, update, manifest);
                LedgerReply::Applied { key, update: digest, state_root }
            }
            Err(e) => LedgerReply::NotApplied { key, update: digest, reason: e.to_string() },
        }
    }

    fn persist(&self, vote_state: &VoteState, candidate: Option<&Candidate>) -> Result<(), Failure> {
        let Some(candidate) = candidate else { return self.store.put_vote_state(vote_state).map_err(store_failure) };
        let update = self.update_of(&candidate.record)?;
        self.store.put_candidate(candidate, &update.bytes, vote_state).map_err(store_failure)
    }

    fn commit(&mut self, record: Record, certificate: &Certificate) -> Result<(), Failure> {
        let update = if record.changes_state() { Some(self.update_of(&record)?.bytes) } else { None };
        self.advance(record, certificate, update.as_ref().map(|bytes| bytes.as_slice()))
    }

    fn replay(
        &mut self,
        record: Record,
        certificate: &Certificate,
        update: Option<&[u8]>,
    ) -> Result<Result<(), String>, Failure> {
        let mut checked = self.check_replay(&record, update);
        // A quorum has signed the record, and the update is the one that it names: another root means that this node's
        // state is another.
        if matches!(checked, Err(NotReplayed::OtherRoot(_))) && self.mend_if_damaged()? {
            checked = self.check_replay(&record, update);
        }
        if let Err(why) = checked {
            return Ok(Err(why.to_string()));
        }
        self.advance(record, certificate, update)?;
        self.snapshot_if_due();
        Ok(Ok(()))
    }

    /// Checks that the record follows the present state, and that its update leads to its state root.
    fn check_replay(&self, record: &Record, update: Option<&[u8]>) -> Result<(), NotReplayed> {
        let state = self.state.read();
        if record.parent != state.digest {
            return Err(NotReplayed::NoSuccessor(record.seq));
        }
        let root = match update {
            Some(update) if record.changes_state() => {
                let step = step_to(&self.spec, &state.record, record, state.elements());
                state::root(&state.speculate(&step, update, Known::default())?)
            }
            None if !record.changes_state() => state.record.state_root,
            _ => return Err(NotReplayed::OtherUpdate(record.seq)),
        };
        if root == record.state_root { Ok(()) } else { Err(NotReplayed::OtherRoot(record.seq)) }
    }

    /// Reads the state from disk again if memory no longer holds that of its record; returns whether it did.
    fn mend_if_damaged(&mut self) -> Result<bool, Failure> {
        let (root, record) = {
            let state = self.state.read();
            let manifest = state.manifest().map_err(|e| Failure::new(Code::Refused, e))?;
            (state::root(&manifest), state.record.clone())
        };
        if root == record.state_root {
            return Ok(false);
        }
        self.mend(&format!("the state in memory is not the one that record {} names", record.seq))?;
        self.manifest = None;
        Ok(true)
    }

    /// Makes `record` the head on disk and in memory at once; its update, if it has one, was speculated on. After any
    /// failure the two may differ, and the process must end.
    fn advance(&mut self, record: Record, certificate: &Certificate, update: Option<&[u8]>) -> Result<(), Failure> {
        let known = self.updates.settle(&record);
        if record.changes_state() {
            self.manifest = known.filter(|known| state::root(known) == record.state_root);
        }
        if record.kind == RecordKind::Fork
            && let Err(e) = difference::keep_base(&self.store, &record, &self.state.read().state.theta)
        {
            tracing::warn!("the difference of this lineage will not be merged if it gives way: {e}");
        }
        let Some(update) = update else {
            self.store.commit(&record, None, certificate).map_err(store_failure)?;
            self.state.change(|state| state.stand_on(record));
            return Ok(());
        };
        let frozen = self.writer.frozen();
        let (applied, committed) = std::thread::scope(|scope| {
            let committing = scope.spawn(|| self.store.commit(&record, Some(update), certificate));
            let applied = self.state.change(|state| {
                // There is no head until both are done: nobody may train from a state in between.
                (state.digest, state.base) = (Digest::default(), Digest::default());
                let step = step_to(&self.spec, &state.record, &record, state.elements());
                if let Some(frozen) = &frozen {
                    frozen.keep(&state.state, &step.range);
                }
                state.apply(&step, update)
            });
            (applied, committing.join())
        });
        let panicked =
            |_| Failure::message(Code::StoreDamaged, "a write of the store panicked; see the message before");
        committed.map_err(panicked)?.map_err(store_failure)?;
        applied.map_err(|e| Failure::message(Code::StoreDamaged, e))?;
        self.state.change(|state| state.stand_on(record));
        Ok(())
    }

    fn reload(&mut self) -> Result<Record, String> {
        self.manifest = None;
        let loaded = stored(&self.store, &self.spec).map_err(|e| e.to_string())?;
        let record = loaded.record.clone();
        self.updates.settle(&record);
        self.writer.give_up();
        self.state.change(|state| state.take(loaded));
        difference::forget_base(&self.store, &record.lineage);
        Ok(record)
    }

    /// Reads the state from disk again: it was right when the votes named its root, and memory no longer holds it.
    fn mend(&self, wrong: &impl std::fmt::Display) -> Result<(), Failure> {
        let loaded = stored(&self.store, &self.spec).map_err(|e| {
            let text = format!("{wrong}; and it cannot be read from disk again: {e}");
            Failure::message(Code::StoreDamaged, text)
        })?;
        self.writer.give_up();
        self.state.change(|state| state.take(loaded));
        // If the driver is gone, the node is ending.
        drop(self.done.blocking_send(LedgerReply::Mended { why: wrong.to_string() }));
        Ok(())
    }
}

/// The outer step from `parent` to `record`, of a model of so many elements.
fn step_to(spec: &RunSpec, parent: &Record, record: &Record, elements: usize) -> OuterStep {
    let rule = Rule::of(spec, parent, record.contributors.len());
    OuterStep { codec: parent.next.codec, rule, range: stepped(spec, elements, record.round) }
}

/// The outer step of the COMMIT after `parent`, of a model of so many elements; `parent` fixes its codec.
pub fn step_after(spec: &RunSpec, parent: &Record, rule: Rule, elements: usize) -> OuterStep {
    OuterStep { codec: parent.next.codec, rule, range: stepped(spec, elements, parent.round.saturating_add(1)) }
}

/// The elements that the COMMIT of a round steps.
fn stepped(spec: &RunSpec, elements: usize, round: u64) -> Range<usize> {
    Fragments::of(&spec.sync, elements).of_round(round)
}

/// The state at the store's head: the newest sound snapshot, and the updates after it.
pub fn stored(store: &Store, spec: &RunSpec) -> Result<LoadedState, StoreError> {
    store.load_state(|record, update, state| {
        let parent = store.record(record.seq.saturating_sub(1)).map_err(|e| e.to_string())?;
        let parent = parent.ok_or("the record before it is gone")?;
        step_to(spec, &parent, record, state.elements()).apply(update, state).map_err(|e| e.to_string())
    })
}

/// The exit code that a store's error leads to.
pub fn store_failure(error: StoreError) -> Failure {
    Failure::from(error)
}

#[cfg(test)]
#[path = "ledger_test.rs"]
mod tests;
