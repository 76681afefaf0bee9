use super::*;
use crate::limits::{TOUR_MAX, VOTERS_MAX};
use crate::wire::sample::{digest, member, node, record};
use crate::wire::{decode_record, encode_record, record_digest};
use proptest::prelude::*;

/// Digests in ascending order, more than there are bytes.
fn numbered(n: usize) -> Digest {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&(n as u64).to_be_bytes());
    Digest(bytes)
}

/// A change to a record, with its description.
type Change<'a> = (&'a str, &'a dyn Fn(&mut Record));

fn refuses(good: &Record, changes: &[Change]) {
    assert_eq!(decode_record(&encode_record(good)).as_ref(), Ok(good));
    for (what, change) in changes {
        let mut record = good.clone();
        change(&mut record);
        assert!(record.validate_shape().is_err(), "{what}");
        assert!(decode_record(&encode_record(&record)).is_err(), "{what}");
    }
}

fn genesis() -> Record {
    let founder = Member { served: 0, ..member(0x10, 1_440) };
    let mut genesis = crate::sample::genesis(&crate::sample::spec(), digest(2), digest(6), vec![founder]);
    genesis.next.ring = vec![0];
    genesis
}

/// A SKIP or FORK after the sample.
fn unchanged(kind: RecordKind) -> Record {
    let parent = record();
    Record {
        kind,
        lineage: if kind == RecordKind::Fork { digest(0x22) } else { parent.lineage },
        seq: 4,
        parent: parent.digest(),
        base: parent.digest(),
        contributors: vec![],
        update: Digest::default(),
        ..parent
    }
}

#[test]
fn a_commit_is_checked() {
    refuses(
        &record(),
        &[
            ("a genesis record has no parent", &|r| r.kind = RecordKind::Genesis),
            ("a skip has no contributors", &|r| r.kind = RecordKind::Skip),
            ("seq 0", &|r| (r.seq, r.round) = (0, 0)),
            ("more rounds than records", &|r| r.round = 4),
            ("round 0", &|r| r.round = 0),
            ("no parent", &|r| r.parent = Digest::default()),
            ("a base besides itself", &|r| r.base = digest(1)),
            ("nobody contributed", &|r| r.contributors.clear()),
            ("contributors out of order", &|r| r.contributors.reverse()),
            ("a contributor twice", &|r| r.contributors[1].member = node(0x10)),
            ("no tokens", &|r| r.contributors[0].tokens = 0),
            ("tokens beyond the sum", &|r| r.contributors[0].tokens = u64::MAX),
            ("no samples", &|r| r.contributors[0].samples = 0),
            ("no steps", &|r| r.contributors[0].steps = 0),
            ("endless steps", &|r| r.contributors[0].steps = INNER_STEPS_MAX + 1),
            ("trained beyond the cursor", &|r| r.contributors[0].start = 1_681),
            ("trained beyond 2^64", &|r| r.contributors[0].start = u64::MAX),
            ("fewer tokens than contributed", &|r| r.tokens = 61_439),
        ],
    );
}

#[test]
fn an_amendment_is_the_next_one_and_the_settings_follow_from_it() {
    let (parent, amended) = (record(), crate::wire::sample::amended());
    assert_eq!(decode_record(&encode_record(&amended)).as_ref(), Ok(&amended));
    let skip = |r: &mut Record| *r = Record { amended: r.amended.clone(), ..unchanged(RecordKind::Skip) };
    refuses(&amended, &[("a skip amends nothing", &skip)]);
    let after = |change: &dyn Fn(&mut Record)| {
        let mut child = crate::sample::commit(&parent, 1, parent.next.members.clone());
        (child.amended, child.next.settings) = (amended.amended.clone(), amended.next.settings);
        change(&mut child);
        child.validate_after(&parent)
    };
    // The first round that it may be in force in is 6, and the record is that of round 4.
    assert!(after(&|_| {}).is_err(), "it is too early");
    let now = |r: &mut Record| {
        let amendment = Amendment { from: 0, ..r.amended.clone().unwrap() };
        r.next.settings = Settings::default().after(&amendment, &r.run);
        r.amended = Some(amendment);
    };
    assert_eq!(after(&now), Ok(()));
    let bad: [Change; 4] = [
        ("settings without an amendment", &|r| r.amended = None),
        ("an amendment without settings", &|r| r.next.settings = Settings::default()),
        ("other settings", &|r| r.next.settings.changes.rounds = Some(1)),
        ("another number", &|r| r.amended.as_mut().unwrap().number = 2),
    ];
    for (what, change) in bad {
        let both = |r: &mut Record| {
            now(r);
            change(r);
        };
        assert!(after(&both).is_err(), "{what}");
    }
    let mut genesis = genesis();
    genesis.next.settings = amended.next.settings;
    assert!(genesis.validate_shape().is_err());
}

