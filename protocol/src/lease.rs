//! Handing out the run's positions: each member of a round gets a contiguous range of its own.

use crate::NodeId;
use crate::record::Lease;

/// Leases of `count` positions from `cursor` on for each member, in ascending order of id, and the cursor after
/// them. None when positions run out at 2^64, or `count` is 0.
///
/// Pure and ordered by id, so that every member writes the same leases into the record it builds.
pub fn split(cursor: u64, members: impl IntoIterator<Item = NodeId>, count: u64) -> Option<(Vec<Lease>, u64)> {
    if count == 0 {
        return None;
    }
    let mut members: Vec<NodeId> = members.into_iter().collect();
    members.sort_unstable();
    members.dedup();
    let mut start = cursor;
    let mut leases = Vec::with_capacity(members.len());
    for member in members {
        leases.push(Lease { member, start, count });
        start = start.checked_add(count)?;
    }
    Some((leases, start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_disjoint_ordered_and_follow_the_cursor() {
        let id = |fill| NodeId([fill; 32]);
        let (leases, cursor) = split(100, [id(3), id(1), id(2), id(1)], 8).unwrap();
        let expect: Vec<Lease> =
            (0..3).map(|i| Lease { member: id(i + 1), start: 100 + 8 * u64::from(i), count: 8 }).collect();
        assert_eq!((leases, cursor), (expect, 124));
        assert_eq!(split(5, [], 8), Some((vec![], 5)));
        assert_eq!(split(u64::MAX - 8, [id(1), id(2)], 8), None);
        assert_eq!(split(0, [id(1)], 0), None);
    }
}
