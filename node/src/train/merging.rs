//! The driver's part in merging: it keeps what the engine is told of, and mixes when it is asked to.

use super::difference::{self, Lost};
use super::driver::{Driver, Outcome};
use super::trainer::Made;
use crate::exit::Failure;
use crate::watch::event::Event;
use crate::watch::status::{MergedStatus, OfferStatus};
use starling_protocol::difference::Difference;
use starling_protocol::engine::Candidate;
use starling_protocol::engine::io::{Input, Merge, Notice};
use starling_protocol::identity::Ed25519Verifier;
use starling_protocol::limits::MERGED_MAX;
use starling_protocol::message::Message;
use starling_protocol::record::Record;
use starling_protocol::{Digest, wire};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What came of keeping the difference of a lineage that was left: its name, and the difference or why there is none.
pub type Left = (Digest, Result<Difference, Lost>);

/// What watchers want to know of merging. A lineage merges at most [`MERGED_MAX`] others.
#[derive(Default)]
pub struct Merges {
    held: Option<Difference>,
    /// The rounds in which lineages were merged, as far as this process saw it.
    rounds: BTreeMap<Digest, u64>,
    /// What they were last seen to count for.
    tokens: BTreeMap<Digest, u64>,
}

impl Merges {
    pub fn merged(&mut self, lineage: Digest, round: u64) {
        insert(&mut self.rounds, lineage, round);
    }

    /// Whether it was told that this lineage was merged.
    fn has_told(&self, lineage: &Digest) -> bool {
        self.rounds.contains_key(lineage)
    }

    /// Takes note of what the contributions of a candidate merge.
    fn weighed(&mut self, run: &Digest, candidate: &Candidate) {
        for bytes in &candidate.readys {
            let Ok(Message::Ready(ready)) = wire::open(&Ed25519Verifier, run, bytes).map(|opened| opened.message)
            else {
                continue;
            };
            if let Some(lineage) = ready.merges {
                insert(&mut self.tokens, lineage, ready.merged_tokens);
            }
        }
    }

    /// The lineages that the head record lists.
    pub fn rows(&self, head: &Record) -> Vec<MergedStatus> {
        let row = |lineage: &Digest| {
            let round = self.rounds.get(lineage).copied();
            let tokens = self.tokens.get(lineage).copied().filter(|_| round.is_some());
            MergedStatus { lineage: lineage.to_string(), round, tokens }
        };
        head.merged.iter().map(row).collect()
    }

    /// What this node keeps, as it would count after the head record.
    pub fn offer(&self, head: &Record) -> Option<OfferStatus> {
        let held = self.held.filter(|held| !head.has_merged(&held.lineage))?;
        let counts_for = head.merge_limits().weigh(&held);
        Some(OfferStatus { lineage: held.lineage.to_string(), tokens: held.tokens, counts_for })
    }
}

fn insert(map: &mut BTreeMap<Digest, u64>, lineage: Digest, value: u64) {
    if map.len() >= MERGED_MAX && !map.contains_key(&lineage) {
        map.pop_first();
    }
    map.insert(lineage, value);
}

impl Driver {
    /// What the disk holds from before.
    pub(super) async fn recall_difference(&mut self) -> Result<(), Failure> {
        match difference::held(&self.store) {
            Some(difference) => self.hold_difference(difference).await,
            None => Ok(()),
        }
    }

    async fn hold_difference(&mut self, difference: Difference) -> Result<(), Failure> {
        self.merges.held = Some(difference);
        self.feed(Input::Difference { difference }).await
    }

    /// A record is a candidate: what does it merge, if it merges anything?
    pub(super) fn note_merging(&mut self, candidate: &Candidate) {
        if candidate.record.merged.len() > self.state.head().record.merged.len() {
            self.merges.weighed(&candidate.record.run, candidate);
        }
    }

    /// Records that others have committed, and this node has caught up with, have merged these lineages in these rounds.
    pub(super) fn note_merged(&mut self, merged: Vec<(Digest, u64)>) {
        for (lineage, round) in merged {
            if !self.merges.has_told(&lineage) {
                self.notice(Notice::Merged { lineage, round });
            }
        }
    }

    /// This node has left a lineage for that of `record`.
    pub(super) async fn note_left(&mut self, (lineage, kept): Left, record: &Record) -> Result<(), Failure> {
        let lineage = lineage.to_string();
        match kept {
            Ok(difference) if record.has_merged(&difference.lineage) => {
                let reason = "the lineage that goes on has forked from it, or has merged it".into();
                self.show(Event::DifferenceLost { lineage, reason });
                self.hold_difference(difference).await
            }
            Ok(difference) => {
                self.show(Event::DifferenceKept { lineage, tokens: difference.tokens });
                self.hold_difference(difference).await
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
            return self.later(Input::Mixed { round, base, made: None });
        };
        let (store, results) = (self.store.clone(), self.results.clone());
        let (feedback, codec) = (Arc::clone(&self.feedback), self.spec.sync.codec);
        tokio::spawn(async move {
            let mixing = move || {
                let mut mixed = difference::mix(&store, &own, tokens, &merge)?;
                mixed.norm = feedback.offered_norm(codec, round, &mixed.delta).unwrap_or(mixed.norm);
                Ok(mixed)
            };
            let outcome = tokio::task::spawn_blocking(mixing).await.unwrap_or(Err(Lost::Gone));
            let _ = results.send(Outcome::Mixed { round, base, lineage: merge.lineage, outcome }).await;
        });
    }

    pub(super) async fn mixed(
        &mut self,
        (round, base): (u64, Digest),
        lineage: Digest,
        outcome: Result<Made, Lost>,
    ) -> Result<(), Failure> {
        let made = match outcome {
            Ok(Made { delta, payload, norm }) => {
                self.mixed = Some((payload, delta));
                Some((payload, norm.to_bits()))
            }
            Err(lost) => {
                self.merges.held = None;
                self.show(Event::DifferenceLost { lineage: lineage.to_string(), reason: lost.to_string() });
                None
            }
        };
        self.feed(Input::Mixed { round, base, made }).await
    }

    /// Somebody has merged it, or nobody can.
    pub(super) fn drop_difference(&mut self, lineage: Digest) {
        self.merges.held.take_if(|held| held.lineage == lineage);
        let store = self.store.clone();
        tokio::task::spawn_blocking(move || difference::drop_held(&store, &lineage));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_lineages_are_remembered_as_a_record_can_list() {
        let mut merges = Merges::default();
        for n in 0..=MERGED_MAX as u8 {
            merges.merged(Digest([n; 32]), n.into());
            merges.merged(Digest([n; 32]), u64::from(n) + 1);
        }
        assert_eq!(merges.rounds.len(), MERGED_MAX);
        assert_eq!(merges.rounds.get(&Digest([MERGED_MAX as u8; 32])), Some(&(MERGED_MAX as u64 + 1)));
    }
}
