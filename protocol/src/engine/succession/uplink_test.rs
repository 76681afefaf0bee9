use super::*;

#[test]
fn uplinks_follow_what_is_said_with_hysteresis() {
    let seats = |record: &Record| record.next.members.iter().map(|m| m.upload_kbps).collect::<Vec<_>>();
    let says = |parent: &Record, kbps: &[u32]| {
        let said = |(n, kbps): (usize, &u32)| {
            let mut ready = ready(parent, n as u16 + 1, &[]);
            ready.ready.measured.upload_kbps = *kbps;
            ready
        };
        kbps.iter().enumerate().map(said).collect::<Vec<_>>()
    };
    let parent = voters(3);
    let mut parent = after(&parent, &says(&parent, &[4000, 4000, 4000]));
    parent.next.members.iter_mut().for_each(|member| member.upload_kbps = 0);
    let first = after(&parent, &says(&parent, &[1000, 0, u32::MAX]));
    assert_eq!(seats(&first), [1000, 0, u32::MAX], "unknown is what nobody has said");
    let second = after(&first, &says(&first, &[1250, 1, 3_221_225_472]));
    assert_eq!(seats(&second), [1000, 1, u32::MAX], "a quarter is no news");
    let third = after(&second, &says(&second, &[1251, 0, 3_221_225_471]));
    assert_eq!(seats(&third), [1251, 1, 3_221_225_471], "more is; and who says nothing takes nothing back");
    let two = after(&third, &says(&third, &[939, 2]));
    assert_eq!(seats(&two), [1251, 2, 3_221_225_471], "who is left out keeps its own");
    assert_eq!(seats(&skip(&two, two.digest()).unwrap()), seats(&two));
    let mut both = as_admitted(&two, &[id(1), id(2)]);
    both[1].1 += 1;
    let forked = fork(&two, two.digest(), &sample::spec(), &both).unwrap();
    assert_eq!(seats(&forked), [1251, 0], "kept by a fork, but not for another incarnation");
    assert_eq!(uplinks(&forked), [(id(1), 1251), (id(2), 0)]);
    let mut contributions = says(&two, &[1251, 2, 0]);
    contributions[0].ready.statements = vec![joins(2, 9)];
    let anew = after(&two, &contributions);
    assert_eq!(seats(&anew), [1251, 0, 3_221_225_471], "another process may be elsewhere");
}

/// The map of a round's chunks is that of the head's seats, for contributors of any attempt.
#[test]
fn chunks_go_to_the_owners_that_the_record_makes_best() {
    use crate::update::owners::Owners;
    let parent = voters(4);
    let mut contributions: Vec<_> = (1..=4).map(|n| ready(&parent, n, &[])).collect();
    for (contribution, kbps) in contributions.iter_mut().zip([100, 100, 25, 100]) {
        contribution.ready.measured.upload_kbps = kbps * 1000;
    }
    let mut parent = parent;
    parent.next.members.iter_mut().for_each(|member| member.upload_kbps = 0);
    let record = after(&parent, &contributions);
    let lengths = |record: &Record| {
        let owners = Owners::among(&uplinks(record), &expected(record), 30);
        [0, 1, 2, 3].map(|place| owners.chunks(place).len())
    };
    assert_eq!(lengths(&record), [10, 10, 0, 10]);
    assert_eq!(lengths(&parent), [8, 8, 7, 7], "nothing is known");
    assert_eq!(lengths(&skip(&record, record.digest()).unwrap()), lengths(&record));
}
