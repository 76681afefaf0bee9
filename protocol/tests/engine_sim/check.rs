//! What must hold at every step.

use crate::keys;
use starling_protocol::record::Record;
use starling_protocol::{Digest, NodeId};
use std::collections::BTreeMap;

/// How often interesting things happened: a batch in which one never did proves nothing about it.
pub type Marks = BTreeMap<&'static str, u64>;

#[derive(Debug)]
pub struct Decision {
    pub record: Digest,
    pub contributors: Vec<NodeId>,
}

#[derive(Debug, Default)]
pub struct Check {
    pub decided: BTreeMap<(Digest, u64), Vec<Decision>>,
    /// The root of the state after each record.
    pub roots: BTreeMap<Digest, Digest>,
    pub marks: Marks,
    pub last_commit: u64,
    /// Longest time between two commits, and all that followed a kill.
    pub gaps: Vec<u64>,
    pub killed_at: Option<u64>,
    pub best_seq: u64,
}

impl Check {
    pub fn mark(&mut self, what: &'static str) {
        *self.marks.entry(what).or_default() += 1;
    }

    /// A node commits `record`.
    pub fn commit(&mut self, node: usize, record: &Record, now: u64) {
        let digest = record.digest();
        let contributors: Vec<NodeId> = record.contributors.iter().map(|c| c.member).collect();
        let known = self.decided.entry((record.lineage, record.seq)).or_default();
        if !known.iter().any(|decision| decision.record == digest) {
            if let Some(other) = known.first() {
                panic!(
                    "two records at seq {}: {:?} by {:?}, and {digest:?} by {:?}, committed by node {node}",
                    record.seq,
                    other.record,
                    names(&other.contributors),
                    names(&contributors),
                );
            }
            known.push(Decision { record: digest, contributors });
        }
        if record.seq > self.best_seq {
            self.best_seq = record.seq;
            self.last_commit = now;
            if let Some(killed) = self.killed_at.take() {
                self.gaps.push(now - killed);
            }
        }
    }

    /// A node holds this state for this record.
    pub fn holds(&mut self, node: usize, record: &Digest, root: Digest) {
        let known = self.roots.entry(*record).or_insert(root);
        assert_eq!(*known, root, "node {node} holds another state than others at record {record:?}");
    }

    /// A whole chain: each link follows the one before, and no sample is used twice.
    pub fn chain(&self, chain: &[crate::disk::Link]) {
        let mut used: Vec<(u64, u64)> = Vec::new();
        for two in chain.windows(2) {
            let (parent, child) = (&two[0], &two[1]);
            child.record.validate_shape().expect("a committed record has a valid shape");
            assert_eq!(child.record.parent, parent.digest, "a chain is linked by digests");
            assert_eq!(child.record.seq, parent.record.seq + 1);
            for contributor in &child.record.contributors {
                used.push((contributor.start, contributor.start + contributor.samples));
            }
        }
        used.sort_unstable();
        assert!(used.windows(2).all(|two| two[0].1 <= two[1].0), "a sample was used twice");
    }
}

pub fn names(ids: &[NodeId]) -> Vec<usize> {
    ids.iter().map(keys::node).collect()
}
