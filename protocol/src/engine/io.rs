//! The inputs of the engine and its outputs.

use super::config::VoteState;
use crate::admission::Revocation;
use crate::amendment::{Amendment, Changes};
use crate::ancestry::Ancestry;
pub use crate::candidate::AttemptKey;
use crate::candidate::Candidate;
use crate::certificate::Split;
use crate::difference::Difference;
use crate::evidence::Contradiction;
use crate::grid::Grid;
use crate::message::{Awaits, Certificate, Evidence, Phase};
use crate::outer::Rule;
use crate::record::{Done, Measured, Record, Span};
use crate::run::{Codec, Minority};
use crate::update::{self, Stated};
use crate::{Digest, NodeId};
use std::sync::Arc;

/// Microseconds on the driver's monotonic clock; only differences matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Time(pub u64);

/// One contributor of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct Contribution {
    pub member: NodeId,
    pub stated: Stated,
    pub payload: Digest,
}

impl Contribution {
    /// The weight of each contribution of one attempt ([`update::weights`]).
    pub fn weights(all: &[Self]) -> Vec<f32> {
        let stated: Vec<Stated> = all.iter().map(|contribution| contribution.stated).collect();
        update::weights(&stated)
    }
}

/// A difference to mix into a contribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merge {
    pub lineage: Digest,
    /// The number of tokens that the difference counts for.
    pub tokens: u64,
    /// The median norm by which the difference is clipped, as in [`crate::difference::Limits`].
    pub norm_bits: u32,
}

/// A head that was decided, no matter which peer told of it first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proven {
    pub record: Digest,
    /// Tokens of the record.
    pub tokens: u64,
    /// The way to the record. The end of the way is the record's lineage and number.
    pub ancestry: Ancestry,
    /// The voters that vote on the record after it.
    pub voters: Vec<NodeId>,
}

impl Proven {
    /// The proven head of a record with this digest, to which `ancestry` leads.
    pub fn of(record: &Record, digest: Digest, ancestry: Ancestry) -> Self {
        let voters = record.voters().map(|voter| voter.id).collect();
        Self { record: digest, tokens: record.tokens, ancestry, voters }
    }
}

/// The outcome of the look at a peer's claim to stand on a record.
#[derive(Clone, Debug, PartialEq)]
pub enum Claim {
    Proven(Proven),
    /// The peer did not prove it: the peer is gone, slow, or stands elsewhere by now.
    Open {
        why: String,
    },
    /// The claim is of a chain that has no record in common with this node's, and was not looked at.
    Foreign,
    /// What the peer showed proves nothing: `why` is the label of a counter.
    False {
        why: &'static str,
    },
}

/// The name of a write; [`Output::Send`] may wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PersistToken(pub u64);

