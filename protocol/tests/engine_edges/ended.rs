//! A node without a seat, and the voters of its head: they have lost that head, and have ended the run elsewhere.

use crate::bench::{BOOT, ME, digest, id};
use crate::lineages::{STRANGER, asked, forked, goes, head, stands_at, way};
use starling_protocol::engine::io::{Claim, Output, Proven};
use starling_protocol::message::{Head, Message, Phase};
use starling_protocol::record::Role;

/// The voters of a node's head have lost that head, and have ended the run in a fork of an earlier record, or in the
/// losing one of two forks. They do not come back. A node without a seat in its head goes to them for the word of a
/// quorum of them, and for no other. Found by the simulator (seed 8458).
#[test]
pub fn only_a_quorum_that_has_ended_elsewhere_calls_a_node_there() {
    let (outside, inside) = ([2, 3, 4], [ME, 2, 3]);
    // The voters of the head, the peers that say that they stand elsewhere, their phase, and whether the node follows.
    let cases: [(&[u8], &[u8], Phase, bool); 6] = [
        (&outside, &[2, 3], Phase::Finished, true),
        (&outside, &[2], Phase::Finished, false),
        (&outside, &[2, 7, 8], Phase::Finished, false),
        (&outside, &[7, 8, STRANGER], Phase::Finished, false),
        (&outside, &[2, 3, 4], Phase::Training, false),
        (&inside, &[2, 3], Phase::Finished, false),
    ];
    let elsewhere = digest(0x23);
    let left = (way(&[(digest(0x11), 5)]), way(&[(digest(0x11), 3), (elsewhere, 9)]));
    let lost = (forked(0x22, 9, 2), forked(0x23, 9, 1));
    for (voters, peers, phase, follows) in cases {
        for (mine, theirs) in [&left, &lost] {
            let mut bench = stands_at(mine.clone(), &voters.iter().map(|n| (*n, Role::Voter)).collect::<Vec<_>>());
            let there = Head { phase, ..head(elsewhere, 9, 1 << 40) };
            let mut outputs = bench.claim(STRANGER, &head(elsewhere, 9, 1 << 40), theirs);
            bench.wait(4_000_000);
            for peer in peers {
                bench.reconnect(*peer);
                outputs.extend(bench.say(*peer, &Message::Head(there.clone())));
            }
            outputs.extend(bench.wait(2_000_000));
            assert_eq!(goes(&outputs), follows, "{mine:?}: {peers:?} of {voters:?} in {phase:?}");
        }
    }
}

/// A voter may come to the end of its lineage long after another one. The head there is then proven again. A node that
/// has just begun waits for peers that have gone on from its own head.
#[test]
fn a_quorum_that_has_ended_one_after_the_other_calls_a_node_as_well() {
    let mut bench = stands_at(way(&[(digest(0x11), 5)]), &[(2, Role::Voter), (3, Role::Voter), (4, Role::Voter)]);
    let end = Head { phase: Phase::Finished, ..head(digest(0x23), 9, 500) };
    let there = way(&[(digest(0x11), 3), (digest(0x23), 9)]);
    bench.greet(2, BOOT);
    let mut outputs = bench.claim(2, &end, &there);
    for _ in 0..40 {
        outputs.extend(bench.wait(1_000_000));
        outputs.extend(bench.say(2, &Message::Head(end.clone())));
    }
    assert!(!goes(&outputs));
    bench.greet(3, BOOT);
    let outputs = bench.say(3, &Message::Head(end.clone()));
    assert_eq!(asked(&outputs), 1);
    let by = if outputs.iter().any(|o| matches!(o, Output::Prove { peer, .. } if *peer == id(2))) { 2 } else { 3 };
    let proven = Proven { record: end.record, tokens: end.tokens, ancestry: there.clone(), voters: Vec::new() };
    assert!(goes(&bench.answer(by, &end, Claim::Proven(proven))));

    let mut bench = stands_at(way(&[(digest(0x11), 5)]), &[(2, Role::Voter)]);
    bench.greet(2, BOOT);
    let early = bench.claim(2, &end, &there);
    assert!(!goes(&early) && !goes(&bench.wait(3_000_000)));
    assert!(goes(&bench.wait(1_500_000)));
}
