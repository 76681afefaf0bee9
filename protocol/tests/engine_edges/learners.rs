//! Members without a vote: what they are told, and what their word is worth.

use crate::bench::{BOOT, Bench, INCARNATION, ME, digest, id, refusals, sent, spec};
use starling_protocol::NodeId;
use starling_protocol::engine::io::{Input, Output, Refusal};
use starling_protocol::message::{Join, Message, Question, Start, Value, ValueKind};
use starling_protocol::record::Role;

#[test]
fn who_does_not_vote_is_told_of_a_decision() {
    let roles = [(ME, Role::Voter), (2, Role::Voter), (3, Role::Voter), (4, Role::Learner)];
    let mut bench = Bench::flock_of(spec(), &roles);
    let outputs = bench.commit();
    let told = sent(&bench.spec, &outputs);
    assert!(told.iter().any(|(to, said)| *to == id(4) && matches!(said, Message::Certificate(_))), "{told:?}");
}

/// A learner believes that the flock makes a later attempt if a voter says so, and not another learner.
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

/// What a member says of who asks to be let in, in the first round of a flock.
fn joiners_named(others: [u8; 2]) -> Vec<NodeId> {
    let mut members = [ME, others[0], others[1]].map(|member| (member, Role::Voter));
    members.sort_unstable_by_key(|(member, _)| *member);
    let mut bench = Bench::flock_of(spec(), &members);
    let record = bench.record();
    for joiner in [7, 8, 9] {
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

/// So that more fits than each may say.
#[test]
fn members_that_see_the_same_say_different_things() {
    let (first, second) = (joiners_named([2, 3]), joiners_named([0, 2]));
    assert_eq!((first.len(), second.len()), (2, 2));
    assert_ne!(first, second, "the first and the second seat");
}

/// A learner that trains for longer than the others ends its steps early enough to be counted, however long it takes itself
/// to lag behind: the voters, who measure that for themselves, may wait for less. Found by the simulator (seed 3728).
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
