//! The protocol's codecs by the fast functions of `kernels`; `tests/` proves that both write the same bytes and accept
//! the same ones.

use starling_kernels::codec as fast;
use starling_protocol::codec::CodecError;
use starling_protocol::run::Codec;

/// One codec, and the buffers that its encoder reuses.
pub struct Coder {
    kind: Kind,
}

enum Kind {
    Fixed(fast::CodecKind),
    TopK(usize, fast::TopkScratch),
}

impl Coder {
    pub fn new(codec: Codec) -> Self {
        let kind = match codec {
            Codec::Bf16 => Kind::Fixed(fast::CodecKind::Bf16),
            Codec::Int8 => Kind::Fixed(fast::CodecKind::Int8),
            Codec::Int4 => Kind::Fixed(fast::CodecKind::Int4),
            Codec::TopK { k } => Kind::TopK(k.into(), fast::TopkScratch::default()),
        };
        Self { kind }
    }

    /// Encodes `src` into `out`, whose earlier content goes.
    pub fn encode(&mut self, src: &[f32], out: &mut Vec<u8>) -> Result<(), CodecError> {
        match &mut self.kind {
            Kind::Fixed(kind) => {
                out.resize(fast::encoded_len(*kind, src.len()), 0);
                fast::encode(*kind, src, out)
            }
            Kind::TopK(k, scratch) => fast::topk_encode(*k, src, scratch, out),
        }
        .map_err(as_specified)
    }

    /// Decodes a payload into `dst`, which an error leaves unchanged.
    pub fn decode(&self, bytes: &[u8], dst: &mut [f32]) -> Result<(), CodecError> {
        match &self.kind {
            Kind::Fixed(kind) => fast::decode(*kind, bytes, dst),
            Kind::TopK(k, _) => fast::topk_decode(*k, bytes, dst),
        }
        .map_err(as_specified)
    }

    /// Adds a payload's values to `dst`, which an error leaves unchanged.
    pub fn decode_add(&self, bytes: &[u8], dst: &mut [f32]) -> Result<(), CodecError> {
        match &self.kind {
            Kind::Fixed(kind) => fast::decode_add(*kind, bytes, dst),
            Kind::TopK(k, _) => fast::topk_decode_add(*k, bytes, dst),
        }
        .map_err(as_specified)
    }

    /// Whether a payload of `elements` values is canonical.
    pub fn check(&self, bytes: &[u8], elements: usize) -> Result<(), CodecError> {
        match &self.kind {
            Kind::Fixed(kind) => fast::check(*kind, bytes, elements),
            Kind::TopK(k, _) => fast::topk_check(*k, bytes, elements),
        }
        .map_err(as_specified)
    }
}

/// The same error in the specification's words.
fn as_specified(error: fast::CodecError) -> CodecError {
    match error {
        fast::CodecError::Length { elements, expected, actual } => CodecError::Length { elements, expected, actual },
        fast::CodecError::NotFinite { index } => CodecError::NotFinite { index },
        fast::CodecError::TooLarge { index } => CodecError::TooLarge { index },
        fast::CodecError::BadScale { block, bits } => CodecError::BadScale { block, bits },
        fast::CodecError::ZeroBlock { block, bits } => CodecError::ZeroBlock { block, bits },
        fast::CodecError::BadQuant { index } => CodecError::BadQuant { index },
        fast::CodecError::Padding { block } => CodecError::Padding { block },
        fast::CodecError::Truncated { block } => CodecError::Truncated { block },
        fast::CodecError::Trailing { bytes } => CodecError::Trailing { bytes },
        fast::CodecError::TooMany { block, entries } => CodecError::TooMany { block, entries },
        fast::CodecError::BadPlace { block, place } => CodecError::BadPlace { block, place },
    }
}
