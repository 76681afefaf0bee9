//! The ledger's jobs and its replies.

use super::ahead::Ahead;
use super::update::Update;
use crate::exit::{Code, Failure};
use crate::runtime::difference::Lost;
use starling_protocol::difference::Difference;
use starling_protocol::engine::io::{AttemptKey, PersistToken};
use starling_protocol::engine::{Candidate, VoteState};
use starling_protocol::message::{Certificate, Evidence};
use starling_protocol::outer::Rule;
use starling_protocol::record::Record;
use starling_protocol::{Digest, NodeId};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// A job of the ledger; jobs are done in order.
pub enum Job {
    /// Hold the update in which this attempt, or a fetch for it, has ended, and the work that was done ahead of it.
    Bring {
        key: AttemptKey,
        update: Update,
        ahead: Option<Ahead>,
    },
    /// Forget the update of an attempt that has no result.
    Abandon {
        key: AttemptKey,
    },
    /// Compute the state root after an attempt's update of this digest, which is held or on disk.
    Speculate {
        key: AttemptKey,
        update: Digest,
        rule: Rule,
    },
    /// Write the vote state that the node is about to sign, and the candidate that it votes on.
    Persist {
        token: PersistToken,
        vote_state: VoteState,
        candidate: Option<Box<Candidate>>,
    },
    /// Make a decided record the head.
    Commit {
        token: PersistToken,
        record: Box<Record>,
        certificate: Certificate,
    },
    /// Compute the root of the state in memory anew.
    Verify,
    Found {
        token: PersistToken,
        record: Record,
    },
    /// Replay a record that others have committed (catch-up). A record that changes no state has no update.
    Replay {
        record: Record,
        certificate: Certificate,
        update: Option<Arc<Vec<u8>>>,
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// Keep the difference of this node's lineage, which the node is about to leave (catch-up). `weights` are those with
    /// which the run began, if they are needed and were to be had.
    Leave {
        weights: Option<Vec<f32>>,
        reply: oneshot::Sender<Result<Difference, Lost>>,
    },
    /// Load the state of a snapshot that was adopted into the store (catch-up).
    Reload {
        reply: oneshot::Sender<Result<Record, String>>,
    },
    /// Write a snapshot of the head for newcomers, or let them have the one that is being written. The answer, when it
    /// is on the disk, is the time that it took.
    Snapshot {
        reply: oneshot::Sender<Duration>,
    },
    /// The snapshot or checkpoint that was being written is on the disk, or has failed (the writer).
    Written,
    /// Keep evidence against a node; `None` drops it.
    Evidence {
        against: NodeId,
        evidence: Option<Box<Evidence>>,
    },
    /// Write the state as a checkpoint, unless the checkpoint of its round is of its record. The ledger reports the
    /// outcome, also to the one who asks.
    Checkpoint {
        purpose: CheckpointPurpose,
        asked: Option<oneshot::Sender<CheckpointOutcome>>,
    },
}

/// The reason for a checkpoint. Of two the later one stands for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CheckpointPurpose {
    /// A person asks for it.
    Asked,
    /// It is due by the node file.
    Due,
    /// The node leaves.
    Leaving,
    /// The run's budget is spent.
    Budget,
}

/// A checkpoint on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointMade {
    pub path: PathBuf,
    pub seq: u64,
    pub round: u64,
    /// It was written for this purpose, and not there before.
    pub is_new: bool,
}

/// The reason why there is no checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotMade {
    /// In words for a person.
    pub why: String,
    /// The exit code of a process that ends without it.
    pub code: Code,
}

/// A checkpoint, or why there is none.
pub type CheckpointOutcome = Result<CheckpointMade, NotMade>;

/// A reply of the ledger.
pub enum LedgerReply {
    Applied {
        key: AttemptKey,
        update: Digest,
        state_root: Digest,
    },
    /// The update does not apply, so this node has no result of the attempt.
    NotApplied {
        key: AttemptKey,
        update: Digest,
        reason: String,
    },
    /// The root of the state in memory.
    Verified {
        state_root: Digest,
    },
    Durable {
        token: PersistToken,
    },
    /// The state in memory was no longer that of its record; it was read from disk again.
    Mended {
        why: String,
    },
    /// The outcome of a checkpoint.
    Checkpoint {
        purpose: CheckpointPurpose,
        outcome: CheckpointOutcome,
    },
    /// The store can no longer be relied on; the process must end.
    Fatal(Failure),
}
