//! What an engine is started with.

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
    /// Its digest: bound into every signature.
    pub run: Digest,
    /// Fresh for each start of the process and rising from one to the next, such as the wall clock in microseconds:
    /// of two processes under one key the one with the larger number is the newer and gives way.
    pub boot: u64,
    /// Found a lineage; ignored when `stored` holds one.
    pub found: Option<Founding>,
    /// What the node's disk holds.
    pub stored: Option<Stored>,
    /// What the disk holds is a copy of another's folder, or was restored from a backup: the original may have voted since.
    pub copied: bool,
    /// The encoded ticket that this node shows when it asks to be let in; empty without one.
    pub ticket: Vec<u8>,
    /// Peers that the user named: without a head, this node follows the lineage that one of them stands in rather than any other.
    pub guides: Vec<NodeId>,
    /// The operator's order: follow this lineage, and none that has not passed through it, whatever is held
    /// (`--adopt-lineage`).
    pub adopt: Option<Digest>,
    /// Found a fork of the stored lineage at once, whoever else is there (`--force-lineage`).
    pub force_fork: bool,
    pub timing: Timing,
}

/// How to found a lineage (`docs/protocol/7-merging.md` §7.3.3).
#[derive(Clone, Debug)]
pub struct Founding {
    /// Makes this lineage differ from every other of the same founder.
    pub nonce: u64,
    /// Of the initial parameters and an optimizer that has seen nothing.
    pub state_root: Digest,
}

/// Certificates of records before the head from which a started node learns what others have signed.
pub const PAST_MAX: usize = 7;

/// What a restarted node has on its disk.
#[derive(Clone, Debug)]
pub struct Stored {
    /// The newest record; its state (or that of its base) is the node's.
    pub head: Record,
    /// The votes that decided it; none for a genesis record.
    pub certificate: Option<Certificate>,
    /// Those that decided records before it, as many as are at hand and at most [`PAST_MAX`]: what others have signed is
    /// in them, and nobody else may remember it when all have restarted at once.
    pub past: Vec<Certificate>,
    /// The way to the head, as far back as the disk tells.
    pub ancestry: Ancestry,
    /// What this identity has signed last; none on a new or wiped disk.
    pub vote_state: Option<VoteState>,
    /// Results that were written before they were spoken of, oldest first; their updates are on the disk, too.
    pub candidates: Vec<Candidate>,
    /// Evidence that this node was told to keep.
    pub evidence: Vec<Evidence>,
}

/// The newest vote of an incarnation: written before it is sent, so that a restarted process goes on where the one
/// before stopped and never says anything else instead (`docs/protocol/4-agreement.md` §4.5.8, §4.9).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoteState {
    pub incarnation: u64,
    pub lineage: Digest,
    /// Follows this record.
    pub parent: Digest,
    pub stamp: Stamp,
    /// The newest estimate on this question, and its ballot.
    pub estimate: Option<(u32, Value)>,
    /// The newest vote on it: its ballot, its value, and whether it voted for that.
    pub vote: Option<(u32, Value, bool)>,
}

/// The one byte string of a vote vote state.
pub fn encode_vote_state(vote_state: &VoteState) -> Vec<u8> {
    binary::encode(vote_state)
}

/// A vote vote state from the disk.
pub fn decode_vote_state(bytes: &[u8]) -> Result<VoteState, WireError> {
    binary::decode::<_, CONTROL_BYTES_MAX>("vote register", bytes)
}

/// Bounds in microseconds within which deadlines tune themselves by what was measured. All of them trigger messages;
/// none enters a record.
#[derive(Clone, Debug)]
pub struct Timing {
    /// Between two `Head` messages when nothing changes.
    pub heartbeat: u64,
    /// Nothing is concluded from silence before this.
    pub patience_min: u64,
    /// Nor is anything waited for longer while nothing moves at all.
    pub patience_max: u64,
    /// The same while nothing was measured yet: a first step may have to compile kernels.
    pub unmeasured: u64,
    /// A connection may be gone for so long before its member counts as dead.
    pub down_grace: u64,
    /// A restarted node listens for so long before it trains: the flock may have gone on.
    pub settle: u64,
    /// Between two requests to be let in.
    pub join_every: u64,
    /// A request to be let in holds for so long.
    pub join_valid: u64,
    /// Between two repetitions of what others may have missed.
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