#[test]
fn the_lists_that_a_lineage_carries_along_are_checked() {
    refuses(
        &record(),
        &[
            ("merged twice", &|r| r.merged = vec![digest(1); 2]),
            ("merged out of order", &|r| r.merged = vec![digest(2), digest(1)]),
            ("too many merged", &|r| r.merged = (0..=MERGED_MAX as u8).map(digest).collect()),
            ("a ticket twice", &|r| r.grants.push(r.grants[0].clone())),
            ("too many tickets", &|r| {
                r.grants = (0..=GRANTS_MAX).map(|n| GrantUse { grant: numbered(n), uses: 1 }).collect();
            }),
            ("revoked out of order", &|r| r.revoked = vec![digest(2), digest(1)]),
            ("too many revoked", &|r| r.revoked = (0..=GRANTS_MAX).map(numbered).collect()),
        ],
    );
}

#[test]
fn members_and_leases_are_checked() {
    refuses(
        &record(),
        &[
            ("no steps", &|r| r.next.inner_steps = 0),
            ("endless steps", &|r| r.next.inner_steps = INNER_STEPS_MAX + 1),
            ("no members", &|r| r.next.members.clear()),
            ("a ring with somebody twice", &|r| r.next.ring = vec![1, 1]),
            ("a ring with a stranger", &|r| r.next.ring = vec![0, 2]),
            ("too long a ring", &|r| r.next.ring = (0..=TOUR_MAX as u16).collect()),
            ("members out of order", &|r| r.next.members.reverse()),
            ("a member twice", &|r| r.next.members[1].id = node(0x10)),
            ("no voter", &|r| r.next.members[0].role = Role::Learner),
            ("leases overlap", &|r| r.next.members[1].lease.start = 1_679),
            ("an empty lease", &|r| r.next.members[1].lease.count = 0),
            ("a lease beyond the cursor", &|r| r.next.members[1].lease.count = 241),
            ("a lease beyond 2^64", &|r| r.next.members[1].lease.start = u64::MAX),
            ("the cursor below a lease", &|r| r.cursor = 1_919),
            ("an empty free span", &|r| r.free[0].count = 0),
            ("a free span in a lease", &|r| r.free[0].start = 1_440),
            ("a free span beyond the cursor", &|r| r.free[0].start = 1_905),
            ("free spans that touch", &|r| r.free.push(Span { start: 496, count: 4 })),
            ("free spans out of order", &|r| r.free.push(Span { start: 0, count: 4 })),
            ("too many free spans", &|r| {
                r.free = (0..=FREE_SPANS_MAX as u64).map(|i| Span { start: 2 * i, count: 1 }).collect();
            }),
        ],
    );
    let mut crowd = record();
    crowd.next.members = (0..=VOTERS_MAX as u8).map(|i| member(i, 1_440 + 240 * u64::from(i))).collect();
    crowd.cursor = 1 << 20;
    assert!(crowd.validate_shape().is_err(), "one voter too many");
    crowd.next.members[5].role = Role::Learner;
    assert_eq!(crowd.validate_shape(), Ok(()));
}

