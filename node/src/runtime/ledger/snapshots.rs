//! The ledger's orders of snapshots to the writer, and its answers to the results. Snapshots and checkpoints take turns
//! there.

use super::writer::{Order, SnapshotOrder, Written};
use super::{Worker, store_failure};
use crate::exit::Failure;
use starling_store::{SnapshotKind, StoreError};
use std::time::Duration;
use tokio::sync::oneshot;

impl Worker {
    /// Begins to write a snapshot if one is due, unless one is being written.
    pub(super) fn snapshot_if_due(&mut self) {
        let seq = self.state.read().record.seq;
        if !seq.is_multiple_of(self.snapshot_every.max(1)) {
            return;
        }
        if self.writer.is_at_checkpoint() {
            self.owed.due = true;
            return;
        }
        if self.writer.is_writing() {
            tracing::debug!(seq, "no snapshot is written: the one before is still on its way to the disk");
            return;
        }
        self.begin_snapshot(SnapshotOrder { kind: SnapshotKind::Due, is_second: false, asked: None });
    }

    /// Writes the head's state if this node is a member that stands on it, and the newest snapshot is another one's.
    pub(super) fn snapshot_for_newcomers(&mut self, asked: oneshot::Sender<Duration>) {
        if let Some(writing) = self.writer.snapshot() {
            writing.asked = Some(asked);
            return;
        }
        if self.writer.is_writing() {
            self.owed.newcomers = Some(asked);
            return;
        }
        let (seq, is_member) = {
            let record = &self.state.read().record;
            (record.seq, record.member(&self.naming.node).is_some())
        };
        if !is_member || self.store.snapshots().last().is_none_or(|(newest, _)| *newest >= seq) {
            // The node may be ending.
            let _ = asked.send(Duration::ZERO);
            return;
        }
        self.begin_snapshot(SnapshotOrder { kind: SnapshotKind::Between, is_second: false, asked: Some(asked) });
    }

    fn begin_snapshot(&mut self, order: SnapshotOrder) {
        let kind = order.kind;
        let begun = self.writer.begin(Order::Snapshot(order), move |store, state| {
            store.write_snapshot_of(kind, &state.record, &state.schema, state)
        });
        if let Err((_, e)) = begun {
            let why = starling_words::of(&e);
            tracing::warn!("no snapshot was written: cannot start a thread for it: {why}");
        }
    }

    /// Takes note of the end of what was being written, and begins what has waited for it.
    ///
    /// # Errors
    /// The process must end.
    pub(super) fn written(&mut self) -> Result<(), Failure> {
        let Some(Written { order, took, result }) = self.writer.take() else { return Ok(()) };
        match order {
            Order::Snapshot(order) => self.snapshot_written(order, took, result)?,
            Order::Checkpoint(order) => self.checkpoint_written(order, result)?,
        }
        if !self.writer.is_writing() && std::mem::take(&mut self.owed.due) {
            // It is of a later record than the one at which it was due.
            self.begin_snapshot(SnapshotOrder { kind: SnapshotKind::Due, is_second: false, asked: None });
        }
        if let Some(asked) = self.owed.newcomers.take() {
            self.snapshot_for_newcomers(asked);
        }
        self.checkpoint_that_waits();
        Ok(())
    }

    fn snapshot_written(
        &mut self,
        order: SnapshotOrder,
        took: Duration,
        result: Result<(), StoreError>,
    ) -> Result<(), Failure> {
        match result {
            Ok(()) => {
                if order.kind == SnapshotKind::Between {
                    metrics::counter!("starling_near_snapshots_total").increment(1);
                }
                tracing::debug!("a snapshot was written in {took:?}");
            }
            // If the state of the head is wrong as well, it is read from disk. Then it is the head's turn.
            Err(StoreError::StateMismatch { seq, .. }) if !order.is_second => {
                tracing::warn!("the snapshot of record {seq} was not written, because memory had changed");
                self.mend_if_damaged()?;
                self.begin_snapshot(SnapshotOrder { is_second: true, ..order });
                return Ok(());
            }
            // The records and updates are safe, and earlier snapshots stay: the next one may find room.
            Err(e @ StoreError::Full { .. }) => tracing::warn!("no snapshot was written: {e}"),
            // Newcomers take the snapshot before it.
            Err(e @ StoreError::OverBound { .. }) => tracing::debug!("no snapshot was written for newcomers: {e}"),
            // The node has another state by now.
            Err(e @ (StoreError::GivenUp { .. } | StoreError::NotOnChain { .. } | StoreError::NotNext { .. })) => {
                tracing::debug!("no snapshot was written: {e}");
            }
            Err(e) => return Err(store_failure(e)),
        }
        if let Some(asked) = order.asked {
            // The node may be ending.
            let _ = asked.send(took);
        }
        Ok(())
    }
}
