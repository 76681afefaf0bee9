//! The round engine: `handle(input, now) -> outputs` (`docs/protocol/README.md` tells it in full).
//!
//! ```text
//!            PeerUp, Message ...          Trained        Reduced     Applied        votes
//!                   |                        |              |           |             |
//!  Seeking -> CatchingUp -> Joining -> Training -> Ready -> Reducing -> Settling -> next record
//!                   ^         (let in)        ^               |             |
//!                   |                         +-- set voted --+             |  COMMIT or SKIP
//!                   +---- a certified record beyond the head, or another lineage
//! ```
//!
//! *Attempts* ([`attempt`], [`assembly`]). Attempt 0 averages the READYs of all members that the head record expects.
//! When an attempt fails at some member's deadline, the voters decide by vote on the set of the next one. Contributions
//! are reused.
//!
//! *Decisions* ([`decision`]). A voter that has an attempt's result on disk enters the vote on the record with it. A
//! voter that lacks the result fetches it first. When attempts are exhausted, voters enter with SKIP. The vote itself
//! is [`crate::ballot`]; its proof is a [`crate::message::Certificate`].
//!
//! *Vote state* ([`vote_state`]). A node writes what it signs in a vote before it sends it. A node whose vote state is
//! lost or old speaks under a new incarnation, as a learner.
//!
//! *Evidence* ([`conduct`]). Two statements of one node that contradict each other are kept, shown and passed on, and
//! lead to its removal by a record.
//!
//! *Partitions* ([`partition`]). Without a quorum in reach, a node does after a grace what the run's policy says.
//!
//! *Merging* ([`offer`]). The difference of a lineage that gave way goes into one contribution to the winner.
//!
//! *Duplicates* ([`duplicate`]). If two processes have one key, the older goes on and proves to the newer that it does.
//!
//! *Liveness* ([`liveness`]). Silence, lost connections and missing progress count against a member; slow progress does
//! not. Deadlines are measured, and count only time in which this node itself was awake.
//!
//! *Machines.* Each part owns its fields, reads the context that all may read ([`ctx`]) and adds its orders to the
//! output ([`outbox::Out`]). [`Engine`] says what the result of one part means for another. It routes inputs here,
//! messages of peers in [`inbox`], and the course from one record to the next in [`course`].

mod amending;
mod amendments;
mod assembly;
mod attempt;
mod beat;
mod blame;
mod chain;
mod claims;
mod clock;
mod conduct;
pub(crate) mod config;
mod course;
mod ctx;
mod deadline;
mod decision;
mod dissemination;
mod due;
mod duplicate;
mod fetch;
mod heeding;
mod identity;
mod inbox;
mod invitation;
pub mod io;
mod life;
mod liveness;
mod newcomers;
mod offer;
mod outbox;
mod pace;
mod partition;
mod peer;
mod proven;
mod pulse;
mod quorum_loss;
mod reach;
mod refusal;
mod relay;
mod results;
mod round;
mod split;
mod statement;
mod streaming;
pub mod succession;
mod sync;
mod terms;
mod touch;
mod view;
mod vote;
mod vote_state;
mod watch;

pub use crate::candidate::Candidate;
pub use claims::CLAIMS_MAX;
pub use config::{EngineConfig, Founding, PAST_MAX, Stored, Timing, VoteState};
pub use newcomers::Hold;
pub use peer::PEERS_MAX;
pub use view::{EvidenceView, Held, MemberState, MemberView, QuorumView, View, Waiting};

use crate::amendment::{Amendment, NotAmended};
use crate::record::Record;
use crate::run::RunSpec;
use crate::{Digest, NodeId};
use beat::Beat;
use clock::{Clock, Moment};
use conduct::Conduct;
use ctx::Ctx;
use io::{Finish, Input, Output, Time};
use life::{FirstRound, Life, Start};
use offer::{Offer, Work};
use outbox::Out;
use relay::Relay;
use round::{Round, Training};
use std::collections::BTreeSet;
use sync::Sync;
use view::Spoken;
use vote_state::OwnVotes;

/// How often an engine goes through its state after one input.
const PASSES_MAX: usize = 4;

/// The engine of one node. The module's text says what it does, and [`io`] what goes in and out.
pub struct Engine {
    clock: Clock,
    ctx: Ctx,
    life: Life,
    first_round: FirstRound,
    own_votes: OwnVotes,
    conduct: Conduct,
    offer: Offer,
    sync: Sync,
    beat: Beat,
    spoken: Spoken,
    relay: Relay,
    stir: Stir,
    out: Out,
}

