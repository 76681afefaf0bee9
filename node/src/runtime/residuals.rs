//! Residuals as the driver handles them: when they are read, settled and written.

use crate::exit::Failure;
use crate::reduce::{Feedback, FragmentFeedback, Passed, Restored};
use crate::watch::event::Event;
use crate::watch::screen::Screen;
use anyhow::Context;
use starling_protocol::NodeId;
use starling_protocol::engine::io::AttemptKey;
use starling_protocol::run::SyncMode;
use starling_protocol::update::Fragments;
use starling_store::Store;
use std::sync::Arc;

/// The residuals of this node's payloads in earlier rounds.
#[derive(Clone)]
pub struct Residuals {
    feedback: Arc<FragmentFeedback>,
    /// Whether residuals are written as they change. If each step is a round, that would keep the disk as busy as the
    /// device: then they are written at a clean stop only, and a kill costs one step's residuals.
    saves: bool,
}

impl Residuals {
    /// Reads the residuals of an earlier process that are true after the head record.
    pub async fn restore(
        store: &Arc<Store>,
        me: NodeId,
        head: u64,
        (fragments, mode): (Fragments, SyncMode),
        screen: &mut Screen,
    ) -> Result<Self, Failure> {
        let store = Arc::clone(store);
        let restoring = move || FragmentFeedback::restore(&store, &me, head, fragments);
        let (feedback, restored) = tokio::task::spawn_blocking(restoring).await.context("reading residuals stopped")?;
        let Restored { kept, lost, norm } = restored;
        if kept + lost > 0 {
            screen.show(&Event::Residuals { kept, lost, norm });
        }
        Ok(Self { feedback: Arc::new(feedback), saves: mode == SyncMode::Rounds })
    }

    pub fn shared(&self) -> Arc<FragmentFeedback> {
        Arc::clone(&self.feedback)
    }

    pub fn of_round(&self, round: u64) -> Arc<Feedback> {
        self.feedback.of_round(round)
    }

    /// Settles the residuals with passed records; arithmetic and disk work are done on threads that may block.
    pub fn settle(&self, passed: &[Passed]) {
        passed.iter().for_each(|passed| self.feedback.pass(passed));
        let (feedback, saves) = (self.shared(), self.saves);
        tokio::task::spawn_blocking(move || if saves { feedback.keep() } else { feedback.settle() });
    }

    /// Writes the residuals as they will be if this attempt is committed.
    pub fn stage(&self, key: AttemptKey) {
        if self.saves {
            let feedback = self.shared();
            tokio::task::spawn_blocking(move || feedback.stage(&key));
        }
    }

    /// Writes the newest residuals before the end, as they may not be on the disk yet.
    pub async fn save(&self) {
        let feedback = self.shared();
        if let Err(e) = tokio::task::spawn_blocking(move || feedback.keep()).await {
            tracing::warn!("the residuals of earlier updates were not saved: {e}");
        }
    }
}
