//! The state that all courses of training share: the task, the head's state, and the driver's wishes.

use super::division::{Division, Order};
use super::job::{Ahead, Made, Round, TrainerEvent};
use super::task::{Coming, Learned, Place, Ready, Task, TaskError, Trouble};
use crate::reduce::FragmentFeedback;
use crate::runtime::head::SharedState;
use starling_protocol::Digest;
use starling_protocol::permutation::SampleOrder;
use starling_protocol::record::Span;
use starling_protocol::run::{Budget, InnerSpec, SyncSpec};
use starling_store::Store;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Steps of a round that may be left out because their loss is not finite.
pub const STEPS_LEFT_OUT_MAX: u32 = 4;

/// The settings of all rounds of a run.
pub struct Setting {
    pub seed: u64,
    pub inner: InnerSpec,
    pub sync: SyncSpec,
    pub budget: Budget,
    /// The residuals of earlier contributions.
    pub feedback: Arc<FragmentFeedback>,
}

/// The thread that owns the task, as all courses use it.
pub struct Worker {
    pub task: Box<dyn Task>,
    pub setting: Setting,
    pub state: Arc<SharedState>,
    pub store: Arc<Store>,
    pub events: mpsc::Sender<TrainerEvent>,
    pub generation: Arc<AtomicU64>,
    /// The generation whose round is to end early.
    pub cut: Arc<AtomicU64>,
    /// The last pseudo-gradient; the next one takes its memory if no other holder is left.
    pub spare: Option<Arc<Vec<f32>>>,
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
        self.task.restore(&self.store);
    }

    pub fn save(&mut self) {
        self.task.save(&self.store);
    }

    /// Tells people that the task has lost what it trained with, in a job that may be left undone.
    pub fn lost(&self, why: String) {
        let _ = self.events.try_send(TrainerEvent::Lost { why });
    }

    /// Waits until the task can be asked, as long as this generation of jobs lasts and the state is that of `base`.
    pub fn ready(&mut self, generation: u64, base: Digest) -> Ready {
        let (newest, state) = (self.generation.clone(), self.state.clone());
        self.ready_while(&move || newest.load(Ordering::Acquire) == generation && state.head().base == base)
    }

    /// Waits until the task can be asked, as long as `goes_on` says so.
    pub fn ready_while(&mut self, goes_on: &dyn Fn() -> bool) -> Ready {
        let ready = self.task.ready(goes_on);
        if ready == Ready::Anew {
            // It is for watching alone.
            let _ = self.events.try_send(TrainerEvent::Came);
        }
        ready
    }

    /// Tells the task where the parameters stand that are loaded next.
    pub fn stand(&mut self, round: u64, base: Digest, tokens: u64, flying: usize) {
        let spent = |done: u64, all: u64| if all == 0 { 0.0 } else { (done as f64 / all as f64).min(1.0) };
        let budget = &self.setting.budget;
        let progress = spent(round.saturating_sub(1), budget.rounds).max(spent(tokens, budget.tokens));
        self.task.stand(&Place { round, base, tokens, progress, flying });
    }

    /// Members that the head expects in the round after it.
    pub fn flying(&self) -> usize {
        self.state.head().record.next.members.iter().filter(|member| member.expected).count()
    }

    /// Puts the head's parameters on the device, and validates them if that is due; false if the head has changed.
    pub fn load_head(&mut self, job: &Round) -> Result<bool, Trouble> {
        let state = self.state.read();
        if state.base != job.base {
            return Ok(false);
        }
        self.task.load(&state.state.theta)?;
        drop(state);
        self.task.taken()?;
        if let Some(samples) = job.validate {
            self.validate(job.round, samples)?;
        }
        Ok(true)
    }

    /// Validates the committed parameters, by which the end of a run is judged; false if there is nothing to tell.
    pub fn validate_head(&mut self, samples: usize) -> Result<bool, Trouble> {
        let shared = self.state.clone();
        let state = shared.read();
        let (round, tokens, base) = (state.record.round, state.record.tokens, state.base);
        // The parameters with which the next round would begin.
        self.stand(round.saturating_add(1), base, tokens, self.flying());
        self.task.load(&state.state.theta)?;
        drop(state);
        self.task.taken()?;
        self.validate(round, samples)
    }

    fn validate(&mut self, round: u64, samples: usize) -> Result<bool, Trouble> {
        let Some((losses, weight)) = self.task.evaluate(samples)? else { return Ok(false) };
        let said = TrainerEvent::Validated { round, loss: losses / weight.max(1) as f64 };
        self.events.blocking_send(said).map_err(|_| Trouble::Failed("the driver is gone".into()))?;
        Ok(true)
    }

    /// Tells the task that the node ends, and whether the run does.
    pub fn end(&mut self) {
        let head = self.state.head();
        let spent = |done: u64, all: u64| all > 0 && done >= all;
        let Budget { rounds, tokens } = self.setting.budget;
        self.task.end(spent(head.record.round, rounds) || spent(head.record.tokens, tokens));
    }

    /// The order in which the run reads the task's samples.
    pub fn order(&self) -> Order {
        Order(self.task.samples().map(|samples| SampleOrder::new(self.setting.seed, samples)))
    }

    /// Tells the task which samples the steps to come have, from a position on.
    pub fn announce(
        &mut self,
        order: &mut Order,
        round: u64,
        division: &Division,
        steps: Range<u32>,
    ) -> Result<(), TaskError> {
        self.tell(order, (round, false), division, steps)
    }

    /// Tells the task which samples the next round will most likely have.
    pub fn foresee(&mut self, job: &Ahead) -> Result<TrainerEvent, Trouble> {
        let (mut order, division) =
            (self.order(), Division::of(job.lease, job.inner_steps, self.setting.inner.samples(1)));
        self.tell(&mut order, (job.round, true), &division, 0..division.steps)?;
        Ok(TrainerEvent::WentAhead { ended: Instant::now() })
    }

    fn tell(
        &mut self,
        order: &mut Order,
        (round, is_likely): (u64, bool),
        division: &Division,
        steps: Range<u32>,
    ) -> Result<(), TaskError> {
        if steps.is_empty() {
            return Ok(());
        }
        let (count, Span { start, count: samples }) = (steps.end - steps.start, division.positions(steps));
        let mut numbers = (0..samples).map(|n| order.sample(start.saturating_add(n)));
        self.task.lease(Coming { round, is_likely, steps: count, samples, numbers: &mut numbers })
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
        let codec = self.state.head().record.next.codec;
        let offered = self.setting.feedback.offered_norm(codec, round, &delta);
        // A norm beyond the largest f32 becomes the largest f32.
        let plain = norm.min(f64::from(f32::MAX)) as f32;
        // A round that leaves this out may be followed by one whose codec has no residuals.
        let least = if self.setting.sync.coarsest.is_some() { plain } else { 0.0 };
        let norm = offered.map_or(plain, |offered| offered.max(least));
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
pub type Worked = Result<Result<Steps, TrainerEvent>, Trouble>;

impl Steps {
    /// Units of so many samples, as a number to divide by.
    pub fn units(&self, unit: u64) -> f64 {
        (self.samples as f64 / unit.max(1) as f64).max(1.0)
    }

    /// Adds one step of this many samples.
    pub fn take(&mut self, learned: &Learned, samples: u64) {
        self.samples += samples;
        self.tokens += learned.weight;
        self.steps += 1;
        self.loss_sum += learned.loss;
    }
}
