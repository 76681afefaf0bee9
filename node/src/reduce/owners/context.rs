//! The state that all tasks of one reduction by owners share.

use crate::reduce::ReduceJob;
use crate::reduce::error::ReduceError;
use crate::reduce::group::{Group, Lineup};
use crate::reduce::progress::Progress;
use starling_protocol::update::owners::Owners;
use std::ops::Deref;
use tokio::sync::watch;

/// The attempt's group, its owners, and the progress of this node's sums.
pub(super) struct Context {
    group: Group,
    pub owners: Owners,
    /// For each of this node's chunks, the number of those before it that are made in this attempt; none if its sum is
    /// kept from a former one.
    made_before: Vec<Option<usize>>,
    /// The number of this node's chunks that are finished, of those made in this attempt.
    finished: watch::Sender<usize>,
}

impl Deref for Context {
    type Target = Group;

    fn deref(&self) -> &Group {
        &self.group
    }
}

impl Context {
    pub fn new(job: ReduceJob, progress: Progress) -> Result<Self, ReduceError> {
        let lineup = Lineup::of(&job)?;
        let owners = Owners::among(&job.flock, &lineup.ids, lineup.chunks);
        let owned = owners.chunks(lineup.me).to_vec();
        let group = Group::begin(job, progress, lineup, &owned, owned.clone());
        let mut made = 0;
        let before = |chunk: &usize| {
            let before = (!group.keep_own(*chunk)).then_some(made);
            made += usize::from(before.is_some());
            before
        };
        let made_before = owned.iter().map(before).collect();
        Ok(Self { group, owners, made_before, finished: watch::Sender::new(0) })
    }

    /// Notes that the next of this node's chunks is finished.
    pub fn finish_next(&self) {
        self.finished.send_modify(|count| *count += 1);
    }

    /// Whether the sum of this node's chunk number `index` is kept from a former attempt.
    pub fn is_kept(&self, index: usize) -> bool {
        self.made_before.get(index).is_some_and(Option::is_none)
    }

    /// This node's chunks whose sums are made in this attempt, ascending.
    pub fn made(&self) -> impl Iterator<Item = usize> {
        let chunks = self.owners.chunks(self.me).iter().copied().enumerate();
        chunks.filter(|(index, _)| !self.is_kept(*index)).map(|(_, chunk)| chunk)
    }

    /// Whether the sum of this node's chunk number `index` is there.
    pub fn is_finished(&self, index: usize) -> bool {
        let before = self.made_before.get(index).copied().flatten();
        before.is_none_or(|before| *self.finished.borrow() > before)
    }

    /// Returns when the sum of this node's chunk number `index` is there.
    pub async fn finished(&self, index: usize) {
        let Some(before) = self.made_before.get(index).copied().flatten() else { return };
        // The sender is in `self`, so the channel cannot close during the wait.
        drop(self.finished.subscribe().wait_for(|finished| *finished > before).await);
    }

    /// For each of this node's chunks, whether a member needs its sum no more: the sum is kept, and the member has it
    /// from an attempt since it was made. `sums` are the member's bytes about them.
    pub fn there(&self, sums: &[u8]) -> Vec<bool> {
        let id = &self.job.me;
        let there = |(chunk, said): (&usize, &u8)| {
            let made = self.sheet.made_by(id, *chunk).filter(|made| made.attempt < self.job.key.attempt);
            made.is_some_and(|made| u32::from(*said) > made.attempt)
        };
        self.owners.chunks(self.me).iter().zip(sums).map(there).collect()
    }
}
