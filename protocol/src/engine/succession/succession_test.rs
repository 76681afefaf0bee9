use super::*;
use crate::limits::{GRANTS_MAX, MEMBERS_MAX, MERGED_MAX, VOTERS_MAX};
use crate::message::{Ready, Statement, StatementKind};
use crate::record::GrantUse;
use crate::ring;
use crate::wire::sample::{self, digest};

/// Positions of a whole round of the sample run: 30 steps of 8.
const WHOLE: u64 = 240;

fn id(number: u16) -> NodeId {
    let mut bytes = [7; 32];
    bytes[..2].copy_from_slice(&number.to_be_bytes());
    NodeId(bytes)
}

fn number(id: &NodeId) -> u16 {
    u16::from_be_bytes([id.0[0], id.0[1]])
}

fn joins(joiner: u16, incarnation: u64) -> Statement {
    Statement { kind: StatementKind::Joins, id: id(joiner), incarnation, grant: Digest::default() }
}

fn suspect(of: u16) -> Statement {
    Statement { kind: StatementKind::Suspect, incarnation: 0, ..joins(of, 0) }
}

fn revoked(of: u16) -> Statement {
    Statement { kind: StatementKind::Revoked, ..suspect(of) }
}

/// The whole lease of a member as its contribution.
fn ready(parent: &Record, member: u16, statements: &[Statement]) -> SignedReady {
    let lease = parent.lease_of(&id(member)).unwrap();
    let ready = Ready {
        lineage: parent.lineage,
        round: parent.round + 1,
        state_root: parent.state_root,
        start: lease.start,
        samples: lease.count,
        tokens: lease.count * 128,
        steps: u32::try_from(lease.count / 8).unwrap(),
        statements: statements.to_vec(),
        merges: None,
        merged_tokens: 0,
        rtts: vec![],
        ..sample::ready()
    };
    SignedReady { member: id(member), ready, digest: digest(member as u8), bytes: vec![] }
}

fn genesis_of(founder: u16) -> Record {
    let spec = sample::spec();
    super::genesis(spec.digest(), &spec, (id(founder), 1), 7, digest(9)).unwrap()
}

/// The record that follows from the contributions, checked against all rules.
fn after(parent: &Record, contributions: &[SignedReady]) -> Record {
    let record = commit(parent, parent.digest(), &sample::spec(), contributions, digest(3), digest(4)).unwrap();
    record.validate_shape().unwrap();
    record.validate_after(parent).unwrap();
    record
}

/// Members as (number, is a voter), ascending.
fn flock(record: &Record) -> Vec<(u16, bool)> {
    record.next.members.iter().map(|m| (number(&m.id), m.role == Role::Voter)).collect()
}

/// A lineage whose members 1 .. n all vote.
fn voters(n: u16) -> Record {
    let mut record = genesis_of(1);
    for _ in 0..100 {
        if record.voters().count() == usize::from(n) {
            return record;
        }
        let present: Vec<u16> = record.members().map(|m| number(&m)).collect();
        let absent: Vec<u16> = (1..=n).filter(|m| !present.contains(m)).collect();
        let mut contributions: Vec<_> = present.iter().map(|m| ready(&record, *m, &[])).collect();
        contributions[0].ready.statements = absent.iter().take(2).map(|joiner| joins(*joiner, 1)).collect();
        record = after(&record, &contributions);
    }
    panic!("{n} voters never came together");
}

#[test]
fn newcomers_learn_first_and_then_vote() {
    let first = genesis_of(1);
    first.validate_shape().unwrap();
    let second = after(&first, &[ready(&first, 1, &[joins(5, 2)])]);
    assert_eq!(second.parent, first.digest());
    assert_eq!(flock(&second).len(), 2);
    let new = second.next.members.iter().find(|m| m.id != id(1)).unwrap();
    assert_eq!((new.role, new.incarnation, new.absent, new.expected), (Role::Learner, 2, 0, true));
    assert_eq!((second.tokens, second.cursor), (WHOLE * 128, 3 * WHOLE));
    let new = number(&new.id);
    let third = after(&second, &[ready(&second, 1, &[]), ready(&second, new, &[])]);
    assert_eq!(flock(&third), [(1, true), (new, true)]);
    assert_eq!(expected(&third), [id(1), id(new)]);
    assert!(third.next.members.iter().all(|member| member.lease.start >= second.cursor));
}

