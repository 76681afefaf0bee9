//! The parts of a data set, in canonical bytes whose digest is part of the run.
//!
//! Layout, little-endian, no padding:
//!
//! ```text
//! 0   8   magic "STARDATA"
//! 8   2   version, 1
//! 10  2   bytes of a token: 1, 2 or 4, the fewest that the vocabulary needs
//! 12  4   vocabulary: tokens are below it
//! 16  32  digest of the tokenizer
//! 48  8   training tokens            56  8  held-out tokens
//! 64  8   training bytes of text     72  8  held-out bytes of text
//! 80  4   entropy of a held-out byte given the one before it, millionths of a nat
//! 84  4   number of shards
//! 88  32n digests of the shards: training first, then held out
//! ```
//!
//! Every shard but the last of each part is full, so the sizes follow from the token counts, and there is exactly one
//! encoding of a data set.

use crate::error::ManifestError;
use crate::limits::{MANIFEST_BYTES_MAX, MANIFEST_HEADER_BYTES, PIECE_BYTES, SHARD_BYTES, SHARDS_MAX, VOCAB_MAX};
use crate::tokenizer::bytes_digest;
use starling_protocol::Digest;
use std::collections::BTreeMap;

const MAGIC: &[u8; 8] = b"STARDATA";
const VERSION: u16 = 1;
/// ln 256, rounded up: the entropy of a byte cannot be more.
const ENTROPY_MAX: u32 = 5_545_178;

/// The purpose of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Train,
    Validation,
}

/// One shard of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardInfo {
    pub digest: Digest,
    /// Whether its tokens are held out for validation.
    pub validation: bool,
    /// Size of its file; at most [`crate::limits::SHARD_BYTES`].
    pub bytes: u64,
    pub tokens: u64,
}

impl ShardInfo {
    /// Pieces of [`PIECE_BYTES`] in which peers serve it; the last piece may be shorter.
    pub fn pieces(&self) -> u32 {
        self.bytes.div_ceil(PIECE_BYTES as u64) as u32
    }
}

/// The manifest of a data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataManifest {
    /// One more than the highest token.
    pub vocab: u32,
    pub tokenizer: Digest,
    pub train_tokens: u64,
    pub validation_tokens: u64,
    /// Bytes of text that the training tokens encode; the end of a document counts as one where it has a token.
    pub train_bytes: u64,
    /// Bytes of text that the held-out tokens encode, counted in the same way.
    pub validation_bytes: u64,
    /// Empirical entropy of a held-out byte given the one before it, in millionths of a nat.
    pub order1_micronats: u32,
    /// The shards, training first; each part's in the order of its tokens.
    pub shards: Vec<Digest>,
}

/// Bytes of a token below `vocab`.
pub(crate) fn token_width(vocab: u32) -> usize {
    match vocab {
        0..=0x100 => 1,
        0x101..=0x1_0000 => 2,
        _ => 4,
    }
}

impl DataManifest {
    /// Held-out bytes a token: nats per token divided by it are nats per byte.
    pub fn bytes_per_token(&self) -> f64 {
        self.validation_bytes as f64 / self.validation_tokens as f64
    }

    /// Empirical entropy, in nats, of a held-out byte given the one before it.
    pub fn order1_entropy(&self) -> f64 {
        f64::from(self.order1_micronats) / 1e6
    }

    /// Bytes of a token in a shard: 1, 2 or 4.
    pub fn token_bytes(&self) -> usize {
        token_width(self.vocab)
    }

    /// The digest by which the run names the data set.
    pub fn digest(&self) -> Digest {
        Digest::of("starling data manifest v1", &[&self.encode()])
    }

    /// The shards, training first; each part's in the order of its tokens.
    pub fn shards(&self) -> impl ExactSizeIterator<Item = ShardInfo> {
        (0..self.shards.len()).map(|index| self.shard_at(index))
    }

    pub(crate) fn tokens_per_shard(&self) -> u64 {
        (SHARD_BYTES / self.token_bytes()) as u64
    }

    /// Shards of the training part, which come first.
    pub(crate) fn train_shards(&self) -> usize {
        self.train_tokens.div_ceil(self.tokens_per_shard()) as usize
    }

    /// The shard at an index below `shards.len()`.
    pub(crate) fn shard_at(&self, index: usize) -> ShardInfo {
        let train = self.train_shards();
        let validation = index >= train;
        let (total, place) = match validation {
            false => (self.train_tokens, index),
            true => (self.validation_tokens, index - train),
        };
        let full = self.tokens_per_shard();
        let tokens = total.saturating_sub(place as u64 * full).min(full);
        let bytes = tokens * self.token_bytes() as u64;
        ShardInfo { digest: self.shards[index], validation, bytes, tokens }
    }

