//! The finished sums that a process holds of attempts that have failed. They die with the process.

use super::circuit::{Got, Held};
use crate::NodeId;
use crate::engine::io::{AttemptKey, Contribution};
use crate::update::kept::{Kept, Sum};
use std::rc::Rc;

/// The sums of one record.
#[derive(Debug, Default)]
pub struct Sums {
    pub kept: Kept,
    /// The bytes of each chunk; they count only where the sum is finished.
    payloads: Vec<Held>,
}

impl Sums {
    /// Begins an attempt, as a node does.
    pub fn begin(&mut self, key: AttemptKey, members: &[Contribution], chunks: usize) {
        if !self.kept.is_past(&key) {
            self.kept.begin(key, members, None, chunks);
            self.payloads.resize(chunks, None);
        }
    }

    /// Takes what the attempt has given to its member `me`.
    pub fn take(&mut self, key: &AttemptKey, me: NodeId, got: &[Got]) {
        if self.kept.key() != Some(*key) {
            return;
        }
        for Got { chunk, finishes, payload } in got {
            let sum = finishes.then_some(Sum { from: me, attempt: key.attempt });
            if self.kept.put(*chunk, sum)
                && let Some(held) = self.payloads.get_mut(*chunk)
            {
                *held = Some(Rc::clone(payload));
            }
        }
    }

    /// The bytes of the finished sums, by chunk.
    pub fn finished(&self) -> Vec<Held> {
        let is_finished = |chunk: usize| self.kept.sum(chunk).is_some();
        let held = |(chunk, payload): (usize, &Held)| payload.clone().filter(|_| is_finished(chunk));
        self.payloads.iter().enumerate().map(held).collect()
    }
}
