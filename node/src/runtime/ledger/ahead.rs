//! Work on an update that is still being reduced. While the wire is busy with the other chunks, the outer step of those
//! that are finished is computed and hashed, and their bytes are written and synced. Little is left to do when the
//! reduction ends, and nothing depends on it: chunks that were not done, or changed since, are done then.

use super::update::Update;
use crate::contribution;
use crate::reduce::{Finished, Sums};
use crate::runtime::canonical::Canonical;
use crate::runtime::head::SharedState;
use crate::runtime::outer_step::{OuterStep, STATE_CHUNK_ELEMENTS, Scratch, StepError};
use rayon::prelude::*;
use starling_protocol::engine::io::AttemptKey;
use starling_protocol::{Digest, update};
use starling_store::{Draft, Store, StoreError};
use std::num::NonZero;
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Chunks of the state that a step must change to be worth two threads: 2 Mi parameters.
const CHUNKS_MIN: usize = 8;
/// The time between two looks for finished chunks, if there were none. In int8 a line of 1 Gbit/s carries two meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Cores for each thread that steps chunks. The cores have parts to encode and to add up meanwhile.
const CORES_A_THREAD: usize = 4;
/// Pieces that wait for the disk, of 256 KiB in int8. More are written at the end.
const WAITING_MAX: usize = 16;
/// Bytes of the file that wait in the page cache for one sync.
const SYNCED_TOGETHER: usize = 4 << 20;

/// The attempt whose update is awaited, and the step that it will make.
pub struct Awaited {
    pub key: AttemptKey,
    /// The record on whose state the step is made.
    pub parent: Digest,
    pub step: OuterStep,
    /// Elements of the model.
    pub elements: usize,
}

/// The work ahead. It stops when this is dropped.
pub struct Ahead {
    state: Arc<SharedState>,
    /// Changes of the state when the work began.
    changes: u64,
    step: OuterStep,
    shared: Arc<Shared>,
    steps: Option<JoinHandle<()>>,
    disk: Option<JoinHandle<Option<Written>>>,
}

/// The work that was done ahead, as far as it fits the update.
#[derive(Default)]
pub struct Done {
    /// The digests of each vector's chunk after the step, by chunk.
    pub stepped: Vec<Option<Vec<Digest>>>,
    pub file: Option<Unfinished>,
}

/// The file of an update, which its thread may still be writing to.
pub struct Unfinished {
    disk: JoinHandle<Option<Written>>,
    step: OuterStep,
    /// By chunk of the state, whether its payloads are those of the update.
    fits: Vec<bool>,
}

/// A file, and whether the payloads of each chunk of the state are in it.
struct Written {
    draft: Draft,
    chunks: Vec<bool>,
}

struct Stepped {
    /// Digest of the payloads.
    payloads: Digest,
    digests: Vec<Digest>,
}

/// A chunk of the state and the payloads that step it.
type Piece = (usize, Vec<u8>);

/// The chunks that are left and those that are done, for all threads.
#[derive(Default)]
struct Shared {
    progress: Mutex<Progress>,
    stopped: Condvar,
}

#[derive(Default)]
struct Progress {
    left: Vec<usize>,
    stepped: Vec<Option<Stepped>>,
    stop: bool,
}

impl Shared {
    fn new(step: &OuterStep, elements: usize) -> Self {
        let chunks = 0..elements.div_ceil(STATE_CHUNK_ELEMENTS);
        let stepped = chunks.clone().map(|_| None).collect();
        let left = chunks.filter(|chunk| !step.chunks_of(*chunk).is_empty()).collect();
        Self { progress: Mutex::new(Progress { left, stepped, stop: false }), stopped: Condvar::new() }
    }

    /// Every step leaves it whole, so a holder that panicked leaves a usable lock.
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stop(&self) {
        self.progress().stop = true;
        self.stopped.notify_all();
    }

    /// Waits for so long, or until the work is to stop.
    fn wait(&self, time: Duration) {
        drop(self.stopped.wait_timeout_while(self.progress(), time, |progress| !progress.stop));
    }
}

