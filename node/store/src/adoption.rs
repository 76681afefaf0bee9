//! The adoption of a state that peers hold: announce its manifest, put its chunks, finish.
//!
//! The chain on disk does not change before [`Store::finish_adopt`], which replaces it in one batch by the path to the
//! state. A crash before that leaves the old chain, and chunks that a later adoption of the same state finds.

use crate::chain::{check_certificate, not_next};
use crate::holding::{self, Adoption};
use crate::store::{Store, lock, read};
use crate::{Part, StoreError, tip};
use starling_protocol::Digest;
use starling_protocol::limits::STATE_CHUNK_BYTES;
use starling_protocol::path::Link;
use starling_protocol::record::RecordKind;
use starling_protocol::state::{self, Manifest};
use starling_protocol::wire;
use std::collections::HashSet;
use std::sync::{Arc, PoisonError};

impl Store {
    /// Begins to adopt the state of `manifest`, or changes over to it from another one. Returns the digests of the
    /// chunks to fetch, each once, in the manifest's order. Chunks that are here already are checked.
    ///
    /// # Errors
    /// [`StoreError::Full`] when there is no room for them.
    pub fn begin_adopt(&self, manifest: &Manifest) -> Result<Vec<Digest>, StoreError> {
        let _bulk = lock(&self.bulk);
        let missing = self.missing(manifest)?;
        let adopt = |adoption| *self.adopting.write().unwrap_or_else(PoisonError::into_inner) = adoption;
        adopt(Some(Adoption::new(manifest, &missing)));
        // Chunks that earlier adoptions have left go first: they must not take the room that is asked for.
        self.prune_chunks();
        self.make_room_to_adopt();
        self.require_room(missing.len()).inspect_err(|_| adopt(None))?;
        Ok(missing)
    }

    /// Keeps a chunk of the state being adopted. Any number of threads may do so at once.
    ///
    /// # Errors
    /// [`StoreError::BadChunk`] when the bytes do not have `digest`, [`StoreError::UnwantedChunk`] when the state has
    /// no such chunk, [`StoreError::Full`] before the disk is full.
    pub fn put_chunk(&self, digest: &Digest, bytes: &[u8]) -> Result<(), StoreError> {
        if bytes.len() > STATE_CHUNK_BYTES {
            let (bytes, limit) = (bytes.len() as u64, STATE_CHUNK_BYTES as u64);
            return Err(StoreError::TooLarge { what: "a chunk of the state", bytes, limit });
        }
        if !read(&self.adopting).as_ref().is_some_and(|adoption| adoption.wants(digest)) {
            return Err(StoreError::UnwantedChunk { chunk: *digest });
        }
        let got = self.chunks.digest_of(bytes);
        if got != *digest {
            return Err(StoreError::BadChunk { expected: *digest, got });
        }
        self.require_room(1)?;
        self.note(self.chunks.put_unsynced(digest, bytes))?;
        if let Some(adoption) = &mut *self.adopting.write().unwrap_or_else(PoisonError::into_inner) {
            adoption.put(digest);
        }
        Ok(())
    }

    /// The chunks of the state with this root that are here: bit `place % 8` of byte `place / 8` for each place in its manifest. `None`
    /// if the store neither adopts that state now nor has a snapshot of it. Reads no chunk.
    ///
    /// # Errors
    /// When the records of the snapshots cannot be read.
    pub fn chunks_held(&self, root: &Digest) -> Result<Option<Vec<u8>>, StoreError> {
        if let Some(adoption) = read(&self.adopting).as_ref().filter(|adoption| adoption.root() == root) {
            return Ok(Some(adoption.held().to_vec()));
        }
        for (seq, manifest) in self.snapshots() {
            // The root of a snapshot is that of its record.
            if self.record(seq)?.is_some_and(|record| record.state_root == *root) {
                return Ok(Some(holding::all(manifest.chunks.len())));
            }
        }
        Ok(None)
    }

