//! Snapshots that are written while the chain goes on.

use crate::support::{ELEMENTS, History, SCHEMA, files, image, open, same_state, scratch};
use starling_protocol::state::State;
use starling_store::{SnapshotKind, StateChunks, Store, StoreError};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Chunks of a state of [`ELEMENTS`]: each is read to be hashed, and again to be written.
const CHUNKS: usize = 4;

/// A state at one of whose readings something happens: the writer waits there until it is over.
struct Held<'a> {
    state: &'a State,
    reads: AtomicUsize,
    /// The reading, from 0, at which it happens.
    at: usize,
    /// The event; it returns whether the snapshot is still wanted.
    happens: &'a (dyn Fn() -> bool + Sync),
    is_wanted: AtomicBool,
}

impl<'a> Held<'a> {
    fn new(state: &'a State, at: usize, happens: &'a (dyn Fn() -> bool + Sync)) -> Self {
        Self { state, reads: AtomicUsize::new(0), at, happens, is_wanted: AtomicBool::new(true) }
    }
}

impl StateChunks for Held<'_> {
    fn elements(&self) -> u64 {
        self.state.elements() as u64
    }

    fn vectors(&self) -> u8 {
        StateChunks::vectors(self.state)
    }

    fn read(&self, index: usize, read: &mut dyn FnMut(&[f32])) -> bool {
        if self.reads.fetch_add(1, Ordering::Relaxed) == self.at {
            self.is_wanted.store((self.happens)(), Ordering::Relaxed);
        }
        StateChunks::read(self.state, index, read)
    }

    fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn snapshots(store: &Store) -> Vec<u64> {
    store.snapshots().iter().map(|(seq, _)| *seq).collect()
}

fn chunk_files(dir: &Path) -> usize {
    files(&dir.join("chunks")).len()
}

/// Whatever the writer has done so far, a commit is acknowledged meanwhile, and a kill leaves the snapshot before, every update since,
/// and nothing that the next snapshot does not remove.
#[test]
fn a_commit_and_a_kill_come_while_the_writer_is_held_up() {
    for at in 0..2 * CHUNKS {
        let dir = scratch();
        let (mut history, store) = History::founded(dir.path(), ELEMENTS);
        let of_genesis = chunk_files(dir.path());
        history.commit(&store);
        let (later, killed) = (Mutex::new(history.clone()), Mutex::new(None));
        let happens = || {
            let mut later = held(&later);
            later.commit(&store);
            assert_eq!((store.head().map(|head| head.seq), snapshots(&store)), (Some(2), vec![0]), "reading {at}");
            *held(&killed) = Some(image(dir.path()));
            true
        };
        let state = Held::new(&history.state, at, &happens);
        store.write_snapshot_of(SnapshotKind::Due, &history.record, &SCHEMA, &state).unwrap();
        assert_eq!(state.reads.load(Ordering::Relaxed), 2 * CHUNKS);
        assert_eq!(snapshots(&store), [0, 1]);
        assert!(same_state(&store.load_snapshot(1).unwrap().state, &history.state), "of the record before");
        let later = held(&later);
        later.assert_loaded_from(&store);
        let killed = held(&killed).take().expect("it has happened");
        let store = open(killed.path());
        assert_eq!(snapshots(&store), [0]);
        later.assert_loaded_from(&store);
        later.snapshot(&store);
        assert_eq!(chunk_files(killed.path()), of_genesis + CHUNKS, "reading {at}");
    }
}

#[test]
fn a_snapshot_that_is_given_up_leaves_nothing() {
    let dir = scratch();
    let (mut history, store) = History::founded(dir.path(), ELEMENTS);
    let before = files(&dir.path().join("chunks"));
    history.commit(&store);
    let gives_up = || false;
    for at in 0..2 * CHUNKS {
        let state = Held::new(&history.state, at, &gives_up);
        let ended = store.write_snapshot_of(SnapshotKind::Due, &history.record, &SCHEMA, &state);
        assert!(matches!(ended, Err(StoreError::GivenUp { seq: 1 })), "reading {at}: {ended:?}");
        assert_eq!((snapshots(&store), files(&dir.path().join("chunks"))), (vec![0], before.clone()), "reading {at}");
    }
    history.snapshot(&store);
    assert_eq!(snapshots(&store), [0, 1]);
}

/// A writer that comes late, after the adoption of a later state or a snapshot of one.
#[test]
fn no_snapshot_is_put_before_a_newer_one() {
    let dir = scratch();
    let (mut history, store) = History::founded(dir.path(), 1000);
    history.commit(&store);
    let old = history.clone();
    history.commit(&store);
    history.snapshot(&store);
    let late = store.write_snapshot(&old.record, &SCHEMA, &old.state);
    assert!(matches!(late, Err(StoreError::GivenUp { seq: 1 })), "{late:?}");
    assert_eq!(snapshots(&store), [0, 2]);
}

#[test]
fn a_state_whose_vectors_differ_in_length_is_refused() {
    let dir = scratch();
    let (mut history, store) = History::founded(dir.path(), 1000);
    history.commit(&store);
    history.state.moments[0].push(0.0);
    let refused = store.write_snapshot(&history.record, &SCHEMA, &history.state);
    assert!(matches!(refused, Err(StoreError::Malformed { what: "state", .. })), "{refused:?}");
}
