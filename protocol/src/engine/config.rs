//! What an engine is started with.

use super::io::AttemptKey;
use crate::record::Record;
use crate::run::RunSpec;
use crate::{Digest, Signer, Verifier};

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
    pub timing: Timing,
}

/// How to found a lineage (`protocol.md` §2).
#[derive(Clone, Debug)]
pub struct Founding {
    /// Makes this lineage differ from every other of the same founder.
    pub nonce: u64,
    /// Of the initial parameters and zero momentum.
    pub state_root: Digest,
}

/// What a restarted node has on its disk.
#[derive(Clone, Debug)]
pub struct Stored {
    /// The record whose state the node holds.
    pub head: Record,
    /// The newest report on top of it, with its update.
    pub report: Option<(AttemptKey, Record)>,
}

/// Waiting times in microseconds. All of them trigger messages; none enters a record.
#[derive(Clone, Debug)]
pub struct Timing {
    /// Between two `Head` messages when nothing changes.
    pub heartbeat: u64,
    /// A connection may be gone for so long before its member counts as dead.
    pub down_grace: u64,
    /// A member that was never met has so long to appear.
    pub connect_grace: u64,
    /// A connected member that says nothing for so long counts as dead.
    pub silence: u64,
    /// No member counts as stuck before this.
    pub stall_min: u64,
    /// A member is stuck after this many median intervals without progress.
    pub stall_factor: u64,
    /// The same while no interval was measured yet: a first step may have to compile kernels.
    pub stall_unmeasured: u64,
    /// A set of at most half of the members waits so much longer before it goes on: it may be the one that is cut off.
    pub minority_grace: u64,
    /// A restarted node listens for so long before it trains: the flock may have gone on.
    pub settle: u64,
    /// A restarted node waits so long for members it has not met since.
    pub rejoin_grace: u64,
    /// A restarted node that meets at most half of the members goes on with them after this.
    pub rejoin_alone_after: u64,
    /// Between two requests to be let in.
    pub join_every: u64,
    /// A request to be let in holds for so long.
    pub join_valid: u64,
    /// Between two repetitions of this node's READY while the round lasts.
    pub ready_every: u64,
    /// First pause after a reduction that failed; doubles up to 16 times this.
    pub retry: u64,
    /// First pause after a catch-up that failed; doubles up to 32 times this.
    pub catch_up_retry: u64,
    /// The most that the engine ages between two inputs.
    pub step_max: u64,
}

const SECOND: u64 = 1_000_000;

impl Default for Timing {
    fn default() -> Self {
        Self {
            heartbeat: SECOND,
            down_grace: 2 * SECOND,
            connect_grace: 5 * SECOND,
            silence: 8 * SECOND,
            stall_min: 15 * SECOND,
            stall_factor: 8,
            stall_unmeasured: 120 * SECOND,
            minority_grace: 3 * SECOND,
            settle: 2 * SECOND,
            rejoin_grace: 10 * SECOND,
            rejoin_alone_after: 20 * SECOND,
            join_every: 3 * SECOND,
            join_valid: 10 * SECOND,
            ready_every: 2 * SECOND,
            retry: SECOND / 4,
            catch_up_retry: SECOND,
            step_max: SECOND,
        }
    }
}
