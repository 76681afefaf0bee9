//! The chunks of a state on their way to the disk: hashed and written by several threads, while the state itself may already be on its way
//! to the next record.

use crate::sealed::extend_le;
use crate::store::Store;
use crate::{StoreError, space, threads};
use starling_protocol::Digest;
use starling_protocol::limits::STATE_CHUNK_BYTES;
use starling_protocol::record::Record;
use starling_protocol::state::{self, Manifest, State, StateError};
use std::collections::HashSet;
use std::num::NonZero;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// The most threads that hash: more of them wait for memory.
const HASHERS_MAX: usize = 16;
/// Threads that write chunks to the page cache.
const WRITERS: usize = 4;
/// Chunks that are synced together. Were a large state to wait in the page cache as a whole, commits would have to wait for it there.
const SYNCED_TOGETHER: usize = 256;

/// A state that several threads read chunk by chunk. It may change elsewhere meanwhile: what is read here is the state as it was.
pub trait StateChunks: Sync {
    /// Elements of each vector.
    fn elements(&self) -> u64;
    /// Theta and the moments.
    fn vectors(&self) -> u8;
    /// Calls `read` once with the floats of chunk `index`, as [`State::chunk_floats`] counts them. Returns whether it did: false if the
    /// state is not held any more.
    fn read(&self, index: usize, read: &mut dyn FnMut(&[f32])) -> bool;
    /// Chunk `index` will not be read again.
    fn done_with(&self, _index: usize) {}
    /// Whether the state is still to be written; asked before each chunk.
    fn is_wanted(&self) -> bool {
        true
    }
}

impl StateChunks for State {
    fn elements(&self) -> u64 {
        State::elements(self) as u64
    }

    fn vectors(&self) -> u8 {
        // More than 255 vectors are too many in any mode.
        u8::try_from(1 + self.moments.len()).unwrap_or(u8::MAX)
    }

    fn read(&self, index: usize, read: &mut dyn FnMut(&[f32])) -> bool {
        let Some(floats) = self.chunk_floats(index) else { return false };
        read(floats);
        true
    }
}

/// Checks that the vectors of a state are of one length.
pub(crate) fn check_lengths(state: &State) -> Result<(), StoreError> {
    let theta = state.theta.len();
    match state.moments.iter().find(|moment| moment.len() != theta) {
        Some(other) => Err(malformed(StateError::Lengths { theta, other: other.len() })),
        None => Ok(()),
    }
}

fn malformed(why: StateError) -> StoreError {
    StoreError::Malformed { what: "state", why: why.to_string() }
}

impl Store {
    /// Writes the chunks of a record's state that are not here yet, durable when this returns. What a failure leaves is removed. The
    /// caller holds `bulk`.
    pub(crate) fn write_state(
        &self,
        record: &Record,
        schema: &Digest,
        state: &dyn StateChunks,
    ) -> Result<Manifest, StoreError> {
        let (seq, expected) = (record.seq, record.state_root);
        let manifest = manifest_of(&self.folder.chunks(), seq, schema, state)?;
        let got = state::root(&manifest);
        if got != expected {
            return Err(StoreError::StateMismatch { seq, expected, got });
        }
        self.write_missing(seq, &manifest, state)?;
        Ok(manifest)
    }

    /// The same for a state that no record here has.
    pub(crate) fn write_chunks_of(
        &self,
        seq: u64,
        schema: &Digest,
        state: &dyn StateChunks,
    ) -> Result<Manifest, StoreError> {
        let manifest = manifest_of(&self.folder.chunks(), seq, schema, state)?;
        self.write_missing(seq, &manifest, state)?;
        Ok(manifest)
    }

    fn write_missing(&self, seq: u64, manifest: &Manifest, state: &dyn StateChunks) -> Result<(), StoreError> {
        let places = distinct(manifest, state);
        let missing = places.iter().filter(|(_, digest)| !self.chunks.contains(digest)).count();
        self.require_room(missing)?;
        self.write_chunks(seq, &places, state).inspect_err(|_| self.prune_chunks())
    }

    /// Writes and syncs these chunks. Each file is synced once, and each folder once at the end.
    fn write_chunks(&self, seq: u64, places: &[(usize, Digest)], state: &dyn StateChunks) -> Result<(), StoreError> {
        for together in places.chunks(SYNCED_TOGETHER) {
            threads::each(("write chunks to", self.folder.chunks().as_path()), WRITERS, together.len(), |n, bytes| {
                let Some((index, digest)) = together.get(n) else { return Ok(()) };
                bytes.clear();
                bytes.reserve(STATE_CHUNK_BYTES);
                read_chunk(seq, state, *index, &mut |floats| extend_le(bytes, floats))?;
                state.done_with(*index);
                self.chunks.put_unsynced(digest, bytes).map(drop)
            })?;
            let digests: Vec<_> = together.iter().map(|(_, digest)| *digest).collect();
            let goes_on = || if state.is_wanted() { Ok(()) } else { Err(StoreError::GivenUp { seq }) };
            self.note(self.chunks.sync_contents(&digests, goes_on))?;
        }
        self.note(self.chunks.sync(places.iter().map(|(_, digest)| digest)))
    }

    /// Checks that there is room for so many chunks beside the reserve.
    pub(crate) fn require_room(&self, chunks: usize) -> Result<(), StoreError> {
        let needed = (chunks as u64).saturating_mul(STATE_CHUNK_BYTES as u64 + 4096);
        space::require(&self.folder.chunks(), needed, self.options.reserve_bytes)
    }
}

/// Hashes the state of record `seq`, on all cores up to [`HASHERS_MAX`]. `target` is where it is to be written, or was read.
pub(crate) fn manifest_of(
    target: &Path,
    seq: u64,
    schema: &Digest,
    state: &dyn StateChunks,
) -> Result<Manifest, StoreError> {
    let (elements, vectors) = (state.elements(), state.vectors());
    let digests = Mutex::new(vec![Digest::default(); state::chunk_count(elements, vectors)]);
    let held = || digests.lock().unwrap_or_else(PoisonError::into_inner);
    let count = held().len();
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let hashers = cores.min(HASHERS_MAX);
    threads::each(("read a state for", target), hashers, count, |index, _| {
        let mut digest = Digest::default();
        read_chunk(seq, state, index, &mut |floats| digest = state::floats_digest(floats))?;
        if let Some(place) = held().get_mut(index) {
            *place = digest;
        }
        Ok(())
    })?;
    let chunks = digests.into_inner().unwrap_or_else(PoisonError::into_inner);
    Manifest::of_chunks(*schema, elements, vectors, chunks).map_err(malformed)
}

/// The first place of each digest; chunks that are alike are one file. The state is done with the other places.
fn distinct(manifest: &Manifest, state: &dyn StateChunks) -> Vec<(usize, Digest)> {
    let mut seen = HashSet::new();
    let (first, again): (Vec<_>, Vec<_>) =
        manifest.chunks.iter().copied().enumerate().partition(|(_, digest)| seen.insert(*digest));
    again.into_iter().for_each(|(index, _)| state.done_with(index));
    first
}

/// Reads a chunk of the state of record `seq`, or says that the state is not wanted any more.
pub(crate) fn read_chunk(
    seq: u64,
    state: &dyn StateChunks,
    index: usize,
    read: &mut dyn FnMut(&[f32]),
) -> Result<(), StoreError> {
    if state.is_wanted() && state.read(index, read) { Ok(()) } else { Err(StoreError::GivenUp { seq }) }
}
