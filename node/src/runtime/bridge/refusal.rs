//! Why a node ends a trainer's connection (`docs/bridge.md`, section 7).

use std::fmt;

/// Bytes of a reason's text: an error of JSON may quote a whole frame.
const WHY_BYTES_MAX: usize = 4096;

/// A reason of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    Version,
    Taken,
    TooLong,
    NotJson,
    Cut,
    OutOfTurn,
    Silent,
    Schema,
    Samples,
    Frozen,
    Drawn,
    Weight,
    NotFinite,
    Memory,
    Failed,
}

impl Reason {
    /// The name in frames and counters.
    pub fn name(self) -> &'static str {
        match self {
            Self::Version => "version",
            Self::Taken => "taken",
            Self::TooLong => "too-long",
            Self::NotJson => "not-json",
            Self::Cut => "cut",
            Self::OutOfTurn => "out-of-turn",
            Self::Silent => "silent",
            Self::Schema => "schema",
            Self::Samples => "samples",
            Self::Frozen => "frozen",
            Self::Drawn => "drawn",
            Self::Weight => "weight",
            Self::NotFinite => "not-finite",
            Self::Memory => "memory",
            Self::Failed => "failed",
        }
    }

    /// Whether the same trainer may do better if it comes again.
    pub fn passes(self) -> bool {
        matches!(self, Self::Taken | Self::Silent | Self::NotFinite | Self::Memory | Self::Failed)
    }
}

/// The end of a connection, for a reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub reason: Reason,
    pub why: String,
}

impl Refusal {
    pub fn new(reason: Reason, why: impl Into<String>) -> Self {
        let mut why = why.into();
        why.truncate(why.floor_char_boundary(WHY_BYTES_MAX));
        Self { reason, why }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason.name(), self.why)
    }
}

/// The end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The node ends it.
    Refused(Refusal),
    /// The trainer has ended it, or the system has.
    Ended(String),
}

impl From<Refusal> for Broken {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => write!(f, "the trainer was refused: {refusal}"),
            Self::Ended(why) => write!(f, "the trainer is gone: {why}"),
        }
    }
}
