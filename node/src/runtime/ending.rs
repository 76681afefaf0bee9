//! How a node ends: peers that lack its last record get it, then everything is closed in order.

use super::alarm::Alarm;
use super::driver::{Driver, Queues};
use super::trainer::TrainerEvent;
use crate::exit::Failure;
use crate::watch::event::Event;
use starling_protocol::engine::io::{Finish, Input};
use std::time::{Duration, Instant};

/// Time for which a node that has spent its budget stays to hand out the last record.
const FAREWELL: Duration = Duration::from_secs(10);
/// Time that the final validation may take.
const PATIENCE: Duration = Duration::from_secs(120);

impl Driver {
    /// Ends the node: a checkpoint is written, peers get the last record, then everything is dropped.
    pub(super) async fn close(mut self, queues: &mut Queues) -> Result<Finish, Failure> {
        let finish = self.finish.take().unwrap_or(Finish::Left);
        self.device.close();
        if finish == Finish::Left {
            self.leaving_checkpoint(queues).await?;
        }
        if finish == Finish::BudgetSpent {
            self.final_checkpoint(queues).await?;
            let sequences = self.settings.validate_sequences;
            self.device.validate(sequences);
            self.farewell(queues, sequences > 0).await?;
        }
        self.residuals.save().await;
        self.show(Event::Finished { reason: finish_reason(&finish) });
        self.screen.close();
        self.net.shutdown().await;
        Ok(finish)
    }

    /// Answers peers until each of them has the last record or has gone, or time is up; also waits for the final
    /// validation.
    async fn farewell(&mut self, queues: &mut Queues, mut validating: bool) -> Result<(), Failure> {
        let (farewell, patience) = (Instant::now() + FAREWELL, Instant::now() + PATIENCE);
        let mut alarm = Alarm::default();
        loop {
            let now = Instant::now();
            let others_wait = now < farewell && !self.everybody_finished();
            if !others_wait && (!validating || now >= patience) {
                return Ok(());
            }
            let ends = if others_wait { farewell } else { patience };
            tokio::select! {
                Some(done) = queues.ledger_done.recv() => self.ledger_done(done).await?,
                Some(event) = queues.net_events.recv() => self.net_event(event).await?,
                Some(happened) = queues.trainer_events.recv() => {
                    validating &= !matches!(happened, TrainerEvent::Validated { .. });
                    self.trainer_event(happened).await?;
                }
                () = alarm.rings(self.wake_at().into_iter().chain([ends]).min()) => self.feed(Input::Tick).await?,
            }
        }
    }
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
