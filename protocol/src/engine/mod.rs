//! The round engine: `handle(input, now) -> outputs`.
//!
//! ```text
//!            PeerUp, Message ...            Trained        Reduced     Applied      Durable
//!                   |                          |              |           |            |
//!  Seeking -> CatchingUp -> Joining -> Training -> Ready -> Reducing -> Settling -> next round
//!                   ^           (Join, let in)      ^  Form   |  ^ Form    |
//!                   +------- a better head ---------+---------+--+---------+
//! ```
//!
//! *Attempts.* Attempt 0 is made of all members that the head record names and begins with their last READY. When a
//! member dies, or the reduction fails, survivors tell each other whom they hold to be alive (`Form`), derive the
//! same set from that ([`agreement`](self)), and begin the next attempt when all of the set say so. Contributions are
//! reused.
//!
//! *What is decided.* A member that has the attempt's result on disk reports it. A result commits when every member
//! of the attempt has reported it. A member that says `Form` has left the attempts before and never reports in them
//! again; its newest report travels in the `Head` just before. So when all of the new set have spoken, either one of
//! them left without a report, and then nobody ever can have committed that result; or all of those that were in
//! the attempt reported it, and then they commit it now, whether or not somebody that died had done so already. The
//! rule holds under crashes and restarts. Under partitions two sides may go on; the side with fewer tokens rolls
//! back when they meet. A later version puts a vote in this place.
//!
//! *Restarts.* A restarted member makes no use of attempt 0: it trains, and forms an attempt with those it meets.
//! Members that lived through the restart go on without it; it asks to be let in again.
//!
//! *Liveness.* Silence, lost connections and missing progress rule a member out for a round ([`Timing`]). Deadlines
//! count only time in which this node itself was awake.

mod agreement;
mod attempt;
mod clock;
mod config;
mod form;
mod heads;
mod inbox;
pub mod io;
mod liveness;
mod outbox;
mod peer;
mod round;
pub mod succession;
mod view;

pub use config::{EngineConfig, Founding, Stored, Timing};
pub use peer::PEERS_MAX;
pub use view::{MemberState, MemberView, View, Waiting};

use crate::identity::{NodeId, Signer, Verifier};
use crate::run::RunSpec;
use crate::{Digest, wire};
use clock::{Clock, Moment};
use heads::{CatchUp, Standing};
use io::{Finish, Input, Notice, Output, PersistToken, Time};
use outbox::Beat;
use peer::Peers;
use round::Round;
use std::collections::VecDeque;
use view::Spoken;

/// Records behind the head that a joiner may stand on.
const HISTORY_MAX: usize = 8;

/// The engine of one node. See the module's text for what it does and [`io`] for what goes in and out.
pub struct Engine {
    me: NodeId,
    signer: Box<dyn Signer>,
    verifier: Box<dyn Verifier>,
    spec: RunSpec,
    spec_bytes: Vec<u8>,
    run: Digest,
    boot: u64,
    timing: Timing,
    clock: Clock,
    now: Moment,
    began: Option<Moment>,
    found: Option<Founding>,
    stored: Option<Stored>,
    founding: Option<(PersistToken, crate::record::Record)>,
    end: Option<Finish>,
    head: Option<Standing>,
    /// The head and records before it, newest last.
    history: VecDeque<Standing>,
    peers: Peers,
    round: Option<Round>,
    catch_up: CatchUp,
    /// Parent of the newest round in which this process has said READY.
    last_ready: Option<Digest>,
    tokens: u64,
    beat: Beat,
    spoken: Spoken,
    out: Vec<Output>,
}

