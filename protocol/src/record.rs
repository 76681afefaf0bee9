//! The hash-chained records that rounds end in (`protocol.md` §6).

use crate::run::Codec;
use crate::{Digest, NodeId};
use serde::{Deserialize, Serialize};

/// What a record says. The numbers are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum RecordKind {
    /// The founder's first record: round 0, initial parameters, nobody contributed.
    Genesis = 0,
    /// A round's update was applied.
    Commit = 1,
}

/// One link of a lineage. All but the contributors and the update is a pure function of the parent, so two nodes
/// with the same of both build the same bytes and nobody proposes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub run: Digest,
    pub lineage: Digest,
    pub seq: u64,
    /// Digest of the record before; zero in a genesis record.
    pub parent: Digest,
    pub kind: RecordKind,
    /// The round that this record ends; counts COMMITs.
    pub round: u64,
    /// Whose contributions the update averages, by ascending member id.
    pub contributors: Vec<Contributor>,
    /// Digest of the encoded update; zero in a genesis record.
    pub update: Digest,
    /// State after applying.
    pub state_root: Digest,
    /// Tokens of all contributions of this lineage so far.
    pub tokens: u64,
    /// First sample index that was never leased.
    pub cursor: u64,
    /// What the next round does.
    pub next: NextRound,
}

/// One contribution as a record lists it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contributor {
    pub member: NodeId,
    /// Digest of the member's signed READY envelope.
    pub ready: Digest,
    pub tokens: u64,
    pub steps: u32,
    /// Mean training loss of the round in nats per token, times 2^16.
    pub loss_q16: u32,
}

/// Settings of the round after a record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NextRound {
    /// Inner steps (H).
    pub inner_steps: u32,
    pub codec: Codec,
    /// Members and what each may train on, by ascending member id.
    pub members: Vec<Lease>,
}

/// A contiguous range of positions in the run's sample permutation, for one member and one round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub member: NodeId,
    /// First position.
    pub start: u64,
    /// Number of positions (sequences).
    pub count: u64,
}
