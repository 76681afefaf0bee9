//! The inner steps of a round, and the pseudo-gradient that they come to.

use super::pairs;
use super::{Happened, Made, Round, STEPS_LEFT_OUT_MAX, Steps, Worker};
use starling_kernels::TrainError;
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::outer::schedule;
use starling_protocol::permutation::SampleOrder;
use starling_protocol::run::InnerSpec;
use starling_protocol::{Digest, update};
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Worker {
    /// The inner steps, until the lease is used up or the round is cut short; the inner error is what ended them without
    /// a result.
    pub(super) fn steps(
        &mut self,
        job: &Round,
        (started, mut done): (Instant, Steps),
    ) -> Result<Result<Steps, Happened>, String> {
        let inner = self.setting.inner.clone();
        let sequences = inner.samples(1);
        let mut order = SampleOrder::new(self.setting.seed, self.data.train_sequences(self.setting.seq_len));
        let (mut left_out, mut batch, first) = (0, Vec::new(), done.steps);
        // Never a sequence of somebody else's lease.
        let steps = u64::from(job.inner_steps).min(job.lease.count / sequences.max(1)) as u32;
        self.reached = 0;
        let elements = self.state.read().elements();
        if let Some(pairs) = &mut self.pairs {
            pairs.begin(job, elements);
        }
        for step in first..steps {
            if self.generation.load(Ordering::Acquire) != job.generation {
                return Ok(Err(Happened::Stopped));
            }
            if done.steps > 0 && self.cut.load(Ordering::Acquire) == job.generation {
                break;
            }
            if let Err(shard) = self.read_step(&mut order, job.lease.start + u64::from(step) * sequences, &mut batch)? {
                return Ok(Err(Happened::MissingShard { round: job.round, shard }));
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
            let reached = step + self.pairs.as_ref().map_or(0, |pairs| pairs.signs);
            let said = Happened::Step { round, step, steps, reached, loss: report.loss, tokens_per_second };
            // Progress is for watching and for liveness; a full queue drops one, never a step.
            let _ = self.events.try_send(said);
            if !self.exchanges(job, step, steps, started)? {
                return Ok(Err(Happened::Stopped));
            }
        }
        self.pairs.iter().for_each(pairs::Pairs::end);
        if done.steps == 0 {
            return Err(format!("no step of round {} could be done with {} sequences", job.round, job.lease.count));
        }
        Ok(Ok(done))
    }

    /// The learning rate of a step of a round, after so many committed tokens.
    pub(super) fn rate(&self, inner: &InnerSpec, round: u64, step: u32, tokens: u64) -> f64 {
        schedule::rate(inner, &self.setting.budget, round, step, tokens)
    }

    /// The head's parameters minus the trained ones; none if the head is another one by now.
    pub(super) fn pseudo_gradient(&mut self, job: &Round) -> Result<Option<Made>, String> {
        if self.setting.sync.streams() {
            return self.take_fragment(job);
        }
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

pub(super) fn diverged(round: u64) -> String {
    format!("parameters became infinite or not a number in round {round}: lower inner.lr")
}

/// `trained <- theta - trained`, its digest and its L2 norm; none unless all of it is finite.
pub(super) fn subtract_from(theta: &[f32], trained: &mut [f32]) -> Option<(Digest, f64)> {
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