/// An event that the engine is told of.
#[derive(Clone, Debug)]
pub enum Input {
    /// A control channel to `peer` works (authenticated by the transport): all messages sent from now on arrive, in
    /// order, or `PeerDown` follows. A replaced connection is a `PeerDown` and a `PeerUp`.
    PeerUp { peer: NodeId },
    /// The control channel does not work any more.
    PeerDown { peer: NodeId },
    /// After `PeerDown`: the peer's machine says that nothing listens any more where the last connection led, so its
    /// process has ended.
    PeerGone { peer: NodeId },
    /// Bytes of one control message as `from` sent them.
    Message { from: NodeId, bytes: Vec<u8> },
    /// The same, but the driver has opened it outside the engine's thread by [`crate::wire::check`], with the engine's
    /// verifier, run and identity. Bytes that do not open come as `Message`, so that the engine refuses them with the
    /// reason.
    Opened { from: NodeId, opened: crate::wire::Opened, bytes: Vec<u8> },
    /// A process with the key of `peer` says this Hello on another connection than that of the control channel. The
    /// driver repeats the input about once a second, until one of the two processes is gone, or `Admit` or `Deny`
    /// follows.
    Duplicate { peer: NodeId, hello: Vec<u8> },
    /// Time passed. The driver sends one when [`super::Engine::wake_at`] says so.
    Tick,
    /// An inner step of the current round is done.
    TrainProgress { round: u64, step: u32 },
    /// The inner steps of the round are done, or were cut short, and the pseudo-gradient is ready. If no step was done,
    /// the driver says nothing and the round goes on.
    Trained {
        round: u64,
        base: Digest,
        samples: u64,
        tokens: u64,
        steps: u32,
        loss_q16: u32,
        payload: Digest,
        measured: Measured,
    },
    /// The driver holds, on disk, the difference of a lineage that gave way. It replaces any difference before. Given
    /// at a start and after a catch-up that has led to another lineage.
    Difference { difference: Difference },
    /// The contribution that [`Output::Merge`] asked for, made for this round from this state: digest and norm (bits of
    /// an f32). With None the difference is incomplete, and gone.
    Mixed { round: u64, base: Digest, made: Option<(Digest, u32)> },
    /// The fragment that [`Output::Retake`] asked for: digest and norm (bits of an f32). With None the trainer has no
    /// parameters of its own any more.
    Retaken { round: u64, base: Digest, made: Option<(Digest, u32)> },
    /// A peer that the user named is no node, and will never have a head.
    Bystander { peer: NodeId },
    /// A measured round-trip time to a peer.
    Rtt { peer: NodeId, micros: u32 },
    /// How far the attempt's reduction is here; grows while something moves. Owners count the bytes moved both ways,
    /// and say what they wait for. A ring counts what has *arrived*, by hops first. The member after a bad link is
    /// therefore the furthest behind of all members.
    ReduceProgress { key: AttemptKey, bytes: u64, awaits: Option<Awaits> },
    /// The attempt's encoded update is complete here.
    Reduced { key: AttemptKey, update: Digest },
    /// The reduction cannot go on, perhaps because of `suspect`; certainly because of it if something that it sent was
    /// `refused`.
    ReduceFailed { key: AttemptKey, suspect: Option<NodeId>, refused: bool, reason: String },
    /// The outer step with this update of the attempt was computed on a copy of the state.
    Applied { key: AttemptKey, update: Digest, state_root: Digest },
    /// The update is not at hand any more, or does not apply.
    NotApplied { key: AttemptKey, update: Digest, reason: String },
    /// A catch-up received something: bytes so far. Without this input a member on a slow link looks stuck.
    CatchUpProgress { bytes: u64 },
    /// The write named by the token is on disk.
    Durable { token: PersistToken },
    /// The node's canonical state is now that of `record`, which is durable here with the votes that decided it.
    /// `ancestry` is the way to that record.
    CaughtUp { record: Record, certificate: Option<Certificate>, ancestry: Ancestry },
    /// No source could bring the node to the head it asked for. The node's state from before is intact.
    CatchUpFailed { reason: String },
    /// The outcome of [`Output::Prove`] about this record.
    Claim { peer: NodeId, record: Digest, outcome: Claim },
    /// A catch-up, or the look at a claim, found that another's chain differs within one lineage from the chain held
    /// here, from this place on. After a catch-up it comes before `CatchUpFailed`; after a look at a claim it comes
    /// after `Claim`.
    Contradicted { split: Box<Split> },
    /// A candidate that [`Output::Fetch`] asked for is here, with an update that has the digest of its record.
    Fetched { candidate: Candidate },
    /// The root of the state that the node holds, computed anew.
    StateVerified { state_root: Digest },
    /// No source could give the candidate of this attempt with this record.
    FetchFailed { key: AttemptKey, record: Digest },
    /// The operator hands in a revocation by the run's creator; one that the creator did not sign is dropped.
    Revoke { revocation: Revocation },
    /// The operator hands in an amendment: the run's creator's, or, in a run without one, an amendment that the operator
    /// agrees to. One that [`super::Engine::check_amendment`] refuses is dropped.
    Amend { amendment: Amendment },
    /// The operator wants this node to go (SIGTERM, Ctrl-C).
    Leave,
}

