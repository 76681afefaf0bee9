//! What goes into the engine and what comes out of it.

use super::config::VoteState;
use crate::admission::Revocation;
use crate::ancestry::Ancestry;
pub use crate::candidate::AttemptKey;
use crate::candidate::Candidate;
use crate::certificate::Split;
use crate::difference::Difference;
use crate::evidence::Contradiction;
use crate::message::{Awaits, Certificate, Evidence, Phase};
use crate::outer::Rule;
use crate::record::{Measured, Record, Span};
use crate::run::{Codec, Minority};
use crate::update::{self, Stated};
use crate::{Digest, NodeId};

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
    /// What each of these weighs in their attempt ([`update::weights`]).
    pub fn weights(all: &[Self]) -> Vec<f32> {
        let stated: Vec<Stated> = all.iter().map(|contribution| contribution.stated).collect();
        update::weights(&stated)
    }
}

/// A difference to mix into a contribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merge {
    pub lineage: Digest,
    /// What it counts for.
    pub tokens: u64,
    /// The median norm that it is cut by, as in [`crate::difference::Limits`].
    pub norm_bits: u32,
}

/// A head that was decided, whoever said it first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proven {
    pub record: Digest,
    /// Tokens of the record.
    pub tokens: u64,
    /// The way to it, whose end is its lineage and number.
    pub ancestry: Ancestry,
    /// Voters after it.
    pub voters: Vec<NodeId>,
}

impl Proven {
    /// Of a record with this digest, to which this way leads.
    pub fn of(record: &Record, digest: Digest, ancestry: Ancestry) -> Self {
        let voters = record.voters().map(|voter| voter.id).collect();
        Self { record: digest, tokens: record.tokens, ancestry, voters }
    }
}

/// What came of looking at a peer's claim to stand on a record.
#[derive(Clone, Debug, PartialEq)]
pub enum Claim {
    Proven(Proven),
    /// The peer did not show it: it is gone, slow, or stands elsewhere by now.
    Open {
        why: String,
    },
    /// It is of a chain that has no record in common with this node's, and was not looked at.
    Foreign,
    /// What it showed proves nothing: `why` is the label of a counter.
    False {
        why: &'static str,
    },
}

/// Names a write; [`Output::Send`] may wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PersistToken(pub u64);

