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
//! When it fails at somebody's deadline, voters decide by vote on the set of the next one. Contributions are reused.
//!
//! *Decisions* ([`decision`]). Whoever has an attempt's result on disk enters the vote on the record with it; whoever
//! lacks it fetches it first. When attempts are exhausted voters enter with SKIP. The vote itself is
//! [`crate::ballot`]; its proof is a [`crate::message::Certificate`].
//!
//! *Register* ([`register`]). What this identity signs in a vote is written before it is sent. A node whose register
//! is lost or old speaks under a new incarnation, as a learner.
//!
//! *Evidence* ([`evidence`]). Two statements of one node that contradict each other are kept, shown and passed on, and
//! lead to its removal by a record.
//!
//! *Partitions* ([`partition`]). Without a quorum in reach the run's policy says what happens after a grace.
//!
//! *Merging* ([`merging`]). What a lineage that gave way has learned goes into one contribution to the winner.
//!
//! *Namesakes* ([`namesake`]). Of two processes with one key the older goes on, and proves to the newer that it does.
//!
//! *Liveness* ([`liveness`]). Silence, lost connections and missing progress count against a member; slow but moving
//! does not. Deadlines are measured, and count only time in which this node itself was awake.

mod assembly;
mod attempt;
mod blame;
mod chain;
mod claims;
mod clock;
mod config;
mod decision;
mod dissemination;
mod evidence;
mod fetch;
mod inbox;
mod invitation;
pub mod io;
mod liveness;
mod merging;
mod namesake;
mod outbox;
mod partition;
mod peer;
mod reach;
mod refusal;
mod register;
mod round;
mod speech;
mod split;
mod statement;
mod streaming;
pub mod succession;
mod view;

pub use claims::CLAIMS_MAX;
pub use config::{Candidate, EngineConfig, Founding, PAST_MAX, Register, Stored, Timing};
pub use peer::PEERS_MAX;
pub use view::{EvidenceView, Held, MemberState, MemberView, QuorumView, View, Waiting};

use crate::admission::Revocation;
use crate::ancestry::Ancestry;
use crate::difference::Difference;
use crate::identity::{NodeId, Signer, Verifier};
use crate::run::RunSpec;
use crate::{Digest, wire};
use chain::{CatchUp, Standing};
use clock::{Clock, Moment};
use io::{Finish, Input, Notice, Output, PersistToken, Time};
use outbox::Beat;
use partition::Cut;
use peer::Peers;
use register::Voice;
use round::{Contribution, Round};
use std::collections::{BTreeMap, VecDeque};
use view::Spoken;

/// Records behind the head that a joiner may stand on, and whose certificates are kept at hand.
const HISTORY_MAX: usize = 8;

/// In a large flock heartbeats and READYs that change nothing by themselves are looked at together, after so many
/// microseconds at the latest: else each of them would cost as much as the flock is large.
const QUIET_MAX: u64 = 100_000;

/// The engine of one node. See the module's text for what it does and [`io`] for what goes in and out.
pub struct Engine {
    me: NodeId,
    signer: Box<dyn Signer>,
    verifier: Box<dyn Verifier>,
    spec: RunSpec,
    spec_bytes: Vec<u8>,
    run: Digest,
    boot: u64,
    /// The boot that this process began with.
    first_boot: u64,
    /// Boots that it has said in Hellos, newest last.
    boots: VecDeque<u64>,
    /// The newest later start of this key that this process has been shown.
    namesake: u64,
    ticket: Vec<u8>,
    /// How often somebody has shown a ticket that admits it.
    invitations: u64,
    /// What the run's creator has revoked, as far as this node was told: spread in its READYs.
    revocations: Vec<Revocation>,
    /// Who has contradicted itself.
    convicted: evidence::Convicted,
    timing: Timing,
    clock: Clock,
    now: Moment,
    began: Option<Moment>,
    found: Option<Founding>,
    stored: Option<Stored>,
    copied: bool,
    force_fork: bool,
    founding: Option<(PersistToken, crate::record::Record)>,
    end: Option<Finish>,
    /// Two certified records contradict each other: nothing is done or said any more but heads.
    frozen: bool,
    /// The operator wants this node to go; it stays for the record under way until then.
    leaving: Option<Moment>,
    head: Option<Standing>,
    /// The head and records before it, newest last.
    history: VecDeque<Standing>,
    peers: Peers,
    voice: Voice,
    /// What this node has trained and no COMMIT has taken in yet.
    contribution: Option<Contribution>,
    /// Where this start of the process has said READY, newest last.
    offered: VecDeque<(Digest, u64, Digest)>,
    round: Option<Round>,
    /// Members for which this node does not vouch, and up to which round.
    shunned: BTreeMap<NodeId, u64>,
    /// Whom each member has accused first.
    accused: BTreeMap<NodeId, NodeId>,
    /// What the driver keeps of a lineage that gave way, until somebody has merged it.
    difference: Option<Difference>,
    catch_up: CatchUp,
    /// The way to the head.
    ancestry: Ancestry,
    claims: claims::Claims,
    guides: Vec<NodeId>,
    adopt: Option<Digest>,
    cut: Cut,
    /// From the decision on the newest record until it was on the disk, in microseconds.
    commit_took: u64,
    tokens: u64,
    beat: Beat,
    spoken: Spoken,
    /// The input at hand may move something besides what it was put into.
    stirs: bool,
    advanced_at: Moment,
    out: Vec<Output>,
}