    /// The number of chunks of the state being adopted; 0 while none is.
    pub fn chunks_adopted(&self) -> usize {
        read(&self.adopting).as_ref().map_or(0, Adoption::chunks)
    }

    /// Makes the last record of `way` the head, with the state of `manifest`; later records can then be committed on
    /// top. `way` is a verified path ([`starling_protocol::path`]). It begins with a record of the chain that is here,
    /// whose records up to there stay, or with a genesis, which replaces the whole chain. Other nodes that get these
    /// records from this one verify the path in their turn. The vote state stays. After damage an adoption also makes
    /// the store usable again.
    ///
    /// # Errors
    /// [`StoreError::NotNext`] when the path begins with neither, or its records cannot follow one another.
    /// [`StoreError::CertificateMismatch`] when a certificate is another record's, or missing.
    /// [`StoreError::MissingChunks`] when chunks are missing or damaged: fetch those that [`Store::begin_adopt`] names,
    /// and finish again. [`StoreError::StateMismatch`] when the manifest is not of the record's state. The chain that
    /// was here is untouched then.
    pub fn finish_adopt(&self, manifest: &Manifest, way: &[Link]) -> Result<(), StoreError> {
        let (Some(first), Some(last)) = (way.first(), way.last()) else { return Err(StoreError::NoChain) };
        check_way(way)?;
        self.check_run(last.record.run)?;
        let got = state::root(manifest);
        if got != last.record.state_root {
            let (seq, expected) = (last.record.seq, last.record.state_root);
            return Err(StoreError::StateMismatch { seq, expected, got });
        }
        let _bulk = lock(&self.bulk);
        let missing = self.missing(manifest)?;
        if let Some(first) = missing.first() {
            return Err(StoreError::MissingChunks { count: missing.len(), first: *first });
        }
        self.note(self.chunks.sync_files(&manifest.chunks))?;
        if !self.proves(first)? && first.record.kind != RecordKind::Genesis {
            return Err(not_next(&first.record, "the way to the state begins with a record that is not here"));
        }
        self.note(self.reopen_if_damaged())?;
        let mut change = self.begin()?;
        if self.proves(first)? {
            change.cut_after(tip::Link::new(&first.record));
        } else {
            change.clear();
            change.push(&first.record, None);
        }
        for link in way.iter().skip(1) {
            change.push(&link.record, link.certificate.as_ref());
        }
        change.keep_snapshot(last.record.seq, Arc::new(manifest.clone()));
        change.apply()?;
        self.abort_adopt();
        self.prune(change);
        Ok(())
    }

    /// Whether this record is on the chain here, with its votes, or as the genesis.
    fn proves(&self, link: &Link) -> Result<bool, StoreError> {
        let seq = link.record.seq;
        let held = match self.record_bytes(seq) {
            Err(StoreError::Damaged(_)) => None,
            other => other?,
        };
        let same = held.is_some_and(|bytes| wire::record_digest(&bytes) == link.record.digest());
        Ok(same && (link.record.kind == RecordKind::Genesis || self.certificate(seq)?.is_some()))
    }

    /// Gives the adoption up. The next snapshot removes the fetched chunks.
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

/// Checks that these records can follow one another, each with votes that name it or as a stone. The first needs no
/// votes: it is here already, or is a genesis.
fn check_way(way: &[Link]) -> Result<(), StoreError> {
    for pair in way.windows(2) {
        let [before, link] = pair else { continue };
        tip::follows(&before.record, &link.record).map_err(|why| not_next(&link.record, &why))?;
    }
    let mut links = way.iter().skip(1).peekable();
    while let Some(link) = links.next() {
        let child = links.peek().filter(|next| link.record.seq.checked_add(1) == Some(next.record.seq));
        let stone = link.certificate.is_none() && child.is_some_and(|child| child.certificate.is_some());
        if !stone {
            check_certificate(&link.record, link.certificate.as_ref())?;
        }
    }
    Ok(())
}
