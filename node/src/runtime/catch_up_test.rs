use super::super::sample_test::{commit, genesis, skip};
use super::*;

/// A commit after `parent` that has merged these lineages besides.
fn merging(parent: &Link, lineages: &[u8]) -> Link {
    let mut record = commit(parent, Digest([6; 32]));
    record.merged.extend(lineages.iter().map(|fill| Digest([*fill; 32])));
    record.merged.sort_unstable();
    Link { digest: record.digest(), record, certificate: None }
}

fn way(held: &Link, links: &[&Link]) -> Vec<(Digest, u64)> {
    let mut way = Way::default();
    links.iter().for_each(|link| way.reach(|| held.clone(), link));
    assert_eq!(way.reached.as_ref(), links.last().copied());
    way.merged
}

#[test]
fn a_node_that_catches_up_learns_of_each_merge_on_the_way_and_its_round() {
    let genesis = genesis();
    let first = merging(&genesis, &[3]);
    let second = merging(&first, &[]);
    let skipped = skip(&second, 2);
    let third = merging(&skipped, &[4, 2]);
    let lineage = |fill| Digest([fill; 32]);
    let round = third.record.round;
    assert_eq!(
        way(&genesis, &[&first, &second, &skipped, &third]),
        [(lineage(3), 1), (lineage(2), round), (lineage(4), round)]
    );
    assert_eq!(way(&first, &[&second, &skipped, &third]).len(), 2, "the first is not new to who holds it");
    assert_eq!(way(&genesis, &[&third]), [], "a snapshot does not say in which round");
    assert_eq!(way(&genesis, &[&skipped, &third]).len(), 2, "but what follows it does");
}

#[test]
fn a_fork_merges_nothing_by_being_one() {
    let genesis = genesis();
    let mut fork = skip(&genesis, 2);
    fork.record.kind = starling_protocol::record::RecordKind::Fork;
    fork.record.merged.push(genesis.record.lineage);
    fork.digest = fork.record.digest();
    let next = merging(&fork, &[]);
    assert_eq!(way(&genesis, &[&fork, &next]), []);
}
