//! The trainer's own parameters, in runs that keep them from round to round (Streaming DiLoCo, arXiv 2501.18512,
//! algorithm 2): how COMMITs are mixed in, and how steps ahead of a record are kept or dropped.
//!
//! `theta` is the host's copy from the last contribution: later steps on the device may still be dropped, by loading
//! that copy again.

use super::division::Division;
use super::job::{Ahead, FragmentEvent, Made, Round, TrainerEvent};
use super::rounds::Course;
use super::task::{Ready, StepAt, Task, TaskError, Trouble};
use super::worker::{Steps, Worker};
use crate::contribution::subtract_from;
use starling_protocol::Digest;
use starling_protocol::record::Span;
use starling_protocol::update::{Fragments, mix};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The trainer's own parameters between jobs.
#[derive(Default)]
pub struct Own {
    /// Its parameters at its last contribution, with later COMMITs mixed in; none before the first.
    theta: Option<Vec<f32>>,
    /// Fragments that were stepped and are not mixed in yet.
    stepped: BTreeSet<usize>,
    before: Option<Digest>,
    /// The steps on the device beyond `theta`.
    ahead: Option<Done>,
    /// Buffer for the parameters on the device.
    scratch: Vec<f32>,
}

/// Steps of a round whose record does not exist yet.
struct Done {
    round: u64,
    base: Digest,
    lease: Span,
    steps: Steps,
}

impl Own {
    /// Reads the parameters with steps ahead from the device, before others are loaded.
    fn set_aside(&mut self, task: &mut dyn Task) -> Result<Option<Vec<f32>>, Trouble> {
        if self.ahead.is_none() {
            return Ok(None);
        }
        let mut kept = vec![0.0; self.theta.as_ref().map_or(0, Vec::len)];
        task.given()?;
        task.read(&mut kept)?;
        Ok(Some(kept))
    }

    /// Whether the steps ahead are of this round and lease, and begin where the newest COMMIT does.
    fn counts(&self, wanted: Option<(u64, Span)>) -> bool {
        let is_it = |done: &Done| wanted == Some((done.round, done.lease)) && self.before == Some(done.base);
        self.ahead.as_ref().is_some_and(is_it)
    }

    /// Puts the trainer's own parameters on the device, with later COMMITs mixed in; with the steps ahead, if they are
    /// of the round and lease in `wanted`. Returns the steps of the round that are done; none if the head has changed.
    fn load_own(
        &mut self,
        worker: &mut Worker,
        base: Digest,
        wanted: Option<(u64, Span)>,
    ) -> Result<Option<Steps>, Trouble> {
        let (fragments, mixing) = (fragments(worker), worker.setting.sync.mixing as f32);
        let counts = self.counts(wanted);
        if counts {
            worker.task.given()?;
        }
        let state = worker.state.read();
        if state.base != base {
            return Ok(None);
        }
        let canonical = &state.state.theta;
        let ahead = self.end_ahead(counts);
        let mut stepped = std::mem::take(&mut self.stepped);
        let theta = self.theta.get_or_insert_with(|| {
            stepped.clear();
            canonical.clone()
        });
        let take_in = |values: &mut [f32]| mix_in(values, canonical, (&fragments, &stepped), mixing);
        let steps = match ahead {
            None => {
                take_in(theta);
                worker.task.load(theta)?;
                Steps::default()
            }
            Some(done) => {
                // The copy takes in the COMMIT, too: it would be of another state otherwise.
                take_in(theta);
                self.scratch.resize(canonical.len(), 0.0);
                worker.task.read(&mut self.scratch)?;
                take_in(&mut self.scratch);
                worker.task.load(&self.scratch)?;
                done.steps
            }
        };
        drop(state);
        worker.task.taken()?;
        Ok(Some(steps))
    }

    /// Ends the steps ahead, which are returned if they count, and dropped otherwise.
    fn end_ahead(&mut self, counts: bool) -> Option<Done> {
        let ahead = self.ahead.take();
        let steps = ahead.as_ref().map_or(0, |done| done.steps.steps);
        let ahead = ahead.filter(|_| counts);
        let outcome = if ahead.is_some() { "kept" } else { "dropped" };
        metrics::counter!("starling_steps_ahead_total", "outcome" => outcome).increment(u64::from(steps));
        ahead
    }
}

/// Mixes what COMMITs have made of the stepped fragments into parameters.
fn mix_in(values: &mut [f32], canonical: &[f32], (fragments, stepped): (&Fragments, &BTreeSet<usize>), mixing: f32) {
    for range in stepped.iter().map(|fragment| fragments.range(*fragment)) {
        mix(mixing, &mut values[range.clone()], &canonical[range]);
    }
}

impl Course for Own {
    fn hear(&mut self, news: FragmentEvent) {
        if news.start_over {
            *self = Self { scratch: std::mem::take(&mut self.scratch), ..Self::default() };
        }
        self.stepped.extend(news.stepped);
        self.before = news.before;
    }

    fn lose(&mut self) {
        self.ahead = None;
    }