/// What happens to a node.
#[derive(Clone, Debug)]
pub enum Input {
    /// A control channel to `peer` works (authenticated by the transport): what is sent from now on arrives, in
    /// order, or `PeerDown` follows. A replaced connection is a `PeerDown` and a `PeerUp`.
    PeerUp { peer: NodeId },
    /// It does not any more.
    PeerDown { peer: NodeId },
    /// Bytes of one control message as `from` sent them.
    Message { from: NodeId, bytes: Vec<u8> },
    /// The same, which the driver has opened outside the engine's thread by [`crate::wire::check`], with the engine's
    /// verifier, run and identity. What does not open comes as `Message`, so that it is refused by its reason.
    Opened { from: NodeId, opened: crate::wire::Opened, bytes: Vec<u8> },
    /// On another connection than that of the control channel, a process with the key of `peer` says this Hello. It is
    /// told about once a second, until one of the two is gone, or `Admit` or `Deny` follows.
    Duplicate { peer: NodeId, hello: Vec<u8> },
    /// Time passed. The driver sends one when [`super::Engine::wake_at`] says so.
    Tick,
    /// An inner step of the current round is done.
    TrainProgress { round: u64, step: u32 },
    /// The inner steps of the round are done, or were cut short, and the pseudo-gradient is ready. Without any step
    /// done nothing is said and the round goes on.
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
    /// The driver holds, on disk, what a lineage that gave way has learned, in place of any before. Said at a start and
    /// after a catch-up that has led to another lineage.
    Difference { difference: Difference },
    /// The contribution that [`Output::Merge`] asked for, made for this round from this state: digest and norm (bits of an
    /// f32); without them the difference is not whole, and gone.
    Mixed { round: u64, base: Digest, made: Option<(Digest, u32)> },
    /// What [`Output::Retake`] asked for: digest and norm (bits of an f32); without them the trainer has no parameters of
    /// its own any more.
    Retaken { round: u64, base: Digest, made: Option<(Digest, u32)> },
    /// A peer that the user named is no node, and will never stand anywhere.
    Bystander { peer: NodeId },
    /// A measured round-trip time to a peer.
    Rtt { peer: NodeId, micros: u32 },
    /// How far the attempt's reduction is here: grows while something moves. Owners count the bytes moved both ways, and
    /// say what they wait for; a ring counts what has *arrived*, by hops first, so that of all members the one after a bad
    /// link is furthest behind.
    ReduceProgress { key: AttemptKey, bytes: u64, awaits: Option<Awaits> },
    /// The attempt's encoded update is complete here.
    Reduced { key: AttemptKey, update: Digest },
    /// The reduction cannot go on, perhaps because of `suspect`; for sure, if something that it sent was `refused`.
    ReduceFailed { key: AttemptKey, suspect: Option<NodeId>, refused: bool, reason: String },
    /// The outer step with this update of the attempt was computed on a copy of the state.
    Applied { key: AttemptKey, update: Digest, state_root: Digest },
    /// The update is not at hand any more, or does not apply.
    NotApplied { key: AttemptKey, update: Digest, reason: String },
    /// A catch-up received something: bytes so far. Without this a member on a slow link looks stuck.
    CatchUpProgress { bytes: u64 },
    /// The write named by the token is on disk.
    Durable { token: PersistToken },
    /// The node's canonical state is now that of `record`, which is durable here with the votes that decided it.
    /// `ancestry` is the way to that record.
    CaughtUp { record: Record, certificate: Option<Certificate>, ancestry: Ancestry },
    /// No source could bring the node to the head it asked for; the state that it held before is intact.
    CatchUpFailed { reason: String },
    /// What came of [`Output::Prove`] about this record.
    Claim { peer: NodeId, record: Digest, outcome: Claim },
    /// A catch-up, or the look at a claim, found another's chain to differ from the one held here within a lineage, from
    /// this place on. Comes before the `CatchUpFailed` of the one, and after the `Claim` of the other.
    Contradicted { split: Box<Split> },
    /// A candidate that was asked for by [`Output::Fetch`] is here, with an update that has the digest of its record.
    Fetched { candidate: Candidate },
    /// The root of the state that the node holds, computed anew.
    StateVerified { state_root: Digest },
    /// Nobody could give the candidate of this attempt with this record.
    FetchFailed { key: AttemptKey, record: Digest },
    /// The operator hands in a revocation by the run's creator; one that the creator did not sign is dropped.
    Revoke { revocation: Revocation },
    /// The operator wants this node to go (SIGTERM, Ctrl-C).
    Leave,
}