/// Whether the input at hand may change more than the part that took it, and when the state was last gone through.
#[derive(Debug, Default)]
struct Stir {
    more: bool,
    advanced_at: Moment,
}

/// A view of the engine to read from while its other parts may change.
macro_rules! scene {
    ($engine:expr) => {
        $crate::engine::view::Scene {
            ctx: &$engine.ctx,
            round: $engine.life.round(),
            catch_up: &$engine.sync.catch_up,
            conduct: &$engine.conduct,
            newcomers: &$engine.offer.newcomers,
            end: $engine.life.end(),
            founds: $engine.life.founds(),
        }
    };
}
use scene;

impl Engine {
    /// An engine that has not started: the first input starts it.
    pub fn new(config: EngineConfig) -> Self {
        let EngineConfig { signer, verifier, spec, run, boot, found, stored, copied, .. } = config;
        let EngineConfig { ticket, guides, adopt, force_fork, timing, .. } = config;
        let offer = Offer::new(&spec);
        Self {
            clock: Clock::default(),
            ctx: Ctx::new((signer, verifier), (run, spec), boot, ticket, timing),
            life: Life::New(Box::new(Start { found, stored, copied, force_fork })),
            first_round: FirstRound::default(),
            own_votes: OwnVotes::default(),
            conduct: Conduct::default(),
            offer,
            sync: Sync::new(guides, adopt),
            beat: Beat::default(),
            spoken: Spoken::default(),
            relay: Relay::default(),
            stir: Stir::default(),
            out: Out::default(),
        }
    }

    /// Takes one input at the driver's time and returns what is to be done, in order.
    ///
    /// After `Finished` with a spent budget the engine still tells its head, and hands its certificate to peers that
    /// ask, and goes on if an amendment adds to the budget. After any other end it is silent.
    pub fn handle(&mut self, input: Input, now: Time) -> Vec<Output> {
        self.ctx.now = self.clock.advance(now, self.ctx.timing.step_max);
        if self.ctx.began.is_none() {
            self.ctx.began = Some(self.ctx.now);
            self.start();
        }
        match self.life.end() {
            None => {
                self.stir.more = true;
                let awaited = self.ctx.watch.clear();
                self.take(input);
                // Deadlines that the input made the engine look at do not wake it: they are looked at again with the
                // next input.
                self.ctx.watch.clear();
                if self.stir.more || self.ctx.may_look_again(self.stir.advanced_at) {
                    self.stir.advanced_at = self.ctx.now;
                    self.advance();
                } else {
                    self.ctx.watch.resume(awaited);
                    self.beat();
                }
            }
            Some(Finish::BudgetSpent) => {
                self.take(input);
                self.ctx.watch.clear();
                if self.life.end().is_none() {
                    self.advance();
                } else {
                    self.look_beyond_the_end();
                    self.beat();
                }
            }
            Some(_) => {}
        }
        std::mem::take(&mut self.out.outputs)
    }

    fn take(&mut self, input: Input) {
        let (ctx, out) = (&mut self.ctx, &mut self.out);
        match input {
            Input::PeerUp { peer } => self.peer_up(peer),
            Input::PeerDown { peer } => self.peer_down(peer),
            Input::PeerGone { peer } => ctx.peer_gone(peer),
            Input::Message { from, bytes } => self.receive(from, None, &bytes),
            Input::Opened { from, opened, bytes } => self.receive(from, Some(opened), &bytes),
            Input::Duplicate { peer, hello } => ctx.meet_duplicate(peer, &hello, out),
            Input::Tick => {}
            Input::Trained { round, base, samples, tokens, steps, loss_q16, payload, measured } => {
                self.trained(round, base, Work { samples, tokens, steps, loss_q16, payload, measured });
            }
            Input::Difference { difference } => self.offer.hold_difference(difference, ctx, out),
            Input::Mixed { round, base, made } => {
                if self.offer.mixed(round, base, made) {
                    self.say_ready();
                }
            }
            Input::Retaken { round, base, made } => self.retaken(round, base, made),
            Input::Bystander { peer } => self.sync.guides.retain(|guide| *guide != peer),
            Input::Rtt { peer, micros } => ctx.measured_rtt(peer, micros),
            Input::Durable { token } => self.durable(token),
            Input::CatchUpProgress { bytes } => self.sync.catch_up.progress(bytes),
            Input::CaughtUp { record, certificate, ancestry } => self.caught_up(record, certificate, ancestry),
            Input::CatchUpFailed { reason } => self.catch_up_failed(reason),
            Input::Claim { peer, record, outcome } => self.judge_claim(peer, record, outcome),
            Input::Contradicted { split } => self.contradicted(&split),
            Input::Revoke { revocation } => self.conduct.revoke(revocation, ctx),
            Input::Amend { amendment } => {
                ctx.propose(amendment, out);
                self.go_on_if_amended();
            }
            Input::Leave => self.leave(),
            Input::TrainProgress { .. }
            | Input::ReduceProgress { .. }
            | Input::Reduced { .. }
            | Input::ReduceFailed { .. }
            | Input::Applied { .. }
            | Input::NotApplied { .. }
            | Input::Fetched { .. }
            | Input::StateVerified { .. }
            | Input::FetchFailed { .. } => self.take_of_round(input),
        }
    }

