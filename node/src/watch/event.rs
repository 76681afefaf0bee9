//! The events of a node, as `--json` prints them: one object a line, documented in `docs/events.md`.
//!
//! Fields are only ever added. Ids are full hex; times are seconds since the Unix epoch.

use libp2p::Multiaddr;
use serde::Serialize;
use starling_protocol::NodeId;
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// One line of `--json`.
#[derive(Debug, Serialize)]
pub struct Line<'a> {
    /// Seconds since the Unix epoch.
    pub time: f64,
    /// The node's id.
    pub node: &'a str,
    #[serde(flatten)]
    pub event: &'a Event,
}

impl<'a> Line<'a> {
    pub fn now(node: &'a str, event: &'a Event) -> Self {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map(|d| d.as_secs_f64()).unwrap_or_default();
        Self { time, node, event }
    }
}

/// Every event that a watcher may want to know.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The node is set up; nothing has been exchanged yet.
    Started {
        version: &'static str,
        run: String,
        run_digest: String,
        home: String,
        device: String,
        parameters: u64,
        memory_bytes: u64,
        /// Bytes that the node's folder comes to take at most.
        disk_bytes: u64,
        /// Address of the Prometheus metrics; none if they are switched off.
        metrics: Option<String>,
    },
    /// The node has looked on the disk for residuals of earlier processes.
    Residuals {
        /// Fragments that go on with residuals from the disk.
        kept: usize,
        /// Fragments without a true file, which begin with zeros.
        lost: usize,
        /// Euclidean norm of all kept residuals.
        norm: f64,
    },
    /// Tokenizing or fetching text.
    Data {
        manifest: String,
        train_sequences: u64,
        validation_bytes: u64,
        order1_entropy: f64,
    },
    Listening {
        address: String,
    },
    PeerUp {
        peer: String,
    },
    PeerDown {
        peer: String,
        reason: String,
    },
    /// A direct connection came about with a relay's help.
    HolePunched {
        peer: String,
    },
    /// No direct connection came about.
    NoDirectWay {
        peer: String,
    },
    /// A peer is dialed in vain: said once until it has been here, and counted in the status.
    DialFailed {
        peer: String,
        address: String,
        reason: String,
    },
    /// The node founded a lineage.
    Founded {
        lineage: String,
    },
    /// The node waits for `on`, for this reason.
    Waiting {
        on: Vec<String>,
        why: String,
    },
    /// The round waited for these newcomers before this node said READY.
    WaitedForNewcomers {
        newcomers: Vec<String>,
        seconds: f64,
    },
    Phase {
        phase: String,
        round: u64,
    },
    /// An inner step; shown every few seconds only.
    Step {
        round: u64,
        step: u32,
        steps: u32,
        loss: f64,
        tokens_per_second: f64,
    },
    /// The inner steps of a round are done.
    Trained {
        round: u64,
        loss: f64,
        tokens: u64,
        seconds: f64,
    },
    /// An exchange between inner steps, or that the node went on alone.
    Exchanged {
        round: u64,
        /// From 1 in each round.
        exchange: u32,
        partner: Option<String>,
        /// The reason, if the node went on alone.
        alone: Option<String>,
        /// The reason in plain words.
        why: Option<String>,
        seconds: f64,
    },
    AttemptStarted {
        round: u64,
        attempt: u32,
        members: Vec<String>,
    },
    AttemptFailed {
        round: u64,
        attempt: u32,
        suspect: Option<String>,
        reason: String,
    },
    /// A round was decided.
    Committed(Committed),
    /// Validation loss of the committed model, in nats per token and per byte.
    Validated {
        round: u64,
        loss: f64,
        nats_per_byte: f64,
    },
    /// The losses show that the training goes wrong.
    Diverges {
        round: u64,
        why: String,
    },
    /// The trainer that this node's user brings has come, or has gone.
    Trainer {
        here: bool,
        why: String,
    },
    MemberJoined {
        member: String,
        round: u64,
    },
    MemberLeft {
        member: String,
        round: u64,
        reason: String,
    },
    /// The attempts at a round were given up: the head moves on, the state does not.
    Skipped {
        record: String,
        lineage: String,
        seq: u64,
    },
    /// Too few voters are in reach to decide anything.
    QuorumLost {
        /// The run's policy, which takes effect after the grace: `fork`, `wait` or `halt`.
        policy: String,
        missing: Vec<String>,
        grace_s: f64,
    },
    /// Enough voters are in reach again.
    Rejoined,
    /// This node goes on in a lineage of its own, with the members that lost the quorum with it.
    Forked {
        lineage: String,
        members: Vec<String>,
    },
    /// Another lineage of the run was met.
    LineageMet {
        lineage: String,
        /// Whether this node's lineage gives way to it.
        yields: bool,
    },
    /// This node has left a lineage for another, and keeps its difference until it is merged.
    DifferenceKept {
        lineage: String,
        tokens: u64,
    },
    /// The difference of a lineage that gave way cannot be merged from here.
    DifferenceLost {
        lineage: String,
        reason: String,
    },
    /// Other terms of the run are in force from this round on: all values that differ from the run file's.
    Amended {
        number: u32,
        id: String,
        changes: BTreeMap<String, String>,
        round: u64,
    },
    /// The difference of a lineage that gave way is in the state now.
    Merged {
        lineage: String,
        round: u64,
    },
    /// Two certified records contradict each other; these are both certificates.
    SplitBrain {
        ours: String,
        theirs: String,
    },
    /// A node has contradicted itself; these are both statements as it signed them.
    Evidence {
        against: String,
        /// `ready`, `estimate` or `vote`.
        what: String,
        first: String,
        second: String,
    },
    /// The node's vote state is gone or old: it signs under a new one, and follows until it is a voter again.
    NewIncarnation {
        incarnation: u64,
        why: String,
    },
    /// This node's state or result is not the decided one.
    OwnFault {
        detail: String,
    },
    /// The node was off the flock's head and fetches anew.
    RolledBack {
        from_seq: u64,
        to_seq: u64,
    },
    CatchingUp {
        seq: u64,
        sources: usize,
        afresh: bool,
    },
    /// A catch-up is under way; every few seconds.
    Fetching {
        bytes: u64,
        /// Bytes of the whole state, if all of it is fetched.
        of: Option<u64>,
        seconds: f64,
        /// Seconds until it is here, at the pace so far.
        left_s: Option<f64>,
    },
    /// The state arrives more slowly than the flock waits for.
    SlowLine {
        /// Bytes of the state.
        bytes: u64,
        mbit: f64,
        /// None if the flock waits for nobody.
        needed_mbit: Option<f64>,
        patience_s: f64,
    },
    /// The bytes that each peer has sent to a catch-up that has ended.
    Fetched {
        sources: Vec<FetchedFrom>,
    },
    CaughtUp {
        seq: u64,
        bytes: u64,
        seconds: f64,
    },
    CatchUpFailed {
        reason: String,
    },
    Refused {
        peer: String,
        reason: String,
    },
    Checkpoint {
        path: String,
        round: u64,
    },
    /// A checkpoint was due or asked for, and was not written; the node goes on.
    CheckpointFailed {
        reason: String,
    },
    Finished {
        reason: String,
    },
}

