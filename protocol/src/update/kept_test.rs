use super::*;
use crate::update::Stated;

fn id(n: u8) -> NodeId {
    NodeId([n; 32])
}

fn member(n: u8) -> Contribution {
    Contribution { member: id(n), stated: Stated { tokens: 5, steps: 1, norm: 1.0 }, payload: Digest([n; 32]) }
}

fn members(ids: &[u8]) -> Vec<Contribution> {
    ids.iter().copied().map(member).collect()
}

fn key(seq: u64, attempt: u32) -> AttemptKey {
    AttemptKey { lineage: Digest([2; 32]), seq, attempt, set: Digest([attempt as u8; 32]) }
}

/// An attempt of 1, 2 and 3 in which sums 0 and 2 are finished.
fn failed() -> Kept {
    let mut kept = Kept::default();
    kept.begin(key(4, 0), &members(&[1, 2, 3]), None, 3);
    for chunk in [0, 2] {
        assert!(kept.put(chunk, Some(Sum { from: id(1), attempt: 0 })));
    }
    assert!(!kept.put(3, None), "there is no such chunk");
    kept
}

/// The word in an attempt after the failed one.
fn word_in(mut kept: Kept, key: AttemptKey, members: &[Contribution]) -> Vec<bool> {
    kept.begin(key, members, None, 3);
    kept.word()
}

#[test]
fn sums_are_of_use_to_members_of_their_set_only() {
    assert_eq!(word_in(failed(), key(4, 1), &members(&[1, 2, 3])), [false, true, false, true]);
    assert_eq!(word_in(failed(), key(4, 2), &members(&[1, 2])), [false, true, false, true]);
    assert_eq!(word_in(failed(), key(4, 1), &members(&[1, 2, 4])), [false; 4]);
    // They are of no use at another record, nor if an attempt is made again.
    assert_eq!(word_in(failed(), key(5, 1), &members(&[1, 2])), [false; 4]);
    assert_eq!(word_in(failed(), key(4, 0), &members(&[1, 2])), [false; 4]);
}

#[test]
fn sums_are_of_use_for_the_same_offers_only() {
    let changes: [fn(&mut Contribution); 4] = [
        |member| member.payload = Digest([9; 32]),
        |member| member.stated.tokens = 6,
        |member| member.stated.steps = 2,
        |member| member.stated.norm = 2.0,
    ];
    for change in changes {
        let mut members = members(&[1, 2]);
        change(&mut members[1]);
        assert_eq!(word_in(failed(), key(4, 1), &members), [false; 4], "{:?}", members[1]);
    }
}

#[test]
fn nothing_is_kept_of_a_member_that_was_refused_and_is_left_out() {
    let accusations: [fn(&mut Kept); 2] =
        [|kept| kept.accuse(id(3)), |kept| kept.hear(id(2), id(3), (Digest([2; 32]), 3))];
    for accuse in accusations {
        let mut kept = failed();
        accuse(&mut kept);
        // As long as it takes part, its sums are no worse than the others.
        kept.begin(key(4, 1), &members(&[1, 2, 3]), None, 3);
        assert_eq!(kept.word(), [false, true, false, true]);
        assert_eq!(word_in(kept, key(4, 2), &members(&[1, 2])), [true, false, false, false]);
    }
}

#[test]
fn one_that_keeps_nothing_has_all_keep_nothing() {
    let words = vec![vec![false, true, false], vec![false, false, true]];
    assert_eq!(agreed(words.clone()), Some(vec![vec![true, false], vec![false, true]]));
    assert_eq!(agreed([words, vec![vec![true, false, false]]].concat()), None);
}
