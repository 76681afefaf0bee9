//! The voters that decide: dynamic-linear quorums of a record's voters (`docs/protocol/4-agreement.md` §4.1; Jajodia
//! and Mutchler, "Dynamic voting algorithms for maintaining the consistency of a replicated database", TODS 15(2),
//! 1990).

use crate::mutation::{Mutation, mutated};
use crate::record::{Record, Role};
use crate::{Digest, NodeId};
use std::collections::BTreeSet;

/// The voters that decide on the record after a given one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quorum {
    /// Identity and incarnation, by ascending identity.
    voters: Vec<(NodeId, u64)>,
    distinguished: NodeId,
}

impl Quorum {
    /// The voters that `record`, with this digest, names for the next.
    pub fn after(record: &Record, digest: &Digest) -> Self {
        let voters = || record.next.members.iter().filter(|member| member.role == Role::Voter);
        let all = voters().map(|member| (member.id, member.incarnation)).collect();
        // Drawn from the voters that were there last: when a flock parts in two halves, the half that went on before
        // goes on again.
        let least = voters().map(|member| member.absent).min().unwrap_or_default();
        let there = voters()
            .filter(|member| member.absent == least || mutated!(Mutation::DistinguishedOfAll))
            .map(|member| member.id);
        Self { voters: all, distinguished: distinguished(digest, there) }
    }

    /// A quorum rule over these voters, by ascending identity; the distinguished one has the smallest hash with
    /// `parent`.
    pub fn new(parent: &Digest, voters: Vec<(NodeId, u64)>) -> Self {
        let distinguished = distinguished(parent, voters.iter().map(|(id, _)| *id));
        Self { voters, distinguished }
    }

    /// Voters and their incarnations, by ascending identity.
    pub fn voters(&self) -> &[(NodeId, u64)] {
        &self.voters
    }

    /// The voter with which a half is a quorum.
    pub fn distinguished(&self) -> NodeId {
        self.distinguished
    }

    /// Whether this node votes, speaking from the vote state of this incarnation.
    pub fn has(&self, id: &NodeId, incarnation: u64) -> bool {
        self.incarnation(id).is_some_and(|admitted| admitted == incarnation || mutated!(Mutation::AnyIncarnation))
    }

    /// The incarnation under which a voter was admitted.
    pub fn incarnation(&self, id: &NodeId) -> Option<u64> {
        let at = self.voters.binary_search_by(|(voter, _)| voter.cmp(id)).ok()?;
        self.voters.get(at).map(|(_, incarnation)| *incarnation)
    }

    /// Whether the voters for which `present` holds are a quorum: more than half of the voters, or exactly half with
    /// the distinguished one. Any two quorums of one record share a voter.
    pub fn met_by(&self, present: impl Fn(&NodeId) -> bool) -> bool {
        let heard = self.voters.iter().filter(|(id, _)| present(id)).count();
        let count = if mutated!(Mutation::CountTwice) && heard > 0 { heard + 1 } else { heard };
        let half = 2 * count == self.voters.len() && count > 0;
        2 * count > self.voters.len() || (half && (present(&self.distinguished) || mutated!(Mutation::HalfQuorum)))
    }

    /// The same for a set.
    pub fn met(&self, set: &BTreeSet<NodeId>) -> bool {
        self.met_by(|id| set.contains(id))
    }
}

/// The node with the smallest hash among these.
fn distinguished(parent: &Digest, among: impl Iterator<Item = NodeId>) -> NodeId {
    let place = |id: NodeId| (Digest::of("starling distinguished v1", &[&parent.0, &id.0]), id);
    (if mutated!(Mutation::DistinguishedLast) { among.map(place).max() } else { among.map(place).min() })
        .map_or(NodeId([0; 32]), |(_, id)| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quorum(n: u8) -> Quorum {
        Quorum::new(&Digest([9; 32]), (0..n).map(|i| (NodeId([i; 32]), 7)).collect())
    }

    #[test]
    fn any_two_quorums_share_a_voter_and_halves_differ() {
        for n in 1..=8u8 {
            let quorum = quorum(n);
            let sets = 1u32 << n;
            let met = |set: u32| quorum.met_by(|id| set >> id.0[0] & 1 == 1);
            for a in 0..sets {
                assert_ne!(met(a), met(!a & (sets - 1)), "of a cut in two exactly one side goes on");
                for b in (0..sets).filter(|b| met(a) && met(*b)) {
                    assert_ne!(a & b, 0);
                }
            }
        }
    }

    #[test]
    fn half_a_flock_that_went_on_once_goes_on() {
        let mut record = crate::wire::sample::record();
        record.next.members = (0..4).map(|i| crate::wire::sample::member(i, 240 * u64::from(i))).collect();
        let halves: [[NodeId; 2]; 2] =
            [[0, 1], [2, 3]].map(|half: [usize; 2]| half.map(|at| record.next.members[at].id));
        for (went_on, stood_still) in [(0, 1), (1, 0)] {
            for member in &mut record.next.members {
                member.absent = u8::from(halves[stood_still].contains(&member.id));
            }
            // The choice among equal voters depends on the record's digest: any digest gives this result.
            for digest in (0..32).map(|byte| Digest([byte; 32])) {
                let quorum = Quorum::after(&record, &digest);
                assert!(quorum.met_by(|id| halves[went_on].contains(id)));
                assert!(!quorum.met_by(|id| halves[stood_still].contains(id)));
            }
        }
    }

    #[test]
    fn a_vote_counts_for_one_incarnation() {
        let quorum = quorum(3);
        assert!(quorum.has(&NodeId([1; 32]), 7));
        assert!(!quorum.has(&NodeId([1; 32]), 8));
        assert!(!quorum.has(&NodeId([4; 32]), 7));
        assert!(!Quorum::new(&Digest([9; 32]), Vec::new()).met_by(|_| true), "nobody is no quorum");
    }
}
