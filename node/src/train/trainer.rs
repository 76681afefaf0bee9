//! The thread that owns the device. It takes jobs, one at a time, and never waits for a disk or for the network.

use super::head::SharedState;
use super::moments;
use crate::pairs::PairError;
use crate::reduce::FragmentFeedback;
use starling_data::Dataset;
use starling_kernels::{StepReport, Trainer};
use starling_protocol::permutation::SampleOrder;
use starling_protocol::record::Span;
use starling_protocol::run::{Budget, InnerSpec, SyncMode, SyncSpec};
use starling_protocol::{Digest, NodeId};
use starling_store::Store;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;
use streaming::Own;
use tokio::sync::mpsc;

mod gradient;
mod pairs;
mod rounds;
mod streaming;

pub use streaming::News;

pub use pairs::PairSetting;

/// Jobs that may wait: a stop, a round and a validation.
const JOBS_MAX: usize = 8;
/// Progress that may wait; a slow driver slows the trainer only after this many steps.
const EVENTS_MAX: usize = 256;
/// Steps of a round that may be left out because their loss is not finite.
const STEPS_LEFT_OUT_MAX: u32 = 4;

/// What the device thread is asked to do.
pub enum Job {
    Round(Round),
    Ahead(Ahead),
    /// Take the fragment of this round from the trainer's own parameters as they are, on top of the state of `base`.
    Retake {
        round: u64,
        base: Digest,
        news: News,
    },
    /// Validate the head's parameters on this many sequences.
    Validate {
        sequences: usize,
    },
}

/// The inner steps of one round.
pub struct Round {
    pub round: u64,
    /// Digest of the record that made the parameters they start from.
    pub base: Digest,
    pub lineage: Digest,
    /// Whom the head expects: among them are this node's partners.
    pub expected: Vec<NodeId>,
    pub lease: Span,
    /// Steps for the whole lease.
    pub inner_steps: u32,
    /// Committed tokens of the lineage, for the schedule.
    pub tokens: u64,
    /// Validate the parameters first, on this many sequences.
    pub validate: Option<usize>,
    /// [`TrainerHandle::generation`] for which this job is meant; a newer one stops it.
    pub generation: u64,
    pub news: News,
}

/// Some inner steps of the round after the one whose record is being made: over a lease that it will most likely give.
pub struct Ahead {
    pub round: u64,
    /// The record that made the state at hand.
    pub base: Digest,
    pub lease: Span,
    /// Steps for the whole lease, and how many of them may be done.
    pub inner_steps: u32,
    pub steps: u32,
    /// Committed tokens that the record will name.
    pub tokens: u64,
    pub generation: u64,
    pub news: News,
}

/// What the device thread says.
pub enum Happened {
    Step {
        round: u64,
        step: u32,
        steps: u32,
        /// What the others see of it: steps, and signs of life in exchanges.
        reached: u32,
        loss: f64,
        tokens_per_second: f64,
    },
    /// The trainer waits for a partner, or exchanges with it.
    Exchanging {
        round: u64,
        reached: u32,
    },
    /// An exchange is over; why it came to nothing, if it did. Nobody was left to meet if there is no partner.
    Exchanged {
        round: u64,
        exchange: u32,
        partner: Option<NodeId>,
        why: Option<PairError>,
        seconds: f64,
    },
    Validated {
        round: u64,
        loss: f64,
    },
    Trained(Trained),
    /// The round was stopped, or its parameters are no longer the head's.
    Stopped,
    /// As much as could be was done ahead of a record.
    WentAhead {
        ended: Instant,
    },
    /// A fragment was taken without new steps; none if there is nothing to take it from.
    Retaken {
        round: u64,
        base: Digest,
        made: Option<Made>,
    },
    /// A shard is not here yet: fetch it and ask again.
    MissingShard {
        round: u64,
        shard: Digest,
    },
    Failed {
        message: String,
    },
}

