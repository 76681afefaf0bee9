//! Runs in which trainers keep their own parameters: commits that the trainer must hear of, its steps ahead of a
//! record, and contributions that are made anew for another fragment.

use super::matter::Matter;
use super::shards;
use super::trainer::{Ahead, FragmentEvent, Job, TrainerEvent};
use super::variant::{Desk, Variant};
use starling_data::Dataset;
use starling_protocol::Digest;
use starling_protocol::engine::io::{Input, Output};
use starling_protocol::run::RunSpec;
use starling_protocol::update::Fragments;
use std::sync::Arc;

/// The engine's wishes for the trainer beside rounds.
pub struct Streaming {
    fragments: Fragments,
    spec: RunSpec,
    data: Arc<Dataset>,
    notes: Notes,
    wanted: Option<Job>,
}

/// Commits that the trainer has not heard of yet.
#[derive(Default)]
struct Notes(FragmentEvent);

impl Notes {
    /// Notes that a COMMIT steps this fragment of the state that the record `before` has made.
    fn stepped(&mut self, fragment: usize, before: Digest) {
        self.0.stepped.insert(fragment);
        self.0.before = Some(before);
    }

    fn start_over(&mut self) {
        self.0 = FragmentEvent { start_over: true, ..FragmentEvent::default() };
    }

    /// Takes the notes for the next job.
    fn told(&mut self) -> FragmentEvent {
        let before = self.0.before;
        std::mem::replace(&mut self.0, FragmentEvent { before, ..FragmentEvent::default() })
    }
}

impl Streaming {
    pub fn new(spec: &RunSpec, elements: usize, data: Arc<Dataset>) -> Self {
        let fragments = Fragments::of(&spec.sync, elements);
        Self { fragments, spec: spec.clone(), data, notes: Notes::default(), wanted: None }
    }

    /// Stops steps ahead, since the trainer must not be late for the next job.
    fn make_way(&mut self, desk: &mut Desk<'_>) {
        self.wanted = None;
        desk.device.make_way();
    }

    fn want(&mut self, job: Job, desk: &mut Desk<'_>) {
        self.make_way(desk);
        self.wanted = Some(job);
    }
}

impl Variant for Streaming {
    fn take<'a>(&mut self, matter: Matter<'a>, desk: &mut Desk<'_>) -> Option<Matter<'a>> {
        match matter {
            Matter::Train => self.make_way(desk),
            Matter::Commit(record) if record.changes_state() => {
                self.notes.stepped(self.fragments.turn(record.round), desk.state.head().base);
            }
            Matter::Output(Output::StartOver) => {
                self.wanted = None;
                self.notes.start_over();
                return None;
            }
            Matter::Output(Output::Ahead { round, base, lease, inner_steps, steps, done }) => {
                let (generation, news) = (0, FragmentEvent::default());
                let ahead = Ahead { round, base, lease, inner_steps, steps, done, generation, news };
                self.want(Job::Ahead(ahead), desk);
                return None;
            }
            Matter::Output(Output::Retake { round, base }) => {
                self.want(Job::Retake { round, base, news: FragmentEvent::default() }, desk);
                return None;
            }
            Matter::TrainerEvent(TrainerEvent::WentAhead { ended }) => {
                desk.gauges.device_rests(ended);
                desk.device.rest();
                return None;
            }
            Matter::TrainerEvent(TrainerEvent::Retaken { round, base, made }) => {
                let told = made.as_ref().map(|made| (made.payload, made.norm.to_bits()));
                if let Some(made) = made {
                    desk.contributions.remake(made.payload, made.delta);
                }
                desk.device.rest();
                desk.inputs.push_back(Input::Retaken { round, base, made: told });
                return None;
            }
            _ => {}
        }
        Some(matter)
    }

    fn news(&mut self) -> Option<FragmentEvent> {
        Some(self.notes.told())
    }

    fn beside(&mut self, desk: &mut Desk<'_>) -> Option<Job> {
        let mut job = self.wanted.take()?;
        match &mut job {
            // The round itself will fetch missing shards.
            Job::Ahead(ahead) if !shards::missing_for(&self.data, &self.spec, &ahead.lease, 0).is_empty() => {
                return None;
            }
            Job::Ahead(ahead) => {
                (ahead.generation, ahead.news) = (desk.device.halt(), self.notes.told());
                desk.gauges.device_works();
            }
            Job::Retake { news, .. } => *news = self.notes.told(),
            _ => {}
        }
        Some(job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trainer_hears_of_each_fragment_once_and_always_of_the_last_state() {
        let (mut notes, base) = (Notes::default(), |n: u8| Digest([n; 32]));
        notes.stepped(2, base(1));
        notes.stepped(0, base(2));
        let news = notes.told();
        assert_eq!((Vec::from_iter(news.stepped), news.before, news.start_over), (vec![0, 2], Some(base(2)), false));
        let news = notes.told();
        assert_eq!((news.stepped.len(), news.before), (0, Some(base(2))));
        notes.stepped(1, base(3));
        notes.start_over();
        let news = notes.told();
        assert_eq!((news.stepped.len(), news.before, news.start_over), (0, None, true), "nothing of before counts");
        assert!(!notes.told().start_over);
    }
}
