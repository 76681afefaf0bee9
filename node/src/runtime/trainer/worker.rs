//! The state that all courses of training share: the device, the text, the head's state, and the driver's wishes.

use super::job::{Made, Round, TrainerEvent};
use crate::reduce::FragmentFeedback;
use crate::runtime::head::SharedState;
use crate::runtime::moments;
use starling_data::Dataset;
use starling_kernels::{StepReport, Trainer};
use starling_protocol::Digest;
use starling_protocol::permutation::SampleOrder;
use starling_protocol::run::{Budget, InnerSpec, SyncSpec};
use starling_store::Store;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::sync::mpsc;

/// Steps of a round that may be left out because their loss is not finite.
pub const STEPS_LEFT_OUT_MAX: u32 = 4;

/// The settings of all rounds of a run.
pub struct Setting {
    pub seed: u64,
    pub seq_len: usize,
    pub inner: InnerSpec,
    pub sync: SyncSpec,
    pub budget: Budget,
    /// The residuals of earlier contributions.
    pub feedback: Arc<FragmentFeedback>,
}

/// The thread that owns the device, as all courses use it.
pub struct Worker {
    pub trainer: Box<dyn Trainer>,
    pub setting: Setting,
    pub state: Arc<SharedState>,
    pub data: Arc<Dataset>,
    pub store: Arc<Store>,
    pub events: mpsc::Sender<TrainerEvent>,
    pub generation: Arc<AtomicU64>,
    /// The generation whose round is to end early.
    pub cut: Arc<AtomicU64>,
    /// The last pseudo-gradient; the next one takes its memory if no other holder is left.
    pub spare: Option<Arc<Vec<f32>>>,
    pub validation: Vec<u32>,
    /// Inner steps of the round so far.
    pub reached: u32,
    /// Signs of life besides the steps.
    pub signs: u32,
    /// Time that the trainer waited beside steps.
    pub waited: Duration,
    /// The training came to numbers that are not finite, so the job has failed.
    pub not_finite: bool,
}

impl Worker {
    pub fn restore(&mut self) {
        match moments::restore(&mut *self.trainer, &self.store) {
            Ok(true) => tracing::debug!("restored the inner optimizer's moments"),
            Ok(false) => {}
            Err(e) => tracing::warn!("the inner optimizer starts anew: {}", starling_words::of_chain(e.chain())),
        }
    }

    pub fn save(&mut self) {
        if let Err(e) = moments::save(&mut *self.trainer, &self.store) {
            let why = starling_words::of_chain(e.chain());
            tracing::warn!("the inner optimizer's moments were not saved: {why}");
        }
    }

    /// Puts the head's parameters on the device, and validates them if that is due; false if the head has changed.
    pub fn load_head(&mut self, job: &Round) -> Result<bool, String> {
        let state = self.state.read();
        if state.base != job.base {
            return Ok(false);
        }
        self.trainer.load(&state.state.theta).map_err(|e| e.to_string())?;
        drop(state);
        if let Some(sequences) = job.validate {
            self.validate(job.round, sequences)?;
        }
        Ok(true)
    }

    /// Validates the committed parameters, by which the end of a run is judged.
    pub fn validate_head(&mut self, sequences: usize) -> Result<(), String> {
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
        let said = TrainerEvent::Validated { round, loss: nats / tokens.max(1) as f64 };
        self.events.blocking_send(said).map_err(|_| "the driver is gone".to_string())
    }

    /// Reads the sequences of one step, from a position on, into `batch`, whose earlier content goes. The inner error
    /// is a shard to fetch first.
    pub fn read_step(
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

    /// Appends the sequence at a position of the run's order. The inner error is a shard to fetch first.
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

    /// The memory of the last contribution, if no other holder is left.
    pub fn spare(&mut self) -> Vec<f32> {
        self.spare.take().and_then(|spare| Arc::try_unwrap(spare).ok()).unwrap_or_default()
    }

    /// Keeps memory for the next contribution.
    pub fn keep(&mut self, vector: Vec<f32>) {
        self.spare = Some(Arc::new(vector));
    }

    pub fn made(&mut self, round: u64, delta: Vec<f32>, payload: Digest, norm: f64) -> Made {
        let delta = Arc::new(delta);
        self.spare = Some(delta.clone());
        let offered = self.setting.feedback.offered_norm(self.setting.sync.codec, round, &delta);
        // A norm beyond the largest f32 becomes the largest f32.
        let norm = offered.unwrap_or_else(|| norm.min(f64::from(f32::MAX)) as f32);
        Made { delta, payload, norm }
    }
}

/// The result of inner steps.
#[derive(Default)]
pub struct Steps {
    pub steps: u32,
    /// Positions of the lease that were used, also by steps that were left out.
    pub samples: u64,
    pub tokens: u64,
    pub loss_sum: f64,
    /// Time of the steps that were done ahead.
    pub seconds: f64,
}

/// A round's steps; the inner error is the event that ended it without a result.
pub type Worked = Result<Result<Steps, TrainerEvent>, String>;

impl Steps {
    /// Adds one step of this many sequences.
    pub fn take(&mut self, report: &StepReport, sequences: u64) {
        self.samples += sequences;
        self.tokens += report.tokens;
        self.steps += 1;
        self.loss_sum += report.loss;
    }
}