#[test]
fn newcomers_come_in_the_order_of_the_ring_and_half_as_many_as_vote() {
    assert_eq!([0, 1, 4, 16, 18, 31].map(admitted_max), [8, 8, 8, 8, 9, 15]);
    let parent = voters(4);
    let [one, other] = [10..16, 16..22].map(|ids| ids.map(|number| joins(number, 1)).collect::<Vec<_>>());
    let contributions = [ready(&parent, 1, &one), ready(&parent, 2, &other), ready(&parent, 3, &[])];
    let record = after(&parent, &contributions);
    let mut first = ring::order(&parent.digest(), (10..22).map(id))[..8].to_vec();
    first.sort_unstable();
    let admitted: Vec<NodeId> = record.members().filter(|member| number(member) >= 10).collect();
    assert_eq!(admitted, first);
    assert_eq!(record.next.members.len(), 12);
}

#[test]
fn a_member_left_out_once_keeps_its_lease_and_twice_is_removed() {
    let parent = voters(3);
    let lease = *parent.lease_of(&id(3)).unwrap();
    let two = |parent: &Record, said: &[Statement]| after(parent, &[ready(parent, 1, said), ready(parent, 2, &[])]);
    let once = two(&parent, &[]);
    let third = once.member(&id(3)).unwrap();
    assert_eq!((third.absent, third.expected, third.lease), (1, false, lease));
    assert_eq!(expected(&once), [id(1), id(2)]);
    let here = two(&parent, &[joins(3, 1)]);
    let third = here.member(&id(3)).unwrap();
    assert_eq!((third.absent, third.expected, third.lease, third.role), (1, true, lease, Role::Voter));

    let back = after(&once, &[ready(&once, 1, &[]), ready(&once, 3, &[])]);
    assert_eq!(back.member(&id(3)).map(|m| (m.absent, m.expected)), Some((0, true)));
    assert_eq!(back.contributors[1].start, lease.start);
    assert_eq!(back.member(&id(2)).map(|m| m.absent), Some(1));

    let twice = two(&once, &[]);
    assert_eq!(flock(&twice), [(1, true), (2, true)]);
    assert_eq!(twice.lease_of(&id(1)), Some(&lease), "the freed lease is the best fit");
    let again = two(&once, &[joins(3, 1)]);
    assert_eq!(flock(&again), [(1, true), (2, true), (3, false)], "removed, and let in again as a learner");
}

#[test]
fn a_new_incarnation_starts_over_as_a_learner() {
    let parent = voters(3);
    let whole = [ready(&parent, 1, &[joins(3, 8)]), ready(&parent, 2, &[joins(3, 9)])];
    let record = after(&parent, &whole);
    let third = record.member(&id(3)).unwrap();
    assert_eq!((third.incarnation, third.role, third.absent, third.expected), (9, Role::Learner, 0, true));
    assert!(record.free.is_empty(), "its old lease was leased again: {:?}", record.free);
    assert_eq!(record.cursor, parent.cursor + 2 * WHOLE);

    let stale = after(&record, &[ready(&record, 1, &[joins(3, 1)]), ready(&record, 2, &[])]);
    let third = stale.member(&id(3)).unwrap();
    assert_eq!((third.incarnation, third.absent, third.expected), (9, 1, false), "an echo of the old one");

    let contributed = [ready(&parent, 1, &[joins(3, 9)]), ready(&parent, 2, &[]), ready(&parent, 3, &[])];
    let record = after(&parent, &contributed);
    assert_eq!(flock(&record), [(1, true), (2, true), (3, false)], "what it sent before it died counts, it does not");
}

#[test]
fn a_new_incarnation_is_leased_as_if_nothing_were_known_of_it() {
    let parent = voters(3);
    let mut contributed = [ready(&parent, 1, &[joins(3, 9)]), ready(&parent, 2, &[]), ready(&parent, 3, &[])];
    for (contribution, step_us) in contributed.iter_mut().zip([100, 100, 400]) {
        contribution.ready.measured.step_us = step_us;
    }
    let leased = |record: Record| record.member(&id(3)).unwrap().lease.count;
    assert_eq!(leased(after(&parent, &contributed)), WHOLE, "the former process was slow");
    contributed[0].ready.statements.clear();
    assert!(leased(after(&parent, &contributed)) < WHOLE);
}

