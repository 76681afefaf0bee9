//! Claims that the engine wants proven: each in the background, beside other work.

use super::proof::Proof;
use starling_protocol::{Digest, NodeId};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio_util::task::AbortOnDropHandle;

/// Proofs that are kept for a catch-up, and the memory that they may take.
const PROOFS_MAX: usize = 8;
const PROOFS_BYTES_MAX: usize = 8 << 20;

/// The claims that are being checked, and the newest proofs.
#[derive(Default)]
pub struct Claims {
    pub under_way: Vec<(NodeId, Digest, AbortOnDropHandle<()>)>,
    proofs: VecDeque<Arc<Proof>>,
}

impl Claims {
    /// The path to this record, if it is kept.
    pub fn proof_of(&self, record: &Digest) -> Option<Arc<Proof>> {
        let ends = |proof: &&Arc<Proof>| proof.links.last().is_some_and(|last| last.digest == *record);
        self.proofs.iter().rev().find(ends).cloned()
    }

    pub fn keep(&mut self, proof: Proof) {
        let last = proof.links.last().map(|last| last.digest);
        self.proofs.retain(|kept| kept.links.last().map(|last| last.digest) != last);
        self.proofs.push_back(Arc::new(proof));
        let bytes = |proofs: &VecDeque<Arc<Proof>>| proofs.iter().map(|proof| proof.bytes).sum::<usize>();
        while self.proofs.len() > PROOFS_MAX || (self.proofs.len() > 1 && bytes(&self.proofs) > PROOFS_BYTES_MAX) {
            self.proofs.pop_front();
        }
    }
}
