//! Events beside the engine: results of background work, and matters for the parts of a run.

use super::difference::{Left, Lost};
use super::ledger::Update;
use super::proof::{Proof, Unproven};
use super::trainer::{Made, TrainerEvent};
use super::{candidate, catch_up};
use crate::net::BulkStream;
use crate::reduce::{ReduceError, Report};
use starling_protocol::engine::Candidate;
use starling_protocol::engine::io::{AttemptKey, Notice, Output};
use starling_protocol::record::Record;
use starling_protocol::{Digest, NodeId};

/// Results of background tasks that the driver has started.
pub enum Outcome {
    Reduced {
        key: AttemptKey,
        outcome: Result<Update, ReduceError>,
    },
    ReduceProgress {
        key: AttemptKey,
        report: Report,
    },
    CatchUpProgress {
        bytes: u64,
    },
    CaughtUp(Result<Box<catch_up::Arrived>, catch_up::Failed>),
    Claim {
        peer: NodeId,
        record: Digest,
        outcome: Result<Proof, Unproven>,
    },
    Fetched {
        key: AttemptKey,
        record: Digest,
        outcome: Result<Box<candidate::Arrived>, String>,
    },
    /// A result of work that a part of the run has started ([`variant`](super::variant)).
    Variant(Box<Matter<'static>>),
    ShardsFetched(Result<(), String>),
}

/// An event that may concern a part.
#[allow(clippy::large_enum_variant, reason = "outputs are large, and none is kept")]
pub enum Matter<'a> {
    /// The node begins.
    Start,
    /// An output that the driver does not carry out itself.
    Output(Output),
    /// An event of the trainer beyond rounds.
    TrainerEvent(TrainerEvent),
    /// A peer opened a stream for an exchange.
    Stream(NodeId, BulkStream),
    /// The result of mixing a difference into the contribution of this round on top of this record.
    Mixed {
        at: (u64, Digest),
        lineage: Digest,
        outcome: Result<Made, Lost>,
    },
    /// A catch-up has left a lineage for that of this record.
    Left(Left, Box<Record>),
    /// A round is to be trained.
    Train,
    /// A candidate that is about to be written.
    Candidate(&'a Candidate),
    /// A record that is about to be applied.
    Commit(&'a Record),
    /// A catch-up has passed records that merged these lineages in these rounds.
    Merged(&'a [(Digest, u64)]),
    Notice(&'a Notice),
}