/// A finished round, or one that was cut short after some steps.
pub struct Trained {
    pub round: u64,
    pub base: Digest,
    pub samples: u64,
    pub tokens: u64,
    pub steps: u32,
    /// Mean over the steps, in nats per token.
    pub loss: f64,
    /// Pseudo-gradient: head's parameters minus the trained ones, of the fragment whose turn it is. Or the gradient, in runs that average each step.
    pub delta: Arc<Vec<f32>>,
    pub payload: Digest,
    /// L2 norm of what is offered ([`Made`]).
    pub norm: f32,
    pub step_us: u32,
    /// What the inner steps took, those done ahead included.
    pub seconds: f64,
    /// When the last inner step was done.
    pub ended: Instant,
}

/// What a round needs beside its job.
pub struct Setting {
    pub seed: u64,
    pub seq_len: usize,
    pub inner: InnerSpec,
    pub sync: SyncSpec,
    pub budget: Budget,
    pub pairs: Option<PairSetting>,
    /// What earlier contributions have left out.
    pub feedback: Arc<FragmentFeedback>,
}

/// The driver's end.
pub struct TrainerHandle {
    pub jobs: mpsc::Sender<Job>,
    pub events: mpsc::Receiver<Happened>,
    generation: Arc<AtomicU64>,
    cut: Arc<AtomicU64>,
    /// Ends when `jobs` is dropped, after the state at hand is saved.
    pub thread: Option<JoinHandle<()>>,
}

impl TrainerHandle {
    /// Starts the thread, which owns `trainer` from now on.
    pub fn start(
        trainer: Box<dyn Trainer>,
        mut setting: Setting,
        state: Arc<SharedState>,
        data: Arc<Dataset>,
        store: Arc<Store>,
    ) -> std::io::Result<Self> {
        let (jobs, job_queue) = mpsc::channel(JOBS_MAX);
        let (event_queue, events) = mpsc::channel(EVENTS_MAX);
        let generation = Arc::new(AtomicU64::new(0));
        let cut = Arc::new(AtomicU64::new(0));
        let pairs = setting.pairs.take().map(pairs::Pairs::new);
        let mut worker = Worker {
            trainer,
            pairs,
            reached: 0,
            setting,
            state,
            data,
            store,
            events: event_queue,
            generation: generation.clone(),
            cut: cut.clone(),
            spare: None,
            own: Own::default(),
            validation: Vec::new(),
            spoilt: 0,
        };
        let thread = std::thread::Builder::new().name("trainer".into()).spawn(move || {
            // Where gradients are averaged the moments are everybody's, and part of the state.
            let own_moments = worker.setting.sync.mode == SyncMode::Rounds;
            if own_moments {
                worker.restore();
            }
            if worker.run(job_queue) && own_moments {
                worker.save();
            }
        })?;
        Ok(Self { jobs, events, generation, cut, thread: Some(thread) })
    }

