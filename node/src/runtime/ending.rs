//! How a node ends: peers that lack its last record get it, then everything is closed in order.

use super::alarm::Alarm;
use super::driver::{Driver, Queues};
use super::trainer::TrainerEvent;
use crate::exit::{Code, Failure};
use crate::watch::event::Event;
use starling_protocol::engine::io::{Finish, Input};
use std::time::{Duration, Instant};

/// Time for which a node that has spent its budget stays to hand out the last record.
const FAREWELL: Duration = Duration::from_secs(10);
/// A loss of so many times that of guessing is that of a training which has diverged. A model that has hardly been
/// trained is about as good as guessing.
const DIVERGED: f64 = 2.0;
/// Time for which it stays to catch up with members that have gone on by an amendment, and how often it looks at that.
const CATCHING_UP: Duration = Duration::from_secs(600);
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Time that the final validation may take.
const PATIENCE: Duration = Duration::from_secs(120);

impl Driver {
    /// Ends the node: a checkpoint is written, peers get the last record, then everything is dropped.
    pub(super) async fn close(mut self, queues: &mut Queues) -> Result<Finish, Failure> {
        let finish = self.finish.take().unwrap_or(Finish::Left);
        self.device.close();
        // What the last validation shows is told, and ends nothing any more.
        self.settings.halt_on_divergence = false;
        if finish == Finish::Left {
            self.leaving_checkpoint(queues).await?;
        }
        self.residuals.save().await;
        let diverged = self.diverged().filter(|_| finish == Finish::BudgetSpent);
        let reason = diverged.clone().unwrap_or_else(|| finish_reason(&finish));
        self.show(Event::Finished { reason });
        self.screen.close();
        self.net.shutdown().await;
        match diverged {
            Some(why) => Err(Failure::message(Code::Diverged, why)),
            None => Ok(finish),
        }
    }

    /// At the end of the run a checkpoint is written, and peers get the last record. Returns whether the node goes on,
    /// because an amendment has added to the budget meanwhile.
    pub(super) async fn end_of_run(&mut self, queues: &mut Queues) -> Result<bool, Failure> {
        if self.finish != Some(Finish::BudgetSpent) {
            return Ok(false);
        }
        self.device.close();
        // What the last validation shows is told, and ends nothing any more.
        let halts = std::mem::replace(&mut self.settings.halt_on_divergence, false);
        self.final_checkpoint(queues).await?;
        let sequences = self.settings.validate_sequences;
        self.device.validate(sequences);
        self.farewell(queues, sequences > 0).await?;
        self.settings.halt_on_divergence = halts;
        Ok(self.finish.is_none())
    }

    /// Why the model is of no use, if its last losses show that the training has diverged.
    fn diverged(&self) -> Option<String> {
        let validation = self.gauges.validation.map(|nats_per_byte| nats_per_byte * self.bytes_per_token());
        diverged_text([self.gauges.loss, validation], self.spec.model.vocab)
    }

    /// Answers peers until each of them has the last record or has gone, or time is up; also waits for the final
    /// validation. A node that was started at the end waits for others that may have more of the budget.
    async fn farewell(&mut self, queues: &mut Queues, mut validating: bool) -> Result<(), Failure> {
        let began = Instant::now();
        let (farewell, patience, catching_up) = (began + FAREWELL, began + PATIENCE, began + CATCHING_UP);
        let mut alarm = Alarm::default();
        let others = self.engine.head().is_some_and(|head| head.next.members.len() > 1);
        let began_over = others && self.gauges.loss.is_none();
        loop {
            let now = Instant::now();
            let others_wait = now < farewell && (began_over || !self.everybody_finished())
                || now < catching_up && self.engine.catches_up();
            if self.finish.is_none() || !others_wait && (!validating || now >= patience) {
                return Ok(());
            }
            let ends = if others_wait && now < farewell { farewell } else { patience.max(now + LOOK_AGAIN) };
            tokio::select! {
                Some(done) = queues.ledger_done.recv() => self.ledger_done(done).await?,
                Some(event) = queues.net_events.recv() => self.net_event(event).await?,
                Some(result) = queues.results.recv() => self.result(result).await?,
                Some(asked) = queues.questions.recv() => {
                    self.answer(asked).await?;
                    self.feed(Input::Tick).await?;
                }
                Some(happened) = queues.trainer_events.recv() => {
                    validating &= !matches!(happened, TrainerEvent::Validated { .. });
                    self.trainer_event(happened).await?;
                }
                () = alarm.rings(self.wake_at().into_iter().chain([ends]).min()) => self.feed(Input::Tick).await?,
            }
        }
    }
}

/// The words for losses in nats per token that are far worse than guessing; none for others.
fn diverged_text(losses: [Option<f64>; 2], vocab: u32) -> Option<String> {
    let guessing = f64::from(vocab).ln();
    let bad = |loss: &f64| loss.is_nan() || *loss > DIVERGED * guessing;
    let loss = losses.into_iter().flatten().find(bad)?;
    Some(format!(
        "the run's budget is spent, and its training diverged: the loss is {loss:.1} nats per token, and guessing has \
         {guessing:.1}; set a lower inner.lr, a longer inner.warmup_steps or a smaller inner.clip, and start a new run"
    ))
}

/// Why the node ended, for a person.
fn finish_reason(finish: &Finish) -> String {
    match finish {
        Finish::BudgetSpent => "the run's budget is spent".into(),
        Finish::Left => "asked to leave".into(),
        Finish::Fenced => {
            "identity in use: another process with this key was started before this one and is alive".into()
        }
        Finish::RunMismatch { keys, .. } => format!("the flock runs something else: {}", keys.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_is_worse_than_guessing_is_no_success() {
        // Guessing among 256 tokens costs 5.5 nats, and a model that has hardly been trained a little more.
        for fine in [[Some(5.7), None], [Some(1.2), Some(1.3)], [None, None]] {
            assert_eq!(diverged_text(fine, 256), None);
        }
        for bad in [[Some(2246.0), None], [Some(1.0), Some(2246.0)]] {
            let said = diverged_text(bad, 256).expect("it diverged");
            for words in ["2246.0", "guessing has 5.5", "inner.lr"] {
                assert!(said.contains(words), "`{words}` is missing in: {said}");
            }
        }
        assert!(diverged_text([Some(f64::NAN), None], 256).is_some());
    }
}