impl Ahead {
    /// Begins to work on an attempt's update. None if there is nothing to gain, or no thread.
    pub fn start(awaited: Awaited, state: Arc<SharedState>, sums: Arc<Sums>, store: &Arc<Store>) -> Option<Self> {
        let step = awaited.step.clone();
        // The places of other codecs' payloads, and the factor of a rule that clips, are known at the end only.
        if !step.codec.is_fixed() || step.rule.clips() {
            return None;
        }
        let shared = Arc::new(Shared::new(&step, awaited.elements));
        if shared.progress().left.len() < CHUNKS_MIN {
            return None;
        }
        let (changes, (pieces, arriving)) = (state.changes(), sync_channel(WAITING_MAX));
        let stepper = Stepper { awaited, state: Arc::clone(&state), changes, sums, shared: Arc::clone(&shared) };
        let steps = Builder::new().name("ahead".into()).spawn(move || stepper.run(&pieces));
        let steps = steps.inspect_err(|e| tracing::debug!("no thread works ahead: {}", starling_words::of(e))).ok()?;
        let scribe = Scribe { step: step.clone(), store: Arc::downgrade(store), shared: Arc::clone(&shared) };
        // Without this thread, as with a disk that fails, the update is written when it is whole.
        let disk = Builder::new().name("ahead-disk".into()).spawn(move || scribe.write(arriving)).ok();
        Some(Self { state, changes, step, shared, steps: Some(steps), disk })
    }

