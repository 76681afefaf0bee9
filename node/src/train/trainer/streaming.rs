//! The trainer's own parameters, in runs that keep them from round to round (Streaming DiLoCo, arXiv 2501.18512,
//! algorithm 2): what a COMMIT mixes in, what is done ahead of a record, and what is dropped again.
//!
//! `own` is the host's copy from when the last contribution was made: whatever is done on the device beyond it may still
//! be dropped, by loading that copy again.

use super::{Ahead, Happened, Made, Round, Steps, Worker};
use starling_kernels::Trainer;
use starling_protocol::Digest;
use starling_protocol::permutation::SampleOrder;
use starling_protocol::record::Span;
use starling_protocol::update::{Fragments, mix};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// What the trainer has to know of what was committed since its last job; comes with the next one.
#[derive(Clone, Debug, Default)]
pub struct News {
    /// What it has of its own does not count any more.
    pub start_over: bool,
    /// Fragments that were stepped.
    pub stepped: BTreeSet<usize>,
    /// The record that made the state which the newest COMMIT has stepped, if it is one that this process saw.
    pub before: Option<Digest>,
}

/// What a worker keeps between jobs.
#[derive(Default)]
pub(super) struct Own {
    /// Its parameters when its last contribution was made, what was committed since mixed in; none before the first.
    theta: Option<Vec<f32>>,
    /// Fragments that were stepped and are not mixed in yet.
    stepped: BTreeSet<usize>,
    before: Option<Digest>,
    /// What is on the device beyond `theta`.
    ahead: Option<Done>,
    /// Room for what is on the device.
    scratch: Vec<f32>,
}

/// Steps of a round that is not there yet.
struct Done {
    round: u64,
    base: Digest,
    lease: Span,
    steps: Steps,
}

impl Own {
    /// What is on the device and may still count, before something else is loaded.
    pub fn set_aside(&mut self, trainer: &mut dyn Trainer) -> Result<Option<Vec<f32>>, String> {
        if self.ahead.is_none() {
            return Ok(None);
        }
        let mut kept = vec![0.0; self.theta.as_ref().map_or(0, Vec::len)];
        trainer.read(&mut kept).map_err(|e| e.to_string())?;
        Ok(Some(kept))
    }
}

impl Worker {
    /// Hears of what was committed; comes before anything else of a job.
    pub(super) fn hear(&mut self, news: News) {
        if news.start_over {
            self.own = Own { scratch: std::mem::take(&mut self.own.scratch), ..Own::default() };
        }
        self.own.stepped.extend(news.stepped);
        self.own.before = news.before;
    }

    fn fragments(&self) -> Fragments {
        Fragments::of(&self.setting.sync, self.state.read().elements())
    }

    /// Puts the trainer's own parameters on the device, with what was committed since; with them what was done ahead, if
    /// `wanted` is what it was done for. How much of the round that is; none if the head is another one by now.
    pub(super) fn load_own(&mut self, base: Digest, wanted: Option<(u64, Span)>) -> Result<Option<Steps>, String> {
        let (fragments, mixing) = (self.fragments(), self.setting.sync.mixing as f32);
        let own = &mut self.own;
        let state = self.state.read();
        if state.base != base {
            return Ok(None);
        }
        let canonical = &state.state.theta;
        let ahead = own.ahead.take();
        let counts = |done: &Done| wanted == Some((done.round, done.lease)) && own.before == Some(done.base);
        let steps = ahead.as_ref().map_or(0, |done| done.steps.steps);
        let ahead = ahead.filter(counts);
        let outcome = if ahead.is_some() { "kept" } else { "dropped" };
        metrics::counter!("starling_steps_ahead_total", "outcome" => outcome).increment(u64::from(steps));
        let mut stepped = std::mem::take(&mut own.stepped);
        let theta = own.theta.get_or_insert_with(|| {
            stepped.clear();
            canonical.clone()
        });
        let take_in = |values: &mut [f32]| {
            for range in stepped.iter().map(|fragment| fragments.range(*fragment)) {
                mix(mixing, &mut values[range.clone()], &canonical[range]);
            }
        };
        let steps = match ahead {
            None => {
                take_in(theta);
                self.trainer.load(theta).map_err(|e| e.to_string())?;
                Steps::default()
            }
            Some(done) => {
                // Without its mixture the copy of before would be of another state.
                take_in(theta);
                own.scratch.resize(canonical.len(), 0.0);
                self.trainer.read(&mut own.scratch).map_err(|e| e.to_string())?;
                take_in(&mut own.scratch);
                self.trainer.load(&own.scratch).map_err(|e| e.to_string())?;
                done.steps
            }
        };
        Ok(Some(steps))
    }