    /// The canonical bytes; at most [`crate::limits::MANIFEST_BYTES_MAX`].
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(MANIFEST_HEADER_BYTES + self.shards.len() * 32);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(self.token_bytes() as u16).to_le_bytes());
        bytes.extend_from_slice(&self.vocab.to_le_bytes());
        bytes.extend_from_slice(&self.tokenizer.0);
        for count in [self.train_tokens, self.validation_tokens, self.train_bytes, self.validation_bytes] {
            bytes.extend_from_slice(&count.to_le_bytes());
        }
        bytes.extend_from_slice(&self.order1_micronats.to_le_bytes());
        bytes.extend_from_slice(&(self.shards.len() as u32).to_le_bytes());
        for digest in &self.shards {
            bytes.extend_from_slice(&digest.0);
        }
        bytes
    }

    /// Decodes only bytes that [`Self::encode`] could have written.
    pub fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        if bytes.len() > MANIFEST_BYTES_MAX {
            return Err(ManifestError::TooLong { bytes: bytes.len() });
        }
        if bytes.len() < MANIFEST_HEADER_BYTES {
            return Err(ManifestError::Length { bytes: bytes.len(), expected: MANIFEST_HEADER_BYTES });
        }
        let (header, digests) = bytes.split_at(MANIFEST_HEADER_BYTES);
        let mut fields = Fields(header);
        if &fields.take::<8>() != MAGIC {
            return Err(ManifestError::Magic);
        }
        let version = u16::from_le_bytes(fields.take());
        if version != VERSION {
            return Err(ManifestError::Version { theirs: version, ours: VERSION });
        }
        let width = u16::from_le_bytes(fields.take());
        let mut manifest = Self {
            vocab: u32::from_le_bytes(fields.take()),
            tokenizer: Digest(fields.take()),
            train_tokens: u64::from_le_bytes(fields.take()),
            validation_tokens: u64::from_le_bytes(fields.take()),
            train_bytes: u64::from_le_bytes(fields.take()),
            validation_bytes: u64::from_le_bytes(fields.take()),
            order1_micronats: u32::from_le_bytes(fields.take()),
            shards: Vec::new(),
        };
        let count = u32::from_le_bytes(fields.take()) as usize;
        manifest.check(count)?;
        if usize::from(width) != manifest.token_bytes() {
            return Err(ManifestError::Field { what: "token width" });
        }
        if digests.len() != count * 32 {
            return Err(ManifestError::Length { bytes: bytes.len(), expected: MANIFEST_HEADER_BYTES + count * 32 });
        }
        manifest.shards = digests.chunks_exact(32).map(|chunk| Digest(Fields(chunk).take())).collect();
        manifest.check_repeats()?;
        Ok(manifest)
    }

    /// Refuses one digest with two sizes: equal digests are equal bytes, so no shard could satisfy both.
    fn check_repeats(&self) -> Result<(), ManifestError> {
        let mut sizes = BTreeMap::new();
        for shard in self.shards() {
            if *sizes.entry(shard.digest).or_insert(shard.bytes) != shard.bytes {
                return Err(ManifestError::Field { what: "list of shards" });
            }
        }
        Ok(())
    }

    /// Checks that the counts agree with `shards` shards, with one another and with the limits.
    pub(crate) fn check(&self, shards: usize) -> Result<(), ManifestError> {
        let field = |holds: bool, what| if holds { Ok(()) } else { Err(ManifestError::Field { what }) };
        field((1..=VOCAB_MAX).contains(&self.vocab), "vocabulary")?;
        let tokens_max = SHARDS_MAX as u64 * self.tokens_per_shard();
        field((1..=tokens_max).contains(&self.train_tokens), "training tokens")?;
        field((1..=tokens_max).contains(&self.validation_tokens), "held-out tokens")?;
        let validation = self.validation_tokens.div_ceil(self.tokens_per_shard()) as usize;
        field(shards <= SHARDS_MAX && shards == self.train_shards() + validation, "number of shards")?;
        field(self.order1_micronats <= ENTROPY_MAX, "entropy")?;
        if self.tokenizer == bytes_digest() {
            field(self.vocab == 256, "vocabulary")?;
            field(self.train_bytes == self.train_tokens, "training bytes")?;
            field(self.validation_bytes == self.validation_tokens, "held-out bytes")?;
        }
        Ok(())
    }
}

