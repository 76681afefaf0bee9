//! What a run may add to rounds of local training: parts with a name, chosen where the run is set up. The driver hands
//! them what it has no part in itself, and shows them what they may want to know.

use super::contributions::Contributions;
use super::device::Device;
use super::difference::Lost;
use super::driver::{Driver, Outcome};
use super::head::SharedState;
use super::merging::{Left, Merging};
use super::mixing::Exchanges;
use super::residuals::Residuals;
use super::streaming::Streaming;
use super::trainer::{Happened, Job, Made, News};
use super::view::Gauges;
use crate::exit::Failure;
use crate::net::BulkStream;
use crate::pairs::PairRouter;
use crate::watch::screen::Screen;
use crate::watch::status::Status;
use starling_data::Dataset;
use starling_protocol::engine::Candidate;
use starling_protocol::engine::io::{Input, Notice, Output};
use starling_protocol::record::Record;
use starling_protocol::run::RunSpec;
use starling_protocol::{Digest, NodeId};
use starling_store::Store;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::mpsc;

/// One part. A run without it has nothing of it.
pub trait Variant: Send {
    /// Something that may concern it; given back unless it was for this part alone.
    fn take<'a>(&mut self, matter: Matter<'a>, desk: &mut Desk<'_>) -> Option<Matter<'a>>;

    /// What the trainer is to hear with its next job.
    fn news(&mut self) -> Option<News> {
        None
    }

    /// A job for a device that has nothing to do, which any round interrupts.
    fn beside(&mut self, _desk: &mut Desk<'_>) -> Option<Job> {
        None
    }

    /// Its rows in the status of a node that stands on this record.
    fn show(&self, _head: &Record, _status: &mut Status) {}
}

/// What may concern a part.
#[allow(clippy::large_enum_variant, reason = "outputs are large, and none is kept")]
pub enum Matter<'a> {
    /// The node begins.
    Start,
    /// What the engine wants and the driver does not do by itself.
    Output(Output),
    /// What the trainer says beyond rounds.
    Happened(Happened),
    /// A peer opened a stream for an exchange.
    Stream(NodeId, BulkStream),
    /// What came of mixing a difference into the contribution of this round on top of this record.
    Mixed {
        at: (u64, Digest),
        lineage: Digest,
        outcome: Result<Made, Lost>,
    },
    /// A catch-up has left a lineage for that of this record.
    Left(Left, Box<Record>),
    /// A round is to be trained.
    Train,
    /// About to be written.
    Candidate(&'a Candidate),
    /// About to be applied.
    Commit(&'a Record),
    /// A catch-up has passed records that merged these lineages in these rounds.
    Merged(&'a [(Digest, u64)]),
    Notice(&'a Notice),
}

/// What of the driver a part may use.
pub struct Desk<'a> {
    pub state: &'a SharedState,
    pub contributions: &'a mut Contributions,
    pub device: &'a mut Device,
    pub screen: &'a mut Screen,
    pub gauges: &'a mut Gauges,
    pub results: &'a mpsc::Sender<Outcome>,
    /// Handled by the engine after the outputs at hand.
    pub inputs: &'a mut VecDeque<Input>,
}

/// The parts of this run.
pub struct Variants(Vec<Box<dyn Variant>>);

impl Variants {
    /// As the specification wants it. What lineages have learned may be told and kept in any run.
    pub fn of(
        spec: &RunSpec,
        store: Arc<Store>,
        data: Arc<Dataset>,
        (elements, residuals): (usize, &Residuals),
        pairs: Option<PairRouter>,
    ) -> Self {
        let mut parts: Vec<Box<dyn Variant>> = vec![Box::new(Merging::new(store, residuals.shared(), spec.sync.codec))];
        if spec.sync.streams() {
            parts.push(Box::new(Streaming::new(spec, elements, data)));
        }
        parts.extend(pairs.map(|router| Box::new(Exchanges::new(router)) as Box<dyn Variant>));
        Self(parts)
    }

    fn take(&mut self, matter: Matter<'_>, desk: &mut Desk<'_>) {
        let left = self.0.iter_mut().try_fold(matter, |matter, part| part.take(matter, desk));
        if let Some(Matter::Stream(..)) = left {
            metrics::counter!("starling_refused_total", "reason" => "pair_not_in_run").increment(1);
        }
    }

    /// At most one part has any.
    pub fn news(&mut self) -> News {
        self.0.iter_mut().find_map(|part| part.news()).unwrap_or_default()
    }

    pub fn show(&self, head: &Record, status: &mut Status) {
        self.0.iter().for_each(|part| part.show(head, status));
    }
}

impl Driver {
    fn desk(&mut self) -> (&mut Variants, Desk<'_>) {
        let Self { variants, state, contributions, device, screen, gauges, results, inputs, .. } = self;
        (variants, Desk { state, contributions, device, screen, gauges, results, inputs })
    }

    /// Shows or hands it to the parts of this run. What follows from it is handled after the outputs at hand.
    pub(super) fn hand(&mut self, matter: Matter<'_>) {
        let (variants, mut desk) = self.desk();
        variants.take(matter, &mut desk);
    }

    /// The same from outside of the engine's outputs: what follows is handled at once.
    pub(super) async fn hand_over(&mut self, matter: Matter<'_>) -> Result<(), Failure> {
        self.hand(matter);
        self.use_device().await?;
        // With the last input all are handled.
        match self.inputs.pop_back() {
            Some(last) => self.feed(last).await,
            None => Ok(()),
        }
    }

    /// A job for the device beside rounds.
    pub(super) fn beside(&mut self) -> Option<Job> {
        let (variants, mut desk) = self.desk();
        variants.0.iter_mut().find_map(|part| part.beside(&mut desk))
    }
}
