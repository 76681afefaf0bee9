//! Control messages between nodes. Tensor data travels in frames of its own.

use crate::{Digest, NodeId};
use serde::{Deserialize, Serialize};

/// What one node tells another. The tags are on the wire and never reused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Message {
    Hello(Hello),
    Head(Head),
    Join(Join),
    Ready(Ready),
    Form(Form),
    Report(Report),
    Leave(Leave),
}

/// First message in each direction of a connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    pub version: u16,
    /// The encoded `RunSpec`: a peer that differs can name the differing keys.
    pub spec: Vec<u8>,
    /// Fresh for each start of a process: two live nonces under one key are a cloned identity (`protocol.md` §8).
    pub boot: u64,
}

/// Heartbeat: where I stand. Sent on every change and once a second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// Zero while the sender has met no flock.
    pub lineage: Digest,
    pub seq: u64,
    pub record: Digest,
    /// Committed tokens of the lineage: what decides between two heads.
    pub tokens: u64,
    pub phase: Phase,
    /// Grows while the sender makes progress in its phase (inner steps done, bytes reduced).
    pub progress: u64,
    /// The newest report that this node has made on top of `record`, if any.
    pub report: Option<Report>,
}

/// What a node is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Has met no flock yet.
    Seeking,
    /// Fetching state or records.
    CatchingUp,
    /// Has the flock's head and asks to be let in.
    Joining,
    Training,
    /// Trained; waits for the others.
    Ready,
    Reducing,
    /// Applying and reporting.
    Settling,
    /// The run's budget is spent.
    Finished,
}

/// "I hold this state; count me in from the next round on."
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Join {
    pub lineage: Digest,
    pub seq: u64,
    pub record: Digest,
    pub state_root: Digest,
}

/// A member's one immutable statement of a round (`protocol.md` §4).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ready {
    pub lineage: Digest,
    /// The record that this round is to end in.
    pub seq: u64,
    pub round: u64,
    pub parent: Digest,
    pub state_root: Digest,
    /// Positions `lease_start .. lease_start + samples` were trained on.
    pub lease_start: u64,
    pub samples: u64,
    pub tokens: u64,
    pub steps: u32,
    pub loss_q16: u32,
    /// Digest of the pseudo-gradient (little-endian f32).
    pub payload: Digest,
    /// Mean time of an inner step in microseconds.
    pub step_us: u32,
    /// Joins that the sender has seen and holds to be up to date.
    pub joins: Vec<NodeId>,
    /// The sender leaves after this round.
    pub leave: bool,
}

/// "I would make this attempt with these members." An attempt begins when all of them say the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Form {
    pub lineage: Digest,
    pub seq: u64,
    pub parent: Digest,
    pub attempt: u32,
    /// By ascending id.
    pub members: Vec<NodeId>,
}

/// "This attempt's result, rebuilt by me and on my disk, is this record."
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub lineage: Digest,
    pub seq: u64,
    pub attempt: u32,
    /// Digest of the attempt's members.
    pub set: Digest,
    pub record: Digest,
}

/// "I am going away": nobody needs to wait for me.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Leave {
    pub lineage: Digest,
    pub seq: u64,
}