    /// Stops whatever round runs, and names the next one.
    pub fn next_generation(&self) -> u64 {
        self.generation.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Ends the newest round after the step under way; without one done, after its first.
    pub fn cut_short(&self) {
        self.cut.store(self.generation.load(Ordering::Acquire), Ordering::Release);
    }
}

struct Worker {
    trainer: Box<dyn Trainer>,
    setting: Setting,
    state: Arc<SharedState>,
    data: Arc<Dataset>,
    store: Arc<Store>,
    events: mpsc::Sender<Happened>,
    generation: Arc<AtomicU64>,
    /// The generation whose round is to end early.
    cut: Arc<AtomicU64>,
    /// The last pseudo-gradient, whose memory the next one takes if nobody holds it any more.
    spare: Option<Arc<Vec<f32>>>,
    own: Own,
    validation: Vec<u32>,
    /// Gradients in a row that were not finite.
    spoilt: u32,
    pairs: Option<pairs::Pairs>,
    /// Inner steps of the round so far.
    reached: u32,
}

impl Worker {
    /// Until there are no more jobs; false if the driver is gone before that.
    fn run(&mut self, mut jobs: mpsc::Receiver<Job>) -> bool {
        while let Some(job) = jobs.blocking_recv() {
            let said = match job {
                Job::Round(mut round) => {
                    self.hear(std::mem::take(&mut round.news));
                    self.round(&round).unwrap_or_else(|message| Happened::Failed { message })
                }
                Job::Ahead(mut ahead) => {
                    self.hear(std::mem::take(&mut ahead.news));
                    self.go_ahead(&ahead).unwrap_or_else(|message| Happened::Failed { message })
                }
                Job::Retake { round, base, news } => {
                    self.hear(news);
                    let made = self.retake(round, base);
                    made.map_or_else(
                        |message| Happened::Failed { message },
                        |made| Happened::Retaken { round, base, made },
                    )
                }
                Job::Validate { sequences } => match self.validate_head(sequences) {
                    Ok(()) => continue,
                    Err(message) => Happened::Failed { message },
                },
            };
            if self.events.blocking_send(said).is_err() {
                return false;
            }
        }
        true
    }

    fn restore(&mut self) {
        match moments::restore(&mut *self.trainer, &self.store) {
            Ok(true) => tracing::debug!("restored the inner optimizer's moments"),
            Ok(false) => {}
            Err(e) => tracing::warn!("the inner optimizer starts anew: {e:#}"),
        }
    }

    fn save(&mut self) {
        if let Err(e) = moments::save(&mut *self.trainer, &self.store) {
            tracing::warn!("the inner optimizer's moments were not saved: {e:#}");
        }
    }

    fn round(&mut self, job: &Round) -> Result<Happened, String> {
        let Some(done) = self.load(job)? else { return Ok(Happened::Stopped) };
        let (started, ahead) = (Instant::now(), done.seconds);
        let (done, made) = match self.setting.sync.mode {
            SyncMode::EveryStep => match self.gradient(job, started)? {
                Ok((done, made)) => (done, Some(made)),
                Err(said) => return Ok(said),
            },
            SyncMode::Rounds => match self.steps(job, (started, done))? {
                Ok(done) => (done, None),
                Err(said) => return Ok(said),
            },
        };
        let ended = Instant::now();
        let seconds = ahead + ended.duration_since(started).as_secs_f64();
        // Leases follow this: waiting for a partner is not the machine's slowness.
        let trained = seconds - self.pairs.as_ref().map_or(0.0, |pairs| pairs.waited.as_secs_f64());
        let Some(made) = made.map_or_else(|| self.pseudo_gradient(job), |made| Ok(Some(made)))? else {
            return Ok(Happened::Stopped);
        };
        Ok(Happened::Trained(Trained {
            round: job.round,
            base: job.base,
            samples: done.samples,
            tokens: done.tokens,
            steps: done.steps,
            loss: done.loss_sum / f64::from(done.steps.max(1)),
            delta: made.delta,
            payload: made.payload,
            norm: made.norm,
            step_us: (trained * 1e6 / f64::from(done.steps.max(1))) as u32,
            seconds,
            ended,
        }))
    }

    /// Puts the parameters on the device from which the round goes on, and validates the head's if that is due. The steps
    /// of the round that they have in them already; none if the head is another one by now.
    fn load(&mut self, job: &Round) -> Result<Option<Steps>, String> {
        let streams = self.setting.sync.streams();
        if !streams || job.validate.is_some() {
            let kept = if streams { self.own.set_aside(&mut *self.trainer)? } else { None };
            let state = self.state.read();
            if state.base != job.base {
                return Ok(None);
            }
            self.trainer.load(&state.state.theta).map_err(|e| e.to_string())?;
            drop(state);
            if let Some(sequences) = job.validate {
                self.validate(job.round, sequences)?;
            }
            if let Some(kept) = kept {
                self.trainer.load(&kept).map_err(|e| e.to_string())?;
            }
        }
        if streams { self.load_own(job.base, Some((job.round, job.lease))) } else { Ok(Some(Steps::default())) }
    }

