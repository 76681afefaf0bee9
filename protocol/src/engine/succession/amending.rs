//! The amendment that a COMMIT holds, by the READYs that it averages (`docs/protocol/5-membership.md` §5.8).

use super::contribution::SignedReady;
use crate::amendment::{Amendment, Settings};
use crate::mutation::{Mutation, mutated};
use crate::quorum::Quorum;
use crate::record::Record;
use crate::run::RunSpec;
use crate::{Digest, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// The amendment that the COMMIT of these contributions holds. It is stated by one contributing voter, which has checked
/// the creator's signature, or, in a run without a creator, by a quorum of voters. If several could stand, it is the one
/// with the smallest name.
pub fn chosen(parent: &Record, spec: &RunSpec, contributions: &[SignedReady]) -> Option<Amendment> {
    if contributions.iter().all(|c| c.ready.amends.is_none()) {
        return None;
    }
    let quorum = Quorum::after(parent);
    let round = parent.round.checked_add(1)?;
    let stands = |amendment: &Amendment| {
        let signed = amendment.signature.is_some() == spec.creator.is_some();
        signed && amendment.is_due(round) && amendment.check(spec, &parent.next.settings).is_ok()
    };
    let mut stated: BTreeMap<Digest, (&Amendment, BTreeSet<NodeId>)> = BTreeMap::new();
    for SignedReady { member, ready, .. } in contributions {
        let voter = quorum.incarnation(member).is_some();
        if let Some(amendment) = ready.amends.as_deref().filter(|amendment| voter && stands(amendment)) {
            let (_, by) = stated.entry(amendment.name(&parent.run)).or_insert_with(|| (amendment, BTreeSet::new()));
            by.insert(*member);
        }
    }
    let agreed = |by: &BTreeSet<NodeId>| spec.creator.is_some() || quorum.met(by) || mutated!(Mutation::AmendByFew);
    stated.into_values().find(|(_, by)| agreed(by)).map(|(amendment, _)| amendment.clone())
}

/// The settings after the COMMIT that holds this amendment, or none.
pub fn settings(parent: &Record, amended: Option<&Amendment>) -> Settings {
    let before = parent.next.settings;
    amended.map_or(before, |amendment| before.after(amendment, &parent.run))
}

#[cfg(test)]
#[path = "amending_test.rs"]
mod tests;
