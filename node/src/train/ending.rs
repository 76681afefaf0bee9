//! How a node ends: whoever lacks its last record gets it, then everything is closed in order.

use super::driver::{Driver, Queues};
use super::trainer::Happened;
use crate::exit::Failure;
use crate::watch::event::Event;
use starling_protocol::engine::io::{Finish, Input};
use std::time::{Duration, Instant};

/// How long a node that has spent its budget stays to hand out the last record.
const FAREWELL: Duration = Duration::from_secs(10);
/// How long the trainer may take to notice the end and to save its moments: the whole end stays within 10 seconds.
const CLOSING: Duration = Duration::from_secs(7);
/// How long the final validation may take.
const PATIENCE: Duration = Duration::from_secs(120);

impl Driver {
    /// Ends the node: the last record for those who lack it, the final checkpoint, then everything is dropped.
    pub(super) async fn close(mut self, queues: &mut Queues) -> Result<Finish, Failure> {
        let finish = self.finish.take().unwrap_or(Finish::Left);
        self.device.close();
        if finish == Finish::BudgetSpent {
            let round = self.final_checkpoint().await?;
            tracing::debug!("wrote the checkpoint of round {round}");
            let sequences = self.settings.validate_sequences;
            self.device.validate(sequences);
            self.farewell(queues, sequences > 0).await?;
        }
        self.residuals.save().await;
        self.show(Event::Finished { reason: super::view::finish_reason(&finish) });
        self.screen.close();
        self.net.shutdown().await;
        Ok(finish)
    }

    /// Answers peers until each of them has the last record, or has gone, or time is up; and waits for the final
    /// validation.
    async fn farewell(&mut self, queues: &mut Queues, mut validating: bool) -> Result<(), Failure> {
        let (farewell, patience) = (tokio::time::Instant::now() + FAREWELL, tokio::time::Instant::now() + PATIENCE);
        let mut tick = tokio::time::interval(Duration::from_millis(100));
        loop {
            let now = tokio::time::Instant::now();
            let others_wait = now < farewell && !self.everybody_finished();
            if !others_wait && (!validating || now >= patience) {
                return Ok(());
            }
            tokio::select! {
                Some(done) = queues.ledger_done.recv() => self.ledger_done(done).await?,
                Some(event) = queues.net_events.recv() => self.net_event(event).await?,
                Some(happened) = queues.trainer_events.recv() => {
                    validating &= !matches!(happened, Happened::Validated { .. });
                    self.trainer_event(happened).await?;
                }
                _ = tick.tick() => self.feed(Input::Tick).await?,
            }
        }
    }
}

/// Waits for threads whose queues are dropped: the trainer saves its moments, the ledger its last write. The store
/// must be closed before the process ends, or RocksDB's own threads outlive what they use.
pub async fn end_of(threads: Vec<std::thread::JoinHandle<()>>) {
    let deadline = Instant::now() + CLOSING;
    for thread in threads {
        while !thread.is_finished() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if !thread.is_finished() {
            tracing::warn!("the {} thread is busy: not waiting for it", thread.thread().name().unwrap_or("worker"));
        } else if thread.join().is_err() {
            tracing::error!("a thread of the node panicked; see the message before");
        }
    }
}
