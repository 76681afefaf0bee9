//! The device as the driver sees it: the trainer's thread, the round that the engine wants, and the job under way.

use super::trainer::{Job, TrainerHandle};
use crate::exit::{Code, Failure};
use starling_protocol::Digest;
use starling_protocol::record::{Done, Span};
use tokio::sync::mpsc;

/// A round that the engine wants trained.
#[derive(Clone)]
pub struct WantedRound {
    pub round: u64,
    /// The record that made the state to start from.
    pub base: Digest,
    pub lease: Span,
    pub inner_steps: u32,
    pub done: Done,
    /// The other members are done, so the round is to end after its first step.
    pub cut: bool,
}

/// The job that the trainer has not answered yet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Work {
    Round,
    Beside,
}

/// One job at a time; a round goes before other jobs.
pub struct Device {
    pub trainer: TrainerHandle,
    /// A round to train once the ledger holds its base and the shards are here. It stays until it is trained, so that a
    /// missing shard or a stop can start it again.
    pub wanted: Option<WantedRound>,
    pub work: Option<Work>,
    /// The trainer gets no more jobs.
    ended: bool,
}

impl Device {
    pub fn new(trainer: TrainerHandle) -> Self {
        Self { trainer, wanted: None, work: None, ended: false }
    }

    pub fn want(&mut self, wanted: WantedRound) {
        self.wanted = Some(wanted);
    }

    pub fn cut_short(&mut self, round: u64) {
        if let Some(wanted) = self.wanted.as_mut().filter(|wanted| wanted.round == round) {
            wanted.cut = true;
            self.trainer.cut_short();
        }
    }

    pub fn stop(&mut self, round: u64) {
        self.wanted.take_if(|wanted| wanted.round == round);
        self.halt();
    }

    /// Stops the job under way, and returns the generation of the next one.
    pub fn halt(&self) -> u64 {
        self.trainer.next_generation()
    }

    /// Stops a job beside rounds, which must not hold up the next one.
    pub fn make_way(&self) {
        if self.work == Some(Work::Beside) {
            self.halt();
        }
    }

    /// Notes that the trainer has answered.
    pub fn rest(&mut self) {
        self.work = None;
    }

    /// Stops the device, as the node ends: no round is wanted any more.
    pub fn close(&mut self) {
        self.wanted = None;
        self.halt();
    }

    /// Ends the trainer, which saves its moments then. Further jobs are left undone.
    pub fn end(&mut self) {
        self.close();
        self.trainer.leave();
        self.ended = true;
        // The queue of jobs has no sender any more.
        self.trainer.jobs = mpsc::channel(1).0;
    }

    /// Has the committed parameters validated on this many sequences, after the job at hand.
    pub fn validate(&self, sequences: usize) {
        let _ = self.trainer.jobs.try_send(Job::Validate { sequences });
    }

    pub async fn start(&mut self, work: Work, job: Job) -> Result<(), Failure> {
        if self.ended {
            return Ok(());
        }
        self.work = Some(work);
        let sent = self.trainer.jobs.send(job).await;
        sent.map_err(|_| Failure::message(Code::Refused, "the trainer thread stopped; see the message before"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc::error::TryRecvError;

    #[tokio::test]
    async fn a_trainer_that_is_ended_has_no_jobs_to_wait_for_and_gets_none() {
        let (trainer, mut jobs) = TrainerHandle::of_nobody();
        let mut device = Device::new(trainer);
        device.start(Work::Beside, Job::Validate { sequences: 1 }).await.expect("there is room");
        assert!(matches!(jobs.try_recv(), Ok(Job::Validate { .. })));
        assert!(matches!(jobs.try_recv(), Err(TryRecvError::Empty)), "it waits for more");
        device.end();
        assert!(matches!(jobs.try_recv(), Err(TryRecvError::Disconnected)), "it may save its moments");
        device.start(Work::Beside, Job::Validate { sequences: 1 }).await.expect("left undone, and no failure");
    }
}