impl Event {
    /// A peer that is dialed in vain.
    pub fn dial_failed(peer: NodeId, address: Option<Multiaddr>, reason: String) -> Self {
        let address = address.map_or_else(|| "any address".to_owned(), |address| address.to_string());
        Self::DialFailed { peer: peer.to_string(), address, reason }
    }
}

/// One peer of [`Event::Fetched`].
#[derive(Clone, Debug, Serialize)]
pub struct FetchedFrom {
    pub peer: String,
    pub state_bytes: u64,
    pub update_bytes: u64,
}

/// The fields of [`Event::Committed`].
#[derive(Clone, Debug, Serialize)]
pub struct Committed {
    pub seq: u64,
    pub round: u64,
    pub record: String,
    pub lineage: String,
    pub state_root: String,
    /// The nodes whose contributions were averaged.
    pub contributors: Vec<String>,
    /// Members of the next round, and how many of them vote.
    pub members: usize,
    pub voters: usize,
    /// Inner steps (H) of a member at full speed, the codec of updates, and the most bits that it takes for a value:
    /// all of the next round.
    pub inner_steps: u32,
    pub codec: String,
    pub bits_per_value: f64,
    /// Committed tokens of the lineage.
    pub tokens: u64,
    /// Mean training loss of the contributors, in nats per token, weighted by tokens.
    pub loss: f64,
    /// Bytes that this node has sent since its start, all protocols.
    pub bytes_sent: u64,
    #[serde(flatten)]
    pub timing: RoundTiming,
}

/// Times of a round on this node.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct RoundTiming {
    /// Time from the last commit to this one.
    pub seconds: f64,
    /// Time from the start of the attempt to the complete update.
    pub reduce_seconds: f64,
    /// Time from this node's last inner step to the commit on disk: the wait for slower members, and the overhead. Zero
    /// if the node trained nothing in this round.
    pub settle_seconds: f64,
    /// Time from the arrival of the last contribution to the commit on disk: the cost of the round beyond training.
    pub overhead_seconds: f64,
    /// Time in which the trainer had nothing to do, not even steps ahead of the record.
    pub idle_seconds: f64,
    /// Tokens a second of this node in the round's inner steps.
    pub tokens_per_second: f64,
}
