//! How a node ends: peers that lack its last record get it, then everything is closed in order.

use super::alarm::Alarm;
use super::driver::{Driver, Queues};
use super::signals::asked_to_leave;
use super::trainer::TrainerEvent;
use crate::exit::{Code, Failure};
use crate::watch::event::Event;
use starling_protocol::engine::io::{Finish, Input};
use std::ops::ControlFlow;
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
    /// Ends the node: it writes a checkpoint if it leaves, then everything is dropped; `failed` is what its last work
    /// failed for.
    pub(super) async fn close(mut self, queues: &mut Queues, failed: Option<Failure>) -> Result<Finish, Failure> {
        let finish = self.finish.take().unwrap_or(Finish::Left);
        self.device.close();
        if finish == Finish::Left {
            // The trainer saves its moments beside the checkpoint.
            self.device.end();
        }
        self.residuals.save().await;
        // A node whose last work fails is closed in order as well.
        let worked = match finish {
            Finish::Left => self.leaving_checkpoint(queues).await,
            Finish::BudgetSpent | Finish::Fenced | Finish::RunMismatch { .. } => Ok(()),
        };
        let diverged = diverged_at(&finish, self.gauges.halted.take(), self.diverged());
        let reason = diverged.clone().unwrap_or_else(|| finish_reason(&finish));
        self.show(Event::Finished { reason });
        // The peers' connections end first: a terminal may take its time.
        self.net.shutdown().await;
        self.screen.close();
        failed.map_or(worked, Err)?;
        match diverged {
            Some(why) => Err(Failure::message(Code::Diverged, why)),
            None => Ok(finish),
        }
    }

    /// Does the last work of a run that is over. The node ends then, with the failure of that work if there was one;
    /// or it goes on, if an amendment has added to the budget meanwhile and it has no reason to finish any more.
    pub(super) async fn end_of_run(&mut self, queues: &mut Queues) -> ControlFlow<Option<Failure>> {
        let worked = self.last_work(queues).await;
        ends(worked, self.finish.is_some())
    }

    /// Writes the model that the run ends with, and gives peers the last record. A node that is asked to leave stops
    /// doing so. Returns why there is no checkpoint, if there is none.
    ///
    /// # Errors
    /// A part of the node has failed, so that it cannot go on.
    async fn last_work(&mut self, queues: &mut Queues) -> Result<Option<Failure>, Failure> {
        if self.finish != Some(Finish::BudgetSpent) {
            return Ok(None);
        }
        self.device.close();
        let not_written = tokio::select! {
            written = self.final_checkpoint(queues) => written?,
            () = asked_to_leave() => return Ok(Some(self.left_without_checkpoint())),
        };
        let sequences = self.settings.validate_sequences;
        self.device.validate(sequences);
        tokio::select! {
            told = self.farewell(queues, sequences > 0) => told?,
            () = asked_to_leave() => {}
        }
        Ok(not_written)
    }

    /// Why the model is of no use, if its last losses show that the training has diverged.
    fn diverged(&self) -> Option<String> {
        // The losses of another task tell no stranger whether they are good.
        if self.spec.task.is_some() { None } else { diverged_text(self.gauges.last_losses(), self.spec.model.vocab) }
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
                Some(asked) = queues.questions.recv() => self.answer(asked).await?,
                Some(happened) = queues.trainer_events.recv() => {
                    validating &= !matches!(happened, TrainerEvent::Validated { .. } | TrainerEvent::NotValidated);
                    self.trainer_event(happened).await?;
                }
                () = alarm.rings(self.wake_at().into_iter().chain([ends]).min()) => self.feed(Input::Tick).await?,
            }
        }
    }
}

/// Whether a node ends after its last work, and with which failure. A checkpoint that was not written, which was said,
/// ends no node whose run goes on.
fn ends(worked: Result<Option<Failure>, Failure>, finished: bool) -> ControlFlow<Option<Failure>> {
    match worked {
        Ok(_) if !finished => ControlFlow::Continue(()),
        Ok(failed) => ControlFlow::Break(failed),
        Err(failed) => ControlFlow::Break(Some(failed)),
    }
}

/// Why the node ends as one whose training diverged: it left for that, or the run is over and its model of no use.
fn diverged_at(finish: &Finish, halted: Option<String>, at_end: Option<String>) -> Option<String> {
    match finish {
        Finish::BudgetSpent => at_end.or(halted),
        Finish::Left => halted,
        Finish::Fenced | Finish::RunMismatch { .. } => None,
    }
}

/// The words for losses in nats per token that are far worse than guessing; none for others.
fn diverged_text(losses: [Option<f64>; 2], vocab: u32) -> Option<String> {
    let guessing = f64::from(vocab).ln();
    let bad = |loss: &f64| loss.is_nan() || *loss > DIVERGED * guessing;
    let loss = losses.into_iter().flatten().find(bad)?;
    Some(format!(
        "the run's budget is spent, and its training diverged: the loss is {loss:.1} nats per token, and guessing has \
         {guessing:.1}; set a lower inner.lr, a longer inner.warmup_steps or a smaller inner.clip in a new run, \
         which may begin with an older checkpoint (`--from`)"
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
    use super::super::gauges::Gauges;
    use super::*;

    /// With a tokenizer of 32,000 tokens a sound model has more nats per token than twice guessing has per byte.
    #[test]
    fn a_validation_counts_by_tokens_as_it_is_kept() {
        let (mut gauges, vocab) = (Gauges::new(), 32_000);
        let (per_token, bytes_per_token) = (6.0, 4.3);
        gauges.validated(per_token, per_token / bytes_per_token);
        assert_eq!(gauges.last_losses(), [None, Some(per_token)]);
        assert_eq!(diverged_text(gauges.last_losses(), vocab), None);
        assert!(per_token * bytes_per_token > DIVERGED * f64::from(vocab).ln(), "bytes for tokens would show");
    }

    #[test]
    fn a_checkpoint_that_fails_ends_no_node_whose_run_goes_on() {
        let full = || Failure::message(Code::DiskFull, "no room for the final checkpoint");
        let code = |worked, finished| match ends(worked, finished) {
            ControlFlow::Break(failed) => Some(failed.map(|failed| failed.code)),
            ControlFlow::Continue(()) => None,
        };
        assert_eq!(code(Ok(Some(full())), false), None, "an amendment has added to the budget");
        assert_eq!(code(Ok(None), false), None);
        assert_eq!(code(Ok(Some(full())), true), Some(Some(Code::DiskFull)));
        assert_eq!(code(Ok(None), true), Some(None));
        for finished in [false, true] {
            let broken = Err(Failure::message(Code::StoreDamaged, "the ledger thread stopped"));
            assert_eq!(code(broken, finished), Some(Some(Code::StoreDamaged)), "nothing works without it");
        }
    }

    #[test]
    fn a_node_that_left_because_its_training_diverged_says_so() {
        let why = |text: &str| Some(text.to_owned());
        assert_eq!(diverged_at(&Finish::Left, why("halted"), why("bad")), why("halted"));
        assert_eq!(diverged_at(&Finish::Left, None, why("bad")), None, "it was asked to leave");
        assert_eq!(diverged_at(&Finish::BudgetSpent, None, why("bad")), why("bad"));
        assert_eq!(diverged_at(&Finish::BudgetSpent, why("halted"), None), why("halted"), "in the last round");
        assert_eq!(diverged_at(&Finish::Fenced, why("halted"), why("bad")), None);
    }

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
