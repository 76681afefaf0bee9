//! The errors of a store, in words from which a person knows what to do next.

use starling_protocol::Digest;
use std::io;
use std::path::{Path, PathBuf};

/// A part on disk differs from what was written there. It is never repaired by guessing and never served to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The part that is damaged.
    pub part: Part,
    /// The damaged file or folder.
    pub path: PathBuf,
    /// The finding there, as a clause: "its checksum does not hold".
    pub detail: String,
}

/// The part of a store or of a checkpoint that is damaged; it decides on the remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The copy of the run's specification. Binding the run again writes it anew.
    RunSpec,
    /// Head, vote state, records or candidates. Nothing of the chain can be trusted; peers have it.
    Chain,
    /// Chunks of a snapshot, or an update after one.
    State,
    /// The node's own optimizer state. Losing it costs some training quality, not agreement.
    Private,
    /// A file of an exported checkpoint.
    Checkpoint,
}

impl Damage {
    pub(crate) fn new(part: Part, path: &Path, detail: impl Into<String>) -> Self {
        Self { part, path: path.to_path_buf(), detail: detail.into() }
    }

    /// What a person, or the node on its behalf, can do about it.
    pub fn advice(&self) -> &'static str {
        match self.part {
            Part::RunSpec => "start the node with its run file or ticket again: the copy is then written anew",
            Part::Chain => "let the node fetch the chain from its peers; damaged parts are set aside, not deleted",
            Part::State => "let the node fetch the state from its peers",
            Part::Private => "nothing: the node goes on with fresh optimizer moments",
            Part::Checkpoint => {
                "take another (`starling checkpoint list`), write one anew (`starling checkpoint now`), or export it again"
            }
        }
    }

    /// Whether head, vote state and records are lost, so that the store refuses to be used before
    /// [`crate::Store::reset_chain`] or an adoption.
    pub fn chain_lost(&self) -> bool {
        self.part == Part::Chain
    }
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}; {}", self.path.display(), self.detail, self.advice())
    }
}

/// The reason why the store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    #[error(
        "the data folder {path} is in use by another process{}; stop that one, or give this node a folder of its own",
        .pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
    )]
    InUse { path: PathBuf, pid: Option<u32> },
    #[error(
        "the disk of {path} is full: {needed} bytes are needed and {free} are free; free some space, then start again"
    )]
    Full { path: PathBuf, needed: u64, free: u64 },
    #[error(
        "the data folder {path} may take {max} bytes (store.max_gib in the node file), and would take {needed}; give \
         it more, or a lower snapshot_every"
    )]
    OverBound { path: PathBuf, needed: u64, max: u64 },
    #[error("damaged on disk: {0}")]
    Damaged(Damage),
    #[error("the data folder {path} belongs to another run ({here}, not {asked}); give this one its own with --home")]
    OtherRun { path: PathBuf, here: Digest, asked: Digest },
    #[error("the data folder {path} is bound to no run yet; bind one first")]
    NoRun { path: PathBuf },
    #[error(
        "{path} was written by another version of Starling (format {found}; this one reads {known}): use that version, or \
         start this node with a new folder (--home)"
    )]
    Format { path: PathBuf, found: u32, known: u32 },
    #[error(
        "the checkpoint {path} has format {found}, and this release reads format {known}: use the release that wrote it, \
         or export a checkpoint of the node with this one (`starling checkpoint now`)"
    )]
    CheckpointFormat { path: PathBuf, found: u32, known: u32 },
    #[error(
        "{path}: the numbers of tensor {tensor} are {numbers}, and F32, BF16 and F16 are read: save the model as float32 \
         with the program that made it"
    )]
    OtherNumbers { path: PathBuf, tensor: String, numbers: String },
    #[error("record {seq} is committed here already")]
    AlreadyCommitted { seq: u64 },
    #[error("record {seq} does not follow the head here ({why}); fetch the records between, or reset the chain")]
    NotNext { seq: u64, why: String },
    #[error("there is no chain in this store yet; found one or adopt one first")]
    NoChain,
    #[error("the update's digest is {got}, and the record names {expected}: these bytes are not its update")]
    UpdateMismatch { expected: Digest, got: Digest },
    #[error("record {seq} has an update, which was not given and is not here; fetch it from a peer")]
    NoUpdate { seq: u64 },
    #[error("record {seq} comes without the votes that decided it, or with those for another record; fetch both again")]
    CertificateMismatch { seq: u64 },
    #[error("the state has root {got}, and record {seq} names {expected}: this is not the record's state")]
    StateMismatch { seq: u64, expected: Digest, got: Digest },
    #[error("record {seq} is not on the chain of this store, so its snapshot is of no use here")]
    NotOnChain { seq: u64 },
    #[error(
        "writing the state of record {seq} was given up: the node ends, or has another state or a newer snapshot by now"
    )]
    GivenUp { seq: u64 },
    #[error("{count} chunks of the state to adopt are missing, the first is {first}; fetch them, then finish again")]
    MissingChunks { count: usize, first: Digest },
    #[error("a chunk that was to be {expected} has digest {got}; its sender is wrong or lies")]
    BadChunk { expected: Digest, got: Digest },
    #[error("chunk {chunk} is not part of the state being adopted")]
    UnwantedChunk { chunk: Digest },
    #[error("{what} has {bytes} bytes, more than the limit of {limit}")]
    TooLarge { what: &'static str, bytes: u64, limit: u64 },
    #[error("{what} is malformed: {why}")]
    Malformed { what: &'static str, why: String },
    #[error("{path} exists and is no checkpoint; name another folder, or remove it first")]
    NotACheckpoint { path: PathBuf },
    #[error("{path} exists already; name a folder that does not, or remove it first")]
    Exists { path: PathBuf },
    #[error(
        "a write to the data folder failed, and no retry can tell what is on the disk now: {why}. Once the disk is well, \
         start the node again: it compares what is there, and fetches from its peers what is not"
    )]
    Failed { why: String },
    #[error("cannot {action} {path}: {}; check the path, its owner and the disk", starling_words::of(source))]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot {action} the database {path}: {}; check the disk", starling_words::plain(source.as_ref()))]
    Db { action: &'static str, path: PathBuf, source: rocksdb::Error },
}

impl StoreError {
    /// The exit code of a process that this error ends (`docs/store.md`, *Exit codes*).
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::OtherRun { .. } | Self::Format { .. } | Self::CheckpointFormat { .. } | Self::OtherNumbers { .. } => {
                3
            }
            Self::Damaged(_) => 4,
            Self::Full { .. } | Self::OverBound { .. } => 5,
            Self::InUse { .. } => 6,
            _ => 1,
        }
    }

    pub(crate) fn damaged(part: Part, path: &Path, detail: impl Into<String>) -> Self {
        Self::Damaged(Damage::new(part, path, detail))
    }
}
