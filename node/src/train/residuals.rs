//! What updates leave out, as the driver sees to it: when it is read, settled and written.

use super::driver::Driver;
use crate::exit::Failure;
use crate::reduce::{FragmentFeedback, Passed, Restored};
use crate::watch::event::Event;
use crate::watch::screen::Screen;
use anyhow::Context;
use starling_protocol::NodeId;
use starling_protocol::engine::io::AttemptKey;
use starling_protocol::run::SyncMode;
use starling_protocol::update::Fragments;
use starling_store::Store;
use std::sync::Arc;

/// What updates before the stop left out, where it is true after the record at hand.
pub async fn restore(
    store: &Arc<Store>,
    me: NodeId,
    head: u64,
    fragments: Fragments,
    screen: &mut Screen,
) -> Result<Arc<FragmentFeedback>, Failure> {
    let store = Arc::clone(store);
    let restoring = move || FragmentFeedback::restore(&store, &me, head, fragments);
    let (feedback, restored) = tokio::task::spawn_blocking(restoring).await.context("reading residuals stopped")?;
    let Restored { kept, lost, norm } = restored;
    if kept + lost > 0 {
        screen.show(&Event::Residuals { kept, lost, norm });
    }
    Ok(Arc::new(feedback))
}

impl Driver {
    /// What this node's payloads have not said follows records that count; arithmetic and disk are away from here.
    pub(super) fn settle_feedback(&self, passed: &[Passed]) {
        passed.iter().for_each(|passed| self.feedback.pass(passed));
        let (feedback, saves) = (Arc::clone(&self.feedback), self.saves_feedback());
        tokio::task::spawn_blocking(move || if saves { feedback.keep() } else { feedback.settle() });
    }

    /// Writes what this node's payloads will not have said should this attempt be committed.
    pub(super) fn stage_feedback(&self, key: AttemptKey) {
        if self.saves_feedback() {
            let feedback = Arc::clone(&self.feedback);
            tokio::task::spawn_blocking(move || feedback.stage(&key));
        }
    }

    /// Whether residuals are written as they change. Where each step is a round that would keep the disk as busy as the
    /// device: there they are written at a clean stop only, and a kill costs what one step has left out.
    fn saves_feedback(&self) -> bool {
        self.spec.sync.mode == SyncMode::Rounds
    }

    /// Before the end: the newest may not be on the disk yet.
    pub(super) async fn save_feedback(&self) {
        let feedback = self.feedback.clone();
        if let Err(e) = tokio::task::spawn_blocking(move || feedback.keep()).await {
            tracing::warn!("what earlier updates left out was not saved: {e}");
        }
    }
}