    fn load(&mut self, worker: &mut Worker, job: &Round) -> Result<Option<Steps>, Trouble> {
        if job.validate.is_some() {
            let kept = self.set_aside(&mut *worker.task)?;
            if !worker.load_head(job)? {
                return Ok(None);
            }
            if let Some(kept) = kept {
                worker.task.load(&kept)?;
                worker.task.taken()?;
            }
        }
        self.load_own(worker, job.base, Some((job.round, job.lease)))
    }

    /// The contribution to the fragment of a round: the head's parameters minus the trained ones, which become the own
    /// ones. None if the head has changed.
    fn take(&mut self, worker: &mut Worker, job: &Round) -> Result<Option<Made>, Trouble> {
        worker.task.given()?;
        let mut theta = self.theta.take().unwrap_or_default();
        let shared = worker.state.clone();
        let state = shared.read();
        if state.base != job.base {
            self.theta = Some(theta);
            return Ok(None);
        }
        theta.resize(state.elements(), 0.0);
        worker.task.read(&mut theta)?;
        let made = fragment_of(worker, job.round, &state.state.theta, &theta);
        self.theta = Some(theta);
        made.map(Some)
    }

    /// The contribution to the fragment of a round from the own parameters, without further steps; none without own
    /// ones. The task is not asked, and need not be there: the next job loads what it goes on from.
    fn retake(&mut self, worker: &mut Worker, round: u64, base: Digest) -> Result<Option<Made>, Trouble> {
        let (fragments, shared) = (fragments(worker), worker.state.clone());
        let state = shared.read();
        if state.base != base {
            return Ok(None);
        }
        let Some(mut theta) = self.theta.take() else { return Ok(None) };
        let (canonical, mixing) = (&state.state.theta, worker.setting.sync.mixing as f32);
        self.end_ahead(false);
        let stepped = std::mem::take(&mut self.stepped);
        mix_in(&mut theta, canonical, (&fragments, &stepped), mixing);
        let made = fragment_of(worker, round, canonical, &theta);
        self.theta = Some(theta);
        made.map(Some)
    }

    /// Makes inner steps of the round after the one whose record is being made. However they end, they are kept until
    /// the next job tells whether they count.
    fn go_ahead(&mut self, worker: &mut Worker, job: &Ahead) -> Result<TrainerEvent, Trouble> {
        match worker.ready(job.generation, job.base) {
            Ready::AsBefore => {}
            Ready::Anew => self.lose(),
            Ready::Unwanted => return Ok(TrainerEvent::WentAhead { ended: Instant::now() }),
        }
        worker.stand(job.round, job.base, job.done.tokens, worker.flying());
        let same = |done: &Done| (done.round, done.base, done.lease) == (job.round, job.base, job.lease);
        if self.ahead.as_ref().is_some_and(same) || self.load_own(worker, job.base, None)?.is_none() {
            return Ok(TrainerEvent::WentAhead { ended: Instant::now() });
        }
        let inner = worker.setting.inner.clone();
        let mut order = worker.order();
        let (mut steps, mut samples, began) = (Steps::default(), Vec::new(), Instant::now());
        let division = Division::of(job.lease, job.inner_steps, inner.samples(1));
        let most = job.steps.min(division.steps);
        worker.announce(&mut order, job.round, &division, 0..most)?;
        while steps.steps < most && worker.generation.load(Ordering::Acquire) == job.generation {
            // The round itself handles a missing shard or a loss that is not finite, once it begins.
            let positions = division.positions(steps.steps..steps.steps + 1);
            order.samples(positions, &mut samples);
            let (step, lr) = (steps.steps, worker.rate(&inner, job.round, steps.steps, &job.done));
            match worker.task.step(&samples, StepAt { step, lr }) {
                Ok(learned) => steps.take(&learned, positions.count),
                Err(TaskError::Gone(why)) => return Err(Trouble::Gone(why)),
                Err(_) => break,
            }
        }
        steps.seconds = began.elapsed().as_secs_f64();
        if steps.steps > 0 {
            self.ahead = Some(Done { round: job.round, base: job.base, lease: job.lease, steps });
        }
        Ok(TrainerEvent::WentAhead { ended: Instant::now() })
    }
}

fn fragments(worker: &Worker) -> Fragments {
    Fragments::of(&worker.setting.sync, worker.state.read().elements())
}

fn fragment_of(worker: &mut Worker, round: u64, canonical: &[f32], own: &[f32]) -> Result<Made, Trouble> {
    if !own.iter().all(|x| x.is_finite()) {
        return Err(worker.diverged(round));
    }
    let range = Fragments::of(&worker.setting.sync, canonical.len()).of_round(round);
    let mut delta = worker.spare();
    delta.clear();
    delta.extend_from_slice(&own[range.clone()]);
    let made = subtract_from(&canonical[range], &mut delta);
    let (payload, norm) = made.ok_or_else(|| worker.diverged(round))?;
    Ok(worker.made(round, delta, payload, norm))
}

#[cfg(test)]
#[path = "streaming_test.rs"]
mod tests;
