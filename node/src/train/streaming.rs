//! The driver's part where trainers keep parameters of their own: what the trainer has to hear of commits, what it may do
//! ahead of a record, and contributions that are made anew for another fragment.

use super::driver::Driver;
use super::shards;
use super::trainer::{Ahead, Job, Made, News};
use crate::exit::{Code, Failure};
use starling_protocol::Digest;
use starling_protocol::engine::io::Input;
use starling_protocol::record::{Record, Span};
use starling_protocol::update::Fragments;
use std::time::Instant;

/// What the engine wants of the trainer beside rounds.
#[derive(Default)]
pub struct Streaming {
    /// What the trainer has not heard yet.
    news: News,
    wanted: Option<Wanted>,
    /// The device is at a job that is not a round's.
    aside: bool,
}

enum Wanted {
    Ahead { round: u64, base: Digest, lease: Span, inner_steps: u32, steps: u32, tokens: u64 },
    Retake { round: u64, base: Digest },
}

impl Streaming {
    /// What goes with the next job.
    pub fn news(&mut self) -> News {
        let News { before, .. } = self.news;
        std::mem::replace(&mut self.news, News { before, ..News::default() })
    }
}

impl Driver {
    pub(super) fn fragments(&self) -> Fragments {
        Fragments::of(&self.spec.sync, self.settings.elements)
    }

    /// A COMMIT is about to change the state.
    pub(super) fn note_step(&mut self, record: &Record) {
        if self.spec.sync.streams() && record.changes_state() {
            self.streaming.news.stepped.insert(self.fragments().turn(record.round));
            self.streaming.news.before = Some(self.state.head().base);
        }
    }

    pub(super) fn start_over(&mut self) {
        self.streaming.wanted = None;
        self.streaming.news = News { start_over: true, ..News::default() };
    }

    pub(super) async fn ahead(
        &mut self,
        (round, base): (u64, Digest),
        (lease, inner_steps): (Span, u32),
        (steps, tokens): (u32, u64),
    ) -> Result<(), Failure> {
        self.want(Wanted::Ahead { round, base, lease, inner_steps, steps, tokens }).await
    }

    pub(super) async fn retake(&mut self, round: u64, base: Digest) -> Result<(), Failure> {
        self.want(Wanted::Retake { round, base }).await
    }

    async fn want(&mut self, wanted: Wanted) -> Result<(), Failure> {
        self.make_way();
        self.streaming.wanted = Some(wanted);
        self.start_wanted_aside().await
    }

    /// Something comes that the trainer must not be late for.
    pub(super) fn make_way(&mut self) {
        self.streaming.wanted = None;
        if self.streaming.aside {
            self.trainer.next_generation();
        }
    }

    /// Starts what is wanted beside rounds if the device has nothing to do.
    pub(super) async fn start_wanted_aside(&mut self) -> Result<(), Failure> {
        if self.device_busy || self.wanted_round.is_some() {
            return Ok(());
        }
        let Some(wanted) = self.streaming.wanted.take() else { return Ok(()) };
        let news = self.streaming.news();
        let job = match wanted {
            Wanted::Retake { round, base } => Job::Retake { round, base, news },
            // The round will fetch what is not here.
            Wanted::Ahead { lease, .. } if !shards::missing_for(&self.data, &self.spec, &lease, 0).is_empty() => {
                self.streaming.news = news;
                return Ok(());
            }
            Wanted::Ahead { round, base, lease, inner_steps, steps, tokens } => {
                let generation = self.trainer.next_generation();
                self.gauges.device_works();
                Job::Ahead(Ahead { round, base, lease, inner_steps, steps, tokens, generation, news })
            }
        };
        (self.device_busy, self.streaming.aside) = (true, true);
        let sent = self.trainer_jobs.send(job).await;
        sent.map_err(|_| Failure::message(Code::Refused, "the trainer thread stopped; see the message before"))
    }

    pub(super) async fn went_ahead(&mut self, ended: Instant) -> Result<(), Failure> {
        self.gauges.device_rests(ended);
        self.device_is_free().await
    }

    pub(super) async fn retaken(&mut self, round: u64, base: Digest, made: Option<Made>) -> Result<(), Failure> {
        let told = made.as_ref().map(|made| (made.payload, made.norm.to_bits()));
        if let Some(made) = made {
            self.delta = Some((made.payload, made.delta));
        }
        self.device_is_free().await?;
        self.feed(Input::Retaken { round, base, made: told }).await
    }

    /// The device has answered.
    pub(super) async fn device_is_free(&mut self) -> Result<(), Failure> {
        (self.device_busy, self.streaming.aside) = (false, false);
        self.start_wanted_round().await?;
        self.start_wanted_aside().await
    }
}
