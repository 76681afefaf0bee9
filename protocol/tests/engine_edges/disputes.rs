//! Members name different results of one attempt: whose state is damaged?

use crate::bench::{Bench, digest};
use starling_protocol::engine::io::{Input, Notice, Output};
use starling_protocol::message::{Head, Message, Phase};

/// A member that holds a result, and has just heard of another of the same attempt.
fn disputed() -> Bench {
    let mut bench = Bench::flock(4);
    let key = bench.all_ready();
    let mut said = bench.rebuild(key);
    said.value.digest = digest(77);
    let outputs = bench.say(2, &Message::Estimate(said));
    assert!(outputs.iter().any(|output| matches!(output, Output::VerifyState)), "{outputs:?}");
    bench
}

fn faults(outputs: &[Output]) -> usize {
    outputs.iter().filter(|output| matches!(output, Output::Notice(Notice::OwnFault { .. }))).count()
}

#[test]
fn a_member_looks_at_its_own_state_first() {
    let mut bench = disputed();
    let state_root = bench.record().state_root;
    assert_eq!(faults(&bench.feed(Input::StateVerified { state_root })), 0);
    assert_eq!(faults(&disputed().feed(Input::StateVerified { state_root: digest(66) })), 1);
}

/// What is fetched meanwhile is in the state before its record is the head. Found by an hour of churn in the lab.
#[test]
fn a_state_that_is_being_caught_up_is_no_fault() {
    let mut bench = disputed();
    let standing = bench.standing(Phase::Training, 0);
    let ahead = Head { seq: standing.seq + 2, record: digest(88), tokens: standing.tokens + 1_000, ..standing };
    let way = bench.way(&ahead);
    let mut outputs = bench.say(3, &Message::Head(ahead.clone()));
    outputs.extend(bench.wait(5_000_000));
    outputs.extend(bench.claim(3, &ahead, &way));
    assert!(outputs.iter().any(|output| matches!(output, Output::CatchUp { .. })), "{outputs:?}");
    assert_eq!(faults(&bench.feed(Input::StateVerified { state_root: digest(66) })), 0);
}
