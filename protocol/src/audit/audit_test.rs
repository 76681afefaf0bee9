use super::*;
use crate::engine::succession::{self, SignedReady};
use crate::message::Ready;
use crate::wire::sample::{self, digest, node};

/// Positions of a whole round of the sample run: 30 steps of 8.
const WHOLE: u64 = 240;
const LEN: u64 = 1_000;

fn genesis() -> Record {
    let spec = sample::spec();
    succession::genesis(spec.digest(), &spec, (node(1), 1), 7, digest(9)).unwrap()
}

/// A COMMIT of all members but the absent ones, each with so many samples of its lease.
fn commit(parent: &Record, absent: &[u8], samples: impl Fn(usize) -> u64) -> Record {
    let contribution = |(at, member): (usize, &crate::record::Member)| {
        let samples = samples(at).min(member.lease.count);
        let statements = vec![];
        let ready = Ready {
            start: member.lease.start,
            samples,
            tokens: samples,
            statements,
            merges: None,
            merged_tokens: 0,
            ..sample::ready()
        };
        SignedReady { member: member.id, ready, digest: digest(at as u8), bytes: vec![] }
    };
    let present = parent.next.members.iter().filter(|member| !absent.contains(&member.id.0[0]));
    let contributions: Vec<_> = present.enumerate().map(contribution).collect();
    succession::commit(parent, parent.digest(), &sample::spec(), &contributions, digest(3), digest(4)).unwrap()
}

/// A flock of three with the records that brought it together.
fn three() -> Vec<Record> {
    use crate::message::{Statement, StatementKind};
    let mut chain = vec![genesis()];
    for joiner in [2, 3] {
        let parent = chain.last().unwrap();
        let contributions: Vec<_> = parent
            .next
            .members
            .iter()
            .map(|member| {
                let kind = StatementKind::Joins;
                let says = Statement { kind, id: node(joiner), incarnation: 1, grant: Digest::default() };
                let (start, samples) = (member.lease.start, member.lease.count);
                let ready =
                    Ready { start, samples, statements: vec![says], merges: None, merged_tokens: 0, ..sample::ready() };
                SignedReady { member: member.id, ready, digest: digest(5), bytes: vec![] }
            })
            .collect();
        let spec = sample::spec();
        let next = succession::commit(parent, parent.digest(), &spec, &contributions, digest(3), digest(4)).unwrap();
        chain.push(next);
    }
    chain
}

fn audited(chain: &[Record]) -> Result<Audit, AuditError> {
    let mut audit = Audit::new(LEN);
    chain.iter().try_for_each(|record| audit.push(record)).map(|()| audit)
}

/// The error of a chain whose last record is changed.
fn broken(chain: &[Record], change: impl Fn(&mut Record)) -> AuditError {
    let mut chain = chain.to_vec();
    change(chain.last_mut().unwrap());
    audited(&chain).unwrap_err()
}

fn sums_hold(summary: &Summary) {
    for epoch in &summary.epochs {
        let Counts { used, leased, free, given_up } = epoch.counts;
        assert_eq!(used + leased + free + given_up + epoch.left + epoch.outside, LEN, "{epoch:?}");
    }
}

#[test]
fn every_position_of_a_whole_chain_is_accounted_for() {
    let mut chain = three();
    for round in 0..6 {
        let parent = chain.last().unwrap();
        let absent: &[u8] = if round == 2 { &[2] } else { &[] };
        let next = commit(parent, absent, |at| if at == 0 { WHOLE - 40 } else { WHOLE });
        chain.push(next);
    }
    let summary = audited(&chain).unwrap().summary();
    sums_hold(&summary);
    assert!(summary.whole && summary.forks == 0 && summary.records == 9);
    assert!(summary.epochs.iter().all(|epoch| epoch.outside == 0), "{summary}");
    let used: u64 = chain.iter().flat_map(|r| &r.contributors).map(|c| c.samples).sum();
    assert_eq!(summary.epochs.iter().map(|epoch| epoch.counts.used).sum::<u64>(), used);
    let last = chain.last().unwrap();
    let leased: u64 = last.next.members.iter().map(|member| member.lease.count).sum();
    assert_eq!(summary.epochs.iter().map(|epoch| epoch.counts.leased).sum::<u64>(), leased);
    let text = summary.to_string();
    assert!(
        text.starts_with("records 0 to 8 (from the beginning), 0 forks: no sample used twice\nepoch 0: "),
        "{text}"
    );
}