#[test]
fn leavers_go_and_the_last_ones_stay_named() {
    let parent = voters(3);
    let mut contributions = [ready(&parent, 1, &[joins(2, 1)]), ready(&parent, 2, &[]), ready(&parent, 3, &[])];
    contributions[1].ready.leave = true;
    assert_eq!(flock(&after(&parent, &contributions)), [(1, true), (3, true)]);
    contributions.iter_mut().for_each(|c| c.ready.leave = true);
    let all = after(&parent, &contributions);
    assert_eq!(flock(&all), [(1, true), (2, true), (3, true)]);
    assert_eq!(all.contributors.len(), 3);
    let others = after(&parent, &contributions[..2]);
    assert_eq!(flock(&others), [(3, true)], "an absent voter is a voter");
}

#[test]
fn a_learner_that_is_here_votes_when_no_voter_is_left() {
    let first = genesis_of(1);
    let mut last = ready(&first, 1, &[joins(5, 2)]);
    last.ready.leave = true;
    assert_eq!(flock(&after(&first, &[last])), [(5, true)]);
    let second = after(&first, &[ready(&first, 1, &[joins(5, 2)])]);
    let mut last = ready(&second, 1, &[]);
    last.ready.leave = true;
    let record = after(&second, &[last.clone()]);
    assert_eq!(flock(&record), [(1, true), (5, false)], "nobody knows whether 5 is there");
    let record = after(&second, &[last, ready(&second, 5, &[])]);
    assert_eq!(flock(&record), [(5, true)]);
    let alone = after(&first, &[ready(&first, 1, &[revoked(1)])]);
    assert_eq!(flock(&alone), [(1, true)], "somebody has to");
}

#[test]
fn suspicion_by_more_than_half_of_the_voters_removes_an_absent_member() {
    let parent = voters(4);
    let by = |who: &[u16]| -> Vec<SignedReady> { who.iter().map(|m| ready(&parent, *m, &[suspect(4)])).collect() };
    let mut two = by(&[1, 2]);
    two.push(ready(&parent, 3, &[]));
    assert!(after(&parent, &two).member(&id(4)).is_some(), "two of four is not more than half");
    let record = after(&parent, &by(&[1, 2, 3]));
    assert!(record.member(&id(4)).is_none());
    assert_eq!(record.cursor + WHOLE, parent.cursor + 3 * WHOLE, "its lease was leased again");
    let mut all = by(&[1, 2, 3]);
    all.push(ready(&parent, 4, &[]));
    assert!(after(&parent, &all).member(&id(4)).is_some(), "it contributed: it lives");
    let mut restarted = by(&[1, 2, 3]);
    restarted[0].ready.statements = vec![joins(4, 6), suspect(4)];
    assert_eq!(after(&parent, &restarted).member(&id(4)).map(|m| (m.incarnation, m.role)), Some((6, Role::Learner)));
}

#[test]
fn learners_contribute_and_have_no_say() {
    let parent = voters(2);
    let parent = after(&parent, &[ready(&parent, 1, &[joins(5, 1)]), ready(&parent, 2, &[])]);
    let record = after(&parent, &[ready(&parent, 1, &[suspect(2)]), ready(&parent, 5, &[suspect(2)])]);
    assert!(record.member(&id(2)).is_some());
    let all =
        |said: &[Statement]| after(&parent, &[ready(&parent, 1, &[]), ready(&parent, 2, &[]), ready(&parent, 5, said)]);
    assert_eq!(all(&[joins(1, 9), joins(6, 1)]).next, all(&[]).next);
    assert_eq!(all(&[revoked(1)]), all(&[]));
}

#[test]
fn somebody_is_always_waited_for() {
    let parent = voters(3);
    let mut leavers = [ready(&parent, 1, &[]), ready(&parent, 2, &[])];
    leavers.iter_mut().for_each(|c| c.ready.leave = true);
    let record = after(&parent, &leavers);
    assert_eq!(record.member(&id(3)).map(|m| (m.absent, m.expected)), Some((1, true)));
}

#[test]
fn the_revoked_go_and_stay_out() {
    let parent = voters(3);
    let all = [ready(&parent, 1, &[revoked(3)]), ready(&parent, 2, &[joins(6, 1)]), ready(&parent, 3, &[])];
    let record = after(&parent, &all);
    assert_eq!(flock(&record), [(1, true), (2, true), (6, false)]);
    assert_eq!(record.revoked, [Digest(id(3).0)]);
    let said = [ready(&record, 1, &[joins(3, 5)]), ready(&record, 2, &[]), ready(&record, 6, &[])];
    let later = after(&record, &said);
    assert!(later.member(&id(3)).is_none());
    assert_eq!(later.revoked, record.revoked);
}