#[test]
fn a_genesis_record_is_bare() {
    refuses(
        &genesis(),
        &[
            ("seq", &|r| r.seq = 1),
            ("round", &|r| r.round = 1),
            ("parent", &|r| r.parent = digest(1)),
            ("base", &|r| r.base = digest(1)),
            ("update", &|r| r.update = digest(1)),
            ("tokens", &|r| r.tokens = 1),
            ("steps", &|r| r.steps = 1),
            ("costs of rounds", &|r| r.next.overheads[0] = 1),
            ("contributors", &|r| r.contributors = record().contributors),
            ("merged", &|r| r.merged = record().merged),
            ("limits of merges", &|r| r.next.merge_tokens = 1),
        ],
    );
}

#[test]
fn records_that_change_no_state_are_checked() {
    for kind in [RecordKind::Skip, RecordKind::Fork] {
        refuses(
            &unchanged(kind),
            &[
                ("seq 0", &|r| (r.seq, r.round) = (0, 0)),
                ("more rounds than records", &|r| r.round = 5),
                ("no parent", &|r| r.parent = Digest::default()),
                ("no base", &|r| r.base = Digest::default()),
                ("an update", &|r| r.update = digest(1)),
                ("contributors", &|r| r.contributors = record().contributors),
                ("members out of order", &|r| r.next.members.reverse()),
                ("a member of rounds to come", &|r| r.next.members[1].since = 4),
                ("more contributions than rounds", &|r| r.next.members[1].served = 3),
            ],
        );
    }
}

/// `child` can stand after `parent`, and each change forbids it.
fn cannot_follow(parent: &Record, child: &Record, changes: &[Change]) {
    assert_eq!(child.validate_after(parent), Ok(()));
    for (what, change) in changes {
        let mut record = child.clone();
        change(&mut record);
        assert!(record.validate_after(parent).is_err(), "{what}");
    }
}

#[test]
fn a_commit_follows_its_parent() {
    let parent = record();
    let mut child = record();
    child.seq += 1;
    child.round += 1;
    child.parent = parent.digest();
    child.tokens = parent.tokens + 2 * 30_720;
    child.steps = parent.steps + 30;
    child.next.overheads = [420_000, 400_000, 0];
    for (contributor, member) in child.contributors.iter_mut().zip(&parent.next.members) {
        contributor.start = member.lease.start;
    }
    child.contributors[1].samples = 200;
    child.next.members.iter_mut().for_each(|member| member.served += 1);
    child.next.members.push(Member { since: 4, ..member(0x30, 0) });
    // It was left out of a round that may have had twice as many steps.
    child.contributors[1].steps = 60;
    cannot_follow(
        &parent,
        &child,
        &[
            ("another kind", &|r| r.kind = RecordKind::Genesis),
            ("another run", &|r| r.run = digest(9)),
            ("another lineage", &|r| r.lineage = digest(9)),
            ("a gap", &|r| r.seq += 1),
            ("another parent", &|r| r.parent = digest(9)),
            ("a round too many", &|r| r.round += 1),
            ("the round before", &|r| r.round -= 1),
            ("the cursor goes back", &|r| r.cursor -= 1),
            ("a stranger contributed", &|r| r.contributors[0].member = node(0x11)),
            ("from elsewhere in the lease", &|r| r.contributors[0].start += 1),
            ("from another's lease", &|r| r.contributors[0].start = 1_680),
            ("beyond the lease", &|r| r.contributors[0].samples += 1),
            ("too many steps", &|r| r.contributors[0].steps = 31),
            ("too many of one that was left out", &|r| r.contributors[1].steps = 61),
            ("tokens from nowhere", &|r| r.tokens += 1),
            ("steps from nowhere", &|r| r.steps += 1),
            ("another cost of the round", &|r| r.next.overheads[0] += 1),
            ("another cost of the round before", &|r| r.next.overheads[1] += 1),
            ("more weight for merges", &|r| r.next.merge_tokens += 1),
            ("longer merges", &|r| r.next.merge_norm_bits += 1),
            ("a merged lineage less", &|r| r.merged.clear()),
            ("a contribution that is not counted", &|r| r.next.members[1].served -= 1),
            ("one that was not made", &|r| r.next.members[2].served += 1),
            ("a member that came earlier than it did", &|r| r.next.members[1].since -= 1),
            ("one that is let in with time behind it", &|r| r.next.members[2].since -= 1),
            ("one that says to have founded", &|r| r.next.members[2].since = 0),
        ],
    );
}

