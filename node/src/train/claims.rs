//! Claims that the engine wants proven: each in the background, beside whatever is under way.

use super::driver::{Driver, Outcome};
use super::proof::{ANSWER_PATIENCE, Asked, Proof, Unproven};
use crate::exit::Failure;
use starling_protocol::engine::CLAIMS_MAX;
use starling_protocol::engine::io::{Claim, Input};
use starling_protocol::{Digest, NodeId};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio_util::task::AbortOnDropHandle;

/// Proofs that are kept for a catch-up, and what they may take.
const PROOFS_MAX: usize = 8;
const PROOFS_BYTES_MAX: usize = 8 << 20;

/// Claims being looked at, and the newest proofs.
#[derive(Default)]
pub struct Claims {
    under_way: Vec<(NodeId, Digest, AbortOnDropHandle<()>)>,
    proofs: VecDeque<Arc<Proof>>,
}

impl Claims {
    /// The path to this record, if it is at hand.
    pub fn proof_of(&self, record: &Digest) -> Option<Arc<Proof>> {
        let ends = |proof: &&Arc<Proof>| proof.links.last().is_some_and(|last| last.digest == *record);
        self.proofs.iter().rev().find(ends).cloned()
    }

    fn keep(&mut self, proof: Proof) {
        let last = proof.links.last().map(|last| last.digest);
        self.proofs.retain(|kept| kept.links.last().map(|last| last.digest) != last);
        self.proofs.push_back(Arc::new(proof));
        let bytes = |proofs: &VecDeque<Arc<Proof>>| proofs.iter().map(|proof| proof.bytes).sum::<usize>();
        while self.proofs.len() > PROOFS_MAX || (self.proofs.len() > 1 && bytes(&self.proofs) > PROOFS_BYTES_MAX) {
            self.proofs.pop_front();
        }
    }
}

impl Driver {
    /// Has a peer show the path to the record that it says it stands on.
    pub(super) fn prove(&mut self, peer: NodeId, (seq, record): (u64, Digest), foreign: bool) {
        if self.fetches.claims.under_way.len() >= CLAIMS_MAX {
            metrics::counter!("starling_refused_total", "reason" => "claims_full").increment(1);
            let why = "too many claims are looked at".to_owned();
            return self.later(Input::Claim { peer, record, outcome: Claim::Open { why } });
        }
        let (net, results) = (self.net.clone(), self.results.clone());
        let (spec, store) = (Arc::new(self.spec.clone()), self.store.clone());
        let asked = Asked { peer, seq, record, foreign, spec, store, patience: ANSWER_PATIENCE };
        let work = tokio::spawn(async move {
            let outcome = asked.prove(|request, expected| net.fetch(peer, request, expected)).await;
            let _ = results.send(Outcome::Claim { peer, record, outcome }).await;
        });
        self.fetches.claims.under_way.push((peer, record, AbortOnDropHandle::new(work)));
    }

    pub(super) async fn shown(
        &mut self,
        peer: NodeId,
        record: Digest,
        outcome: Result<Proof, Unproven>,
    ) -> Result<(), Failure> {
        self.fetches.claims.under_way.retain(|(of, about, _)| (of, about) != (&peer, &record));
        let mut split = None;
        let outcome = match outcome {
            Ok(proof) => match proof.claim() {
                Some(proven) => {
                    self.fetches.claims.keep(proof);
                    Claim::Proven(proven)
                }
                None => Claim::Open { why: "its path is empty".to_owned() },
            },
            Err(unproven) => {
                if let Unproven::False(label) = &unproven {
                    metrics::counter!("starling_refused_total", "reason" => *label).increment(1);
                }
                tracing::debug!("{} has not proven record {record}: {unproven:?}", peer.short());
                if let Unproven::Split(found) = &unproven {
                    split = Some(found.clone());
                }
                unproven.into()
            }
        };
        self.feed(Input::Claim { peer, record, outcome }).await?;
        match split {
            Some(split) => self.feed(Input::Contradicted { split }).await,
            None => Ok(()),
        }
    }
}