#[test]
fn tickets_are_counted_once_a_record_and_revoked() {
    let mut parent = voters(4);
    let with = |joiner, fill| Statement { grant: digest(fill), ..joins(joiner, 1) };
    let contributions =
        |parent: &Record, said: [Statement; 2]| [ready(parent, 1, &said), ready(parent, 2, &[]), ready(parent, 3, &[])];
    let record = after(&parent, &contributions(&parent, [with(10, 0x61), with(11, 0x61)]));
    assert_eq!(record.grants, [GrantUse { grant: digest(0x61), uses: 1 }]);
    assert_eq!(record.next.members.len(), 5, "who checked the ticket knew of no other use in this record");
    let both = after(&parent, &contributions(&parent, [with(10, 0x62), with(11, 0x61)]));
    let uses: Vec<_> = both.grants.iter().map(|entry| (entry.grant, entry.uses)).collect();
    assert_eq!(uses, [(digest(0x61), 1), (digest(0x62), 1)]);
    let ticket = Statement { kind: StatementKind::Revoked, id: NodeId([0; 32]), incarnation: 0, grant: digest(0x61) };
    let gone = after(&parent, &contributions(&parent, [with(10, 0x61), ticket]));
    assert_eq!((gone.next.members.len(), &gone.revoked[..]), (4, &[digest(0x61)][..]));
    let named = |n: usize| {
        let mut bytes = [0xff; 32];
        bytes[..8].copy_from_slice(&(n as u64).to_be_bytes());
        Digest(bytes)
    };
    parent.grants = (0..GRANTS_MAX).map(|n| GrantUse { grant: named(n), uses: u32::MAX }).collect();
    let full = after(&parent, &contributions(&parent, [with(10, 0x61), with(11, 3)]));
    assert_eq!(full.next.members.len(), 4, "what cannot be counted admits nobody");
    assert_eq!(full.grants, parent.grants);
}

/// The contributions of two voters, some of which merge these lineages with this weight.
fn merging(parent: &Record, lineages: [Option<Digest>; 2], tokens: u64) -> [SignedReady; 2] {
    let mut contributions = [ready(parent, 1, &[]), ready(parent, 2, &[])];
    for (contribution, merges) in contributions.iter_mut().zip(lineages) {
        contribution.ready.merges = merges;
        contribution.ready.merged_tokens = merges.map_or(0, |_| tokens);
    }
    contributions
}

/// The record that follows from these contributions, if any does.
fn built(parent: &Record, contributions: &[SignedReady]) -> Option<Record> {
    commit(parent, parent.digest(), &sample::spec(), contributions, digest(3), digest(4))
}

#[test]
fn merged_lineages_are_listed_once() {
    let first = voters(2);
    let parent = after(&first, &merging(&first, [None, None], 0));
    assert_eq!(parent.next.merge_tokens, 2 * WHOLE * 128);
    let mut record = after(&parent, &merging(&parent, [Some(digest(0x52)), Some(digest(0x51))], 1));
    assert_eq!(record.merged, [digest(0x51), digest(0x52)]);
    assert_eq!(record.tokens, parent.tokens + 2 * WHOLE * 128, "a difference adds no tokens");
    assert_eq!(built(&record, &merging(&record, [Some(digest(0x51)), None], 1)), None, "it counts once");
    assert_eq!(built(&record, &merging(&record, [Some(record.lineage), None], 1)), None, "not into itself");
    for fill in (0..=255).filter(|fill| ![0x51, 0x52].contains(fill)).take(MERGED_MAX - 2) {
        record = after(&record, &merging(&record, [None, Some(digest(fill))], 1));
    }
    assert_eq!(record.merged.len(), MERGED_MAX);
    assert_eq!(built(&record, &merging(&record, [None, Some(digest(0xfe))], 1)), None, "no room");
}

