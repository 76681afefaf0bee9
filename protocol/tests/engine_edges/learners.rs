//! Members without a vote: what they are told, and what their messages are worth.

use crate::bench::{BOOT, Bench, INCARNATION, ME, digest, id, refusals, sent, spec};
use crate::refusing::report_refusal;
use crate::stalling::{agree, blamed, stand_still};
use starling_protocol::NodeId;
use starling_protocol::engine::io::{Input, Output, Refusal};
use starling_protocol::message::{Awaited, Join, Message, Phase, Question, Ready, Start, Value, ValueKind};
use starling_protocol::record::{Measured, Role};
use starling_protocol::run::EngineKind;

/// A flock of four in which one is a learner.
fn flock_with(learner: u8, engine: EngineKind) -> Bench {
    let mut spec = spec();
    spec.sync.engine = engine;
    let role = |n| if n == learner { Role::Learner } else { Role::Voter };
    Bench::flock_of(spec, &[1, 2, 3, 4].map(|n| (n, role(n))))
}

#[test]
fn a_learner_is_told_of_a_decision() {
    let roles = [(ME, Role::Voter), (2, Role::Voter), (3, Role::Voter), (4, Role::Learner)];
    let mut bench = Bench::flock_of(spec(), &roles);
    let outputs = bench.commit();
    let told = sent(&bench.spec, &outputs);
    assert!(told.iter().any(|(to, said)| *to == id(4) && matches!(said, Message::Certificate(_))), "{told:?}");
}

/// A learner believes a voter, and not another learner, that the flock makes a later attempt.
#[test]
fn only_voters_say_that_an_attempt_begins() {
    for (from, stale) in [(3, false), (4, true)] {
        let roles = [(ME, Role::Learner), (2, Role::Voter), (3, Role::Voter), (4, Role::Learner)];
        let mut bench = Bench::flock_of(spec(), &roles);
        bench.all_ready();
        let question = Question { instance: 1, ..bench.question() };
        let (kind, digest) = (ValueKind::Set, digest(3));
        let value = Value { kind, digest, tokens: 9, contributors: 3, attempt: 1, set: digest, members: vec![0b1110] };
        let outputs = bench.say(from, &Message::Start(Start { question, value }));
        assert_eq!(refusals(&outputs).contains(&&Refusal::Stale), stale, "from {from}: {outputs:?}");
    }
}

/// A learner cannot name its result, and the others do not hear of it. In the new attempt they would wait for the
/// learner until nothing has moved for too long. Found by the simulator (ambushes, seed 3).
#[test]
pub fn a_learner_that_has_a_result_goes_along_with_a_later_attempt() {
    let roles = [(ME, Role::Learner), (2, Role::Voter), (3, Role::Voter), (4, Role::Voter)];
    let mut bench = Bench::flock_of(spec(), &roles);
    let first = bench.all_ready();
    bench.feed(Input::Reduced { key: first, update: digest(9) });
    bench.feed(Input::Applied { key: first, update: digest(9), state_root: digest(8) });
    let (question, set) = (Question { instance: 1, ..bench.question() }, first.set);
    let members = vec![0b1111];
    let value = Value { kind: ValueKind::Set, digest: set, tokens: 4, contributors: 4, attempt: 1, set, members };
    let mut outputs = bench.say(3, &Message::Start(Start { question, value }));
    outputs.extend(bench.wait(2_000_000));
    assert_eq!(bench.running().attempt, 1, "{outputs:?}");
    assert!(!outputs.iter().any(|output| matches!(output, Output::Abandon { .. })), "it keeps its result: {outputs:?}");
}

/// A learner that is told a set late in a round waits as long for a READY of the set as for any other. Found by the
/// simulator (clogs, seed 23).
#[test]
fn a_contribution_is_lost_when_it_has_not_come_since_the_set_was_told() {
    let flock =
        || Bench::flock_of(spec(), &[(ME, Role::Learner), (2, Role::Voter), (3, Role::Voter), (4, Role::Voter)]);
    let set = flock().all_ready().set;
    let mut bench = flock();
    bench.trained();
    for peer in [2, 3] {
        let ready = bench.ready(peer);
        bench.say(peer, &Message::Ready(ready));
    }
    bench.wait(5_000_000);
    let (question, members) = (Question { instance: 1, ..bench.question() }, vec![0b1111]);
    let value = Value { kind: ValueKind::Set, digest: set, tokens: 4, contributors: 4, attempt: 1, set, members };
    bench.say(3, &Message::Start(Start { question, value }));
    bench.wait(2_000_000);
    let ready = bench.ready(4);
    bench.say(4, &Message::Ready(ready));
    bench.wait(100_000);
    assert_eq!(bench.running().attempt, 1);
}

/// The last READY comes when some have just given up its sender. Voters tell each other so, and learners would tell nobody:
/// those that have begun attempt 0 would wait for them until it stalls. Found in the lab (eight nodes of 30M parameters).
#[test]
pub fn a_learner_waits_in_attempt_0_until_a_voter_goes_on() {
    let flock =
        || Bench::flock_of(spec(), &[(ME, Role::Learner), (2, Role::Voter), (3, Role::Voter), (4, Role::Voter)]);
    let mut bench = flock();
    bench.trained();
    for peer in [2, 3] {
        let ready = bench.ready(peer);
        bench.say(peer, &Message::Ready(ready));
    }
    bench.wait(5_000_000);
    assert_eq!(bench.attempt(), None);
    let ready = bench.ready(4);
    bench.say(4, &Message::Ready(ready));
    assert_eq!(bench.running().attempt, 0);
}

