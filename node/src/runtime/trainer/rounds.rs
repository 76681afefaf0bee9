//! Rounds of inner steps and their results: the default course, from which the others differ.

use super::division::Division;
use super::job::{Ahead, FragmentEvent, Made, Round, Trained, TrainerEvent};
use super::task::{Ready, StepAt, TaskError, Trouble};
use super::worker::{STEPS_LEFT_OUT_MAX, Steps, Worked, Worker};
use crate::contribution::subtract_from;
use starling_protocol::outer::schedule;
use starling_protocol::run::InnerSpec;
use starling_protocol::{Digest, record};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The course of a run's training; a node chooses it when it sets the run up.
pub trait Course: Send {
    /// Whether the inner optimizer's moments are this node's own, and kept on its disk.
    fn has_moments(&self) -> bool {
        true
    }

    /// Hears of commits, before anything else of a job.
    fn hear(&mut self, _news: FragmentEvent) {}

    /// Hears that what was on the device is lost.
    fn lose(&mut self) {}

    /// Puts the parameters on the device from which the round goes on, and validates the head's if that is due. Returns
    /// the steps of the round that these parameters contain already; none if the head has changed.
    fn load(&mut self, worker: &mut Worker, job: &Round) -> Result<Option<Steps>, Trouble> {
        Ok(worker.load_head(job)?.then(Steps::default))
    }

    /// Makes the round's steps that are not done yet.
    fn work(&mut self, worker: &mut Worker, job: &Round, begun: (Instant, Steps)) -> Worked {
        worker.steps(job, begun, |_, _, _| Ok(true))
    }

    /// The contribution of the steps; none if the head has changed.
    fn take(&mut self, worker: &mut Worker, job: &Round) -> Result<Option<Made>, Trouble> {
        worker.pseudo_gradient(job)
    }

    /// Makes inner steps of the round after the one whose record is being made.
    fn go_ahead(&mut self, _worker: &mut Worker, _job: &Ahead) -> Result<TrainerEvent, Trouble> {
        Ok(TrainerEvent::WentAhead { ended: Instant::now() })
    }

    /// The contribution to the fragment of a round without further steps; none if there are no parameters to take it
    /// from.
    fn retake(&mut self, _worker: &mut Worker, _round: u64, _base: Digest) -> Result<Option<Made>, Trouble> {
        Ok(None)
    }
}

/// The course without additions.
pub struct Rounds;

impl Course for Rounds {}

