//! T20, T21: withholding, stalling and griefing cost whoever does it its place in the round, and nobody else.

use crate::bench::{BOOT, Bench, INCARNATION, digest, id, refusals};
use starling_protocol::engine::MemberState;
use starling_protocol::engine::io::{Input, Notice, Output, Refusal};
use starling_protocol::message::{Estimate, Message, Phase, Ready, Statement, StatementKind, Value, ValueKind, Vote};
use starling_protocol::{Digest, NodeId};

const SECOND: u64 = 1_000_000;
const STALLER: u8 = 4;

/// A second in which everybody says how far it is.
fn beat(bench: &mut Bench, progress: [u64; 3]) -> Vec<Output> {
    let mut outputs = Vec::new();
    for (peer, progress) in (2..).zip(progress) {
        let head = bench.standing(Phase::Reducing, progress);
        outputs.extend(bench.say(peer, &Message::Head(head)));
    }
    outputs.extend(bench.wait(SECOND));
    outputs
}

/// Who is blamed for the attempts that failed.
fn blamed(outputs: &[Output]) -> Vec<Option<NodeId>> {
    let blamed = |output: &Output| match output {
        Output::Notice(Notice::AttemptFailed { suspect, .. }) => Some(*suspect),
        _ => None,
    };
    outputs.iter().filter_map(blamed).collect()
}

/// The vote on the next set is answered by the honest; the members of the attempt that follows.
fn agree(bench: &mut Bench, mut outputs: Vec<Output>) -> Vec<NodeId> {
    outputs.extend(bench.wait(SECOND));
    let sent = crate::bench::sent(&bench.spec, &outputs);
    let said = sent.into_iter().rev().find_map(|(_, message)| match message {
        Message::Estimate(estimate) if estimate.value.kind == ValueKind::Set => Some(estimate),
        _ => None,
    });
    let Some(Estimate { question, ballot, value, .. }) = said else { panic!("no vote on a set: {outputs:?}") };
    let mut outputs = Vec::new();
    let incarnation = INCARNATION;
    for peer in [2, 3] {
        let (question, value) = (question.clone(), value.clone());
        outputs.extend(bench.say(peer, &Message::Estimate(Estimate { question, incarnation, ballot, value })));
    }
    for peer in [2, 3] {
        let (question, value) = (question.clone(), value.clone());
        let vote = Vote { question, incarnation, ballot, value, voted: true };
        outputs.extend(bench.say(peer, &Message::Vote(vote)));
    }
    outputs.extend(bench.wait(SECOND));
    let attempt = bench.engine.view().attempt;
    attempt.unwrap_or_else(|| panic!("no attempt follows: {outputs:?}")).1
}

fn goes_on_without_the_staller(bench: &mut Bench, outputs: Vec<Output>) {
    let out: Vec<NodeId> = (bench.engine.view().members.into_iter())
        .filter(|member| matches!(member.state, MemberState::Out(_)))
        .map(|member| member.id)
        .collect();
    assert_eq!(out, [id(STALLER)], "nobody else is left out");
    let members = agree(bench, outputs);
    assert_eq!(members, [id(1), id(2), id(3)]);
}

#[test]
fn t20_who_stops_at_the_last_hop_is_left_out() {
    let mut bench = Bench::flock(4);
    let key = bench.all_ready();
    let mut outputs = Vec::new();
    for second in 0..60 {
        // Everybody has all but what the staller owes.
        let moved = second.min(5) * 100 + 100;
        bench.feed(Input::ReduceProgress { key, bytes: moved + 2 });
        outputs.extend(beat(&mut bench, [moved + 1, moved + 1, moved.min(300)]));
        if !blamed(&outputs).is_empty() {
            break;
        }
    }
    assert_eq!(blamed(&outputs), [Some(id(STALLER))]);
    goes_on_without_the_staller(&mut bench, outputs);
}

