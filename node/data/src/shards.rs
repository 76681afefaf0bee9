//! Shards: runs of tokens in files that are named by their digest and never change.

use crate::cache::Cache;
use crate::error::DataError;
use crate::limits::{SHARD_BYTES, SHARDS_MAX};
use crate::manifest::token_width;
use starling_protocol::Digest;

/// Digest of a shard's bytes: its tokens, little-endian, nothing else.
pub fn shard_digest(bytes: &[u8]) -> Digest {
    Digest::of("starling data shard v1", &[bytes])
}

/// Packs tokens into shards of [`SHARD_BYTES`] and writes each into the cache once it is full.
pub(crate) struct ShardWriter<'a> {
    cache: &'a Cache,
    width: usize,
    open: Vec<u8>,
    written: Vec<Digest>,
    tokens: u64,
}

impl<'a> ShardWriter<'a> {
    pub fn new(cache: &'a Cache, vocab: u32) -> Self {
        Self { cache, width: token_width(vocab), open: Vec::new(), written: Vec::new(), tokens: 0 }
    }

    /// Adds tokens below the vocabulary.
    pub fn push(&mut self, tokens: &[u32]) -> Result<(), DataError> {
        for token in tokens {
            // Little-endian: the low bytes come first, and the others are zero below the vocabulary.
            self.open.extend_from_slice(&token.to_le_bytes()[..self.width]);
            if self.open.len() == SHARD_BYTES {
                self.write()?;
            }
        }
        self.tokens += tokens.len() as u64;
        Ok(())
    }

    /// Adds byte-level tokens.
    pub fn push_bytes(&mut self, mut bytes: &[u8]) -> Result<(), DataError> {
        debug_assert_eq!(self.width, 1);
        self.tokens += bytes.len() as u64;
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(SHARD_BYTES - self.open.len()));
            self.open.extend_from_slice(now);
            bytes = later;
            if self.open.len() == SHARD_BYTES {
                self.write()?;
            }
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), DataError> {
        if self.written.len() == SHARDS_MAX {
            return Err(DataError::TooManyShards { max: SHARDS_MAX });
        }
        let digest = shard_digest(&self.open);
        self.cache.put_shard(&digest, &self.open)?;
        self.written.push(digest);
        self.open.clear();
        Ok(())
    }

    /// Writes the last, shorter shard; returns all digests and the number of tokens.
    pub fn finish(mut self) -> Result<(Vec<Digest>, u64), DataError> {
        if !self.open.is_empty() {
            self.write()?;
        }
        Ok((self.written, self.tokens))
    }
}
