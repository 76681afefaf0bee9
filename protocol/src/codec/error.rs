//! Reasons why a codec refuses.

/// The reason why a vector cannot be encoded, or why a payload is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    #[error("{elements} elements take {expected} bytes, not {actual}: the two sides disagree about the chunk")]
    Length { elements: usize, expected: usize, actual: usize },
    #[error("element {index} is not finite: training diverged, or the sender lies")]
    NotFinite { index: usize },
    #[error("element {index} is too large for the codec: training diverged")]
    TooLarge { index: usize },
    #[error("block {block} has scale {bits:#06x}, which no encoder writes")]
    BadScale { block: usize, bits: u16 },
    #[error("block {block} has scale {bits:#06x}, but a scale is 0 exactly when all its values are")]
    ZeroBlock { block: usize, bits: u16 },
    #[error("element {index} is the lowest integer, which no encoder writes")]
    BadQuant { index: usize },
    #[error("block {block}: bits after its end are not 0")]
    Padding { block: usize },
    #[error("block {block} is cut off")]
    Truncated { block: usize },
    #[error("{bytes} bytes follow the last block")]
    Trailing { bytes: usize },
    #[error("block {block} has {entries} entries, more than the codec keeps")]
    TooMany { block: usize, entries: usize },
    #[error("block {block} has an entry at {place}, beyond its end")]
    BadPlace { block: usize, place: usize },
    #[error("chunk {chunk} has {bytes} bytes, where {most} are the most")]
    ChunkLength { chunk: usize, bytes: usize, most: usize },
}

impl CodecError {
    /// A short constant name of the reason: the label of a counter.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Length { .. } => "length",
            Self::NotFinite { .. } => "not_finite",
            Self::TooLarge { .. } => "too_large",
            Self::BadScale { .. } => "bad_scale",
            Self::ZeroBlock { .. } => "zero_block",
            Self::BadQuant { .. } => "bad_quant",
            Self::Padding { .. } => "padding",
            Self::Truncated { .. } => "truncated",
            Self::Trailing { .. } => "trailing",
            Self::TooMany { .. } => "too_many",
            Self::BadPlace { .. } => "bad_place",
            Self::ChunkLength { .. } => "chunk_length",
        }
    }

    /// Turns an index within a block into one within the vector.
    pub(super) fn shifted(self, by: usize) -> Self {
        match self {
            Self::NotFinite { index } => Self::NotFinite { index: by + index },
            Self::TooLarge { index } => Self::TooLarge { index: by + index },
            other => other,
        }
    }
}