impl Engine {
    /// An engine that has not started: the first input starts it.
    pub fn new(config: EngineConfig) -> Self {
        let EngineConfig { signer, verifier, spec, run, boot, found, stored, timing } = config;
        Self {
            me: signer.id(),
            spec_bytes: wire::encode_spec(&spec),
            signer,
            verifier,
            spec,
            run,
            boot,
            timing,
            clock: Clock::default(),
            now: Moment::default(),
            began: None,
            found,
            stored,
            founding: None,
            end: None,
            head: None,
            history: VecDeque::new(),
            peers: Peers::new(),
            round: None,
            catch_up: CatchUp::default(),
            last_ready: None,
            tokens: 0,
            beat: Beat::default(),
            spoken: Spoken::default(),
            out: Vec::new(),
        }
    }

    /// Takes one input at the driver's time and says what to do, in order.
    ///
    /// After `Finished` with a spent budget the engine still tells its head to whoever asks; after any other end it
    /// is silent.
    pub fn handle(&mut self, input: Input, now: Time) -> Vec<Output> {
        self.now = self.clock.advance(now, self.timing.step_max);
        if self.began.is_none() {
            self.began = Some(self.now);
            self.start();
        }
        match self.end {
            None => {
                self.take(input);
                self.advance();
            }
            Some(Finish::BudgetSpent) => {
                if matches!(input, Input::PeerUp { .. } | Input::PeerDown { .. } | Input::Message { .. } | Input::Leave)
                {
                    self.take(input);
                }
                self.beat();
            }
            Some(_) => {}
        }
        std::mem::take(&mut self.out)
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::PeerUp { peer } => self.peer_up(peer),
            Input::PeerDown { peer } => self.peer_down(peer),
            Input::Message { from, bytes } => self.receive(from, &bytes),
            Input::Tick => {}
            Input::TrainProgress { round, step } => self.train_progress(round, step),
            Input::Trained { round, parent, samples, tokens, steps, loss_q16, payload, step_us } => {
                let work = round::Work { samples, tokens, steps, loss_q16, payload, step_us };
                self.trained(round, parent, work);
            }
            Input::ReduceProgress { key, bytes } => self.reduce_progress(&key, bytes),
            Input::Reduced { key, update } => self.reduced(&key, update),
            Input::ReduceFailed { key, suspect, reason } => self.reduce_failed(&key, suspect, reason),
            Input::Applied { key, state_root } => self.applied(&key, state_root),
            Input::Durable { token } => self.durable(token),
            Input::CatchUpProgress { bytes } => self.catch_up.progress(bytes),
            Input::CaughtUp { record } => self.caught_up(record),
            Input::CatchUpFailed { reason, diverged } => self.catch_up_failed(reason, diverged),
            Input::Leave => self.leave(),
        }
    }

    /// Whatever follows from the state as it is now. Runs after each input and is idempotent.
    fn advance(&mut self) {
        if self.end.is_none() {
            self.consider_heads();
            self.advance_round();
        }
        if self.end.as_ref().is_none_or(|end| *end == Finish::BudgetSpent) {
            self.beat();
            self.speak();
        }
    }

    fn start(&mut self) {
        if let Some(stored) = self.stored.take() {
            self.resume(stored);
        } else if let Some(found) = self.found.take() {
            self.found(&found);
        }
    }

    /// When time alone will make something happen: the driver's next `Tick` is due then at the latest.
    pub fn wake_at(&self) -> Option<Time> {
        match self.end {
            None => self.clock.driver_time(self.next_deadline()),
            Some(Finish::BudgetSpent) => self.clock.driver_time(self.beat.due(self.timing.heartbeat)),
            Some(_) => None,
        }
    }

    fn leave(&mut self) {
        self.say_leave();
        self.finish(Finish::Left);
    }

    fn finish(&mut self, reason: Finish) {
        if self.end.is_none() {
            self.end = Some(reason.clone());
            self.out.push(Output::Finished { reason });
        }
    }

    fn notice(&mut self, notice: Notice) {
        self.out.push(Output::Notice(notice));
    }

    fn next_token(&mut self) -> PersistToken {
        self.tokens += 1;
        PersistToken(self.tokens)
    }

    /// How long this engine has been running, in microseconds of its own clock.
    fn age(&self) -> u64 {
        self.began.map_or(0, |began| self.now.since(began))
    }
}
