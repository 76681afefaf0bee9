//! Whom voters leave out of the sets that they name: of a link that is down only its two ends know, and everybody else
//! would name both for ever.

use super::Engine;
use super::round::Round;
use super::succession::SignedReady;
use crate::NodeId;
use crate::message::{Value, ValueKind, member_indices};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

impl Engine {
    /// Keeps whom a voter leaves out of the set with which it enters a vote: what it names later may be others'.
    pub(super) fn note_left_out(&mut self, from: NodeId, ballot: u32, value: &Value) {
        let Some(round) = self.round.as_mut().filter(|_| ballot == 0 && value.kind == ValueKind::Set) else { return };
        let named: BTreeSet<usize> = member_indices(&value.members).collect();
        let members = round.members.iter().enumerate();
        let left_out = members.filter(|(index, _)| !named.contains(index)).map(|(_, id)| *id).collect();
        round.left_out.insert(from, left_out);
    }

    /// Of these contributions those that can be averaged together, as far as voters have told whom they do not reach: as
    /// long as one of them leaves out another, the one with most such links goes; of equal ones who does not vote, then by
    /// the round's chance, so that all who heard the same leave out the same. All of them, if too few are left.
    pub(super) fn within_reach(&self, round: &Round, mut ready: Vec<SignedReady>) -> Vec<SignedReady> {
        let Some(head) = self.head.as_ref() else { return ready };
        let all = ready.clone();
        loop {
            let here = |id: &NodeId| ready.binary_search_by(|c| c.member.cmp(id)).is_ok();
            let mut links: BTreeMap<NodeId, BTreeSet<NodeId>> = BTreeMap::new();
            for (voter, left_out) in round.left_out.iter().filter(|(voter, _)| here(voter)) {
                for other in left_out.iter().filter(|id| here(id) && *id != voter) {
                    links.entry(*voter).or_default().insert(*other);
                    links.entry(*other).or_default().insert(*voter);
                }
            }
            let chance = |id: &NodeId| id.0.iter().zip(round.parent.0).map(|(a, b)| a ^ b).collect::<Vec<u8>>();
            let votes = |id: &NodeId| head.quorum.incarnation(id).is_some();
            let worst = links.iter().max_by_key(|(id, bad)| (bad.len(), Reverse(votes(id)), chance(id)));
            let Some(worst) = worst.map(|(id, _)| *id) else { break };
            ready.retain(|c| c.member != worst);
        }
        if head.quorum.met_by(|id| ready.iter().any(|c| c.member == *id)) { ready } else { all }
    }
}
