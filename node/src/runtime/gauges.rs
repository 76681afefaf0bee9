//! Timings and losses that the driver keeps for watchers.

use super::arrival::Arrival;
use super::losses::Losses;
use super::trainer::Trained;
use crate::watch::event::{Event, RoundTiming};
use std::time::{Duration, Instant};

/// Time between two step events; steps in between are only counted.
const STEP_EVENT_EVERY: Duration = Duration::from_secs(2);

/// Values that only watchers read.
pub struct Gauges {
    last_commit: Instant,
    last_step_event: Option<Instant>,
    trained_at: Option<Instant>,
    /// The start of the trainer's present idle time, and the idle time before in this round.
    idle_since: Option<Instant>,
    idle: Duration,
    /// The time of the last contribution to the round's first attempt, as far as this node knows it.
    gathered_at: Option<Instant>,
    reduce_started: Option<Instant>,
    reduce_seconds: f64,
    /// The last round's time from its last contribution to its commit, if this node knows.
    overhead_seconds: f64,
    tokens_per_second: f64,
    /// The flock's loss in its last round, in nats per token if it learns from text.
    pub loss: Option<f64>,
    /// The loss on held-out text, in nats per token, or in another task's validation.
    pub validation: Option<f64>,
    /// The same in nats per byte.
    pub validation_per_byte: Option<f64>,
    pub losses: Losses,
    /// The reason for which the node leaves before its time, if its training diverges.
    pub halted: Option<String>,
    /// The wait of this node and its start; it is shown when it lasts.
    pub waiting: Option<(Event, Instant)>,
    /// The catch-up under way.
    pub arrival: Option<Arrival>,
    /// Why members would not admit this node, if so.
    pub barred: Option<String>,
}

impl Gauges {
    pub fn new() -> Self {
        Self {
            last_commit: Instant::now(),
            last_step_event: None,
            trained_at: None,
            idle_since: None,
            idle: Duration::ZERO,
            gathered_at: None,
            reduce_started: None,
            reduce_seconds: 0.0,
            overhead_seconds: 0.0,
            tokens_per_second: 0.0,
            loss: None,
            validation: None,
            validation_per_byte: None,
            losses: Losses::default(),
            halted: None,
            waiting: None,
            arrival: None,
            barred: None,
        }
    }

    pub fn training_started(&mut self) {
        self.last_step_event = None;
        self.device_works();
    }

    /// Notes that the trainer has work again.
    pub fn device_works(&mut self) {
        self.idle += self.idle_since.take().map_or(Duration::ZERO, |since| since.elapsed());
    }

    /// Notes that the trainer has had nothing to do since then.
    pub fn device_rests(&mut self, since: Instant) {
        self.idle_since.get_or_insert(since);
    }

    /// Notes a step; returns whether it is to be shown.
    pub fn step(&mut self, step: u32, steps: u32, loss: f64, tokens_per_second: f64) -> bool {
        self.tokens_per_second = tokens_per_second;
        metrics::gauge!("starling_step_loss").set(loss);
        metrics::gauge!("starling_tokens_per_second").set(tokens_per_second);
        let due = self.last_step_event.is_none_or(|at| at.elapsed() >= STEP_EVENT_EVERY) || step == steps;
        if due {
            self.last_step_event = Some(Instant::now());
        }
        due
    }

    pub fn trained(&mut self, trained: &Trained) {
        self.trained_at = Some(trained.ended);
        self.device_rests(trained.ended);
        self.tokens_per_second = trained.tokens as f64 / trained.seconds.max(1e-9);
    }

    /// Notes that an attempt begins: the last READY has just arrived.
    pub fn attempt_started(&mut self) {
        // The cost of failed attempts is overhead, too, so the first attempt counts.
        self.gathered_at.get_or_insert_with(Instant::now);
    }

    /// Whether no attempt at this round has begun.
    pub fn gathering(&self) -> bool {
        self.gathered_at.is_none()
    }

    /// Notes that the round ended without this node, or not with a commit: it does not know what the round cost.
    pub fn left_the_round(&mut self) {
        (self.gathered_at, self.overhead_seconds) = (None, 0.0);
    }

    /// Notes that this node's own contribution was the last.
    pub fn was_last(&mut self) {
        self.gathered_at = self.gathered_at.and(self.trained_at);
    }

    pub fn validated(&mut self, loss: f64, nats_per_byte: Option<f64>) {
        (self.validation, self.validation_per_byte) = (Some(loss), nats_per_byte);
        if let Some(nats) = nats_per_byte {
            metrics::gauge!("starling_validation_nats_per_byte").set(nats);
        }
    }

    /// The last losses: in training, and in validation.
    pub fn last_losses(&self) -> [Option<f64>; 2] {
        [self.loss, self.validation]
    }

    pub fn reduce_started(&mut self) {
        self.reduce_started = Some(Instant::now());
    }

    pub fn reduced(&mut self) {
        let Some(at) = self.reduce_started.take() else { return };
        self.reduce_seconds = at.elapsed().as_secs_f64();
    }

    /// The microseconds that the last reduction took; 0 before the first.
    pub fn last_reduction_us(&self) -> u32 {
        micros(self.reduce_seconds)
    }

    /// The microseconds of the last round in which nobody could train; 0 if this node does not know.
    pub fn last_overhead_us(&self) -> u32 {
        micros(self.overhead_seconds)
    }

    pub fn committed(&mut self, now: Instant) -> RoundTiming {
        let seconds = now.duration_since(self.last_commit).as_secs_f64();
        self.last_commit = now;
        let since = |at: Option<Instant>| at.map(|at| now.duration_since(at).as_secs_f64()).unwrap_or_default();
        // Idle time from here to the start of the next round belongs to the next round.
        let idle = since(self.idle_since) + std::mem::take(&mut self.idle).as_secs_f64();
        self.idle_since = self.idle_since.map(|_| now);
        self.overhead_seconds = since(self.gathered_at.take());
        RoundTiming {
            seconds,
            reduce_seconds: self.reduce_seconds,
            settle_seconds: since(self.trained_at.take()),
            overhead_seconds: self.overhead_seconds,
            idle_seconds: idle,
            tokens_per_second: self.tokens_per_second,
        }
    }
}

fn micros(seconds: f64) -> u32 {
    (seconds * 1e6).min(f64::from(u32::MAX)) as u32
}
