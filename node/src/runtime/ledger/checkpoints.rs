//! The ledger's orders of checkpoints to the writer, and its answers to the results.
//!
//! The writer reads the state as it was at the checkpoint's record, so commits go on meanwhile.

use super::due::{Tidying, Wanted};
use super::job::{CheckpointMade, CheckpointOutcome, CheckpointPurpose, LedgerReply, NotMade};
use super::writer::{CheckpointOrder, Order};
use super::{Worker, store_failure};
use crate::exit::{Code, Failure};
use starling_protocol::Digest;
use starling_store::{
    CheckpointSource, StoreError, checkpoint_path, is_checkpoint_of, keep_checkpoints, remove_checkpoint,
};
use std::path::Path;
use std::sync::Arc;
use tokio::sync::oneshot;

impl Worker {
    /// Has a checkpoint written if one is due after a commit.
    pub(super) fn checkpoint_if_due(&mut self) {
        let round = self.state.read().record.round;
        if self.checkpoints.come_due(round) {
            self.checkpoint(Wanted { purpose: CheckpointPurpose::Due, asked: Vec::new() });
        }
    }

    /// Has a checkpoint of the head written, now or when the writer is free.
    pub(super) fn checkpoint(&mut self, wanted: Wanted) {
        if self.writer.is_writing() {
            self.checkpoints.wait(wanted);
        } else {
            self.begin_checkpoint(wanted, false);
        }
    }

    /// Begins the checkpoint that has waited, if the writer is free.
    pub(super) fn checkpoint_that_waits(&mut self) {
        if !self.writer.is_writing()
            && let Some(wanted) = self.checkpoints.waits.take()
        {
            self.begin_checkpoint(wanted, false);
        }
    }

    fn begin_checkpoint(&mut self, wanted: Wanted, is_second: bool) {
        let is_asked = wanted.is_asked();
        let Wanted { purpose, asked } = wanted;
        let (seq, round, lineage, record) = {
            let state = self.state.read();
            (state.record.seq, state.record.round, state.record.lineage, state.digest)
        };
        if lineage == Digest::default() {
            let why = "this node has no state yet: it has neither founded a flock nor met one";
            return self.tell(purpose, asked, &Err(NotMade { why: why.into(), code: Code::Refused }));
        }
        let path = checkpoint_path(&self.checkpoints.plan.folder, round);
        let made = CheckpointMade { path: path.clone(), seq, round, is_new: true };
        if is_checkpoint_of(&path, &record) {
            self.checkpoints.is_there(&path, (purpose, is_asked), false);
            return self.tell(purpose, asked, &Ok(CheckpointMade { is_new: false, ..made }));
        }
        let (naming, must) = (Arc::clone(&self.naming), purpose == CheckpointPurpose::Budget);
        let tidying = self.checkpoints.tidying(&path, purpose, is_asked);
        let folder = self.checkpoints.plan.folder.clone();
        let order = Order::Checkpoint(CheckpointOrder { purpose, made, is_second, asked });
        let begun = self.writer.begin(order, move |store, state| {
            let more = naming.more.as_ref().map(|find| find()).unwrap_or_default();
            let is_new = |(name, _): &&(String, Vec<u8>)| naming.extras.iter().all(|(other, _)| other != name);
            let extras = naming.extras.iter().chain(more.iter().filter(is_new));
            let extras: Vec<_> = extras.map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
            let source = CheckpointSource {
                record: &state.record,
                spec: &naming.spec,
                schema: state.schema,
                tensors: &naming.tensors,
                state,
                extras: &extras,
            };
            store.write_checkpoint(&path, &source, must)?;
            if let Err(e) = tidy(&tidying, &folder, &path) {
                tracing::warn!("an old checkpoint stays: {e}");
            }
            Ok(())
        });
        if let Err((Order::Checkpoint(order), e)) = begun {
            let why = format!("there is no thread to write it: {}", starling_words::of(&e));
            self.tell(order.purpose, order.asked, &Err(NotMade { why, code: Code::Refused }));
        }
    }

    /// Takes note of the end of a checkpoint. If it was not written, the node goes on without it.
    ///
    /// # Errors
    /// The process must end.
    pub(super) fn checkpoint_written(
        &mut self,
        order: CheckpointOrder,
        result: Result<(), StoreError>,
    ) -> Result<(), Failure> {
        let CheckpointOrder { purpose, made, is_second, asked } = order;
        let outcome = match result {
            Ok(()) => Ok(made),
            // If the state of the head is wrong as well, it is read from disk. Then it is the head's turn.
            Err(StoreError::StateMismatch { seq, .. }) if !is_second => {
                tracing::warn!("the checkpoint of record {seq} was not written, because memory had changed");
                self.mend_if_damaged()?;
                self.begin_checkpoint(Wanted { purpose, asked }, true);
                return Ok(());
            }
            // The node has another state by now.
            Err(StoreError::GivenUp { .. }) if !is_second => {
                self.begin_checkpoint(Wanted { purpose, asked }, true);
                return Ok(());
            }
            Err(e) => Err(NotMade { why: why_not(&e), code: store_failure(e).code }),
        };
        let wanted = Wanted { purpose, asked };
        if let Ok(made) = &outcome {
            self.checkpoints.is_there(&made.path, (purpose, wanted.is_asked()), true);
        }
        self.tell(purpose, wanted.asked, &outcome);
        Ok(())
    }

    /// Tells the outcome to those who asked, and to the driver.
    fn tell(
        &self,
        purpose: CheckpointPurpose,
        asked: Vec<oneshot::Sender<CheckpointOutcome>>,
        outcome: &CheckpointOutcome,
    ) {
        for asked in asked {
            // The one that asked may have gone.
            let _ = asked.send(outcome.clone());
        }
        // If the driver is gone, the node is ending.
        drop(self.done.blocking_send(LedgerReply::Checkpoint { purpose, outcome: outcome.clone() }));
    }
}

/// Removes the checkpoints that go now that the one at `written` is there.
fn tidy(tidying: &Tidying, folder: &Path, written: &Path) -> Result<(), StoreError> {
    tidying.over.iter().try_for_each(|over| remove_checkpoint(over))?;
    match tidying.keep {
        Some(keep) => keep_checkpoints(folder, keep, written, (&tidying.spared, &tidying.first)).map(drop),
        None => Ok(()),
    }
}

/// The reason why there is no checkpoint, and what to do. The node runs on, so nothing is to be started again.
fn why_not(error: &StoreError) -> String {
    match error {
        StoreError::Full { path, needed, free } => format!(
            "the disk of {} has {free} bytes free, and {needed} are needed: free some space, or set a lower \
             checkpoint.keep in the node file",
            path.display()
        ),
        StoreError::OverBound { needed, max, .. } => format!(
            "with it the node's folder would take {needed} bytes, and store.max_gib allows {max}: give it more, or set \
             a lower checkpoint.keep in the node file"
        ),
        StoreError::NotACheckpoint { path } => {
            format!("{} is in its place and is no checkpoint: rename or remove that", path.display())
        }
        other => other.to_string(),
    }
}