    /// Ends the work, and returns the part of it that fits this step of the present state with `update`. The caller does
    /// not hold the state, which the work may be reading.
    pub fn end(mut self, step: &OuterStep, update: &[u8]) -> Done {
        self.shared.stop();
        if (self.changes, &self.step) != (self.state.changes(), step) || update.len() != step.bytes() {
            return Done::default();
        }
        // A panic is in the log. The chunks that were done before it are as good as others.
        drop(self.steps.take().map(JoinHandle::join));
        let fits = |(chunk, stepped): (usize, Option<Stepped>)| {
            stepped.filter(|stepped| name(&update[step.bytes_of(chunk)]) == stepped.payloads).map(|s| s.digests)
        };
        let done = std::mem::take(&mut self.shared.progress().stepped);
        let stepped: Vec<_> = done.into_par_iter().enumerate().map(fits).collect();
        let fits = stepped.iter().map(Option::is_some).collect();
        let file = self.disk.take().map(|disk| Unfinished { disk, step: step.clone(), fits });
        Done { stepped, file }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl Unfinished {
    /// Writes what is missing of `update` and stages it ([`Store::stage_draft`]), or writes it from the start.
    ///
    /// # Errors
    /// [`StoreError`] as of [`Store::stage_update`].
    pub fn stage(self, store: &Store, update: &Update) -> Result<(), StoreError> {
        let Some(Written { mut draft, chunks }) = self.disk.join().ok().flatten() else {
            return store.stage_update(&update.bytes);
        };
        let is_missing = |chunk: &usize| !(self.fits[*chunk] && chunks[*chunk]);
        let missing: Vec<Range<usize>> =
            (0..chunks.len()).filter(is_missing).map(|chunk| self.step.bytes_of(chunk)).collect();
        // The store does not read a draft again. The parts that were written ahead were compared with the update; the
        // others are only as good as its bytes are now.
        if !missing.is_empty() && contribution::update_digest(&update.bytes) != update.digest {
            return store.stage_update(&update.bytes);
        }
        for range in missing {
            draft.write(range.start as u64, &update.bytes[range])?;
        }
        store.stage_draft(draft, &update.digest)
    }
}

/// Steps chunks.
struct Stepper {
    awaited: Awaited,
    state: Arc<SharedState>,
    changes: u64,
    sums: Arc<Sums>,
    shared: Arc<Shared>,
}

impl Stepper {
    fn run(&self, pieces: &SyncSender<Piece>) {
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get).div_ceil(CORES_A_THREAD);
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // One thread fewer is slower, not wrong.
                let _ = Builder::new().name("ahead".into()).spawn_scoped(scope, || self.step_chunks(pieces));
            }
            self.step_chunks(pieces);
        });
    }

    /// Steps chunks until none is left to wait for, or the work is to stop, or the state has moved on.
    fn step_chunks(&self, pieces: &SyncSender<Piece>) {
        let vectors = self.state.read().state.vectors().count();
        let mut scratch = self.awaited.step.scratch(vectors);
        loop {
            let piece = match self.next() {
                Finished::Copied(piece) => piece,
                Finished::NotYet => {
                    self.shared.wait(LOOK_EVERY);
                    continue;
                }
                Finished::Never => return,
            };
            let state = self.state.read();
            if (state.digest, self.state.changes()) != (self.awaited.parent, self.changes) {
                return;
            }
            let made = self.stepped(&state, &piece, &mut scratch);
            drop(state);
            // A step that fails now fails at the end as well, and is told then.
            self.shared.progress().stepped[piece.0] = made.ok();
            // If the disk is behind, or has failed, the piece is written at the end.
            let _ = pieces.try_send(piece);
        }
    }

    /// Takes a chunk whose sums are finished from those that are left.
    fn next(&self) -> Finished<Piece> {
        let mut progress = self.shared.progress();
        if progress.stop || progress.left.is_empty() {
            return Finished::Never;
        }
        let step = &self.awaited.step;
        match self.sums.copy_finished(&self.awaited.key, progress.left.iter().map(|chunk| step.chunks_of(*chunk))) {
            Finished::Copied((place, bytes)) => Finished::Copied((progress.left.swap_remove(place), bytes)),
            Finished::NotYet => Finished::NotYet,
            Finished::Never => Finished::Never,
        }
    }

    fn stepped(&self, state: &Canonical, piece: &Piece, scratch: &mut Scratch) -> Result<Stepped, StepError> {
        let ((chunk, bytes), step) = (piece, &self.awaited.step);
        let start = step.bytes_of(*chunk).start;
        let payload = |chunk| {
            let range = step.bytes_of_payload(chunk);
            &bytes[range.start - start..range.end - start]
        };
        let digests = state.stepped_chunk(step, step.rule.scale(0.0), *chunk, payload, scratch)?;
        Ok(Stepped { payloads: name(bytes), digests })
    }
}

/// Writes payloads to the update's file.
struct Scribe {
    step: OuterStep,
    /// Weak: a node that ends closes its store, and waits for no reduction.
    store: Weak<Store>,
    shared: Arc<Shared>,
}

impl Scribe {
    /// Writes pieces until there are no more, or the work is to stop. None if the disk has failed, or has no room.
    fn write(&self, arriving: Receiver<Piece>) -> Option<Written> {
        let draft = self.store.upgrade()?.draft_update(self.step.bytes() as u64);
        let (mut draft, mut unsynced) = (draft.map_err(|e| told(&e)).ok()?, 0);
        let mut chunks = vec![false; self.shared.progress().stepped.len()];
        for (chunk, bytes) in arriving {
            if self.shared.progress().stop {
                break;
            }
            draft.write(self.step.bytes_of(chunk).start as u64, &bytes).map_err(|e| told(&e)).ok()?;
            chunks[chunk] = true;
            unsynced += bytes.len();
            if unsynced >= SYNCED_TOGETHER {
                unsynced = 0;
                draft.sync().map_err(|e| told(&e)).ok()?;
            }
        }
        Some(Written { draft, chunks })
    }
}

fn told(error: &StoreError) {
    tracing::debug!("the update is written when it is whole: {error}");
}

/// Names the payloads of a chunk, so that the work on them is used for these only.
fn name(payloads: &[u8]) -> Digest {
    update::digest(payloads)
}

#[cfg(test)]
#[path = "ahead_test.rs"]
mod tests;
