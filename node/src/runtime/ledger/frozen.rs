//! The state of one record, kept as it was for a snapshot while the ledger goes on: before a step changes a chunk that is still to be
//! written, the chunk is copied.

use crate::runtime::head::SharedState;
use rayon::prelude::*;
use starling_protocol::Digest;
use starling_protocol::record::Record;
use starling_protocol::state::{self, State};
use starling_store::StateChunks;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The state of a record. The ledger [keeps](Frozen::keep) what it is about to change; the writer reads, and lets go of what it has
/// written.
pub struct Frozen {
    pub record: Record,
    /// Digest of the parameters' names and shapes.
    pub schema: Digest,
    elements: u64,
    vectors: u8,
    state: Arc<SharedState>,
    /// Each is locked after the shared state, or without it.
    chunks: Vec<Mutex<Chunk>>,
    /// The time from which on nobody wants the snapshot.
    until: Mutex<Option<Instant>>,
}

/// The place of a chunk.
enum Chunk {
    /// In the shared state, as it was.
    Shared,
    Copied(Vec<f32>),
    /// Written.
    Done,
}

impl Frozen {
    /// The present state. The ledger calls it, which alone changes the state.
    pub fn of(state: &Arc<SharedState>) -> Self {
        let shared = state.read();
        let (elements, vectors) = (StateChunks::elements(&shared.state), StateChunks::vectors(&shared.state));
        let chunks = (0..state::chunk_count(elements, vectors)).map(|_| Mutex::new(Chunk::Shared)).collect();
        let (record, schema, until) = (shared.record.clone(), shared.schema, Mutex::new(None));
        Self { record, schema, elements, vectors, state: Arc::clone(state), chunks, until }
    }

    /// Copies the chunks that a step changes, if they are still to be written. `present` is the shared state, which the caller has locked
    /// for this step of the elements in `range`.
    pub fn keep(&self, present: &State, range: &Range<usize>) {
        if !self.is_wanted() {
            return;
        }
        self.chunks.par_iter().enumerate().for_each(|(index, chunk)| {
            let span = state::chunk_span(self.elements, self.vectors, index);
            if span.is_none_or(|(_, span)| span.end <= range.start || range.end <= span.start) {
                return;
            }
            let mut chunk = locked(chunk);
            if matches!(*chunk, Chunk::Shared)
                && let Some(floats) = present.chunk_floats(index)
            {
                *chunk = Chunk::Copied(floats.to_vec());
            }
        });
    }

    /// Ends the writing at this time, or earlier if that was said before.
    pub fn end_by(&self, time: Instant) {
        let mut until = locked(&self.until);
        *until = Some(until.map_or(time, |earlier| earlier.min(time)));
    }

    /// Ends the writing: the shared state is about to become another one.
    pub fn give_up(&self) {
        self.end_by(Instant::now());
    }
}

impl StateChunks for Frozen {
    fn elements(&self) -> u64 {
        self.elements
    }

    fn vectors(&self) -> u8 {
        self.vectors
    }

    fn read(&self, index: usize, read: &mut dyn FnMut(&[f32])) -> bool {
        let Some(chunk) = self.chunks.get(index) else { return false };
        if let Chunk::Copied(floats) = &*locked(chunk) {
            read(floats);
            return true;
        }
        let shared = self.state.read();
        let chunk = locked(chunk);
        let floats = match &*chunk {
            Chunk::Copied(floats) => Some(floats.as_slice()),
            // The ledger gives up before it replaces the state.
            Chunk::Shared if self.is_wanted() => shared.state.chunk_floats(index),
            Chunk::Shared | Chunk::Done => None,
        };
        let Some(floats) = floats else { return false };
        read(floats);
        true
    }

    fn done_with(&self, index: usize) {
        if let Some(chunk) = self.chunks.get(index) {
            *locked(chunk) = Chunk::Done;
        }
    }

    fn is_wanted(&self) -> bool {
        locked(&self.until).is_none_or(|until| Instant::now() < until)
    }
}