#[test]
fn a_pruned_chain_is_audited_from_its_first_record_and_says_so() {
    let mut chain = three();
    chain.push(commit(&chain[2], &[], |_| WHOLE));
    chain.push(commit(&chain[3], &[], |_| WHOLE));
    let summary = audited(&chain[3..]).unwrap().summary();
    sums_hold(&summary);
    assert_eq!((summary.first_seq, summary.last_seq, summary.whole), (3, 4, false));
    let outside: u64 = summary.epochs.iter().map(|epoch| epoch.outside).sum();
    assert_eq!(outside, 3 * WHOLE, "what was used before: one, then two contributions");
    assert!(summary.to_string().contains("pruned"));
    assert_eq!(audited(&[]).unwrap().summary(), Summary::default());
}

#[test]
fn positions_used_twice_are_found_and_named() {
    let mut chain = three();
    chain.push(commit(&chain[2], &[], |_| WHOLE));
    let (member, before) = (chain[3].contributors[0].member, chain[2].contributors[1].clone());
    let error = broken(&chain, |r| r.contributors[0].start = before.start + 200);
    let span = Span { start: before.start + 200, count: 40 };
    assert_eq!(error, AuditError::UsedTwice { seq: 3, member, span });
    let expect = format!("positions {} to {}, which had been used", span.start, span.start + 39);
    assert!(error.to_string().contains(&expect), "{error}");
    let (member, first) = (chain[3].contributors[1].member, chain[3].contributors[0].clone());
    let error = broken(&chain, |r| r.contributors[1].start = first.start);
    let span = Span { start: first.start, count: WHOLE };
    assert_eq!(error, AuditError::UsedTwice { seq: 3, member, span }, "by two in one record");
    let cursor = chain[2].cursor;
    let error = broken(&chain, |r| r.contributors[1].start = cursor - WHOLE + 1);
    assert!(matches!(error, AuditError::NeverLeased { seq: 3, .. }), "{error}");
}

#[test]
fn leases_and_pools_hold_nothing_that_is_gone() {
    let mut chain = three();
    chain.push(commit(&chain[2], &[], |_| WHOLE - 8));
    let (used, id) = (chain[1].contributors[0].start, chain[3].next.members[2].id);
    let error = broken(&chain, |r| r.next.members[2].lease = Span { start: used, count: 8 });
    assert_eq!(error, AuditError::LeasedTwice { seq: 3, member: id, span: Span { start: used, count: 8 } });
    let other = chain[3].next.members[0].lease;
    let error = broken(&chain, |r| r.next.members[2].lease = other);
    assert_eq!(error, AuditError::LeasedTwice { seq: 3, member: id, span: other });
    let error = broken(&chain, |r| r.free = vec![Span { start: used, count: 8 }]);
    assert_eq!(error, AuditError::FreedTwice { seq: 3, span: Span { start: used, count: 8 } });
}

#[test]
fn the_first_record_too_uses_nothing_twice() {
    let chain = three();
    let mut record = chain[2].clone();
    record.contributors[1].start = record.contributors[0].start;
    assert!(matches!(audited(&[record]), Err(AuditError::UsedTwice { seq: 2, .. })));
    let mut record = chain[2].clone();
    record.next.members[0].lease = Span { start: record.contributors[0].start, count: 8 };
    assert!(matches!(audited(&[record]), Err(AuditError::LeasedTwice { seq: 2, .. })));
}