/// An order to the driver; the driver carries orders out in order.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "large ones are rare, and none is kept")]
pub enum Output {
    /// Send a control message; if a write is named, only after it is on disk.
    Send { to: NodeId, bytes: Vec<u8>, after: Option<PersistToken> },
    /// Run inner steps from the state at hand, over the lease.
    Train {
        round: u64,
        /// The record that made the state.
        base: Digest,
        lease: Span,
        /// Inner steps for the whole lease.
        inner_steps: u32,
        /// The work of the lineage so far, for the schedule.
        done: Done,
    },
    /// Meanwhile up to `steps` inner steps of the next round may be done over this lease. The lease is the one that the
    /// record gives if the attempt that was just begun is committed on top of the state of `base`. If a `Train` for
    /// that round, after a COMMIT on top of `base`, has this very lease, these steps are its first ones. Otherwise, and
    /// when another `Ahead` comes with another lease, they are dropped and not counted at all. The contribution made
    /// before contains none of them. With `steps` 0, in a run with an external task, the lease is only told.
    Ahead { round: u64, base: Digest, lease: Span, inner_steps: u32, done: Done, steps: u32 },
    /// Take the fragment of this round from the trainer's own parameters at its last contribution, with what was
    /// committed since; answer with `Retaken`.
    Retake { round: u64, base: Digest },
    /// The trainer's own parameters do not count any more: it begins from the canonical parameters everywhere.
    StartOver,
    /// End the inner steps of this round after the one under way and answer with `Trained`: the other members are done.
    CutShort { round: u64 },
    /// Stop the inner steps of this round and forget them.
    StopTraining { round: u64 },
    /// Mix the held difference into the contribution of so many tokens just trained ([`crate::difference::Mix`]);
    /// answer with `Mixed`. Keep the contribution itself, too: the node may offer it without the difference.
    Merge { round: u64, base: Digest, tokens: u64, merge: Merge },
    /// The difference of this lineage is of no use any more, because a member has merged it.
    DropDifference { lineage: Digest },
    /// Average these contributions. Members are in ring order; this node's own is the one made for this round. `flock`
    /// holds the members that the head expects, by ascending id, whether they are in the attempt or not, and the
    /// bandwidth of their uplinks in kbit/s (0 if unknown). With a `grid` of several rows these are reduced over rows
    /// and columns, whatever engine the run names.
    Reduce { key: AttemptKey, members: Vec<Contribution>, flock: Vec<(NodeId, u32)>, grid: Arc<Grid>, codec: Codec },
    /// Drop everything of this attempt: streams, partial sums, speculative state. This node's contribution stays until
    /// a COMMIT takes it in or a later one is made. Persisted candidates and their updates stay until the head moves.
    Abandon { key: AttemptKey },
    /// Compute the state after the outer step with the update of this digest, which the attempt's reduction or a
    /// `Fetched` has brought; answer with `Applied` or `NotApplied`. Two results of one attempt differ in the update.
    Speculate { key: AttemptKey, update: Digest, rule: Rule },
    /// Write, synced, in one batch: the statement that this node is about to sign, and the candidate that the statement
    /// names (with the attempt's update). Answer with `Durable`.
    Persist { token: PersistToken, vote_state: VoteState, candidate: Option<Candidate> },
    /// The record is decided. With a key: apply the attempt's update (`Speculate` has been answered) and keep the
    /// contribution only if `mine` is false. Without one the state stays. Write record and certificate as head and
    /// drop all candidates, synced; answer with `Durable`.
    Commit { token: PersistToken, key: Option<AttemptKey>, record: Record, certificate: Certificate, mine: bool },
    /// Members disagree about a result: compute the root of the state at hand anew and answer with `StateVerified`.
    VerifyState,
    /// Bring this candidate here from any of `sources`, which hold it on disk; answer with `Fetched` or
    /// `FetchFailed`. One for each key at a time.
    Fetch { key: AttemptKey, record: Digest, sources: Vec<NodeId> },
    /// Found a lineage: write this record as head with the initial state; answer with `Durable`.
    Found { token: PersistToken, record: Record },
    /// Bring the canonical state to `target` or a later record of its chain, from any of `sources`; answer with
    /// `CaughtUp` or `CatchUpFailed`. With `afresh`, the state held is not on that chain (or not trusted): replace it,
    /// once the new state is complete. The engine asks for one catch-up at a time.
    CatchUp { lineage: Digest, seq: u64, target: Digest, sources: Vec<NodeId>, afresh: bool },
    /// Have `peer` show the path to its claimed head, record `seq` of digest `record`, and check the path
    /// ([`crate::path`]); answer with [`Input::Claim`]. All other work goes on meanwhile. With `foreign` a path may
    /// begin at a genesis that is not on this node's chain; without it such a path is [`Claim::Foreign`] and is not
    /// looked at. At most [`super::CLAIMS_MAX`] are under way, each of another peer.
    Prove { peer: NodeId, seq: u64, record: Digest, foreign: bool },
    /// This member has contradicted itself, and here is the proof: show it and keep it on disk. The driver writes it at
    /// any time: nothing depends on it. At most `EVIDENCE_MAX` are kept at a time.
    Evidence { against: NodeId, what: Contradiction, evidence: Evidence },
    /// The evidence on disk against this node is of no use any more.
    DropEvidence { against: NodeId },
    /// Close the connection to this peer and count the reason.
    Refuse { peer: NodeId, refusal: Refusal },
    /// Put the process of this key that waits on another connection in place of the one that has the control channel,
    /// and close the connections of the latter: `PeerDown`, and `PeerUp` of the former.
    Admit { peer: NodeId },
    /// Hand the process that waits on another connection this proof, if there is any, and close its connections. The
    /// control channel stays as it is.
    Deny { peer: NodeId, proof: Option<Vec<u8>> },
    /// Something a user wants to know.
    Notice(Notice),
    /// Nothing more will happen: write the final checkpoint and exit. [`Self::GoesOn`] may take this back as long as the
    /// process lives.
    Finished { reason: Finish },
    /// The run, whose budget was spent, has got more of it by an amendment, and this node goes on.
    GoesOn,
}