/// What the driver is to do, in this order.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "large ones are rare, and none is kept")]
pub enum Output {
    /// Send a control message, after the named write is on disk if there is one.
    Send { to: NodeId, bytes: Vec<u8>, after: Option<PersistToken> },
    /// Run inner steps from the state at hand, over the lease.
    Train {
        round: u64,
        /// The record that made the state.
        base: Digest,
        lease: Span,
        /// Steps for the whole lease.
        inner_steps: u32,
        /// Committed tokens so far, for the schedule.
        tokens: u64,
    },
    /// Meanwhile up to `steps` inner steps of the round after the one under way may be done, over this lease: it is what
    /// the record will give if the attempt that was just begun is committed, on top of the state of `base`. If a `Train`
    /// for that round, after a COMMIT on top of `base`, has this very lease, they are its first steps. Otherwise, and when
    /// another `Ahead` comes with another lease, they are dropped and nothing of them is counted. The contribution made
    /// before has none of them.
    Ahead { round: u64, base: Digest, lease: Span, inner_steps: u32, tokens: u64, steps: u32 },
    /// Take the fragment of this round from the trainer's own parameters as they were when its last contribution was made,
    /// with what was committed since; answer with `Retaken`.
    Retake { round: u64, base: Digest },
    /// What the trainer has of its own does not count any more: it begins from the canonical parameters everywhere.
    StartOver,
    /// End the inner steps of this round after the one under way and answer with `Trained`: the others are done.
    CutShort { round: u64 },
    /// Stop the inner steps of this round and forget them.
    StopTraining { round: u64 },
    /// Mix the difference that is held into the contribution of so many tokens just trained
    /// ([`crate::difference::Mix`]); answer with `Mixed`. The contribution itself is kept, too: it may be offered without.
    Merge { round: u64, base: Digest, tokens: u64, merge: Merge },
    /// The difference of this lineage is of no use any more: somebody has merged it.
    DropDifference { lineage: Digest },
    /// Average these contributions. Members are in ring order; mine is the one made for this round. `flock` are those
    /// whom the head expects, by ascending id, whether they are in the attempt or not, and what their uplinks can do in
    /// kbit/s, 0 if that is not known.
    Reduce { key: AttemptKey, members: Vec<Contribution>, flock: Vec<(NodeId, u32)>, codec: Codec },
    /// Drop everything of this attempt: streams, partial sums, speculative state. My contribution stays until a
    /// COMMIT takes it in or a later one is made; persisted candidates and their updates stay until the head moves.
    Abandon { key: AttemptKey },
    /// Compute the state after the outer step with the update of this digest, which the attempt's reduction or a
    /// `Fetched` has brought; answer with `Applied` or `NotApplied`. Two results of one attempt differ in it.
    Speculate { key: AttemptKey, update: Digest, rule: Rule },
    /// Write, synced, in one batch: what this node is about to sign, and the candidate that it speaks of (with the
    /// attempt's update). Answer with `Durable`.
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
    /// `CaughtUp` or `CatchUpFailed`. With `afresh`, what is held is not on that chain (or not trusted): replace it,
    /// once the new state is complete. Only one catch-up is asked for at a time.
    CatchUp { lineage: Digest, seq: u64, target: Digest, sources: Vec<NodeId>, afresh: bool },
    /// Beside whatever is under way: have `peer` show the path to record `seq` of digest `record`, which it says it stands
    /// on, and check it ([`crate::path`]); answer with [`Input::Claim`]. With `foreign` a path may begin at a genesis that is
    /// not on this node's chain, else such a one is [`Claim::Foreign`] and is not looked at. At most
    /// [`super::CLAIMS_MAX`] are under way, each of another peer.
    Prove { peer: NodeId, seq: u64, record: Digest, foreign: bool },
    /// This member has contradicted itself, and here is the proof: show it and keep it on disk. Written whenever the driver
    /// likes: nothing depends on it. At most `EVIDENCE_MAX` are kept at a time.
    Evidence { against: NodeId, what: Contradiction, evidence: Evidence },
    /// What is on disk against it is of no use any more.
    DropEvidence { against: NodeId },
    /// Close the connection to this peer and count the reason.
    Refuse { peer: NodeId, refusal: Refusal },
    /// The process of this key that waits on another connection takes the place of the one that has the control
    /// channel, whose connections are closed: `PeerDown`, and `PeerUp` of the other.
    Admit { peer: NodeId },
    /// Hand the process that waits on another connection this proof, if there is any, and close its connections; the
    /// control channel stays as it is.
    Deny { peer: NodeId, proof: Option<Vec<u8>> },
    /// Something a user wants to know.
    Notice(Notice),
    /// Nothing more will happen: write the final checkpoint and exit.
    Finished { reason: Finish },
}

/// Why bytes or a peer were not accepted. Each has a counter.
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
    /// What it passed on as evidence against another proves nothing.
    FalseEvidence { why: &'static str },
    /// What it showed of the head that it claims proves nothing.
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
    /// No flock met yet.
    Seeking {
        peers: usize,
    },
    PhaseChanged {
        phase: Phase,
        round: u64,
    },
    /// What the node waits for, in plain words, by member.
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
    /// What this lineage had learned, which gave way to this one, is in the state now.
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
    /// Some round was given up without a result.
    Skipped {
        record: Digest,
        lineage: Digest,
        seq: u64,
    },
    /// No quorum is in reach: what the run's policy makes of it after the grace, in microseconds.
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
    /// Another lineage of the run was met: whether this node's yields to it.
    LineageMet {
        lineage: Digest,
        yields: bool,
    },
    /// Two certified records of one lineage at one place: the promise is broken, and here is the proof.
    SplitBrain {
        ours: Certificate,
        theirs: Certificate,
    },
    /// This node's disk is older than what others have seen it sign, or it has none: it speaks anew, as a learner.
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

/// Why a node ends by itself.
#[derive(Clone, Debug, PartialEq)]
pub enum Finish {
    /// The token or round budget is spent.
    BudgetSpent,
    /// The operator asked.
    Left,
    /// Another process runs under this identity, and was started before this one (exit 6).
    Fenced,
    /// The flock met runs something else (exit 3).
    RunMismatch { peer: NodeId, keys: Vec<String> },
}