#[test]
fn a_difference_weighs_no_more_than_the_commit_before_and_is_a_voters() {
    let mut first = voters(2);
    first.next.merge_tokens = 0;
    assert_eq!(built(&first, &merging(&first, [Some(digest(0x52)), None], 1)), None, "there is no commit yet");
    first.next.merge_tokens = 1;
    let mut parent = after(&first, &merging(&first, [Some(digest(0x51)), None], 1));
    let most = parent.next.merge_tokens;
    assert!(built(&parent, &merging(&parent, [Some(digest(0x52)), None], most)).is_some());
    assert_eq!(built(&parent, &merging(&parent, [Some(digest(0x52)), None], most + 1)), None);
    assert_eq!(built(&parent, &merging(&parent, [Some(digest(0x52)), None], 0)), None);
    let twice = [Some(digest(0x52)), Some(digest(0x52))];
    assert_eq!(built(&parent, &merging(&parent, twice, 1)), None, "two merge the same");
    parent.next.members[0].role = Role::Learner;
    assert_eq!(built(&parent, &merging(&parent, [Some(digest(0x52)), None], 1)), None, "a learner");
    let skipped = skip(&parent, parent.digest()).unwrap();
    assert_eq!(skipped.merge_limits(), parent.merge_limits());
}

#[test]
fn the_later_in_ring_order_of_two_that_merge_one_lineage_is_the_rival() {
    let ids = [id(1), id(2), id(3)];
    let parent = digest(9);
    let order = ring::order(&parent, ids);
    let rivals = |lineages: [u8; 3]| merging::rivals(&parent, order.iter().copied().zip(lineages.map(digest)));
    assert_eq!(rivals([1, 2, 3]), []);
    assert_eq!(rivals([1, 2, 1]), order[2..]);
    assert_eq!(rivals([1, 1, 1]), order[1..]);
    let backwards = [(order[1], digest(1)), (order[0], digest(1))];
    assert_eq!(merging::rivals(&parent, backwards.into_iter()), order[1..2]);
}

#[test]
fn leases_fit_the_speed_and_the_unused_rest_comes_back() {
    let parent = voters(3);
    let mut contributions = [ready(&parent, 1, &[]), ready(&parent, 2, &[]), ready(&parent, 3, &[])];
    for (contribution, step_us) in contributions.iter_mut().zip([50, 100, 400]) {
        contribution.ready.measured.step_us = step_us;
    }
    contributions[2].ready.samples = 56;
    let record = after(&parent, &contributions);
    let counts: Vec<u64> = record.next.members.iter().map(|member| member.lease.count).collect();
    assert_eq!(
        counts,
        [2 * WHOLE, 184, 8 * 8],
        "1 is twice as fast, 2 takes what 3 left (23 of 30), 3 is four times slower"
    );
    assert_eq!(record.next.members[1].lease.start, contributions[2].ready.start + 56);
    assert_eq!(record.cursor, parent.cursor + 2 * WHOLE + 64);
}

#[test]
fn contributions_that_do_not_fit_make_no_record() {
    let parent = voters(2);
    let good = [ready(&parent, 1, &[]), ready(&parent, 2, &[])];
    let made = |contributions: &[SignedReady]| {
        commit(&parent, parent.digest(), &sample::spec(), contributions, digest(3), digest(4)).is_some()
    };
    assert!(made(&good));
    assert!(!made(&[]));
    assert!(!made(&[good[1].clone(), good[0].clone()]));
    assert!(!made(&[good[0].clone(), good[0].clone()]));
    let broken = |change: fn(&mut SignedReady)| {
        let mut contributions = good.clone();
        change(&mut contributions[1]);
        !made(&contributions)
    };
    assert!(broken(|c| c.member = id(9)));
    assert!(broken(|c| c.ready.start += 1));
    assert!(broken(|c| c.ready.samples += 1));
    assert!(broken(|c| c.ready.samples = 0));
    assert!(broken(|c| c.ready.tokens = u64::MAX));
    assert!(broken(|c| c.ready.tokens = 0));
    assert!(broken(|c| c.ready.steps = 0));
    assert!(broken(|c| c.ready.steps = 31));
}

#[test]
fn a_skip_keeps_everything_for_the_next_try() {
    let parent = voters(3);
    let first = skip(&parent, parent.digest()).unwrap();
    let second = skip(&first, first.digest()).unwrap();
    for (record, before) in [(&first, &parent), (&second, &first)] {
        record.validate_shape().unwrap();
        record.validate_after(before).unwrap();
        assert_eq!((record.base, &record.next), (parent.digest(), &parent.next));
    }
    let last = Record { seq: u64::MAX, ..parent };
    assert_eq!(skip(&last, digest(1)), None);
}

