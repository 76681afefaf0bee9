//! Taking over a state that peers hold: announce its manifest, put its chunks, finish.
//!
//! Nothing of the chain that is here changes before [`Store::finish_adopt`], which replaces it in one batch. A crash
//! before leaves the old chain, and chunks that a later adoption of the same state finds.

use crate::chain::{check_certificate, not_next};
use crate::store::{Store, lock, read};
use crate::{Part, StoreError};
use starling_protocol::Digest;
use starling_protocol::limits::STATE_CHUNK_BYTES;
use starling_protocol::message::Certificate;
use starling_protocol::record::Record;
use starling_protocol::state::{self, Manifest};
use std::collections::HashSet;
use std::sync::{Arc, PoisonError};

impl Store {
    /// Begins to adopt the state of `manifest`, or goes over to another one. Returns the digests of the chunks that are
    /// to be fetched, each once, in the manifest's order; chunks that are here already are checked.
    ///
    /// # Errors
    /// [`StoreError::Full`] when there is no room for them.
    pub fn begin_adopt(&self, manifest: &Manifest) -> Result<Vec<Digest>, StoreError> {
        let _bulk = lock(&self.bulk);
        let missing = self.missing(manifest)?;
        self.require_room(missing.len())?;
        let wanted: HashSet<_> = manifest.chunks.iter().copied().collect();
        *self.adopting.write().unwrap_or_else(PoisonError::into_inner) = Some(wanted);
        Ok(missing)
    }

    /// Keeps a chunk of the state being adopted. Any number of threads may do so at once.
    ///
    /// # Errors
    /// [`StoreError::BadChunk`] when the bytes are not those of `digest`, [`StoreError::UnwantedChunk`] when the state
    /// has no such chunk, [`StoreError::Full`] before the disk is.
    pub fn put_chunk(&self, digest: &Digest, bytes: &[u8]) -> Result<(), StoreError> {
        if bytes.len() > STATE_CHUNK_BYTES {
            let (bytes, limit) = (bytes.len() as u64, STATE_CHUNK_BYTES as u64);
            return Err(StoreError::TooLarge { what: "a chunk of the state", bytes, limit });
        }
        if !read(&self.adopting).as_ref().is_some_and(|wanted| wanted.contains(digest)) {
            return Err(StoreError::UnwantedChunk { chunk: *digest });
        }
        let got = self.chunks.digest_of(bytes);
        if got != *digest {
            return Err(StoreError::BadChunk { expected: *digest, got });
        }
        self.require_room(1)?;
        self.note(self.chunks.put(digest, bytes))?;
        Ok(())
    }

    /// Replaces whatever chain is here by `record` with the state of `manifest`, and the votes that decided it; later
    /// records can then be committed on top. `parent` is the record before, if it could be had: with it others, to whom
    /// this node hands the record on, can tell whether those votes are a quorum. The vote register stays. After damage
    /// this is also what makes the store usable again.
    ///
    /// # Errors
    /// [`StoreError::CertificateMismatch`] unless the certificate is the record's; a genesis record has none.
    /// [`StoreError::NotNext`] when the record does not follow `parent`.
    /// [`StoreError::MissingChunks`] when chunks are not here or not whole: fetch those that
    /// [`Store::begin_adopt`] names, and finish again. [`StoreError::StateMismatch`] when the manifest is not of the
    /// record's state. The chain that was here is untouched then.
    pub fn finish_adopt(
        &self,
        manifest: &Manifest,
        record: &Record,
        certificate: Option<&Certificate>,
        parent: Option<&Record>,
    ) -> Result<(), StoreError> {
        self.check_run(record.run)?;
        check_certificate(record, certificate)?;
        if let Some(parent) = parent {
            record.validate_after(parent).map_err(|why| not_next(record, &why.to_string()))?;
        }
        let got = state::root(manifest);
        if got != record.state_root {
            return Err(StoreError::StateMismatch { seq: record.seq, expected: record.state_root, got });
        }
        let _bulk = lock(&self.bulk);
        let missing = self.missing(manifest)?;
        if let Some(first) = missing.first() {
            return Err(StoreError::MissingChunks { count: missing.len(), first: *first });
        }
        self.note(self.chunks.sync(&manifest.chunks))?;
        self.note(self.reopen_if_damaged())?;
        let mut change = self.begin()?;
        change.clear();
        if let Some(parent) = parent {
            change.push(parent, None);
        }
        change.push(record, certificate);
        change.keep_snapshot(record.seq, Arc::new(manifest.clone()));
        change.apply()?;
        self.abort_adopt();
        self.prune(&change);
        Ok(())
    }

    /// Gives the adoption up. What was fetched is removed with the next snapshot.
    pub fn abort_adopt(&self) {
        *self.adopting.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn missing(&self, manifest: &Manifest) -> Result<Vec<Digest>, StoreError> {
        let mut seen = HashSet::new();
        let mut missing = Vec::new();
        for (index, digest) in manifest.chunks.iter().enumerate() {
            if !seen.insert(*digest) {
                continue;
            }
            match self.whole_chunk(manifest, index, digest) {
                Ok(_) => {}
                Err(StoreError::Damaged(damage)) if damage.part == Part::State => missing.push(*digest),
                Err(e) => return Err(e),
            }
        }
        Ok(missing)
    }
}
