//! Checkpoints as the driver has them written: when the node ends, and when somebody asks. The ledger knows when others
//! are due.

use super::alarm::Alarm;
use super::driver::{Driver, Queues};
use super::ledger::{CheckpointMade, CheckpointOutcome, CheckpointPurpose, Job, LedgerReply, NotMade};
use super::signals::asked_to_leave;
use super::trainer::TrainerEvent;
use crate::exit::{Code, Failure};
use crate::watch::event::Event;
use crate::watch::status::Answer;
use starling_protocol::Digest;
use starling_protocol::engine::io::Input;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long a node that was asked to leave may still write its checkpoint. The state is on its disk in any case.
const LEAVING: Duration = Duration::from_secs(15);

impl Driver {
    /// Has a checkpoint written for somebody, who is told when it is on the disk.
    pub(super) async fn checkpoint_for(&mut self, reply: oneshot::Sender<Answer>) -> Result<(), Failure> {
        let (asked, outcome) = oneshot::channel();
        self.ledger(Job::Checkpoint { purpose: CheckpointPurpose::Asked, asked: Some(asked) }).await?;
        tokio::spawn(async move {
            let answer = match outcome.await {
                Ok(Ok(CheckpointMade { path, seq, round, is_new })) => {
                    Answer::Checkpoint { path: path.display().to_string(), seq, round, is_new }
                }
                Ok(Err(NotMade { why, code })) => Answer::failed(code, why),
                Err(_) => Answer::refused("the node is shutting down"),
            };
            // The one that asked may have gone.
            let _ = reply.send(answer);
        });
        Ok(())
    }

    /// Shows the outcome of a checkpoint. One that somebody else asked for, and that was there, is not shown.
    pub(super) fn show_checkpoint(&mut self, purpose: CheckpointPurpose, outcome: CheckpointOutcome) {
        match outcome {
            Ok(CheckpointMade { path, round, is_new, .. }) => {
                if is_new || purpose >= CheckpointPurpose::Leaving {
                    self.show(Event::Checkpoint { path: path.display().to_string(), round });
                }
            }
            Err(NotMade { why, .. }) => self.show_no_checkpoint(why),
        }
    }

    fn show_no_checkpoint(&mut self, reason: String) {
        metrics::counter!("starling_checkpoints_failed_total").increment(1);
        self.show(Event::CheckpointFailed { reason });
    }

    /// The reason with the way to a checkpoint of the same state.
    fn with_advice(&self, reason: &str) -> String {
        let home = self.settings.home.display();
        format!("{reason}; the state is on the disk: `starling checkpoint now --home {home}` writes one of it")
    }

    /// Writes the model that the run ends with. Peers and people are answered meanwhile. Returns the failure if it was
    /// not written.
    ///
    /// # Errors
    /// A part of the node has failed.
    pub(super) async fn final_checkpoint(&mut self, queues: &mut Queues) -> Result<Option<Failure>, Failure> {
        self.ledger(Job::Checkpoint { purpose: CheckpointPurpose::Budget, asked: None }).await?;
        let mut alarm = Alarm::default();
        loop {
            tokio::select! {
                done = queues.ledger_done.recv() => match done {
                    Some(LedgerReply::Checkpoint { purpose: purpose @ CheckpointPurpose::Budget, outcome }) => {
                        let failed = outcome.as_ref().err().map(not_written);
                        self.show_checkpoint(purpose, outcome);
                        return Ok(failed);
                    }
                    Some(other) => self.ledger_done(other).await?,
                    None => {
                        let why = "the ledger thread stopped; see the message before";
                        return Err(Failure::message(Code::StoreDamaged, why));
                    }
                },
                Some(event) = queues.net_events.recv() => self.net_event(event).await?,
                Some(happened) = queues.trainer_events.recv() => match happened {
                    // No round is wanted any more.
                    TrainerEvent::Failed { .. } => self.device.rest(),
                    // The trainer has to be free if an amendment brings another round.
                    other => self.trainer_event(other).await?,
                },
                Some(result) = queues.results.recv() => self.result(result).await?,
                // An operator may lengthen the run just now.
                Some(asked) = queues.questions.recv() => self.answer(asked).await?,
                () = alarm.rings(self.wake_at()) => self.feed(Input::Tick).await?,
            }
        }
    }

    /// Shows that the node leaves without the model that the run ends with, since it was asked to; the failure says so
    /// as well.
    pub(super) fn left_without_checkpoint(&mut self) -> Failure {
        let why = self.with_advice("the node was asked to leave while it was written");
        let failure = not_written(&NotMade { why: why.clone(), code: Code::Refused });
        self.show_no_checkpoint(why);
        failure
    }

    /// Writes a checkpoint before the node leaves, if it has a state, the disk is fast enough and nobody asks it again
    /// to leave. Without one the node leaves all the same.
    pub(super) async fn leaving_checkpoint(&mut self, queues: &mut Queues) -> Result<(), Failure> {
        if self.settings.is_null || self.state.head().record.lineage == Digest::default() {
            return Ok(());
        }
        self.ledger(Job::Checkpoint { purpose: CheckpointPurpose::Leaving, asked: None }).await?;
        self.screen.line("writing a checkpoint before leaving (asked again, the node leaves at once)");
        let mut again = Box::pin(asked_to_leave());
        let until = tokio::time::Instant::now() + LEAVING;
        let late = || format!("it is not written within {} s", LEAVING.as_secs());
        let reason = loop {
            tokio::select! {
                done = queues.ledger_done.recv() => match done {
                    Some(LedgerReply::Checkpoint { purpose: purpose @ CheckpointPurpose::Leaving, outcome }) => {
                        self.show_checkpoint(purpose, outcome);
                        return Ok(());
                    }
                    Some(other) => self.ledger_done(other).await?,
                    None => break "the ledger stopped".to_owned(),
                },
                // The network and the trainer must not hold up the end because they wait for the driver.
                Some(_) = queues.net_events.recv() => {}
                Some(_) = queues.trainer_events.recv() => {}
                () = &mut again => break "the node was asked again to leave".to_owned(),
                () = tokio::time::sleep_until(until) => break late(),
            }
        };
        let reason = self.with_advice(&reason);
        self.show_no_checkpoint(reason);
        Ok(())
    }
}

fn not_written(not: &NotMade) -> Failure {
    Failure::message(not.code, format!("the final checkpoint was not written: {}", not.why))
}
