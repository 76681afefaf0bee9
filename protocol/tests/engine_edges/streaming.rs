//! A member's next lease is foreseen while its record is made; nothing of another lineage goes into fragments.

use crate::bench::{Bench, refusals};
use crate::fixture::{digest, id, spec, voters};
use starling_protocol::Digest;
use starling_protocol::difference::Difference;
use starling_protocol::engine::io::{Input, Output, Refusal};
use starling_protocol::message::{Message, Ready};
use starling_protocol::record::{Done, Span};
use starling_protocol::run::{ExternalSpec, RunSpec};

fn streaming(fragments: u32, overlap: u32) -> RunSpec {
    let mut spec = spec();
    (spec.sync.fragments, spec.sync.overlap, spec.sync.mixing) = (fragments, overlap, 0.5);
    spec
}

/// A run whose trainers come from outside, with a sample's largest weight.
fn external(weight: u32) -> RunSpec {
    let (schema, frozen) = (digest(6), Digest::default());
    let task = Some(ExternalSpec { schema, frozen, parameters: 10, learned: 10, samples: 100, weight });
    RunSpec { task, ..spec() }
}

/// All members say READY. Returns the outputs of the engine.
fn all_ready(bench: &mut Bench) -> Vec<Output> {
    let mut outputs = bench.trained();
    for peer in [2, 3, 4] {
        let mut ready = bench.ready(peer);
        // One member is so slow that leases differ.
        ready.measured.step_us = if peer == 3 { 2_000 } else { 1_000 };
        ready.measured.overhead_us = 9_000_000;
        outputs.extend(bench.say(peer, &Message::Ready(ready)));
    }
    outputs
}

fn ahead(outputs: &[Output]) -> Vec<(u64, Span, u32, Done, u32)> {
    let of = |output: &Output| match *output {
        Output::Ahead { round, lease, inner_steps, done, steps, .. } => Some((round, lease, inner_steps, done, steps)),
        _ => None,
    };
    outputs.iter().filter_map(of).collect()
}

#[test]
fn the_lease_of_the_next_record_is_told_as_soon_as_its_attempt_runs() {
    let mut bench = Bench::flock_of(streaming(2, 2), &voters(4));
    for _ in 0..3 {
        let base = bench.ready(1).base;
        let outputs = all_ready(&mut bench);
        let foreseen = ahead(&outputs);
        let [(round, lease, inner_steps, done, steps)] = foreseen[..] else { panic!("{outputs:?}") };
        assert!(outputs.iter().any(|output| matches!(output, Output::Ahead { base: from, .. } if *from == base)));
        assert_eq!(steps, 2);
        let key = bench.running();
        let outputs = bench.decide(key);
        let record = bench.record();
        assert_eq!((round, lease, done), (record.round + 1, *record.lease_of(&id(1)).expect("a lease"), record.done()));
        let train = outputs.iter().find_map(|output| match *output {
            Output::Train { round, lease, inner_steps, done, .. } => Some((round, lease, inner_steps, done)),
            _ => None,
        });
        assert_eq!(train, Some((round, lease, inner_steps, done)));
    }
}

#[test]
fn the_steps_that_the_flock_chooses_are_told_ahead() {
    let mut spec = streaming(2, 2);
    spec.sync.gap_max = 8 * spec.inner.steps;
    let first = spec.inner.steps;
    let mut bench = Bench::flock_of(spec, &voters(4));
    let mut chosen = Vec::new();
    for _ in 0..6 {
        let outputs = all_ready(&mut bench);
        let foreseen = ahead(&outputs);
        let [(_, lease, inner_steps, ..)] = foreseen[..] else { panic!("{outputs:?}") };
        let key = bench.running();
        bench.decide(key);
        let record = bench.record();
        assert_eq!((lease, inner_steps), (*record.lease_of(&id(1)).expect("a lease"), record.next.inner_steps));
        chosen.push(inner_steps);
    }
    assert_eq!(chosen, [1, 1, 2, 4, 8, 8].map(|times| times * first), "of three rounds the costs are known");
}

#[test]
fn a_trainer_from_outside_hears_of_its_next_lease_without_steps_ahead() {
    let mut bench = Bench::flock_of(external(4), &voters(4));
    let foreseen = ahead(&all_ready(&mut bench));
    let [(round, lease, _, _, steps)] = foreseen[..] else { panic!("{foreseen:?}") };
    assert_eq!(steps, 0);
    let key = bench.running();
    bench.decide(key);
    let record = bench.record();
    assert_eq!((round, lease), (record.round + 1, *record.lease_of(&id(1)).expect("a lease")));
}

#[test]
fn a_sample_counts_at_most_what_its_task_says() {
    let mut bench = Bench::flock_of(external(5), &voters(4));
    let of = |mut ready: Ready, over: u64| {
        ready.tokens = 5 * ready.samples + over;
        Message::Ready(ready)
    };
    let (heavy, full) = (of(bench.ready(2), 1), of(bench.ready(3), 0));
    let refusal = [&Refusal::Malformed { what: "ready that does not fit its lease" }];
    assert_eq!(refusals(&bench.say(2, &heavy)), refusal);
    assert!(refusals(&bench.say(3, &full)).is_empty());
}

#[test]
fn nothing_is_foreseen_without_overlap_or_after_the_last_round() {
    let mut bench = Bench::flock_of(streaming(2, 0), &voters(4));
    assert_eq!(ahead(&all_ready(&mut bench)), []);
    let mut last = streaming(1, 2);
    last.budget.rounds = 1;
    let mut bench = Bench::flock_of(last, &voters(4));
    assert_eq!(ahead(&all_ready(&mut bench)), [], "its record ends the run");
    let mut bench = Bench::flock_of(streaming(1, 2), &voters(4));
    bench.feed(Input::Leave);
    assert_eq!(ahead(&all_ready(&mut bench)), [], "it goes");
}

#[test]
fn fragments_take_in_no_other_lineage() {
    let mut bench = Bench::flock_of(streaming(2, 0), &voters(4));
    bench.norm = 2.0;
    bench.commit();
    let lineage = digest(0x44);
    let outputs = bench.feed(Input::Difference { difference: Difference { lineage, tokens: 1_000, place: 0, of: 2 } });
    assert_eq!(outputs, [Output::DropDifference { lineage }]);
    let ready = Ready { merges: Some(lineage), merged_tokens: 1, ..bench.ready(2) };
    let refusal = [&Refusal::Malformed { what: "ready that merges what it may not" }];
    assert_eq!(refusals(&bench.say(2, &Message::Ready(ready))), refusal);
}