impl Engine {
    /// An engine that has not started: the first input starts it.
    pub fn new(config: EngineConfig) -> Self {
        let EngineConfig {
            signer,
            verifier,
            spec,
            run,
            boot,
            found,
            stored,
            copied,
            ticket,
            guides,
            adopt,
            force_fork,
            timing,
        } = config;
        Self {
            me: signer.id(),
            spec_bytes: wire::encode_spec(&spec),
            signer,
            verifier,
            spec,
            run,
            boot,
            first_boot: boot,
            boots: VecDeque::new(),
            namesake: 0,
            ticket,
            invitations: 0,
            revocations: Vec::new(),
            convicted: evidence::Convicted::new(),
            timing,
            clock: Clock::default(),
            now: Moment::default(),
            began: None,
            found,
            stored,
            copied,
            force_fork,
            founding: None,
            end: None,
            frozen: false,
            leaving: None,
            head: None,
            history: VecDeque::new(),
            peers: Peers::new(),
            voice: Voice::new(boot),
            contribution: None,
            offered: VecDeque::new(),
            round: None,
            shunned: BTreeMap::new(),
            accused: BTreeMap::new(),
            difference: None,
            catch_up: CatchUp::default(),
            ancestry: Ancestry::default(),
            claims: claims::Claims::default(),
            guides,
            adopt,
            cut: Cut::default(),
            commit_took: 0,
            tokens: 0,
            beat: Beat::default(),
            spoken: Spoken::default(),
            stirs: true,
            advanced_at: Moment::default(),
            out: Vec::new(),
        }
    }

    /// Takes one input at the driver's time and says what to do, in order.
    ///
    /// After `Finished` with a spent budget the engine still tells its head, and hands out its certificate, to whoever
    /// asks; after any other end it is silent.
    pub fn handle(&mut self, input: Input, now: Time) -> Vec<Output> {
        self.now = self.clock.advance(now, self.timing.step_max);
        if self.began.is_none() {
            self.began = Some(self.now);
            self.start();
        }
        match self.end {
            None => {
                self.stirs = true;
                self.take(input);
                if self.stirs || self.now.since(self.advanced_at) >= QUIET_MAX {
                    self.advanced_at = self.now;
                    self.advance();
                } else {
                    self.beat();
                }
            }
            Some(Finish::BudgetSpent) => {
                if matches!(
                    input,
                    Input::PeerUp { .. }
                        | Input::PeerDown { .. }
                        | Input::Message { .. }
                        | Input::Opened { .. }
                        | Input::Namesake { .. }
                        | Input::Leave
                ) {
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
            Input::Opened { from, opened, bytes } => self.receive_opened(from, opened, &bytes),
            Input::Namesake { peer, hello } => self.meet_namesake(peer, &hello),
            Input::Tick => {}
            Input::TrainProgress { round, step } => self.train_progress(round, step),
            Input::Trained { round, base, samples, tokens, steps, loss_q16, payload, measured } => {
                let work = round::Work { samples, tokens, steps, loss_q16, payload, measured };
                self.trained(round, base, work);
            }
            Input::Difference { difference } => self.hold_difference(difference),
            Input::Mixed { round, base, made } => self.mixed(round, base, made),
            Input::Retaken { round, base, made } => self.retaken(round, base, made),
            Input::Bystander { peer } => self.guides.retain(|guide| *guide != peer),
            Input::Rtt { peer, micros } => self.measured_rtt(peer, micros),
            Input::ReduceProgress { key, bytes, awaits } => self.reduce_progress(&key, bytes, awaits),
            Input::Reduced { key, update } => self.reduced(&key, update),
            Input::ReduceFailed { key, suspect, refused, reason } => {
                self.reduce_failed(&key, (suspect, refused), &reason);
            }
            Input::Applied { key, update, state_root } => self.applied(&key, &update, state_root),
            Input::NotApplied { key, update, reason } => self.not_applied(&key, &update, &reason),
            Input::Durable { token } => self.durable(token),
            Input::CatchUpProgress { bytes } => self.catch_up.progress(bytes),
            Input::CaughtUp { record, certificate, ancestry } => self.caught_up(record, certificate, ancestry),
            Input::CatchUpFailed { reason } => self.catch_up_failed(reason),
            Input::Claim { peer, record, outcome } => self.judge_claim(peer, record, outcome),
            Input::Contradicted { split } => self.contradicted(&split),
            Input::Fetched { candidate } => self.fetched(candidate),
            Input::StateVerified { state_root } => self.state_verified(state_root),
            Input::FetchFailed { key, record } => self.fetch_failed(&key, &record),
            Input::Revoke { revocation } => self.revoke(revocation),
            Input::Leave => self.leave(),
        }
    }

    /// Whatever follows from the state as it is now. Idempotent; runs after each input that may move something.
    fn advance(&mut self) {
        if self.end.is_none() && !self.frozen {
            self.consider_heads();
            self.hear_quorum();
            self.watch_quorum();
            self.advance_round();
            self.leave_when_due();
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
}
