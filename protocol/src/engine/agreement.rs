//! Which members make the next attempt: a pure function of whom each of them holds to be alive.
//!
//! Every member that waits to begin tells its view (`Form::live`) to the others. All derive the set from the views
//! by the rules below, and say the result too (`Form::members`); the attempt begins when all members of the set have
//! said the same set and number. As soon as views are equal, the sets are equal.

use crate::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// Derives the set. `mine` is this node's own view, in an order that all nodes share (`ring::order`), itself
/// included; `views` are the views of others.
///
/// 1. Two members that rule out each other (their connection is cut, but both reach the rest): the one that comes
///    first in the shared order stays.
/// 2. A member that is ruled out by one that stays, without ruling it out itself, is dropped: whoever saw a death
///    saw more than who did not.
///
/// Without this node in the result, the others go on without it.
pub(super) fn derive(me: NodeId, mine: &[NodeId], views: &BTreeMap<NodeId, Vec<NodeId>>) -> BTreeSet<NodeId> {
    // Whether `a` rules out `b`; who has not spoken yet rules out nobody.
    let rules_out =
        |a: NodeId, b: NodeId| a != me && a != b && views.get(&a).is_some_and(|view| view.binary_search(&b).is_err());
    let mut kept: Vec<NodeId> = Vec::with_capacity(mine.len());
    for &x in mine {
        if !kept.iter().any(|&i| rules_out(i, x) && rules_out(x, i)) {
            kept.push(x);
        }
    }
    kept.iter().copied().filter(|&x| !kept.iter().any(|&i| rules_out(i, x) && !rules_out(x, i))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(n: u8) -> NodeId {
        NodeId([n; 32])
    }

    fn ids(list: &[u8]) -> Vec<NodeId> {
        list.iter().copied().map(id).collect()
    }

    fn sets(me: u8, mine: &[u8], views: &[(u8, &[u8])]) -> Vec<u8> {
        let views = views.iter().map(|(who, view)| (id(*who), ids(view))).collect();
        derive(id(me), &ids(mine), &views).into_iter().map(|n| n.0[0]).collect()
    }

    #[test]
    fn a_death_that_one_saw_is_believed_by_all() {
        // 2 saw the death of 1; 3 has not yet.
        assert_eq!(sets(3, &[1, 2, 3], &[(2, &[2, 3])]), [2, 3]);
        assert_eq!(sets(2, &[2, 3], &[(3, &[1, 2, 3])]), [2, 3]);
    }

    #[test]
    fn a_cut_between_two_costs_one_of_them() {
        let views: &[(u8, &[u8])] = &[(1, &[1, 3]), (2, &[2, 3])];
        assert_eq!(sets(3, &[1, 2, 3], views), [1, 3]);
        assert_eq!(sets(1, &[1, 3], &[(3, &[1, 2, 3])]), [1, 3]);
        // 3 keeps its view, which contains 2, so 2 learns of its exclusion from 3's set, not from 3's view.
        assert_eq!(sets(2, &[2, 3], &[(3, &[1, 2, 3])]), [2, 3]);
    }

    #[test]
    fn who_is_ruled_out_by_another_leaves_itself_out() {
        assert_eq!(sets(1, &[1, 2, 3], &[(2, &[2, 3]), (3, &[1, 2, 3])]), [2, 3]);
    }

    proptest! {
        #[test]
        fn equal_views_agree_whatever_the_past(live in prop::collection::btree_set(0u8..16, 1..10)) {
            let view: Vec<NodeId> = live.iter().copied().map(id).collect();
            let views: BTreeMap<NodeId, Vec<NodeId>> = view.iter().map(|who| (*who, view.clone())).collect();
            for me in &view {
                prop_assert_eq!(derive(*me, &view, &views), view.iter().copied().collect::<BTreeSet<_>>());
            }
        }

        /// One node dies; any subset of the survivors has noticed. Nobody leaves out a survivor.
        #[test]
        fn a_death_never_costs_a_survivor(n in 2u8..10, dead in 0u8..10, noticed in any::<u16>()) {
            let dead = dead % n;
            let all: Vec<NodeId> = (0..n).map(id).collect();
            let view = |who: u8| -> Vec<NodeId> {
                all.iter().copied().filter(|x| *x != id(dead) || noticed >> who & 1 == 0).collect()
            };
            let views: BTreeMap<NodeId, Vec<NodeId>> =
                (0..n).filter(|who| *who != dead).map(|who| (id(who), view(who))).collect();
            for me in (0..n).filter(|who| *who != dead) {
                let set = derive(id(me), &view(me), &views);
                for survivor in (0..n).filter(|who| *who != dead) {
                    prop_assert!(set.contains(&id(survivor)));
                }
            }
        }
    }
}
