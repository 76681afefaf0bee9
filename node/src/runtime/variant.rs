//! Additions of a run to rounds of local training: named parts, which a node chooses when it sets the run up. The
//! driver hands them the matters that it does not handle itself, and shows them others that may concern them.

use super::contributions::Contributions;
use super::device::Device;
use super::gauges::Gauges;
use super::head::SharedState;
use super::matter::{Matter, Outcome};
use super::trainer::{FragmentEvent, Job};
use crate::watch::screen::Screen;
use crate::watch::status::Status;
use starling_protocol::engine::io::Input;
use starling_protocol::record::Record;
use std::collections::VecDeque;
use tokio::sync::mpsc;

/// One part. A run without it has none of its behaviour.
pub trait Variant: Send {
    /// Takes a matter that may concern the part; gives it back unless it was for this part alone.
    fn take<'a>(&mut self, matter: Matter<'a>, desk: &mut Desk<'_>) -> Option<Matter<'a>>;

    /// News for the trainer's next job.
    fn news(&mut self) -> Option<FragmentEvent> {
        None
    }

    /// A job for an idle device, which any round interrupts.
    fn beside(&mut self, _desk: &mut Desk<'_>) -> Option<Job> {
        None
    }

    /// Adds the part's rows to the status of a node with this head record.
    fn show(&self, _head: &Record, _status: &mut Status) {}
}

/// The fields of the driver that a part may use.
pub struct Desk<'a> {
    pub state: &'a SharedState,
    pub contributions: &'a mut Contributions,
    pub device: &'a mut Device,
    pub screen: &'a mut Screen,
    pub gauges: &'a mut Gauges,
    pub results: &'a mpsc::Sender<Outcome>,
    /// Inputs that the engine handles after the outputs at hand.
    pub inputs: &'a mut VecDeque<Input>,
}

/// The parts of this run.
pub struct Variants(pub Vec<Box<dyn Variant>>);

impl Variants {
    pub fn take(&mut self, matter: Matter<'_>, desk: &mut Desk<'_>) {
        let left = self.0.iter_mut().try_fold(matter, |matter, part| part.take(matter, desk));
        if let Some(Matter::Stream(..)) = left {
            metrics::counter!("starling_refused_total", "reason" => "pair_not_in_run").increment(1);
        }
    }

    /// The news of the one part that has any.
    pub fn news(&mut self) -> FragmentEvent {
        self.0.iter_mut().find_map(|part| part.news()).unwrap_or_default()
    }

    /// A job for the device beside rounds.
    pub fn beside(&mut self, desk: &mut Desk<'_>) -> Option<Job> {
        self.0.iter_mut().find_map(|part| part.beside(desk))
    }

    pub fn show(&self, head: &Record, status: &mut Status) {
        self.0.iter().for_each(|part| part.show(head, status));
    }
}
