//! What the ledger is asked for, and what it answers.

use crate::exit::Failure;
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

/// An encoded update and its digest.
#[derive(Clone, Debug)]
pub struct Update {
    pub digest: Digest,
    pub bytes: Arc<Vec<u8>>,
}

/// What the ledger is asked to do, in order.
pub enum Job {
    /// Hold the update that this attempt, or a fetch for it, has come to.
    Bring {
        key: AttemptKey,
        update: Update,
    },
    /// Nothing comes of the attempt.
    Abandon {
        key: AttemptKey,
    },
    /// Compute the state root after an attempt's update of this digest, which is held or on disk.
    Speculate {
        key: AttemptKey,
        update: Digest,
        rule: Rule,
    },
    /// Write what the node is about to sign, and the candidate that it speaks of.
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
    /// Replay a record that others have committed (catch-up). One that changes no state has no update.
    Replay {
        record: Record,
        certificate: Certificate,
        update: Option<Vec<u8>>,
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// This node is about to leave its lineage (catch-up): keep what it has learned there.
    Leave {
        reply: oneshot::Sender<Result<Difference, Lost>>,
    },
    /// Load the state of a snapshot that was adopted into the store (catch-up).
    Reload {
        reply: oneshot::Sender<Result<Record, String>>,
    },
    /// Write a snapshot of the head for newcomers. The answer is how long that took.
    Snapshot {
        reply: oneshot::Sender<Duration>,
    },
    /// Keep evidence against a node, or, without any, no more of it.
    Evidence {
        against: NodeId,
        evidence: Option<Box<Evidence>>,
    },
    /// Write the state as a checkpoint folder.
    Checkpoint {
        folder: PathBuf,
        reply: oneshot::Sender<Result<(), String>>,
    },
}

/// What the ledger says back.
pub enum LedgerReply {
    Applied {
        key: AttemptKey,
        update: Digest,
        state_root: Digest,
    },
    /// The update does not apply: the attempt has no result here.
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
    /// The state in memory was not that of its record any more; it was read from disk again.
    Mended {
        why: String,
    },
    /// The store cannot be relied on any more; the process must end.
    Fatal(Failure),
}