impl Worker {
    /// Trains one round by its course.
    pub fn round(&mut self, course: &mut dyn Course, job: &Round) -> Result<TrainerEvent, Trouble> {
        match self.ready(job.generation, job.base) {
            Ready::AsBefore => {}
            Ready::Anew => course.lose(),
            Ready::Unwanted => return Ok(TrainerEvent::Stopped),
        }
        self.take_terms(job);
        self.stand(job.round, job.base, job.done.tokens, job.expected.len());
        let Some(done) = course.load(self, job)? else { return Ok(TrainerEvent::Stopped) };
        let (started, ahead) = (Instant::now(), done.seconds);
        self.waited = Duration::ZERO;
        let done = match course.work(self, job, (started, done))? {
            Ok(done) => done,
            Err(said) => return Ok(said),
        };
        let ended = Instant::now();
        let seconds = ahead + ended.duration_since(started).as_secs_f64();
        // Leases follow this time, so it leaves out the wait for partners: that is not the machine's slowness.
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
            step_us: (trained * 1e6 / done.units(self.setting.inner.samples(1))) as u32,
            seconds,
            ended,
        }))
    }

    /// Takes over the terms of the round, which an amendment may have changed.
    fn take_terms(&mut self, job: &Round) {
        if self.setting.inner != job.inner {
            self.task.amend(job.inner.weight_decay, job.inner.clip);
            self.setting.inner = job.inner.clone();
        }
        self.setting.budget = job.budget.clone();
    }

    /// Makes the inner steps, until the lease is used up or the round is cut short. After each step it calls `between`
    /// with the steps made and those there will be; the result says whether the round goes on.
    pub fn steps(
        &mut self,
        job: &Round,
        (started, mut done): (Instant, Steps),
        mut between: impl FnMut(&mut Self, u32, u32) -> Result<bool, Trouble>,
    ) -> Worked {
        let inner = self.setting.inner.clone();
        let mut order = self.order();
        let (mut left_out, mut samples, first) = (0, Vec::new(), done.steps);
        let division = Division::of(job.lease, job.inner_steps, inner.samples(1));
        let steps = division.steps;
        (self.reached, self.signs) = (0, 0);
        self.announce(&mut order, job.round, &division, first..steps)?;
        for step in first..steps {
            if self.generation.load(Ordering::Acquire) != job.generation {
                return Ok(Err(TrainerEvent::Stopped));
            }
            if done.steps > 0 && self.cut.load(Ordering::Acquire) == job.generation {
                break;
            }
            let positions = division.positions(step..step + 1);
            order.samples(positions, &mut samples);
            self.reached = step + 1;
            let lr = self.rate(&inner, job.round, step, &job.done);
            let learned = match self.task.step(&samples, StepAt { step, lr }) {
                Ok(learned) => learned,
                Err(TaskError::Missing(shard)) => {
                    return Ok(Err(TrainerEvent::MissingShard { round: job.round, shard }));
                }
                // One bad batch must not end a run; many mean that it has diverged.
                Err(e @ TaskError::NotFinite { .. }) if left_out < STEPS_LEFT_OUT_MAX => {
                    tracing::warn!("round {}: {e}", job.round);
                    left_out += 1;
                    done.samples += positions.count;
                    continue;
                }
                Err(e) => {
                    self.not_finite = matches!(e, TaskError::NotFinite { .. });
                    return Err(e.into());
                }
            };
            done.take(&learned, positions.count);
            let tokens_per_second = done.tokens as f64 / (done.seconds + started.elapsed().as_secs_f64()).max(1e-9);
            let (round, step) = (job.round, step + 1);
            let reached = step + self.signs;
            let said = TrainerEvent::Step { round, step, steps, reached, loss: learned.loss, tokens_per_second };
            // Progress is for watching and for liveness; a full queue drops an event, never a step.
            let _ = self.events.try_send(said);
            if !between(self, step, steps)? {
                return Ok(Err(TrainerEvent::Stopped));
            }
        }
        if done.steps == 0 && left_out > 0 {
            return Err(self.diverged_in_all_steps(job.round));
        }
        if done.steps == 0 {
            let why = format!("no step of round {} could be done with {} samples", job.round, job.lease.count);
            return Err(why.into());
        }
        Ok(Ok(done))
    }

    /// The learning rate of a step of a round, after this work of its lineage.
    pub fn rate(&self, inner: &InnerSpec, round: u64, step: u32, done: &record::Done) -> f64 {
        schedule::rate(inner, &self.setting.budget, round, step, done)
    }

    /// The head's parameters minus the trained ones; none if the head has changed.
    pub fn pseudo_gradient(&mut self, job: &Round) -> Result<Option<Made>, Trouble> {
        let mut delta = self.spare();
        self.task.given()?;
        let state = self.state.read();
        if state.base != job.base {
            return Ok(None);
        }
        delta.resize(state.elements(), 0.0);
        self.task.read(&mut delta)?;
        let made = subtract_from(&state.state.theta, &mut delta);
        drop(state);
        let (payload, norm) = made.ok_or_else(|| self.diverged(job.round))?;
        Ok(Some(self.made(job.round, delta, payload, norm)))
    }

    /// Notes that parameters are not finite, and says so.
    pub fn diverged(&mut self, round: u64) -> Trouble {
        self.not_finite = true;
        format!("parameters became infinite or not a number in round {round}: lower inner.lr").into()
    }

    /// Notes that no step of a round was finite, and says so. A round of few steps has no more of them to leave out.
    fn diverged_in_all_steps(&mut self, round: u64) -> Trouble {
        self.not_finite = true;
        format!("the loss or the gradient was infinite or not a number in every step of round {round}: lower inner.lr")
            .into()
    }
}
