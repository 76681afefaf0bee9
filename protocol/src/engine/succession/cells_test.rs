//! Cells of a large flock's members (`docs/protocol/2-records.md` §2.10).

use super::*;
use crate::grid::Cell;

/// A record of 31 voters and so many learners, all with leases.
fn large(members: usize) -> Record {
    let mut record = voters(31);
    let mut next = 100;
    while record.next.members.len() < members {
        let present: Vec<u16> = record.members().map(|m| number(&m)).collect();
        let mut contributions: Vec<_> = present.iter().map(|m| ready(&record, *m, &[])).collect();
        let come = (members - present.len()).min(8) as u16;
        contributions[0].ready.statements = (next..next + come).map(|n| joins(n, 1)).collect();
        next += come;
        record = after(&record, &contributions);
    }
    record
}

/// The COMMIT after a record by all but these members, with these statements of the first voter.
fn without(parent: &Record, absent: &[u16], statements: &[Statement]) -> Record {
    let present: Vec<u16> = parent.members().map(|m| number(&m)).filter(|m| !absent.contains(m)).collect();
    let mut contributions: Vec<_> = present.iter().map(|m| ready(parent, *m, &[])).collect();
    contributions[0].ready.statements = statements.to_vec();
    after(parent, &contributions)
}

#[test]
fn a_large_flock_sits_in_rows_and_stays_where_it_is() {
    let small = large(63);
    assert!(small.next.members.iter().all(|member| member.cell == Cell::default()) && small.rows() == 1);
    let record = large(98);
    assert_eq!(record.rows(), 3);
    let next = without(&record, &[], &[]);
    assert!(next.next.members.iter().all(|m| record.member(&m.id).is_some_and(|before| before.cell == m.cell)));
    assert_eq!(skip(&next, next.digest()).unwrap().next, next.next);
}

#[test]
fn a_new_incarnation_keeps_its_cell_and_a_member_that_was_removed_does_not() {
    let mut record = large(98);
    let cell = |record: &Record, of: u16| record.member(&id(of)).map(|member| member.cell);
    let anew = without(&record, &[104], &[joins(104, 9)]);
    assert_eq!((cell(&anew, 104), cell(&anew, 105)), (cell(&record, 104), cell(&record, 105)));
    // Those that the second record in a row leaves out are let in again by it. They change places at least once in a few
    // tries: holes are given in ring order.
    let away = [101, 103, 107, 109, 113];
    let mut moved = 0;
    for _ in 0..3 {
        record = without(&record, &away, &[]);
        let back = without(&record, &away, &away.map(|n| joins(n, 1)));
        moved += away.iter().filter(|n| cell(&back, **n) != cell(&record, **n)).count();
        record = without(&back, &[], &[]);
    }
    assert!(moved > 0, "none of them has ever come to another cell");
}

#[test]
fn a_fork_sits_anew() {
    let record = large(98);
    let going = |kept: usize| {
        let members = record.next.members.iter().take(kept).map(|m| (m.id, m.incarnation)).collect::<Vec<_>>();
        let fork = fork(&record, record.digest(), &sample::spec(), &members).unwrap();
        fork.validate_shape().unwrap();
        fork.validate_after(&record).unwrap();
        fork
    };
    assert_eq!((going(96).rows(), going(93).rows(), going(92).rows(), going(40).rows()), (3, 3, 2, 1));
}
