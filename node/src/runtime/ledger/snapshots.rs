//! The ledger's orders to the writer of snapshots, and its answers to the results.

use super::writer::{Order, Written};
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
        if self.writer.is_writing() {
            tracing::info!(seq, "no snapshot is written: the one before is still on its way to the disk");
            return;
        }
        self.writer.begin(Order { kind: SnapshotKind::Due, is_second: false, asked: None });
    }

    /// Writes the head's state if this node is a member that stands on it, and the newest snapshot is another one's.
    pub(super) fn snapshot_for_newcomers(&mut self, asked: oneshot::Sender<Duration>) {
        if self.writer.is_writing() {
            return self.writer.share(asked);
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
        self.writer.begin(Order { kind: SnapshotKind::Between, is_second: false, asked: Some(asked) });
    }

    /// Takes note of the end of a snapshot.
    ///
    /// # Errors
    /// The process must end.
    pub(super) fn snapshot_written(&mut self) -> Result<(), Failure> {
        let Some(Written { order, took, result }) = self.writer.take() else { return Ok(()) };
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
                self.writer.begin(Order { is_second: true, ..order });
                return Ok(());
            }
            // The records and updates are safe, and earlier snapshots stay: the next one may find room.
            Err(e @ StoreError::Full { .. }) => tracing::warn!("no snapshot was written: {e}"),
            // Newcomers take the snapshot before it.
            Err(e @ StoreError::OverBound { .. }) => tracing::debug!("no snapshot was written for newcomers: {e}"),
            // The node has another state by now.
            Err(e @ (StoreError::GivenUp { .. } | StoreError::NotOnChain { .. } | StoreError::NotNext { .. })) => {
                tracing::info!("no snapshot was written: {e}");
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
