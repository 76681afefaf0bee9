//! The lineages that gave way and that a record takes in: which READY may merge one, and that none counts twice
//! (`docs/protocol/7-merging.md` §7.4.3).

use super::contribution::SignedReady;
use crate::message::Ready;
use crate::mutation::{Mutation, mutated};
use crate::record::{Record, Role, merged_with};
use crate::run::SyncSpec;
use crate::{Digest, NodeId, ring};
use std::collections::{BTreeMap, BTreeSet};

/// Whether a READY of the round after `parent` merges nothing, or a lineage that it may merge. Only voters may: they do
/// not lie, and the lineages that they name are listed for good.
pub fn allowed(sync: &SyncSpec, parent: &Record, member: &NodeId, ready: &Ready) -> bool {
    let Some(lineage) = ready.merges else { return ready.merged_tokens == 0 };
    if !sync.merges() {
        // A difference of parameters is no gradient, and one of all parameters is no fragment.
        return false;
    }
    let votes =
        mutated!(Mutation::LearnersMerge) || parent.member(member).is_some_and(|member| member.role == Role::Voter);
    let within = (1..=parent.next.merge_tokens).contains(&ready.merged_tokens) || mutated!(Mutation::WeighDifference);
    votes && within && !parent.has_merged(&lineage)
}

/// The lineages whose work is in the state now.
pub fn merged(parent: &Record, contributions: &[SignedReady]) -> Vec<Digest> {
    let new = contributions.iter().filter_map(|c| c.ready.merges);
    new.fold(parent.merged.clone(), |merged, lineage| merged_with(&merged, lineage))
}

/// The contributions that must not be averaged with the others, of some after `parent` that are given by their members
/// and the lineages that they merge. Each of them merges a lineage that another one before it in ring order merges,
/// too.
pub fn rivals(parent: &Digest, merging: impl Iterator<Item = (NodeId, Digest)>) -> Vec<NodeId> {
    let of: BTreeMap<NodeId, Digest> = merging.collect();
    if of.len() < 2 || mutated!(Mutation::RivalsTogether) {
        return Vec::new();
    }
    let mut taken = BTreeSet::new();
    let order = ring::order(parent, of.keys().copied());
    order.into_iter().filter(|id| of.get(id).is_some_and(|lineage| !taken.insert(*lineage))).collect()
}