/// Nodes under the incarnations that a record knows of them.
fn as_admitted(parent: &Record, members: &[NodeId]) -> Vec<(NodeId, u64)> {
    members.iter().map(|id| (*id, parent.member(id).map_or(1, |member| member.incarnation))).collect()
}

#[test]
fn a_fork_reads_elsewhere_and_keeps_its_voters() {
    let parent = voters(4);
    let forked = |members: &[u16]| {
        let members: Vec<NodeId> = members.iter().copied().map(id).collect();
        let record = fork(&parent, parent.digest(), &sample::spec(), &as_admitted(&parent, &members)).unwrap();
        record.validate_shape().unwrap();
        record.validate_after(&parent).unwrap();
        record
    };
    let (one, other) = (forked(&[3, 2, 99]), forked(&[4]));
    assert_eq!(flock(&one), [(2, true), (3, true)]);
    assert_ne!(one.lineage, other.lineage);
    for record in [&one, &other] {
        let start = record.next.members[0].lease.start;
        assert!(start >= FORK_AREA && start.is_multiple_of(FORK_AREA), "an area of its own: {start}");
        assert!(record.free.is_empty());
    }
    assert_ne!(one.next.members[0].lease, other.next.members[0].lease);
    assert_eq!(fork(&parent, parent.digest(), &sample::spec(), &[(id(99), 1)]), None);
    let mut learners = parent.clone();
    learners.next.members[2].role = Role::Learner;
    learners.next.members[3] =
        Member { role: Role::Learner, absent: 1, expected: false, ..parent.next.members[3].clone() };
    let record = fork(&learners, learners.digest(), &sample::spec(), &as_admitted(&learners, &[id(3), id(4)])).unwrap();
    assert_eq!(flock(&record), [(3, true), (4, true)], "nobody voted, now all do");
    assert_eq!(expected(&record), [id(3), id(4)]);
    let anew =
        fork(&parent, parent.digest(), &sample::spec(), &[(id(2), 99), as_admitted(&parent, &[id(3)])[0]]).unwrap();
    assert_eq!(flock(&anew), [(2, false), (3, true)], "who speaks from a new vote_state does not vote");
    assert_eq!(anew.next.members[0].incarnation, 99);
}

#[test]
fn forks_of_forks_go_on_when_all_areas_are_used_up() {
    let mut record = genesis_of(1);
    for _ in 0..1_500 {
        let next = fork(&record, record.digest(), &sample::spec(), &as_admitted(&record, &[id(1)])).unwrap();
        next.validate_after(&record).unwrap();
        record = next;
    }
    // Areas last for some hundred forks of forks; then samples are drawn from where the parent stopped.
    assert_eq!((record.seq, record.members().len()), (1_500, 1));
}

#[test]
fn a_large_flock_has_few_voters_and_a_limit() {
    let mut record = voters(VOTERS_MAX as u16);
    let mut next = 100;
    while record.next.members.len() < MEMBERS_MAX {
        let members: Vec<u16> = record.members().map(|m| number(&m)).collect();
        let mut contributions: Vec<_> = members.iter().map(|m| ready(&record, *m, &[])).collect();
        for contribution in &mut contributions[..8] {
            contribution.ready.statements = vec![joins(next, 1), joins(next + 1, 1)];
            next += 2;
        }
        record = after(&record, &contributions);
        assert_eq!(record.voters().count(), VOTERS_MAX);
    }
    assert!(crate::wire::encode_record(&record).len() <= crate::limits::RECORD_BYTES_MAX);
    let members: Vec<u16> = record.members().map(|m| number(&m)).collect();
    let leavers = members.iter().map(|m| {
        let mut ready = ready(&record, *m, &[joins(60_000, 1)]);
        ready.ready.leave = record.member(&id(*m)).is_some_and(|member| member.role == Role::Voter);
        ready
    });
    let changed = after(&record, &leavers.collect::<Vec<_>>());
    assert_eq!(changed.voters().count(), VOTERS_MAX, "others take the vacant seats");
    assert!(changed.voters().all(|voter| record.member(&voter.id).is_some_and(|m| m.role == Role::Learner)));
}

#[path = "cells_test.rs"]
mod cells;

#[path = "uplink_test.rs"]
mod uplink;

#[path = "tour_test.rs"]
mod tour;

#[path = "probation_test.rs"]
mod probation;