/// A byte now and then is no progress: who keeps everybody waiting far longer than a reduction ever took is left out.
#[test]
fn t20_a_byte_a_second_does_not_hold_up_the_round() {
    let mut bench = Bench::flock(4);
    let key = bench.all_ready();
    let mut outputs = Vec::new();
    let mut seconds = 0;
    while blamed(&outputs).is_empty() {
        seconds += 1;
        assert!(seconds < 1_200, "the round hangs on the staller");
        bench.feed(Input::ReduceProgress { key, bytes: 10_000 + seconds });
        outputs = beat(&mut bench, [10_000 + seconds, 10_000 + seconds, seconds]);
    }
    assert!(seconds > 100, "slow is not dead: {seconds} s");
    assert_eq!(blamed(&outputs), [Some(id(STALLER))]);
    goes_on_without_the_staller(&mut bench, outputs);
}

/// T21: one voter that always wants to give up keeps nobody from going on without it.
#[test]
fn t21_one_that_gives_up_is_gone_on_without() {
    let mut bench = Bench::flock(4);
    for round in 1..=3 {
        let head = bench.record();
        let key = bench.all_ready();
        let skip = starling_protocol::engine::succession::skip(&head, head.digest()).unwrap();
        let (question, value) = (bench.question(), Value::skip(skip.digest()));
        let estimate = Estimate { question, incarnation: INCARNATION, ballot: 0, value };
        let mut outputs = bench.say(4, &Message::Estimate(estimate));
        // In later rounds nobody expects anything of it any more.
        assert_eq!(outputs.contains(&Output::Abandon { key }), round == 1, "its part of the attempt will not come");
        let mut members = bench.engine.view().attempt.map(|(_, members)| members);
        if round == 1 {
            // The others vote on who goes on, and none of them gives up.
            outputs.extend(bench.wait(2_000_000));
            members = Some(agree(&mut bench, outputs));
        }
        assert_eq!(members, Some(vec![id(1), id(2), id(3)]));
        let key = bench.running();
        let said = bench.rebuild(key);
        assert_eq!(said.value.kind, ValueKind::Commit);
        for peer in [2, 3] {
            bench.say(peer, &Message::Estimate(said.clone()));
        }
        // Both are for this round, also if the first of them decides it.
        let votes = [2, 3].map(|peer| (peer, bench.vote(peer, said.value.clone(), 0)));
        for (peer, vote) in votes {
            bench.hear(peer, vote);
        }
        assert_eq!((bench.record().round, bench.engine.view().round), (round, round), "every round commits");
        for peer in [2, 3, 4] {
            let head = bench.standing(Phase::Training, 0);
            bench.say(peer, &Message::Head(head));
        }
        if bench.record().member(&id(4)).is_none() {
            // It was left out for so long that it is no member any more: the end of it.
            return assert_eq!(round, 2);
        }
    }
    panic!("who contributes nothing is removed");
}

/// T21: words against others count when more than half of the voters say them, and only from voters.
#[test]
fn t21_one_that_always_suspects_changes_nothing() {
    let mut bench = Bench::flock(4);
    let said = |kind, n| Statement { kind, id: id(n), incarnation: 0, grant: Digest::default() };
    let statements = vec![said(StatementKind::Suspect, 2), said(StatementKind::Suspect, 3)];
    let ready = Ready { statements, ..bench.ready(4) };
    bench.say(4, &Message::Ready(ready));
    let mut outputs = bench.trained();
    for member in [2, 3] {
        let ready = bench.ready(member);
        outputs.extend(bench.say(member, &Message::Ready(ready)));
    }
    assert!(bench.engine.view().attempt.is_some_and(|(_, members)| members.len() == 4), "{outputs:?}");
    let key = bench.running();
    let said = bench.rebuild(key);
    for peer in [2, 3, 4] {
        bench.say(peer, &Message::Estimate(said.clone()));
        let vote = bench.vote(peer, said.value.clone(), 0);
        bench.hear(peer, vote);
    }
    assert_eq!((bench.record().seq, bench.record().members().len()), (1, 4));
    // Votes of those who do not vote, and of former registers, are stale.
    bench.greet(9, BOOT);
    for (from, incarnation) in [(9, INCARNATION), (3, INCARNATION + 1)] {
        let value = Value::skip(digest(1));
        let vote = Vote { question: bench.question(), incarnation, ballot: 0, value, voted: true };
        assert_eq!(refusals(&bench.say(from, &Message::Vote(vote))), [&Refusal::Stale]);
    }
}
