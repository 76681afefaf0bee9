//! Work on an update that is still being reduced. While the wire is busy with the other chunks, the outer step of those
//! that are finished is computed and hashed, and their bytes are written and synced. Little is left to do when the
//! reduction ends, and nothing depends on it: chunks that were not done, or changed since, are done then.

use super::job::Update;
use crate::reduce::Sums;
use crate::runtime::canonical::Canonical;
use crate::runtime::head::SharedState;
use crate::runtime::outer_step::{OuterStep, STATE_CHUNK_ELEMENTS, StepError};
use rayon::prelude::*;
use starling_protocol::engine::io::AttemptKey;
use starling_protocol::{Digest, update};
use starling_store::{Draft, Store, StoreError};
use std::ops::Range;
#[cfg(test)]
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Chunks of a state for which two threads are worth their start: 2 Mi parameters.
const CHUNKS_MIN: usize = 8;
/// The time between two looks for finished chunks, if there were none. In int8 a line of 1 Gbit/s carries two meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Pieces that wait for the disk, of 256 KiB in int8. More are written at the end.
const WAITING_MAX: usize = 16;

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
    stop: Arc<AtomicBool>,
    work: Option<JoinHandle<Work>>,
    /// Chunks of the state that were stepped so far.
    #[cfg(test)]
    steps: Arc<AtomicUsize>,
}

/// The work that was done ahead, as far as it fits the update.
#[derive(Default)]
pub struct Done {
    /// The digests of each vector's chunk after the step, by chunk.
    pub stepped: Vec<Option<Vec<Digest>>>,
    pub file: Option<Unfinished>,
}

/// The update's file, and the bytes that are still to be written to it.
pub struct Unfinished {
    draft: Draft,
    missing: Vec<Range<usize>>,
}

struct Work {
    /// By chunk of the state.
    stepped: Vec<Option<Stepped>>,
    /// The file, and whether each chunk's payloads were written to it.
    file: Option<(Draft, Vec<bool>)>,
}

struct Stepped {
    /// Digest of the payloads.
    payloads: Digest,
    digests: Vec<Digest>,
}

struct Worker {
    awaited: Awaited,
    state: Arc<SharedState>,
    changes: u64,
    sums: Arc<Sums>,
    /// Weak: whoever closes the store does not wait for this thread to notice.
    store: Weak<Store>,
    stop: Arc<AtomicBool>,
    #[cfg(test)]
    steps: Arc<AtomicUsize>,
}

impl Awaited {
    /// Chunks of each vector of the state.
    fn chunks(&self) -> usize {
        self.elements.div_ceil(STATE_CHUNK_ELEMENTS)
    }
}

/// A chunk of the state and the payloads that step it.
type Piece = (usize, Vec<u8>);

impl Ahead {
    /// Begins to work on an attempt's update. None if there is nothing to gain, or no thread.
    pub fn start(awaited: Awaited, state: Arc<SharedState>, sums: Arc<Sums>, store: &Arc<Store>) -> Option<Self> {
        // The places of other codecs' payloads, and the factor of a rule that clips, are known at the end only.
        let in_place = awaited.step.codec.is_fixed() && !awaited.step.rule.clips();
        if !in_place || awaited.chunks() < CHUNKS_MIN {
            return None;
        }
        let (step, stop) = (awaited.step.clone(), Arc::<AtomicBool>::default());
        let changes = state.changes();
        let (worker_state, store) = (Arc::clone(&state), Arc::downgrade(store));
        #[cfg(test)]
        let steps = Arc::<AtomicUsize>::default();
        let worker = Worker {
            awaited,
            state: worker_state,
            changes,
            sums,
            store,
            stop: Arc::clone(&stop),
            #[cfg(test)]
            steps: Arc::clone(&steps),
        };
        let thread = std::thread::Builder::new().name("ahead".into()).spawn(move || worker.run());
        let work = thread.inspect_err(|e| tracing::debug!("no thread works ahead: {}", starling_words::of(e)));
        Some(Self {
            state,
            changes,
            step,
            stop,
            work: Some(work.ok()?),
            #[cfg(test)]
            steps,
        })
    }

