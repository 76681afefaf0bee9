use super::*;
use crate::amendment::Changes;
use crate::engine::succession;
use crate::message::Ready;
use crate::record::Member;
use crate::sample;
use crate::wire::sample::{self as examples, digest, node};

/// Positions of a whole round of the sample run: 30 steps of 8.
const WHOLE: u64 = 240;

/// The run without a creator, whose voters' operators amend it.
fn nobodys() -> RunSpec {
    RunSpec { creator: None, ..examples::spec() }
}

/// A record after which members 1 to 4 vote, and 5 learns.
fn parent(spec: &RunSpec) -> Record {
    let mut members = sample::voters((1..=5).map(node), 7, 0, WHOLE);
    if let Some(last) = members.last_mut() {
        last.role = crate::record::Role::Learner;
    }
    sample::genesis(spec, digest(2), digest(6), members)
}

/// The whole lease of each member, which states an amendment or none.
fn stating(parent: &Record, stated: &[(u8, Option<&Amendment>)]) -> Vec<SignedReady> {
    let one = |(member, amends): &(u8, Option<&Amendment>)| {
        let Member { lease, .. } = parent.member(&node(*member)).unwrap();
        let ready = Ready {
            start: lease.start,
            samples: lease.count,
            statements: vec![],
            merges: None,
            merged_tokens: 0,
            rtts: vec![],
            amends: amends.cloned().map(Box::new),
            ..examples::ready()
        };
        SignedReady { member: node(*member), ready, digest: digest(*member), bytes: vec![] }
    };
    stated.iter().map(one).collect()
}

fn rounds(parent: &Record, rounds: u64) -> Amendment {
    Amendment::next(&parent.next.settings, 0, Changes { rounds: Some(rounds), ..Changes::default() })
}

/// The record of these contributions, checked against all rules.
fn after(parent: &Record, spec: &RunSpec, stated: &[(u8, Option<&Amendment>)]) -> Record {
    let contributions = stating(parent, stated);
    let record = succession::commit(parent, parent.digest(), spec, &contributions, digest(3), digest(4)).unwrap();
    record.validate_shape().unwrap();
    record.validate_after(parent).unwrap();
    record
}

#[test]
fn one_voters_word_brings_the_creators_amendment_into_force_with_the_next_record() {
    let spec = examples::spec();
    let parent = parent(&spec);
    let signed = rounds(&parent, 4_000).sign(&examples::signer(), &parent.run);
    let quiet = [(1, None), (2, None), (3, None), (4, None), (5, None)];
    assert_eq!(after(&parent, &spec, &quiet).amended, None);
    let mut learner = quiet;
    learner[4].1 = Some(&signed);
    assert_eq!(after(&parent, &spec, &learner).amended, None, "learners may lie");
    let mut voter = quiet;
    voter[2].1 = Some(&signed);
    let record = after(&parent, &spec, &voter);
    assert_eq!(record.amended.as_ref(), Some(&signed));
    assert_eq!(record.next.settings.in_force(&spec).budget.rounds, 4_000);
    // It is the newest now: stated again it changes nothing, and SKIPs and FORKs carry it along.
    let again = after(&record, &spec, &[(1, Some(&signed)), (2, None), (3, None)]);
    assert_eq!((again.amended, again.next.settings), (None, record.next.settings));
    let skip = succession::skip(&record, record.digest()).unwrap();
    let fork = succession::fork(&record, record.digest(), &spec, &[(node(1), 7)]).unwrap();
    for unchanged in [skip, fork] {
        unchanged.validate_after(&record).unwrap();
        assert_eq!((unchanged.amended, unchanged.next.settings), (None, record.next.settings));
    }
}

#[test]
fn of_two_amendments_all_choose_the_same_and_bad_ones_do_not_count() {
    let spec = examples::spec();
    let parent = parent(&spec);
    let sign = |amendment: Amendment| amendment.sign(&examples::signer(), &parent.run);
    let two = [sign(rounds(&parent, 200)), sign(rounds(&parent, 300))];
    let smaller = two.iter().min_by_key(|amendment| amendment.name(&parent.run));
    for (first, second) in [(0, 1), (1, 0)] {
        let record = after(&parent, &spec, &[(1, Some(&two[first])), (2, Some(&two[second])), (3, None)]);
        assert_eq!(record.amended.as_ref(), smaller);
    }
    let early = sign(Amendment { from: 3, ..rounds(&parent, 200) });
    let past = sign(Amendment { number: 2, ..rounds(&parent, 200) });
    let values = sign(Amendment { changes: Changes { lr: Some(0.0), ..Changes::default() }, ..rounds(&parent, 1) });
    for bad in [early, past, values, rounds(&parent, 200)] {
        let record = after(&parent, &spec, &[(1, Some(&bad)), (2, Some(&bad)), (3, Some(&bad))]);
        assert_eq!(record.amended, None, "{bad:?}");
    }
}

#[test]
fn a_quorum_of_operators_amends_a_run_without_a_creator() {
    let spec = nobodys();
    let parent = parent(&spec);
    let (one, other) = (rounds(&parent, 200), rounds(&parent, 300));
    let (yes, no) = (Some(&one), Some(&other));
    let agreed = |stated: &[(u8, Option<&Amendment>)]| after(&parent, &spec, stated).amended;
    assert_eq!(agreed(&[(1, yes), (2, yes), (3, yes), (4, no)]), Some(one.clone()), "three of four voters");
    assert_eq!(agreed(&[(1, yes), (2, no), (3, None), (4, None), (5, yes)]), None, "one voter and a learner");
    let signed = one.clone().sign(&examples::signer(), &parent.run);
    let all: Vec<_> = (1..=4).map(|member| (member, Some(&signed))).collect();
    assert_eq!(agreed(&all), None, "there is nobody whose signature could count");
}