    /// Takes the result of work on the next record. A node without a seat in the round drops it.
    fn take_of_round(&mut self, input: Input) {
        let Some(round) = self.life.round_mut() else { return };
        let (ctx, out, stands) = (&self.ctx, &mut self.out, self.sync.catch_up.is_idle());
        match input {
            Input::TrainProgress { round: number, step } => round.train_progress(number, step),
            Input::ReduceProgress { key, bytes, awaits } => round.reduce_progress(&key, bytes, awaits, ctx),
            Input::Reduced { key, update } => round.reduced(&key, update, ctx, out),
            Input::ReduceFailed { key, suspect, refused, reason } => {
                round.reduce_failed(&key, (suspect, refused), &reason, &mut self.conduct, (ctx, out));
            }
            Input::Applied { key, update, state_root } => {
                let result = (&key, &update);
                let known = round.made_anew(result, state_root, ctx)
                    || round.rebuilt_fetched(result, state_root, stands, (ctx, out));
                if !known {
                    round.applied(&key, &update, state_root, ctx, out);
                }
            }
            Input::NotApplied { key, update, reason } => round.not_applied(&key, &update, &reason, ctx, out),
            Input::Fetched { candidate } => {
                if let Some(readys) = round.check_fetched(&candidate, ctx) {
                    self.conduct.compare_readys(&readys, round, ctx, out);
                    round.rebuild(candidate, ctx, out);
                }
            }
            Input::StateVerified { state_root } => round.state_verified(state_root, stands, ctx, out),
            Input::FetchFailed { key, record } => round.results.fetch_failed(&key, &record, ctx),
            _ => {}
        }
        self.heed_doubts();
    }

    /// Fetches this node's own state anew if it was found to be damaged.
    fn heed_doubts(&mut self) {
        if std::mem::take(&mut self.out.doubts) {
            // The sources are asked for the state at once.
            self.ctx.distrusted = true;
            self.ctx.watch.begin();
        }
    }

    /// Does all that follows from the present state; runs after each input that may change something. If a wait begins,
    /// the state is gone through once more. Otherwise no wake-up would be set for the end of that wait.
    fn advance(&mut self) {
        for _ in 0..PASSES_MAX {
            self.ctx.watch.clear();
            self.pass();
            if !self.ctx.watch.has_begun() {
                return;
            }
        }
        self.ctx.wake_at_once();
    }

    fn pass(&mut self) {
        if self.life.end().is_none() && !self.ctx.frozen {
            self.consider_heads();
            self.ctx.hear_quorum();
            self.watch_quorum();
            self.advance_round();
            self.leave_when_due();
        }
        if self.speaks() {
            self.beat();
            self.spoken.speak(&scene!(self), &mut self.out);
            scene!(self).foresee();
        }
    }

    /// Whether this engine still says anything.
    fn speaks(&self) -> bool {
        self.life.end().is_none_or(|end| *end == Finish::BudgetSpent)
    }

    fn watch_quorum(&mut self) {
        let Some(round) = self.life.round_mut() else { return };
        if !self.sync.catch_up.is_idle() {
            round.quorum_loss.reset();
        } else if let Some(fork) = round.watch_quorum(&self.ctx, &mut self.out) {
            round.fork(fork, &mut self.offer, &self.ctx, &mut self.out);
        }
    }

    /// Moves the round on. The round moves on by itself nowhere else.
    fn advance_round(&mut self) {
        let Some(round) = self.life.round_mut().filter(|_| self.sync.catch_up.is_idle()) else { return };
        round.begin_training(&self.ctx, &mut self.out);
        if self.offer.newcomers.holds() {
            // It is said once nobody has to be waited for any more.
            self.say_ready();
        }
        loop {
            let before = attempt_of(self.life.round());
            for step in [Self::check_attempt, Self::decide, Self::gather] {
                // Each step may have closed the round for the next.
                if self.life.round().is_some_and(|round| round.committing.is_none()) {
                    step(self);
                    self.heed_doubts();
                }
            }
            // The end of an attempt takes effect now, and not with the next input. A round has few attempts.
            if attempt_of(self.life.round()) == before {
                return;
            }
        }
    }

