//! The difference of a lineage that gave way: when it is offered, and which offers of others are refused.

use crate::bench::{Bench, commits, refusals, sent};
use crate::fixture::{digest, id, spec, voters};
use starling_protocol::difference::Difference;
use starling_protocol::engine::io::{Input, Merge, Notice, Output, Refusal};
use starling_protocol::message::{Message, Ready};
use starling_protocol::run::{OuterSpec, SyncMode};

/// The lineage that gave way.
const LOSER: u8 = 0x44;

/// A flock of four in which one record is committed by members whose norm is known.
fn flock() -> Bench {
    let mut bench = Bench::flock(4);
    bench.norm = 2.0;
    bench.commit();
    assert_eq!(bench.record().next.merge_tokens, 4 * 16);
    bench
}

fn difference(tokens: u64, place: u32) -> Input {
    Input::Difference { difference: Difference { lineage: digest(LOSER), tokens, place, of: 2 } }
}

fn asked(outputs: &[Output]) -> Option<Merge> {
    outputs.iter().find_map(|output| if let Output::Merge { merge, .. } = output { Some(*merge) } else { None })
}

/// The READY of this node, with the weight of the difference that it merges.
fn offered(bench: &Bench, outputs: &[Output]) -> Option<(Option<u64>, Ready)> {
    let mut messages = sent(&bench.spec, outputs).into_iter().map(|(_, message)| message);
    messages.find_map(|message| match message {
        Message::Ready(ready) => Some((ready.merges.map(|_| ready.merged_tokens), ready)),
        _ => None,
    })
}

fn mixed(bench: &Bench, payload: Option<u8>) -> Input {
    let Ready { round, base, .. } = bench.ready(1);
    Input::Mixed { round, base, made: payload.map(|n| (digest(n), 3.0f32.to_bits())) }
}

#[test]
fn a_difference_is_offered_in_its_turn_and_dropped_when_it_is_listed() {
    let mut bench = flock();
    // In round 2 it is the turn of place 0 of 2.
    bench.feed(difference(1_000, 0));
    let outputs = bench.trained();
    let norm_bits = 2.0f32.to_bits();
    assert_eq!(asked(&outputs), Some(Merge { lineage: digest(LOSER), tokens: 64, norm_bits }), "half, at most 64");
    assert_eq!(offered(&bench, &outputs), None, "it waits for the mixture");
    let input = mixed(&bench, Some(0x77));
    let outputs = bench.feed(input);
    let (merged, ready) = offered(&bench, &outputs).expect("it says READY");
    assert_eq!((merged, ready.payload, ready.tokens), (Some(64), digest(0x77), 16));
    assert_eq!(ready.measured.norm_bits, 3.0f32.to_bits(), "of what it offers");
    let mut reduce = Vec::new();
    for peer in [2, 3, 4] {
        let ready = bench.ready(peer);
        reduce.extend(bench.say(peer, &Message::Ready(ready)));
    }
    let weights = reduce.iter().find_map(|output| match output {
        Output::Reduce { members, .. } => Some(members.iter().map(|m| (m.member, m.stated.tokens)).collect::<Vec<_>>()),
        _ => None,
    });
    let mut weights = weights.expect("all are READY");
    weights.sort_unstable();
    assert_eq!(weights, [(id(1), 80), (id(2), 16), (id(3), 16), (id(4), 16)]);
    let key = bench.running();
    let outputs = bench.decide(key);
    assert_eq!(commits(&outputs).len(), 1);
    assert_eq!(bench.record().merged, [digest(LOSER)]);
    assert!(outputs.contains(&Output::DropDifference { lineage: digest(LOSER) }), "{outputs:?}");
    assert!(outputs.contains(&Output::Notice(Notice::Merged { lineage: digest(LOSER), round: 2 })), "{outputs:?}");
    bench.commit();
    assert_eq!(asked(&bench.trained()), None, "its turn again, and nothing is left");
}