/// The nodes that a member states to join, in the first round of a flock.
fn joiners_named(others: [u8; 2]) -> Vec<NodeId> {
    let mut members = [ME, others[0], others[1]].map(|member| (member, Role::Voter));
    members.sort_unstable_by_key(|(member, _)| *member);
    let mut bench = Bench::flock_of(spec(), &members);
    let record = bench.record();
    for joiner in 7..17 {
        bench.greet(joiner, BOOT);
        let (lineage, seq, state_root) = (record.lineage, record.seq, record.state_root);
        let (record, incarnation, ticket) = (record.digest(), INCARNATION, Vec::new());
        bench.say(joiner, &Message::Join(Join { lineage, seq, record, state_root, incarnation, ticket }));
    }
    let outputs = bench.trained();
    let ready = sent(&bench.spec, &outputs).into_iter().find_map(|(_, said)| match said {
        Message::Ready(ready) => Some(ready),
        _ => None,
    });
    ready.expect("a READY").statements.iter().map(|said| said.id).collect()
}

/// Different statements of members let more joiners in than each member may state.
#[test]
fn members_that_see_the_same_say_different_things() {
    let (first, second) = (joiners_named([2, 3]), joiners_named([0, 2]));
    assert_eq!((first.len(), second.len()), (8, 8));
    assert_ne!(first, second, "the first and the second seat");
}

/// A learner that trains for longer than the others ends its steps early enough to be counted, however far behind it
/// believes to be. The voters, which measure that for themselves, may wait less long. Found by the simulator (seed
/// 3728).
#[test]
fn a_learner_ends_its_steps_in_the_time_that_any_voter_gives_it() {
    let mut bench = Bench::flock_of(spec(), &[(ME, Role::Learner), (2, Role::Voter), (3, Role::Voter)]);
    for peer in [2, 3] {
        bench.feed(Input::Rtt { peer: id(peer), micros: 900_000 });
        let ready = bench.ready(peer);
        bench.say(peer, &Message::Ready(ready));
    }
    let early = bench.wait(900_000);
    let late = bench.wait(200_000);
    let cut = |outputs: &[Output]| outputs.iter().any(|output| matches!(output, Output::CutShort { .. }));
    assert_eq!((cut(&early), cut(&late)), (false, true));
}

/// A learner says that it has refused a voter's data. A member that is left out of one round is not expected in the
/// next, and the next record removes it.
#[test]
pub fn a_learners_report_takes_no_voter_out() {
    let mut bench = flock_with(4, EngineKind::Ring);
    bench.all_ready();
    let outputs = report_refusal(&mut bench, 4, 3);
    assert_eq!(agree(&mut bench, outputs), [1, 2, 3].map(id));
    let key = bench.running();
    bench.decide(key);
    bench.commit();
    assert_eq!(bench.record().voters().map(|voter| voter.id).collect::<Vec<_>>(), [1, 2, 3].map(id));
}

/// The same for a learner that says that it waits for a voter while nothing moves.
#[test]
fn where_nothing_moves_a_learners_word_takes_no_voter_out() {
    let mut bench = flock_with(4, EngineKind::Owners);
    let key = bench.all_ready();
    let outputs = stand_still(&mut bench, key, &[(4, Awaited::Part, id(3)), (2, Awaited::Sum, id(4))]);
    assert_eq!(blamed(&outputs), [Some(id(4))]);
    assert_eq!(agree(&mut bench, outputs), [1, 2, 3].map(id));
    // In a ring the learner pretends to starve behind a voter.
    for learner in 2..=4 {
        let mut bench = flock_with(learner, EngineKind::Ring);
        let key = bench.all_ready();
        bench.feed(Input::ReduceProgress { key, bytes: 3, awaits: None });
        let mut outputs: Vec<Output> = Vec::new();
        while blamed(&outputs).is_empty() {
            for peer in 2..=4 {
                let head = bench.chain_head(Phase::Reducing, if peer == learner { 1 } else { 3 });
                outputs.extend(bench.say(peer, &Message::Head(head)));
            }
            outputs.extend(bench.wait(1_000_000));
        }
        assert_eq!(blamed(&outputs), [Some(id(learner))]);
    }
}

/// Learners state that reductions take an hour, and then a byte arrives each second: the voters have measured a second.
#[test]
pub fn how_long_reductions_take_is_for_voters_to_say() {
    let roles = [(ME, Role::Voter), (2, Role::Voter), (3, Role::Learner), (4, Role::Learner), (5, Role::Learner)];
    let mut bench = Bench::flock_of(spec(), &roles);
    bench.trained();
    for (member, reduce_us) in [(2, 1_000_000), (3, u32::MAX), (4, u32::MAX), (5, u32::MAX)] {
        let ready = bench.ready(member);
        let measured = Measured { reduce_us, ..ready.measured };
        bench.say(member, &Message::Ready(Ready { measured, ..ready }));
    }
    let key = bench.running();
    let mut outputs = Vec::new();
    for bytes in 1..200 {
        bench.feed(Input::ReduceProgress { key, bytes, awaits: None });
        for peer in 2..=5 {
            let head = bench.chain_head(Phase::Reducing, bytes);
            outputs.extend(bench.say(peer, &Message::Head(head)));
        }
        outputs.extend(bench.wait(1_000_000));
    }
    assert!(!blamed(&outputs).is_empty(), "given up after two minutes, as if nothing were measured");
}
