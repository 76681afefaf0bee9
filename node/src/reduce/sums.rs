//! The sums that an owner makes. Members are added in one order, however their parts arrive: who comes too early waits for
//! its turn with the one part that it has read, and so slows nobody but itself.

use starling_kernels::codec::add_scaled;
use starling_protocol::update;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Chunks that may be begun before the first of them is complete: 8 MiB.
const WINDOW: usize = 64;

/// Sums of the chunks of one segment.
pub(super) struct Sums {
    members: usize,
    segment: Range<usize>,
    /// Elements of the whole vector.
    elements: usize,
    desk: Mutex<Desk>,
    /// Changes with every part that was added.
    turn: watch::Sender<u64>,
}

#[derive(Default)]
struct Desk {
    /// Chunks that are complete, from the segment's start.
    complete: usize,
    /// Those behind them that are begun.
    open: VecDeque<Open>,
    spare: Vec<Vec<f32>>,
}

struct Open {
    /// Members that were added.
    added: usize,
    values: Vec<f32>,
}

impl Sums {
    pub fn new(members: usize, segment: Range<usize>, elements: usize) -> Self {
        Self { members, segment, elements, desk: Mutex::default(), turn: watch::Sender::new(0) }
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the part of the member at `place` to `chunk` when its turn has come. Returns the sum with the last part.
    pub async fn add(&self, chunk: usize, place: usize, weight: f32, part: &[f32]) -> Option<Vec<f32>> {
        let mut turn = self.turn.subscribe();
        let mut values = loop {
            turn.borrow_and_update();
            if let Some(values) = self.take(chunk, place) {
                break values;
            }
            // The sender is in `self`, so the channel cannot close while we wait.
            drop(turn.changed().await);
        };
        add_scaled(&mut values, part, weight);
        let complete = self.put(chunk, values);
        self.turn.send_modify(|turn| *turn += 1);
        complete
    }

    /// The values of `chunk`, if it is the turn of `place`, whose alone they are until [`Self::put`].
    fn take(&self, chunk: usize, place: usize) -> Option<Vec<f32>> {
        let mut desk = self.desk();
        let at = chunk.checked_sub(self.segment.start + desk.complete)?;
        if at >= WINDOW {
            return None;
        }
        while desk.open.len() <= at {
            let next = self.segment.start + desk.complete + desk.open.len();
            let mut values = desk.spare.pop().unwrap_or_default();
            values.clear();
            values.resize(update::chunk_elements(self.elements, next).len(), 0.0);
            desk.open.push_back(Open { added: 0, values });
        }
        let open = &mut desk.open[at];
        (open.added == place).then(|| std::mem::take(&mut open.values))
    }

    /// Puts the values back, one member further; returns them if that was the last.
    fn put(&self, chunk: usize, values: Vec<f32>) -> Option<Vec<f32>> {
        let mut desk = self.desk();
        let at = chunk.checked_sub(self.segment.start + desk.complete)?;
        let open = desk.open.get_mut(at)?;
        open.added += 1;
        if open.added < self.members {
            open.values = values;
            return None;
        }
        // Every member adds its parts by ascending chunk, so chunks are completed in that order.
        desk.open.pop_front();
        desk.complete += 1;
        Some(values)
    }

    /// Takes the memory of a sum back.
    pub fn recycle(&self, values: Vec<f32>) {
        let mut desk = self.desk();
        if desk.spare.len() < WINDOW {
            desk.spare.push(values);
        }
    }
}
