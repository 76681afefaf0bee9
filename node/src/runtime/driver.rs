//! The one task that owns the protocol engine: it turns events into inputs, and carries out every output or hands it
//! on.

use super::alarm::Alarm;
use super::contributions::Contributions;
use super::device::Device;
use super::fetches::Fetches;
use super::gauges::Gauges;
use super::head::SharedState;
use super::ledger::{Job, Ledger, LedgerReply};
use super::matter::{Matter, Outcome};
use super::notice::{hold_text, ids};
use super::reduction::Reductions;
use super::residuals::Residuals;
use super::signals::{self, Signals};
use super::trainer::{self, TrainerEvent, TrainerHandle};
use super::undurable::Undurable;
use super::variant::{Desk, Variants};
use crate::exit::{Code, Failure};
use crate::net::{NetEvent, NetEvents, NetHandle};
use crate::watch::event::Event;
use crate::watch::screen::Screen;
use crate::watch::status::Asked;
use starling_data::Dataset;
use starling_protocol::engine::Engine;
use starling_protocol::engine::io::{Finish, Input, Time};
use starling_protocol::run::RunSpec;
use starling_protocol::{Digest, NodeId};
use starling_store::Store;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Results of background work that may wait.
const RESULTS_MAX: usize = 256;
/// Time after which a wait is shown.
const WAIT_SHOWN: Duration = Duration::from_secs(3);
/// A round that waits for newcomers is shown again after this time.
const HOLD_SHOWN: Duration = Duration::from_secs(10);

/// The parts from which a driver is made.
pub struct Parts {
    pub spec: RunSpec,
    pub run: Digest,
    pub me: NodeId,
    pub engine: Engine,
    pub net: NetHandle,
    pub net_events: NetEvents,
    /// Network events from before the driver started.
    pub early: Vec<NetEvent>,
    pub ledger: Ledger,
    pub trainer: TrainerHandle,
    pub store: Arc<Store>,
    pub data: Arc<Dataset>,
    pub residuals: Residuals,
    pub variants: Variants,
    pub questions: mpsc::Receiver<Asked>,
    pub screen: Screen,
    pub settings: Settings,
}

/// The values that the driver needs from the node file and the run.
pub struct Settings {
    pub home: PathBuf,
    /// The name that this machine shows beside the node's id.
    pub name: Option<String>,
    /// Steps are only waited for: the parameters are of no use to anybody.
    pub is_null: bool,
    pub device: String,
    pub elements: usize,
    pub validate_every: u64,
    pub validate_sequences: usize,
    pub halt_on_divergence: bool,
    pub ticket: super::ticket::TicketMaker,
    /// The encoded admission ticket that this node shows; empty without one.
    pub admission: Vec<u8>,
    /// The ports that the node keeps.
    pub ports: super::ports::Ports,
    /// The state of the trainer that the node's user brings.
    pub guest: Option<Arc<super::bridge::Note>>,
}

/// The queues from which the driver takes events.
pub(super) struct Queues {
    /// Network events from before the driver started.
    early: Vec<NetEvent>,
    pub net_events: NetEvents,
    pub ledger_done: mpsc::Receiver<LedgerReply>,
    pub trainer_events: mpsc::Receiver<TrainerEvent>,
    pub results: mpsc::Receiver<Outcome>,
    pub questions: mpsc::Receiver<Asked>,
}

/// The running node.
pub struct Driver {
    pub(super) spec: RunSpec,
    pub(super) run: Digest,
    pub(super) me: NodeId,
    pub(super) engine: Engine,
    pub(super) net: NetHandle,
    pub(super) ledger_jobs: mpsc::Sender<Job>,
    pub(super) state: Arc<SharedState>,
    pub(super) store: Arc<Store>,
    pub(super) data: Arc<Dataset>,
    pub(super) screen: Screen,
    pub(super) settings: Settings,
    pub(super) results: mpsc::Sender<Outcome>,
    pub(super) started: Instant,
    pub(super) device: Device,
    pub(super) variants: Variants,
    pub(super) contributions: Contributions,
    pub(super) residuals: Residuals,
    pub(super) reductions: Reductions,
    pub(super) fetches: Fetches,
    pub(super) undurable: Undurable,
    pub(super) finish: Option<Finish>,
    pub(super) gauges: Gauges,
    /// The head whose members the network was told of: lineage, number, and [`Engine::invitations`].
    pub(super) standing_told: Option<(Digest, u64, u64)>,
    pub(super) inputs: VecDeque<Input>,
}

