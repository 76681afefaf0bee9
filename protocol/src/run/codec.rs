//! The transport of updates: codec, reduction, and how often members average.

use crate::limits::TOPK_K_MAX;
use crate::wire::number::numbered;
use serde::de::{Error, SeqAccess, Visitor};
use serde::ser::SerializeTuple;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// The form of a vector of f32 on the wire (`docs/protocol/3-reduction.md` §3.1). A codec is sent as its number, with
/// top-k also its k.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Codec {
    Bf16,
    Int8,
    Int4,
    /// The `k` (1 to [`TOPK_K_MAX`]) largest of each 4096 values.
    TopK {
        k: u16,
    },
}

impl Codec {
    /// The codecs among which a flock may choose: payloads of a length that is known, each half as long as the one before.
    pub const RUNGS: [Self; 3] = [Self::Bf16, Self::Int8, Self::Int4];

    /// The number on the wire; numbers begin at 1.
    pub const fn number(self) -> u8 {
        match self {
            Self::Bf16 => 1,
            Self::Int8 => 2,
            Self::Int4 => 3,
            Self::TopK { .. } => 4,
        }
    }

    /// The name in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
            Self::TopK { .. } => "top-k",
        }
    }

    /// Whether the length of a payload follows from its elements alone.
    pub const fn is_fixed(self) -> bool {
        !matches!(self, Self::TopK { .. })
    }

    /// Whether senders offer again what a payload leaves out (`docs/protocol/3-reduction.md` §3.5.6).
    pub const fn feeds_back(self) -> bool {
        matches!(self, Self::Int4 | Self::TopK { .. })
    }

    /// Whether sums may be encoded again and again, as in a ring at each hop. The noise of int4 grows with the ring's
    /// length, and top-k would drop at each hop values that earlier hops kept.
    pub const fn suits_rings(self) -> bool {
        matches!(self, Self::Bf16 | Self::Int8)
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TopK { k } => write!(f, "top-k {k}/4096"),
            fixed => f.write_str(fixed.name()),
        }
    }
}

impl Serialize for Codec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::TopK { k } => {
                let mut parts = serializer.serialize_tuple(2)?;
                parts.serialize_element(&self.number())?;
                parts.serialize_element(k)?;
                parts.end()
            }
            fixed => {
                let mut parts = serializer.serialize_tuple(1)?;
                parts.serialize_element(&fixed.number())?;
                parts.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Codec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Parts;

        impl<'de> Visitor<'de> for Parts {
            type Value = Codec;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a codec's number, and k behind that of top-k")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Codec, A::Error> {
                match parts.next_element::<u8>()? {
                    Some(1) => Ok(Codec::Bf16),
                    Some(2) => Ok(Codec::Int8),
                    Some(3) => Ok(Codec::Int4),
                    Some(4) => match parts.next_element::<u16>()? {
                        Some(k @ 1..=TOPK_K_MAX) => Ok(Codec::TopK { k }),
                        Some(k) => Err(A::Error::custom(format_args!("top-k of {k}, must be 1 to {TOPK_K_MAX}"))),
                        None => Err(A::Error::invalid_length(1, &self)),
                    },
                    Some(number) => Err(A::Error::custom(format_args!("unknown codec {number}"))),
                    None => Err(A::Error::invalid_length(0, &self)),
                }
            }
        }
        deserializer.deserialize_tuple(2, Parts)
    }
}

/// The reduction that adds up contributions. The numbers are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EngineKind {
    /// Partial sums travel around a ring, then finished sums do: few connections.
    Ring = 1,
    /// One member adds up each chunk and sends the sum to all: two hops, however many members there are.
    Owners = 2,
}

numbered!(EngineKind, "engine", { Ring = "ring", Owners = "owners" });

/// The content that a record averages, and thus how often members communicate. The numbers are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SyncMode {
    /// The progress of members over some inner steps of their own; an outer step with Nesterov momentum applies the
    /// mean.
    Rounds = 1,
    /// The gradient of one step; AdamW applies the mean, as if one machine had trained on all samples.
    EveryStep = 2,
}

numbered!(SyncMode, "mode", { Rounds = "rounds", EveryStep = "every-step" });

impl SyncMode {
    /// Vectors of the canonical state: theta and the moments of the outer optimizer (`outer`).
    pub const fn vectors(self) -> u8 {
        match self {
            Self::Rounds => 2,
            Self::EveryStep => 3,
        }
    }
}
