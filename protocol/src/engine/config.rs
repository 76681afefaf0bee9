//! The configuration that an engine starts with.

use crate::ancestry::Ancestry;
use crate::candidate::Candidate;
use crate::limits::CONTROL_BYTES_MAX;
use crate::message::{Certificate, Evidence, Stamp, Value};
use crate::record::Record;
use crate::run::RunSpec;
use crate::wire::{WireError, binary};
use crate::{Digest, NodeId, Signer, Verifier};
use serde::{Deserialize, Serialize};

/// Everything an [`super::Engine`] needs to know at its start.
pub struct EngineConfig {
    pub signer: Box<dyn Signer>,
    pub verifier: Box<dyn Verifier>,
    /// The run, already validated.
    pub spec: RunSpec,
    /// The run's digest: bound into every signature.
    pub run: Digest,
    /// Fresh for each start of the process and rising from one to the next, such as the wall clock in microseconds. If
    /// two processes have one key, the one with the larger number is the newer and gives way.
    pub boot: u64,
    /// Found a lineage; ignored when `stored` holds one.
    pub found: Option<Founding>,
    /// What the node's disk holds.
    pub stored: Option<Stored>,
    /// The disk's content is a copy of another node's folder, or a restored backup: the original may have voted since.
    pub copied: bool,
    /// The encoded ticket that this node shows when it asks to be let in; empty without one.
    pub ticket: Vec<u8>,
    /// Peers that the user named. Without a head, this node prefers the lineage of one of them to any other.
    pub guides: Vec<NodeId>,
    /// The operator's order (`--adopt-lineage`): follow this lineage, and none that has not passed through it, no
    /// matter which lineage this node holds.
    pub adopt: Option<Digest>,
    /// Found a fork of the stored lineage at once, no matter which members are there (`--force-lineage`).
    pub force_fork: bool,
    pub timing: Timing,
}

/// How to found a lineage (`docs/protocol/7-merging.md` §7.3.3).
#[derive(Clone, Debug)]
pub struct Founding {
    /// Makes this lineage differ from every other of the same founder.
    pub nonce: u64,
    /// Root of the initial parameters and of an optimizer that has seen nothing.
    pub state_root: Digest,
}

/// The number of certificates of records before the head from which a started node learns what others have signed.
pub const PAST_MAX: usize = 7;

/// The content of a restarted node's disk.
#[derive(Clone, Debug)]
pub struct Stored {
    /// The newest record; its state (or that of its base) is the node's.
    pub head: Record,
    /// The votes that decided it; none for a genesis record.
    pub certificate: Option<Certificate>,
    /// Certificates of the records before the head, as many as are at hand and at most [`PAST_MAX`]. They show what
    /// others have signed; if all nodes have restarted at once, no node may remember it.
    pub past: Vec<Certificate>,
    /// The way to the head, as far back as the disk tells.
    pub ancestry: Ancestry,
    /// The last signed vote of this identity; none on a new or wiped disk.
    pub vote_state: Option<VoteState>,
    /// Results that were written before they were spoken of, oldest first; their updates are on the disk, too.
    pub candidates: Vec<Candidate>,
    /// Evidence that this node was told to keep.
    pub evidence: Vec<Evidence>,
}

/// The newest vote of an incarnation. It is written before it is sent, so that a restarted process goes on where the
/// one before stopped and never says anything else instead (`docs/protocol/4-agreement.md` §4.5.8, §4.9).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoteState {
    pub incarnation: u64,
    pub lineage: Digest,
    /// The record that the question follows.
    pub parent: Digest,
    pub stamp: Stamp,
    /// The newest estimate on this question, and its ballot.
    pub estimate: Option<(u32, Value)>,
    /// The newest vote on this question: its ballot, its value, and whether it is a vote for that value.
    pub vote: Option<(u32, Value, bool)>,
}

/// Encodes a vote state, in the one way there is.
pub fn encode_vote_state(vote_state: &VoteState) -> Vec<u8> {
    binary::encode(vote_state)
}

/// Decodes a vote state from the disk.
pub fn decode_vote_state(bytes: &[u8]) -> Result<VoteState, WireError> {
    binary::decode::<_, CONTROL_BYTES_MAX>("vote state", bytes)
}

/// Bounds in microseconds. Deadlines tune themselves within them by measurements. All deadlines trigger messages; none
/// enters a record.
#[derive(Clone, Debug)]
pub struct Timing {
    /// Time between two `Head` messages when nothing changes.
    pub heartbeat: u64,
    /// The node concludes nothing from a shorter silence.
    pub patience_min: u64,
    /// The node does not wait longer than this while nothing moves at all.
    pub patience_max: u64,
    /// The longest wait before anything was measured: a first step may have to compile kernels.
    pub unmeasured: u64,
    /// A connection may be gone for so long before its member counts as dead.
    pub down_grace: u64,
    /// A restarted node listens for so long before it trains: the flock may have gone on.
    pub settle: u64,
    /// Time between two requests to be let in.
    pub join_every: u64,
    /// Time for which a request to be let in holds.
    pub join_valid: u64,
    /// Time between two repetitions of messages that others may have missed.
    pub repeat: u64,
    /// First pause after a catch-up or a fetch that failed; doubles up to 32 times this.
    pub retry: u64,
    /// The most that the engine ages between two inputs.
    pub step_max: u64,
}

const SECOND: u64 = 1_000_000;

impl Default for Timing {
    fn default() -> Self {
        Self {
            heartbeat: SECOND,
            patience_min: 4 * SECOND,
            patience_max: 600 * SECOND,
            unmeasured: 120 * SECOND,
            down_grace: 2 * SECOND,
            settle: 2 * SECOND,
            join_every: 3 * SECOND,
            join_valid: 10 * SECOND,
            repeat: 2 * SECOND,
            retry: SECOND,
            step_max: SECOND,
        }
    }
}
