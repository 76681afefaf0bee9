//! The inner optimizer's learning rate.

use super::trainer::{Round, Setting};

/// Warm-up by inner step, cosine decay by the share of the budget that is spent.
pub struct Schedule<'a> {
    pub setting: &'a Setting,
    pub round: &'a Round,
}

impl Schedule<'_> {
    /// The learning rate of a step, which counts from 0 in each round.
    pub fn lr(&self, step: u32) -> f64 {
        let (inner, job) = (&self.setting.inner, self.round);
        let steps_done = (job.round - 1) as f64 * f64::from(inner.steps) + f64::from(step);
        let warmup = ((steps_done + 1.0) / f64::from(inner.warmup_steps.max(1))).min(1.0);
        let by = |done: f64, all: u64| if all == 0 { 0.0 } else { (done / all as f64).clamp(0.0, 1.0) };
        let share = by(steps_done / f64::from(inner.steps), self.setting.budget_rounds)
            .max(by(job.tokens as f64, self.setting.budget_tokens));
        let cosine = 0.5 * (1.0 + (std::f64::consts::PI * share).cos());
        inner.lr * warmup * (inner.lr_final + (1.0 - inner.lr_final) * cosine)
    }
}