/// No statement leaves the content half-changed, so a poisoned lock is still good.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::canonical::Canonical;
    use crate::runtime::sample_test::genesis;
    use starling_protocol::limits::STATE_CHUNK_BYTES;
    use starling_protocol::run::SyncMode;

    /// A whole chunk of each vector, and a short one.
    const ELEMENTS: usize = STATE_CHUNK_BYTES / 4 + 5;

    fn frozen() -> (Arc<SharedState>, Frozen, State) {
        let record = genesis().record;
        let digest = record.digest();
        let mut vectors = State::initial((0..ELEMENTS).map(|i| i as f32).collect(), SyncMode::Rounds);
        vectors.moments[0] = (0..ELEMENTS).map(|i| -(i as f32)).collect();
        let state = Canonical { record, digest, base: digest, schema: Digest([3; 32]), state: vectors.clone() };
        let shared = Arc::new(SharedState::new(state));
        let frozen = Frozen::of(&shared);
        (shared, frozen, vectors)
    }

    fn steps(shared: &SharedState, frozen: &Frozen, range: &Range<usize>) {
        shared.change(|state| {
            frozen.keep(&state.state, range);
            let State { theta, moments } = &mut state.state;
            for vector in [theta, &mut moments[0]] {
                vector[range.clone()].iter_mut().for_each(|value| *value += 1.0);
            }
        });
    }

    fn read(frozen: &Frozen, index: usize) -> Option<Vec<f32>> {
        let mut floats = None;
        let has_read = frozen.read(index, &mut |read| floats = Some(read.to_vec()));
        assert_eq!(has_read, floats.is_some());
        floats
    }

    fn copies(frozen: &Frozen) -> Vec<usize> {
        let is_copy = |index: &usize| matches!(*locked(&frozen.chunks[*index]), Chunk::Copied(_));
        (0..frozen.chunks.len()).filter(is_copy).collect()
    }

    #[test]
    fn what_is_read_is_the_state_as_it_was_and_only_what_changes_is_copied() {
        let (shared, frozen, before) = frozen();
        let as_before = |index| read(&frozen, index).as_deref() == before.chunk_floats(index);
        assert!((0..4).all(as_before));
        frozen.done_with(0);
        steps(&shared, &frozen, &(10..20));
        assert_eq!(copies(&frozen), [2], "the first chunk of theta is written, and the short ones have not changed");
        assert!(!as_before(0) && (1..4).all(as_before));
        // Later steps change neither the copy nor what is written.
        steps(&shared, &frozen, &(0..ELEMENTS));
        steps(&shared, &frozen, &(0..ELEMENTS));
        assert_eq!(copies(&frozen), [1, 2, 3]);
        assert!((1..4).all(as_before));
        assert_ne!(shared.read().state.chunk_floats(3), before.chunk_floats(3));
        (0..4).for_each(|index| frozen.done_with(index));
        assert!(copies(&frozen).is_empty(), "a copy goes as soon as it is written");
        steps(&shared, &frozen, &(0..ELEMENTS));
        assert!(copies(&frozen).is_empty());
    }

    #[test]
    fn a_state_that_is_given_up_is_not_read_from_the_one_that_took_its_place() {
        let (shared, frozen, _) = frozen();
        assert!(frozen.is_wanted() && read(&frozen, 1).is_some() && read(&frozen, 4).is_none());
        frozen.end_by(Instant::now() + std::time::Duration::from_secs(3600));
        assert!(frozen.is_wanted());
        frozen.give_up();
        frozen.end_by(Instant::now() + std::time::Duration::from_secs(3600));
        shared.change(|state| state.state.theta.fill(7.0));
        assert!(!frozen.is_wanted() && (0..4).all(|index| read(&frozen, index).is_none()));
        steps(&shared, &frozen, &(0..ELEMENTS));
        assert!(copies(&frozen).is_empty(), "nothing is copied for nobody");
    }
}
