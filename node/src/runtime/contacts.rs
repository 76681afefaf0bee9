//! The members with which this node is to be connected, in a flock of several rows.

use crate::net::Contacts;
use starling_protocol::engine::Engine;
use starling_protocol::record::Record;
use starling_protocol::{NodeId, ring};
use std::collections::BTreeSet;
use std::time::Duration;

/// Voters with which a node without a seat keeps connections: they hear what it says, and one of them answers even if
/// some are gone.
const VOTERS_OF_NEWCOMER: usize = 8;
/// The time for which a connection with a member that is no neighbour is left. Records differ for a moment at each
/// commit, and the other side may still have this node among its neighbours.
const PARTING: Duration = Duration::from_secs(60);

/// The members to be connected with, as this node's engine sees the flock. `None` in a flock of one row, and as long as
/// no flock was met: then that is every node of the run.
pub(super) fn contacts(engine: &Engine, me: &NodeId) -> Option<Contacts> {
    in_flock(engine.head()?, engine.contacts(), me)
}

/// The same by the head record and this node's neighbours, if it has a seat.
fn in_flock(head: &Record, neighbours: Option<BTreeSet<NodeId>>, me: &NodeId) -> Option<Contacts> {
    if head.rows() == 1 {
        return None;
    }
    let mut contacts = match neighbours {
        Some(neighbours) => Contacts {
            near: neighbours,
            parts_after: Some(PARTING),
            meets_strangers: head.voters().any(|voter| voter.id == *me),
        },
        // It may be fetching the state from other members, too.
        None => Contacts { near: of_newcomer(head, me), parts_after: None, meets_strangers: true },
    };
    contacts.near.remove(me);
    Some(contacts)
}

/// Some voters, others for each node, and the same ones as long as they vote.
fn of_newcomer(head: &Record, me: &NodeId) -> BTreeSet<NodeId> {
    let voters = head.voters().map(|voter| voter.id);
    ring::order(&starling_protocol::Digest(me.0), voters).into_iter().take(VOTERS_OF_NEWCOMER).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_protocol::grid::Cell;
    use starling_protocol::record::Role;
    use starling_protocol::{Digest, sample};

    fn id(n: u8) -> NodeId {
        NodeId([n; 32])
    }

    /// Twelve voters in the first row and eight learners in the second, or all in one.
    fn head(rows: usize) -> Record {
        let voters = sample::voters((1..=20).map(id), 1, 0, 240);
        let mut record = sample::genesis(&sample::small(), Digest([2; 32]), Digest([5; 32]), voters);
        for (n, member) in record.next.members.iter_mut().enumerate().filter(|(n, _)| *n >= 12) {
            member.role = Role::Learner;
            member.cell = Cell::at(rows - 1, if rows > 1 { n - 12 } else { 0 });
        }
        record
    }

    #[test]
    fn a_flock_of_one_row_connects_all() {
        assert_eq!(in_flock(&head(1), None, &id(1)), None);
        assert_eq!(in_flock(&head(1), None, &id(99)), None);
    }

    #[test]
    fn a_newcomer_keeps_to_the_same_few_voters_and_leaves_what_it_has() {
        let of = |n| in_flock(&head(2), None, &id(n)).expect("two rows");
        let contacts = of(99);
        assert_eq!(contacts.near.len(), VOTERS_OF_NEWCOMER);
        assert!(contacts.near.iter().all(|one| (1..=12).map(id).any(|voter| voter == *one)));
        assert!(contacts.parts_after.is_none() && contacts.meets_strangers);
        assert_eq!(of(99), contacts);
        assert!((100..110).any(|n| of(n).near != contacts.near), "others for others");
    }

    #[test]
    fn a_member_keeps_to_its_neighbours() {
        // Those of the record before, too.
        let neighbours = BTreeSet::from([id(2), id(3), id(30)]);
        let learner = in_flock(&head(2), Some(neighbours.clone()), &id(15)).expect("two rows");
        assert_eq!(learner, Contacts { near: neighbours, parts_after: Some(PARTING), meets_strangers: false });
        let voter = in_flock(&head(2), Some(BTreeSet::from([id(3), id(4)])), &id(3)).expect("two rows");
        assert!(
            voter.meets_strangers && voter.near == BTreeSet::from([id(4)]),
            "voters do; not with itself: {voter:?}"
        );
    }
}
