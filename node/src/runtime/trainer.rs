//! The thread that owns the run's task, and with it the device. It does one job at a time, and never waits for a disk
//! or for the network.

use super::head::SharedState;
use gossip::Gossip;
use gradient::Gradients;
use rounds::{Course, Rounds};
use starling_protocol::run::{SyncMode, SyncSpec};
use starling_store::Store;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use streaming::Own;
use task::Trouble;
use tokio::sync::mpsc;
use worker::Worker;

mod division;
mod gossip;
mod gradient;
mod job;
mod rounds;
mod streaming;
mod task;
mod worker;

pub use gossip::PairSetting;
pub use job::{Ahead, FragmentEvent, Job, Made, Round, Trained, TrainerEvent};
pub use task::{Coming, Learned, Place, Ready, StepAt, Task, TaskError};
pub use worker::Setting;

/// Jobs that may wait: a stop, a round and a validation.
const JOBS_MAX: usize = 8;
/// Events that may wait; a slow driver slows the trainer only after this many steps.
const EVENTS_MAX: usize = 256;

/// The course of a run's training.
pub fn course(sync: &SyncSpec, gossip: Option<PairSetting>) -> Box<dyn Course> {
    match (sync.mode, gossip) {
        (SyncMode::EveryStep, _) => Box::new(Gradients::default()),
        (SyncMode::Rounds, Some(setting)) => Box::new(Gossip::new(setting)),
        (SyncMode::Rounds, None) if sync.streams() => Box::new(Own::default()),
        (SyncMode::Rounds, None) => Box::new(Rounds),
    }
}

/// The driver's end.
pub struct TrainerHandle {
    pub jobs: mpsc::Sender<Job>,
    pub events: mpsc::Receiver<TrainerEvent>,
    generation: Arc<AtomicU64>,
    cut: Arc<AtomicU64>,
    /// The time since which the node ends.
    leaving: Arc<OnceLock<Instant>>,
    /// Ends when `jobs` is dropped, after the state at hand is saved.
    pub thread: Option<JoinHandle<()>>,
}

impl TrainerHandle {
    /// Starts the thread, which owns `task` from now on.
    pub fn start(
        mut task: Box<dyn Task>,
        mut course: Box<dyn Course>,
        setting: Setting,
        state: Arc<SharedState>,
        store: Arc<Store>,
    ) -> std::io::Result<Self> {
        let (jobs, job_queue) = mpsc::channel(JOBS_MAX);
        let (event_queue, events) = mpsc::channel(EVENTS_MAX);
        let generation = Arc::new(AtomicU64::new(0));
        let cut = Arc::new(AtomicU64::new(0));
        let leaving = Arc::new(OnceLock::new());
        task.watch(leaving.clone());
        let mut worker = Worker {
            task,
            reached: 0,
            signs: 0,
            waited: Duration::ZERO,
            not_finite: false,
            setting,
            state,
            store,
            events: event_queue,
            generation: generation.clone(),
            cut: cut.clone(),
            spare: None,
        };
        let thread = std::thread::Builder::new().name("trainer".into()).spawn(move || {
            if course.has_moments() {
                worker.restore();
            }
            if run(&mut *course, &mut worker, job_queue) && course.has_moments() {
                worker.save();
            }
            worker.end();
        })?;
        Ok(Self { jobs, events, generation, cut, leaving, thread: Some(thread) })
    }

    /// A handle without a thread, and the queue of its jobs.
    #[cfg(test)]
    pub fn of_nobody() -> (Self, mpsc::Receiver<Job>) {
        let ((jobs, queue), (_, events)) = (mpsc::channel(JOBS_MAX), mpsc::channel(EVENTS_MAX));
        let (generation, cut, leaving) = (Arc::default(), Arc::default(), Arc::default());
        (Self { jobs, events, generation, cut, leaving, thread: None }, queue)
    }

    /// Stops the round that runs, and returns the next generation.
    pub fn next_generation(&self) -> u64 {
        self.generation.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Says that the node ends, so that the thread waits for nobody for long.
    pub fn leave(&self) {
        // The first time counts.
        let _ = self.leaving.set(Instant::now());
    }

    /// Ends the newest round after the step under way, or after its first if none is done.
    pub fn cut_short(&self) {
        self.cut.store(self.generation.load(Ordering::Acquire), Ordering::Release);
    }
}

impl Drop for TrainerHandle {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Does jobs until there are no more; false if the driver is gone before that, or the task has failed.
fn run(course: &mut dyn Course, worker: &mut Worker, mut jobs: mpsc::Receiver<Job>) -> bool {
    while let Some(job) = jobs.blocking_recv() {
        let said = match job {
            Job::Round(mut round) => {
                course.hear(std::mem::take(&mut round.news));
                worker.round(course, &round)
            }
            Job::Ahead(mut ahead) => {
                course.hear(std::mem::take(&mut ahead.news));
                // Without steps it is told of the lease only.
                let went = if ahead.steps > 0 { course.go_ahead(worker, &ahead) } else { worker.foresee(&ahead) };
                unless_gone(went, worker, || TrainerEvent::WentAhead { ended: Instant::now() })
            }
            Job::Retake { round, base, news } => {
                course.hear(news);
                let made = course.retake(worker, round, base);
                let made = unless_gone(made, worker, || None);
                made.map(|made| TrainerEvent::Retaken { round, base, made })
            }
            Job::Validate { sequences } => {
                // One that has come meanwhile can be asked; nobody waits for one.
                if worker.ready_while(&|| false) == Ready::Anew {
                    course.lose();
                }
                match unless_gone(worker.validate_head(sequences), worker, || false) {
                    Ok(true) => continue,
                    Ok(false) => Ok(TrainerEvent::NotValidated),
                    Err(trouble) => Err(trouble),
                }
            }
        };
        let said = said.unwrap_or_else(|trouble| match trouble {
            Trouble::Failed(message) if worker.task.fail(&message) => TrainerEvent::Gone { why: message },
            Trouble::Failed(message) => TrainerEvent::Failed { message, diverged: worker.not_finite },
            Trouble::Gone(why) => TrainerEvent::Gone { why },
        });
        let rests = matches!(said, TrainerEvent::Trained(_));
        let broke = matches!(said, TrainerEvent::Failed { diverged: false, .. });
        if worker.events.blocking_send(said).is_err() {
            return false;
        }
        if broke {
            // The driver ends for it. Until then the task is asked nothing, since its device may have lost anything.
            while jobs.blocking_recv().is_some() {}
            return false;
        }
        if rests && let Err(e) = worker.task.rest() {
            worker.lost(e.to_string());
        }
    }
    true
}

/// The result of a job that may be left undone when the task has lost what it trained with.
fn unless_gone<T>(result: Result<T, Trouble>, worker: &Worker, otherwise: impl FnOnce() -> T) -> Result<T, Trouble> {
    match result {
        Err(Trouble::Gone(why)) => {
            worker.lost(why);
            Ok(otherwise())
        }
        result => result,
    }
}