    /// The fragment of a round: the head's parameters minus the trained ones, which are the own ones from now on. None if
    /// the head is another one by now.
    pub(super) fn take_fragment(&mut self, job: &Round) -> Result<Option<Made>, String> {
        let mut theta = self.own.theta.take().unwrap_or_default();
        let shared = self.state.clone();
        let state = shared.read();
        if state.base != job.base {
            self.own.theta = Some(theta);
            return Ok(None);
        }
        theta.resize(state.elements(), 0.0);
        self.trainer.read(&mut theta).map_err(|e| e.to_string())?;
        let made = self.fragment_of(job.round, &state.state.theta, &theta);
        self.own.theta = Some(theta);
        made.map(Some)
    }

    /// The fragment of a round, from the own parameters as they are, without any step; none without own ones.
    pub(super) fn retake(&mut self, round: u64, base: Digest) -> Result<Option<Made>, String> {
        if self.own.theta.is_none() || self.load_own(base, None)?.is_none() {
            return Ok(None);
        }
        let Some(theta) = self.own.theta.take() else { return Ok(None) };
        let shared = self.state.clone();
        let state = shared.read();
        let made = if state.base == base { Some(self.fragment_of(round, &state.state.theta, &theta)) } else { None };
        self.own.theta = Some(theta);
        made.transpose()
    }

    fn fragment_of(&mut self, round: u64, canonical: &[f32], own: &[f32]) -> Result<Made, String> {
        if !own.iter().all(|x| x.is_finite()) {
            return Err(super::rounds::diverged(round));
        }
        let range = Fragments::of(&self.setting.sync, canonical.len()).of_round(round);
        let mut delta = self.spare();
        delta.clear();
        delta.extend_from_slice(&own[range.clone()]);
        let made = super::rounds::subtract_from(&canonical[range], &mut delta);
        let (payload, norm) = made.ok_or_else(|| super::rounds::diverged(round))?;
        Ok(self.made(round, delta, payload, norm))
    }

    /// Inner steps of a round whose record is being made. Whatever ends them, what is done is kept until the next job
    /// tells whether it counts.
    pub(super) fn go_ahead(&mut self, job: &Ahead) -> Result<Happened, String> {
        let same = |done: &Done| (done.round, done.base, done.lease) == (job.round, job.base, job.lease);
        if self.own.ahead.as_ref().is_some_and(same) || self.load_own(job.base, None)?.is_none() {
            return Ok(Happened::WentAhead { ended: Instant::now() });
        }
        let (inner, sequences) = (self.setting.inner.clone(), self.setting.inner.samples(1));
        let mut order = SampleOrder::new(self.setting.seed, self.data.train_sequences(self.setting.seq_len));
        let (mut steps, mut batch, began) = (Steps::default(), Vec::new(), Instant::now());
        let most = u64::from(job.steps.min(job.inner_steps)).min(job.lease.count / sequences.max(1)) as u32;
        while steps.steps < most && self.generation.load(Ordering::Acquire) == job.generation {
            // A shard that is not here, or a loss that is not finite: the round sees to it when it is there.
            let start = job.lease.start + steps.samples;
            if self.read_step(&mut order, start, &mut batch)?.is_err() {
                break;
            }
            let lr = self.rate(&inner, job.round, steps.steps, job.tokens);
            let Ok(report) = self.trainer.step(&batch, lr) else { break };
            steps.take(&report, sequences);
        }
        steps.seconds = began.elapsed().as_secs_f64();
        if steps.steps > 0 {
            self.own.ahead = Some(Done { round: job.round, base: job.base, lease: job.lease, steps });
        }
        Ok(Happened::WentAhead { ended: Instant::now() })
    }
}

#[cfg(test)]
#[path = "streaming_test.rs"]
mod tests;
