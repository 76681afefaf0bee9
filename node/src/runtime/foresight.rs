//! Runs with an external task: the trainer hears which samples the next round will most likely lease, while the record
//! of this one is made, so that it can read ahead.

use super::matter::Matter;
use super::trainer::{Ahead, FragmentEvent, Job, TrainerEvent};
use super::variant::{Desk, Variant};
use starling_protocol::engine::io::Output;

/// The lease that the trainer is to hear of.
#[derive(Default)]
pub struct Foresight {
    wanted: Option<Job>,
}

impl Variant for Foresight {
    fn take<'a>(&mut self, matter: Matter<'a>, desk: &mut Desk<'_>) -> Option<Matter<'a>> {
        match matter {
            Matter::Train => self.wanted = None,
            Matter::Output(Output::Ahead { round, base, lease, inner_steps, steps, done }) => {
                let (generation, news) = (0, FragmentEvent::default());
                let ahead = Ahead { round, base, lease, inner_steps, steps, done, generation, news };
                self.wanted = Some(Job::Ahead(ahead));
                return None;
            }
            Matter::TrainerEvent(TrainerEvent::WentAhead { .. }) => {
                desk.device.rest();
                return None;
            }
            _ => {}
        }
        Some(matter)
    }

    fn beside(&mut self, _desk: &mut Desk<'_>) -> Option<Job> {
        self.wanted.take()
    }
}