impl Driver {
    /// Runs the node to its end.
    pub async fn run(parts: Parts) -> Result<Finish, Failure> {
        let (results, result_queue) = mpsc::channel(RESULTS_MAX);
        let Parts { net_events, questions, ledger, mut trainer, .. } = parts;
        let Ledger { jobs: ledger_jobs, done: ledger_done, state, thread: ledger_thread, .. } = ledger;
        let threads = trainer.thread.take().into_iter().chain([ledger_thread]).collect();
        let trainer_events = std::mem::replace(&mut trainer.events, mpsc::channel(1).1);
        let mut driver = Driver {
            reductions: Reductions::new(parts.run, parts.spec.sync.clone()),
            spec: parts.spec,
            run: parts.run,
            me: parts.me,
            engine: parts.engine,
            net: parts.net,
            ledger_jobs,
            state,
            store: parts.store,
            data: parts.data,
            screen: parts.screen,
            settings: parts.settings,
            results,
            started: Instant::now(),
            device: Device::new(trainer),
            variants: parts.variants,
            contributions: Contributions::default(),
            residuals: parts.residuals,
            fetches: Fetches::default(),
            undurable: Undurable::default(),
            finish: None,
            gauges: Gauges::new(),
            standing_told: None,
            inputs: VecDeque::new(),
        };
        let mut queues =
            Queues { net_events, questions, ledger_done, trainer_events, results: result_queue, early: parts.early };
        let finish = match driver.fly(&mut queues).await {
            Ok(failed) => driver.close(&mut queues, failed).await,
            Err(failure) => {
                driver.device.halt();
                driver.net.shutdown().await;
                driver.screen.close();
                drop(driver);
                Err(failure)
            }
        };
        let reports = std::mem::replace(&mut queues.trainer_events, mpsc::channel(1).1);
        drop(queues);
        signals::end_of(threads, reports).await;
        finish
    }

    /// Handles events until the node is to end. Returns what its work at the end of the run failed for, if it did.
    async fn fly(&mut self, queues: &mut Queues) -> Result<Option<Failure>, Failure> {
        let mut alarm = Alarm::default();
        let mut signals = Signals::new()?;
        self.feed(Input::Tick).await?;
        self.hand_over(Matter::Start).await?;
        self.hand_in_kept(true);
        self.feed(Input::Tick).await?;
        self.show_budget();
        for event in std::mem::take(&mut queues.early) {
            self.net_event(event).await?;
        }
        loop {
            while self.finish.is_none() {
                tokio::select! {
                    biased;
                    _ = signals.recv() => self.feed(Input::Leave).await?,
                    Some(done) = queues.ledger_done.recv() => self.ledger_done(done).await?,
                    Some(event) = queues.net_events.recv() => self.net_event(event).await?,
                    Some(result) = queues.results.recv() => self.result(result).await?,
                    Some(happened) = queues.trainer_events.recv() => self.trainer_event(happened).await?,
                    Some(asked) = queues.questions.recv() => self.answer(asked).await?,
                    () = alarm.rings(self.wake_at()) => {
                        self.show_lasting_wait();
                        self.feed(Input::Tick).await?;
                    }
                    else => return Err(Failure::message(Code::Refused, "an inner part of the node stopped; see the log")),
                }
                self.look_around();
            }
            // An amendment may add to the budget while the others get the last record.
            if let ControlFlow::Break(failed) = self.end_of_run(queues).await {
                return Ok(failed);
            }
        }
    }

    /// Hands inputs to the engine until no further one follows from its outputs.
    pub(super) async fn feed(&mut self, input: Input) -> Result<(), Failure> {
        self.inputs.push_back(input);
        while let Some(input) = self.inputs.pop_front() {
            let now = Time(self.started.elapsed().as_micros() as u64);
            for output in self.engine.handle(input, now) {
                self.carry_out(output).await?;
            }
        }
        self.tell_standing();
        self.tell_fellows();
        Ok(())
    }

    fn desk(&mut self) -> (&mut Variants, Desk<'_>) {
        let Self { variants, state, contributions, device, screen, gauges, results, inputs, .. } = self;
        (variants, Desk { state, contributions, device, screen, gauges, results, inputs })
    }

    /// Hands a matter to the parts of this run. Inputs that follow are handled after the outputs at hand.
    pub(super) fn hand(&mut self, matter: Matter<'_>) {
        let (variants, mut desk) = self.desk();
        variants.take(matter, &mut desk);
    }

    /// Hands a matter to the parts from outside of the engine's outputs: inputs that follow are handled at once.
    pub(super) async fn hand_over(&mut self, matter: Matter<'_>) -> Result<(), Failure> {
        self.hand(matter);
        self.use_device().await?;
        // `feed` handles all queued inputs, so it gets the last one.
        match self.inputs.pop_back() {
            Some(last) => self.feed(last).await,
            None => Ok(()),
        }
    }

    /// A job for the device beside rounds.
    pub(super) fn beside(&mut self) -> Option<trainer::Job> {
        let (variants, mut desk) = self.desk();
        variants.beside(&mut desk)
    }

    /// Queues an input that follows from an output; it is handled after the outputs at hand.
    pub(super) fn later(&mut self, input: Input) {
        self.inputs.push_back(input);
    }