#[test]
fn a_skip_follows_its_parent() {
    cannot_follow(
        &record(),
        &unchanged(RecordKind::Skip),
        &[
            ("another lineage", &|r| r.lineage = digest(9)),
            ("a gap", &|r| r.seq += 1),
            ("another parent", &|r| r.parent = digest(9)),
            ("a round more", &|r| r.round += 1),
            ("tokens", &|r| r.tokens += 1),
            ("steps", &|r| r.steps += 1),
            ("another state", &|r| r.state_root = digest(9)),
            ("another base", &|r| r.base = digest(9)),
            ("a member less", &|r| r.next.members.truncate(1)),
            ("other settings", &|r| r.next.overheads[0] += 1),
            ("a free span less", &|r| r.free.clear()),
            ("a merged lineage more", &|r| r.merged.push(digest(0x52))),
        ],
    );
    let skip = unchanged(RecordKind::Skip);
    let again = Record { seq: 5, parent: skip.digest(), ..skip.clone() };
    cannot_follow(&skip, &again, &[("the skip as base", &|r| r.base = skip.digest())]);
}

#[test]
fn a_fork_follows_its_parent() {
    let mut fork = unchanged(RecordKind::Fork);
    fork.next.members.truncate(1);
    fork.free.clear();
    fork.merged = vec![record().lineage, digest(0x51)];
    (fork.next.merge_tokens, fork.next.merge_norm_bits) = (0, 0);
    cannot_follow(
        &record(),
        &fork,
        &[
            ("the same lineage", &|r| r.lineage = record().lineage),
            ("a round more", &|r| r.round += 1),
            ("tokens", &|r| r.tokens -= 1),
            ("steps", &|r| r.steps -= 1),
            ("other inner steps", &|r| r.next.inner_steps += 1),
            ("other costs of rounds", &|r| r.next.overheads[0] += 1),
            ("another state", &|r| r.state_root = digest(9)),
            ("another base", &|r| r.base = digest(9)),
            ("the cursor goes back", &|r| r.cursor -= 1),
            ("without the lineage that it left", &|r| r.merged = record().merged),
            ("with another", &|r| r.merged.push(digest(0x52))),
            ("with weight for merges", &|r| r.next.merge_tokens = 1),
            ("with somebody new", &|r| r.next.members[0].id = node(0x11)),
            ("with a member that has served for longer", &|r| r.next.members[0].served += 1),
        ],
    );
}

#[test]
fn the_base_is_the_record_that_made_the_state() {
    let (commit, skip) = (record(), unchanged(RecordKind::Skip));
    assert_eq!(commit.base_or(commit.digest()), commit.digest());
    assert_eq!(skip.base_or(skip.digest()), commit.digest());
    let changes = [genesis(), commit, skip, unchanged(RecordKind::Fork)].map(|r| r.changes_state());
    assert_eq!(changes, [true, true, false, false]);
}

#[test]
fn members_and_leases_are_found() {
    let record = record();
    assert_eq!(record.members().collect::<Vec<_>>(), [node(0x10), node(0x20)]);
    assert_eq!(record.voters().map(|voter| voter.id).collect::<Vec<_>>(), [node(0x10)]);
    assert_eq!(record.lease_of(&node(0x20)).map(|lease| lease.start), Some(1_680));
    assert_eq!(record.lease_of(&node(0x21)), None);
    assert_eq!((record.member_index(&node(0x20)), record.member_index(&node(0))), (Some(1), None));
    assert_ne!(lineage(&digest(1), &node(2), 3), lineage(&digest(1), &node(2), 4));
}

