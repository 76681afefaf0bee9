//! Merging as the driver sees it: the difference of a lineage that was left, which is mixed into a contribution when
//! the engine asks for it.

use super::difference::{self, Left, Lost};
use super::matter::{Matter, Outcome};
use super::notice;
use super::trainer::Made;
use super::variant::{Desk, Variant};
use crate::reduce::FragmentFeedback;
use crate::watch::event::Event;
use crate::watch::status::{MergedStatus, OfferStatus, Status};
use starling_protocol::difference::Difference;
use starling_protocol::engine::Candidate;
use starling_protocol::engine::io::{Input, Merge, Notice, Output};
use starling_protocol::identity::Ed25519Verifier;
use starling_protocol::limits::MERGED_MAX;
use starling_protocol::message::Message;
use starling_protocol::record::Record;
use starling_protocol::{Digest, wire};
use starling_store::Store;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The merges that watchers see. A lineage merges at most [`MERGED_MAX`] others.
#[derive(Default)]
struct Merges {
    held: Option<Difference>,
    /// The rounds in which lineages were merged, as far as this process saw it.
    rounds: BTreeMap<Digest, u64>,
    /// The tokens that they were last seen to count for.
    tokens: BTreeMap<Digest, u64>,
}

impl Merges {
    fn merged(&mut self, lineage: Digest, round: u64) {
        insert(&mut self.rounds, lineage, round);
    }

    /// Whether a merge of this lineage was noted.
    fn has_told(&self, lineage: &Digest) -> bool {
        self.rounds.contains_key(lineage)
    }

    /// Notes the lineages that a candidate's contributions merge.
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
    fn rows(&self, head: &Record) -> Vec<MergedStatus> {
        let row = |lineage: &Digest| {
            let round = self.rounds.get(lineage).copied();
            let tokens = self.tokens.get(lineage).copied().filter(|_| round.is_some());
            MergedStatus { lineage: lineage.to_string(), round, tokens }
        };
        head.merged.iter().map(row).collect()
    }

    /// The difference that this node keeps, with its weight after the head record.
    fn offer(&self, head: &Record) -> Option<OfferStatus> {
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

/// The difference on disk, and the lineages that were merged.
pub struct Merging {
    store: Arc<Store>,
    feedback: Arc<FragmentFeedback>,
    merges: Merges,
}

impl Merging {
    pub fn new(store: Arc<Store>, feedback: Arc<FragmentFeedback>) -> Self {
        Self { store, feedback, merges: Merges::default() }
    }

    fn hold(&mut self, difference: Difference, desk: &mut Desk<'_>) {
        self.merges.held = Some(difference);
        desk.inputs.push_back(Input::Difference { difference });
    }

    /// Notes the merges of records that this node has caught up with.
    fn passed(&mut self, merged: &[(Digest, u64)], desk: &mut Desk<'_>) {
        for (lineage, round) in merged.iter().copied() {
            if !self.merges.has_told(&lineage) {
                self.merges.merged(lineage, round);
                notice::tell(desk.screen, Notice::Merged { lineage, round });
            }
        }
    }

    /// Notes that this node has left a lineage for that of `record`.
    fn left(&mut self, (lineage, kept): Left, record: &Record, desk: &mut Desk<'_>) {
        let lineage = lineage.to_string();
        match kept {
            Ok(difference) => {
                let event = if record.has_merged(&difference.lineage) {
                    let reason = "the lineage that goes on has forked from it, or has merged it".into();
                    Event::DifferenceLost { lineage, reason }
                } else {
                    Event::DifferenceKept { lineage, tokens: difference.tokens }
                };
                desk.screen.show(&event);
                self.hold(difference, desk);
            }
            Err(lost) if lost.is_a_loss() => {
                desk.screen.show(&Event::DifferenceLost { lineage, reason: lost.to_string() });
            }
            Err(_) => {}
        }
    }

    /// Mixes the difference on disk into a copy of the last pseudo-gradient.
    fn mix(&self, (round, base): (u64, Digest), tokens: u64, merge: Merge, desk: &mut Desk<'_>) {
        let Some(own) = desk.contributions.own() else {
            desk.inputs.push_back(Input::Mixed { round, base, made: None });
            return;
        };
        let (store, results) = (self.store.clone(), desk.results.clone());
        let (feedback, codec) = (Arc::clone(&self.feedback), desk.state.head().record.next.codec);
        tokio::spawn(async move {
            let mixing = move || {
                let mut mixed = difference::mix(&store, &own, tokens, &merge)?;
                mixed.norm = feedback.offered_norm(codec, round, &mixed.delta).unwrap_or(mixed.norm);
                Ok(mixed)
            };
            let outcome = tokio::task::spawn_blocking(mixing).await.unwrap_or(Err(Lost::Gone));
            let mixed = Matter::Mixed { at: (round, base), lineage: merge.lineage, outcome };
            let _ = results.send(Outcome::Variant(Box::new(mixed))).await;
        });
    }

    fn mixed(
        &mut self,
        (round, base): (u64, Digest),
        lineage: Digest,
        outcome: Result<Made, Lost>,
        desk: &mut Desk<'_>,
    ) {
        let made = match outcome {
            Ok(Made { delta, payload, norm }) => {
                desk.contributions.mix(payload, delta);
                Some((payload, norm.to_bits()))
            }
            Err(lost) => {
                self.merges.held = None;
                desk.screen.show(&Event::DifferenceLost { lineage: lineage.to_string(), reason: lost.to_string() });
                None
            }
        };
        desk.inputs.push_back(Input::Mixed { round, base, made });
    }

    /// Drops a difference that was merged or cannot be.
    fn forget(&mut self, lineage: Digest) {
        self.merges.held.take_if(|held| held.lineage == lineage);
        let store = self.store.clone();
        tokio::task::spawn_blocking(move || difference::drop_held(&store, &lineage));
    }
}

impl Variant for Merging {
    fn take<'a>(&mut self, matter: Matter<'a>, desk: &mut Desk<'_>) -> Option<Matter<'a>> {
        match &matter {
            // The disk may hold a difference of an earlier process.
            Matter::Start => difference::held(&self.store).into_iter().for_each(|held| self.hold(held, desk)),
            // Only a candidate that merges something is of interest.
            Matter::Candidate(held) if held.record.merged.len() > desk.state.head().record.merged.len() => {
                self.merges.weighed(&held.record.run, held);
            }
            Matter::Notice(Notice::Merged { lineage, round }) => self.merges.merged(*lineage, *round),
            Matter::Merged(merged) => self.passed(merged, desk),
            _ => {}
        }
        match matter {
            Matter::Output(Output::Merge { round, base, tokens, merge }) => {
                self.mix((round, base), tokens, merge, desk)
            }
            Matter::Output(Output::DropDifference { lineage }) => self.forget(lineage),
            Matter::Mixed { at, lineage, outcome } => self.mixed(at, lineage, outcome, desk),
            Matter::Left(left, record) => self.left(left, &record, desk),
            other => return Some(other),
        }
        None
    }

    fn show(&self, head: &Record, status: &mut Status) {
        (status.merged, status.offers) = (self.merges.rows(head), self.merges.offer(head));
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
