//! Members name different results of one attempt, so some state is damaged. A result that others hold is checked before
//! it is rebuilt.

use crate::bench::{BOOT, Bench, INCARNATION, digest, sent};
use starling_protocol::Digest;
use starling_protocol::engine::io::{AttemptKey, Input, Notice, Output};
use starling_protocol::engine::{Candidate, succession};
use starling_protocol::message::{Head, Message, Phase, Question, Stamp, Value, Witness};

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

/// The state that is fetched meanwhile is there before its record is the head. Found by an hour of churn in the lab.
#[test]
fn a_state_that_is_being_caught_up_is_no_fault() {
    let mut bench = disputed();
    let chain_head = bench.chain_head(Phase::Training, 0);
    let ahead = Head { seq: chain_head.seq + 2, record: digest(88), tokens: chain_head.tokens + 1_000, ..chain_head };
    let way = bench.way(&ahead);
    let mut outputs = bench.say(3, &Message::Head(ahead.clone()));
    outputs.extend(bench.wait(5_000_000));
    outputs.extend(bench.claim(3, &ahead, &way));
    assert!(outputs.iter().any(|output| matches!(output, Output::CatchUp { .. })), "{outputs:?}");
    assert_eq!(faults(&bench.feed(Input::StateVerified { state_root: digest(66) })), 0);
}

/// A result of a first round, as a member holds it, and that member's statement of it.
fn held() -> (Candidate, Message) {
    held_by(&mut Bench::flock(3), digest(10))
}

fn held_by(bench: &mut Bench, state_root: Digest) -> (Candidate, Message) {
    let key = bench.all_ready();
    bench.feed(Input::Reduced { key, update: digest(9) });
    let outputs = bench.feed(Input::Applied { key, update: digest(9), state_root });
    let written = |output: &Output| match output {
        Output::Persist { candidate: Some(candidate), .. } => Some(candidate.clone()),
        _ => None,
    };
    let candidate = outputs.iter().find_map(written).expect("the result is written before it is named");
    let said = sent(&bench.spec, &outputs).into_iter().map(|(_, message)| message);
    let named = said.into_iter().find(|message| matches!(message, Message::Estimate(_)));
    (candidate, named.expect("the result is named"))
}

/// The outputs of a member for a fetched result that the others have named as one of this set.
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

/// While a decided record is being written, jobs for other results are gone, and a late result is ignored. Found by the
/// simulator (seed 122).
#[test]
fn a_result_fetched_after_the_decision_is_ignored() {
    let (candidate, named) = held();
    let mut bench = Bench::flock(3);
    bench.trained();
    let asked = bench.say(2, &named);
    assert!(asked.iter().any(|output| matches!(output, Output::Fetch { .. })), "{asked:?}");
    let skip = succession::skip(&bench.record(), bench.record().digest()).expect("a seq");
    let decided = bench.certificate(&[2, 3], &Value::skip(skip.digest()));
    bench.writes = false;
    let outputs = bench.say(3, &Message::Certificate(decided));
    assert!(outputs.iter().any(|output| matches!(output, Output::Commit { .. })), "{outputs:?}");
    let outputs = bench.feed(Input::Fetched { candidate });
    assert!(!outputs.iter().any(|output| matches!(output, Output::Speculate { .. })), "{outputs:?}");
}

/// A dead process has left a result that it computed from a damaged state. Two voters with two results of one attempt
/// would never agree. Found by the simulator (seed 11754).
#[test]
fn a_result_of_a_former_process_is_computed_anew_when_others_name_another() {
    let (sound, said) = held();
    let mut bench = Bench::flock(3);
    held_by(&mut bench, digest(66));
    bench.restart(2_000);
    let stamp = Stamp { seq: 1, instance: Question::RECORD, ballot: 0, phase: 1 };
    for peer in [2, 3] {
        bench.greet(peer, BOOT);
        bench.say(peer, &Message::Witness(Witness { incarnation: INCARNATION, stamp }));
        let head = bench.chain_head(Phase::Settling, 0);
        bench.say(peer, &Message::Head(head));
    }
    let outputs = bench.say(2, &said);
    assert!(outputs.iter().any(|output| matches!(output, Output::VerifyState)), "{outputs:?}");
    let state_root = bench.record().state_root;
    let outputs = bench.feed(Input::StateVerified { state_root });
    assert!(outputs.iter().any(|output| matches!(output, Output::Speculate { .. })), "{outputs:?}");
    let (key, update) = (sound.key, sound.record.update);
    let mut outputs = bench.feed(Input::Applied { key, update, state_root: digest(10) });
    outputs.extend(bench.say(3, &said));
    outputs.extend(bench.wait(5_000_000));
    let writes =
        |output: &Output| matches!(output, Output::Persist { candidate: Some(c), .. } if c.record == sound.record);
    assert!(outputs.iter().any(writes), "{outputs:?}");
}

/// The holder of a wrong result has a damaged state and mends it, and the holder of the right one dies. A third voter
/// that computes the right one itself must not ask the dead for it. Found by the simulator (seed 17107).
#[test]
fn a_voter_whose_state_is_sound_holds_what_it_built_of_a_wrong_result() {
    let (sound, _) = held();
    let (wrong, said) = held_by(&mut Bench::flock(3), digest(66));
    let (key, update) = (wrong.key, wrong.record.update);
    let mut bench = Bench::flock(3);
    bench.trained();
    bench.say(2, &said);
    let outputs = bench.feed(Input::Fetched { candidate: wrong });
    assert!(outputs.iter().any(|output| matches!(output, Output::Speculate { .. })), "{outputs:?}");
    let outputs = bench.feed(Input::Applied { key, update, state_root: digest(10) });
    assert!(outputs.iter().any(|output| matches!(output, Output::VerifyState)), "{outputs:?}");
    let gives_up = |output: &Output| matches!(output, Output::Abandon { .. } | Output::Persist { .. });
    assert!(!outputs.iter().any(gives_up), "{outputs:?}");
    let state_root = bench.record().state_root;
    let mut outputs = bench.feed(Input::StateVerified { state_root });
    outputs.extend(bench.wait(5_000_000));
    let writes =
        |output: &Output| matches!(output, Output::Persist { candidate: Some(c), .. } if c.record == sound.record);
    assert!(outputs.iter().any(writes), "{outputs:?}");
}

/// A member whose own result is not the decided one asks others for the state at once, and not only when it wakes next.
/// Found by the simulator (seed 1556).
#[test]
fn a_member_whose_result_is_not_the_decided_one_asks_for_the_state_at_once() {
    let mut bench = Bench::flock(4);
    for peer in [2, 3, 4] {
        let head = bench.chain_head(Phase::Ready, 0);
        bench.say(peer, &Message::Head(head));
    }
    let key = bench.all_ready();
    let mut said = bench.rebuild(key);
    said.value.digest = digest(77);
    bench.say(2, &Message::Estimate(said.clone()));
    let decided = bench.certificate(&[2, 3, 4], &said.value);
    let outputs = bench.say(3, &Message::Certificate(decided));
    assert_eq!(faults(&outputs), 1, "{outputs:?}");
    assert!(outputs.iter().any(|output| matches!(output, Output::CatchUp { .. })), "{outputs:?}");
}