#[test]
fn cells_are_checked() {
    let mut large = record();
    let seat = |n: usize| Member {
        id: NodeId(numbered(n).0),
        role: if n < VOTERS_MAX { Role::Voter } else { Role::Learner },
        lease: Span { start: n as u64, count: 1 },
        cell: Cell::at(n / 32, n % 32),
        ..member(0x10, 0)
    };
    large.next.members = (0..64).map(seat).collect();
    large.free.clear();
    refuses(
        &large,
        &[
            ("one row for 64", &|r| r.next.members.iter_mut().for_each(|m| m.cell = Cell::default())),
            ("two in one cell", &|r| r.next.members[40].cell = r.next.members[41].cell),
            ("a cell beyond its row", &|r| r.next.members[40].cell = Cell::at(1, 32)),
            ("a voter in the second row", &|r| r.next.members[63].role = Role::Voter),
            ("three rows", &|r| r.next.members[63].cell = Cell::at(2, 0)),
            ("two rows for 61", &|r| {
                r.next.members.retain(|m| !(29..32).contains(&m.cell.column()) || m.cell.row() == 0)
            }),
        ],
    );
    let mut small = record();
    small.next.members[1].cell = Cell::at(0, 1);
    assert!(small.validate_shape().is_err(), "a cell in a flock of one row");
}

proptest! {
    #[test]
    fn records_round_trip(
        ids in prop::collection::btree_set(any::<[u8; 32]>(), 1..64),
        numbers: [u32; 4],
        bytes: [u8; 32],
        cut: prop::sample::Index,
    ) {
        let ids: Vec<NodeId> = ids.into_iter().map(NodeId).collect();
        let tokens = 1 + u64::from(numbers[0]);
        let contributor = |member: &NodeId| Contributor {
            member: *member,
            ready: Digest(bytes),
            start: numbers[2].into(),
            samples: 1 + u64::from(numbers[3]),
            tokens,
            steps: 1 + numbers[1] % INNER_STEPS_MAX,
            loss_q16: numbers[2],
            measured: Measured { step_us: numbers[0], upload_kbps: numbers[1], reduce_us: numbers[2], overhead_us: 0, norm_bits: 0 },
        };
        let mut pool = crate::lease::Pool::new(1 << 40, &record().free);
        let member = |(at, id): (usize, &NodeId)| Member {
            id: *id,
            incarnation: u64::from_le_bytes(bytes[..8].try_into().unwrap()),
            role: if at < VOTERS_MAX { Role::Voter } else { Role::Learner },
            absent: bytes[8],
            expected: bytes[9] > 99,
            lease: pool.take(1 + numbers[1] % 99, 8).unwrap(),
            upload_kbps: numbers[3],
            since: u64::from(numbers[0] % 4),
            served: 0,
            cell: Cell::default(),
        };
        let members = ids.iter().enumerate().map(member).collect();
        let (cursor, free) = pool.into_parts();
        let contributors: Vec<_> = ids[..1 + cut.index(ids.len())].iter().map(contributor).collect();
        let tokens = tokens * contributors.len() as u64;
        let ring = (0..ids.len() as u16).rev().collect();
        let next = NextRound { members, ring, ..record().next };
        let record = Record { contributors, tokens, cursor, free, next, ..record() };
        let encoded = encode_record(&record);
        prop_assert_eq!(record_digest(&encoded), record.digest());
        prop_assert_eq!(decode_record(&encoded), Ok(record));
    }
}

#[test]
fn members_meet_within_their_row_those_that_the_record_expects() {
    let mut flock = genesis();
    let ids: Vec<NodeId> = (1..=6).map(|n| node(16 * n)).collect();
    flock.next.members = crate::sample::voters(ids.iter().copied(), 1, 0, 16);
    let all = |flock: &Record, me: usize| flock.gossip_of(&ids[me]).collect::<Vec<_>>();
    assert_eq!(all(&flock, 2), ids, "one row");
    for (place, member) in flock.next.members.iter_mut().enumerate() {
        member.cell = Cell::at(place % 2, place / 2);
    }
    assert_eq!(all(&flock, 2), [ids[0], ids[2], ids[4]]);
    flock.next.members[4].expected = false;
    assert_eq!(all(&flock, 0), [ids[0], ids[2]]);
    assert_eq!(flock.gossip_of(&node(0xee)).count(), 0, "no member");
}
