//! The one step of a round in runs that average each step: a gradient at the head's parameters.

use super::division::Division;
use super::job::{Made, Round, TrainerEvent};
use super::rounds::Course;
use super::task::{Learned, TaskError, Trouble};
use super::worker::{STEPS_LEFT_OUT_MAX, Steps, Worked, Worker};
use crate::contribution::measure;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Rounds of one step.
#[derive(Default)]
pub struct Gradients {
    made: Option<Made>,
    /// Gradients in a row that were not finite.
    spoilt: u32,
}

impl Course for Gradients {
    /// The moments are part of the state that all nodes share.
    fn has_moments(&self) -> bool {
        false
    }

    /// Computes this node's contribution: the mean gradient of the lease's sequences.
    fn work(&mut self, worker: &mut Worker, job: &Round, (started, _): (Instant, Steps)) -> Worked {
        let unit = worker.setting.inner.samples(1);
        let (mut order, mut samples) = (worker.order(), Vec::new());
        if worker.generation.load(Ordering::Acquire) != job.generation {
            return Ok(Err(TrainerEvent::Stopped));
        }
        if job.lease.count < unit {
            return Err(format!("step {} has {} of {unit} samples", job.round, job.lease.count).into());
        }
        let positions = Division::of(job.lease, 1, unit).positions(0..1);
        order.samples(positions, &mut samples);
        let mut gradient = worker.spare();
        let elements = worker.state.read().elements();
        gradient.resize(elements, 0.0);
        let learned = worker.task.gradient(&samples, &mut gradient);
        if let Err(TaskError::Missing(shard)) = learned {
            worker.keep(gradient);
            return Ok(Err(TrainerEvent::MissingShard { round: job.round, shard }));
        }
        let spoilt = matches!(learned, Err(TaskError::NotFinite { .. }));
        let learned = self.accept(job.round, learned, &mut gradient).inspect_err(|_| worker.not_finite = spoilt)?;
        let (payload, norm) = measure(&gradient);
        let tokens_per_second = learned.weight as f64 / started.elapsed().as_secs_f64().max(1e-9);
        let said = TrainerEvent::Step {
            round: job.round,
            step: 1,
            steps: 1,
            reached: 1,
            loss: learned.loss,
            tokens_per_second,
        };
        let _ = worker.events.try_send(said);
        let done =
            Steps { steps: 1, samples: positions.count, tokens: learned.weight, loss_sum: learned.loss, seconds: 0.0 };
        self.made = Some(worker.made(job.round, gradient, payload, norm));
        Ok(Ok(done))
    }

    fn take(&mut self, _worker: &mut Worker, _job: &Round) -> Result<Option<Made>, Trouble> {
        Ok(self.made.take())
    }
}

impl Gradients {
    /// Takes a gradient. One bad batch must not end a run: it counts as zeros with the weight of one token. Many in a
    /// row mean that the run has diverged.
    fn accept(
        &mut self,
        round: u64,
        learned: Result<Learned, TaskError>,
        gradient: &mut [f32],
    ) -> Result<Learned, Trouble> {
        match learned {
            Ok(learned) => {
                self.spoilt = 0;
                Ok(learned)
            }
            Err(e @ TaskError::NotFinite { loss, .. }) if self.spoilt < STEPS_LEFT_OUT_MAX => {
                tracing::warn!("step {round}: {e}");
                self.spoilt += 1;
                gradient.fill(0.0);
                Ok(Learned { loss: if loss.is_finite() { loss } else { 0.0 }, weight: 1 })
            }
            Err(e) => Err(e.into()),
        }
    }
}