/// Takes fixed-size fields off bytes whose length was checked.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        let (now, later) = self.0.split_at(N.min(self.0.len()));
        field[..now.len()].copy_from_slice(now);
        self.0 = later;
        field
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn manifest(vocab: u32, train: u64, validation: u64) -> DataManifest {
        let mut manifest = DataManifest {
            vocab,
            tokenizer: if vocab == 256 { bytes_digest() } else { Digest([7; 32]) },
            train_tokens: train,
            validation_tokens: validation,
            train_bytes: train,
            validation_bytes: validation,
            order1_micronats: 2_300_000,
            shards: Vec::new(),
        };
        let count = manifest.train_shards() + validation.div_ceil(manifest.tokens_per_shard()) as usize;
        manifest.shards = (0..count).map(|index| Digest::of("starling test shard", &[&index.to_le_bytes()])).collect();
        manifest
    }

    #[test]
    fn golden_bytes() {
        let encoded = manifest(256, 10, 3).encode();
        assert_eq!(encoded.len(), MANIFEST_HEADER_BYTES + 64);
        assert_eq!(encoded[..16], *b"STARDATA\x01\0\x01\0\0\x01\0\0");
        assert_eq!(
            encoded[48..88],
            *b"\x0a\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x0a\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x60\x18\x23\0\x02\0\0\0"
        );
        assert_eq!(manifest(256, 10, 3).digest().short(), "3001c95b");
    }

    #[test]
    fn sizes_follow_from_the_counts() {
        let full = SHARD_BYTES as u64;
        let sizes = |m: DataManifest| m.shards().map(|s| (s.validation, s.bytes, s.tokens)).collect::<Vec<_>>();
        assert_eq!(sizes(manifest(256, full + 5, 7)), [(false, full, full), (false, 5, 5), (true, 7, 7)]);
        assert_eq!(sizes(manifest(257, full / 2, 7)), [(false, full, full / 2), (true, 14, 7)]);
        assert_eq!(sizes(manifest(65_537, 3, 1)), [(false, 12, 3), (true, 4, 1)]);
    }

    #[test]
    fn counts_that_contradict_or_exceed_are_refused() {
        let good = manifest(256, 10, 3);
        let refused = |change: &dyn Fn(&mut DataManifest)| {
            let mut bad = good.clone();
            change(&mut bad);
            DataManifest::decode(&bad.encode()).unwrap_err()
        };
        let field = |what| ManifestError::Field { what };
        assert_eq!(refused(&|m| m.vocab = 0), field("vocabulary"));
        assert_eq!(refused(&|m| m.vocab = 255), field("vocabulary"));
        assert_eq!(refused(&|m| m.train_tokens = 0), field("training tokens"));
        assert_eq!(refused(&|m| m.train_tokens = u64::MAX), field("training tokens"));
        assert_eq!(refused(&|m| m.validation_tokens = SHARD_BYTES as u64 + 1), field("number of shards"));
        assert_eq!(refused(&|m| m.shards[1] = m.shards[0]), field("list of shards"));
        assert_eq!(refused(&|m| m.shards.truncate(1)), field("number of shards"));
        assert_eq!(refused(&|m| m.validation_bytes = 4), field("held-out bytes"));
        assert_eq!(refused(&|m| m.order1_micronats = u32::MAX), field("entropy"));
        assert!(matches!(DataManifest::decode(&vec![0; MANIFEST_BYTES_MAX + 1]), Err(ManifestError::TooLong { .. })));
    }

    proptest! {
        #[test]
        fn round_trip_and_no_other_encoding(
            vocab in prop_oneof![Just(256u32), 257u32..200_000],
            train in 1u64..1 << 26, validation in 1u64..1 << 24,
            flip in any::<prop::sample::Index>(), bit in 0u8..8, cut in any::<prop::sample::Index>(),
        ) {
            let manifest = manifest(vocab, train, validation);
            let bytes = manifest.encode();
            prop_assert_eq!(&DataManifest::decode(&bytes).unwrap(), &manifest);
            prop_assert!(DataManifest::decode(&bytes[..cut.index(bytes.len())]).is_err());
            prop_assert!(DataManifest::decode(&[&bytes[..], &[0]].concat()).is_err());
            // A flipped bit is refused, or changes the content and with it the digest.
            let mut flipped = bytes.clone();
            flipped[flip.index(bytes.len())] ^= 1 << bit;
            if let Ok(other) = DataManifest::decode(&flipped) {
                prop_assert_eq!(other.encode(), flipped);
                prop_assert_ne!(other.digest(), manifest.digest());
            }
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let framed = [&MAGIC[..], &[1, 0], &bytes].concat();
            prop_assert!(DataManifest::decode(&bytes).is_err());
            let _ = DataManifest::decode(&framed);
        }
    }
}