/// The reason why bytes or a peer were not accepted. Each has a counter.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Refusal {
    /// Not a canonical message, or over a limit.
    Malformed { what: &'static str },
    /// The signature does not hold.
    BadSignature,
    /// Another protocol version.
    Version { theirs: u16, ours: u16 },
    /// Another run: the differing keys, as `key: ours, theirs`.
    RunMismatch { keys: Vec<String> },
    /// The same identity runs elsewhere.
    IdentityInUse,
    /// A contradiction of something signed before.
    Equivocation { what: &'static str },
    /// The evidence that it passed on against another node proves nothing.
    FalseEvidence { why: &'static str },
    /// The path that it showed to its claimed head proves nothing.
    FalseClaim { why: &'static str },
    /// Not admitted: its ticket or identity does not let it in.
    NotAdmitted { why: &'static str },
    /// Not a message for this moment (another lineage, round or attempt). Counted; the peer stays.
    Stale,
    /// The flock is full.
    Full,
}

/// What a user is told.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Notice {
    Founded {
        lineage: Digest,
    },
    /// No peer with a head met yet.
    Seeking {
        peers: usize,
    },
    PhaseChanged {
        phase: Phase,
        round: u64,
    },
    /// The members that the node waits for, and why in plain words.
    Waiting {
        on: Vec<NodeId>,
        why: &'static str,
    },
    /// The round has waited for these newcomers, for so many microseconds, before this node said READY.
    Waited {
        newcomers: Vec<NodeId>,
        micros: u64,
    },
    AttemptStarted {
        round: u64,
        attempt: u32,
        members: Vec<NodeId>,
    },
    AttemptFailed {
        round: u64,
        attempt: u32,
        suspect: Option<NodeId>,
        reason: String,
    },
    Committed {
        record: Digest,
        round: u64,
        members: Vec<NodeId>,
        tokens: u64,
    },
    /// The settings after the head's are others than before: the number of amendments so far, the newest one's name,
    /// all changes, and the first round in which they are in force.
    Amended {
        number: u32,
        name: Digest,
        changes: Changes,
        round: u64,
    },
    /// The difference of this lineage, which gave way to this node's, is in the state now.
    Merged {
        lineage: Digest,
        round: u64,
    },
    MemberJoined {
        member: NodeId,
        round: u64,
    },
    MemberLeft {
        member: NodeId,
        round: u64,
        reason: &'static str,
    },
    /// A round was given up without a result.
    Skipped {
        record: Digest,
        lineage: Digest,
        seq: u64,
    },
    /// No quorum is in reach. After the grace, in microseconds, the node does what the run's policy says.
    QuorumLost {
        policy: Minority,
        missing: Vec<NodeId>,
        grace: u64,
    },
    /// The quorum is in reach again.
    Rejoined,
    /// This node goes on in a new lineage.
    Forked {
        lineage: Digest,
        members: Vec<NodeId>,
    },
    /// Another lineage of the run was met; `yields` tells whether this node's yields to it.
    LineageMet {
        lineage: Digest,
        yields: bool,
    },
    /// Two certified records of one lineage at one place: the promise is broken, and here is the proof.
    SplitBrain {
        ours: Certificate,
        theirs: Certificate,
    },
    /// This node's disk is older than what other nodes have seen it sign, or holds nothing: it speaks anew, as a
    /// learner.
    NewIncarnation {
        incarnation: u64,
        why: &'static str,
    },
    /// This node's result differs from the decided one: its state is fetched anew.
    OwnFault {
        detail: &'static str,
    },
    /// This node was off the flock's head and fetches anew.
    RolledBack {
        from_seq: u64,
        to_seq: u64,
    },
    /// Fetching state or records failed; it is tried again.
    CatchUpFailed {
        reason: String,
    },
    Refused {
        peer: NodeId,
        refusal: Refusal,
    },
}

/// The reason why a node ends by itself.
#[derive(Clone, Debug, PartialEq)]
pub enum Finish {
    /// The token or round budget is spent.
    BudgetSpent,
    /// The operator asked.
    Left,
    /// Another process runs under this identity, and was started before this one (exit 6).
    Fenced,
    /// The flock that this node met runs another run (exit 3).
    RunMismatch { peer: NodeId, keys: Vec<String> },
}