    pub(super) async fn ledger_done(&mut self, done: LedgerReply) -> Result<(), Failure> {
        match done {
            LedgerReply::Applied { key, update, state_root } => {
                self.feed(Input::Applied { key, update, state_root }).await
            }
            LedgerReply::NotApplied { key, update, reason } => {
                self.feed(Input::NotApplied { key, update, reason }).await
            }
            LedgerReply::Verified { state_root } => self.feed(Input::StateVerified { state_root }).await,
            LedgerReply::Durable { token } => {
                let (sends, committed) = self.undurable.release(token);
                sends.into_iter().for_each(|(to, bytes)| self.say(to, bytes));
                committed.into_iter().for_each(|committed| self.show_committed(committed));
                self.feed(Input::Durable { token }).await?;
                self.start_wanted_round().await
            }
            LedgerReply::Mended { why } => {
                metrics::counter!("starling_own_faults_total").increment(1);
                self.show(Event::OwnFault { detail: format!("{why}; it was read from disk again") });
                Ok(())
            }
            LedgerReply::Checkpoint { purpose, outcome } => {
                self.show_checkpoint(purpose, outcome);
                Ok(())
            }
            LedgerReply::Fatal(failure) => Err(failure),
        }
    }

    pub(super) async fn net_event(&mut self, event: NetEvent) -> Result<(), Failure> {
        match event {
            NetEvent::PeerUp { peer } => {
                self.note_name(&peer);
                self.show(Event::PeerUp { peer: peer.to_string() });
                self.feed(Input::PeerUp { peer }).await
            }
            NetEvent::PeerDown { peer, reason } => {
                self.show(Event::PeerDown { peer: peer.to_string(), reason: reason.to_string() });
                self.feed(Input::PeerDown { peer }).await
            }
            NetEvent::PeerGone { peer } => self.feed(Input::PeerGone { peer }).await,
            NetEvent::Control { from, bytes, opened } => self.hear(from, bytes, opened).await,
            NetEvent::Refused { peer, reason } => {
                self.show(Event::Refused { peer: peer.to_string(), reason });
                Ok(())
            }
            NetEvent::Duplicate { peer, hello } => self.feed(Input::Duplicate { peer, hello }).await,
            NetEvent::Bulk { from, stream } => {
                self.reductions.route(from, stream);
                Ok(())
            }
            NetEvent::Pair { from, stream } => {
                self.hand(Matter::Stream(from, stream));
                Ok(())
            }
            NetEvent::Listening { address } => {
                self.settings.ports.note(&address);
                self.show(Event::Listening { address: address.to_string() });
                Ok(())
            }
            NetEvent::DialFailed { peer, address, why } => {
                self.show(Event::dial_failed(peer, address, why));
                Ok(())
            }
            NetEvent::ListenFailed { why } => Err(Failure::message(Code::Refused, why)),
            NetEvent::OtherVersion { peer, theirs } => {
                metrics::counter!("starling_refused_total", "reason" => "version").increment(1);
                let reason =
                    format!("it runs {theirs}, which this release does not understand: run the same release on both");
                self.show(Event::Refused { peer: peer.to_string(), reason });
                Ok(())
            }
            NetEvent::Bystander { peer } => self.feed(Input::Bystander { peer }).await,
            NetEvent::RoundTrip { peer, time } => {
                let micros = u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
                self.feed(Input::Rtt { peer, micros }).await
            }
            NetEvent::HolePunched { peer } => {
                self.show(Event::HolePunched { peer: peer.to_string() });
                Ok(())
            }
            NetEvent::NoDirectWay { peer } => {
                self.show(Event::NoDirectWay { peer: peer.to_string() });
                Ok(())
            }
            NetEvent::ExternalAddress { .. } => Ok(()),
        }
    }

    /// The time at which the driver acts without an event: the engine asked to be woken, or a wait has lasted.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        let engine = self.engine.wake_at().map(|at| self.started + Duration::from_micros(at.0));
        let shown = self.gauges.waiting.as_ref().map(|(_, since)| *since + WAIT_SHOWN);
        engine.into_iter().chain(shown).min()
    }

    /// Shows a wait that has lasted: every round waits a moment, and a person wants to know of long waits only.
    fn show_lasting_wait(&mut self) {
        let Some((event, _)) = self.gauges.waiting.take_if(|(_, since)| since.elapsed() >= WAIT_SHOWN) else { return };
        let Some(hold) = self.engine.view().hold else { return self.show(event) };
        self.gauges.waiting = Some((event, Instant::now() + (HOLD_SHOWN - WAIT_SHOWN)));
        let why = hold_text(&hold);
        self.show(Event::Waiting { on: ids(hold.on), why });
    }

    pub(super) fn show(&mut self, event: Event) {
        self.screen.show(&event);
    }
}
