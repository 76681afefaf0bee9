//! The voters that decide: dynamic-linear quorums of a record's voters (`docs/protocol/4-agreement.md` §4.1; Jajodia
//! and Mutchler, "Dynamic voting algorithms for maintaining the consistency of a replicated database", TODS 15(2),
//! 1990). The order of the voters is that in which they came.

use crate::NodeId;
use crate::mutation::{Mutation, mutated};
use crate::record::{Member, Record};
use std::collections::BTreeSet;

/// The voters that decide on the record after a given one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quorum {
    /// Identity and incarnation, by ascending identity.
    voters: Vec<(NodeId, u64)>,
    distinguished: NodeId,
}

impl Quorum {
    /// The voters that `record` names for the next.
    pub fn after(record: &Record) -> Self {
        let voters = record.voters().map(|voter| (voter.id, voter.incarnation)).collect();
        Self { voters, distinguished: distinguished(record) }
    }

    /// A quorum rule over these voters, by ascending identity, which came at once: the first is the distinguished one.
    pub fn new(voters: Vec<(NodeId, u64)>) -> Self {
        let distinguished = voters.first().map_or(NodeId([0; 32]), |(id, _)| *id);
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

/// The voter that has been a member for longest, of those that were there last: when a flock parts in two halves, the
/// half that went on before goes on again.
fn distinguished(record: &Record) -> NodeId {
    let least = record.voters().map(|voter| voter.absent).min().unwrap_or_default();
    let there = record.voters().filter(|voter| voter.absent == least || mutated!(Mutation::DistinguishedOfAll));
    let order = |voter: &Member| (voter.since, voter.id);
    let first = if mutated!(Mutation::DistinguishedLast) { there.map(order).max() } else { there.map(order).min() };
    first.map_or(NodeId([0; 32]), |(_, id)| id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Role;

    fn quorum(n: u8) -> Quorum {
        Quorum::new((0..n).map(|i| (NodeId([i; 32]), 7)).collect())
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

    /// A record with voters of these `since` and `absent`, by ascending id, and with a learner that came before them.
    fn record(voters: &[(u64, u8)]) -> Record {
        let mut record = crate::wire::sample::record();
        let seat = |(place, (since, absent)): (usize, &(u64, u8))| {
            let seat = crate::wire::sample::member(place as u8 + 1, 240 * place as u64);
            Member { since: *since, absent: *absent, ..seat }
        };
        record.next.members = voters.iter().enumerate().map(seat).collect();
        let learner = crate::wire::sample::member(0, 240 * voters.len() as u64);
        record.next.members.insert(0, Member { role: Role::Learner, ..learner });
        record
    }

    #[test]
    fn half_a_flock_that_went_on_once_goes_on() {
        let halves = [[1, 2], [3, 4]].map(|half| half.map(|fill| NodeId([fill; 32])));
        for (went_on, stood_still) in [(0, 1), (1, 0)] {
            let absent = |half: usize| u8::from(half == stood_still);
            // The voter that has been there for longest is in either half, and so is the first by id.
            for since in [[0, 1, 2, 3], [3, 2, 1, 0], [5; 4]] {
                let seat = |place: usize| (since[place], absent(place / 2));
                let quorum = Quorum::after(&record(&[0, 1, 2, 3].map(seat)));
                assert!(quorum.met_by(|id| halves[went_on].contains(id)));
                assert!(!quorum.met_by(|id| halves[stood_still].contains(id)));
            }
        }
    }

    /// A tie is for the voter that has been a member for longest, then for the smaller id, record after record.
    #[test]
    fn with_half_of_the_voters_the_senior_one_decides() {
        for (voters, senior) in [
            (vec![(0, 0), (9, 0)], 1),
            (vec![(9, 0), (0, 0)], 2),
            (vec![(4, 0), (4, 0)], 1),
            (vec![(0, 1), (9, 0)], 2),
            (vec![(7, 0), (3, 0), (3, 0), (8, 0)], 2),
            (vec![(7, 0), (3, 1), (3, 1), (8, 0)], 1),
        ] {
            let mut after = record(&voters);
            for seq in [3, 4, 40] {
                (after.seq, after.parent) = (seq, crate::wire::sample::digest(seq as u8));
                let quorum = Quorum::after(&after);
                assert_eq!(quorum.distinguished(), NodeId([senior; 32]), "{voters:?}");
                let others = |id: &NodeId| *id != NodeId([senior; 32]);
                let two = voters.len() == 2;
                assert_eq!((quorum.met_by(|id| !others(id)), quorum.met_by(others)), (two, !two), "{voters:?}");
            }
        }
    }

    #[test]
    fn a_vote_counts_for_one_incarnation() {
        let quorum = quorum(3);
        assert!(quorum.has(&NodeId([1; 32]), 7));
        assert!(!quorum.has(&NodeId([1; 32]), 8));
        assert!(!quorum.has(&NodeId([4; 32]), 7));
        assert!(!Quorum::new(Vec::new()).met_by(|_| true), "nobody is no quorum");
    }
}