    /// Ends the work, and returns the part of it that fits this step of the present state with `update`. The caller does
    /// not hold the state, which the work may be reading.
    pub fn end(mut self, step: &OuterStep, update: &[u8]) -> Done {
        self.stop.store(true, Ordering::Relaxed);
        let Some(work) = self.work.take() else { return Done::default() };
        work.thread().unpark();
        if (self.changes, &self.step) != (self.state.changes(), step) || update.len() != step.bytes() {
            return Done::default();
        }
        // The panic is in the log.
        work.join().map(|work| work.checked(step, update)).unwrap_or_default()
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Work {
    fn checked(self, step: &OuterStep, update: &[u8]) -> Done {
        let fits = |(chunk, stepped): (usize, Option<Stepped>)| {
            stepped.filter(|stepped| name(&update[step.bytes_of(chunk)]) == stepped.payloads).map(|s| s.digests)
        };
        let stepped: Vec<_> = self.stepped.into_par_iter().enumerate().map(fits).collect();
        let file = self.file.map(|(draft, written)| {
            let missing = |(chunk, written): &(usize, bool)| !written || stepped[*chunk].is_none();
            let missing = written.into_iter().enumerate().filter(missing).map(|(chunk, _)| step.bytes_of(chunk));
            Unfinished { draft, missing: missing.collect() }
        });
        Done { stepped, file }
    }
}

impl Unfinished {
    /// Writes what is missing of `update`, and stages it ([`Store::stage_draft`]).
    ///
    /// # Errors
    /// [`StoreError`]; nothing is staged then.
    pub fn stage(mut self, store: &Store, update: &Update) -> Result<(), StoreError> {
        for range in self.missing {
            store.write_draft(&mut self.draft, range.start as u64, &update.bytes[range])?;
        }
        store.stage_draft(self.draft, &update.digest)
    }
}

impl Worker {
    fn run(self) -> Work {
        let mut stepped: Vec<Option<Stepped>> = Vec::new();
        stepped.resize_with(self.awaited.chunks(), || None);
        let steps = |chunk: &usize| !self.awaited.step.chunks_of(*chunk).is_empty();
        let mut left: Vec<usize> = (0..self.awaited.chunks()).filter(steps).collect();
        std::thread::scope(|scope| {
            let (pieces, arriving) = sync_channel(WAITING_MAX);
            let disk = scope.spawn(|| self.write(arriving));
            while !self.stop.load(Ordering::Relaxed) && !left.is_empty() {
                let ready = self.ready(&mut left);
                if ready.is_empty() {
                    std::thread::park_timeout(LOOK_EVERY);
                } else if !self.step(ready, &mut stepped, &pieces) {
                    break;
                }
            }
            drop(pieces);
            // The panic is in the log.
            Work { stepped, file: disk.join().unwrap_or_default() }
        })
    }

    /// Takes chunks whose sums are finished from those that are left: one for each core, so that few bytes are held.
    fn ready(&self, left: &mut Vec<usize>) -> Vec<Piece> {
        let (mut ready, most) = (Vec::new(), rayon::current_num_threads());
        left.retain(|chunk| {
            let mut bytes = Vec::new();
            let taken = ready.len() < most
                && self.sums.copy_finished(&self.awaited.key, self.awaited.step.chunks_of(*chunk), &mut bytes);
            if taken {
                ready.push((*chunk, bytes));
            }
            !taken
        });
        ready
    }

    /// Computes the state's chunks after the step, and hands the payloads to the disk. False if the state has moved on.
    fn step(&self, ready: Vec<Piece>, stepped: &mut [Option<Stepped>], pieces: &SyncSender<Piece>) -> bool {
        let state = self.state.read();
        if (state.digest, self.state.changes()) != (self.awaited.parent, self.changes) {
            return false;
        }
        let made = ready.par_iter().map(|piece| self.stepped(&state, piece)).collect::<Vec<_>>();
        drop(state);
        #[cfg(test)]
        self.steps.fetch_add(made.len(), Ordering::Relaxed);
        for (piece, made) in ready.into_iter().zip(made) {
            // A step that fails now fails at the end as well, and is told then.
            stepped[piece.0] = made.ok();
            // If the disk is behind, or has failed, the piece is written at the end.
            let _ = pieces.try_send(piece);
        }
        true
    }

    fn stepped(&self, state: &Canonical, (chunk, bytes): &Piece) -> Result<Stepped, StepError> {
        let step = &self.awaited.step;
        let start = step.bytes_of(*chunk).start;
        let payload = |chunk| {
            let range = step.bytes_of_payload(chunk);
            &bytes[range.start - start..range.end - start]
        };
        let (scale, vectors) = (step.rule.scale(0.0), state.state.vectors().count());
        let digests = state.stepped_chunk(step, scale, *chunk, payload, &mut step.scratch(vectors))?;
        Ok(Stepped { payloads: name(bytes), digests })
    }

    /// Writes pieces to the update's file, and returns it with the chunks whose pieces are in it.
    fn write(&self, arriving: Receiver<Piece>) -> Option<(Draft, Vec<bool>)> {
        let (mut file, mut written) = (None, vec![false; self.awaited.chunks()]);
        for (chunk, bytes) in arriving {
            let store = self.store.upgrade()?;
            let at = self.awaited.step.bytes_of(chunk).start as u64;
            let wrote = match &mut file {
                Some(draft) => store.write_draft(draft, at, &bytes),
                None => store.draft_update().and_then(|draft| store.write_draft(file.insert(draft), at, &bytes)),
            };
            if let Err(e) = wrote {
                tracing::debug!("the update is written when it is whole: {e}");
                return None;
            }
            written[chunk] = true;
        }
        file.map(|file| (file, written))
    }
}

/// Names the payloads of a chunk, so that the work on them is used for these only.
fn name(payloads: &[u8]) -> Digest {
    update::digest(payloads)
}

#[cfg(test)]
#[path = "ahead_test.rs"]
mod tests;
