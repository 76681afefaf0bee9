//! The driver's part in merging: it keeps what the engine is told of, and mixes when it is asked to.

use super::difference::{self, Lost, Mixed};
use super::driver::{Driver, Outcome};
use crate::exit::Failure;
use crate::watch::event::Event;
use starling_protocol::Digest;
use starling_protocol::difference::Difference;
use starling_protocol::engine::io::{Input, Merge};
use starling_protocol::record::Record;

/// What came of keeping the difference of a lineage that was left: its name, and the difference or why there is none.
pub type Left = (Digest, Result<Difference, Lost>);

impl Driver {
    /// What the disk holds from before.
    pub(super) async fn recall_difference(&mut self) -> Result<(), Failure> {
        match difference::held(&self.store) {
            Some(difference) => self.feed(Input::Difference { difference }).await,
            None => Ok(()),
        }
    }

    /// This node has left a lineage for that of `record`.
    pub(super) async fn note_left(&mut self, (lineage, kept): Left, record: &Record) -> Result<(), Failure> {
        let lineage = lineage.to_string();
        match kept {
            Ok(difference) if record.has_merged(&difference.lineage) => {
                let reason = "the lineage that goes on has forked from it, or has merged it".into();
                self.show(Event::DifferenceLost { lineage, reason });
                self.feed(Input::Difference { difference }).await
            }
            Ok(difference) => {
                self.show(Event::DifferenceKept { lineage, tokens: difference.tokens });
                self.feed(Input::Difference { difference }).await
            }
            Err(lost) => {
                if lost.is_a_loss() {
                    self.show(Event::DifferenceLost { lineage, reason: lost.to_string() });
                }
                Ok(())
            }
        }
    }

    /// Mixes the difference on disk into the last pseudo-gradient, which stays as it is.
    pub(super) fn mix(&mut self, (round, base): (u64, Digest), tokens: u64, merge: Merge) {
        let Some((_, own)) = self.delta.clone() else {
            return self.later(Input::Mixed { round, base, payload: None });
        };
        let (store, results) = (self.store.clone(), self.results.clone());
        tokio::spawn(async move {
            let mixing = move || difference::mix(&store, &own, tokens, &merge);
            let outcome = tokio::task::spawn_blocking(mixing).await.unwrap_or(Err(Lost::Gone));
            let _ = results.send(Outcome::Mixed { round, base, lineage: merge.lineage, outcome }).await;
        });
    }

    pub(super) async fn mixed(
        &mut self,
        (round, base): (u64, Digest),
        lineage: Digest,
        outcome: Result<Mixed, Lost>,
    ) -> Result<(), Failure> {
        let payload = match outcome {
            Ok(mixed) => {
                let payload = mixed.0;
                self.mixed = Some(mixed);
                Some(payload)
            }
            Err(lost) => {
                self.show(Event::DifferenceLost { lineage: lineage.to_string(), reason: lost.to_string() });
                None
            }
        };
        self.feed(Input::Mixed { round, base, payload }).await
    }

    /// Somebody has merged it, or nobody can.
    pub(super) fn drop_difference(&mut self, lineage: Digest) {
        let store = self.store.clone();
        tokio::task::spawn_blocking(move || difference::drop_held(&store, &lineage));
    }
}
