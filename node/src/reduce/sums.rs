//! The sums that an owner makes. Members are added in one order, however their parts arrive: who comes too early waits for
//! its turn with the one part that it has read, and so slows nobody but itself.
//!
//! Sums that will never be complete can be given up: then nobody waits any more, and nothing is added.

use starling_kernels::codec::add_scaled;
use starling_protocol::update;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Chunks that may be begun before the first of them is complete: 8 MiB.
const WINDOW: usize = 64;

/// Sums of one owner's chunks.
pub(super) struct Sums {
    members: usize,
    /// Ascending.
    owned: Vec<usize>,
    /// Elements of the whole vector.
    elements: usize,
    desk: Mutex<Desk>,
    /// Changes with every part that was added.
    turn: watch::Sender<u64>,
}

#[derive(Default)]
struct Desk {
    given_up: bool,
    /// Chunks that are complete, from the first.
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

/// Whether a member's part may be added.
enum Turn {
    Now(Vec<f32>),
    Later,
    /// The chunk is complete, or given up.
    Never,
}

impl Sums {
    pub fn new(members: usize, owned: Vec<usize>, elements: usize) -> Self {
        Self { members, owned, elements, desk: Mutex::default(), turn: watch::Sender::new(0) }
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the part of the member at `place` to `chunk` when its turn has come. Returns the sum with the last part.
    pub async fn add(&self, chunk: usize, place: usize, weight: f32, part: &[f32]) -> Option<Vec<f32>> {
        let mut turn = self.turn.subscribe();
        let mut values = loop {
            turn.borrow_and_update();
            match self.take(chunk, place) {
                Turn::Now(values) => break values,
                Turn::Never => return None,
                Turn::Later => {}
            }
            // The sender is in `self`, so the channel cannot close while we wait.
            drop(turn.changed().await);
        };
        add_scaled(&mut values, part, weight);
        let complete = self.put(chunk, values);
        self.turn.send_modify(|turn| *turn += 1);
        complete
    }

    /// Nothing will be complete any more: whoever waits for its turn is let go.
    pub fn give_up(&self) {
        self.desk().given_up = true;
        self.turn.send_modify(|turn| *turn += 1);
    }

    /// How many chunks lie between the first that is not complete and `chunk`.
    fn ahead(&self, desk: &Desk, chunk: usize) -> Option<usize> {
        self.owned.binary_search(&chunk).ok()?.checked_sub(desk.complete)
    }

    /// The values of `chunk`, if it is the turn of `place`, whose alone they are until [`Self::put`].
    fn take(&self, chunk: usize, place: usize) -> Turn {
        let mut desk = self.desk();
        let ahead = self.ahead(&desk, chunk).filter(|_| !desk.given_up);
        let Some(at) = ahead else { return Turn::Never };
        if at >= WINDOW {
            return Turn::Later;
        }
        while desk.open.len() <= at {
            let next = self.owned.get(desk.complete + desk.open.len()).copied().unwrap_or_default();
            let mut values = desk.spare.pop().unwrap_or_default();
            values.clear();
            values.resize(update::chunk_elements(self.elements, next).len(), 0.0);
            desk.open.push_back(Open { added: 0, values });
        }
        let open = &mut desk.open[at];
        if open.added == place { Turn::Now(std::mem::take(&mut open.values)) } else { Turn::Later }
    }

    /// Puts the values back, one member further; returns them if that was the last.
    fn put(&self, chunk: usize, values: Vec<f32>) -> Option<Vec<f32>> {
        let mut desk = self.desk();
        let at = self.ahead(&desk, chunk)?;
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