#[test]
fn a_gap_and_another_chain_are_noticed() {
    let chain = three();
    let gap = audited(&[chain[0].clone(), chain[2].clone()]).unwrap_err();
    assert_eq!(gap, AuditError::NotNext { seq: 2, before: 0 });
    assert_eq!(broken(&chain, |r| r.parent = digest(1)), AuditError::NotNext { seq: 2, before: 1 });
    let back = broken(&chain, |r| r.cursor = 1);
    assert!(matches!(back, AuditError::CursorBack { seq: 2, to: 1, .. }), "{back}");
}

#[test]
fn a_record_that_is_refused_is_not_taken() {
    let mut chain = three();
    chain.push(commit(&chain[2], &[], |_| WHOLE));
    let mut audit = audited(&chain[..3]).unwrap();
    let before = audit.summary();
    let mut record = chain[3].clone();
    record.free = vec![Span { start: 0, count: 8 }];
    assert!(audit.push(&record).is_err());
    assert_eq!(audit.summary(), before);
    assert_eq!(audit.push(&chain[3]), Ok(()));
}

/// Nodes under the incarnations that a record knows of them.
fn as_voted(parent: &Record, members: &[crate::NodeId]) -> Vec<(crate::NodeId, u64)> {
    members.iter().map(|id| (*id, parent.member(id).map_or(1, |member| member.incarnation))).collect()
}

#[test]
fn tokens_that_a_fork_leaves_are_outside_and_those_it_takes_are_its_own() {
    let mut chain = three();
    let skip = succession::skip(&chain[2], chain[2].digest()).unwrap();
    let fork = succession::fork(&skip, skip.digest(), &sample::spec(), &as_voted(&skip, &[node(1), node(2)])).unwrap();
    let next = commit(&fork, &[], |_| WHOLE);
    chain.extend([skip, fork, next]);
    let summary = audited(&chain).unwrap().summary();
    sums_hold(&summary);
    assert_eq!((summary.forks, summary.epochs[0].epoch, summary.epochs[0].counts.used), (1, 0, 3 * WHOLE));
    assert!(summary.epochs[0].outside > 0 && summary.epochs[0].counts.given_up == 0, "{summary}");
    let used: u64 = summary.epochs.iter().map(|epoch| epoch.counts.used).sum();
    assert_eq!(used, 5 * WHOLE);
    let stolen = broken(&chain[..5], |r| r.next.members[0].lease.start = 0);
    assert!(matches!(stolen, AuditError::LeasedTwice { seq: 4, .. }), "{stolen}");
}

#[test]
fn spans_that_are_given_up_are_counted() {
    let mut chain = three();
    // A lease of 240 used to 120 leaves less than half: too little to be leased again, so the pool fills up.
    for _ in 0..60 {
        chain.push(commit(chain.last().unwrap(), &[], |_| 139));
    }
    let summary = audited(&chain).unwrap().summary();
    sums_hold(&summary);
    let given_up: u64 = summary.epochs.iter().map(|epoch| epoch.counts.given_up).sum();
    let free: u64 = summary.epochs.iter().map(|epoch| epoch.counts.free).sum();
    assert!(given_up > 0 && free > 0, "{summary}");
    assert!(summary.epochs.iter().all(|epoch| epoch.outside == 0));
}

#[test]
fn a_long_chain_takes_bounded_memory() {
    let mut record = genesis();
    let mut audit = Audit::new(7);
    audit.push(&record).unwrap();
    let mut used = 0;
    for round in 0..2_000u64 {
        record = commit(&record, &[], |_| 100 + round % 141);
        used += record.contributors[0].samples;
        audit.push(&record).unwrap();
    }
    let last = audit.last.as_ref().unwrap();
    assert!(last.leased.len() == 1 && last.free.len() <= crate::limits::FREE_SPANS_MAX);
    let summary = audit.summary();
    assert!(summary.epochs.len() <= 257, "{}", summary.epochs.len());
    let told: u64 = summary.epochs.iter().map(|epoch| epoch.counts.used).sum();
    assert!(told + summary.older.used == used && summary.older.used > told);
}
