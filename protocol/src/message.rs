//! Control messages between nodes. Tensor data travels in frames of its own.

use crate::limits::{INNER_STEPS_MAX, MEMBERS_MAX, PROTOCOL_VERSION, RUN_SPEC_BYTES_MAX, SAMPLES_MAX};
use crate::wire::bounded;
use crate::wire::number::numbered;
use crate::wire::{ShapeError, check_ascending};
use crate::{Digest, NodeId};
use serde::{Deserialize, Serialize};

/// What one node tells another. [`crate::wire`] gives each kind its number; serde knows nothing of this enum, so
/// that the order of declaration never reaches the wire.
#[derive(Clone, Debug, PartialEq)]
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
    #[serde(deserialize_with = "bounded::bytes::<_, RUN_SPEC_BYTES_MAX>")]
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

/// What a node is doing. The numbers are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Has met no flock yet.
    Seeking = 1,
    /// Fetching state or records.
    CatchingUp = 2,
    /// Has the flock's head and asks to be let in.
    Joining = 3,
    Training = 4,
    /// Trained; waits for the others.
    Ready = 5,
    Reducing = 6,
    /// Applying and reporting.
    Settling = 7,
    /// The run's budget is spent.
    Finished = 8,
}

numbered!(Phase, "phase", {
    Seeking = "seeking",
    CatchingUp = "catching-up",
    Joining = "joining",
    Training = "training",
    Ready = "ready",
    Reducing = "reducing",
    Settling = "settling",
    Finished = "finished",
});

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
    /// Joins that the sender has seen and holds to be up to date, by ascending id.
    #[serde(deserialize_with = "bounded::list::<_, _, MEMBERS_MAX>")]
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
    /// By ascending id, at least one.
    #[serde(deserialize_with = "bounded::list::<_, _, MEMBERS_MAX>")]
    pub members: Vec<NodeId>,
    /// Whom the sender itself holds to be alive and part of this round, by ascending id; `members` are those of them
    /// that nobody else among them rules out.
    #[serde(deserialize_with = "bounded::list::<_, _, MEMBERS_MAX>")]
    pub live: Vec<NodeId>,
}

/// "This attempt's result, rebuilt by me and on my disk, is this record."
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub lineage: Digest,
    pub seq: u64,
    pub attempt: u32,
    /// Digest of the attempt's members and their READYs.
    pub set: Digest,
    pub record: Digest,
}

/// "I am going away": nobody needs to wait for me.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Leave {
    pub lineage: Digest,
    pub seq: u64,
}

impl Message {
    /// The kind's name in logs and counters.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Hello(_) => "hello",
            Self::Head(_) => "head",
            Self::Join(_) => "join",
            Self::Ready(_) => "ready",
            Self::Form(_) => "form",
            Self::Report(_) => "report",
            Self::Leave(_) => "leave",
        }
    }

    /// What can be checked of a message by itself: counts, order and ranges. Whether it fits the flock's state is
    /// the engine's question.
    pub fn validate_shape(&self) -> Result<(), ShapeError> {
        match self {
            Self::Hello(m) => m.validate_shape(),
            Self::Head(_) | Self::Join(_) | Self::Report(_) | Self::Leave(_) => Ok(()),
            Self::Ready(m) => m.validate_shape(),
            Self::Form(m) => m.validate_shape(),
        }
    }
}

impl Hello {
    fn validate_shape(&self) -> Result<(), ShapeError> {
        if self.version != PROTOCOL_VERSION {
            let must = "the version of the envelope around it";
            return Err(ShapeError::OutOfRange { what: "version", value: self.version.into(), must });
        }
        if self.spec.is_empty() {
            return Err(ShapeError::Empty { what: "spec" });
        }
        if self.spec.len() > RUN_SPEC_BYTES_MAX {
            return Err(ShapeError::TooMany { what: "spec", count: self.spec.len(), limit: RUN_SPEC_BYTES_MAX });
        }
        Ok(())
    }
}

impl Ready {
    fn validate_shape(&self) -> Result<(), ShapeError> {
        check_ascending("joins", &self.joins, MEMBERS_MAX, |id| *id)?;
        let bounded = |what, value: u64, most: u64, must| {
            if value == 0 || value > most { Err(ShapeError::OutOfRange { what, value, must }) } else { Ok(()) }
        };
        bounded("seq", self.seq, u64::MAX, "at least 1")?;
        bounded("round", self.round, self.seq, "at least 1 and not above seq")?;
        bounded("samples", self.samples, SAMPLES_MAX, "between 1 and SAMPLES_MAX")?;
        bounded("tokens", self.tokens, u64::MAX >> 8, "between 1 and 2^56")?;
        bounded("steps", self.steps.into(), INNER_STEPS_MAX.into(), "between 1 and INNER_STEPS_MAX")?;
        if self.lease_start.checked_add(self.samples).is_none() {
            let must = "leave room for the samples below 2^64";
            return Err(ShapeError::Rule { what: "lease_start", must });
        }
        Ok(())
    }
}

impl Form {
    fn validate_shape(&self) -> Result<(), ShapeError> {
        if self.members.is_empty() {
            return Err(ShapeError::Empty { what: "members" });
        }
        check_ascending("members", &self.members, MEMBERS_MAX, |id| *id)?;
        check_ascending("live", &self.live, MEMBERS_MAX, |id| *id)?;
        if !self.members.iter().all(|id| self.live.binary_search(id).is_ok()) {
            return Err(ShapeError::Rule { what: "members", must: "be among live" });
        }
        Ok(())
    }
}
