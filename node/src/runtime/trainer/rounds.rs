//! Rounds of inner steps and what they come to: the course that every other one departs from.

use super::job::{Ahead, FragmentEvent, Made, Round, Trained, TrainerEvent};
use super::worker::{STEPS_LEFT_OUT_MAX, Steps, Worked, Worker};
use starling_kernels::TrainError;
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::outer::schedule;
use starling_protocol::permutation::SampleOrder;
use starling_protocol::run::InnerSpec;
use starling_protocol::{Digest, update};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How a run trains; chosen where the run is set up.
pub trait Course: Send {
    /// Whether the inner optimizer's moments are this node's own, and kept on its disk.
    fn has_moments(&self) -> bool {
        true
    }

    /// Hears of what was committed; comes before anything else of a job.
    fn hear(&mut self, _news: FragmentEvent) {}

    /// Puts the parameters on the device from which the round goes on, and validates the head's if that is due. The steps
    /// of the round that they have in them already; none if the head is another one by now.
    fn load(&mut self, worker: &mut Worker, job: &Round) -> Result<Option<Steps>, String> {
        Ok(worker.load_head(job)?.then(Steps::default))
    }

    /// The round's steps, beyond those done since it was loaded.
    fn work(&mut self, worker: &mut Worker, job: &Round, begun: (Instant, Steps)) -> Worked {
        worker.steps(job, begun, |_, _, _| Ok(true))
    }

    /// What the steps came to; none if the head is another one by now.
    fn take(&mut self, worker: &mut Worker, job: &Round) -> Result<Option<Made>, String> {
        worker.pseudo_gradient(job)
    }

    /// Inner steps of a round whose record is being made.
    fn go_ahead(&mut self, _worker: &mut Worker, _job: &Ahead) -> Result<TrainerEvent, String> {
        Ok(TrainerEvent::WentAhead { ended: Instant::now() })
    }

    /// The fragment of a round without any step; none if there is nothing to take it from.
    fn retake(&mut self, _worker: &mut Worker, _round: u64, _base: Digest) -> Result<Option<Made>, String> {
        Ok(None)
    }
}

/// Nothing but rounds.
pub struct Rounds;

impl Course for Rounds {}

impl Worker {
    /// One round, as its course has it.
    pub fn round(&mut self, course: &mut dyn Course, job: &Round) -> Result<TrainerEvent, String> {
        let Some(done) = course.load(self, job)? else { return Ok(TrainerEvent::Stopped) };
        let (started, ahead) = (Instant::now(), done.seconds);
        self.waited = Duration::ZERO;
        let done = match course.work(self, job, (started, done))? {
            Ok(done) => done,
            Err(said) => return Ok(said),
        };
        let ended = Instant::now();
        let seconds = ahead + ended.duration_since(started).as_secs_f64();
        // Leases follow this: waiting for a partner is not the machine's slowness.
        let trained = seconds - self.waited.as_secs_f64();
        let Some(made) = course.take(self, job)? else { return Ok(TrainerEvent::Stopped) };
        Ok(TrainerEvent::Trained(Trained {
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

    /// The inner steps, until the lease is used up or the round is cut short. After each comes what is to be done between
    /// two of them, which says whether the round goes on; it is told how many are made, and how many there will be.
    pub fn steps(
        &mut self,
        job: &Round,
        (started, mut done): (Instant, Steps),
        mut between: impl FnMut(&mut Self, u32, u32) -> Result<bool, String>,
    ) -> Worked {
        let inner = self.setting.inner.clone();
        let sequences = inner.samples(1);
        let mut order = SampleOrder::new(self.setting.seed, self.data.train_sequences(self.setting.seq_len));
        let (mut left_out, mut batch, first) = (0, Vec::new(), done.steps);
        // Never a sequence of somebody else's lease.
        let steps = u64::from(job.inner_steps).min(job.lease.count / sequences.max(1)) as u32;
        (self.reached, self.signs) = (0, 0);
        for step in first..steps {
            if self.generation.load(Ordering::Acquire) != job.generation {
                return Ok(Err(TrainerEvent::Stopped));
            }
            if done.steps > 0 && self.cut.load(Ordering::Acquire) == job.generation {
                break;
            }
            if let Err(shard) = self.read_step(&mut order, job.lease.start + u64::from(step) * sequences, &mut batch)? {
                return Ok(Err(TrainerEvent::MissingShard { round: job.round, shard }));
            }
            self.reached = step + 1;
            let lr = self.rate(&inner, job.round, step, job.tokens);
            let report = match self.trainer.step(&batch, lr) {
                Ok(report) => report,
                // One bad batch must not end a run; many are a diverged one.
                Err(e @ TrainError::NotFinite { .. }) if left_out < STEPS_LEFT_OUT_MAX => {
                    tracing::warn!("round {}: {e}", job.round);
                    left_out += 1;
                    done.samples += sequences;
                    continue;
                }
                Err(e) => return Err(e.to_string()),
            };
            done.take(&report, sequences);
            let tokens_per_second = done.tokens as f64 / (done.seconds + started.elapsed().as_secs_f64()).max(1e-9);
            let (round, step) = (job.round, step + 1);
            let reached = step + self.signs;
            let said = TrainerEvent::Step { round, step, steps, reached, loss: report.loss, tokens_per_second };
            // Progress is for watching and for liveness; a full queue drops one, never a step.
            let _ = self.events.try_send(said);
            if !between(self, step, steps)? {
                return Ok(Err(TrainerEvent::Stopped));
            }
        }
        if done.steps == 0 {
            return Err(format!("no step of round {} could be done with {} sequences", job.round, job.lease.count));
        }
        Ok(Ok(done))
    }

    /// The learning rate of a step of a round, after so many committed tokens.
    pub fn rate(&self, inner: &InnerSpec, round: u64, step: u32, tokens: u64) -> f64 {
        schedule::rate(inner, &self.setting.budget, round, step, tokens)
    }

    /// The head's parameters minus the trained ones; none if the head is another one by now.
    pub fn pseudo_gradient(&mut self, job: &Round) -> Result<Option<Made>, String> {
        let mut delta = self.spare();
        let state = self.state.read();
        if state.base != job.base {
            return Ok(None);
        }
        delta.resize(state.elements(), 0.0);
        self.trainer.read(&mut delta).map_err(|e| e.to_string())?;
        let made = subtract_from(&state.state.theta, &mut delta);
        drop(state);
        let (payload, norm) = made.ok_or_else(|| diverged(job.round))?;
        Ok(Some(self.made(job.round, delta, payload, norm)))
    }
}

pub fn diverged(round: u64) -> String {
    format!("parameters became infinite or not a number in round {round}: lower inner.lr")
}

/// `trained <- theta - trained`, its digest and its L2 norm; none unless all of it is finite.
pub fn subtract_from(theta: &[f32], trained: &mut [f32]) -> Option<(Digest, f64)> {
    let mut hasher = update::contribution_hasher(trained.len());
    let mut squares = 0f64;
    // Measured and hashed while it is in the cache.
    for (values, theta) in trained.chunks_mut(CHUNK_ELEMENTS).zip(theta.chunks(CHUNK_ELEMENTS)) {
        for (value, theta) in values.iter_mut().zip(theta) {
            *value = theta - *value;
            squares += f64::from(*value) * f64::from(*value);
        }
        hasher.put(values);
    }
    // Squares of f32 do not overflow a sum of f64: it is finite exactly when every element is.
    squares.is_finite().then(|| (hasher.finish(), squares.sqrt()))
}