    fn check_attempt(&mut self) {
        if let Some(round) = self.life.round_mut() {
            round.check_attempt(&self.ctx, &mut self.out);
        }
    }

    fn decide(&mut self) {
        let Some(round) = self.life.round_mut() else { return };
        if let Some(decided) = round.step_decision(&self.ctx, &mut self.out, &mut self.own_votes) {
            round.commit(decided, &mut self.offer, &self.ctx, &mut self.out);
        }
    }

    fn gather(&mut self) {
        let Some(round) = self.life.round_mut() else { return };
        if !round.may_gather(&self.ctx, &mut self.out) {
            return;
        }
        if round.has_rival(&self.ctx) {
            // Says READY anew, without the difference that it merges.
            self.renew();
            self.say_ready_anew();
        }
        if let Some(round) = self.life.round_mut() {
            round.gather(&self.ctx, &mut self.out, &mut self.own_votes);
        }
    }

    /// The time at which something happens without an input: the driver's next `Tick` is due then, and none before.
    /// Inputs move that time, so the driver asks after each.
    pub fn wake_at(&self) -> Option<Time> {
        let (at, _) = self.ctx.watch.next().filter(|_| self.speaks())?;
        self.clock.driver_time(at)
    }

    /// Whether an input has come that this node looks at only when it wakes: a tick before then changes more than the
    /// time.
    pub fn has_unseen(&self) -> bool {
        self.ctx.watch.has_unseen()
    }

    fn finish(&mut self, reason: Finish) {
        if self.life.end().is_none() {
            self.life = Life::Ended(reason.clone());
            self.out.push(Output::Finished { reason });
        }
    }

    /// Whether this node has trained, and keeps its READY back for newcomers.
    pub fn keeps_ready_back(&self) -> bool {
        let is_due = |round: &Round| round.part.training == Training::Done && round.part.ready.is_none();
        self.offer.newcomers.holds() && self.sync.catch_up.is_idle() && self.life.round().is_some_and(is_due)
    }

    /// The state as a person sees it.
    pub fn view(&self) -> View {
        scene!(self).view()
    }

    /// How much this engine holds of what others make it hold.
    pub fn held(&self) -> Held {
        scene!(self).held()
    }

    /// The run's terms as they are in force after the head.
    pub fn in_force(&self) -> &RunSpec {
        &self.ctx.rules
    }

    /// Whether an amendment that the operator hands in would count.
    ///
    /// # Errors
    /// The reason why it would not.
    pub fn check_amendment(&self, amendment: &Amendment) -> Result<(), NotAmended> {
        self.ctx.check_amendment(amendment)
    }

    /// Amendments that no record holds yet: name, content, and whether this node's operator agrees.
    pub fn proposals(&self) -> Vec<(Digest, Amendment, bool)> {
        self.ctx.proposals()
    }

    /// Whether a catch-up is under way.
    pub fn catches_up(&self) -> bool {
        !self.sync.catch_up.is_idle()
    }

    /// The node's head record, if it has one.
    pub fn head(&self) -> Option<&Record> {
        self.ctx.head.as_ref().map(|head| &head.record)
    }

    /// A number that changes when [`Self::invited`] does, except for changes that a new head makes.
    pub fn invitations(&self) -> u64 {
        self.ctx.invitations.wrapping_add(self.offer.newcomers.changes())
    }

    /// The members that this node is to be connected with. None: every node of the run that it meets.
    pub fn contacts(&self) -> Option<BTreeSet<NodeId>> {
        self.ctx.contacts()
    }

    /// Whether this node is to be connected with another that it meets.
    pub fn is_contact(&self, id: &NodeId) -> bool {
        self.ctx.is_contact(id)
    }

    /// Nodes without a seat that the run admits, as far as this node knows. Strangers must not take their places.
    pub fn invited(&self) -> Vec<NodeId> {
        let mut invited = self.ctx.invited();
        invited.extend(self.offer.newcomers.awaited_now());
        invited
    }
}

/// The number of the round's attempt.
fn attempt_of(round: Option<&Round>) -> Option<u32> {
    round.map(|round| round.attempts.number)
}
