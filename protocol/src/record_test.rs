use super::*;
use crate::wire::sample::{digest, node, record};
use crate::wire::{decode_record, encode_record, record_digest};
use proptest::prelude::*;

#[test]
fn shapes_are_checked() {
    let refused = |change: &dyn Fn(&mut Record)| {
        let mut record = record();
        change(&mut record);
        assert!(decode_record(&encode_record(&record)).is_err_and(|e| e.reason() == "invalid"), "{record:?}");
    };
    refused(&|r| r.kind = RecordKind::Genesis);
    refused(&|r| r.seq = 0);
    refused(&|r| r.round = 4);
    refused(&|r| r.parent = Digest::default());
    refused(&|r| r.contributors.clear());
    refused(&|r| r.contributors.reverse());
    refused(&|r| r.contributors[0].tokens = 0);
    refused(&|r| r.contributors[0].tokens = u64::MAX);
    refused(&|r| r.tokens = 61_439);
    refused(&|r| r.cursor = 1_919);
    refused(&|r| r.next.inner_steps = 0);
    refused(&|r| r.next.members.reverse());
    refused(&|r| r.next.members[1].start = 1_679);
    refused(&|r| r.next.members[1].count = 0);
    refused(&|r| r.next.members[1].start = u64::MAX);
}

fn genesis() -> Record {
    Record {
        seq: 0,
        parent: Digest::default(),
        kind: RecordKind::Genesis,
        round: 0,
        contributors: vec![],
        update: Digest::default(),
        tokens: 0,
        ..record()
    }
}

#[test]
fn a_genesis_record_is_bare() {
    assert_eq!(genesis().validate_shape(), Ok(()));
    let refused = |change: &dyn Fn(&mut Record)| {
        let mut record = genesis();
        change(&mut record);
        assert!(matches!(record.validate_shape(), Err(ShapeError::Rule { .. })), "{record:?}");
    };
    refused(&|r| r.seq = 1);
    refused(&|r| r.round = 1);
    refused(&|r| r.parent = digest(1));
    refused(&|r| r.update = digest(1));
    refused(&|r| r.tokens = 1);
    refused(&|r| r.contributors = record().contributors);
}

#[test]
fn a_chain_is_checked_link_by_link() {
    let parent = record();
    let mut child = record();
    child.seq += 1;
    child.round += 1;
    child.parent = parent.digest();
    child.tokens = parent.tokens + 2 * 30_720;
    assert_eq!(child.validate_after(&parent), Ok(()));
    let refused = |change: &dyn Fn(&mut Record)| {
        let mut record = child.clone();
        change(&mut record);
        assert!(record.validate_after(&parent).is_err(), "{record:?}");
    };
    refused(&|r| r.kind = RecordKind::Genesis);
    refused(&|r| r.run = digest(9));
    refused(&|r| r.lineage = digest(9));
    refused(&|r| r.seq += 1);
    refused(&|r| r.parent = digest(9));
    refused(&|r| r.round += 1);
    refused(&|r| r.cursor -= 1);
    refused(&|r| r.contributors[0].member = node(0x11));
    refused(&|r| r.contributors[0].steps = 31);
    refused(&|r| r.tokens += 1);
}

#[test]
fn members_and_leases_are_found() {
    let record = record();
    assert_eq!(record.members().collect::<Vec<_>>(), [node(0x10), node(0x20)]);
    assert_eq!(record.lease_of(&node(0x20)).map(|lease| lease.start), Some(1_680));
    assert_eq!(record.lease_of(&node(0x21)), None);
    assert_ne!(lineage(&digest(1), &node(2), 3), lineage(&digest(1), &node(2), 4));
}

proptest! {
    #[test]
    fn records_round_trip(
        ids in prop::collection::btree_set(any::<[u8; 32]>(), 1..=MEMBERS_MAX),
        numbers: [u32; 4],
        bytes: [u8; 32],
        cut: prop::sample::Index,
    ) {
        let ids: Vec<NodeId> = ids.into_iter().map(NodeId).collect();
        let tokens = 1 + u64::from(numbers[0]);
        let contributor = |member: &NodeId| Contributor {
            member: *member,
            ready: Digest(bytes),
            tokens,
            steps: 1 + numbers[1] % INNER_STEPS_MAX,
            loss_q16: numbers[2],
        };
        let (members, cursor) = crate::lease::split(numbers[3].into(), ids.clone(), tokens).unwrap();
        let contributors: Vec<_> = ids[..1 + cut.index(ids.len())].iter().map(contributor).collect();
        let tokens = tokens * contributors.len() as u64;
        let next = NextRound { members, ..record().next };
        let record = Record { contributors, tokens, cursor, next, ..record() };
        let encoded = encode_record(&record);
        prop_assert_eq!(record_digest(&encoded), record.digest());
        prop_assert_eq!(decode_record(&encoded), Ok(record));
    }
}