    /// What the end of a run is judged by: the committed parameters.
    fn validate_head(&mut self, sequences: usize) -> Result<(), String> {
        let state = self.state.clone();
        let state = state.read();
        self.trainer.load(&state.state.theta).map_err(|e| e.to_string())?;
        self.validate(state.record.round, sequences)
    }

    fn validate(&mut self, round: u64, sequences: usize) -> Result<(), String> {
        let length = self.setting.seq_len + 1;
        if self.validation.len() != sequences * length {
            self.validation =
                self.data.validation(self.setting.seq_len, sequences as u64).map_err(|e| e.to_string())?;
        }
        if self.validation.is_empty() {
            return Ok(());
        }
        let (nats, tokens) = self.trainer.evaluate(&self.validation).map_err(|e| e.to_string())?;
        let said = Happened::Validated { round, loss: nats / tokens.max(1) as f64 };
        self.events.blocking_send(said).map_err(|_| "the driver is gone".to_string())
    }

    /// The sequences of one step, from a position on, in place of what `batch` holds; the inner error is a shard to fetch
    /// first.
    fn read_step(
        &self,
        order: &mut SampleOrder,
        start: u64,
        batch: &mut Vec<u32>,
    ) -> Result<Result<(), Digest>, String> {
        batch.clear();
        for n in 0..self.setting.inner.samples(1) {
            if let Err(shard) = self.read_sequence(order, start + n, batch)? {
                return Ok(Err(shard));
            }
        }
        Ok(Ok(()))
    }

    /// Appends the sequence at a position of the run's order; the inner error is a shard to fetch first.
    fn read_sequence(
        &self,
        order: &mut SampleOrder,
        position: u64,
        batch: &mut Vec<u32>,
    ) -> Result<Result<(), Digest>, String> {
        match self.data.read_train(self.setting.seq_len, order.sample(position), batch) {
            Ok(()) => Ok(Ok(())),
            Err(starling_data::DataError::MissingShard { digest }) => Ok(Err(digest)),
            Err(e) => Err(e.to_string()),
        }
    }

    /// The memory of the last contribution, if nobody holds it any more.
    fn spare(&mut self) -> Vec<f32> {
        self.spare.take().and_then(|spare| Arc::try_unwrap(spare).ok()).unwrap_or_default()
    }

    /// Memory for the next contribution.
    fn keep(&mut self, vector: Vec<f32>) {
        self.spare = Some(Arc::new(vector));
    }

    fn made(&mut self, round: u64, delta: Vec<f32>, payload: Digest, norm: f64) -> Made {
        let delta = Arc::new(delta);
        self.spare = Some(delta.clone());
        let offered = self.setting.feedback.offered_norm(self.setting.sync.codec, round, &delta);
        // The largest f32 says enough of a norm beyond it.
        let norm = offered.unwrap_or_else(|| norm.min(f64::from(f32::MAX)) as f32);
        Made { delta, payload, norm }
    }
}

/// What the inner steps came to.
#[derive(Default)]
struct Steps {
    steps: u32,
    /// Positions of the lease that were used, those of steps that were left out among them.
    samples: u64,
    tokens: u64,
    loss_sum: f64,
    /// What those took that were done ahead.
    seconds: f64,
}

impl Steps {
    /// One more, of so many sequences.
    fn take(&mut self, report: &StepReport, sequences: u64) {
        self.samples += sequences;
        self.tokens += report.tokens;
        self.steps += 1;
        self.loss_sum += report.loss;
    }
}

/// A pseudo-gradient, its digest, and the L2 norm of what is offered with it: with what earlier ones have left out.
pub struct Made {
    pub delta: Arc<Vec<f32>>,
    pub payload: Digest,
    pub norm: f32,
}
