use super::*;
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::update::Stated;

const ELEMENTS: usize = 3 * CHUNK_ELEMENTS;
static SUM: [u8; 2 * CHUNK_ELEMENTS] = [7; 2 * CHUNK_ELEMENTS];

fn id(n: u8) -> NodeId {
    NodeId([n; 32])
}

fn members(ids: &[u8]) -> Vec<Contribution> {
    let stated = Stated { tokens: 5, steps: 1, norm: 1.0 };
    ids.iter().map(|n| Contribution { member: id(*n), stated, payload: Digest([*n; 32]) }).collect()
}

fn key(seq: u64, attempt: u32) -> AttemptKey {
    AttemptKey { lineage: Digest([2; 32]), seq, attempt, set: Digest([attempt as u8; 32]) }
}

fn begin(sums: &Arc<Sums>, key: AttemptKey, members: &[Contribution]) -> Sheet {
    Sheet::begin(sums, &Beginning { key, members, codec: Codec::Bf16, elements: ELEMENTS, longest: Some(3.0) })
}

/// An attempt of 1, 2 and 3 in which sums 0 (of member 1) and 2 (of member 2) are finished.
fn failed() -> (Arc<Sums>, Sheet) {
    let sums = Arc::new(Sums::default());
    let sheet = begin(&sums, key(4, 0), &members(&[1, 2, 3]));
    sheet.finish(0, &SUM, id(1));
    sheet.finish(2, &SUM, id(2));
    (sums, sheet)
}

#[test]
fn sums_are_kept_for_a_subset_of_the_same_contributions() {
    let (sums, first) = failed();
    let second = begin(&sums, key(4, 1), &members(&[1, 2]));
    assert!(!first.is_current() && second.is_current());
    assert_eq!(second.word(), [false, true, false, true]);
    assert_eq!((second.made_by(&id(1), 0), second.made_by(&id(1), 2)), (Some(key(4, 0)), None));
    let mut payload = Vec::new();
    assert!(second.copy(2, &mut payload) && payload == SUM && !first.copy(2, &mut payload));
    // A partial sum takes the place of a finished one.
    second.put(2, &SUM);
    assert_eq!(second.word(), [false, true, false, false]);
    // With somebody who was not in the set, or who contributes something else, nothing is of use.
    for others in [members(&[1, 2, 4]), vec![Contribution { payload: Digest([9; 32]), ..members(&[1])[0].clone() }]] {
        let (sums, _) = failed();
        assert_eq!(begin(&sums, key(4, 1), &others).word(), [false; 4]);
    }
    // An attempt that begins too late does not end a later one.
    assert!(!begin(&sums, key(4, 0), &members(&[1, 2, 3])).is_current() && second.is_current());
    // Nothing is of use at another record, if an attempt is made again, or once the record is decided.
    for (seq, attempt, decided) in [(5, 1, false), (4, 0, false), (4, 1, true)] {
        let (sums, _) = failed();
        if decided {
            sums.forget();
        }
        assert_eq!(begin(&sums, key(seq, attempt), &members(&[1, 2])).word(), [false; 4]);
    }
}

/// Attempt 1 is not of member 3. Its sums are of no use in attempt 2, which is; those of attempt 0 are.
#[test]
fn a_sum_is_of_the_attempt_that_has_finished_it() {
    let (sums, _) = failed();
    let second = begin(&sums, key(4, 1), &members(&[1, 2]));
    second.finish(1, &SUM, id(1));
    let third = begin(&sums, key(4, 2), &members(&[1, 3]));
    assert_eq!(third.word(), [false, true, false, true]);
    assert_eq!(third.longest(), Some(18f32.sqrt()), "the bounds of attempts 0 and 2");
}

#[test]
fn an_accused_member_that_is_left_out_lets_nothing_be_kept() {
    let accusations: [fn(&Sums); 2] = [|sums| sums.accuse(id(3)), |sums| sums.hear(id(2), id(3), (Digest([2; 32]), 3))];
    for accuse in accusations {
        let (sums, _) = failed();
        accuse(&sums);
        // As long as it takes part, its sums are no worse than the others.
        assert_eq!(begin(&sums, key(4, 1), &members(&[1, 2, 3])).word(), [false, true, false, true]);
        let next = begin(&sums, key(4, 2), &members(&[1, 2]));
        assert_eq!(next.word(), [true, false, false, false]);
        assert!(next.longest() > Some(3.0), "others may keep sums all the same");
    }
    // Words about another record, of a stranger and about a stranger do not count.
    let (sums, _) = failed();
    sums.hear(id(2), id(3), (Digest([2; 32]), 4));
    sums.hear(id(9), id(3), (Digest([2; 32]), 3));
    sums.hear(id(2), id(9), (Digest([2; 32]), 3));
    sums.accuse(id(9));
    assert_eq!(begin(&sums, key(4, 1), &members(&[1, 2])).word(), [false, true, false, true]);
}

/// A sum of an earlier attempt that comes late is taken until its sender is told what is here, and only if it is of
/// use.
#[test]
fn a_late_sum_is_taken_until_its_sender_is_told() {
    let (sums, first) = failed();
    let second = begin(&sums, key(4, 1), &members(&[1, 2]));
    first.finish(1, &SUM, id(1));
    assert_eq!(second.word(), [false, true, false, true], "what is made here is never late");
    first.arrive(1, &SUM, id(2));
    assert_eq!(second.word(), [false, true, true, true]);
    assert_eq!(second.tell(id(2), &[1, 2]), [1, 1]);
    assert_eq!(second.tell(id(3), &[0, 1]), [0, 0], "sums of others");
    second.lose(1);
    first.arrive(1, &SUM, id(2));
    assert_eq!(second.word(), [false, true, false, true], "too late");
    second.finish(1, &SUM, id(2));
    let third = begin(&sums, key(4, 2), &members(&[1, 3]));
    assert_eq!(third.tell(id(2), &[1, 2]), [0, 1], "attempt 1 is not of member 3");
}

#[test]
fn an_attempt_that_succeeds_leaves_nothing() {
    let (sums, first) = failed();
    first.finish(1, &SUM, id(3));
    assert_eq!(first.take(), Some(vec![7; 6 * CHUNK_ELEMENTS]));
    assert_eq!(first.take(), None);
    let second = begin(&sums, key(4, 1), &members(&[1, 2]));
    assert_eq!(second.word(), [false; 4]);
    second.distrust();
    assert_eq!(begin(&sums, key(4, 2), &members(&[1, 2])).word().first(), Some(&true));
}
