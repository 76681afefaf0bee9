//! Members name different results of one attempt: whose state is damaged? And a result that others hold is checked before
//! it is rebuilt.

use crate::bench::{Bench, digest};
use starling_protocol::Digest;
use starling_protocol::engine::Candidate;
use starling_protocol::engine::io::{AttemptKey, Input, Notice, Output};
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

/// A result of a first round, as a member holds it, and what that member says of it.
fn held() -> (Candidate, Message) {
    let mut bench = Bench::flock(3);
    let key = bench.all_ready();
    bench.feed(Input::Reduced { key, update: digest(9) });
    let outputs = bench.feed(Input::Applied { key, update: digest(9), state_root: digest(10) });
    let written = |output: &Output| match output {
        Output::Persist { candidate: Some(candidate), .. } => Some(candidate.clone()),
        _ => None,
    };
    let candidate = outputs.iter().find_map(written).expect("the result is written before it is named");
    let said = crate::bench::sent(&bench.spec, &outputs).into_iter().map(|(_, message)| message);
    let named = said.into_iter().find(|message| matches!(message, Message::Estimate(_)));
    (candidate, named.expect("the result is named"))
}

/// What is made of a fetched result by a member whom the others have named it as one of this set.
fn made_of(candidate: &Candidate, named: &Message, set: Digest) -> Vec<Output> {
    let Message::Estimate(mut estimate) = named.clone() else { panic!("{named:?}") };
    estimate.value.set = set;
    let mut bench = Bench::flock(3);
    let mut outputs = Vec::new();
    for peer in [2, 3] {
        outputs.extend(bench.say(peer, &Message::Estimate(estimate.clone())));
    }
    let asked = |o: &Output| matches!(o, Output::Fetch { record, .. } if *record == candidate.record.digest());
    assert!(outputs.iter().any(asked), "{outputs:?}");
    let key = AttemptKey { set, ..candidate.key };
    bench.feed(Input::Fetched { candidate: Candidate { key, ..candidate.clone() } })
}

#[test]
fn a_fetched_result_is_rebuilt_of_the_set_that_was_named_only() {
    let (candidate, named) = held();
    let rebuilds = |outputs: &[Output]| outputs.iter().any(|output| matches!(output, Output::Speculate { .. }));
    assert!(rebuilds(&made_of(&candidate, &named, candidate.key.set)));
    assert!(!rebuilds(&made_of(&candidate, &named, digest(55))));
}