#[test]
fn without_its_turn_a_norm_or_a_whole_difference_the_contribution_is_plain() {
    let mut bench = flock();
    bench.feed(difference(1_000, 1));
    let outputs = bench.trained();
    assert_eq!(asked(&outputs), None, "round 2 is another's turn");
    assert_eq!(offered(&bench, &outputs).expect("READY").0, None);

    let mut bench = Bench::flock(4);
    bench.commit();
    bench.feed(difference(1_000, 0));
    assert_eq!(asked(&bench.trained()), None, "nobody's norm is known");

    let mut bench = flock();
    bench.feed(difference(1, 0));
    assert_eq!(asked(&bench.trained()), None, "half a token is none");

    let mut bench = flock();
    bench.feed(difference(1_000, 0));
    assert!(asked(&bench.trained()).is_some());
    let input = mixed(&bench, None);
    let outputs = bench.feed(input);
    let (merged, ready) = offered(&bench, &outputs).expect("READY");
    assert_eq!((merged, ready.payload), (None, digest(1)), "what it has trained itself");
}

#[test]
fn a_merge_that_is_not_allowed_is_refused_by_name() {
    let refusal = [&Refusal::Malformed { what: "ready that merges what it may not" }];
    let bench = flock;
    let most = bench().record().next.merge_tokens;
    let merging = |bench: &Bench, lineage, merged_tokens| {
        Message::Ready(Ready { merges: Some(lineage), merged_tokens, ..bench.ready(2) })
    };
    let mut good = bench();
    let message = merging(&good, digest(LOSER), most);
    assert!(refusals(&good.say(2, &message)).is_empty());
    let mut heavy = bench();
    let message = merging(&heavy, digest(LOSER), most + 1);
    assert_eq!(refusals(&heavy.say(2, &message)), refusal);
    let mut itself = bench();
    let message = merging(&itself, itself.record().lineage, 1);
    assert_eq!(refusals(&itself.say(2, &message)), refusal);
}

#[test]
fn nothing_is_merged_where_every_step_is_averaged() {
    let mut spec = spec();
    (spec.sync.mode, spec.inner.steps, spec.outer) = (SyncMode::EveryStep, 1, OuterSpec::unused());
    let mut bench = Bench::flock_of(spec, &voters(4));
    bench.norm = 2.0;
    bench.commit();
    assert!(bench.record().next.merge_tokens > 0, "its record would allow it");
    let outputs = bench.feed(difference(1_000, 0));
    assert_eq!(outputs, [Output::DropDifference { lineage: digest(LOSER) }]);
    let ready = Ready { merges: Some(digest(LOSER)), merged_tokens: 1, ..bench.ready(2) };
    let refusal = [&Refusal::Malformed { what: "ready that merges what it may not" }];
    assert_eq!(refusals(&bench.say(2, &Message::Ready(ready))), refusal);
}

#[test]
fn one_of_two_members_that_merge_the_same_lineage_says_its_ready_anew() {
    for other in [2, 3, 4] {
        let mut bench = flock();
        bench.feed(difference(1_000, 0));
        bench.trained();
        let input = mixed(&bench, Some(0x77));
        bench.feed(input);
        let ready = Ready { merges: Some(digest(LOSER)), merged_tokens: 5, ..bench.ready(other) };
        let order = starling_protocol::ring::order(&bench.record().digest(), [id(1), id(other)]);
        let outputs = bench.say(other, &Message::Ready(ready));
        let gives_way = order[0] != id(1);
        assert_eq!(offered(&bench, &outputs).map(|(merged, _)| merged), gives_way.then_some(None));
        // The member that goes first waits until the other has done the same.
        for peer in [2, 3, 4].into_iter().filter(|peer| *peer != other) {
            let ready = bench.ready(peer);
            bench.say(peer, &Message::Ready(ready));
        }
        let members = bench.engine.view().attempt.map(|(_, members)| members.len());
        assert_eq!(members, gives_way.then_some(4));
    }
}
