//! Checkpoints as the driver has them written: when the node ends, and when somebody asks. The ledger knows when others
//! are due.

use super::driver::{Driver, Queues};
use super::ledger::{CheckpointMade, CheckpointOutcome, CheckpointPurpose, Job, LedgerReply};
use crate::exit::{Code, Failure};
use crate::watch::event::Event;
use crate::watch::status::Answer;
use starling_protocol::Digest;
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
                Ok(Err(message)) => Answer::Error { message },
                Err(_) => Answer::Error { message: "the node is shutting down".into() },
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
            Err(reason) => {
                metrics::counter!("starling_checkpoints_failed_total").increment(1);
                self.show(Event::CheckpointFailed { reason });
            }
        }
    }

    /// Writes the model that the run ends with.
    ///
    /// # Errors
    /// It was not written.
    pub(super) async fn final_checkpoint(&mut self, queues: &mut Queues) -> Result<(), Failure> {
        self.ledger(Job::Checkpoint { purpose: CheckpointPurpose::Budget, asked: None }).await?;
        while let Some(done) = queues.ledger_done.recv().await {
            match done {
                LedgerReply::Checkpoint { purpose: purpose @ CheckpointPurpose::Budget, outcome } => {
                    let failed = outcome.as_ref().err().map(|e| format!("the final checkpoint was not written: {e}"));
                    self.show_checkpoint(purpose, outcome);
                    return failed.map_or(Ok(()), |why| Err(Failure::message(Code::Refused, why)));
                }
                other => self.ledger_done(other).await?,
            }
        }
        Err(Failure::message(Code::StoreDamaged, "the ledger thread stopped; see the message before"))
    }

    /// Writes a checkpoint before the node leaves, if it has a state, the disk is fast enough and nobody asks it again to
    /// leave. Without one the node leaves all the same.
    pub(super) async fn leaving_checkpoint(&mut self, queues: &mut Queues) -> Result<(), Failure> {
        if self.settings.is_null || self.state.head().record.lineage == Digest::default() {
            return Ok(());
        }
        self.ledger(Job::Checkpoint { purpose: CheckpointPurpose::Leaving, asked: None }).await?;
        self.screen.line("writing a checkpoint before leaving (asked again, the node leaves at once)");
        let mut again = Box::pin(super::signals::asked_to_leave());
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
                // Whoever waits for the driver must not hold up the end.
                Some(_) = queues.net_events.recv() => {}
                Some(_) = queues.trainer_events.recv() => {}
                () = &mut again => break "the node was asked again to leave".to_owned(),
                () = tokio::time::sleep_until(until) => break late(),
            }
        };
        let home = self.settings.home.display().to_string();
        let advice = format!("the state is on the disk: `starling checkpoint now --home {home}` writes one of it");
        let reason = format!("{reason}; {advice}");
        self.show_checkpoint(CheckpointPurpose::Leaving, Err(reason));
        Ok(())
    }
}
